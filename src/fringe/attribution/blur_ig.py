"""Blur Integrated Gradients (Xu, Venugopalan and Sundararajan 2020)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from fringe.attribution.diagnostics import PathAttributor
from fringe.attribution.pieces import NodePieces
from fringe.paths import BlurLine, Displacements, Problem
from fringe.settings import Doc, Positive, PositiveInt, Search

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
    title: ClassVar[str] = "Blur Integrated Gradients"
    source: ClassVar[str] = "Xu, Venugopalan and Sundararajan 2020"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"official": {"mode": "derivative"}}

    steps: Annotated[PositiveInt, Search(20, 300, log=True), Doc("intervals between blurs (S)")] = 100
    sigma_max: Annotated[
        Positive, Search(0.05, 0.5, log=True), Doc("the strongest blur's sigma", unit="of the shorter side")
    ] = 50 / 224
    grid: Annotated[Grid, Doc("blurs evenly spaced in sigma, or in its square")] = "linear"
    mode: Annotated[Displacements, Doc("gradients times chords, or the authors' forward differences")] = "chord"

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
