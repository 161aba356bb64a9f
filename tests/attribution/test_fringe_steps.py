"""How many steps, where to, how far, and what a step learns from the one before."""

import dataclasses
import math

import numpy
import pytest
import torch
from attribution_oracles import assert_dense
from attribution_toys import Linear, Smooth, inputs

import fringe
from fringe.attribution._fisher_rao import Bound

LONG = fringe.FRInGe(tau=5e-2, delta_euc=None, eta_max=1e6, damping=1e-3, gamma_prior=1e-3, temperature=1.0)
"""Steps that only the KL bound limits."""


def mixed(count: int) -> torch.Tensor:
    """Images of very different confidence, so of different T."""
    return inputs(count) * torch.linspace(0.2, 2.0, count, dtype=torch.float64).view(-1, 1, 1, 1)


def test_a_path_of_a_single_step_ends_where_it_leads():
    model, x = Smooth(), inputs(2)
    found = fringe.attribute(model, x, method=dataclasses.replace(LONG, steps=1), telemetry=True)
    assert found.diagnostics["steps"].tolist() == [1, 1]
    log_p = model(torch.stack([t.snapshots[-1] for t in found.trajectory])).log_softmax(1)
    entropy = -(log_p.exp() * log_p).sum(1)
    distance = 2 * (log_p / 2).exp().mean(1).mul(math.sqrt(log_p.shape[1])).acos()
    expected = {"entropy": entropy, "kl": math.log(log_p.shape[1]) - entropy, "distance": distance}
    for name, value in expected.items():
        torch.testing.assert_close(found.diagnostics[f"endpoint_{name}"], value, rtol=1e-6, atol=1e-12)


# How far: the trust region


def test_the_bounds_of_no_direction_are_those_of_the_paper_s_epsilon():
    zero, wide = torch.zeros(1, dtype=torch.float64), fringe.FRInGe(eta_max=1e30, tau=0.08, delta_euc=None).path(1)
    assert wide.eta(zero, zero)[0].item() == pytest.approx(math.sqrt(0.16 / 1e-12))
    assert dataclasses.replace(wide, tau=1e30, cap=3.0).eta(zero, zero)[0].item() == pytest.approx(3.0 / 1e-12)


@pytest.mark.parametrize(("shape", "cap"), [((2, 8, 8), 0.02 * math.sqrt(128)), ((1, 5, 5), 0.1)])
def test_the_automatic_cap_is_two_hundredths_in_root_mean_square(shape, cap):
    weight = inputs(3, seed=2, shape=(math.prod(shape),))
    model, x = (lambda z: torch.tanh(z.flatten(1)) @ weight.T), inputs(2, shape=shape)
    for delta_euc, expected in (("auto", cap), (0.3, 0.3)):
        method = fringe.FRInGe(eta_max=1e6, tau=1e9, steps=3, delta_euc=delta_euc)
        for trajectory in fringe.attribute(model, x, method=method, telemetry=True).trajectory:
            assert trajectory.steps["euclidean_step"].tolist() == pytest.approx([expected] * 3, rel=1e-9)
            assert set(trajectory.steps["active_bound"].tolist()) == {Bound.EUCLIDEAN}
    uncapped = fringe.FRInGe(eta_max=0.5, tau=1e9, steps=3, delta_euc=None)
    for trajectory in fringe.attribute(model, x, method=uncapped, telemetry=True).trajectory:
        assert trajectory.steps["step_size"].tolist() == [0.5] * 3
        assert set(trajectory.steps["active_bound"].tolist()) == {Bound.ETA_MAX}


# How many


def test_steps_are_the_distance_over_the_length_of_one_rounded_up():
    path = fringe.FRInGe(tau=0.125).path(128)  # sqrt(2 tau) = 1/2 exactly
    distance = torch.tensor(
        [0.0, 1e-6, 1.5e-6, 0.49, 0.5, 0.51, 1.0, math.nextafter(1.0, 2.0), 1.49], dtype=torch.float64
    )
    assert path.schedule(distance).tolist() == [0, 0, 1, 1, 1, 2, 2, 3, 3]
    assert dataclasses.replace(path, steps=7).schedule(distance).tolist() == [0, 0, 7, 7, 7, 7, 7, 7, 7]


@pytest.mark.parametrize("steps", [1, 7])
def test_a_number_of_steps_overrides_the_distance_s(steps):
    x = torch.cat([inputs(1), torch.zeros(1, 2, 8, 8, dtype=torch.float64)])
    found = fringe.attribute(Linear(), x, method=fringe.FRInGe(steps=steps))
    assert found.diagnostics["steps"].tolist() == [steps, 0]
    assert found.verdict[1] == "at_reference"
    assert found.values[0].any()
    assert not found.values[1].any()


# What a step learns from the one before


def test_what_a_step_learns_is_bounded_by_a_factor_of_four():
    """Steps so long that the square of a distance is more than 4 and less than 1/4 of what was expected."""
    model, x = Smooth(), torch.cat([inputs(2), inputs(2, seed=2)])
    method = dataclasses.replace(LONG, tau=3e-2, gamma_prior=0.0)
    found = fringe.attribute(model, x, method=method, telemetry=True)
    budget = torch.cat([t.steps["fisher_rao_step"][:-1].square() for t in found.trajectory]) / (2 * method.tau)
    assert budget.max() > 4
    assert budget.min() < 0.25
    assert_dense(found, model, method, x)


def test_a_step_learns_from_those_of_its_own_image():
    model, x = Smooth(), mixed(4)
    found = fringe.attribute(model, x, method=LONG, batch_size=2)
    assert len(set(found.diagnostics["steps"].tolist())) > 2
    assert_dense(found, model, LONG, x)


def test_a_gradient_that_is_dead_at_first_does_not_switch_the_kl_bound_off_for_good():
    """A checkerboard of +-1 in front of max(0.95 - |x|, 0), by a choice: no slope is smooth, and only the prior moves
    it, into where the model is steep. The part along the geodesic then stands for the whole norm until the steps, 4
    times each, have learnt the rest."""
    weight = 3.0 * inputs(5, seed=3, shape=(128,))
    bias = 2.0 * torch.eye(5, dtype=torch.float64)[0]
    model = lambda z: torch.where((rest := 0.95 - z.flatten(1).abs()) > 0, rest, 0.0) @ weight.T + bias  # noqa: E731
    i, j = torch.meshgrid(torch.arange(8), torch.arange(8), indexing="ij")
    x = torch.cat([0.3 * inputs(1), ((-1.0) ** (i + j)).double().expand(1, 2, 8, 8)])
    method = fringe.FRInGe(tau=5e-3, eta_max=1e6, delta_euc=1.0, gamma_prior=3e-3, steps=10)
    found = fringe.attribute(model, x, method=method, telemetry=True)
    steps = found.trajectory[1].steps
    assert (steps["active_bound"][0], steps["euclidean_step"][0].item()) == (Bound.EUCLIDEAN, pytest.approx(1.0))
    assert set(steps["active_bound"][2:].tolist()) == {Bound.KL}
    assert steps["fisher_rao_step"][3:-1].max() < 2 * math.sqrt(2 * method.tau)


# The straight line to the end, of inputs so large that 6 points differ from 12 by more than rounding


@pytest.mark.parametrize(("rtol", "count"), [(1e9, 6), (1e-9, 12)])
def test_the_fast_map_is_the_integral_along_the_line_to_the_end_of_the_same_path(rtol, count):
    model, x = Smooth(), 8 * inputs(3)
    settings = {"tau": 0.05, "delta_euc": 8.0}
    found = fringe.attribute(
        model, x, target=2, method=fringe.FRInGe(halvings="line", quadrature_rtol=rtol, **settings), telemetry=True
    )
    path = fringe.attribute(model, x, target=2, method=fringe.FRInGe(halvings=0, **settings), telemetry=True)
    assert found.diagnostics["steps"].tolist() == path.diagnostics["steps"].tolist()
    for i in range(3):
        end = path.trajectory[i].snapshots[-1]
        torch.testing.assert_close(found.trajectory[i].snapshots[-1], end, rtol=1e-10, atol=1e-10)
        nodes, weights = numpy.polynomial.legendre.leggauss(count)
        total = torch.zeros_like(end)
        for node, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
            point = (end + node * (x[i] - end)).requires_grad_(True)
            total += weight * torch.autograd.grad(model(point[None])[0, 2], point)[0]
        torch.testing.assert_close(found.values[i], total * (x[i] - end), rtol=1e-9, atol=1e-10)


def test_more_points_are_taken_only_where_the_sum_is_off():
    model, x = Smooth(sharpness=4.0), 8 * inputs(6)
    method = fringe.FRInGe(tau=0.05, delta_euc=8.0, halvings="line", quadrature_rtol=1e9)
    few = fringe.attribute(model, x, method=method)
    method = dataclasses.replace(method, quadrature_rtol=few.completeness_residual.median().item())
    more = fringe.attribute(model, x, method=dataclasses.replace(method, quadrature_rtol=1e-12))
    found = fringe.attribute(model, x, method=method)
    off = few.completeness_residual > method.quadrature_rtol
    assert 0 < off.sum() < 6
    expected = torch.where(off.view(-1, 1, 1, 1), more.values, few.values)
    torch.testing.assert_close(found.values, expected, rtol=1e-9, atol=1e-12)
    assert found.passes.vjp - few.passes.vjp == 12 * int(off.sum())


def test_several_classes_have_the_maps_of_each_on_one_fast_path():
    """Of which some take more points, and others not."""
    model, x, targets = Smooth(sharpness=4.0), 8 * inputs(3), torch.tensor([[0, 3, 4], [1, 2, 0], [2, 3, 1]])
    method = fringe.FRInGe(tau=0.05, delta_euc=8.0, halvings="line", quadrature_rtol=1e9)
    few = fringe.attribute(model, x, target=targets, method=method)
    method = dataclasses.replace(method, quadrature_rtol=few.completeness_residual.median().item())
    found = fringe.attribute(model, x, method=method, target=targets, telemetry=True)
    for k in range(3):
        one = fringe.attribute(model, x, method=method, target=targets[:, k], telemetry=True)
        torch.testing.assert_close(found.values[:, k], one.values, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(found.completeness_gap[:, k], one.completeness_gap, rtol=1e-9, atol=1e-12)
    for path, values in zip(found.trajectory, found.values, strict=True):
        torch.testing.assert_close(path.cumulative[-1], values, rtol=1e-9, atol=1e-12)


def test_a_path_that_stands_still_ends_one_step_after_its_waypoints_do():
    """Before step T the next waypoint may move it; afterwards all further steps would be the same."""

    def constant(x):
        return torch.tensor([2.0, 0.0, -1.0]).double() + 0.0 * x.sum(1, keepdim=True)

    method = fringe.FRInGe(steps=6, until="arrival", max_steps=40, gamma_prior=0.0)
    found = fringe.attribute(constant, inputs(2, shape=(4,)), method=method)
    assert found.diagnostics["steps"].tolist() == [7, 7]
    assert not found.values.any()
