"""Blur Integrated Gradients (Xu, Venugopalan and Sundararajan 2020)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor

from fringe._checks import require_choice, require_positive, require_whole
from fringe._tunable import tunable
from fringe.attribution.diagnostics import PathAttributor
from fringe.attribution.pieces import NodePieces
from fringe.paths import BlurLine, Displacements, Problem

Grid = Literal["linear", "sqrt"]


@dataclass(frozen=True)
class BlurIG(PathAttributor):
    """Integrate the gradient along ever stronger Gaussian blurs of the image (Xu et al. 2020).

    .. math:: A = -\\int_0^{\\sigma_m} \\nabla F^t(z(\\sigma)) \\odot z'(\\sigma) \\, d\\sigma,
              \\qquad z(\\sigma) = G_\\sigma * x

    ``sigma_max`` is a share of the image's shorter side: the authors' 50 pixels at 224. What is explained is the
    change of the score from the blurred image to the image. ``mode="chord"`` multiplies gradients by chords of the
    path, as the trapezoid rule does; ``"derivative"`` multiplies them by forward differences over 0.01 pixels with the
    left rule, as the authors' code does. ``grid="sqrt"`` spaces the blurs evenly in variance. A kernel sees zeros
    beyond the edge. Costs S + 1 forward passes and VJPs an image (S in the derivative mode) and a forward pass at the
    end.
    """

    name: ClassVar[str] = "blur_ig"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"official": {"mode": "derivative"}}

    steps: int = tunable(100, low=20, high=300, log=True, help="intervals between blurs (S)")
    sigma_max: float = tunable(
        50 / 224, low=0.05, high=0.5, log=True, unit="of the shorter side", help="the strongest blur's sigma"
    )
    grid: Grid = tunable("linear", choices=get_args(Grid), help="blurs evenly spaced in sigma, or in its square")
    mode: Displacements = tunable(
        "chord", choices=get_args(Displacements), help="gradients times chords, or the authors' forward differences"
    )

    def __post_init__(self) -> None:
        require_whole("steps", self.steps)
        require_positive("sigma_max", self.sigma_max)
        require_choice("grid", self.grid, get_args(Grid))
        require_choice("mode", self.mode, get_args(Displacements))

    @property
    def planned_passes(self) -> float:
        return 2 * self.steps

    def pieces(self, problem: Problem) -> NodePieces:
        line = BlurLine(problem.inputs, self.sigmas(min(problem.inputs.shape[-2:])), self.mode)
        return NodePieces(line, problem)

    @property
    def hint(self) -> str:
        return "use more steps" if self.mode == "chord" else "use more steps, or mode='chord'"

    def sigmas(self, side: int) -> Tensor:
        """Blurs (S + 1,) in pixels, from 0 to the strongest, for images whose shorter side is ``side`` pixels."""
        share = torch.linspace(0, 1, self.steps + 1, dtype=torch.float64)
        return self.sigma_max * side * (share if self.grid == "linear" else share.sqrt())
