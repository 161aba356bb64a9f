"""Max Sensitivity: a literal loop, closed forms, bounds, and captum."""

import captum.metrics
import pytest
import torch

from fringe import InputError
from fringe.metrics import evaluate
from toys import Affine, TanhMLP, context_of, normal

X = normal(3, 2, 7, 6)


def sine_map(x: torch.Tensor, rows: list[int]) -> torch.Tensor:
    """A smooth map that is not linear in the input, another for each image of the context."""
    turn = torch.tensor(rows, dtype=x.dtype).view(-1, 1, 1, 1)
    return (3 * x + turn).sin() * x.square().sum((1, 2, 3), keepdim=True)


def moves(context, samples: int = 10, radius: float = 0.02) -> torch.Tensor:
    """The draws (B, samples, *S) that belong to the images."""
    problem, noise = context.problem, context.problem.rng
    return torch.stack(
        [
            torch.stack([radius * (2 * noise.uniform(f"max_sensitivity {key} {m}", x) - 1) for m in range(samples)])
            for key, x in zip(problem.keys, problem.inputs, strict=True)
        ]
    )


def scored(metric="max_sensitivity", explain=sine_map, x=X):
    context = context_of(Affine(x[0].numel()), x, batch_size=4)
    return context, evaluate(context, explain(x, list(range(len(x)))), [metric], of_inputs(explain))[
        metric if isinstance(metric, str) else metric.name
    ]


def of_inputs(explain):
    """An explainer from a function of inputs and the images that they belong to."""
    return lambda problem: explain(problem.inputs, list(problem.rows))


def test_literal_loop():
    context, result = scored()
    for i in range(3):
        before = sine_map(X[i : i + 1], [i]).flatten()
        ratios = []
        for delta in moves(context)[i]:
            after = sine_map((X[i] + delta)[None], [i]).flatten()
            ratios.append(float((before / before.norm() - after / after.norm()).norm() / delta.norm()))
        assert float(result.values[i]) == pytest.approx(max(ratios), rel=1e-12)
        assert float(result.details["bound"][i]) == pytest.approx(
            2 / float(moves(context)[i].flatten(1).norm(dim=1).min())
        )


def test_the_preset_rounding_is_the_largest_distance_of_unit_maps_under_tiny_noise():
    context, result = scored("max_sensitivity:rounding")
    for i in range(3):
        before = sine_map(X[i : i + 1], [i]).flatten()
        after = [sine_map((X[i] + delta)[None], [i]).flatten() for delta in moves(context, 4, 1e-6)[i]]
        expected = max(float((before / before.norm() - other / other.norm()).norm()) for other in after)
        assert float(result.values[i]) == pytest.approx(expected, rel=1e-9)
        assert 1e-7 < expected < 1e-4


def test_captum_preset_is_captums_own():
    context, result = scored("max_sensitivity:captum")
    delta = moves(context).flatten(0, 1)

    def explain(x):
        x = x[0] if isinstance(x, tuple) else x
        return (sine_map(x, torch.arange(3).repeat_interleave(len(x) // 3).tolist()),)

    expected = captum.metrics.sensitivity_max(explain, X, lambda x: x + delta, n_perturb_samples=10)
    torch.testing.assert_close(result.values, expected, rtol=1e-12, atol=0)
    assert "bound" not in result.details


def test_a_map_that_stays_does_not_move():
    _, result = scored(explain=lambda x, rows: torch.ones_like(x))
    assert result.values.tolist() == [0.0] * 3
    assert not result.flags["zero_map"].any()


def turned(angle: float):
    """Maps (1, 0) at the image and (cos, sin) of the angle elsewhere, in the plane of the first two entries."""

    def explain(x, rows):
        away = torch.tensor([not x[i].equal(X[r]) for i, r in enumerate(rows)]).double() * angle
        maps = torch.zeros_like(x).flatten(1)
        maps[:, 0], maps[:, 1] = away.cos(), away.sin()
        return maps.view_as(x)

    return explain


def test_bound_is_met_by_opposite_maps_and_orthogonal_ones_reach_its_root_half():
    pi = torch.pi
    _, opposite = scored(explain=turned(pi))
    torch.testing.assert_close(opposite.values, opposite.details["bound"], rtol=1e-12, atol=0)
    _, orthogonal = scored(explain=turned(pi / 2))
    torch.testing.assert_close(orthogonal.values, orthogonal.details["bound"] / 2**0.5, rtol=1e-12, atol=0)
    # |delta| is about r sqrt(n / 3)
    torch.testing.assert_close(
        opposite.details["bound"], torch.full((3,), 2 / (0.02 * 28**0.5)).double(), rtol=0.2, atol=0
    )


def test_zero_maps_are_defined_and_flagged():
    _, still = scored(explain=lambda x, rows: torch.zeros_like(x))
    assert still.values.tolist() == [0.0] * 3
    assert still.flags["zero_map"].all()

    def vanishing(x, rows):
        away = torch.tensor([not x[i].equal(X[r]) for i, r in enumerate(rows)])
        return sine_map(x, rows) * (~away).view(-1, 1, 1, 1)

    _, gone = scored(explain=vanishing)  # a unit map moves to zero: a distance of one
    torch.testing.assert_close(gone.values, gone.details["bound"] / 2, rtol=1e-12, atol=0)
    assert gone.flags["zero_map"].all()

    def clipped(x, rows):  # zero for about half of the draws
        return sine_map(x, rows) * (x - X[rows] >= 0)[:, :1, :1, :1]

    _, some = scored(explain=clipped)
    assert some.flags["zero_map"].all()


def test_broken_maps_have_no_score():
    def broken(x, rows):
        away = torch.tensor([r == 1 and not x[i].equal(X[r]) for i, r in enumerate(rows)])
        return sine_map(x, rows).masked_fill(away.view(-1, 1, 1, 1), torch.nan)

    _, result = scored(explain=broken)
    assert result.values.isnan().tolist() == result.flags["undefined"].tolist() == [False, True, False]


def test_it_needs_the_method():
    context = context_of(TanhMLP(84), X)
    with pytest.raises(InputError, match="metric max_sensitivity: it needs the method that made the maps"):
        evaluate(context, X, ["max_sensitivity"])
    with pytest.raises(InputError, match=r"explain: got maps of shape \(4, 84\), expected \(4, 2, 7, 6\)"):
        evaluate(
            context_of(TanhMLP(84), X, batch_size=4), X, ["max_sensitivity"], lambda problem: problem.inputs.flatten(1)
        )
