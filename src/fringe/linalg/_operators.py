r"""Symmetric positive semidefinite operators, given by their matrix-vector products.

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
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from fringe.errors import InputError, require_choice

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
    ``symbol`` has shape ``(N_1, …, N_d)``, d <= 2.
    """

    bases: tuple[Tensor, ...]
    symbol: Tensor
    inverses: tuple[Tensor, ...] | None = None

    def matvec(self, v: Tensor) -> Tensor:
        return self.from_modes(self.symbol * self.to_modes(v))

    def to_modes(self, v: Tensor) -> Tensor:
        """Return ``V^-1 v``, the coefficients (..., *sizes) of ``v`` in the eigenbasis; an orthonormal one preserves
        inner products."""
        return _transformed(v, self.bases)

    def from_modes(self, coefficients: Tensor) -> Tensor:
        """Return ``V c``, the inverse of :meth:`to_modes`."""
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
        require_choice("boundary", self.boundary, tuple(_MODES))

    def frequencies(self) -> tuple[Tensor, ...]:
        """Angular frequency of each mode (radians per sample), one tensor (N_i,) per axis."""
        return tuple(_frequencies(self.boundary, n) for n in self.sizes)

    def laplacian(self) -> Tensor:
        """Symbol of L, the negative 3-point (5-point in 2-D) Laplacian at unit spacing: sum of 2 - 2 cos w."""
        return _outer_sum([2.0 - 2.0 * torch.cos(w) for w in self.frequencies()])

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
                raise InputError(fault, hint=_blur_hint(sigma))
            least = f"its smallest response is {float(symbol.min()):.3f}, which amplifies rounding"
            warnings.warn(f"{fault}: {least}", stacklevel=2)
        return symbol

    def operator(self, symbol: Tensor, like: Tensor) -> SpectralOperator:
        """Return the operator with this symbol, in the dtype and on the device of ``like``."""
        modes = (_MODES[self.boundary](w, n) for w, n in zip(self.frequencies(), self.sizes, strict=True))
        bases, inverses = tuple(modes), None
        if self.boundary == "reflect":
            inverses = tuple(basis.inverse().to(like.device, like.dtype) for basis in bases)
        bases = tuple(basis.to(like.device, like.dtype) for basis in bases)
        return SpectralOperator(bases, symbol.to(like.device, like.dtype), inverses)


def _blur_hint(sigma: float) -> str:
    """Advice: the truncated tail exp(-(m+1)^2 / (2 sigma^2)) must be below the smallest mode exp(-(pi sigma)^2 / 2)."""
    if sigma > 2.7:  # above it, that mode is smaller than float64 rounding
        return "use a sigma of at most 2.7: the blur of a larger one is singular to rounding, whatever its taps"
    return f"use more taps (2*ceil(pi*sigma^2)+1 = {2 * math.ceil(math.pi * sigma**2) + 1}) or a smaller sigma"


def _outer_sum(terms: Sequence[Tensor]) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for term in terms:
        total = total[..., None] + term
    return total


def _cosine_modes(w: Tensor, n: int) -> Tensor:
    basis = torch.outer(w, torch.arange(n, dtype=torch.float64) + 0.5).cos_().mul_(math.sqrt(2.0 / n))
    basis[0] /= math.sqrt(2.0)
    return basis


def _sine_modes(w: Tensor, n: int) -> Tensor:
    return torch.outer(w, torch.arange(1, n + 1, dtype=torch.float64)).sin_().mul_(math.sqrt(2.0 / (n + 1)))


def _fourier_modes(w: Tensor, n: int) -> Tensor:
    phase = torch.outer(w, torch.arange(n, dtype=torch.float64))
    is_sine = (torch.arange(n) % 2 == 0) & (torch.arange(n) > 0)
    basis = torch.where(is_sine[:, None], torch.sin(phase), torch.cos(phase))
    return basis / basis.norm(dim=1, keepdim=True)


def _reflected_modes(w: Tensor, n: int) -> Tensor:
    edges = torch.ones(n, dtype=torch.float64)
    edges[[0, -1]] = 0.5 if n > 1 else 1.0
    return torch.outer(w, torch.arange(n, dtype=torch.float64)).cos_() * torch.outer(edges, edges) * 2.0 / max(n - 1, 1)


def _frequencies(boundary: Boundary, n: int) -> Tensor:
    """Angular frequency (n,) of each mode of an axis of ``n`` samples."""
    k = torch.arange(n, dtype=torch.float64)
    if boundary in ("neumann", "reflect"):
        return math.pi * k / (n if boundary == "neumann" else max(n - 1, 1))
    if boundary == "dirichlet":
        return math.pi * (k + 1) / (n + 1)
    return 2.0 * math.pi * torch.ceil(k / 2) / n  # 0, 1, 1, 2, 2, … times 2 pi / n


_MODES = {"neumann": _cosine_modes, "dirichlet": _sine_modes, "periodic": _fourier_modes, "reflect": _reflected_modes}
