"""Insertion and deletion: curves computed by hand, literal loops, and what must be true of any curve."""

from fractions import Fraction
from itertools import pairwise

import literal_metrics as literal
import pytest
import torch
from metrics_toys import Odds, doubtful
from scipy import ndimage

from fringe.metrics import Deletion, Insertion, SymmetricRelevanceGain, evaluate
from toys import Affine, TanhMLP, context_of, normal

ONES = torch.ones(1, 1, 2, 2, dtype=torch.float64)
PERFECT = torch.tensor([[[[8.0, 4.0], [2.0, 2.0]]]], dtype=torch.float64).log()


def float64(*values: Fraction) -> torch.Tensor:
    return torch.tensor([[float(v) for v in values]], dtype=torch.float64)


def of_odds(*odds: int) -> list[Fraction]:
    return [Fraction(o, o + 1) for o in odds]


@pytest.mark.parametrize(
    ("metric", "odds"),
    [(Insertion, [1, 8, 32, 64, 128]), (Deletion, [128, 16, 4, 2, 1])],
)
def test_curve_by_hand(metric, odds):
    c = of_odds(*odds)
    low, high = min(c), max(c)
    share = [(v - low) / (high - low) for v in c]
    one = metric(reference="zeros", steps=4)
    result = evaluate(context_of(Odds(), ONES, 1), PERFECT, [one])[one.name]
    torch.testing.assert_close(result.curves["raw"], float64(*c), rtol=1e-14, atol=0)
    torch.testing.assert_close(result.curves["normalised"], float64(*share), rtol=1e-13, atol=1e-15)
    trapezoid = sum((a + b) / 2 for a, b in pairwise(share)) / 4
    assert float(result.values) == pytest.approx(float(trapezoid), rel=1e-13)
    assert float(result.details["p_input"]) == pytest.approx(128 / 129, rel=1e-14)
    assert float(result.details["p_reference"]) == pytest.approx(1 / 2, rel=1e-14)
    assert float(result.details["ties"]) == 0.5  # the two odds of 2


X, MAPS = normal(3, 2, 7, 6), normal(3, 2, 7, 6, seed=2)


def blurred(x: torch.Tensor) -> torch.Tensor:
    """A fifth of the shortest side, to 4 sigma each way, as SciPy has it."""
    kept = ndimage.gaussian_filter(x.numpy(), 0.2 * min(x.shape[2:]), mode="mirror", axes=(2, 3), truncate=4.0)
    return torch.from_numpy(kept)


@pytest.mark.parametrize("metric", [Insertion, Deletion])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"steps": 1},
        {"reference": "box", "padding": "zeros", "steps": 5},
        {"steps": 42, "reduction": "abs_sum", "reference": "mean"},
    ],
)
def test_curve_is_the_literal_loop(metric, settings):
    model, one = TanhMLP(84), metric(**settings)
    context = context_of(model, X, doubtful(model, X))
    result = evaluate(context, MAPS, [one])[one.name]
    if settings.get("reference") == "mean":
        references = X.mean((2, 3), keepdim=True).expand_as(X)
    elif settings.get("reference") == "box":
        references = torch.nn.functional.avg_pool2d(X, 3, 1, 1)
    else:
        references = blurred(X)
    for i, target in enumerate(context.problem.target.tolist()):
        how, steps = settings.get("reduction", "max"), settings.get("steps", 7)
        c = literal.curve(model, X[i], references[i], target, MAPS[i], one.name, steps, how)
        p_input, p_reference = (literal.probability(model, z[i], target) for z in (X, references))
        assert result.curves["raw"][i].tolist() == pytest.approx(c, rel=1e-12)
        share = literal.normalised(c, p_input, p_reference)
        assert float(result.details["raw"][i]) == pytest.approx(literal.trapezoid(c), rel=1e-12)
        assert float(result.values[i]) == pytest.approx(literal.trapezoid(share), rel=1e-10, abs=1e-12)
        assert bool(result.flags["blur_more_confident"][i]) == (p_input <= p_reference) == (i == len(X) - 1)


@pytest.mark.parametrize("steps", [6, 42])
def test_srg_is_the_area_with_the_least_important_first_less_that_with_the_most_important(steps):
    model, one = TanhMLP(84), SymmetricRelevanceGain(steps=steps)
    context = context_of(model, X)
    result = evaluate(context, MAPS, [one])["srg"]
    references = blurred(X)
    least = MAPS.abs().amax() + 1 - MAPS.abs().amax(1, keepdim=True)  # the same pixels from the other end
    for i, target in enumerate(context.problem.target.tolist()):
        curves = [literal.curve(model, X[i], references[i], target, a[i], "deletion", steps) for a in (least, MAPS)]
        expected = literal.trapezoid(curves[0]) - literal.trapezoid(curves[1])
        assert float(result.values[i]) == pytest.approx(expected, rel=1e-10, abs=1e-13)
        assert result.curves["least_first"][i].tolist() == pytest.approx(curves[0], rel=1e-12)


@pytest.mark.parametrize("steps", [7, 2])
def test_srg_of_a_map_without_an_order_is_zero(steps):
    """Half of 35 pixels are 18 from both ends: then the two curves differ by a pixel, and are still no gap."""
    x = X[..., :5]
    result = evaluate(context_of(TanhMLP(70), x), torch.ones_like(x), [SymmetricRelevanceGain(steps=steps)])["srg"]
    assert result.values.tolist() == [0.0] * len(x)
    difference = float((result.curves["least_first"] - result.curves["most_first"]).abs().amax())
    assert difference < 1e-12 if steps == 7 else difference > 1e-4


@pytest.mark.parametrize("metric", ["insertion", "deletion", "insertion:raw", "mas_insertion", "mas_deletion"])
def test_the_first_curve_is_the_one_whose_area_is_the_score(metric):
    (scores,) = evaluate(context_of(TanhMLP(84), X), MAPS, [metric]).values()
    first = next(iter(scores.curves.values()))
    assert len(scores.curves) > 1
    torch.testing.assert_close((first[:, 1:] + first[:, :-1]).mean(1) / 2, scores.values, rtol=1e-12, atol=1e-12)


def test_a_constant_network_gives_flat_curves():
    model = Affine(84)
    model.weight.zero_()
    result = evaluate(context_of(model, X), MAPS, ["insertion:raw", "deletion:raw"])
    for scores in result.values():
        torch.testing.assert_close(scores.curves["raw"], scores.values[:, None].expand(3, 8), rtol=1e-14, atol=0)
        assert scores.flags["blur_more_confident"].all()


def test_presets_are_what_their_authors_did():
    model, context = TanhMLP(84), context_of(TanhMLP(84), X)
    result = evaluate(
        context, MAPS, ["insertion:rise", "deletion:rise", "insertion:raw", "insertion", "insertion:fast"]
    )
    assert result["insertion:raw"].values.equal(result["insertion"].details["raw"])
    assert result["insertion:fast"].curves["raw"].shape == (3, 43)  # 42 pixels
    for i, target in enumerate(context.problem.target.tolist()):
        zeros = literal.curve(model, X[i], torch.zeros_like(X[i]), target, MAPS[i], "deletion", 7, "abs_sum")
        assert float(result["deletion:rise"].values[i]) == pytest.approx(literal.trapezoid(zeros), rel=1e-12)
    how = {"padding": "zeros", "normalise": False, "reduction": "abs_sum"}
    # the kernel of the code is a box in all but name: 11 x 11, zeros beyond the edge
    box = evaluate(context, MAPS, [Insertion("box", 11, **how)])["insertion"]
    flat = evaluate(context, MAPS, [Insertion("folded", 11, 11.0, **how)])["insertion"]
    torch.testing.assert_close(flat.values, box.values, rtol=0, atol=1e-4)
    torch.testing.assert_close(result["insertion:rise"].values, box.values, rtol=0, atol=2e-2)
    assert not torch.equal(result["insertion:rise"].values, box.values)


def test_monotone_takes_the_running_extreme():
    context = context_of(TanhMLP(84), X)
    for metric, running in ((Insertion, max), (Deletion, min)):
        plain = evaluate(context, MAPS, [metric()])[metric.name].curves["raw"][0].tolist()
        result = evaluate(context, MAPS, [metric(monotone=True)])[metric.name].curves["raw"][0].tolist()
        assert result == [running(plain[: s + 1]) for s in range(len(plain))]
