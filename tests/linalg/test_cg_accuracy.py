"""The numbers of conjugate gradients: against a direct solve, over conditions, scales and spectra.

Tolerance. With a stop at |r| <= rtol |b| and a recursive residual that drifts from b - A x by at most about
k eps |A| |x| in k iterations (Greenbaum 1997), |x - x*| <= |A^-1| |b - A x| gives a relative error of at most
condition * (rtol + k eps); the direct solve itself errs by about n eps condition, hence ``_bound``.
"""

from functools import partial
from itertools import pairwise

import pytest
import torch
from dense_systems import EPS, Dense, Diagonal, conditioned, direct, normal, relative_error, symmetric

from fringe.linalg import CGStatus, ScaledOperator, conjugate_gradient

LIMIT = 5000


def _bound(condition, rtol, iterations, n, eps=EPS):
    return condition * (rtol + (iterations + n) * eps)


@pytest.mark.parametrize("reorthogonalise", [True, False])
@pytest.mark.parametrize("condition", [1.0, 1e1, 1e2, 1e4, 1e6, 1e8])
def test_equals_the_direct_solve(condition, reorthogonalise):
    a, b = conditioned(condition), normal((1, 20), 1)
    found = conjugate_gradient(Dense(a), b, rtol=1e-12, max_iterations=LIMIT, reorthogonalise=reorthogonalise)
    assert found.status.tolist() == [CGStatus.CONVERGED]
    assert relative_error(found.x, direct(a, b)) <= _bound(condition, 1e-12, found.iterations.item(), 20)


@pytest.mark.parametrize("condition", [1e4, 1e6, 1e8])
def test_orthogonal_residuals_end_in_as_many_steps_as_dimensions(condition):
    a, b = conditioned(condition), normal((1, 20), 1)
    textbook = conjugate_gradient(Dense(a), b, rtol=1e-12, max_iterations=LIMIT, reorthogonalise=False)
    found = conjugate_gradient(Dense(a), b, rtol=1e-12, max_iterations=LIMIT)
    assert found.iterations.item() <= 20 < textbook.iterations.item()


def test_orthogonal_residuals_make_a_truncated_solve_reproducible():
    # a few large eigenvalues over a flat bulk, as a Fisher matrix has: textbook CG finds them again and again
    values = torch.cat([torch.ones(180), torch.logspace(1, 7, 20)])
    a, b = symmetric(values, 5), normal((1, 200), 6)
    nearby = b * (1 + 1e-15 * normal((1, 200), 7))
    moved = {}
    for reorthogonalise in (True, False):
        settings = {"rtol": 0.0, "max_iterations": 20, "reorthogonalise": reorthogonalise}
        x = conjugate_gradient(Dense(a), b, **settings).x
        moved[reorthogonalise] = relative_error(conjugate_gradient(Dense(a), nearby, **settings).x, x)
    assert moved[True] <= 1e-6 < 1e-4 <= moved[False], moved


@pytest.mark.parametrize("condition", [1e1, 1e4, 1e8])
def test_reports_the_residual_that_a_product_shows(condition):
    a, b = conditioned(condition), normal((1, 20), 1)
    found = conjugate_gradient(Dense(a), b, rtol=1e-6, max_iterations=LIMIT)
    true = b - (a @ found.x[..., None])[..., 0]
    drift = (found.iterations.item() + 20) * EPS * found.x.norm()  # |A| = 1
    assert (found.residual - true).norm() <= drift
    assert abs(found.relative_residual.item() - (true.norm() / b.norm()).item()) <= drift / b.norm()
    assert found.relative_residual.item() <= 1e-6


@pytest.mark.parametrize("operator_scale", [1e-12, 1e-9, 1.0, 1e12])
@pytest.mark.parametrize("b_scale", [1e-12, 1.0, 1e12])
def test_no_accuracy_is_lost_at_any_scale(operator_scale, b_scale):
    # an absolute epsilon beside a division loses 5e-2 at operator scale 1e-9 and 0.6 at 1e-12
    a, b = conditioned(10.0) * operator_scale, normal((1, 20), 1) * b_scale
    found = conjugate_gradient(Dense(a), b, rtol=1e-14, max_iterations=100)
    assert found.status.tolist() == [CGStatus.CONVERGED]
    assert relative_error(found.x, direct(a, b)) <= _bound(10.0, 1e-14, found.iterations.item(), 20)


@pytest.mark.parametrize(("operator_scale", "b_scale"), [(1e-30, 1.0), (1.0, 1e-30), (1.0, 1e30), (1e-30, 1e-30)])
def test_no_accuracy_is_lost_at_any_scale_in_float32(operator_scale, b_scale):
    a, b = conditioned(10.0).float() * operator_scale, normal((1, 20), 1, torch.float32) * b_scale
    found = conjugate_gradient(Dense(a), b, rtol=1e-6, max_iterations=100)
    eps = torch.finfo(torch.float32).eps
    assert found.x.dtype == torch.float32
    assert found.status.tolist() == [CGStatus.CONVERGED]
    # 1e-6 cannot be met below the drift of float32, so the bound counts its eps twice over
    assert relative_error(found.x, direct(a, b)) <= _bound(10.0, 1e-6, found.iterations.item(), 20, eps)


@pytest.mark.parametrize("exponent", [-200, -40, 40, 200])
def test_a_power_of_two_passes_through_untouched(exponent):
    a, b = conditioned(1e4), normal((1, 20), 1)
    plain = conjugate_gradient(Dense(a), b, rtol=1e-10, max_iterations=100)
    of_b = conjugate_gradient(Dense(a), b * 2.0**exponent, rtol=1e-10, max_iterations=100)
    of_a = conjugate_gradient(ScaledOperator(Dense(a), 2.0**exponent), b, rtol=1e-10, max_iterations=100)
    assert torch.equal(of_b.x, plain.x * 2.0**exponent)
    assert torch.equal(of_b.residual, plain.residual * 2.0**exponent)
    assert torch.equal(of_a.x, plain.x * 2.0**-exponent)
    assert torch.equal(of_a.residual, plain.residual)
    assert of_b.iterations.tolist() == of_a.iterations.tolist() == plain.iterations.tolist()


@pytest.mark.parametrize("distinct", [1, 2, 3, 5, 8])
def test_ends_after_as_many_steps_as_there_are_distinct_eigenvalues(distinct):
    values = torch.linspace(1.0, 4.0, distinct).repeat(24 // distinct + 1)[:24]
    a, b = symmetric(values), normal((1, 24), 2)
    found = conjugate_gradient(Dense(a), b, rtol=1e-10, max_iterations=100)
    assert found.iterations.item() == distinct
    assert relative_error(found.x, direct(a, b)) <= _bound(4.0, 1e-10, distinct, 24)


def test_each_step_reduces_the_error_in_the_energy_norm():
    a, b = conditioned(1e6), normal((1, 20), 1)
    exact = direct(a, b)
    energies = []
    for steps in range(12):
        e = conjugate_gradient(Dense(a), b, rtol=0.0, max_iterations=steps).x - exact
        energies.append((e * (a @ e[..., None])[..., 0]).sum().item())
    assert all(after < before for before, after in pairwise(energies))


@pytest.mark.parametrize("rank", [1, 5, 19])
def test_a_singular_consistent_system_gives_the_shortest_solution(rank):
    values = torch.cat([torch.zeros(20 - rank), torch.linspace(1.0, 10.0, rank)])
    a = symmetric(values, 3)
    b = (a @ normal((1, 20), 4)[..., None])[..., 0]
    found = conjugate_gradient(Dense(a), b, rtol=1e-12, max_iterations=100)
    shortest = (torch.linalg.pinv(a, rtol=1e-10, hermitian=True) @ b[..., None])[..., 0]
    assert found.status.tolist() == [CGStatus.CONVERGED]
    # rounding puts b and the products off the range of A by eps |x|, where nothing damps it
    assert relative_error(found.x, shortest) <= _bound(10.0, 1e-12, 100, 20)


def test_trailing_shapes_are_one_vector_an_item():
    a, b = conditioned(1e3, n=12), normal((1, 12), 1)

    class OnImages:
        def matvec(self, v):
            return Dense(a).matvec(v.flatten(1)).reshape(v.shape)

    flat = conjugate_gradient(Dense(a), b, rtol=1e-10, max_iterations=100)
    image = conjugate_gradient(OnImages(), b.view(1, 3, 2, 2), rtol=1e-10, max_iterations=100)
    assert torch.equal(image.x.flatten(1), flat.x)
    assert torch.equal(image.relative_residual, flat.relative_residual)


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
        a, b = (root[:, None] * spread * root).float(), root * normal((1, self.N), seed)
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
        found, two, one = [], [], []
        for seed in range(5, 10):
            a, b, inverse = self.system(seed, jacobi)
            solve = partial(conjugate_gradient, Dense(a), b, preconditioner=Diagonal(inverse), rtol=0.0)
            residuals = torch.cat([solve(max_iterations=k).residual for k in range(self.K)])
            found.append(self.largest_cosine(residuals, inverse))
            two.append(self.largest_cosine(self.literal(a, b, inverse, 2), inverse))
            one.append(self.largest_cosine(self.literal(a, b, inverse, 1), inverse))
        bound = self.K * self.EPS32
        assert max(*found, *two) <= bound
        assert max(one) >= 100 * bound
