"""GGIG against a loop over images, points and iterations, and against Integrated Gradients at one iteration."""

import pytest
import torch
from attribution_toys import Affine, SoftplusMLP, images

import fringe

SMALL = {"intervals": 6, "iterations": 5, "learning_rate": 0.3}


def naive(model, x, target, baseline, *, intervals, iterations, learning_rate, aggregate, input_factor):
    """One image (*S): the whole history kept, the aggregate taken at the end."""
    largest = []
    for i in range(intervals + 1):
        z = baseline + i / intervals * (x - baseline)
        met = []
        for _ in range(iterations):
            z = z.detach().requires_grad_(True)
            (g,) = torch.autograd.grad(model(z[None])[0, target], z)
            met.append(g)
            z = z + learning_rate * g
        largest.append(torch.stack(met).amax(0))
    stack = torch.stack(largest)
    values = {
        "max": stack.amax(0),
        "mean": stack.mean(0),
        "trapezoid": (0.5 * (stack[1:] + stack[:-1])).mean(0),
    }[aggregate]
    return values * {"none": 1.0, "input": x, "difference": x - baseline}[input_factor]


@pytest.mark.parametrize("input_factor", ["none", "input", "difference"])
@pytest.mark.parametrize("aggregate", ["max", "mean", "trapezoid"])
def test_the_loop_written_out(aggregate, input_factor):
    model, x, target = SoftplusMLP(), images(2), [1, 3]
    settings = {**SMALL, "aggregate": aggregate, "input_factor": input_factor}
    baseline = images(2, seed=5) / 3
    found = fringe.attribute(model, x, method=fringe.GGIG(**settings), target=target, baseline=baseline, batch_size=5)
    for i in range(2):
        expected = naive(model, x[i], target[i], baseline[i], **settings)
        torch.testing.assert_close(found.values[i], expected, rtol=0, atol=1e-13)
    assert found.verdict == ("unchecked",) * 2
    assert found.completeness_residual.isnan().all()


@pytest.mark.parametrize("iterations", [1, 3])
@pytest.mark.parametrize("aggregate", ["max", "mean", "trapezoid"])
def test_an_affine_score_has_one_gradient(aggregate, iterations):
    model, x = Affine(), images(3)
    found = fringe.attribute(model, x, method=fringe.GGIG(intervals=4, iterations=iterations, aggregate=aggregate))
    torch.testing.assert_close(found.values, model.weight[found.target], rtol=0, atol=1e-14)
    climbed = 1e-2 * (iterations - 1) * model.weight[found.target].flatten(1).norm(dim=1)
    torch.testing.assert_close(found.diagnostics["climb_mean"], climbed, rtol=1e-12, atol=1e-14)


def test_a_climb_that_runs_away_is_called_diverged():
    steep = lambda x: (x.flatten(1)[:, :2] ** 3).sum(1, keepdim=True) * torch.tensor([[1.0, -1.0]]).double()  # noqa: E731
    method = fringe.GGIG(intervals=2, iterations=60, learning_rate=1e3)
    found = fringe.attribute(steep, images(2).abs(), method=method, target=0)
    assert found.verdict == ("diverged", "diverged")
