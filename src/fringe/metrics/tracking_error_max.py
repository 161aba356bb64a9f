"""Max tracking error: how far did the path stray from the geodesic at worst?"""

from dataclasses import dataclass
from typing import ClassVar

from fringe.metrics.base import Direction, EvaluatedMaps, Metric, Scores
from fringe.metrics.reported import reported


@dataclass(frozen=True)
class TrackingErrorMax(Metric):
    """Largest Fisher-Rao distance over the steps between the prediction and its waypoint on the geodesic.

    Read from the attribution's diagnostics; NaN and flagged ``undefined`` for a method that reports none.
    """

    name: ClassVar[str] = "tracking_error_max"
    title: ClassVar[str] = "Max tracking error"
    direction: ClassVar[Direction] = "lower"
    unit: ClassVar[str] = "radians"
    space: ClassVar[str] = "predictions along the method's path"
    source: ClassVar[str] = "FRInGe, appendix Effect of the Euclidean Trust-Region Cap"

    def score(self, explained: EvaluatedMaps) -> Scores:
        return reported(explained, self.name)
