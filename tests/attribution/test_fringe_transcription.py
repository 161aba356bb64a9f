"""The engine against the printed algorithm, on a real network and real images."""

import dataclasses
import sys
from functools import cache
from pathlib import Path

import pytest
import torch
import transcription
from fringe.paths._natural_gradient import StepSolver

import fringe
from fringe.paths import Problem, verify

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import shared_models

pytestmark = [pytest.mark.shared, pytest.mark.thorough]


@cache
def _model(name: str, dtype: torch.dtype):
    return shared_models.model(name).to(dtype)


def real(name: str, count: int, dtype: torch.dtype):
    """A shared network and ``count`` of its images, in ``dtype``."""
    return _model(name, dtype), shared_models.images(name, count).to(dtype)


def paper(name: str, **changes: object) -> fringe.FRInGe:
    """A preset of the paper (K = 20, warm start, blur) on a path coarse enough for a test."""
    return dataclasses.replace(fringe.FRInGe.preset(name), **{"tau": 2e-2, **changes})


def literal(method: fringe.FRInGe, solver: str = "krylov") -> transcription.Settings:
    names = [f.name for f in dataclasses.fields(transcription.Settings) if f.name != "solver"]
    return transcription.Settings(**{name: getattr(method, name) for name in names}, solver=solver)


def distance(found: torch.Tensor, expected: torch.Tensor) -> tuple[float, float]:
    """Relative difference and cosine."""
    relative = ((found - expected).norm() / expected.norm()).item()
    return relative, torch.cosine_similarity(found.flatten(), expected.flatten(), dim=0).item()


@pytest.mark.parametrize(
    ("method", "count"),
    [
        (paper("resnet50"), 1),
        pytest.param(paper("resnet18"), 1, marks=pytest.mark.slow),
        (paper("inception_v3", waypoint="current"), 1),
        pytest.param(paper("vgg19", warm_start=False), 1, marks=pytest.mark.slow),
    ],
    ids=["resnet50", "resnet18", "inception_v3 printed waypoint", "vgg19 cold start"],
)
def test_whole_path_in_float64(method, count):
    model, x = real("cifar_resnet20", count, torch.float64)
    found = fringe.attribute(model, x, method=method)
    for i in range(count):
        expected, _ = transcription.explain(model, x[i : i + 1], int(found.target[i]), literal(method))
        relative, cosine = distance(found.values[i], expected[0])
        assert relative < 1e-8
        assert cosine > 1 - 1e-12


def test_textbook_recurrence_in_float64():
    """With few iterations rounding has no time to grow, and the printed recurrence itself is met along a whole path."""
    model, x = real("cifar_resnet20", 1, torch.float64)
    method = paper("resnet50", cg_iterations=5, reorthogonalise=False)
    found = fringe.attribute(model, x, method=method)
    expected, _ = transcription.explain(model, x, int(found.target[0]), literal(method, "textbook"))
    assert distance(found.values[0], expected[0])[0] < 1e-6


@pytest.mark.parametrize(
    ("name", "tolerance"),
    [
        ("resnet50", 1e-3),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (("resnet18", 1e-3), ("vgg19", 3e-3))),
    ],
)
def test_every_step_in_float32(name, tolerance, monkeypatch):
    """In float32 the comparison is step by step: from the engine's own point and warm start, the same direction.

    Whole float32 paths cannot be compared: the network is piecewise linear, so v jumps where a ReLU flips, and two
    correct programs part at the first flip (docs/solver.md).
    """
    model, x = real("cifar_resnet20", 2, torch.float32)
    method, steps = paper(name, tau=1e-2), []
    original = StepSolver.direction

    def spy(self, jacobian, log_p, waypoint, points, previous, **options):
        found = original(self, jacobian, log_p, waypoint, points, previous, **options)
        steps.append((points.clone(), previous, found.v))
        return found

    monkeypatch.setattr(StepSolver, "direction", spy)
    fringe.attribute(model, x[:1], method=method)
    double = real("cifar_resnet20", 2, torch.float64)[0]
    waypoints = transcription.waypoints(double, x[:1].double(), method.tau)
    for k, (point, previous, v) in enumerate(steps):
        warm = None if previous is None else previous.double()
        expected, _ = transcription.step(double, point.double(), waypoints[k + 1], warm, literal(method))
        relative, cosine = distance(v.double(), expected)
        assert cosine > 0.9999, k
        assert relative < tolerance, k


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("mobilenet_v1_025", 3),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (("cifar_resnet20", 6), ("cifar_resnet56", 2))),
    ],
)
def test_adaptive_quadrature_is_complete_within_two_per_cent(name, count):
    """With the ResNet-50 preset's coarse tau, where the paper itself reports a residual of 0.42."""
    model, x = real(name, count, torch.float32)
    coarse = fringe.FRInGe.preset("resnet50")
    plain = fringe.attribute(model, x, method=coarse)
    fine = fringe.attribute(model, x, method=dataclasses.replace(coarse, quadrature="adaptive"))
    assert fine.completeness_residual.median() <= coarse.quadrature_rtol == 0.02
    assert fine.completeness_residual.max() <= 0.025  # errors that wait for their bisection are foretold, not known
    assert plain.completeness_residual.max() > 0.02
    torch.testing.assert_close(fine.endpoint_score, plain.endpoint_score, rtol=1e-3, atol=1e-3)


@pytest.mark.shared
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["cifar_resnet20", "mobilenet_v1_025"])
@pytest.mark.parametrize("module", [True, False], ids=["module", "function"])
def test_real_networks_pass_the_check_of_derivatives(name, module):
    """Kinks of ReLUs, and rounding in single precision, are no reason to refuse a network."""
    model, x = real(name, 4, torch.float32)
    classifier = fringe.Classifier(model if module else lambda z: model(z))
    for image in (x, *x.split(1), torch.zeros_like(x[:1])):
        verify(Problem.of(classifier, image))
    assert classifier.jvp_mode == "double_backward"
