"""The parts of a step of FRInGe: the columns of its metric, and the bounds of its length."""

from types import SimpleNamespace

import pytest
import torch

import fringe
from fringe.attribution._fisher_rao import Bound
from fringe.geometry import fisher_norm_squared, geodesic, log_probabilities, more_directions, sqrt_chart, to_tangent


@pytest.mark.parametrize("distance", [1e-9, 1e-3, 0.5])
@pytest.mark.parametrize("spread", [0.1, 1.0, 10.0, 60.0, 300.0])
@pytest.mark.parametrize(("classes", "rank"), [(3, 2), (10, 3), (10, 9), (100, 20), (100, 99)])
def test_directions_are_orthonormal(classes, rank, spread, distance):
    """For predictions from uniform to saturated, and waypoints however near: one Gram-Schmidt pass is enough."""
    generator = torch.Generator().manual_seed(classes)
    s = sqrt_chart(log_probabilities(spread * torch.rand(4, classes, generator=generator, dtype=torch.float64)))
    tangent = to_tangent(geodesic(s, torch.full_like(s, classes**-0.5), distance) - s, s)
    unit = tangent / tangent.norm(dim=-1, keepdim=True)
    basis = torch.stack([s, unit, *more_directions(s, unit, rank - 1)], 1)
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


def test_dependent_columns_leave_single_precision_its_digits():
    """Of 10 classes and one entry all 9 columns are multiples of one, and the system is a scalar: v = g / (G + R)."""
    generator = torch.Generator().manual_seed(0)
    log_p = log_probabilities(4.0 * torch.randn(20, 10, generator=generator, dtype=torch.float64))
    jacobian = torch.randn(20, 10, generator=generator) * 100.0
    s = sqrt_chart(log_p)
    waypoint = geodesic(s, torch.full_like(s, 10**-0.5), 0.05)
    length = to_tangent(waypoint - s, s).norm(dim=-1)
    loss_gradient = -0.5 * s * to_tangent(waypoint - s, s)
    g = (jacobian.double() * loss_gradient).sum(1)
    scale = 1e-2 * (2.0 * g / length).square()  # hundredths of |m|^2
    expected = g / (fisher_norm_squared(log_p.exp(), jacobian.double()) + 1e-2 * scale)
    x, method = torch.zeros(20, 1), fringe.FRInGe(structure="none", damping=1e-2, gamma_prior=0.0)
    found = method.path(1).on(x[0]).direction(OneEntry(jacobian, (1,)), log_p, waypoint, x)[0].flatten()
    # the size of what cancels in the gradient itself, in units of its rounding
    terms = (jacobian.double() * loss_gradient).abs().amax(1) / g.abs()
    assert ((found / expected - 1).abs() / terms).max() < 2e-6


# -- the length of a step ----------------------------------------------------------------------------------------------


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def next_radius(radius, planned, actual):
    """The bound on the logits after a step with this bound, whose change was planned and came: (1, C) each."""
    before = SimpleNamespace(radius=tensor(radius), planned=planned, soft=torch.zeros_like(planned))
    return fringe.FRInGe(structure="none").path(1).radius(before, actual).item()


@pytest.mark.parametrize(
    ("radius", "actual", "expected"),
    [
        (0.4, (0.4, 0.0), 0.8),  # as predicted: twice the bound
        (0.8, (0.4, 0.0), 1.0),  # never more than a nat
        (0.4, (0.26, 0.0), 0.4),  # an error of 35 %: the bound stays
        (0.4, (0.1, 0.0), 0.2),  # 75 %: half of what the step was to do
        (1.0, (-0.4, 0.0), 0.2),
        (0.4, (5.4, 5.0), 0.8),  # a constant added to all logits is no error
        (0.15, (-4.0, 0.0), 0.2),
    ],
)
def test_the_bound_follows_the_error_of_the_linearisation(radius, actual, expected):
    assert next_radius(radius, tensor(0.4, 0.0)[None], tensor(*actual)[None]) == pytest.approx(expected)


def test_the_bound_on_the_logits_is_never_less_than_a_tenth_of_a_nat():
    assert next_radius(0.12, tensor(0.12, 0.0)[None], tensor(-2.0, 0.0)[None]) == pytest.approx(0.1)


def test_a_change_where_none_was_predicted_is_the_greatest_error():
    still, moved = tensor(0.0, 0.0)[None], tensor(-0.4, 0.0)[None]
    assert next_radius(0.4, still, moved) == pytest.approx(0.1)
    assert next_radius(0.4, still, still) == pytest.approx(0.8)


def test_a_step_takes_the_bound_it_is_given():
    path = fringe.FRInGe(tau=1e9, eta_max=10.0, delta_euc=None, structure="none").path(1)
    eta, bound = path.eta(tensor(0.0, 0.0), tensor(1.0, 1.0), tensor(2.0, 2.0), tensor(0.5, 1.0))
    assert eta.tolist() == pytest.approx([0.25, 0.5])
    assert bound.tolist() == [Bound.LOGIT] * 2


def test_a_cap_that_is_switched_off_does_not_bind():
    path = fringe.FRInGe(tau=0.08, eta_max=2.0, delta_euc=None).path(1)
    assert path.eta(tensor(0.01, 1.0, 0.01), tensor(0.5, 1.0, 30.0))[0].tolist() == pytest.approx([2.0, 0.4, 2.0])


@pytest.mark.parametrize(
    ("fisher", "norm", "logit_range", "eta", "active"),
    [
        (4.0, 1.0, 0.1, 0.1, Bound.KL),
        (1e-4, 1.0, 0.1, 3.0, Bound.EUCLIDEAN),
        (1e-4, 1.0, 0.5, 2.0, Bound.LOGIT),  # beside 20 and 3
        (1e-4, 0.1, 0.01, 10.0, Bound.ETA_MAX),
        (1e-4, 0.1, None, 10.0, Bound.ETA_MAX),  # not measured: no such bound
        (1.0, 1.0, None, 0.2, Bound.KL),  # sqrt(2 * 0.02 / 1)
        (1e-4, 0.5, None, 6.0, Bound.EUCLIDEAN),  # the other would be 20
        (0.0, 0.0, None, 10.0, Bound.ETA_MAX),  # no direction at all
        (0.0, 0.1, 0.0, 10.0, Bound.ETA_MAX),  # a direction that moves no logits
    ],
)
def test_all_four_bounds_beside_each_other(fisher, norm, logit_range, eta, active):
    path = fringe.FRInGe(eta_max=10.0, tau=0.02, delta_euc=3.0).path(1)
    measured = () if logit_range is None else (tensor(logit_range), tensor(1.0))
    found, bound = path.eta(tensor(fisher), tensor(norm), *measured)
    assert found.item() == pytest.approx(eta, rel=1e-7)
    assert bound.item() == active
