"""The geometry where formulas break: near-equal points, vertices, the uniform distribution, one-hot float32."""

import math

import mpmath
import pytest
import torch
from distributions import EPS, exact_angle, exact_softmax, unit

from fringe.geometry import (
    angle,
    dist,
    entropy,
    exp,
    fisher_product,
    geodesic,
    kl,
    log,
    log_probabilities,
    spherical_loss,
    spherical_loss_gradient,
    sqrt_chart,
)
from fringe.geometry.simplex import LINEAR_BELOW


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def pair(classes, theta):
    """Two chart points at about ``theta``."""
    base = sqrt_chart(normal(classes).log_softmax(-1))
    return base, exp(theta * unit(log(sqrt_chart(normal(classes, seed=1).log_softmax(-1)), base)), base)


@pytest.mark.parametrize("classes", [2, 10, 1000])
@pytest.mark.parametrize("theta", [1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 0.1, 0.5])
def test_dist_keeps_its_digits_near_equal_points(classes, theta):
    # the chord is exact there; what remains is the rounding of a norm over the classes
    a, b = pair(classes, theta)
    exact = 2 * exact_angle(a, b)
    assert abs(dist(a, b).item() / exact - 1) <= 50 * EPS


@pytest.mark.parametrize("theta", [1e-10, 1e-8, 0.99 * LINEAR_BELOW, 1.01 * LINEAR_BELOW, 1e-4])
def test_geodesic_between_near_equal_points(theta):
    a, b = pair(10, theta)
    for alpha in (0.25, 0.5, 0.9):
        point = geodesic(a, b, alpha)
        assert abs(angle(a, point) - alpha * angle(a, b)) <= 2 * EPS + 2e-13 * theta
        assert abs(point.norm() - 1) <= 5 * EPS + theta**2 / 8 * (theta < LINEAR_BELOW)


@pytest.mark.parametrize("classes", [2, 1000, 21000])
def test_geodesic_and_log_of_equal_endpoints(classes):
    s = sqrt_chart(torch.zeros(classes, dtype=torch.float64).log_softmax(-1))
    assert (geodesic(s, s, torch.tensor(0.3)) - s).abs().max() <= EPS
    assert torch.equal(log(s, s), torch.zeros_like(s))
    assert torch.equal(exp(torch.zeros_like(s), s), s)
    assert dist(s, s) == 0


@pytest.mark.parametrize("classes", [2, 3, 10, 1000, 21000])
def test_from_the_uniform_distribution_to_a_vertex(classes):
    uniform = sqrt_chart(log_probabilities(torch.zeros(classes)))
    vertex = torch.zeros(classes, dtype=torch.float64)
    vertex[-1] = 1
    exact = 2 * math.acos(1 / math.sqrt(classes))
    assert dist(uniform, vertex).item() == pytest.approx(exact, rel=classes * EPS)
    middle = geodesic(uniform, vertex, 0.5)
    assert dist(uniform, middle).item() == pytest.approx(exact / 2, rel=classes * EPS)
    assert (exp(log(vertex, uniform), uniform) - vertex).norm() <= classes * EPS


@pytest.mark.parametrize("classes", [2, 5, 1000])
def test_between_vertices_lies_half_a_turn(classes):
    a, b = torch.eye(classes, dtype=torch.float64)[:2]
    assert dist(a, b).item() == pytest.approx(math.pi, rel=2 * EPS)
    middle = geodesic(a, b, 0.5)
    assert torch.allclose(middle[:2], torch.full((2,), math.sqrt(0.5), dtype=torch.float64), rtol=2 * EPS)
    assert torch.equal(middle[2:], torch.zeros(classes - 2, dtype=torch.float64))
    assert log(b, a).norm().item() == pytest.approx(math.pi / 2, rel=2 * EPS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("gap", [105.0, 120.0, 200.0])
@pytest.mark.parametrize("classes", [2, 10])
class TestOneHot:
    """Logits (gap, 0, ..., 0): in float32 the probabilities of the others underflow, and d sqrt(p) with them."""

    def logits(self, classes, gap, dtype):
        row = torch.zeros(classes, dtype=dtype)
        row[0] = gap
        return row

    def test_everything_is_finite(self, classes, gap, dtype):
        uniform = torch.full((classes,), classes**-0.5, dtype=dtype)
        for log_p in (
            self.logits(classes, gap, dtype).log_softmax(-1),
            log_probabilities(self.logits(classes, gap, dtype)),
        ):
            s = sqrt_chart(log_p)
            waypoint = geodesic(s, uniform.to(s.dtype), 0.1)
            for value in (
                dist(s, waypoint),
                log(waypoint, s),
                geodesic(s, s, 0.5),
                entropy(log_p),
                kl(log_p, 2 * uniform.to(s.dtype).log()),
                fisher_product(log_p.exp(), waypoint),
                spherical_loss(log_p, waypoint),
                spherical_loss_gradient(log_p, waypoint),
            ):
                assert torch.isfinite(value).all()

    def test_the_closed_form_gradient_is_right_to_the_digits_of_its_dtype(self, classes, gap, dtype):
        log_p = self.logits(classes, gap, dtype).log_softmax(-1)
        waypoint = unit(1 + torch.rand(classes, generator=torch.Generator().manual_seed(1), dtype=torch.float64))
        found = spherical_loss_gradient(log_p, waypoint.to(dtype))
        with mpmath.workdps(60):
            p = exact_softmax(self.logits(classes, gap, torch.float64))
            w = [mpmath.mpf(v) for v in waypoint.to(dtype).tolist()]
            cosine = mpmath.fsum(mpmath.sqrt(a) * b for a, b in zip(p, w, strict=True))
            exact = [-(mpmath.sqrt(a) * b - a * cosine) / 2 for a, b in zip(p, w, strict=True)]
        # sqrt(p) = exp(-gap / 2) errs by gap/2 eps; below the normal range of float32 its last bits are missing
        tolerance = gap * torch.finfo(dtype).eps
        floor = classes * torch.finfo(dtype).tiny * torch.finfo(dtype).eps
        for i in range(1, classes):
            assert abs(found[i].item() - exact[i]) <= tolerance * abs(exact[i]) + floor
        # the first cancels to exp(-gap / 2) beside 1, of which rounding leaves eps
        assert abs(found[0].item() - exact[0]) <= 10 * torch.finfo(dtype).eps

    def test_log_probabilities_leave_float32_behind(self, classes, gap, dtype):
        log_p = log_probabilities(self.logits(classes, gap, dtype))
        assert log_p.dtype == torch.float64
        others = -gap - math.log1p((classes - 1) * math.exp(-gap))
        assert torch.allclose(log_p[1:], torch.full_like(log_p[1:], others), rtol=4 * EPS)
        rest = (classes - 1) * math.exp(-gap)  # the first class adds as much again, under the rounding of its log p = 0
        assert entropy(log_p).item() == pytest.approx(rest * gap, rel=2 * gap * EPS, abs=0)


def test_autograd_through_the_loss_agrees_with_the_closed_form_at_one_hot():
    logits = torch.tensor([200.0, 0.0, 3.0], requires_grad=True)
    waypoint = unit(torch.tensor([0.9, 0.3, 0.2], dtype=torch.float64))
    (gradient,) = torch.autograd.grad(spherical_loss(log_probabilities(logits), waypoint), logits)
    closed = spherical_loss_gradient(log_probabilities(logits.detach()), waypoint)
    assert torch.isfinite(gradient).all()
    assert torch.allclose(gradient.double(), closed, rtol=1e-6, atol=10 * EPS)
