r"""Linear algebra by products: symmetric positive semidefinite operators, and batched conjugate gradients.

``v`` and the product are ``(B, *S)``; an operator acts on each of the B items separately.

Operators on a regular grid are diagonal in the eigenbasis of the discrete Laplacian. Its second-difference matrix has a
known orthonormal eigenbasis ``V`` for each boundary rule:

=============  ==============================  ====================================
``boundary``   beyond the edge the signal is   eigenvectors
=============  ==============================  ====================================
``neumann``    mirrored, edge sample repeated  cosines at half samples (DCT-II)
``dirichlet``  zero                            sines (DST-I)
``periodic``   wrapped around                  the real Fourier basis
``reflect``    mirrored, edge sample once      cosines at whole samples (DCT-I)
=============  ==============================  ====================================

With ``reflect`` the operators are not symmetric: the eigenvectors are orthogonal with half a weight at the edges.

All that FRInGe smooths with - the Laplacian, the biharmonic :math:`L^\top L`, the Gaussian blur and the inverse of
:math:`\lambda I + \gamma L^\top L` - is then one number per mode, the *symbol*: all of them are symmetric and commute,
and are positive definite if and only if their symbol is positive. Source of the eigenbases: G. Strang, "The Discrete
Cosine Transform", SIAM Review 41 (1999).

Conjugate gradients solve one linear system per item, with a status for each.
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

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor

from fringe._numbers.float64 import in_float64
from fringe.errors import InputError, require_choice, warn_caller

Boundary = Literal["neumann", "dirichlet", "periodic", "reflect"]


def batch_view(values: Tensor, like: Tensor) -> Tensor:
    """Reshape ``values`` (B, ...) to (B, ..., 1, ...), so that they broadcast against ``like`` (B, ..., *S)."""
    return values.view(*values.shape, *[1] * (like.dim() - values.dim()))


def add_rows(total: Tensor, rows: Tensor, values: Tensor) -> Tensor:
    """Add ``values`` (L, *S) to ``total`` (B, *S), in place, at ``rows`` (L,), in which a row may occur more than once.

    ``index_add_`` does so on a GPU in another order each time, and so in other digits.
    """
    if total.is_cuda:
        return total.index_put_((rows,), values, accumulate=True)
    return total.index_add_(0, rows, values)


def grid_cells(space: torch.Size, cells: int) -> Tensor:
    """Return the number of the cell of each pixel: a grid of ``cells`` along each axis of ``space``, at most one for
    each pixel; their sizes differ by one where ``cells`` does not divide an axis."""
    number = torch.zeros((), dtype=torch.int64)
    for axis, size in enumerate(space):
        count = min(cells, size)
        along = torch.arange(size) * count // size
        number = number * count + along.view(-1, *[1] * (len(space) - axis - 1))
    return number.expand(space).contiguous()


class LinearOperator(Protocol):
    """A symmetric positive semidefinite map of ``(B, *S)`` to ``(B, *S)``, item by item."""

    def matvec(self, v: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class SumOperator:
    """``v -> A_1 v + … + A_m v``."""

    operators: tuple[LinearOperator, ...]

    def matvec(self, v: Tensor) -> Tensor:
        first, *rest = self.operators
        total = first.matvec(v)
        for operator in rest:
            total = total + operator.matvec(v)
        return total


@dataclass(frozen=True)
class SpectralOperator:
    """``v -> V diag(symbol) V^-1 v`` over the trailing axes of ``v`` (..., *sizes).

    ``bases[i]`` is V^-1 ``(N_i, N_i)`` of an axis, with one mode per row, and orthonormal unless ``inverses`` has V;
    without ``bases``, V^-1 of each axis is the DCT-II, by FFTs. ``symbol`` has shape ``(N_1, …, N_d)``, d <= 2.
    """

    bases: tuple[Tensor, ...]
    symbol: Tensor
    inverses: tuple[Tensor, ...] | None = None

    def matvec(self, v: Tensor) -> Tensor:
        return self.from_modes(self.symbol * self.to_modes(v))

    def to_modes(self, v: Tensor) -> Tensor:
        """Return ``V^-1 v``, the coefficients (..., *sizes) of ``v`` in the eigenbasis; an orthonormal one preserves
        inner products."""
        return _transformed(v, self.bases) if self.bases else _on_axes(_cosine_modes, v, self.symbol.dim())

    def from_modes(self, coefficients: Tensor) -> Tensor:
        """Return ``V c``, the inverse of :meth:`to_modes`."""
        if not self.bases:
            return _on_axes(_from_cosine_modes, coefficients, self.symbol.dim())
        inverses = tuple(basis.mT for basis in self.bases) if self.inverses is None else self.inverses
        return _transformed(coefficients, inverses)


def _transformed(v: Tensor, matrices: tuple[Tensor, ...]) -> Tensor:
    """Multiply each of the trailing axes of ``v`` (..., *sizes) by its matrix."""
    match matrices:
        case (rows, columns):
            return rows @ v @ columns.mT
        case (matrix,):
            return v @ matrix.mT
        case _:
            return v


#: Samples of each axis from which on FFTs take less time than matrix products: measured on a CPU, 1.5 times as fast for
#: 512 x 512, 2.2 to 2.8 times for 1024 x 1024.
FFT_FROM = 512


def _on_axes(transform: Callable[[Tensor], Tensor], v: Tensor, axes: int) -> Tensor:
    """``transform``, of the last axis, on each of the last ``axes`` (0, 1 or 2) axes."""
    v = transform(v) if axes else v
    return transform(v.mT).mT if axes == 2 else v


def _cosine_phases(n: int, like: Tensor) -> Tensor:
    """``exp(-i pi k / 2n)`` times the norm of mode k, for k = 0 ... n // 2."""
    k = torch.arange(n // 2 + 1, dtype=torch.float64)
    norm = torch.full_like(k, math.sqrt(2.0 / n))
    norm[0] = math.sqrt(1.0 / n)
    return torch.polar(norm, -0.5 * math.pi / n * k).to(like.device, like.dtype.to_complex())


def _cosine_modes(v: Tensor) -> Tensor:
    """The orthonormal DCT-II of the last axis by one real FFT (J. Makhoul, IEEE Trans. ASSP 28, 1980)."""
    n = v.shape[-1]
    modes = torch.fft.rfft(torch.cat((v[..., ::2], v[..., 1::2].flip(-1)), -1)) * _cosine_phases(n, v)
    return torch.cat((modes.real, -modes.imag[..., 1 : (n + 1) // 2].flip(-1)), -1)


def _from_cosine_modes(modes: Tensor) -> Tensor:
    """The inverse of :func:`_cosine_modes`."""
    n = modes.shape[-1]
    mirrored = torch.cat((torch.zeros_like(modes[..., :1]), modes[..., n - n // 2 :].flip(-1)), -1)
    v = torch.fft.irfft(torch.complex(modes[..., : n // 2 + 1], -mirrored) / _cosine_phases(n, modes), n=n)
    result = torch.empty_like(v)
    result[..., ::2], result[..., 1::2] = v[..., : (n + 1) // 2], v[..., (n + 1) // 2 :].flip(-1)
    return result


@dataclass(frozen=True)
class LaplacianBasis:
    """The eigenbasis of the Laplacian on one grid, and the symbols of operators on that grid.

    Symbols are float64 on the CPU; ``operator`` casts them, with the bases, to the working dtype and device.

    Attributes:
        sizes: Number of samples along each axis, at most 2 axes. Without any (no spatial structure) the Laplacian is
            zero and every blur the identity.
        boundary: The signal beyond the edges.

    Raises:
        InputError: If there are more than 2 axes, or the boundary is unknown.
    """

    sizes: tuple[int, ...]
    boundary: Boundary = "neumann"

    def __post_init__(self) -> None:
        if len(self.sizes) > 2:
            raise InputError(f"a grid has at most 2 axes, got {len(self.sizes)}: {self.sizes}", argument="sizes")
        require_choice("boundary", self.boundary, get_args(Boundary))

    def frequencies(self) -> tuple[Tensor, ...]:
        """Angular frequency of each mode (radians per sample), one tensor (N_i,) per axis."""
        return tuple(_frequencies(self.boundary, n) for n in self.sizes)

    def laplacian(self) -> Tensor:
        """Symbol of L, the negative 3-point (5-point in 2-D) Laplacian at unit spacing: sum of 2 - 2 cos w."""
        total = torch.zeros((), dtype=torch.float64)
        for w in self.frequencies():
            total = total[..., None] + (2.0 - 2.0 * torch.cos(w))
        return total

    def biharmonic(self) -> Tensor:
        """Symbol of ``L^T L`` ("reflect": of L twice)."""
        return self.laplacian().square()

    def gaussian_blur(self, sigma: float, size: int, *, definite: bool = True) -> Tensor:
        """Return the symbol of a normalised Gaussian.

        A truncated Gaussian is not always positive definite (5 taps with sigma 1.5 are not), but a preconditioner of
        CG must be.

        Args:
            sigma: Standard deviation in samples.
            size: Number of taps, odd.
            definite: Whether a kernel that is not positive definite is refused; else a warning says so.

        Raises:
            InputError: If the arguments are out of range, or the truncated kernel is not positive definite.
        """
        if size < 1 or size % 2 == 0 or not 0 < sigma < math.inf:
            raise InputError(f"size must be odd and sigma positive and finite, got size={size}, sigma={sigma}")
        taps = torch.arange(1, size // 2 + 1, dtype=torch.float64)
        weights = torch.exp(-0.5 * (taps / sigma) ** 2)
        total = 1.0 + 2.0 * weights.sum()
        symbol = torch.ones((), dtype=torch.float64)
        for w in self.frequencies():
            one_axis = (1.0 + 2.0 * (torch.cos(w[:, None] * taps) * weights).sum(1)) / total
            symbol = symbol[..., None] * one_axis
        if not bool((symbol > 0).all()):
            fault = f"a kernel of {size} taps truncates sigma={sigma} so that it is not positive definite"
            if definite:
                # the truncated tail exp(-(m+1)^2 / (2 sigma^2)) must be below the smallest mode exp(-(pi sigma)^2 / 2)
                taps_needed = 2 * math.ceil(math.pi * sigma**2) + 1
                hint = f"use more taps (2*ceil(pi*sigma^2)+1 = {taps_needed}) or a smaller sigma"
                if sigma > 2.7:  # above it, that mode is smaller than float64 rounding
                    hint = "use a sigma of at most 2.7: "
                    hint += "the blur of a larger one is singular to rounding, whatever its taps"
                raise InputError(fault, hint=hint)
            least = f"its smallest response is {float(symbol.min()):.3f}, which amplifies rounding"
            warn_caller(f"{fault}: {least}")
        return symbol

    def operator(self, symbol: Tensor, like: Tensor) -> SpectralOperator:
        """Return the operator with this symbol, in the dtype and on the device of ``like``."""
        if self.boundary == "neumann" and self.sizes and min(self.sizes) >= FFT_FROM:
            return SpectralOperator((), symbol.to(like.device, like.dtype))
        axes = zip(self.frequencies(), self.sizes, strict=True)
        bases, inverses = tuple(_modes(self.boundary, w, n) for w, n in axes), None
        if self.boundary == "reflect":
            inverses = tuple(basis.inverse().to(like.device, like.dtype) for basis in bases)
        bases = tuple(basis.to(like.device, like.dtype) for basis in bases)
        return SpectralOperator(bases, symbol.to(like.device, like.dtype), inverses)


def _modes(boundary: Boundary, w: Tensor, n: int) -> Tensor:
    """The modes (n, n) of angular frequencies ``w`` (n,) on an axis, one in each row."""
    k = torch.arange(n, dtype=torch.float64)
    if boundary == "neumann":
        basis = torch.outer(w, k + 0.5).cos_().mul_(math.sqrt(2.0 / n))
        basis[0] /= math.sqrt(2.0)
        return basis
    if boundary == "dirichlet":
        return torch.outer(w, k + 1).sin_().mul_(math.sqrt(2.0 / (n + 1)))
    if boundary == "periodic":
        phase, is_sine = torch.outer(w, k), (k % 2 == 0) & (k > 0)
        basis = torch.where(is_sine[:, None], torch.sin(phase), torch.cos(phase))
        return basis / basis.norm(dim=1, keepdim=True)
    edges = torch.ones(n, dtype=torch.float64)
    edges[[0, -1]] = 0.5 if n > 1 else 1.0
    return torch.outer(w, k).cos_() * torch.outer(edges, edges) * 2.0 / max(n - 1, 1)


def _frequencies(boundary: Boundary, n: int) -> Tensor:
    """Angular frequency (n,) of each mode of an axis of ``n`` samples."""
    k = torch.arange(n, dtype=torch.float64)
    if boundary in ("neumann", "reflect"):
        return math.pi * k / (n if boundary == "neumann" else max(n - 1, 1))
    if boundary == "dirichlet":
        return math.pi * (k + 1) / (n + 1)
    return 2.0 * math.pi * torch.ceil(k / 2) / n  # 0, 1, 1, 2, 2, … times 2 pi / n


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


@in_float64
def inner_product(a: Tensor, b: Tensor) -> Tensor:
    """Return the Euclidean inner product of each item: (B, *S), (B, *S) -> (B,), in float64."""
    if a.device.type == "cpu":  # item by item: the float64 copies of one item fit in the cache
        return torch.stack([torch.dot(x.double(), y.double()) for x, y in zip(a.flatten(1), b.flatten(1), strict=True)])
    return (a.double() * b.double()).flatten(1).sum(1)


@in_float64
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
    x, r = torch.zeros_like(b), b
    if x0 is not None:  # an item with a non-finite warm start, or with b = 0, starts from zero
        x0 = x0 / scale
        r = b - operator.matvec(x0)
        valid = batch_view(_all_finite(r) & _all_finite(x0) & (b != 0).flatten(1).any(1), b)
        x, r = torch.where(valid, x0, 0.0), torch.where(valid, r, b)

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


@in_float64
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
