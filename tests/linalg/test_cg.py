"""Conjugate gradients: per-item status, isolation of items, counted products; accuracy against a direct solve.

Tolerance. With a stop at |r| <= rtol |b| and a recursive residual that drifts from b - A x by at most about
k eps |A| |x| in k iterations (Greenbaum 1997), |x - x*| <= |A^-1| |b - A x| gives a relative error of at most
condition * (rtol + k eps); the direct solve itself errs by about n eps condition, hence ``_bound``.
"""

from functools import partial
from itertools import pairwise

import pytest
import torch
from linalg_toys import (
    EPS,
    Dense,
    Diagonal,
    Identity,
    Returned,
    Scaled,
    conditioned,
    direct,
    relative_error,
    symmetric,
)

from fringe.linalg import CGStatus, conjugate_gradient
from toys import normal


def textbook(a, b, steps):
    """Hestenes and Stiefel's recurrence for one system, with nothing added."""
    x, r = torch.zeros_like(b), b.clone()
    d, curvatures = r, []
    for _ in range(steps):
        product = a @ d
        curvatures.append((d @ product).item())
        alpha = (r @ r) / (d @ product)
        x, r_next = x + alpha * d, r - alpha * product
        d = r_next + (r_next @ r_next) / (r @ r) * d
        r = r_next
    return x, curvatures


@pytest.fixture
def mixed():
    """Easy, hard, zero right-hand side, and one that its warm start already solves."""
    a = torch.cat(
        [conditioned(1.5, seed=1), conditioned(1e8, seed=2), conditioned(10.0, seed=3), conditioned(1e3, seed=4)]
    )
    b = normal(4, 20, seed=5)
    b[2] = 0
    x0 = torch.zeros_like(b)
    x0[3] = direct(a[3:], b[3:])[0]
    x0[2] = 1.0
    return a, b, x0


class TestABatch:
    def test_every_item_has_its_own_verdict(self, mixed):
        a, b, x0 = mixed
        solution = conjugate_gradient(Dense(a), b, x0=x0, rtol=1e-8, max_iterations=15)
        converged, limit = CGStatus.CONVERGED, CGStatus.ITERATION_LIMIT
        assert solution.status.tolist() == [converged, limit, converged, converged]
        assert solution.iterations[1:].tolist() == [15, 0, 0]
        true = (b - (a @ solution.x[..., None])[..., 0]).norm(dim=1)
        assert true[1] > 1e-8 * b[1].norm()  # a mean over the batch would hide it
        assert torch.allclose(solution.relative_residual[[0, 1, 3]], (true / b.norm(dim=1))[[0, 1, 3]], atol=1e-13)

    def test_of_n_equals_n_batches_of_one(self, mixed):
        a, b, x0 = mixed
        together = conjugate_gradient(Dense(a), b, x0=x0, rtol=1e-8, max_iterations=300)
        for i in range(4):
            alone = conjugate_gradient(
                Dense(a[i : i + 1]), b[i : i + 1], x0=x0[i : i + 1], rtol=1e-8, max_iterations=300
            )
            assert alone.status.item() == together.status[i].item()
            assert alone.iterations.item() == together.iterations[i].item()
            assert torch.equal(alone.x[0], together.x[i])
            assert torch.equal(alone.residual[0], together.residual[i])
            assert alone.relative_residual.item() == together.relative_residual[i].item()

    @pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
    def test_a_bad_item_leaves_its_neighbours_bit_identical(self, mixed, bad):
        a, b, _ = mixed
        zeroed, broken = b.clone(), b.clone()
        zeroed[0], broken[0, 7] = 0, bad
        expected = conjugate_gradient(Dense(a), zeroed, rtol=1e-8, max_iterations=50)
        solution = conjugate_gradient(Dense(a), broken, rtol=1e-8, max_iterations=50)
        assert solution.status[0] == CGStatus.NON_FINITE
        assert torch.equal(solution.x[1:], expected.x[1:])
        assert torch.equal(solution.residual[1:], expected.residual[1:])
        assert torch.equal(solution.iterations[1:], expected.iterations[1:])
        assert torch.equal(solution.x[0], torch.zeros(20, dtype=torch.float64))


class TestNothingToDo:
    def test_a_zero_right_hand_side_has_the_zero_solution_at_no_product(self):
        operator = Dense(conditioned(10.0))
        solution = conjugate_gradient(operator, torch.zeros(1, 20, dtype=torch.float64))
        assert operator.products == 0
        assert solution.status.item() == CGStatus.CONVERGED
        assert torch.equal(solution.x, torch.zeros_like(solution.x))
        assert (solution.iterations.item(), solution.relative_residual.item()) == (0, 0.0)

    def test_a_warm_start_that_is_not_finite_is_dropped(self):
        a, b = conditioned(1e3), normal(1, 20, seed=1)
        cold = conjugate_gradient(Dense(a), b, rtol=1e-8, max_iterations=100)
        warm = conjugate_gradient(Dense(a), b, x0=torch.full_like(b, torch.nan), rtol=1e-8, max_iterations=100)
        assert torch.equal(warm.x, cold.x)
        assert torch.equal(warm.iterations, cold.iterations)


class TestProducts:
    @pytest.mark.parametrize("limit", [0, 1, 7, 500])
    @pytest.mark.parametrize("warm", [False, True])
    def test_are_the_iterations_of_the_longest_item_and_one_for_a_warm_start(self, mixed, limit, warm):
        a, b, x0 = mixed
        operator = Dense(a)
        solution = conjugate_gradient(operator, b, x0=x0 if warm else None, rtol=1e-8, max_iterations=limit)
        assert operator.products == int(solution.iterations.max()) + warm

    def test_inputs_are_not_written_to(self, mixed):
        a, b, x0 = mixed
        before = b.clone(), x0.clone(), a.clone()
        conjugate_gradient(Dense(a), b, x0=x0, preconditioner=Returned(), rtol=1e-8, max_iterations=50)
        assert all(torch.equal(now, then) for now, then in zip((b, x0, a), before, strict=True))


class TestPreconditioner:
    def test_that_returns_its_argument_is_exactly_none(self, mixed):
        a, b, x0 = mixed
        plain = conjugate_gradient(Dense(a), b, x0=x0, rtol=1e-8, max_iterations=100)
        aliased = conjugate_gradient(Dense(a), b, x0=x0, preconditioner=Returned(), rtol=1e-8, max_iterations=100)
        assert torch.equal(aliased.x, plain.x)
        assert torch.equal(aliased.residual, plain.residual)
        assert torch.equal(aliased.iterations, plain.iterations)

    def test_that_is_the_inverse_needs_one_iteration(self):
        a, b = conditioned(1e6), normal(1, 20, seed=1)
        inverse = Dense(torch.linalg.inv(a))
        solution = conjugate_gradient(Dense(a), b, preconditioner=inverse, rtol=1e-8, max_iterations=50)
        assert solution.iterations.item() == 1
        assert relative_error(solution.x, direct(a, b)) <= 1e6 * 1e-8

    @pytest.mark.parametrize("factor", [2.0**-40, 2.0**40])
    def test_a_power_of_two_on_it_changes_no_bit(self, factor):
        a, b = conditioned(1e2), normal(1, 20, seed=1)
        jacobi = Diagonal(1 / a[0].diagonal())
        one = conjugate_gradient(Dense(a), b, preconditioner=jacobi, rtol=1e-6, max_iterations=50)
        two = conjugate_gradient(Dense(a), b, preconditioner=Scaled(jacobi, factor), rtol=1e-6, max_iterations=50)
        assert torch.equal(two.x, one.x)
        assert torch.equal(two.relative_residual, one.relative_residual)

    @pytest.mark.parametrize("sign", [-1.0, 0.0, torch.nan])
    def test_that_proves_indefinite_is_left_aside(self, sign):
        a, b = conditioned(1e3), normal(1, 20, seed=1)
        plain = conjugate_gradient(Dense(a), b, rtol=1e-8, max_iterations=100, reorthogonalise=False)
        solution = conjugate_gradient(
            Dense(a), b, preconditioner=Scaled(Identity(), sign), rtol=1e-8, max_iterations=100
        )
        assert torch.equal(solution.x, plain.x)
        assert torch.equal(solution.iterations, plain.iterations)

    @pytest.mark.parametrize("reorthogonalise", [True, False])
    def test_that_is_indefinite_in_some_directions_never_leads_uphill(self, reorthogonalise):
        values = torch.ones(20, dtype=torch.float64)
        values[::3] = -0.5
        a, b = conditioned(1e2), normal(1, 20, seed=1)
        exact, energies = direct(a, b), []
        for steps in range(40):
            solution = conjugate_gradient(
                Dense(a),
                b,
                preconditioner=Diagonal(values),
                rtol=1e-8,
                max_iterations=steps,
                reorthogonalise=reorthogonalise,
            )
            true = b - (a @ solution.x[..., None])[..., 0]
            assert solution.relative_residual.item() == pytest.approx((true.norm() / b.norm()).item(), rel=1e-9)
            e = solution.x - exact
            energies.append((e * (a @ e[..., None])[..., 0]).sum().item())
        assert all(after < before for before, after in pairwise(energies))


class TestNegativeCurvature:
    def test_at_the_start_leaves_zero_and_says_so(self):
        operator, b = Dense(symmetric(-torch.linspace(1, 3, 8))), normal(1, 8, seed=1)
        solution = conjugate_gradient(operator, b, max_iterations=20)
        assert solution.status.item() == CGStatus.NEGATIVE_CURVATURE
        assert operator.products == 1
        assert solution.iterations.item() == 0
        assert torch.equal(solution.x, torch.zeros_like(b))
        assert torch.equal(solution.residual, b)
        assert solution.relative_residual.item() == 1.0

    def test_later_keeps_the_last_sound_iterate(self):
        a, b = symmetric(torch.tensor([-0.3, 1.0, 2.0, 3.0, 4.0, 5.0]), 7), normal(1, 6, seed=8)
        _, curvatures = textbook(a[0], b[0], 6)
        valid_steps = next(i for i, c in enumerate(curvatures) if c <= 0)
        assert valid_steps >= 1
        solution = conjugate_gradient(Dense(a), b, rtol=1e-12, max_iterations=20)
        assert solution.status.item() == CGStatus.NEGATIVE_CURVATURE
        assert solution.iterations.item() == valid_steps
        assert relative_error(solution.x[0], textbook(a[0], b[0], valid_steps)[0]) <= 100 * EPS
        true = b - (a @ solution.x[..., None])[..., 0]
        assert solution.relative_residual.item() == pytest.approx((true.norm() / b.norm()).item(), rel=1e-12)

    def test_of_one_item_does_not_stop_the_others(self):
        a = torch.cat([-conditioned(10.0), conditioned(10.0)])
        b = normal(2, 20, seed=1)
        solution = conjugate_gradient(Dense(a), b, rtol=1e-10, max_iterations=50)
        assert solution.status.tolist() == [CGStatus.NEGATIVE_CURVATURE, CGStatus.CONVERGED]
        assert relative_error(solution.x[1:], direct(a[1:], b[1:])) <= 10 * (1e-10 + 50 * EPS)

    def test_the_zero_operator_is_not_positive_definite(self):
        solution = conjugate_gradient(Scaled(Identity(), 0.0), normal(1, 5, seed=1))
        assert solution.status.item() == CGStatus.NEGATIVE_CURVATURE
        assert torch.equal(solution.x, torch.zeros_like(solution.x))


def test_an_operator_that_breaks_later_keeps_the_last_sound_iterate():
    a, b = conditioned(1e3), normal(1, 20, seed=1)

    class Breaks(Dense):
        def matvec(self, v):
            return super().matvec(v) * (torch.nan if self.products > 3 else 1.0)

    solution = conjugate_gradient(Breaks(a), b, rtol=1e-10, max_iterations=50)
    expected = conjugate_gradient(Dense(a), b, rtol=1e-10, max_iterations=3)
    assert solution.status.item() == CGStatus.NON_FINITE
    assert solution.iterations.item() == 3
    assert torch.equal(solution.x, expected.x)
    assert torch.equal(solution.residual, expected.residual)


class TestOverflow:
    def test_a_step_that_the_dtype_cannot_hold_is_no_convergence(self):
        b = normal(1, 5, seed=1, dtype=torch.float32)
        solution = conjugate_gradient(Scaled(Identity(), 1e-42), b)  # the solution is near 1e42
        assert solution.status.item() == CGStatus.NON_FINITE
        assert torch.equal(solution.x, torch.zeros_like(b))

    def test_a_later_one_keeps_the_last_sound_iterate(self):
        b = torch.ones(1, 2, dtype=torch.float32)
        solution = conjugate_gradient(Diagonal(torch.tensor([1.0, 1e-42])), b, rtol=1e-6)
        assert solution.status.item() == CGStatus.NON_FINITE
        assert solution.iterations.item() == 1
        assert solution.x.tolist() == [[2.0, 2.0]]  # the first step: <b, b> / <b, A b> = 2
        assert solution.residual.tolist() == [[-1.0, 1.0]]


LIMIT = 5000


def _bound(condition, rtol, iterations, n, eps=EPS):
    return condition * (rtol + (iterations + n) * eps)


@pytest.mark.parametrize("reorthogonalise", [True, False])
@pytest.mark.parametrize("condition", [1.0, 1e1, 1e2, 1e4, 1e6, 1e8])
def test_equals_the_direct_solve(condition, reorthogonalise):
    a, b = conditioned(condition), normal(1, 20, seed=1)
    solution = conjugate_gradient(Dense(a), b, rtol=1e-12, max_iterations=LIMIT, reorthogonalise=reorthogonalise)
    assert solution.status.tolist() == [CGStatus.CONVERGED]
    assert relative_error(solution.x, direct(a, b)) <= _bound(condition, 1e-12, solution.iterations.item(), 20)


def test_orthogonal_residuals_make_a_truncated_solve_reproducible():
    # a few large eigenvalues over a flat bulk, as a Fisher matrix has: textbook CG finds them again and again
    values = torch.cat([torch.ones(180), torch.logspace(1, 7, 20)])
    a, b = symmetric(values, 5), normal(1, 200, seed=6)
    nearby = b * (1 + 1e-15 * normal(1, 200, seed=7))
    moved = {}
    for reorthogonalise in (True, False):
        settings = {"rtol": 0.0, "max_iterations": 20, "reorthogonalise": reorthogonalise}
        x = conjugate_gradient(Dense(a), b, **settings).x
        moved[reorthogonalise] = relative_error(conjugate_gradient(Dense(a), nearby, **settings).x, x)
    assert moved[True] <= 1e-9 < 1e-5 <= moved[False], moved


SCALES = {
    torch.float64: [(a, b) for a in (1e-12, 1e-9, 1.0, 1e12) for b in (1e-12, 1.0, 1e12)],
    torch.float32: [(1e-30, 1.0), (1.0, 1e-30), (1.0, 1e30), (1e-30, 1e-30)],
}


@pytest.mark.parametrize(
    ("dtype", "operator_scale", "b_scale"), [(dtype, *pair) for dtype, pairs in SCALES.items() for pair in pairs]
)
def test_no_accuracy_is_lost_at_any_scale(dtype, operator_scale, b_scale):
    # an absolute epsilon beside a division loses 5e-2 at operator scale 1e-9 and 0.6 at 1e-12
    a, b = conditioned(10.0).to(dtype) * operator_scale, normal(1, 20, dtype=dtype) * b_scale
    # 1e-6 cannot be met below the drift of float32, so the bound counts its eps twice over
    rtol = 1e-14 if dtype == torch.float64 else 1e-6
    solution = conjugate_gradient(Dense(a), b, rtol=rtol, max_iterations=100)
    assert solution.x.dtype == dtype
    assert solution.status.tolist() == [CGStatus.CONVERGED]
    bound = _bound(10.0, rtol, solution.iterations.item(), 20, torch.finfo(dtype).eps)
    assert relative_error(solution.x, direct(a, b)) <= bound


@pytest.mark.parametrize("b_scale", [1.0, 2.0**-600, 2.0**600])  # whose squares float64 cannot hold
def test_one_entry_alone_is_scaled_and_measured(b_scale):
    """One step on b = e_1: x = b / a_11, and what remains of b is a column of A without its diagonal, over a_11."""
    a = conditioned(1e2)
    b = torch.zeros(1, 20, dtype=torch.float64)
    b[0, 0] = b_scale
    solution = conjugate_gradient(Dense(a), b, rtol=1e-6, max_iterations=1)
    assert solution.status.tolist() == [CGStatus.ITERATION_LIMIT]
    assert torch.allclose(solution.x, b / a[0, 0, 0], rtol=1e-14, atol=0.0)
    expected = a[0, 1:, 0].norm() / a[0, 0, 0]
    assert solution.relative_residual.item() == pytest.approx(expected.item(), rel=1e-12)


@pytest.mark.parametrize("exponent", [-200, -40, 40, 200])
def test_a_power_of_two_passes_through_untouched(exponent):
    a, b = conditioned(1e4), normal(1, 20, seed=1)
    plain = conjugate_gradient(Dense(a), b, rtol=1e-10, max_iterations=100)
    of_b = conjugate_gradient(Dense(a), b * 2.0**exponent, rtol=1e-10, max_iterations=100)
    of_a = conjugate_gradient(Scaled(Dense(a), 2.0**exponent), b, rtol=1e-10, max_iterations=100)
    assert torch.equal(of_b.x, plain.x * 2.0**exponent)
    assert torch.equal(of_b.residual, plain.residual * 2.0**exponent)
    assert torch.equal(of_a.x, plain.x * 2.0**-exponent)
    assert torch.equal(of_a.residual, plain.residual)
    assert of_b.iterations.tolist() == of_a.iterations.tolist() == plain.iterations.tolist()


@pytest.mark.parametrize("rank", [1, 5, 19])
def test_a_singular_consistent_system_gives_the_shortest_solution(rank):
    values = torch.cat([torch.zeros(20 - rank), torch.linspace(1.0, 10.0, rank)])
    a = symmetric(values, 3)
    b = (a @ normal(1, 20, seed=4)[..., None])[..., 0]
    solution = conjugate_gradient(Dense(a), b, rtol=1e-12, max_iterations=100)
    shortest = (torch.linalg.pinv(a, rtol=1e-10, hermitian=True) @ b[..., None])[..., 0]
    assert solution.status.tolist() == [CGStatus.CONVERGED]
    # rounding puts b and the products off the range of A by eps |x|, where nothing damps it
    assert relative_error(solution.x, shortest) <= _bound(10.0, 1e-12, 100, 20)


class TestOrthogonalResiduals:
    """Three eigenvalues stand over a cluster at 1: when the last is met, the residual falls by 10^3 and what one pass
    of Gram-Schmidt leaves of the earlier residuals, eps times the old length, is that much of the new one."""

    N, K = 60, 8
    EPS32 = torch.finfo(torch.float32).eps

    def system(self, seed, jacobi):
        """A (1, n, n), b (1, n) and the diagonal of M^-1, in float32; M^-1 A has one spectrum with and without
        ``jacobi``."""
        cluster = 1 + 1e-3 * torch.rand(self.N - 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        root = torch.logspace(0, 2 if jacobi else 0, self.N, dtype=torch.float64).sqrt()
        spread = symmetric(torch.cat([cluster, torch.tensor([1e2, 1e4, 1e6]).double()]), seed)
        a, b = (root[:, None] * spread * root).float(), root * normal(1, self.N, seed=seed)
        return a, b.float(), (1 / root.square()).float()

    def largest_cosine(self, residuals, inverse):
        """Of the angles between residuals (k, n) in the inner product of M^-1, in float64."""
        scaled = residuals.double() * inverse.double().sqrt()
        scaled = scaled / scaled.norm(dim=1, keepdim=True)
        return (scaled @ scaled.T - torch.eye(len(scaled), dtype=torch.float64)).abs().max().item()

    def literal(self, a, b, inverse, passes):
        """Residuals of preconditioned CG with ``passes`` of Gram-Schmidt, nothing else added."""
        r, z = b, inverse * b
        d, past_r, past_z, residuals = z, [], [], [r]
        while len(residuals) < self.K:
            rz = (r.double() @ z.double().mT).item()
            past_r, past_z = [*past_r, r / rz**0.5], [*past_z, z / rz**0.5]
            product = (a * d[:, None, :]).sum(-1)
            r = r - rz / (d.double() @ product.double().mT).item() * product
            for _ in range(passes):
                r = r - (r @ torch.cat(past_z).mT) @ torch.cat(past_r)
            z = inverse * r
            d = z + (r.double() @ z.double().mT).item() / rz * d
            residuals.append(r)
        return torch.cat(residuals)

    @pytest.mark.parametrize("jacobi", [False, True])
    def test_need_two_passes_where_the_residual_falls_at_once(self, jacobi):
        solution, two, one = [], [], []
        for seed in range(5, 10):
            a, b, inverse = self.system(seed, jacobi)
            solve = partial(conjugate_gradient, Dense(a), b, preconditioner=Diagonal(inverse), rtol=0.0)
            residuals = torch.cat([solve(max_iterations=k).residual for k in range(self.K)])
            solution.append(self.largest_cosine(residuals, inverse))
            two.append(self.largest_cosine(self.literal(a, b, inverse, 2), inverse))
            one.append(self.largest_cosine(self.literal(a, b, inverse, 1), inverse))
        bound = self.K * self.EPS32
        assert max(*solution, *two) <= bound
        assert max(one) >= 100 * bound
