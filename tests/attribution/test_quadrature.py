"""Adaptive quadrature against its definition, written as a recursion over one image and one piece at a time."""

import dataclasses
import itertools
import math

import pytest
import torch
from attribution_toys import Smooth, inputs
from torch import Tensor

import fringe

COARSE = fringe.FRInGe(
    solve="gradient", gamma_prior=0.0, kl_bound=False, delta_euc=None, eta_max=300.0, steps=4, quadrature="adaptive"
)
"""Four steps so long that the trapezoid rule is far off on most of them, and not on all."""


@dataclasses.dataclass
class Bisection:
    """The integral of the score's gradient along straight pieces; counts the points that it asks the model about."""

    model: torch.nn.Module
    target: int
    max_depth: int = 8
    points: int = 0

    def at(self, z: Tensor) -> tuple[float, Tensor]:
        z = z.detach().requires_grad_(True)
        score = self.model(z[None])[0, self.target]
        return score.item(), torch.autograd.grad(score, z)[0]

    def integral(self, a: Tensor, b: Tensor, allowed: float, depth: int = 0) -> Tensor:
        (f_a, g_a), (f_b, g_b) = self.at(a), self.at(b)
        trapezoid = 0.5 * (g_a + g_b) * (b - a)
        if abs(trapezoid.sum().item() - (f_b - f_a)) <= allowed or depth == self.max_depth:
            return trapezoid
        self.points += 1
        middle, allowed = 0.5 * (a + b), allowed / math.sqrt(2)
        return self.integral(a, middle, allowed, depth + 1) + self.integral(middle, b, allowed, depth + 1)

    def along(self, points: Tensor, rtol: float) -> Tensor:
        """Over a path ``points`` (T + 1, *S) in the order in which it was walked, T of them planned. What a piece is
        allowed grows with the change of the score along it, or along a mean one so far."""
        total, first = torch.zeros_like(points[0]), self.at(points[0])[0]
        for a, b in itertools.pairwise(points):
            (f_a, _), (f_b, _) = self.at(a), self.at(b)
            scale = max(abs(f_b - f_a), abs(f_b - first) / (len(points) - 1))
            total = total + self.integral(a, b, rtol * scale)
        return total


@pytest.mark.parametrize("rtol", [None, 1e-3, pytest.param(1e-5, marks=pytest.mark.thorough)])
def test_pieces_are_bisected_until_their_error_is_allowed(rtol):
    """The same numbers from the same number of points, for images that need few bisections and many; 1 % by default."""
    model, x = Smooth(), inputs(4)
    method = COARSE if rtol is None else dataclasses.replace(COARSE, quadrature_rtol=rtol)
    found = fringe.attribute(model, x, method=method, telemetry=True)
    plain = fringe.attribute(model, x, method=dataclasses.replace(method, quadrature="trapezoid"))
    counts = []
    for i, trajectory in enumerate(found.trajectory):
        oracle = Bisection(model, int(found.target[i]))
        expected = -oracle.along(trajectory.snapshots, rtol or 1e-2)
        torch.testing.assert_close(found.values[i], expected, rtol=1e-9, atol=1e-12)
        counts.append(oracle.points)
    assert found.passes.forward - plain.passes.forward == sum(counts)
    assert found.passes.vjp - plain.passes.vjp == sum(counts)
    assert len(set(counts)) > 2


def test_bisection_ends_at_its_depth():
    """A tolerance that rounding alone exceeds: each of 4 steps is cut into 2^8 pieces."""
    model, x = Smooth(), inputs(1)
    method = dataclasses.replace(COARSE, quadrature_rtol=1e-18)
    found = fringe.attribute(model, x, method=method)
    plain = fringe.attribute(model, x, method=dataclasses.replace(method, quadrature="trapezoid"))
    assert 3 * (2**8 - 1) < found.passes.forward - plain.passes.forward <= 4 * (2**8 - 1)
    assert found.completeness_residual.item() < 1e-5
