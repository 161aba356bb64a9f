"""Laws of the sphere in the square-root chart, for 2 to 21000 classes and logits spread up to 200."""

import math

import torch
from distributions import EPS, UNIT, charts
from hypothesis import given, settings
from hypothesis import strategies as st

from fringe.geometry import angle, dist, exp, geodesic, log, to_tangent

few = settings(max_examples=60)


@few
@given(charts(2))
def test_exp_undoes_log(points):
    base, point = points
    assert (exp(log(point, base), base) - point).norm() <= 3 * UNIT


@few
@given(charts(2), st.floats(0.0, math.pi / 2))
def test_log_undoes_exp(points, length):
    base, toward = points
    direction = to_tangent(toward, base)
    if direction.norm() < 1e-3:  # too short to name a direction
        return
    tangent = length * direction / direction.norm()
    assert (log(exp(tangent, base), base) - tangent).norm() <= 1e3 * UNIT  # the direction lost up to 1e3 above


@few
@given(charts(2))
def test_log_is_tangent_and_as_long_as_the_angle(points):
    base, point = points
    vector, theta = log(point, base), angle(base, point)
    assert abs(vector @ base) <= UNIT * theta
    assert abs(vector.norm() - theta) <= 20 * EPS * theta


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
@given(charts(2))
def test_dist_is_the_arccosine_where_that_is_sound(points):
    a, b = points
    theta = torch.arccos((a @ b).clamp(max=1.0))
    if theta > 0.1:  # arccos magnifies rounding by 1 / sin(theta)
        assert abs(dist(a, b) - 2 * theta) <= 2 * UNIT / theta.sin()


@few
@given(charts(2), st.floats(0.0, 1.0))
def test_geodesic_has_constant_speed_on_the_positive_sphere(points, alpha):
    a, b = points
    point = geodesic(a, b, alpha)
    assert torch.equal(geodesic(a, b, 0.0), a)
    assert torch.equal(geodesic(a, b, 1.0), b)
    assert abs(point.norm() - 1) <= 2 * UNIT
    assert (point >= 0).all()
    assert abs(angle(a, point) - alpha * angle(a, b)) <= 2 * UNIT
    assert abs(angle(point, b) - (1 - alpha) * angle(a, b)) <= 2 * UNIT


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
        assert (log(b, a)[i] - log(b[i], a[i])).norm() <= 20 * EPS
        assert (exp(log(b, a), a)[i] - exp(log(b[i], a[i]), a[i])).norm() <= 20 * EPS
