"""Localisation scores against loops over pixels, the formulas of Quantus, and maps whose score is known."""

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter

from fringe import InputError
from fringe.metrics import EvaluationContext, evaluate
from toys import Affine, context_of, normal

SHAPE = (5, 3, 8, 8)
TRUTH = normal(5, 8, 8, seed=3) > 0.4
NAMES = ("mass_inside", "rank_accuracy", "expected_hit")


def score(maps, *names, truth=TRUTH):
    context = EvaluationContext(context_of(Affine(192), normal(*SHAPE, seed=2)).problem, truth)
    return evaluate(context, maps, names or NAMES)


def values(maps, name, truth=TRUTH):
    return score(maps, name, truth=truth)[name].values


def loop(image, mask, reduction):
    """Mass inside of one map, pixel by pixel."""
    inside = total = 0.0
    for row in range(image.shape[1]):
        for column in range(image.shape[2]):
            entries = [float(image[channel, row, column]) for channel in range(image.shape[0])]
            pixel = max(sum(entries), 0.0) if reduction == "sum" else max(map(abs, entries))
            total += pixel
            inside += pixel * bool(mask[row, column])
    return inside / total


@pytest.mark.parametrize(("name", "reduction"), [("mass_inside", "sum"), ("mass_inside:max_abs", "max")])
def test_mass_inside_is_a_sum_over_pixels(name, reduction):
    maps = normal(*SHAPE)
    expected = [loop(image, mask, reduction) for image, mask in zip(maps, TRUTH, strict=True)]
    assert values(maps, name).tolist() == pytest.approx(expected, rel=1e-12)


def test_rank_accuracy_is_that_of_quantus():
    """``len(intersect(argsort(a)[-|M|:], where(s))) / |M|`` of RelevanceRankAccuracy, for maps without ties."""
    maps = normal(*SHAPE)
    expected = []
    for image, mask in zip(maps.sum(1).numpy(), TRUTH.numpy(), strict=True):
        inside = np.where(mask.flatten())[0]
        top = np.argsort(image.flatten())[-len(inside) :]
        expected.append(len(np.intersect1d(inside, top)) / len(inside))
    assert values(maps, "rank_accuracy").tolist() == pytest.approx(expected, rel=1e-12)


def test_smoothing_filters_the_signed_map_first():
    maps = normal(*SHAPE)
    kernel = {"sigma": (0, 0, 3.0, 3.0), "mode": "constant"}  # over what lies in the image
    smooth = torch.tensor(gaussian_filter(maps.numpy(), **kernel) / gaussian_filter(np.ones(SHAPE), **kernel))
    for name in NAMES:
        expected = values(smooth, name)
        torch.testing.assert_close(values(maps, f"{name}:smooth"), expected, rtol=1e-9, atol=1e-12, equal_nan=True)


def test_maps_whose_score_is_known():
    indicator = TRUTH[:, None].double().expand(SHAPE).clone()
    chance = TRUTH.double().mean((1, 2))
    for name in NAMES:
        torch.testing.assert_close(values(indicator, name), torch.ones(5).double())
        torch.testing.assert_close(values(1 - indicator, name), torch.zeros(5).double())
        for label in (name, f"{name}:max_abs"):
            scored = score(torch.ones(SHAPE).double(), label)[label]
            torch.testing.assert_close(scored.values, chance)
            torch.testing.assert_close(scored.details["chance"], chance)
        for level in (1.0, 0.3):  # the mean of a kernel's weights times 0.3 is not always 0.3
            torch.testing.assert_close(values(torch.full(SHAPE, level).double(), f"{name}:smooth"), chance)


def test_negative_evidence_has_no_mass():
    """A map that is negative on the truth scores zero there, and one without positive mass has no score."""
    maps = normal(*SHAPE).abs()
    maps[0] = -maps[0]
    maps[1] = torch.where(TRUTH[1], -maps[1], maps[1])
    maps[2] = 0.0
    scored = score(maps)["mass_inside"]
    assert scored.flags["no_positive_mass"].tolist() == [True, False, True, False, False]
    assert scored.values.isnan().tolist() == [True, False, True, False, False]
    assert scored.values[1] == 0
    assert not values(maps, "mass_inside:max_abs")[0].isnan()
    least = 1e-7 * torch.ones(SHAPE).double() / 192  # as in the authors' code, this is no mass
    assert values(least * 0.999, "mass_inside").isnan().all()
    torch.testing.assert_close(values(least * 1.001, "mass_inside"), TRUTH.double().mean((1, 2)))


def test_tied_are_maps_whose_equal_entries_decide():
    truth = torch.zeros(4, 8, 8, dtype=torch.bool)
    truth[:, 0, :2] = True
    maps = torch.zeros(4, 3, 8, 8).double()
    maps[0, 0, 0, :3] = torch.tensor([3.0, 2.0, 1.0]).double()  # no two of the largest are equal
    maps[1, 0, 0, :3] = 3.0  # two of three
    maps[2, 0, 0, :3] = torch.tensor([3.0, 3.0, 1.0]).double()  # both of the two
    maps[3, 0, 0, :3] = torch.tensor([3.0, 2.0, 2.0]).double()  # the second of two
    scored = score(torch.cat((maps, maps[:1])), "rank_accuracy", "expected_hit", truth=torch.cat((truth, truth[:1])))
    assert scored["rank_accuracy"].flags["tied"].tolist() == [False, True, False, True, False]
    assert scored["rank_accuracy"].values.tolist() == pytest.approx([1.0, 2 / 3, 1.0, 0.75, 1.0])
    assert scored["expected_hit"].flags["tied"].tolist() == [False, True, True, False, False]


def test_a_truth_without_pixels_has_no_rank_and_no_hit():
    scored = score(normal(*SHAPE).abs(), truth=torch.zeros_like(TRUTH))
    assert scored["rank_accuracy"].values.isnan().all()
    assert scored["mass_inside"].values.tolist() == scored["expected_hit"].values.tolist() == [0.0] * 5


def test_a_truth_that_is_absent_or_of_another_size_is_refused():
    with pytest.raises(InputError, match="it needs images of a scene"):
        score(normal(*SHAPE), "mass_inside", truth=None)
    with pytest.raises(InputError, match=r"truth: got shape \(5, 4, 4\)"):
        score(normal(*SHAPE), "mass_inside", truth=TRUTH[:, :4, :4])


@pytest.mark.parametrize("name", NAMES)
def test_a_negative_truth_is_where_a_map_must_be_negative(name):
    maps = normal(*SHAPE)
    assert torch.equal(values(maps, name, truth=-TRUTH.to(torch.int8)), values(-maps, name))
    assert values(-TRUTH.double()[:, None].expand(SHAPE), name, truth=-TRUTH.to(torch.int8)).tolist() == [1.0] * 5
