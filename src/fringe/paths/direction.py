r"""The direction of a step: the damped, smoothed natural gradient of the spherical loss, and what it is compared with.

.. math:: (G + \lambda I + \gamma_{step} L^\top L)\, v = g + \gamma_{prior} L^\top L x

(FRInGe, eq. final linear system; appendix "Regularized Linear System".) ``solve="gradient"`` leaves the metric out:
:math:`v = g + \gamma_{prior} L^\top L x`, the paper's Euclidean and non-geometric ablations.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fringe._errors import InputError
from fringe.geometry import Jacobian, PullbackFisher, fisher_product
from fringe.linalg import (
    Boundary,
    Damped,
    Grid,
    LinearOperator,
    Scaled,
    Sum,
    conjugate_gradient,
)

Structure = Literal["image", "sequence", "none"]
PreconditionerName = Literal["blur", "scale", "spectral"]
JacobianForm = Literal["auto", "products", "explicit"]
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

    def grid(self, shape: tuple[int, ...]) -> Grid:
        """The grid of an input of shape ``S`` (without the batch axis)."""
        axes = AXES[self.structure]
        if axes > len(shape):
            raise InputError(
                f"structure: {self.structure!r} needs inputs with at least {axes} axes, got shape {shape}; "
                "choose structure='none' for tabular data"
            )
        return Grid(tuple(shape[len(shape) - axes :]), self.boundary)


@dataclass(frozen=True)
class Direction:
    """``v`` (B, *S); ``fisher_norm_squared`` = v^T G v (B,), zero where it was not asked; ``stats`` of the solve."""

    v: Tensor
    fisher_norm_squared: Tensor
    stats: Mapping[str, Tensor]


@dataclass(frozen=True)
class NaturalStep:
    """The linear system of a step and how it is solved.

    ``jacobian="explicit"`` computes J at each point, at C VJPs, and ``"products"`` asks the network for each product,
    at a JVP and a VJP an iteration; ``"auto"`` takes the cheaper. ``roughness`` replaces :math:`L^\\top L` by any
    symmetric PSD operator (the ``blur`` and ``spectral`` preconditioners then still use the grid's).
    """

    solve: Literal["natural", "gradient"]
    damping: float
    gamma_step: float
    gamma_prior: float
    cg_iterations: int
    cg_rtol: float
    preconditioner: PreconditionerName
    warm_start: bool
    reorthogonalise: bool
    smoothing: Smoothing
    roughness: LinearOperator | None = None
    jacobian: JacobianForm = "auto"

    def explicit(self, classes: int) -> bool:
        """Whether J of a model with this many classes is computed as a whole."""
        if self.jacobian != "auto":
            return self.jacobian == "explicit"
        return self.solve == "natural" and classes <= self.cg_iterations

    def on(self, like: Tensor, *, fisher_norm: bool) -> "StepSolver":
        """The solver for inputs shaped like ``like`` (*S), on its device; ``fisher_norm`` says whether the caller
        needs ``v^T G v``, at a JVP a step."""
        grid = self.smoothing.grid(tuple(like.shape))
        rough = self.roughness or grid.operator(grid.biharmonic(), like)
        return StepSolver(self, rough, self._regulariser(grid, like), self._inverse(grid, like), fisher_norm)

    def _regulariser(self, grid: Grid, like: Tensor) -> LinearOperator:
        """``damping I + gamma_step L^T L``."""
        if self.roughness is not None:
            return Damped(Scaled(self.roughness, self.gamma_step), self.damping)
        return grid.operator(self.damping + self.gamma_step * grid.biharmonic(), like)

    def _inverse(self, grid: Grid, like: Tensor) -> LinearOperator:
        """The preconditioner M^-1. With smoothing off the paper's blur is plain scaling."""
        if self.preconditioner == "spectral":
            return grid.operator(1.0 / (self.damping + self.gamma_step * grid.biharmonic()), like)
        if self.preconditioner == "blur" and self.gamma_step > 0:
            blur = grid.gaussian_blur(self.smoothing.blur_sigma, self.smoothing.blur_size)
            return grid.operator(blur / self.damping, like)
        return grid.operator(torch.tensor(1.0 / self.damping, dtype=torch.float64).expand(grid.sizes), like)


@dataclass(frozen=True)
class StepSolver:
    """A :class:`NaturalStep` with its operators built for one input shape."""

    settings: NaturalStep
    roughness: LinearOperator
    regulariser: LinearOperator
    preconditioner: LinearOperator
    fisher_norm: bool

    def direction(
        self, jacobian: Jacobian, p: Tensor, cotangent: Tensor, x: Tensor, previous: Tensor | None
    ) -> Direction:
        """Direction at ``x`` (B, *S) with prediction ``p`` (B, C) for the loss gradient ``cotangent`` (B, C) in logits;
        ``previous`` (B, *S) is the warm start."""
        b = jacobian.vjp(cotangent.to(x.dtype))
        if self.settings.gamma_prior > 0:
            b = b + self.settings.gamma_prior * self.roughness.matvec(x)
        if self.settings.solve == "gradient":
            return self._gradient(jacobian, p, b)
        return self._natural(jacobian, p, b, previous)

    def _gradient(self, jacobian: Jacobian, p: Tensor, b: Tensor) -> Direction:
        zero = torch.zeros(b.shape[0], dtype=p.dtype, device=b.device)
        stats = {"cg_iterations": zero, "cg_residual": zero, "cg_status": zero}
        return Direction(b, self._fisher_norm_squared(jacobian, p, b), stats)

    def _natural(self, jacobian: Jacobian, p: Tensor, b: Tensor, previous: Tensor | None) -> Direction:
        settings = self.settings
        solution = conjugate_gradient(
            Sum((PullbackFisher(jacobian, p), self.regulariser)),
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
        return Direction(solution.x, self._fisher_norm_squared(jacobian, p, solution.x), stats)

    def _fisher_norm_squared(self, jacobian: Jacobian, p: Tensor, v: Tensor) -> Tensor:
        """``v^T G v`` as ``(Jv)^T S(p) (Jv)``, at one JVP.

        ``v^T (b - r - (lambda I + gamma L'L) v)`` would cost nothing, but is a small difference of large numbers where
        the damping dominates: in float32 it was off by up to a factor of five on confident images.
        """
        if not self.fisher_norm:
            return torch.zeros(v.shape[0], dtype=p.dtype, device=v.device)
        u = jacobian.jvp(v).to(p.dtype)
        return (u * fisher_product(p, u)).sum(-1)
