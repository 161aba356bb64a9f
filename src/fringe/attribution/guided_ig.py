"""Guided Integrated Gradients (Kapishnikov et al. 2021)."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from fringe.attribution.base import Baseline
from fringe.attribution.diagnostics import PathAttributor
from fringe.attribution.integral import Quadrature
from fringe.attribution.pieces import SegmentPieces
from fringe.paths import GuidedPath, Problem
from fringe.settings import Doc, Fraction, PositiveFraction, PositiveInt, Search

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
    title: ClassVar[str] = "Guided Integrated Gradients"
    source: ClassVar[str] = "Kapishnikov et al. 2021"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "notebook": {"steps": 25, "fraction": 0.5, "max_dist": 1.0},
        "quick": {"steps": 50},
    }

    steps: Annotated[
        PositiveInt, Search(20, 500, log=True), Doc("gradients along the path (N), one after the other")
    ] = 200
    fraction: Annotated[PositiveFraction, Search(0.02, 0.5, log=True), Doc("of all entries that move at a time")] = 0.25
    max_dist: Annotated[Fraction, Search(0.005, 1.0, log=True), Doc("how far an entry's progress may be off k/N")] = (
        0.02
    )
    baseline: Annotated[Baseline, Doc("where the path begins: zero, black, white, mean, blur, noise or uniform")] = (
        "zero"
    )
    rule: Annotated[GuidedRule, Doc("quadrature: the authors', or trapezoid")] = "left"

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
