"""Guided IG: saliency's path and map, the laws of the path, and what it costs."""

import numpy as np
import pytest
import torch
from attribution_toys import (
    Affine,
    Quadratic,
    ReluCNN,
    SoftplusMLP,
    Watched,
    bend,
    images,
    problem_of,
    segments,
)
from saliency.core import GuidedIG as PeerGuidedIG
from saliency.core.base import INPUT_OUTPUT_GRADIENTS

import fringe
from fringe.attribution import GuidedIG
from fringe.paths import GuidedPath
from fringe.paths._sequential import advance_to_goal

SETTINGS = [(1, 0.25, 0.02), (7, 0.25, 0.0), (12, 0.5, 1.0), (20, 0.1, 0.1), (9, 1.0, 0.3), (15, 0.03, 0.5)]
"""Without room to deviate it is Integrated Gradients by the left rule."""


@pytest.fixture
def old_quantile(monkeypatch):
    """The keyword that saliency 0.2.1 asks NumPy for, and that NumPy 2.4 has no more."""
    quantile = np.quantile
    monkeypatch.setattr(np, "quantile", lambda a, q, interpolation: quantile(a, q, method=interpolation))


def peer(model, x, baseline, target, steps, fraction, max_dist):
    """Saliency's map of one image (*S)."""

    def gradient(z, call_model_args, expected_keys):
        z = torch.from_numpy(np.asarray(z)).requires_grad_(True)
        (found,) = torch.autograd.grad(model(z)[:, target].sum(), z)
        return {INPUT_OUTPUT_GRADIENTS: found.numpy()}

    found = PeerGuidedIG().GetMask(x.numpy(), gradient, None, baseline.numpy(), steps, fraction, max_dist)
    return torch.from_numpy(found)


def with_frozen_entries(count=3):
    """Images and baselines that agree in some entries, differently in each image."""
    x, baseline = images(count), 0.3 * images(count, seed=7)
    frozen = images(count, seed=9) > 0.8
    assert frozen.flatten(1).sum(1).min() > 3
    return x, torch.where(frozen, x, baseline)


@pytest.mark.usefixtures("old_quantile")
@pytest.mark.parametrize("network", [SoftplusMLP, ReluCNN])
@pytest.mark.parametrize(("steps", "fraction", "max_dist"), SETTINGS)
def test_equals_saliency(network, steps, fraction, max_dist):
    model, (x, baseline) = network(), with_frozen_entries()
    method = GuidedIG(steps=steps, fraction=fraction, max_dist=max_dist)
    found = fringe.attribute(model, x, method=method, baseline=baseline)
    for i in range(len(x)):
        expected = peer(model, x[i], baseline[i], found.target[i].item(), steps, fraction, max_dist)
        torch.testing.assert_close(found.values[i], expected, rtol=1e-9, atol=1e-9)
        assert (found.values[i][x[i] == baseline[i]] == 0).all()


@pytest.mark.usefixtures("old_quantile")
def test_equals_saliency_where_many_gradients_are_equal():
    """Entries that the model does not read have gradient zero and move together; so do those of equal weight."""
    x, baseline = with_frozen_entries()
    weight = Affine().weight[0].mul(2).round()
    weight[:, :, 3:] = 0.0
    model = lambda z: torch.stack([(z * weight).flatten(1).sum(1), (z * z).flatten(1).sum(1) / 4], 1)  # noqa: E731
    for target in (0, 1):
        found = fringe.attribute(model, x, method=GuidedIG(steps=11, max_dist=0.2), baseline=baseline, target=target)
        for i in range(len(x)):
            expected = peer(model, x[i], baseline[i], target, 11, 0.25, 0.2)
            torch.testing.assert_close(found.values[i], expected, rtol=1e-9, atol=1e-9)


def literal_approach(z, bound, slope, stop, goal, fraction):
    """One step of one row, block by block as it is written: quantile, move, measure again."""
    z, slope = z.clone(), slope.clone()
    while True:
        distance = (z - stop).abs().sum().item()
        if abs(distance - goal) <= 1e-9 * max(1.0, distance, goal):
            return z
        slope[z == bound] = torch.inf
        if not torch.isfinite(slope).any():
            return z
        threshold = slope.sort().values[int(fraction * (len(z) - 1))]
        block = (slope <= threshold) & torch.isfinite(slope)
        ratio = (distance - goal) / (bound - z).abs()[block].sum().item()
        z[block] = bound[block] if ratio > 1 else z[block] + ratio * (bound - z)[block]
        if ratio <= 1:
            return z


@pytest.mark.parametrize("fraction", [0.01, 0.25, 1.0])
@pytest.mark.parametrize("levels", [1, 5, 1000])
def test_one_sort_a_step_equals_a_quantile_a_block(fraction, levels):
    """Rows of one batch that need different numbers of blocks, with ties, entries at their bound, and goals from
    nothing to all of the way."""
    generator = torch.Generator().manual_seed(levels)
    start, stop = torch.randn(2, 40, 31, generator=generator, dtype=torch.float64)
    bound = start + 0.6 * (stop - start)
    at_bound = torch.rand(start.shape, generator=generator) < 0.2
    start = torch.where(at_bound, bound, start)
    slope = torch.randint(levels, start.shape, generator=generator).double()
    near, far = (bound - stop).abs().sum(1), (start - stop).abs().sum(1)
    goal = near + (far - near) * torch.linspace(0, 1, len(start), dtype=torch.float64)
    found = advance_to_goal(start, bound, slope, far, goal, fraction)
    for i in range(len(start)):
        expected = literal_approach(start[i], bound[i], slope[i], stop[i], goal[i].item(), fraction)
        torch.testing.assert_close(found[i], expected, rtol=0, atol=1e-12)
    torch.testing.assert_close((found - stop).abs().sum(1), goal, rtol=1e-12, atol=0)


def test_gap_of_the_left_rule_is_the_bend_of_the_score():
    """For a quadratic score the sum misses the change by exactly the half sum of D'QD."""
    model, x = Quadratic(), images(2)
    found = fringe.attribute(model, x, method=GuidedIG(steps=10, max_dist=0.2), baseline=0.0)
    walked, _ = segments(GuidedPath(10, 0.25, 0.2), problem_of(model, x, baseline=torch.zeros_like(x)))
    for i in range(2):
        points = [torch.zeros_like(x[i])] + [segment.stop.x[i] for segment in walked]
        expected = -bend(model, points, found.target[i])
        assert abs(expected) > 1e-2
        assert found.completeness_gap[i].item() == pytest.approx(expected, rel=1e-9)


def test_images_walk_a_batch_at_a_time():
    model = Watched(SoftplusMLP())
    found = fringe.attribute(model, images(5), method=GuidedIG(steps=4), batch_size=2)
    assert max(model.sizes) == 2
    assert model.sizes[-12:] == [2] * 4 + [2] * 4 + [1] * 4  # the logits at the inputs were known before
    torch.testing.assert_close(found.score, model(images(5)).amax(1), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("telemetry", "every"), [(True, 2), (11, 1)])
def test_the_trajectory_runs_from_the_input_to_the_baseline(telemetry, every):
    """What is measured step by step is told from the input on, though the walk begins at the baseline."""
    model, x, steps = SoftplusMLP(), images(2), 10
    baseline = 0.2 * images(2, seed=5)
    method = GuidedIG(steps=steps, max_dist=0.2)
    found = fringe.attribute(model, x, method=method, baseline=baseline, telemetry=telemetry)
    problem = problem_of(model, x, found.target.tolist(), baseline=baseline)
    walked, _ = segments(GuidedPath(steps, 0.25, 0.2), problem)
    for i in range(2):
        t = found.trajectory[i]
        points = [x[i]] + [segment.start.x[i] for segment in walked[::-1]]
        assert t.snapshot_steps.tolist() == [*range(0, 11, every)]
        torch.testing.assert_close(t.snapshots, torch.stack(points[::every]), rtol=0, atol=1e-12)
        gathered = [s.start.gradient[i] * (s.stop.x - s.start.x)[i] for s in walked[::-1]]
        expected = torch.stack([sum(gathered[:k], torch.zeros_like(x[i])) for k in range(0, 11, every)])
        torch.testing.assert_close(t.cumulative, expected, rtol=0, atol=1e-12)
        torch.testing.assert_close(found.diagnostics["path_length"][i], t.steps["euclidean_step"].sum())


def test_a_walk_that_meets_nan_ends_there_and_says_so():
    """The model is NaN around the middle of image 1's path: its walk ends before, and image 0 is as ever."""
    model, x = SoftplusMLP(), images(2)

    def fragile(z):
        share = z.flatten(1).norm(dim=1) / x[1].flatten().norm()
        near = (z.flatten(1) @ x[1].flatten()) > 0.5 * z.flatten(1).norm(dim=1) * x[1].flatten().norm()
        return model(z).masked_fill(((share > 0.4) & (share < 0.7) & near)[:, None], torch.nan)

    found = fringe.attribute(fragile, x, method=GuidedIG(steps=10), telemetry=True)
    whole = fringe.attribute(model, x, method=GuidedIG(steps=10))
    assert found.verdict[1] == "diverged"
    assert 2 <= found.diagnostics["steps"][1] <= 5
    assert torch.isfinite(found.values).all()
    torch.testing.assert_close(found.score, whole.score)
    torch.testing.assert_close(found.endpoint_score, whole.endpoint_score)
    torch.testing.assert_close(found.values[0], whole.values[0], rtol=1e-9, atol=1e-12)
    assert len(found.trajectory[1].points["score"]) == found.diagnostics["steps"][1] + 1


def test_single_precision_keeps_its_schedule():
    """The state is in float64 whatever the model's precision."""
    model, x = SoftplusMLP().float(), images(2).float()
    problem = problem_of(model, x, baseline=torch.zeros_like(x))
    walked, _ = segments(GuidedPath(40, 0.25, 0.02), problem)
    for k, segment in enumerate(walked, start=1):
        left = (segment.stop.x - x).flatten(1).abs().sum(1)
        torch.testing.assert_close(left, x.double().flatten(1).abs().sum(1) * (1 - k / 40), rtol=1e-8, atol=1e-8)
