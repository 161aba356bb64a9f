"""Strategies and high-precision oracles of the geometry's tests."""

import mpmath
import torch
from hypothesis import strategies as st

from fringe.geometry import dist, log_probabilities, sqrt_chart, to_tangent

EPS = torch.finfo(torch.float64).eps
UNIT = 300 * EPS
"""How far a chart point may be off the sphere: log-probabilities down to -200 carry 200 eps, half of it in sqrt(p);
the rest is for sums over the classes."""

CLASSES = st.one_of(st.integers(2, 12), st.sampled_from([100, 1000, 21000]))


@st.composite
def logits(draw, count=1):
    """``count`` rows of logits (C,) whose spread reaches from uniform to 200, each with its own."""
    classes, seed = draw(CLASSES), draw(st.integers(0, 2**32 - 1))
    generator = torch.Generator().manual_seed(seed)
    spreads = [draw(st.sampled_from([0.0, 1e-6, 1e-2, 1.0, 10.0, 50.0, 200.0])) for _ in range(count)]
    return [spread * torch.rand(classes, generator=generator, dtype=torch.float64) for spread in spreads]


@st.composite
def charts(draw, count=1):
    return [sqrt_chart(log_probabilities(row)) for row in draw(logits(count))]


def exact_angle(s0, s1):
    """Angle between the directions of two float vectors, to 40 digits."""
    with mpmath.workdps(60):
        a, b = [mpmath.mpf(v) for v in s0.tolist()], [mpmath.mpf(v) for v in s1.tolist()]
        cosine = mpmath.fdot(a, b) / mpmath.sqrt(mpmath.fdot(a, a) * mpmath.fdot(b, b))
        return mpmath.acos(cosine)


def exact_softmax(row):
    """Probabilities of float logits, to 40 digits."""
    values = [mpmath.exp(mpmath.mpf(v)) for v in row.tolist()]
    total = mpmath.fsum(values)
    return [v / total for v in values]


def unit(row):
    return row / row.norm()


def log(point, base_point):
    """The tangent vector at ``base_point`` whose ``exp`` is ``point``; its norm is their angle."""
    chord = to_tangent(point - base_point, base_point)
    return chord * (0.5 * dist(base_point, point) / chord.norm().clamp_min(1e-300))


def exp(tangent_vec, base_point):
    """The end of the great circle from ``base_point`` along ``tangent_vec``, as long as the latter."""
    length = tangent_vec.norm()
    return torch.cos(length) * base_point + torch.sinc(length / torch.pi) * tangent_vec
