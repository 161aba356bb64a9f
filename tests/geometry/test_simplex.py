"""The geometry of the simplex: laws, limits (near-equal points, vertices, one-hot float32), closed forms, autograd."""

import math
from itertools import pairwise

import mpmath
import pytest
import scipy
import torch
from geometry_toys import EPS, UNIT, charts, exact_angle, exp, log, logits, unit
from hypothesis import given, settings
from hypothesis import strategies as st

from fringe.geometry import (
    dist,
    entropy,
    fisher_norm_squared,
    geodesic,
    kl,
    log_probabilities,
    softening_temperature,
    sqrt_chart,
    to_tangent,
)
from toys import normal

few = settings(max_examples=60)


@few
@given(charts(1), st.integers(0, 2**32 - 1))
def test_to_tangent_is_an_orthogonal_projection(points, seed):
    (base,) = points
    v = torch.randn(base.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    projected = to_tangent(v, base)
    assert abs(projected @ base) <= UNIT * v.norm()
    assert (to_tangent(projected, base) - projected).norm() <= UNIT * v.norm()
    assert abs(projected @ (v - projected)) <= UNIT * v.norm() ** 2


@few
@given(charts(3))
def test_dist_is_a_distance(points):
    a, b, c = points
    assert dist(a, b) == dist(b, a)
    assert dist(a, a) == 0
    assert 0 <= dist(a, b) <= math.pi + UNIT
    assert dist(a, c) <= dist(a, b) + dist(b, c) + 4 * UNIT


@few
@given(charts(2), st.floats(0.0, 1.0))
def test_geodesic_has_constant_speed_on_the_positive_sphere(points, alpha):
    a, b = points
    point = geodesic(a, b, alpha)
    assert torch.equal(geodesic(a, b, 0.0), a)
    assert torch.equal(geodesic(a, b, 1.0), b)
    assert abs(point.norm() - 1) <= 2 * UNIT
    assert (point >= 0).all()
    assert abs(dist(a, point) - alpha * dist(a, b)) <= 4 * UNIT
    assert abs(dist(point, b) - (1 - alpha) * dist(a, b)) <= 4 * UNIT


@few
@given(charts(2), st.floats(0.0, 1.0))
def test_geodesic_is_exp_of_a_fraction_of_log(points, alpha):
    a, b = points
    assert (geodesic(a, b, alpha) - exp(alpha * log(b, a), a)).norm() <= 3 * UNIT


@few
@given(charts(4))
def test_batched_is_looped(points):
    a, b = torch.stack(points[:2]), torch.stack(points[2:])
    alpha = torch.tensor([0.25, 0.75], dtype=torch.float64)
    for i in range(2):
        assert abs(dist(a, b)[i] - dist(a[i], b[i])) <= 20 * EPS
        assert (geodesic(a, b, alpha)[i] - geodesic(a[i], b[i], alpha[i])).norm() <= 20 * EPS


def test_numbers_of_a_batch_are_those_of_its_rows():
    """As many classes as rows, or more: a reduction over the wrong axis shows in either."""
    for classes in (3, 5):
        log_p, log_q = (normal(3, classes, seed=seed).log_softmax(-1) for seed in (0, 1))
        p, u = log_p.exp(), normal(3, classes, seed=3)
        for i in range(3):
            q = log_q[i].exp()
            rows = (
                (entropy(log_p)[i], -(p[i] @ log_p[i])),
                (kl(log_p, log_q)[i], p[i] @ (log_p[i] - log_q[i])),
                (kl(log_q, log_p)[i], q @ (log_q[i] - log_p[i])),
                (fisher_norm_squared(p, u)[i], p[i] @ u[i].square() - (p[i] @ u[i]) ** 2),
            )
            for found, expected in rows:
                assert found.item() == pytest.approx(expected.item(), rel=1e-12)


def pair(classes, theta):
    """Two chart points at about ``theta``."""
    base = sqrt_chart(normal(classes).log_softmax(-1))
    return base, exp(theta * unit(log(sqrt_chart(normal(classes, seed=2).log_softmax(-1)), base)), base)


@pytest.mark.parametrize("classes", [2, 10, 1000])
@pytest.mark.parametrize("theta", [1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 0.1, 0.5])
def test_dist_keeps_its_digits_near_equal_points(classes, theta):
    # the chord is exact there; what remains is the rounding of a norm over the classes
    a, b = pair(classes, theta)
    exact = 2 * exact_angle(a, b)
    assert abs(dist(a, b).item() / exact - 1) <= 50 * EPS


@pytest.mark.parametrize("theta", [1e-10, 1e-8, 1e-6, 1e-4])
def test_geodesic_between_near_equal_points(theta):
    a, b = pair(10, theta)
    for alpha in (0.25, 0.5, 0.9):
        point = geodesic(a, b, alpha)
        assert abs(dist(a, point) - alpha * dist(a, b)) <= 4 * EPS + 4e-13 * theta
        assert abs(point.norm() - 1) <= 5 * EPS


@pytest.mark.parametrize("classes", [2, 1000, 21000])
def test_geodesic_of_equal_endpoints(classes):
    s = sqrt_chart(torch.zeros(classes, dtype=torch.float64).log_softmax(-1))
    assert (geodesic(s, s, torch.tensor(0.3)) - s).abs().max() <= EPS
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


@pytest.mark.parametrize("classes", [2, 5, 1000])
def test_between_vertices_lies_half_a_turn(classes):
    a, b = torch.eye(classes, dtype=torch.float64)[:2]
    assert dist(a, b).item() == pytest.approx(math.pi, rel=2 * EPS)
    middle = geodesic(a, b, 0.5)
    assert torch.allclose(middle[:2], torch.full((2,), math.sqrt(0.5), dtype=torch.float64), rtol=2 * EPS)
    assert torch.equal(middle[2:], torch.zeros(classes - 2, dtype=torch.float64))


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
                geodesic(s, s, 0.5),
                entropy(log_p),
                kl(log_p, 2 * uniform.to(s.dtype).log()),
                fisher_norm_squared(log_p.exp(), waypoint),
            ):
                assert torch.isfinite(value).all()

    def test_log_probabilities_leave_float32_behind(self, classes, gap, dtype):
        log_p = log_probabilities(self.logits(classes, gap, dtype))
        assert log_p.dtype == torch.float64
        others = -gap - math.log1p((classes - 1) * math.exp(-gap))
        assert torch.allclose(log_p[1:], torch.full_like(log_p[1:], others), rtol=4 * EPS)
        rest = (classes - 1) * math.exp(-gap)  # the first class adds as much again, under the rounding of its log p = 0
        assert entropy(log_p).item() == pytest.approx(rest * gap, rel=2 * gap * EPS, abs=0)


INF = math.inf


class TestEntropy:
    @pytest.mark.parametrize("p", [0.5, 0.1, 1e-3, 1e-12])
    def test_of_two_classes(self, p):
        log_p = torch.tensor([p, 1 - p], dtype=torch.float64).log()
        assert entropy(log_p).item() == pytest.approx(
            -p * math.log(p) - (1 - p) * math.log1p(-p), rel=1e-12, abs=2 * EPS
        )

    def test_of_a_vertex(self):
        assert entropy(torch.tensor([-INF, 0.0, -INF])).item() == 0
        assert entropy(torch.tensor([math.log(0.5), math.log(0.5), -INF]).double()).item() == pytest.approx(math.log(2))


class TestKL:
    def test_with_impossible_classes(self):
        vertex, half = torch.tensor([0.0, -INF]).double(), torch.tensor([0.5, 0.5]).double().log()
        assert kl(vertex, half).item() == pytest.approx(math.log(2))
        assert kl(half, vertex).item() == INF
        assert kl(vertex, vertex).item() == 0

    @few
    @given(logits(2))
    def test_is_never_negative_and_zero_on_itself(self, rows):
        log_p, log_q = log_probabilities(rows[0]), log_probabilities(rows[1])
        assert kl(log_p, log_q) >= 0
        assert kl(log_p, log_p) == 0
        # Pinsker and Fisher-Rao: KL >= 2 (1 - cos) >= ..., with chord^2 = 2 (1 - cos)
        chord = (sqrt_chart(log_p) - sqrt_chart(log_q)).square().sum()
        assert kl(log_p, log_q) >= chord - UNIT

    def test_is_not_made_negative_by_rounding(self):
        # the true value, about 1e-18, lies under the rounding of the sum
        base = normal(500, 10)
        divergence = kl(log_probabilities(base), log_probabilities(base + 1e-9 * normal(500, 10, seed=2)))
        assert (divergence >= 0).all()
        assert (divergence <= 10 * EPS).all()

    @pytest.mark.parametrize("classes", [2, 10, 1000])
    def test_is_half_the_fisher_form_to_second_order(self, classes):
        base, u = normal(classes), normal(classes, seed=2)
        p = base.softmax(-1)
        form = 0.5 * fisher_norm_squared(p, u).item()
        errors = []
        for step in (2e-2, 1e-2, 5e-3):
            divergence = kl(log_probabilities(base), log_probabilities(base + step * u)).item()
            errors.append(abs(divergence - step**2 * form))
        orders = [math.log2(a / b) for a, b in pairwise(errors)]
        assert orders == pytest.approx([3.0, 3.0], abs=0.15)


@few
@given(logits(2))
def test_the_fisher_norm_is_that_of_the_dense_matrix(rows):
    p, u = rows[0].softmax(-1), rows[1]
    if len(p) <= 1000:
        dense = u @ (torch.diag(p) - torch.outer(p, p)) @ u
        assert abs(fisher_norm_squared(p, u) - dense) <= UNIT * (1 + u.abs().max()) ** 2


@pytest.mark.parametrize("gap", [0.0, 5.0, 40.0, 90.0, 300.0])
def test_the_fisher_norm_keeps_its_digits_near_a_vertex(gap):
    """Against 200 digits; <u, S u> written as a product is negative there, or wrong in its first digit."""
    z, u = torch.tensor([gap, 0.0, -3.0], dtype=torch.float64), torch.tensor([1e6, -2e6, 5e5], dtype=torch.float64)
    with mpmath.workdps(200):
        weights = [mpmath.exp(mpmath.mpf(v)) for v in z.tolist()]
        p = [w / mpmath.fsum(weights) for w in weights]
        mean = mpmath.fsum(a * b for a, b in zip(p, u.tolist(), strict=True))
        exact = float(mpmath.fsum(a * (b - mean) ** 2 for a, b in zip(p, u.tolist(), strict=True)))
    found = fisher_norm_squared(log_probabilities(z).exp(), u)
    assert found.item() == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("u", [(1e12, 1e12 + 3, 1e12 - 5), (0.0, 3.0, 1e12)])
def test_the_fisher_norm_takes_nothing_from_what_the_logits_share_or_from_an_impossible_class(u):
    """A mean of 1e12 rounds to 1e-4, and its square would stand beside a variance of 9 exp(-gap), 1e-6 to 1e-14."""
    for gap in (15.0, 19.0, 25.0, 30.0, 35.0):
        p = log_probabilities(torch.tensor([0.0, -gap, -300.0], dtype=torch.float64)).exp()
        found = fisher_norm_squared(p, torch.tensor(u, dtype=torch.float64))
        assert found.item() == pytest.approx(9 * math.exp(-gap) / (1 + math.exp(-gap)) ** 2, rel=1e-12)


class TestSofteningTemperature:
    @pytest.mark.parametrize("classes", [2, 10, 1000])
    @pytest.mark.parametrize("share", [0.1, 0.25, 0.9])
    def test_equals_a_root_finder_s(self, classes, share):
        """Entropies in bits over log2 C, by scipy."""
        rows = 10.0 ** torch.linspace(-2, 4, 13, dtype=torch.float64)[:, None] * normal(classes)
        for row, found in zip(rows, softening_temperature(rows, share).tolist(), strict=True):

            def excess(temperature, row=row):
                p = scipy.special.softmax(row.numpy() / temperature)
                return scipy.stats.entropy(p, base=2) / math.log2(classes) - share

            expected = 1.0 if excess(1.0) >= 0 else scipy.optimize.brentq(excess, 1.0, 1e7, xtol=1e-12, rtol=1e-12)
            assert found == pytest.approx(expected, rel=1e-9)

    def test_of_equal_logits_is_one(self):
        """Two classes that tie have log 2 of log 16: enough for a quarter, exactly, and too little for more."""
        tie = torch.tensor([0.0, 0.0] + 14 * [-1e6], dtype=torch.float64)
        assert softening_temperature(torch.zeros(3, 16), 0.25).tolist() == [1.0] * 3
        assert softening_temperature(tie, 0.2499).item() == 1.0
        assert softening_temperature(tie, 0.26).item() > 1e4

    def test_of_two_classes_has_a_closed_form(self):
        """p = 9/10 has .469 bits: a gap of g is softened to log 9."""
        share = -(0.9 * math.log2(0.9) + 0.1 * math.log2(0.1))
        for gap in (1.0, 5.0, 1e3, 1e30):
            found = softening_temperature(torch.tensor([gap, 0.0], dtype=torch.float64), share).item()
            assert found == pytest.approx(max(gap / math.log(9), 1.0), rel=1e-9)
