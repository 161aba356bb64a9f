"""One step and whole paths against explicit matrices, in float64."""

import dataclasses

import pytest
import torch
from dense import DenseFRInGe
from small_networks import Smooth, inputs

import fringe
from fringe.geometry import geodesic, log_probabilities, spherical_loss_gradient, sqrt_chart
from fringe.paths import Problem
from fringe.paths.direction import StepSolver

EXACT = fringe.FRInGe(tau=2e-3, delta_euc=0.7, damping=1e-3, cg_iterations=200, cg_rtol=1e-13)
VARIANTS = ("fringe", "fisher_rao_unregularized", "euclidean", "gamma_step_only", "gamma_prior_only", "non_geometric")


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return ((found - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("waypoint", ["next", "current"])
def test_whole_path_equals_dense_algebra(variant, waypoint):
    model, x = Smooth(), inputs(3)
    method = dataclasses.replace(EXACT.variant(variant), waypoint=waypoint)
    if variant == "euclidean":
        method = dataclasses.replace(method, eta_max=0.3)
    found = fringe.attribute(model, x, method=method, telemetry=True)
    for i in range(3):
        values, end = DenseFRInGe(model, method).explain(x[i], int(found.target[i]))
        assert relative(found.values[i], values) < 1e-8
        assert relative(found.trajectory[i].snapshots[-1], end) < 1e-8


@pytest.mark.parametrize("preconditioner", ["blur", "scale", "spectral"])
@pytest.mark.parametrize("damping", [1e-8, 1e-4, 1e-1])
def test_one_step_equals_dense_solve(preconditioner, damping):
    model, x = Smooth(), inputs(2)
    method = dataclasses.replace(EXACT, damping=damping, preconditioner=preconditioner)
    classifier = fringe.Classifier(model)
    solver: StepSolver = method.path(128).step.on(x[0], fisher_norm=True)
    with classifier.session(x.device):
        point = classifier.linearise(x)
        log_p = log_probabilities(point.value)
        waypoint = geodesic(sqrt_chart(log_p), torch.full_like(log_p, 5**-0.5), 0.1)
        found = solver.direction(point, log_p.exp(), spherical_loss_gradient(log_p, waypoint), x, None)
    for i in range(2):
        expected = DenseFRInGe(model, method).step(x[i].flatten(), waypoint[i])
        # 1e-13 is the residual; the system's condition, up to 64 gamma / damping = 6e7, stands between it and v
        assert relative(found.v[i].flatten(), expected.v) < 1e-6 if damping < 1e-6 else 1e-9
        assert found.fisher_norm_squared[i].item() == pytest.approx(expected.fisher_norm_squared, rel=1e-6)


def test_any_operator_may_measure_roughness():
    """The grid's own biharmonic, passed as a custom operator, gives the path that it gives by default."""
    model, x = Smooth(), inputs(2)
    path = EXACT.path(128)
    grid = path.step.smoothing.grid((2, 8, 8))
    custom = dataclasses.replace(
        path, step=dataclasses.replace(path.step, roughness=grid.operator(grid.biharmonic(), x))
    )
    classifier = fringe.Classifier(model)
    with classifier.session(x.device):
        problem = Problem.of(classifier, x)
        ends = [list(p.walk(problem).segments())[-1].start.x for p in (path, custom)]
    assert relative(ends[1], ends[0]) < 1e-9


def test_printed_waypoint_starts_with_the_prior_alone():
    """At k = 0 the printed algorithm aims at s_0 = sqrt(p_0): g_0 vanishes and only the prior moves the image."""
    model, x = Smooth(), inputs(2)
    bare = dataclasses.replace(EXACT, waypoint="current", gamma_prior=0.0)
    found = fringe.attribute(model, x, method=bare, telemetry=True)
    assert all(t.steps["euclidean_step"][0].item() < 1e-12 for t in found.trajectory)
    prior = fringe.attribute(model, x, method=dataclasses.replace(bare, gamma_prior=1e-3), telemetry=True)
    assert all(t.steps["euclidean_step"][0].item() > 1e-3 for t in prior.trajectory)
