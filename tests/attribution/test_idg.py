"""Integrated Decision Gradients: its identities, its sampler against loops, and the authors' scheme as it is."""

import numpy as np
import pytest
import torch
from attribution_toys import Affine, Quadratic, ReluCNN, SoftplusMLP, images

import fringe
from fringe import IntegratedDecisionGradients
from fringe.attribution._ig import importance_sampling_nodes, reference_nodes, reference_slopes


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


def test_on_a_quadratic_score_the_sum_is_known():
    """dF/da = s + c a, so the integral of its square is s^2 + s c + c^2 / 3."""
    model, x, baseline, target = Quadratic(), images(4), images(4, seed=9), torch.tensor([0, 3, 1, 2])
    way = x - baseline
    s = (model.gradient(baseline, target) * way).flatten(1).sum(1)
    c = torch.einsum("ni,nij,nj->n", way.flatten(1), model.matrix[target], way.flatten(1))
    found = explain(model, x, target=target, baseline=baseline, steps=200)
    torch.testing.assert_close(found.values.flatten(1).sum(1), s * s + s * c + c * c / 3, rtol=2e-3, atol=0)


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


def test_of_a_constant_score_places_are_uniform():
    places, weights = importance_sampling_nodes(torch.ones(2, 9, dtype=torch.float64))
    torch.testing.assert_close(places.flip(1)[0], (torch.arange(8, dtype=torch.float64) + 0.5) / 8)
    torch.testing.assert_close(weights, torch.full((2, 8), 1 / 8, dtype=torch.float64))


def test_half_the_places_see_a_step_that_is_a_hundredth_of_the_line():
    a = torch.linspace(0, 1, 101, dtype=torch.float64)
    places, _ = importance_sampling_nodes(torch.sigmoid((a - 0.3) / 0.002)[None])
    assert int(((places - 0.3).abs() < 0.011).sum()) >= 90


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


@pytest.mark.parametrize("count", [2, 3, 12, 50, 200])
def test_published_nodes_are_those_of_a_naive_transcription(count):
    values = scores(20, count, seed=count)
    places, spacings = reference_nodes(values)
    for row in range(len(values)):
        expected = naive_published_nodes(values[row].numpy())
        np.testing.assert_allclose(places[row].numpy(), expected[0], rtol=0, atol=1e-12)
        np.testing.assert_allclose(spacings[row].numpy(), expected[1], rtol=0, atol=1e-12)


def test_published_nodes_miss_a_late_decision_and_importance_nodes_do_not():
    """Intervals without samples are skipped without moving on: the grid ends long before the step it should resolve."""
    grid = lambda n: torch.sigmoid((torch.linspace(0, 1, n, dtype=torch.float64) - 0.8) / 0.01)[None]  # noqa: E731
    published, _ = reference_nodes(grid(50))
    assert published.max() < 0.6
    ours, _ = importance_sampling_nodes(grid(51))
    assert int(((ours - 0.8).abs() < 0.05).sum()) >= 40


@pytest.mark.parametrize("steps", [2, 9, 30])
def test_the_official_map_is_the_naive_one(steps):
    model, x, target = ReluCNN(), images(3), [2, 0, 1]
    found = explain(model, x, target=target, steps=steps, mode="official")
    for i in range(3):
        grid = [float(model(a * x[i : i + 1])[0, target[i]]) for a in torch.linspace(0, 1, steps, dtype=torch.float64)]
        places, spacings = naive_published_nodes(np.array(grid))
        total, before = torch.zeros_like(x[i]), None
        for place, spacing in zip(places, spacings, strict=True):
            z = (place * x[i : i + 1]).requires_grad_(True)
            score = model(z)[0, target[i]]
            (gradient,) = torch.autograd.grad(score, z)
            slope = 0.0 if before is None else (score.item() - before[1]) / (place - before[0])
            total += gradient[0] * slope * spacing / steps
            before = (place, score.item())
        torch.testing.assert_close(found.values[i], total * x[i], rtol=1e-9, atol=1e-11)


def test_repeated_places_and_constant_scores_have_no_slope():
    places = torch.tensor([[0.0, 0.5, 0.5, 0.0, 0.0]], dtype=torch.float64)
    slopes = reference_slopes(places, torch.tensor([[1.0, 2.0, 2.0, 1.0, 1.0]], dtype=torch.float64))
    assert slopes.tolist() == [[0.0, 2.0, 0.0, 2.0, 0.0]]
    flat = lambda z: 0.0 * SoftplusMLP()(z) + torch.arange(4.0)  # noqa: E731
    for mode in ("importance", "official"):
        assert (explain(flat, images(2), steps=6, mode=mode).values == 0).all()


# -- account ------------------------------------------------------------------------------------------------------
