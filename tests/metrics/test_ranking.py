"""Which pixels come first, and how much of the map's mass they hold."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fringe.metrics._perturbation import rank_pixels, spatial_map
from toys import Affine, context_of, normal

MAP = torch.tensor([[[[1.0, -3.0]], [[-2.0, 4.0]]]], dtype=torch.float64)  # (1, 2 channels, 1, 2)


@pytest.mark.parametrize(
    ("reduction", "expected"),
    [("max", [2.0, 4.0]), ("abs_sum", [1.0, 1.0]), ("sum_abs", [3.0, 7.0]), ("l2", [5**0.5, 5.0])],
)
def test_channels_become_pixels(reduction, expected):
    torch.testing.assert_close(spatial_map(MAP, reduction), torch.tensor([[expected]], dtype=torch.float64))
    sequence = spatial_map(MAP[:, :, 0], reduction)
    torch.testing.assert_close(sequence, torch.tensor([expected], dtype=torch.float64))


def test_features_of_a_table_are_pixels():
    assert spatial_map(torch.tensor([[1.0, -3.0, 0.0]]), "abs_sum").tolist() == [[1.0, 3.0, 0.0]]


def ranked(importance, seed=0):
    """The ranking of maps (B, *space) of as many images, whose equal pixels have the orders of ``seed``."""
    ids = [f"image {i}" for i in range(len(importance))]
    images = torch.ones(len(ids), 1, dtype=torch.float64)
    return rank_pixels(importance, context_of(Affine(1), images, target=0, ids=ids, seed=seed))


def removed(rank):
    """The pixels of one image in the order of their places."""
    return [rank.flatten().tolist().index(i) for i in range(rank.numel())]


def test_half_precision_maps_are_ranked_exactly():
    a = normal(1, 3, 4, 4).half()
    exact = ranked(spatial_map(a.double(), "max"))
    assert ranked(spatial_map(a, "max")).most_first.equal(exact.most_first)


IMPORTANCES = st.lists(st.integers(0, 6), min_size=1, max_size=12)


@given(IMPORTANCES)
def test_order_is_a_sort_and_equal_pixels_keep_one_order_in_both_directions(values):
    maps = torch.tensor([values], dtype=torch.float64)
    ranking, constant = ranked(maps), removed(ranked(torch.zeros_like(maps)).most_first)
    assert removed(ranking.most_first) == sorted(constant, key=lambda k: -values[k])
    assert removed(ranking.least_first) == sorted(constant, key=lambda k: values[k])
    assert ranking.mass[0].tolist() == sorted(values, reverse=True)


def test_the_order_of_equal_pixels_belongs_to_the_image_and_favours_no_part_of_it():
    """The mean place of the upper half of constant maps is that of all pixels: 6 standard errors on each side. By rows
    it is 127.5 less."""
    orders = ranked(torch.ones(40, 32, 32, dtype=torch.float64)).most_first
    assert all(not orders[i].equal(orders[i + 1]) for i in range(39))
    upper = orders[:, :16].double().mean()
    assert abs(upper - 1023 / 2) < 6 * (1024**2 / 12 / 512 / 2 / 40) ** 0.5
    assert ranked(torch.ones(3, 32, 32)).most_first.equal(orders[:3])
    assert not ranked(torch.ones(40, 32, 32), seed=1).most_first.equal(orders)


@given(IMPORTANCES)
def test_density_is_the_share_of_the_mass(values):
    ranking, total = ranked(torch.tensor([values], dtype=torch.float64)), sum(values)
    density = ranking.density(torch.arange(len(values) + 1))[0]
    if total == 0:
        assert bool(density.isnan().all())
        return
    expected = [sum(sorted(values, reverse=True)[:k]) / total for k in range(len(values) + 1)]
    torch.testing.assert_close(density, torch.tensor(expected, dtype=torch.float64), rtol=1e-14, atol=0)
    assert (density[0], density[-1]) == (0.0, 1.0)


@given(IMPORTANCES)
def test_ties_are_counted(values):
    result = ranked(torch.tensor([values], dtype=torch.float64))
    tied = sum(values.count(v) > 1 for v in values)
    assert float(result.ties()) == pytest.approx(tied / len(values), abs=1e-15)
    assert bool(result.flags()["constant_map"]) == (len(set(values)) == 1)
    assert bool(result.flags()["zero_map"]) == (set(values) == {0})
