"""Completeness residual: does the map's sum account for the change of the score?"""

from dataclasses import dataclass
from typing import ClassVar

from fringe.metrics.base import Direction, EvaluatedMaps, Metric, Scores
from fringe.metrics.reported import reported


@dataclass(frozen=True)
class CompletenessResidual(Metric):
    """``|sum A - (F(x) - F(x_end))| / |F(x) - F(x_end)|`` at the end point that the path reached.

    Read from the attribution's diagnostics; NaN and flagged ``undefined`` for a method that reports none.
    """

    name: ClassVar[str] = "completeness_residual"
    title: ClassVar[str] = "Completeness residual"
    direction: ClassVar[Direction] = "lower"
    space: ClassVar[str] = "the score along the method's own path"
    source: ClassVar[str] = "FRInGe, appendix Effect of the Euclidean Trust-Region Cap (epsilon_comp)"

    def score(self, explained: EvaluatedMaps) -> Scores:
        return reported(explained, self.name)
