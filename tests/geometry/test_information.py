"""Entropy, divergence, Fisher matrix and the waypoint loss against closed forms, dense algebra and autograd."""

import math
from itertools import pairwise

import pytest
import torch
from distributions import EPS, UNIT, charts, logits
from hypothesis import given, settings

from fringe.geometry import (
    dist,
    entropy,
    fisher_product,
    kl,
    log_probabilities,
    spherical_loss,
    spherical_loss_gradient,
    sqrt_chart,
)

few = settings(max_examples=60)
INF = math.inf


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def fisher(p):
    return torch.diag(p) - torch.outer(p, p)


class TestEntropy:
    @pytest.mark.parametrize("classes", [2, 10, 1000, 21000])
    def test_of_the_uniform_distribution(self, classes):
        assert entropy(log_probabilities(torch.zeros(classes))).item() == pytest.approx(
            math.log(classes), rel=100 * EPS
        )

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
    def test_closed_forms(self):
        p, q = torch.tensor([0.5, 0.25, 0.25]).double(), torch.tensor([0.25, 0.5, 0.25]).double()
        assert kl(p.log(), q.log()).item() == pytest.approx(0.25 * math.log(2), rel=4 * EPS)

    def test_with_impossible_classes(self):
        vertex, half = torch.tensor([0.0, -INF]).double(), torch.tensor([0.5, 0.5]).double().log()
        assert kl(vertex, half).item() == pytest.approx(math.log(2))
        assert kl(half, vertex).item() == INF
        assert kl(vertex, vertex).item() == 0

    @few
    @given(logits(1))
    def test_to_the_uniform_is_the_missing_entropy(self, rows):
        log_p = log_probabilities(rows[0])
        uniform = log_probabilities(torch.zeros_like(rows[0]))
        missing = math.log(len(rows[0])) - entropy(log_p).item()
        assert kl(log_p, uniform).item() == pytest.approx(missing, rel=1e-12, abs=UNIT * math.log(len(rows[0])))

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
        divergence = kl(log_probabilities(base), log_probabilities(base + 1e-9 * normal(500, 10, seed=1)))
        assert (divergence >= 0).all()
        assert (divergence <= 10 * EPS).all()

    @pytest.mark.parametrize("classes", [2, 10, 1000])
    def test_is_half_the_fisher_form_to_second_order(self, classes):
        base, u = normal(classes), normal(classes, seed=1)
        p = base.softmax(-1)
        form = 0.5 * (u @ fisher_product(p, u)).item()
        errors = []
        for step in (2e-2, 1e-2, 5e-3):
            divergence = kl(log_probabilities(base), log_probabilities(base + step * u)).item()
            errors.append(abs(divergence - step**2 * form))
        orders = [math.log2(a / b) for a, b in pairwise(errors)]
        assert orders == pytest.approx([3.0, 3.0], abs=0.15)

    def test_is_half_the_squared_distance_to_second_order(self):
        base, u = normal(10), normal(10, seed=1)
        for step in (1e-2, 1e-3):
            log_p, log_q = log_probabilities(base), log_probabilities(base + step * u)
            half = 0.5 * dist(sqrt_chart(log_p), sqrt_chart(log_q)).item() ** 2
            assert kl(log_p, log_q).item() == pytest.approx(half, rel=2 * step)


class TestFisher:
    @few
    @given(logits(3))
    def test_is_the_dense_matrix(self, rows):
        p, u, v = rows[0].softmax(-1), rows[1], rows[2]
        if len(p) <= 1000:
            dense = fisher(p) @ u
            assert (fisher_product(p, u) - dense).abs().max() <= UNIT * (1 + u.abs().max())
        scale = (1 + u.abs().max()) * (1 + v.abs().max())
        assert abs(v @ fisher_product(p, u) - u @ fisher_product(p, v)) <= UNIT * scale
        assert u @ fisher_product(p, u) >= -UNIT * (1 + u.abs().max()) ** 2

    @few
    @given(logits(1))
    def test_constants_are_its_kernel(self, rows):
        p = rows[0].softmax(-1)
        assert fisher_product(p, torch.ones_like(p)).abs().max() <= UNIT

    def test_has_rank_one_less_than_the_classes(self):
        p = normal(6).softmax(-1)
        values = torch.linalg.eigvalsh(torch.stack([fisher_product(p, e) for e in torch.eye(6).double()]))
        assert values[0].abs() <= 10 * EPS
        assert values[1] > 1e-3

    @pytest.mark.parametrize("vertex", [0, 2])
    def test_vanishes_at_a_vertex(self, vertex):
        p = torch.eye(3, dtype=torch.float64)[vertex]
        assert torch.equal(fisher_product(p, normal(3)), torch.zeros(3, dtype=torch.float64))


class TestSphericalLoss:
    @few
    @given(logits(1), charts(1))
    def test_is_one_minus_the_cosine(self, rows, points):
        log_p = log_probabilities(rows[0])
        waypoint = points[0] if points[0].shape == rows[0].shape else sqrt_chart(log_probabilities(rows[0].flip(0)))
        assert abs(spherical_loss(log_p, waypoint) - (1 - sqrt_chart(log_p) @ waypoint)) <= 2 * UNIT

    @pytest.mark.parametrize("classes", [2, 3, 10, 1000])
    @pytest.mark.parametrize("spread", [0.0, 1.0, 30.0])
    def test_gradient_equals_autograd(self, classes, spread):
        row = (spread * normal(3, 4, classes)).requires_grad_(True)
        waypoint = sqrt_chart(normal(3, 4, classes, seed=1).log_softmax(-1))
        (expected,) = torch.autograd.grad(spherical_loss(log_probabilities(row), waypoint).sum(), row)
        found = spherical_loss_gradient(log_probabilities(row.detach()), waypoint)
        assert torch.allclose(found, expected, rtol=1e-12, atol=UNIT)

    @pytest.mark.parametrize("classes", [2, 10])
    def test_gradient_equals_finite_differences(self, classes):
        row, waypoint = normal(classes), sqrt_chart(normal(classes, seed=1).log_softmax(-1))
        found, step = spherical_loss_gradient(log_probabilities(row), waypoint), 1e-5
        for i, e in enumerate(step * torch.eye(classes, dtype=torch.float64)):
            rise = spherical_loss(log_probabilities(row + e), waypoint) - spherical_loss(
                log_probabilities(row - e), waypoint
            )
            # truncation step^2, rounding eps / step
            assert abs(found[i] - rise / (2 * step)) <= step**2 + 4 * EPS / step

    @few
    @given(logits(1))
    def test_gradient_at_the_waypoint_is_exactly_zero(self, rows):
        log_p = log_probabilities(rows[0])
        waypoint = sqrt_chart(log_p)
        assert spherical_loss(log_p, waypoint) == 0
        assert torch.equal(spherical_loss_gradient(log_p, waypoint), torch.zeros_like(log_p))

    @few
    @given(logits(2))
    def test_gradient_sums_to_zero(self, rows):
        # logits shifted together give the same prediction
        gradient = spherical_loss_gradient(log_probabilities(rows[0]), sqrt_chart(log_probabilities(rows[1])))
        assert abs(gradient.sum()) <= UNIT
