"""Batched preconditioned conjugate gradients: one linear system an item, one verdict an item.

Method: M. Hestenes and E. Stiefel (1952); preconditioned form as in Y. Saad, "Iterative Methods for Sparse Linear
Systems", algorithm 9.1. Five choices that a reader may not expect:

1. Inner products are taken in float64 and each item is first scaled by a power of two near ``max |b|``, so nothing
   depends on the absolute size of ``b`` or of the operator, and no additive epsilon guards a division.
2. An item that has converged or broken down keeps its iterate while its neighbours go on; nothing is averaged over
   the batch.
3. Nothing is updated in place, so a preconditioner may return its argument.
4. Residuals are kept orthogonal to all earlier ones (by Gram-Schmidt in the preconditioner's inner product), as they
   are in exact arithmetic. Textbook CG loses this after a few iterations, and a *truncated* solve then returns its
   rounding errors: stopped after 20 iterations, a 1e-15 change of an input moved FRInGe's map by 9 % in float64
   (docs/solver.md). The price is two stored vectors an iteration; ``reorthogonalise=False`` is textbook CG.
5. The residual is the recursive one: what it says of very long runs is only as good as their rounding.
"""

from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from fringe.linalg._operators import LinearOperator


class CGStatus(IntEnum):
    """How the solve of one item ended."""

    CONVERGED = 0
    ITERATION_LIMIT = 1
    NEGATIVE_CURVATURE = 2
    NON_FINITE = 3


@dataclass(frozen=True)
class CGSolution:
    """``x`` and ``residual`` = b - A x: (B, *S); the rest (B,): ``relative_residual`` = |r| / |b| (0 for b = 0),
    ``iterations`` done, ``status`` (a :class:`CGStatus` value)."""

    x: Tensor
    residual: Tensor
    relative_residual: Tensor
    iterations: Tensor
    status: Tensor


def inner_product(a: Tensor, b: Tensor) -> Tensor:
    """Euclidean inner product of each item: (B, *S), (B, *S) -> (B,), in float64 where the device has it."""
    wide = torch.float32 if a.device.type == "mps" else torch.float64
    return (a.to(wide) * b.to(wide)).flatten(1).sum(1)


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
    """Solve ``A x = b`` for each item, until ``|b - A x| <= rtol |b|`` or ``max_iterations``.

    ``b`` and ``x0`` are (B, *S); ``operator`` must be symmetric positive definite and ``preconditioner``, an
    approximate inverse of it, too. An iteration costs one product with the operator; a warm start ``x0`` costs one
    more. On negative curvature, or when a number is no longer finite, the item keeps its last sound iterate.
    """
    largest = b.abs().flatten(1).amax(1)  # NaN and inf propagate to it
    usable = torch.isfinite(largest)
    power_of_two = torch.ldexp(torch.ones_like(largest), torch.frexp(largest)[1] - 1)
    scale = _rows(torch.where(usable & (largest > 0), power_of_two, 1.0), b)
    b = torch.where(_rows(usable, b), b / scale, 0.0)
    x, r = _start(operator, b, None if x0 is None else x0 / scale)

    norm_b = inner_product(b, b).sqrt()
    tolerance = rtol * norm_b
    norm_r = inner_product(r, r).sqrt()
    active = norm_r > tolerance
    status = torch.where(usable, int(CGStatus.CONVERGED), int(CGStatus.NON_FINITE))
    iterations = torch.zeros_like(status)
    z, rz, definite = _precondition(preconditioner, r)
    d = z
    past = _PastResiduals(b, max_iterations if reorthogonalise else 0)
    for _ in range(max_iterations):
        if not bool(active.any()):  # the one host synchronisation of an iteration
            break
        product = operator.matvec(d)
        curvature = inner_product(d, product)
        bent = curvature <= 0
        step = torch.where(bent, 0.0, rz / curvature).to(b.dtype)
        finite = torch.isfinite(curvature) & torch.isfinite(rz) & torch.isfinite(step)
        status = torch.where(active & ~finite, int(CGStatus.NON_FINITE), status)
        status = torch.where(active & finite & bent, int(CGStatus.NEGATIVE_CURVATURE), status)
        active = active & finite & ~bent
        moved = _rows(active, b)
        past.append(torch.where(moved, r, 0.0), torch.where(moved, z, 0.0), torch.where(active, rz, 1.0), definite)
        alpha = _rows(torch.where(active, step, 0.0), b)
        x = torch.where(moved, x + alpha * d, x)
        r = torch.where(moved, past.remove_from(r - alpha * product), r)
        iterations = iterations + active
        norm_r = torch.where(active, inner_product(r, r).sqrt(), norm_r)
        active = active & (norm_r > tolerance)
        z, rz_next, definite = _precondition(preconditioner, r)
        d = z + _rows(torch.where(active, rz_next / rz, 0.0), b).to(b.dtype) * d
        rz = rz_next
    status = torch.where(active, int(CGStatus.ITERATION_LIMIT), status)
    relative = torch.where(norm_b > 0, norm_r / norm_b, 0.0)
    return _in_range(CGSolution(x * scale, r * scale, relative, iterations, status), b * scale)


def _in_range(found: CGSolution, b: Tensor) -> CGSolution:
    """``found``, or zero and NON_FINITE for an item whose numbers left the range of the dtype."""
    held = torch.isfinite(found.x).flatten(1).all(1) & torch.isfinite(found.residual).flatten(1).all(1)
    return CGSolution(
        torch.where(_rows(held, b), found.x, 0.0),
        torch.where(_rows(held, b), found.residual, b),
        torch.where(held, found.relative_residual, 1.0),
        found.iterations,
        torch.where(held, found.status, int(CGStatus.NON_FINITE)),
    )


class _PastResiduals:
    """Residuals r_i and M^-1 r_i so far, scaled so that <r_i, M^-1 r_i> = 1; room for ``capacity`` of them.

    They are orthogonal only under one M: an item that ever went without its preconditioner is left as it is.
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
        """``r`` (B, *S) less its components along the past ones; twice, which is enough (Giraud et al. 2005)."""
        if not self._count:
            return r
        past_r, past_z = self._r[:, : self._count], self._z[:, : self._count]
        flat = r.flatten(1)[:, None]
        for _ in range(2):
            along = torch.where(self._orthogonal[:, None, None], flat @ past_z.mT, 0.0)
            flat = flat - along @ past_r
        return flat.view_as(r)


def _start(operator: LinearOperator, b: Tensor, x0: Tensor | None) -> tuple[Tensor, Tensor]:
    """First iterate and residual. A warm start is dropped for an item where it is not finite, or where b = 0."""
    if x0 is None:
        return torch.zeros_like(b), b
    r = b - operator.matvec(x0)
    sound = torch.isfinite(r).flatten(1).all(1) & torch.isfinite(x0).flatten(1).all(1) & (b != 0).flatten(1).any(1)
    keep = _rows(sound, b)
    return torch.where(keep, x0, 0.0), torch.where(keep, r, b)


def _precondition(preconditioner: LinearOperator | None, r: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``z = M^-1 r``, <r, z>, and whether M is definite there: plain ``z = r`` for an item where it is not."""
    if preconditioner is None:
        rr = inner_product(r, r)
        return r, rr, torch.ones_like(rr, dtype=torch.bool)
    z = preconditioner.matvec(r)
    rz = inner_product(r, z)
    definite = rz > 0
    z = torch.where(_rows(definite, r), z, r)
    return z, torch.where(definite, rz, inner_product(r, r)), definite


def _rows(per_item: Tensor, like: Tensor) -> Tensor:
    return per_item.view(-1, *[1] * (like.dim() - 1))
