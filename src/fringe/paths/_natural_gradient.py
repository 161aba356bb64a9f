r"""The direction of a step: the damped, smoothed natural gradient of the spherical loss, and what it is compared with.

.. math:: (G + R)\, v = g + \gamma_{prior} L^\top L x, \qquad R = \lambda I + \gamma_{step} L^\top L

(FRInGe, eq. final linear system; appendix "Regularized Linear System".) ``solve`` says what stands for the metric G:

``"natural"``
    G itself, by conjugate gradients: the paper's algorithm, 2 network passes an iteration.
``"geodesic"``
    G seen from the direction in which the prediction shall move (ours), in closed form, without a network pass beyond
    the gradient. With s = sqrt p, the waypoint s', the tangent t = s' - s - s <s, s' - s> and t^ = t / |t|:

    .. math:: m = J^\top (s \circ \hat t), \quad m m^\top \preceq G, \quad g = -\tfrac12 |t| m, \quad
              v = R^{-1} b - R^{-1} W (I + W^\top R^{-1} W)^{-1} W^\top R^{-1} b

    W holds m and, for ``fisher_rank`` r > 1, r - 1 more columns J^T (s o q) with q orthonormal, orthogonal to s and t^,
    spanning the most probable classes first; at r = C - 1, W W^T = G. Derivation: docs/solver.md.
``"diffusion"``
    no G and no g: v = R^{-1} gamma_prior L^T L x, a path that smooths the image whatever the network says (a control).
``"gradient"``
    v = g + gamma_prior L^T L x, the paper's Euclidean and non-geometric ablations.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

import torch
from torch import Tensor

from fringe.errors import InputError
from fringe.geometry import (
    Jacobian,
    PullbackFisher,
    fisher_product,
    spherical_loss_gradient,
    sqrt_chart,
    to_tangent,
)
from fringe.linalg import (
    Boundary,
    DampedOperator,
    LaplacianBasis,
    LinearOperator,
    ScaledOperator,
    SpectralOperator,
    SumOperator,
    conjugate_gradient,
    inner_product,
)

Solve = Literal["geodesic", "natural", "diffusion", "gradient"]
Structure = Literal["image", "sequence", "none"]
PreconditionerName = Literal["blur", "scale", "spectral"]
JacobianForm = Literal["auto", "products", "explicit"]
RELATIVE_UNIT = 1e-2
"""Share of |m|^2 in which ``relative`` damping counts."""
AXES: dict[Structure, int] = {"image": 2, "sequence": 1, "none": 0}


@dataclass(frozen=True)
class Smoothing:
    """Which inputs count as neighbours: ``structure`` names the trailing axes that are space (``"image"``: the last
    two, ``"sequence"``: the last, ``"none"``: no smoothing), ``boundary`` what lies beyond their edge, and ``blur_*``
    the Gaussian (samples) of the blur preconditioner."""

    structure: Structure = "image"
    boundary: Boundary = "neumann"
    blur_sigma: float = 1.0
    blur_size: int = 7

    def grid(self, shape: tuple[int, ...]) -> LaplacianBasis:
        """The grid of an input of shape ``S`` (without the batch axis)."""
        axes = AXES[self.structure]
        if axes > len(shape):
            raise InputError(
                f"structure: {self.structure!r} needs inputs with at least {axes} axes, got shape {shape}; "
                "choose structure='none' for tabular data"
            )
        return LaplacianBasis(tuple(shape[len(shape) - axes :]), self.boundary)


@dataclass(frozen=True)
class Direction:
    """What a step needs to know of B images.

    ``v`` (B, *S); ``fisher_norm_squared`` = v^T G v (B,), zero where it was not asked for; ``geodesic_norm_squared`` =
    (m^T v)^2 (B,), its part along the geodesic, of solve="geodesic"; ``logit_range`` (B,) the largest less the smallest
    entry of J v, where v^T G v was asked for; ``stats`` of the solve.
    """

    v: Tensor
    fisher_norm_squared: Tensor
    stats: Mapping[str, Tensor]
    geodesic_norm_squared: Tensor | None = None
    logit_range: Tensor | None = None


@dataclass(frozen=True)
class NaturalStep:
    """The linear system of a step and how it is solved.

    ``jacobian="explicit"`` computes J at each point, at C VJPs, and ``"products"`` asks the network for each product,
    at a JVP and a VJP an iteration; ``"auto"`` takes the cheaper. ``relative`` (for solve="geodesic") measures R and
    gamma_prior in hundredths of |m|^2, the metric along the geodesic: a saturated softmax, whose metric is next to
    nothing, is then damped no more than another. ``roughness`` replaces :math:`L^\\top L` by any symmetric PSD operator
    (the ``blur`` and ``spectral`` preconditioners then still use the grid's).
    """

    solve: Solve
    damping: float
    gamma_step: float
    gamma_prior: float
    cg_iterations: int
    cg_rtol: float
    preconditioner: PreconditionerName
    warm_start: bool
    reorthogonalise: bool
    smoothing: Smoothing
    fisher_rank: int = 1
    relative: bool = False
    roughness: LinearOperator | None = None
    jacobian: JacobianForm = "auto"

    def explicit(self, classes: int) -> bool:
        """Whether J of a model with this many classes is computed as a whole."""
        if self.jacobian != "auto":
            return self.jacobian == "explicit"
        return self.solve == "natural" and classes <= self.cg_iterations

    def on(self, like: Tensor) -> "StepSolver":
        """The solver for inputs shaped like ``like`` (*S), on its device."""
        grid = self.smoothing.grid(tuple(like.shape))
        biharmonic = grid.biharmonic()
        return StepSolver(
            self,
            self.roughness or grid.operator(biharmonic, like),
            self._regulariser(grid, like),
            self._preconditioner(grid, like),
            grid.operator(1.0 / (self.damping + self.gamma_step * biharmonic), like),
        )

    def _regulariser(self, grid: LaplacianBasis, like: Tensor) -> LinearOperator:
        """``damping I + gamma_step L^T L``."""
        if self.roughness is not None:
            return DampedOperator(ScaledOperator(self.roughness, self.gamma_step), self.damping)
        return grid.operator(self.damping + self.gamma_step * grid.biharmonic(), like)

    def _preconditioner(self, grid: LaplacianBasis, like: Tensor) -> LinearOperator:
        """M^-1 of conjugate gradients. With smoothing off the paper's blur is plain scaling."""
        if self.preconditioner == "spectral":
            return grid.operator(1.0 / (self.damping + self.gamma_step * grid.biharmonic()), like)
        if self.preconditioner == "blur" and self.gamma_step > 0:
            blur = grid.gaussian_blur(self.smoothing.blur_sigma, self.smoothing.blur_size)
            return grid.operator(blur / self.damping, like)
        return grid.operator(torch.tensor(1.0 / self.damping, dtype=torch.float64).expand(grid.sizes), like)


@dataclass(frozen=True)
class StepSolver:
    """A :class:`NaturalStep` with its operators built for one input shape; ``inverse`` is R^-1."""

    settings: NaturalStep
    roughness: LinearOperator
    regulariser: LinearOperator
    preconditioner: LinearOperator
    inverse: SpectralOperator

    def direction(
        self,
        jacobian: Jacobian,
        log_p: Tensor,
        waypoint: Tensor,
        x: Tensor,
        previous: Tensor | None,
        *,
        fisher_norm: bool = True,
    ) -> Direction:
        """The direction at ``x`` (B, *S) from log-probabilities ``log_p`` (B, C) towards ``waypoint`` (B, C).

        ``previous`` (B, *S) is the warm start of conjugate gradients. ``fisher_norm`` asks for ``v^T G v``, at a JVP.
        A row whose ``waypoint`` is its own prediction and whose ``x`` is zero has the direction zero.
        """
        match self.settings.solve:
            case "geodesic":
                v, stats, part = self._geodesic(jacobian, log_p, waypoint, x)
            case "diffusion":
                v, stats, part = self.inverse.matvec(self._prior(x)), {}, None
            case "gradient":
                v, stats, part = self._loss_gradient(jacobian, log_p, waypoint, x), {}, None
            case "natural":
                b = self._loss_gradient(jacobian, log_p, waypoint, x)
                v, stats = self._conjugate_gradient(jacobian, log_p.exp(), b, previous)
                part = None
        zero = norm = torch.zeros_like(log_p[:, 0])
        logit_range: Tensor | None = None
        if fisher_norm:  # v^T (b - R v) would cost no JVP, but where R dominates it is a difference of large numbers
            u = jacobian.jvp(v).to(log_p.dtype)
            norm, logit_range = (u * fisher_product(log_p.exp(), u)).sum(-1), u.amax(-1) - u.amin(-1)
        stats = {**dict.fromkeys(("cg_iterations", "cg_residual", "cg_status"), zero), **stats}
        return Direction(v, norm, stats, part, logit_range)

    def _prior(self, x: Tensor) -> Tensor:
        return self.settings.gamma_prior * self.roughness.matvec(x)

    def _loss_gradient(self, jacobian: Jacobian, log_p: Tensor, waypoint: Tensor, x: Tensor) -> Tensor:
        """The system's right-hand side b."""
        b = jacobian.vjp(spherical_loss_gradient(log_p, waypoint).to(x.dtype))
        return b + self._prior(x) if self.settings.gamma_prior > 0 else b

    def _geodesic(
        self, jacobian: Jacobian, log_p: Tensor, waypoint: Tensor, x: Tensor
    ) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        """v of the metric W W^T, by the Woodbury identity, and (m^T v)^2.

        With b = b_p - |t| m / 2, where b_p is the prior's part, the identity reads
        ``v = R^-1 b_p - R^-1 W (I + W^T R^-1 W)^-1 (|t| e_1 / 2 + W^T R^-1 b_p)``: nothing large cancels, however small
        R is. ``relative`` puts |m|^2 / 100 times R and b_p in their place; this factor, like the size of each column,
        meets the rest in the r x r system alone.
        """
        s = sqrt_chart(log_p)
        tangent = to_tangent(waypoint - s, s)
        length = tangent.norm(dim=-1, keepdim=True)
        unit = tangent / torch.where(length > 0, length, 1.0)
        cotangents = [_balanced(s * q, s) for q in (unit, *self._more_directions(s, unit))]
        sizes, half = torch.ones_like(s[:, :1]).expand(-1, len(cotangents)), 0.5 * length[:, 0]
        if self.settings.relative:  # float32 holds no gradient of a probability that underflows: sizes stay outside
            sizes = torch.stack([c.abs().amax(1) for c in cotangents], 1).clamp_min(torch.finfo(s.dtype).tiny)
            cotangents = [c / size[:, None] for c, size in zip(cotangents, sizes.unbind(1), strict=True)]
        # In the eigenbasis of R, where R^-1 is a factor: a transform of each column and of x, and one back.
        columns = [self.inverse.to_modes(jacobian.vjp(c.to(x.dtype))) for c in cotangents]
        smooth = [self.inverse.symbol * w for w in columns]
        wide = x.dtype if x.device.type == "mps" else torch.float64
        gram = torch.stack([torch.stack([inner_product(w, z) for z in smooth], -1) for w in columns], -2)
        right = torch.zeros_like(gram[:, 0])
        right[:, 0] = -half / sizes[:, 0]
        prior = self._smooth_prior(x) if self.settings.gamma_prior > 0 else None
        if prior is not None:
            right = right - torch.stack([inner_product(w, prior) for w in columns], -1)
        unit_of_r = torch.ones_like(right)
        if self.settings.relative:
            along = inner_product(columns[0], columns[0])
            unit_of_r = RELATIVE_UNIT * along[:, None] * (sizes[:, :1] / sizes).square().clamp_max(1e200)
            unit_of_r = torch.where(along[:, None] > 0, unit_of_r, 1.0)
        gram = 0.5 * (gram + gram.mT) + torch.diag_embed(unit_of_r.to(wide))
        weights = right / gram[:, 0] if len(columns) == 1 else torch.linalg.solve(gram, right)
        kind = wide if self.settings.relative else x.dtype
        v = torch.zeros_like(x, dtype=kind) if prior is None else prior.to(kind)
        for weight, z in zip(weights.unbind(-1), smooth, strict=True):
            v = v + _as_column(weight, v) * z
        if self.settings.relative:  # float32 overflows where the metric is next to nothing; the step is bounded anyway
            largest = v.abs().flatten(1).amax(1).clamp_min(torch.finfo(wide).tiny)
            v = (v * _as_column((1e6 / largest).clamp_max(1.0), v)).to(x.dtype)
        part = (inner_product(columns[0], v) * sizes[:, 0]).square().to(log_p.dtype)
        return self.inverse.from_modes(v), {}, part

    def _smooth_prior(self, x: Tensor) -> Tensor:
        """``R^-1 gamma_prior L^T L x`` in the eigenbasis of R."""
        if self.settings.roughness is None and isinstance(self.roughness, SpectralOperator):
            factor = self.settings.gamma_prior * self.roughness.symbol * self.inverse.symbol
            return factor * self.inverse.to_modes(x)
        return self.inverse.symbol * self.inverse.to_modes(self._prior(x))

    def _more_directions(self, s: Tensor, unit: Tensor) -> list[Tensor]:
        """``fisher_rank - 1`` orthonormal directions (B, C) orthogonal to ``s`` and ``unit``, the most probable classes
        first: the axes of those classes, made orthogonal one after the other (at most C - 2 exist)."""
        classes = s.shape[1]
        count = min(self.settings.fisher_rank, classes - 1) - 1
        if count < 1:
            return []
        top = s.topk(count + 2, dim=1).indices  # s and unit may take up two of these axes
        axes = torch.zeros(len(s), count + 2, classes, dtype=s.dtype, device=s.device).scatter_(2, top[..., None], 1.0)
        basis: list[Tensor] = [s, unit]
        rest = axes
        for _ in range(count):  # pivoted Gram-Schmidt, twice each: the longest remainder comes next
            for _ in range(2):
                for q in basis:
                    rest = rest - (rest @ q[:, :, None]) * q[:, None, :]
            lengths = rest.norm(dim=-1)
            longest = lengths.argmax(1)
            row = rest[torch.arange(len(s), device=s.device), longest]
            basis.append(row / row.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(s.dtype).tiny))
        return basis[2:]

    def _conjugate_gradient(
        self, jacobian: Jacobian, p: Tensor, b: Tensor, previous: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        settings = self.settings
        solution = conjugate_gradient(
            SumOperator((PullbackFisher(jacobian, p), self.regulariser)),
            b,
            preconditioner=self.preconditioner,
            x0=previous if settings.warm_start else None,
            rtol=settings.cg_rtol,
            max_iterations=settings.cg_iterations,
            reorthogonalise=settings.reorthogonalise,
        )
        stats = {
            "cg_iterations": solution.iterations.to(p.dtype),
            "cg_residual": solution.relative_residual,
            "cg_status": solution.status.to(p.dtype),
        }
        return solution.x, stats


def _balanced(cotangent: Tensor, s: Tensor) -> Tensor:
    """``cotangent`` (B, C) = s o q for q orthogonal to s, with the entry of the most probable class made what it must
    be, minus the sum of the others: near a vertex, rounding of q leaves nothing of it."""
    top = s.argmax(1, keepdim=True)
    others = cotangent.scatter(1, top, 0.0)
    return others.scatter(1, top, -others.sum(1, keepdim=True))


def _as_column(numbers: Tensor, like: Tensor) -> Tensor:
    """``numbers`` (B,) in the dtype of ``like`` (B, *S), shaped to multiply it."""
    return numbers.to(like.dtype).view(-1, *[1] * (like.dim() - 1))


EPSILON = 1e-12
"""The paper's epsilon. ``|v|_G^2`` is near tau/8 > 1e-5 while tracking, so this is inert except at v = 0."""


class Bound(IntEnum):
    """Which of the bounds set the step."""

    ETA_MAX = 0
    KL = 1
    EUCLIDEAN = 2
    LOGIT = 3


@dataclass(frozen=True)
class TrustRegion:
    """``eta = min(eta_max, sqrt(2 tau / (|v|_G^2 + eps)), delta_euc / (|v|_2 + eps))`` (FRInGe, eqs. eta_KL, eta_Euc).

    ``tau`` is the KL budget of a step in nats, ``delta_euc`` the longest step in input units; ``None`` drops a bound.
    ``delta_logit`` (ours) bounds how far a step moves two logits apart, to first order, in nats: eta <= delta_logit /
    (max Jv - min Jv). Within d nats the KL of a step is at most 2 (e^d - 1 - d) / d^2 times what its quadratic form
    says (1.44 at d = 1); without such a bound a step from a saturated prediction, where the form is flat, may go
    anywhere.
    """

    eta_max: float
    tau: float | None
    delta_euc: float | None
    delta_logit: float | None = None

    def step(
        self, fisher_norm_squared: Tensor, norm: Tensor, logit_range: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Step sizes (B,) and active :class:`Bound` (B,) from ``v^T G v``, ``|v|_2`` and the range of ``J v``, (B,)
        each."""
        infinite = torch.full_like(norm, torch.inf)
        bounds = torch.stack(
            [
                torch.full_like(norm, self.eta_max),
                infinite if self.tau is None else (2.0 * self.tau / (fisher_norm_squared + EPSILON)).sqrt(),
                infinite if self.delta_euc is None else self.delta_euc / (norm + EPSILON),
                infinite
                if self.delta_logit is None or logit_range is None
                else self.delta_logit / (logit_range + EPSILON),
            ]
        )
        eta, active = bounds.min(0)
        return eta, active
