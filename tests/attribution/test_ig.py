"""Integrated Gradients: peer libraries, closed forms, the orders of its rules, and what it writes down on the way."""

from typing import get_args

import numpy as np
import pytest
import saliency.core
import torch
from attribution_toys import CLASSES, Quadratic, ReluCNN, SoftplusMLP, images, score_and_gradient
from captum.attr import IntegratedGradients as CaptumIntegratedGradients
from torch.utils._python_dispatch import TorchDispatchMode

import fringe
from fringe import IntegratedGradients
from fringe.attribution._integrate import NodeRule, completeness_residual, quadrature_nodes
from fringe.geometry import dist, geodesic, log_probabilities, sqrt_chart

RULES = get_args(NodeRule)
CAPTUM = {
    "gausslegendre": "gausslegendre",
    "midpoint": "riemann_middle",
    "left": "riemann_left",
    "right": "riemann_right",
}


def explain(model, x, target, **settings):
    baseline = settings.pop("baseline", 0.0)
    return fringe.attribute(model, x, method=IntegratedGradients(**settings), target=target, baseline=baseline)


# -- peers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [2, 7, 50])
@pytest.mark.parametrize("rule", CAPTUM)
def test_it_equals_captum(rule, steps):
    model, x, baseline, target = ReluCNN(), images(3), images(3, seed=9), [2, 0, 1]
    found = explain(model, x, target, steps=steps, rule=rule, baseline=baseline)
    peer = CaptumIntegratedGradients(model).attribute(
        x, baselines=baseline, target=torch.tensor(target), n_steps=steps, method=CAPTUM[rule]
    )
    # captum rounds its weights, and the nodes of riemann rules, to float32
    torch.testing.assert_close(found.values, peer, rtol=0, atol=2e-7 * float(peer.abs().max()))


def test_the_closed_mean_equals_saliency():
    model, x, baseline = SoftplusMLP(), images(1), images(1, seed=9)

    def call(batch, call_model_args=None, expected_keys=None):
        z = torch.from_numpy(np.asarray(batch)).requires_grad_(True)
        (gradient,) = torch.autograd.grad(model(z)[:, 1].sum(), z)
        return {saliency.core.INPUT_OUTPUT_GRADIENTS: gradient.numpy()}

    peer = saliency.core.IntegratedGradients().GetMask(
        x[0].numpy(), call, x_baseline=baseline[0].numpy(), x_steps=13, batch_size=5
    )
    found = explain(model, x, 1, steps=13, rule="closed_mean", baseline=baseline)
    # saliency adds up in float32
    np.testing.assert_allclose(found.values[0].numpy(), peer, rtol=0, atol=1e-6 * np.abs(peer).max())


# -- closed forms -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("steps", [2, 5])
def test_a_quadratic_score_shows_each_rule_s_mean_fraction(rule, steps):
    """The gradient is affine along the line, so a rule is its mean fraction: 1/2 is exact, and the left rule's
    (N - 1) / 2N misses ``dx' Q dx / 2N`` of the sum."""
    model, x, baseline, target = Quadratic(), images(3), images(3, seed=9), torch.tensor([0, 3, 1])
    found = explain(model, x, target, steps=steps, rule=rule, baseline=baseline)
    shift = {"left": -0.5 / steps, "right": 0.5 / steps}.get(rule, 0.0)
    way = x - baseline
    expected = way * model.gradient(baseline + (0.5 + shift) * way, target)
    torch.testing.assert_close(found.values, expected, rtol=1e-11, atol=1e-12)
    curvature = torch.einsum("ni,nij,nj->n", way.flatten(1), model.matrix[target], way.flatten(1))
    torch.testing.assert_close(found.completeness_gap, shift * curvature, rtol=1e-9, atol=1e-11)


def test_gauss_legendre_is_exact_to_its_degree():
    """q nodes integrate polynomials of degree 2q - 1; the next power is missed."""
    for count in (1, 2, 5, 20):
        nodes, weights = quadrature_nodes("gausslegendre", count)
        for degree in range(2 * count):
            assert float(weights @ nodes**degree) == pytest.approx(1 / (degree + 1), rel=1e-13)
        if count <= 5:
            assert abs(float(weights @ nodes ** (2 * count)) - 1 / (2 * count + 1)) > 1e-7


# -- orders -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_gap_that_is_rounding_of_the_scores_leaves_no_residual(dtype):
    """The last bits of a score of 3 say nothing where it did not change; a gap of more than these does, and so does
    any of a score that is not finite."""
    eps = torch.finfo(dtype).eps
    score = torch.tensor([3, 3, 3, 3, 0, 0, torch.inf, torch.nan], dtype=dtype)
    end = torch.tensor([3 - 4 * eps, 3, -3, 2, 0, 0, 1, 1], dtype=dtype)
    gap = torch.tensor([4 * eps, 25 * eps, -20 * eps, 0.25, 0, 1, -torch.inf, torch.nan], dtype=torch.float64)
    found = completeness_residual(gap, score, end)
    assert found[:6].tolist() == [0, torch.inf, 0, 0.25, 0, torch.inf]
    assert found[6:].isnan().all()


def test_residual_and_verdict_follow_the_gap():
    model, x = SoftplusMLP(), images(6)
    found = explain(model, x, 2, steps=2, rule="left")
    change = model(x)[:, 2] - model(torch.zeros_like(x))[:, 2]
    gap = found.values.flatten(1).sum(1) - change
    torch.testing.assert_close(found.completeness_gap, gap)
    torch.testing.assert_close(found.completeness_residual, gap.abs() / change.abs())
    assert found.verdict == tuple("ok" if r <= 0.05 else "coarse" for r in found.completeness_residual)
    assert set(found.verdict) == {"ok", "coarse"}
    assert found.advice[found.verdict.index("coarse")].endswith(": use rule='trapezoid'")


# -- baselines ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["zero", "black", "white", "mean", "blur:0.2", "noise", "uniform"])
def test_a_named_baseline_is_the_one_it_names(text):
    from fringe._numbers.rng import KeyedGenerator, content_hash
    from fringe.baselines import make_baseline

    model, x = SoftplusMLP(), images(3)
    space = fringe.InputSpace(-2.0, 2.5)
    found = fringe.attribute(
        model, x, method=IntegratedGradients(steps=5, baseline=text), target=1, space=space, seed=4
    )
    named = make_baseline(text, x, space, KeyedGenerator(4), [content_hash(image) for image in x])
    given = explain(model, x, 1, steps=5, baseline=named)
    assert torch.equal(found.values, given.values)
    torch.testing.assert_close(found.endpoint_score, model(named)[:, 1])
    torch.testing.assert_close(found.diagnostics["path_length"], (x - named).flatten(1).norm(dim=1))


# -- what it writes down ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["midpoint", "left", "trapezoid"])
@pytest.mark.parametrize("batch_size", [2, 16])
def test_the_trajectory_is_what_a_naive_walk_measures(rule, batch_size):
    """N + 2 points: the input, every node, the baseline."""
    model, x, baseline, steps = SoftplusMLP(), images(2), images(2, seed=9), 4
    classifier = fringe.Classifier(model, batch_size=batch_size)
    method = IntegratedGradients(steps=steps, rule=rule)
    found = fringe.attribute(classifier, x, method=method, target=2, baseline=baseline, telemetry=True)
    fractions, weights = quadrature_nodes(rule, steps)
    stops = torch.cat([torch.ones(1), fractions, torch.zeros(1)])
    for i, trajectory in enumerate(found.trajectory):
        way = x[i] - baseline[i]
        points = torch.stack([baseline[i] + a * way for a in stops])
        s = sqrt_chart(log_probabilities(model(points)))
        waypoints = geodesic(s[:1].expand_as(s), torch.full_like(s, CLASSES**-0.5), 1 - stops)
        torch.testing.assert_close(trajectory.points["tracking_error"], dist(s, waypoints), rtol=1e-9, atol=1e-12)
        assert trajectory.snapshot_steps.tolist() == list(range(steps + 2))
        torch.testing.assert_close(trajectory.snapshots, points)
        gradients = torch.stack([score_and_gradient(model, point, 2)[1] for point in points])
        cumulative = (torch.nn.functional.pad(weights, (1, 1)).view(-1, 1, 1, 1) * gradients * way).cumsum(0)
        torch.testing.assert_close(trajectory.cumulative, cumulative, rtol=1e-10, atol=1e-12)


# -- its own affair -----------------------------------------------------------------------------------------------


def test_a_gradient_that_is_not_finite_stays_with_its_image():
    """Two images share a batch, and the line of the second crosses a pole of the score's derivative."""
    smooth, x = SoftplusMLP(), images(2)
    pole = 0.5 * x[1]
    model = lambda z: smooth(z) + (z - pole).flatten(1).square().sum(1, keepdim=True).sqrt()  # noqa: E731
    method = IntegratedGradients(steps=3)  # its middle node is the pole
    found = fringe.attribute(model, x, method=method, target=1, batch_size=64)
    alone = fringe.attribute(model, x[:1], method=method, target=1)
    assert found.verdict[1] == "diverged"
    assert not torch.isfinite(found.values[1]).all()
    torch.testing.assert_close(found.values[0], alone.values[0], rtol=1e-12, atol=1e-13)


# -- many classes ---------------------------------------------------------------------------------------------------


class WideArrays(TorchDispatchMode):
    """Counts the new float64 arrays of all classes."""

    def __init__(self, classes):
        super().__init__()
        self.classes, self.count = classes, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        is_wide = isinstance(found, torch.Tensor) and found.dtype == torch.float64 and found.shape[-1:] == self.classes
        self.count += is_wide
        return found


@pytest.mark.parametrize(("output", "most"), [("logits", 14), ("numbers", 0)])
def test_of_all_classes_a_node_costs_only_what_the_diagnostics_say_of_it(output, most):
    """The rest costs as much for each node as many passes through a network of words; a record asks for more."""
    net = torch.nn.Linear(3, 1009).eval()

    def wide(steps, **more):
        model = fringe.Classifier(net, output=output, batch_size=1)
        with WideArrays((1009,)) as arrays:
            found = fringe.attribute(model, torch.ones(1, 3), method=IntegratedGradients(steps), target=7, **more)
        torch.testing.assert_close(found.values[0], net.weight[7].detach(), rtol=1e-6, atol=0)
        return arrays.count

    each = (wide(8) - wide(4)) / 4
    assert each <= most
    assert (wide(8, telemetry=True) - wide(4, telemetry=True)) / 4 > 2 * most
