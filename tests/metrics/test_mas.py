"""Magnitude Aligned Scoring: literal loops of the authors' code and of the printed formula, and their identities."""

import literal_metrics as literal
import numpy as np
import pytest
import torch
from metrics_toys import Odds, additive, doubtful
from scipy.ndimage import gaussian_filter

from fringe.metrics import Insertion, MASDeletion, MASInsertion, evaluate
from fringe.metrics._perturbation import auc
from toys import Affine, TanhMLP, context_of, normal

X, MAPS = normal(4, 2, 7, 6), normal(4, 2, 7, 6, seed=2)
BOTH = (MASInsertion, MASDeletion)


def literal_score(model, x, reference, target, a, metric, rule, how="max") -> float:
    mode = metric.name.removeprefix("mas_")
    c = literal.curve(model, x, reference, target, a, mode, 7, how)
    ends = literal.probability(model, x, target), literal.probability(model, reference, target)
    return rule(c, literal.density(a, mode, 7, how), *ends, mode)


def gaussian(x, edges="reflect"):
    """15 x 15, sigma 3, mirrored at the edges or zero beyond them."""
    taps = torch.exp(-0.5 * (torch.arange(-7, 8, dtype=torch.float64) / 3.0) ** 2)
    kernel = torch.outer(taps, taps).div(taps.sum() ** 2).expand(2, 1, 15, 15)
    padded = torch.from_numpy(np.pad(x.numpy(), ((0, 0), (0, 0), (7, 7), (7, 7)), mode=edges))
    return torch.nn.functional.conv2d(padded, kernel, groups=2)


@pytest.mark.parametrize("metric", BOTH)
@pytest.mark.parametrize(
    ("preset", "rule"),
    [("paper", literal.mas_official), ("text", literal.mas_text), ("released", literal.mas_released)],
)
def test_default_text_and_release_are_the_literal_loops(metric, preset, rule):
    model = TanhMLP(84)
    context = context_of(model, X, doubtful(model, X))
    result = evaluate(context, MAPS, [metric.preset(preset)])[metric.name]
    assert result.flags["blur_more_confident"].tolist() == [False, False, False, True]
    for i, target in enumerate(context.problem.target.tolist()):
        reference = gaussian(X, "constant" if preset == "released" else "reflect")[i]
        expected = literal_score(model, X[i], reference, target, MAPS[i], metric, rule)
        assert float(result.values[i]) == pytest.approx(expected, rel=1e-10, abs=1e-12, nan_ok=True)


@pytest.mark.parametrize("metric", BOTH)
def test_walker2024_is_the_literal_loop_of_the_code(metric):
    model = TanhMLP(84)
    context = context_of(model, X, doubtful(model, X))
    impulse = torch.zeros(11, 11, dtype=torch.float64)
    impulse[5, 5] = 1.0
    kernel = torch.from_numpy(gaussian_filter(impulse.numpy(), 11)).expand(2, 1, 11, 11)
    blurred = torch.nn.functional.conv2d(X, kernel, padding=5, groups=2)
    reference = blurred if metric is MASInsertion else torch.zeros_like(X)
    result = evaluate(context, MAPS, [f"{metric.name}:walker2024"])[f"{metric.name}:walker2024"]
    for i, target in enumerate(context.problem.target.tolist()):
        rule = literal.mas_official
        expected = literal_score(model, X[i], reference[i], target, MAPS[i], metric, rule, "abs_sum")
        assert float(result.values[i]) == pytest.approx(expected, rel=1e-10, abs=1e-12)


def test_by_hand():
    """Odds 1, 8, 32, 64, 128 as pixels come; the map's mass comes as 3, 2, 1, 1 sevenths."""
    x = torch.ones(1, 1, 2, 2, dtype=torch.float64)
    a = torch.tensor([[[[8.0, 4.0], [2.0, 2.0]]]], dtype=torch.float64).log()
    result = evaluate(context_of(Odds(), x, 1), a, [MASInsertion(reference="zeros", steps=4)])["mas_insertion"]
    response = [(o / (o + 1) - 0.5) / (128 / 129 - 0.5) for o in (1, 8, 32, 64, 128)]
    density = [0, 3 / 7, 5 / 7, 6 / 7, 1]
    penalty = [r - d for r, d in zip(response, density, strict=True)]
    assert result.curves["model_response"][0].tolist() == pytest.approx(response, abs=1e-14)
    assert result.curves["density_response"][0].tolist() == pytest.approx(density, abs=1e-15)
    assert result.curves["alignment_penalty"][0].tolist() == pytest.approx(penalty, abs=1e-14)
    for name, curve in (("response", response), ("penalty", penalty)):
        assert float(result.details[name]) == pytest.approx(literal.trapezoid(curve), rel=1e-13)
    # MR - |DR - MR| = DR wherever the response leads, so the score is the area under the density: 17.5 / 28
    assert float(result.values) == pytest.approx(17.5 / 28, abs=1e-14)


@pytest.mark.parametrize("metric", BOTH)
def test_no_penalty_where_the_mass_is_the_response(metric):
    """A network whose probability is linear in the pixels, and its own weights for a map."""
    a = normal(1, 1, 4, 4).abs()
    a = a / a.sum()
    one = metric(reference="zeros", steps=16)
    result = evaluate(context_of(additive(a), torch.ones(1, 1, 4, 4, dtype=torch.float64), 1), a, [one])[one.name]
    assert float(result.curves["alignment_penalty"].max()) < 1e-13
    assert float(result.values) == pytest.approx(float(auc(result.curves["model_response"])), abs=1e-13)


@pytest.mark.parametrize("preset", ["paper", "walker2024", "text"])
@pytest.mark.parametrize("metric", BOTH)
def test_a_zero_map_scores_a_half_and_says_so(metric, preset):
    maps = torch.cat([torch.zeros_like(MAPS[:1]), MAPS[1:]])
    result = evaluate(context_of(TanhMLP(84), X), maps, [metric.preset(preset)])[metric.name]
    assert float(result.values[0]) == 0.5
    assert result.flags["zero_map"].tolist() == result.flags["undefined"].tolist() == [True, False, False, False]
    assert bool(torch.isfinite(result.values).all())


@pytest.mark.parametrize("metric", BOTH)
def test_no_response_at_all_scores_a_half_and_says_so(metric):
    model = Affine(84)
    model.weight.zero_()
    result = evaluate(context_of(model, X), MAPS, [metric()])[metric.name]
    assert result.values.tolist() == [0.5] * 4
    assert result.flags["undefined"].all()


@pytest.mark.parametrize("metric", BOTH)
def test_equal_probabilities_at_the_ends_score_a_half_whatever_lies_between(metric):
    """The quotient has no value at the ends alone, and without rescaling nothing spreads that over the curve."""

    def bent(x):
        shown = x.flatten(1).mean(1)
        return torch.stack([shown * (1.0 - shown), torch.zeros_like(shown)], 1)

    x, a = torch.ones(1, 1, 2, 2, dtype=torch.float64), normal(1, 1, 2, 2)
    bare = metric(reference="zeros", steps=4, monotone=False, clip=False, rescale=False)
    result = evaluate(context_of(bent, x, 0), a, [bare])[metric.name]
    assert result.curves["model_response"][0].isnan().tolist() == [True, False, False, False, True]
    assert result.flags["undefined"].item()
    assert result.values.item() == 0.5


@pytest.mark.parametrize("metric", BOTH)
def test_a_broken_output_is_no_half(metric):
    class Broken(TanhMLP):
        def forward(self, x):
            return super().forward(x).masked_fill((x == 0).flatten(1).all(1, keepdim=True), torch.nan)

    result = evaluate(context_of(Broken(84), X), MAPS, [metric(reference="zeros"), Insertion(reference="zeros")])
    for scores in result.values():
        assert scores.values.isnan().all()
    assert result[metric.name].flags["undefined"].all()


def test_each_switch_is_its_own():
    """Switching the steps of the code off one by one, each against the curve that it leaves."""
    context = context_of(TanhMLP(84), X)

    def curves(**switches):
        return evaluate(context, MAPS, [MASInsertion(**switches)])["mas_insertion"].curves

    bare = curves(monotone=False, clip=False, rescale=False)
    wandering = bare["model_response"]
    assert bool((wandering.diff(dim=1) < 0).any())
    torch.testing.assert_close(curves()["model_response"], wandering.cummax(1).values)
    torch.testing.assert_close(
        bare["aligned"], wandering - (wandering - bare["density_response"]).abs(), rtol=0, atol=1e-15
    )
    assert bool((bare["aligned"] < 0).any())
    clipped = curves(monotone=False, rescale=False)["aligned"]
    assert clipped.equal(bare["aligned"].clamp(0, 1))
    stretched = curves(monotone=False, clip=False)["aligned"]
    low, high = bare["aligned"].amin(1, keepdim=True), bare["aligned"].amax(1, keepdim=True)
    torch.testing.assert_close(stretched, (bare["aligned"] - low) / (high - low))
    extremes = curves(scale="extremes", monotone=False)["model_response"]
    assert extremes.amin(1).tolist() == [0.0] * 4
    assert extremes.amax(1).tolist() == [1.0] * 4
