"""Guided Integrated Gradients (Kapishnikov et al. 2021)."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from fringe._checks import is_positive, require, require_choice, require_fraction, require_whole
from fringe._tunable import tunable
from fringe.attribution.diagnostics import PathAttributor
from fringe.attribution.integral import Quadrature
from fringe.attribution.pieces import SegmentPieces
from fringe.baselines import parse_baseline
from fringe.paths import GuidedPath, Problem

GuidedRule = Literal["left", "trapezoid"]


@dataclass(frozen=True)
class GuidedIG(PathAttributor):
    """Integrate the gradient along a path that moves the entries of small gradient first (Kapishnikov et al. 2021).

    The path avoids steep directions for as long as it may: after step k of N it has covered k/N of the way to the
    input in the L1 norm, and no entry's own progress is off k/N by more than ``max_dist`` (0: the straight line, which
    is Integrated Gradients by the left rule; 1: anywhere in the box between baseline and input). The published rule
    multiplies a step by the gradient at its beginning (``"left"``): N forward passes and VJPs, and a forward pass for
    the score at the end. ``"trapezoid"`` costs one VJP more and is exact for quadratic scores.
    """

    name: ClassVar[str] = "guided_ig"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "notebook": {"steps": 25, "fraction": 0.5, "max_dist": 1.0},
        "quick": {"steps": 50},
    }

    steps: int = tunable(200, low=20, high=500, log=True, help="gradients along the path (N), one after the other")
    fraction: float = tunable(0.25, low=0.02, high=0.5, log=True, help="of all entries that move at a time")
    max_dist: float = tunable(0.02, low=0.005, high=1.0, log=True, help="how far an entry's progress may be off k/N")
    baseline: str = tunable("zero", help="where the path begins: zero, black, white, mean, blur, noise or uniform")
    rule: GuidedRule = tunable("left", choices=get_args(GuidedRule), help="quadrature: the authors', or trapezoid")

    def __post_init__(self) -> None:
        require_whole("steps", self.steps)
        fraction = self.fraction
        require(is_positive(fraction) and fraction <= 1, "fraction", fraction, "a number above 0, at most 1")
        require_fraction("max_dist", self.max_dist)
        require_choice("rule", self.rule, get_args(GuidedRule))
        parse_baseline(self.baseline)

    @property
    def planned_passes(self) -> float:
        return 2 * self.steps

    def pieces(self, problem: Problem) -> SegmentPieces:
        based = dataclasses.replace(problem, baseline=problem.resolve_baseline(self.baseline))
        path = GuidedPath(self.steps, self.fraction, self.max_dist, closed=self.rule == "trapezoid")
        return SegmentPieces(path, Quadrature(self.rule), based)

    @property
    def hint(self) -> str:
        return "use more steps, or rule='trapezoid'"
