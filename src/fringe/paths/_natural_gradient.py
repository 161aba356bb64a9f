r"""The direction of a step of a path, by the damped, smoothed natural gradient of the spherical loss.

.. math:: (G + R)\, v = g + \gamma_{prior} L^\top L x, \qquad R = \lambda I + \gamma_{step} L^\top L

(FRInGe, eq. final linear system; appendix "Regularized Linear System".) ``solve`` chooses what stands for the metric G:

``"geodesic"``
    G restricted to the direction in which the prediction shall move (ours), in closed form, without a network pass
    beyond the gradient. With s = sqrt p, the waypoint s', the tangent t = s' - s - s <s, s' - s> and t^ = t / |t|:

    .. math:: m = J^\top (s \circ \hat t), \quad m m^\top \preceq G, \quad g = -\tfrac12 |t| m, \quad
              v = R^{-1} b - R^{-1} W (I + W^\top R^{-1} W)^{-1} W^\top R^{-1} b

    W holds m and, for ``fisher_rank`` r > 1, r - 1 more columns J^T (s o q) with q orthonormal, orthogonal to s and t^,
    spanning the most probable classes first; at r = C - 1, W W^T = G. Derivation: docs/solver.md.
``"diffusion"``
    no G and no g: v = R^{-1} gamma_prior L^T L x, a path that smooths the image independently of the model (a control).
In coordinates y with dx = s dy the same holds with J diag(s) for J and y for x: where s is small, x is dear to move.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from fringe.errors import InputError
from fringe.geometry import Jacobian, sqrt_chart, to_tangent
from fringe.linalg import SPATIAL_AXES, LaplacianBasis, SpectralOperator, Structure, batch_view, inner_product

Solve = Literal["geodesic", "diffusion"]
#: Share of |m|^2 that is the unit of ``relative`` damping.
RELATIVE_UNIT = 1e-2


@dataclass(frozen=True)
class Direction:
    """The directions of one step of B images.

    Attributes:
        v: The directions (B, *S).
        geodesic_norm_squared: ``(m^T v)^2`` (B,), its part along the geodesic, of solve="geodesic".
    """

    v: Tensor
    geodesic_norm_squared: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class NaturalStep:
    """The linear system of a step and how it is solved; fields not listed are those of :class:`fringe.FRInGe`.

    Attributes:
        relative: For solve="geodesic": measure R and gamma_prior in hundredths of |m|^2, the metric along the geodesic.
            A saturated softmax, whose metric is almost zero, is then damped no more than another.
    """

    solve: Solve
    damping: float
    gamma_step: float
    gamma_prior: float
    structure: Structure
    fisher_rank: int = 1
    relative: bool = False

    def solver(self, like: Tensor) -> "StepSolver":
        """Build the solver for inputs shaped like ``like`` (*S), on its device."""
        axes, shape = SPATIAL_AXES[self.structure], tuple(like.shape)
        if axes > len(shape):
            raise InputError(
                f"{self.structure!r} needs inputs with at least {axes} axes, got shape {shape}",
                argument="structure",
                hint="choose structure='none' for tabular data",
            )
        grid = LaplacianBasis(shape[len(shape) - axes :])
        biharmonic = grid.biharmonic()
        first, symbol = grid.operator(biharmonic, like), 1.0 / (self.damping + self.gamma_step * biharmonic)
        # one basis for both: of n samples in a row it is n x n numbers
        return StepSolver(self, first, replace(first, symbol=symbol.to(first.symbol)))


@dataclass(frozen=True)
class StepSolver:
    """A :class:`NaturalStep` with its operators for one input shape: L^T L and R^-1."""

    settings: NaturalStep
    biharmonic: SpectralOperator
    inverse: SpectralOperator

    def direction(self, jacobian: Jacobian, log_p: Tensor, waypoint: Tensor, x: Tensor) -> Direction:
        """Solve for the direction at ``x``.

        A row whose ``waypoint`` is its own prediction and whose ``x`` is zero has the direction zero.

        Args:
            jacobian: Jacobian of the logits at ``x``.
            log_p: Log-probabilities (B, C) at ``x``.
            waypoint: Where predictions shall move, in the square-root chart (B, C).
            x: Points (B, *S).
        """
        if self.settings.solve == "diffusion":
            return Direction(self.inverse.from_modes(self._prior_modes(x)))
        return Direction(*self._geodesic(jacobian, log_p, waypoint, x))

    def _prior_modes(self, x: Tensor) -> Tensor:
        """R^-1 times the prior, in modes: back in pixels, the rounding of its constant mode, which is zero, would be
        divided by the damping."""
        return self.settings.gamma_prior * self.biharmonic.symbol * self.inverse.symbol * self.inverse.to_modes(x)

    def _geodesic(self, jacobian: Jacobian, log_p: Tensor, waypoint: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """v of the metric W W^T, by the Woodbury identity, and (m^T v)^2.

        With b = b_p - |t| m / 2, where b_p is the prior's part, the identity reads
        ``v = R^-1 b_p - R^-1 W (I + W^T R^-1 W)^-1 (|t| e_1 / 2 + W^T R^-1 b_p)``: nothing large cancels, however small
        R is, where the columns are independent. ``relative`` puts |m|^2 / 100 times R and b_p in their place; this
        factor, like the size of each column, meets the rest in the r x r system alone.
        """
        relative = self.settings.relative
        s = sqrt_chart(log_p)
        tangent = to_tangent(waypoint - s, s)
        length = tangent.norm(dim=-1, keepdim=True)
        unit = tangent / torch.where(length > 0, length, 1.0)
        cotangents = torch.stack([_balanced(s * q, s) for q in (unit, *self._more_directions(s, unit))], 1)
        sizes = torch.ones_like(cotangents[..., 0])
        if relative:  # float32 holds no gradient of a probability that underflows: sizes stay outside
            sizes = cotangents.abs().amax(-1).clamp_min(torch.finfo(s.dtype).tiny)
            cotangents = cotangents / sizes[..., None]
        # In the eigenbasis of R, where R^-1 is a factor: a transform of each column and of x, and one back.
        columns = [self.inverse.to_modes(jacobian.vjp(c.to(x.dtype))) for c in cotangents.unbind(1)]
        # Of dependent columns, as of few features, large weights cancel: products in float32 may turn v round.
        wide = torch.float64 if relative or len(columns) > 1 else x.dtype

        def smooth(w: Tensor) -> Tensor:
            return self.inverse.symbol * w.to(wide)

        gram = torch.stack([torch.stack([inner_product(w, z) for w in columns], -1) for z in map(smooth, columns)], -1)
        right = torch.zeros_like(sizes)
        right[:, 0] = -(0.5 * length[:, 0]) / sizes[:, 0]
        v = torch.zeros_like(x)
        if self.settings.gamma_prior > 0:
            v = self._prior_modes(x)
            right = right - torch.stack([inner_product(w, v) for w in columns], -1)
        identity = torch.ones_like(sizes)
        if relative:
            norm_m = inner_product(columns[0], columns[0])[:, None]
            identity = RELATIVE_UNIT * norm_m * (sizes[:, :1] / sizes).square().clamp_max(1e200)
            identity = torch.where(norm_m > 0, identity, 1.0)
        gram = 0.5 * (gram + gram.mT) + torch.diag_embed(identity)
        weights = right / gram[:, 0] if len(columns) == 1 else torch.linalg.solve_ex(gram, right)[0]
        for weight, w in zip(weights.unbind(-1), columns, strict=True):
            v = v + batch_view(weight.to(wide), v) * smooth(w)
        if relative:  # float32 overflows where the metric is almost zero; the step is bounded anyway
            largest = v.abs().flatten(1).amax(1).clamp_min(torch.finfo(v.dtype).tiny)
            v = v * batch_view((1e6 / largest).clamp_max(1.0), v)
        v = v.to(x.dtype)
        part = (inner_product(columns[0], v) * sizes[:, 0]).square().to(log_p.dtype)
        return self.inverse.from_modes(v), part

    def _more_directions(self, s: Tensor, unit: Tensor) -> list[Tensor]:
        """``fisher_rank - 1`` orthonormal directions (B, C) orthogonal to ``s`` and ``unit`` (at most C - 2 exist).

        Pivoted Gram-Schmidt on the axes of the most probable classes. One pass is enough: of r + 1 axes, r - 1 - j in
        all lie outside of s, unit and the j directions so far, so the longest remainder is at least 1 / sqrt(r + 1).
        """
        classes = s.shape[1]
        count = min(self.settings.fisher_rank, classes - 1) - 1
        if count < 1:
            return []
        top = s.topk(count + 2, dim=1).indices  # s and unit may take up two of these axes
        rest = torch.zeros(len(s), count + 2, classes, dtype=s.dtype, device=s.device).scatter_(2, top[..., None], 1.0)
        images, basis = torch.arange(len(s), device=s.device), [s, unit]
        rest = _remove(rest, s)
        for _ in range(count):
            rest = _remove(rest, basis[-1])
            longest = rest[images, rest.norm(dim=-1).argmax(1)]
            basis.append(longest / longest.norm(dim=-1, keepdim=True))
        return basis[2:]


def _balanced(cotangent: Tensor, s: Tensor) -> Tensor:
    """``cotangent`` (B, C) = s o q for q orthogonal to s, with the entry of the most probable class replaced by minus
    the sum of the others, which it equals: near a vertex, rounding of q leaves no digit of it."""
    top = s.argmax(1, keepdim=True)
    others = cotangent.scatter(1, top, 0.0)
    return others.scatter(1, top, -others.sum(1, keepdim=True))


def _remove(vectors: Tensor, q: Tensor) -> Tensor:
    """``vectors`` (B, N, C) without their components along ``q`` (B, C)."""
    return vectors - (vectors @ q[:, :, None]) * q[:, None, :]
