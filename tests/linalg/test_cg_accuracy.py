"""The numbers of conjugate gradients: against a direct solve, over conditions, scales and spectra.

Tolerance. With a stop at |r| <= rtol |b| and a recursive residual that drifts from b - A x by at most about
k eps |A| |x| in k iterations (Greenbaum 1997), |x - x*| <= |A^-1| |b - A x| gives a relative error of at most
condition * (rtol + k eps); the direct solve itself errs by about n eps condition, hence ``_bound``.
"""

from itertools import pairwise

import pytest
import torch
from dense_systems import EPS, Dense, conditioned, direct, normal, relative_error, symmetric

from fringe.linalg import CGStatus, Scaled, conjugate_gradient

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
    of_a = conjugate_gradient(Scaled(Dense(a), 2.0**exponent), b, rtol=1e-10, max_iterations=100)
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
