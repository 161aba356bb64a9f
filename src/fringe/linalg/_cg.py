"""Batched preconditioned conjugate gradients: one linear system and one status per item.

Method: M. Hestenes and E. Stiefel (1952); preconditioned form as in Y. Saad, "Iterative Methods for Sparse Linear
Systems", algorithm 9.1. Five choices differ from a textbook:

1. Inner products are taken in float64 and each item is first scaled by a power of two near ``max |b|``, so nothing
   depends on the absolute size of ``b`` or of the operator, and no additive epsilon guards a division.
2. An item that has converged or broken down keeps its iterate while the others continue; nothing is averaged over
   the batch.
3. Nothing is updated in place, so a preconditioner may return its argument.
4. Residuals are kept orthogonal to all earlier ones (by Gram-Schmidt in the preconditioner's inner product), as they
   are in exact arithmetic. Textbook CG loses this after a few iterations, and a *truncated* solve then returns its
   rounding errors: stopped after 20 iterations, a 1e-15 change of an input moved FRInGe's map by 9 % in float64
   (docs/conjugate-gradients.md). The price is two vectors per iteration; ``reorthogonalise=False`` is textbook CG.
5. The residual is the recursive one, so in very long runs it carries their rounding errors.
"""

from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from fringe.linalg._operators import LinearOperator, batch_view


class CGStatus(IntEnum):
    """How the solve of one item ended."""

    CONVERGED = 0
    ITERATION_LIMIT = 1
    NEGATIVE_CURVATURE = 2
    NON_FINITE = 3


@dataclass(frozen=True)
class CGSolution:
    """Solution of a batch of B linear systems.

    Attributes:
        x: Last valid iterate (B, *S).
        residual: ``b - A x`` (B, *S).
        relative_residual: ``|b - A x| / |b|`` (B,); 0 for b = 0.
        iterations: Number of iterations (B,).
        status: How each solve ended (B,): a :class:`CGStatus` value.
    """

    x: Tensor
    residual: Tensor
    relative_residual: Tensor
    iterations: Tensor
    status: Tensor


def inner_product(a: Tensor, b: Tensor) -> Tensor:
    """Return the Euclidean inner product of each item: (B, *S), (B, *S) -> (B,), in float64."""
    if a.device.type == "cpu":  # item by item: the float64 copies of one item fit in the cache
        return torch.stack([torch.dot(x.double(), y.double()) for x, y in zip(a.flatten(1), b.flatten(1), strict=True)])
    return (a.double() * b.double()).flatten(1).sum(1)


def conjugate_gradient(
    operator: LinearOperator,
    b: Tensor,
    *,
    preconditioner: LinearOperator | None = None,
    x0: Tensor | None = None,
    rtol: float = 1e-3,
    max_iterations: int = 20,
    reorthogonalise: bool = True,
) -> CGSolution:
    """Solve ``A x = b`` for each item of a batch.

    An item with negative curvature or a non-finite number keeps its last valid iterate.

    Args:
        operator: A, symmetric positive definite. One product per iteration.
        b: Right-hand sides (B, *S).
        preconditioner: Symmetric positive definite approximation of the inverse of A.
        x0: First iterate (B, *S), at the cost of one more product; zero if None.
        rtol: An item has converged when ``|b - A x| <= rtol |b|``.
        max_iterations: Maximum number of iterations.
        reorthogonalise: Whether to make each residual orthogonal to all earlier ones (choice 4 above).

    Returns:
        The solution, with a status per item.
    """
    largest = b.abs().flatten(1).amax(1)  # NaN and inf propagate to it
    finite_b = torch.isfinite(largest)
    power_of_two = torch.ldexp(torch.ones_like(largest), torch.frexp(largest)[1] - 1)
    scale = batch_view(torch.where(finite_b & (largest > 0), power_of_two, 1.0), b)
    b = torch.where(batch_view(finite_b, b), b / scale, 0.0)
    x, r = _start(operator, b, None if x0 is None else x0 / scale)

    norm_b = inner_product(b, b).sqrt()
    tolerance = rtol * norm_b
    rr = inner_product(r, r)
    norm_r = rr.sqrt()
    active = norm_r > tolerance
    status = torch.where(finite_b, int(CGStatus.CONVERGED), int(CGStatus.NON_FINITE))
    iterations = torch.zeros_like(status)
    z, rz, definite = _precondition(preconditioner, r, rr)
    d = z
    basis = _ResidualBasis(b, max_iterations if reorthogonalise else 0)
    for _ in range(max_iterations):
        if not bool(active.any()):  # the one host synchronisation of an iteration
            break
        product = operator.matvec(d)
        curvature = inner_product(d, product)
        negative_curvature = curvature <= 0
        step = torch.where(negative_curvature, 0.0, rz / curvature).to(b.dtype)
        finite = torch.isfinite(curvature) & torch.isfinite(rz) & torch.isfinite(step)
        status = torch.where(active & ~finite, int(CGStatus.NON_FINITE), status)
        status = torch.where(active & finite & negative_curvature, int(CGStatus.NEGATIVE_CURVATURE), status)
        active = active & finite & ~negative_curvature
        updated = batch_view(active, b)
        basis.append(torch.where(updated, r, 0.0), torch.where(updated, z, 0.0), torch.where(active, rz, 1.0), definite)
        alpha = batch_view(torch.where(active, step, 0.0), b)
        x = torch.where(updated, x + alpha * d, x)
        r = torch.where(updated, basis.remove_from(r - alpha * product), r)
        iterations = iterations + active
        rr = inner_product(r, r)
        norm_r = torch.where(active, rr.sqrt(), norm_r)
        active = active & (norm_r > tolerance)
        z, rz_next, definite = _precondition(preconditioner, r, rr)
        d = z + batch_view(torch.where(active, rz_next / rz, 0.0), b).to(b.dtype) * d
        rz = rz_next
    status = torch.where(active, int(CGStatus.ITERATION_LIMIT), status)
    relative = torch.where(norm_b > 0, norm_r / norm_b, 0.0)
    return _in_range(CGSolution(x * scale, r * scale, relative, iterations, status), b * scale)


#: Curvature, and size of <r, M^-1 r>, from which on textbook CG divides by them.
TEXTBOOK_LEAST = 1e-8


def textbook_conjugate_gradient(
    operator: LinearOperator,
    b: Tensor,
    *,
    preconditioner: LinearOperator,
    x0: Tensor | None = None,
    rtol: float = 1e-3,
    atol: float = 1e-5,
    max_iterations: int = 20,
) -> CGSolution:
    """Solve ``A x = b`` for each item of a batch by the textbook's recurrence, in the precision of ``b``.

    No residual is made orthogonal again and no definiteness is asked for: with an indefinite preconditioner, or an
    operator that is not symmetric, the result is what the recurrence returns, and rounding grows in it. Source: the
    behaviour of the FRInGe authors' release (github.com/GabMartino/FRInGe), whose tables are made so.

    Args:
        operator: A. One product per iteration.
        b: Right-hand sides (B, *S).
        preconditioner: Approximation of the inverse of A.
        x0: First iterate (B, *S), at the cost of one more product; zero if None.
        rtol: An item has converged when ``|b - A x| <= max(atol, rtol |b|)``.
        atol: See ``rtol``.
        max_iterations: Maximum number of iterations.

    Returns:
        The solution; an item whose curvature is at most ``TEXTBOOK_LEAST`` keeps its iterate.
    """

    def dot(a: Tensor, c: Tensor) -> Tensor:
        return (a * c).flatten(1).sum(1)

    x, r = (torch.zeros_like(b), b) if x0 is None else (x0, b - operator.matvec(x0))
    d = z = preconditioner.matvec(r)
    rz, norm_b = dot(r, z), dot(b, b).sqrt()
    tolerance = (rtol * norm_b).clamp_min(atol)
    active = dot(r, r).sqrt() > tolerance
    status, iterations = torch.zeros_like(active, dtype=torch.long), torch.zeros_like(active, dtype=torch.long)
    for _ in range(max_iterations):
        if not bool(active.any()):
            break
        iterations = iterations + active
        product = operator.matvec(d)
        curvature = dot(d, product)
        curved = curvature > TEXTBOOK_LEAST
        status = torch.where(active & ~curved, int(CGStatus.NEGATIVE_CURVATURE), status)
        alpha = batch_view(torch.where(active & curved, rz / torch.where(curved, curvature, 1.0), 0.0), b)
        x, r = x + alpha * d, r - alpha * product
        active = active & curved & (dot(r, r).sqrt() > tolerance)
        z = preconditioner.matvec(r)
        before, rz = rz, dot(r, z)
        beta = torch.where(active, rz / torch.where(before.abs() > TEXTBOOK_LEAST, before, 1.0), 0.0)
        d = z + batch_view(beta, b) * d
    status = torch.where(active, int(CGStatus.ITERATION_LIMIT), status)
    relative = torch.where(norm_b > 0, dot(r, r).sqrt() / norm_b, 0.0)
    return _in_range(CGSolution(x, r, relative, iterations, status), b)


def _in_range(solution: CGSolution, b: Tensor) -> CGSolution:
    """Set items that overflow the dtype to zero, with status NON_FINITE."""
    finite = _all_finite(solution.x) & _all_finite(solution.residual)
    return CGSolution(
        torch.where(batch_view(finite, b), solution.x, 0.0),
        torch.where(batch_view(finite, b), solution.residual, b),
        torch.where(finite, solution.relative_residual, 1.0),
        solution.iterations,
        torch.where(finite, solution.status, int(CGStatus.NON_FINITE)),
    )


class _ResidualBasis:
    """At most ``capacity`` earlier residuals r_i, with M^-1 r_i, scaled so that <r_i, M^-1 r_i> = 1.

    They are orthogonal only under one M: an item that was ever solved without its preconditioner is left unchanged.
    """

    def __init__(self, like: Tensor, capacity: int):
        self._r = like.new_empty(like.shape[0], capacity, like[0].numel())
        self._z = torch.empty_like(self._r)
        self._count, self._capacity = 0, capacity
        self._orthogonal = torch.ones(like.shape[0], dtype=torch.bool, device=like.device)

    def append(self, r: Tensor, z: Tensor, rz: Tensor, definite: Tensor) -> None:
        self._orthogonal = self._orthogonal & definite
        if self._capacity:
            norm = rz.sqrt()[:, None].to(r.dtype)
            self._r[:, self._count] = r.flatten(1) / norm
            self._z[:, self._count] = z.flatten(1) / norm
            self._count += 1

    def remove_from(self, r: Tensor) -> Tensor:
        """Subtract from ``r`` (B, *S) its components along the basis; twice, which is enough (Giraud et al. 2005)."""
        if not self._count:
            return r
        basis_r, basis_z = self._r[:, : self._count], self._z[:, : self._count]
        flat = r.flatten(1)[:, None]
        for _ in range(2):
            components = torch.where(self._orthogonal[:, None, None], flat @ basis_z.mT, 0.0)
            flat = flat - components @ basis_r
        return flat.view_as(r)


def _start(operator: LinearOperator, b: Tensor, x0: Tensor | None) -> tuple[Tensor, Tensor]:
    """First iterate and residual. An item with a non-finite warm start, or with b = 0, starts from zero."""
    if x0 is None:
        return torch.zeros_like(b), b
    r = b - operator.matvec(x0)
    valid = batch_view(_all_finite(r) & _all_finite(x0) & (b != 0).flatten(1).any(1), b)
    return torch.where(valid, x0, 0.0), torch.where(valid, r, b)


def _precondition(preconditioner: LinearOperator | None, r: Tensor, rr: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``z = M^-1 r``, <r, z>, and whether M is positive definite along r; if not, ``z = r`` for that item. ``rr`` is
    <r, r>."""
    if preconditioner is None:
        return r, rr, torch.ones_like(rr, dtype=torch.bool)
    z = preconditioner.matvec(r)
    rz = inner_product(r, z)
    definite = rz > 0
    return torch.where(batch_view(definite, r), z, r), torch.where(definite, rz, rr), definite


def _all_finite(x: Tensor) -> Tensor:
    """Whether all entries of each item of ``x`` (B, *S) are finite: (B,)."""
    return torch.isfinite(x).flatten(1).all(1)
