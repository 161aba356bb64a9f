"""Which pixels come first, and how much of the map's mass they hold."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fringe.metrics._perturbation import rank_pixels, spatial_map
from toys import normal

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


def test_half_precision_maps_are_ranked_exactly():
    a = normal(1, 3, 4, 4).half()
    assert rank_pixels(spatial_map(a, "max")).rank.equal(rank_pixels(spatial_map(a.double(), "max")).rank)


IMPORTANCES = st.lists(st.integers(0, 6), min_size=1, max_size=12)


@given(IMPORTANCES)
def test_order_is_a_stable_descending_sort(values):
    ranking = rank_pixels(torch.tensor([values], dtype=torch.float64))
    expected = sorted(range(len(values)), key=lambda k: (-values[k], k))
    assert [ranking.rank[0].tolist().index(i) for i in range(len(values))] == expected
    assert ranking.mass[0].tolist() == sorted(values, reverse=True)


@given(IMPORTANCES)
def test_density_is_the_share_of_the_mass(values):
    ranking, total = rank_pixels(torch.tensor([values], dtype=torch.float64)), sum(values)
    density = ranking.density(torch.arange(len(values) + 1))[0]
    if total == 0:
        assert bool(density.isnan().all())
        return
    expected = [sum(sorted(values, reverse=True)[:k]) / total for k in range(len(values) + 1)]
    torch.testing.assert_close(density, torch.tensor(expected, dtype=torch.float64), rtol=1e-14, atol=0)
    assert (density[0], density[-1]) == (0.0, 1.0)


@given(IMPORTANCES)
def test_ties_are_counted(values):
    result = rank_pixels(torch.tensor([values], dtype=torch.float64))
    tied = sum(values.count(v) > 1 for v in values)
    assert float(result.ties()) == pytest.approx(tied / len(values), abs=1e-15)
    assert bool(result.flags()["constant_map"]) == (len(set(values)) == 1)
    assert bool(result.flags()["zero_map"]) == (set(values) == {0})
