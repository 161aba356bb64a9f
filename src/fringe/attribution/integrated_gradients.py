"""Integrated Gradients (Sundararajan, Taly and Yan 2017)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

from fringe._checks import require_choice, require_whole
from fringe._tunable import tunable
from fringe.attribution.diagnostics import PathAttributor
from fringe.attribution.pieces import NodePieces
from fringe.attribution.rules import NodeRule, quadrature_nodes
from fringe.baselines import parse_baseline
from fringe.paths import Problem, StraightLine


@dataclass(frozen=True)
class IntegratedGradients(PathAttributor):
    """Integrate the gradient along the straight line from a baseline to the input (Sundararajan et al. 2017, eq. 1).

    .. math:: A = (x - x') \\odot \\int_0^1 \\nabla F^t(x' + a (x - x')) \\, da
    """

    name: ClassVar[str] = "ig"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {"steps": 200}}

    steps: int = tunable(50, low=10, high=500, log=True, help="gradients along the line")
    baseline: str = tunable("zero", help="where the line begins: zero, black, white, mean, blur, noise or uniform")
    rule: NodeRule = tunable("midpoint", choices=get_args(NodeRule), help="quadrature")

    def __post_init__(self) -> None:
        require_choice("rule", self.rule, get_args(NodeRule))
        require_whole("steps", self.steps, least=1 if self.rule not in ("trapezoid", "closed_mean") else 2)
        parse_baseline(self.baseline)

    @property
    def planned_passes(self) -> float:
        return 2 * self.steps

    def pieces(self, problem: Problem) -> NodePieces:
        baseline = problem.resolve_baseline(self.baseline)
        line = StraightLine(problem.inputs, baseline, *quadrature_nodes(self.rule, self.steps))
        return NodePieces(line, problem)
