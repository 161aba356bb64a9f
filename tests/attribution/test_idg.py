"""Integrated Decision Gradients: its identities, its sampler against loops, and the authors' scheme as it is."""

import numpy as np
import pytest
import torch
from attribution_toys import Affine, ReluCNN, SoftplusMLP, images, score_and_gradient

import fringe
from fringe import IntegratedDecisionGradients
from fringe.attribution._ig import importance_sampling_nodes


def explain(model, x, target=1, baseline=0.0, **settings):
    method = IntegratedDecisionGradients(**settings)
    return fringe.attribute(model, x, method=method, target=target, baseline=baseline)


# -- identities ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "scale"), [("importance", 1), ("official", 20)])
def test_on_an_affine_score_it_is_integrated_gradients_times_the_change_of_the_score(mode, scale):
    """Of a score that falls evenly the official places are rounding errors, so there the score that rises most is
    explained."""
    model, x, baseline = Affine(), images(3), images(3, seed=9)
    change = model(x) - model(baseline)
    target = change.argmax(1) if mode == "official" else change.argmin(1)
    ig = fringe.attribute(model, x, method="ig", target=target, baseline=baseline)
    found = explain(model, x, target=target, baseline=baseline, steps=20, mode=mode)
    expected = change.gather(1, target[:, None]).view(-1, 1, 1, 1) * ig.values
    torch.testing.assert_close(scale * found.values, expected, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(found.endpoint_score, ig.endpoint_score)


def test_the_map_is_the_integral_of_gradient_times_slope():
    model, x, count = SoftplusMLP(), images(2), 1000
    expected = torch.zeros_like(x)
    for a in (torch.arange(count, dtype=torch.float64) + 0.5) / count:
        z = (a * x).requires_grad_(True)
        (gradient,) = torch.autograd.grad(model(z)[:, 1].sum(), z)
        expected += x * gradient * (gradient * x).flatten(1).sum(1).view(-1, 1, 1, 1) / count
    found = explain(model, x, steps=300)
    torch.testing.assert_close(found.values, expected, rtol=0, atol=1e-3 * float(expected.abs().max()))


# -- the sampler --------------------------------------------------------------------------------------------------


def scores(batch: int, count: int, seed: int = 0) -> torch.Tensor:
    """Random walks, some of them steep in one place."""
    steps = torch.randn(batch, count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    steps[::3, count // 3] *= 30
    return steps.cumsum(1)


@pytest.mark.parametrize("count", [1, 2, 7, 50])
def test_importance_nodes_invert_the_distribution_function(count):
    values = scores(6, count + 1)
    places, weights = importance_sampling_nodes(values)
    for row in range(len(values)):
        slope = np.abs(np.diff(values[row].numpy())) * count
        density = (slope + 0.05 * slope.mean()) / (1.05 * slope.mean())
        reached = np.concatenate([[0.0], np.cumsum(density) / count])
        expected = np.interp((np.arange(count) + 0.5) / count, reached, np.linspace(0, 1, count + 1))
        np.testing.assert_allclose(places[row].flip(0).numpy(), expected, rtol=0, atol=1e-12)
        interval = np.minimum((expected * count).astype(int), count - 1)
        np.testing.assert_allclose(weights[row].flip(0).numpy(), 1 / (count * density[interval]), rtol=1e-11)


# -- the authors' scheme ------------------------------------------------------------------------------------------


def naive_published_nodes(values: np.ndarray) -> tuple[list[float], list[float]]:
    """The authors' placement for one image, step by step."""
    count = len(values)
    length = 1.0 / (count - 1)
    slopes = [0.0] + [(values[i + 1] - values[i]) / length for i in range(count - 1)]
    low, high = min(slopes), max(slopes)
    shares = [0.0] + [(s - low) / (high - low) for s in slopes[1:]]
    wanted = [share / (sum(shares) or 1.0) * count for share in shares]  # all NaN in the authors' code, if all are 0
    placed = [int(w) for w in wanted]
    ranked = sorted(range(count), key=lambda i: (-1.0 if placed[i] else wanted[i], i), reverse=True)
    for i in ranked[: count - sum(placed)]:
        placed[i] = 1
    places, spacings, start = [], [], 0.0
    for samples in placed:
        if samples == 0:
            continue
        places += [start + length * j / samples for j in range(samples)]
        spacings += [length / samples] * samples
        start += length
    assert len(places) == count  # what is left is never more than there are empty intervals
    return places, spacings


@pytest.mark.parametrize("steps", [2, 3, 9, 30])
def test_the_official_map_is_the_naive_one(steps):
    model, x, target = ReluCNN(), images(3), [2, 0, 1]
    found = explain(model, x, target=target, steps=steps, mode="official")
    for i in range(3):
        grid = [float(model(a * x[i : i + 1])[0, target[i]]) for a in torch.linspace(0, 1, steps, dtype=torch.float64)]
        places, spacings = naive_published_nodes(np.array(grid))
        total, before = torch.zeros_like(x[i]), None
        for place, spacing in zip(places, spacings, strict=True):
            score, gradient = score_and_gradient(model, place * x[i], target[i])
            slope = 0.0 if before is None else (score - before[1]) / (place - before[0])
            total += gradient * slope * spacing / steps
            before = (place, score)
        torch.testing.assert_close(found.values[i], total * x[i], rtol=1e-9, atol=1e-11)


def test_constant_scores_have_no_slope():
    flat = lambda z: 0.0 * SoftplusMLP()(z) + torch.arange(4.0)  # noqa: E731
    for mode in ("importance", "official"):
        assert (explain(flat, images(2), steps=6, mode=mode).values == 0).all()
