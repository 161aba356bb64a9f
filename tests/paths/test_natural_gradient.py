"""The columns of the closed form's metric: orthonormal directions of the square-root chart."""

import pytest
import torch

import fringe
from fringe.geometry import fisher_norm_squared, geodesic, log_probabilities, sqrt_chart, to_tangent


@pytest.mark.parametrize("distance", [1e-9, 1e-3, 0.5])
@pytest.mark.parametrize("spread", [0.1, 1.0, 10.0, 60.0, 300.0])
@pytest.mark.parametrize(("classes", "rank"), [(3, 2), (10, 3), (10, 9), (100, 20), (100, 99)])
def test_directions_are_orthonormal(classes, rank, spread, distance):
    """For predictions from uniform to saturated, and waypoints however near: one Gram-Schmidt pass is enough."""
    generator = torch.Generator().manual_seed(classes)
    s = sqrt_chart(log_probabilities(spread * torch.rand(4, classes, generator=generator, dtype=torch.float64)))
    tangent = to_tangent(geodesic(s, torch.full_like(s, classes**-0.5), distance) - s, s)
    unit = tangent / tangent.norm(dim=-1, keepdim=True)
    solver = fringe.FRInGe(fisher_rank=rank, structure="none").path(classes).solver(torch.zeros(3))
    basis = torch.stack([s, unit, *solver._more_directions(s, unit)], 1)
    assert basis.shape[1] == min(rank, classes - 1) + 1
    assert (basis @ basis.mT - torch.eye(basis.shape[1]).double()).abs().max() < 2e-14


class OneEntry:
    """The Jacobians ``column`` (B, C) of inputs of one entry, of ``shape``."""

    def __init__(self, column, shape):
        self.column, self.shape = column, shape

    def jvp(self, tangent):
        return self.column * tangent.flatten(1).to(self.column)

    def vjp(self, cotangent):
        return (cotangent.to(self.column) * self.column).sum(1).view(-1, *self.shape)


@pytest.mark.parametrize("structure", ["none", "image"])
def test_dependent_columns_leave_single_precision_its_digits(structure):
    """Of 10 classes and one entry all 9 columns are multiples of one, and the system is a scalar: v = g / (G + R)."""
    generator = torch.Generator().manual_seed(0)
    log_p = log_probabilities(4.0 * torch.randn(20, 10, generator=generator, dtype=torch.float64))
    jacobian = torch.randn(20, 10, generator=generator) * 100.0
    s = sqrt_chart(log_p)
    waypoint = geodesic(s, torch.full_like(s, 10**-0.5), 0.05)
    length = to_tangent(waypoint - s, s).norm(dim=-1)
    loss_gradient = -0.5 * s * to_tangent(waypoint - s, s)
    g = (jacobian.double() * loss_gradient).sum(1)
    scale = 1e-2 * (2.0 * g / length).square() if structure == "none" else 1.0  # hundredths of |m|^2
    expected = g / (fisher_norm_squared(log_p.exp(), jacobian.double()) + 1e-2 * scale)
    shape = (1,) if structure == "none" else (1, 1, 1)
    x = torch.zeros(20, *shape)
    method = fringe.FRInGe(structure=structure, damping=1e-2, fisher_rank=9, gamma_prior=0.0)
    products = OneEntry(jacobian, shape)
    found = method.path(1).solver(x[0]).direction(products, log_p, waypoint, x).v.flatten()
    # the size of what cancels in the gradient itself, in units of its rounding
    terms = (jacobian.double() * loss_gradient).abs().amax(1) / g.abs()
    assert ((found / expected - 1).abs() / terms).max() < 2e-6


def test_the_operators_of_a_step_share_one_basis():
    """Of a long sequence it is most of the memory: n x n numbers."""
    solver = fringe.FRInGe(structure="sequence").path(300).solver(torch.zeros(1, 300))
    assert solver.biharmonic.bases[0].data_ptr() == solver.inverse.bases[0].data_ptr()
