"""Integrated Gradients (Sundararajan, Taly and Yan 2017)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from fringe.attribution.base import Baseline
from fringe.attribution.diagnostics import PathAttributor
from fringe.attribution.pieces import NodePieces
from fringe.attribution.rules import NodeRule, quadrature_nodes
from fringe.errors import InputError
from fringe.paths import Problem, StraightLine
from fringe.settings import Doc, PositiveInt, Search


@dataclass(frozen=True)
class IntegratedGradients(PathAttributor):
    """Integrate the gradient along the straight line from a baseline to the input (Sundararajan et al. 2017, eq. 1).

    .. math:: A = (x - x') \\odot \\int_0^1 \\nabla F^t(x' + a (x - x')) \\, da
    """

    name: ClassVar[str] = "ig"
    title: ClassVar[str] = "Integrated Gradients"
    source: ClassVar[str] = "Sundararajan, Taly and Yan 2017"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {"steps": 200}}

    steps: Annotated[PositiveInt, Search(10, 500, log=True), Doc("gradients along the line")] = 50
    baseline: Annotated[Baseline, Doc("where the line begins: zero, black, white, mean, blur, noise or uniform")] = (
        "zero"
    )
    rule: Annotated[NodeRule, Doc("quadrature")] = "midpoint"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rule in ("trapezoid", "closed_mean") and self.steps < 2:
            raise InputError(
                f"got {self.steps}, expected a whole number of at least 2 for rule {self.rule!r}", argument="steps"
            )

    @property
    def planned_passes(self) -> float:
        return 2 * self.steps

    def pieces(self, problem: Problem) -> NodePieces:
        baseline = problem.resolve_baseline(self.baseline)
        line = StraightLine(problem.inputs, baseline, *quadrature_nodes(self.rule, self.steps))
        return NodePieces(line, problem)
