"""MAS deletion: does the prediction go as fast as the map's mass says?"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from fringe.metrics.alignment import MagnitudeAlignment
from fringe.metrics.base import Direction, EvaluatedMaps, Scores


@dataclass(frozen=True)
class MASDeletion(MagnitudeAlignment):
    """Magnitude Aligned Scoring while the reference's pixels, the important ones first, are put into the input."""

    name: ClassVar[str] = "mas_deletion"
    title: ClassVar[str] = "MAS deletion"
    direction: ClassVar[Direction] = "lower"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "walker2024": {"reference": "zeros", "reduction": "abs_sum"},
        "text": {"scale": "guarded", "monotone": False, "clip": False, "rescale": False, "average": "mean"},
        "fast": {"steps": 64},
        "zero": {"reference": "zeros"},
    }

    def score(self, explained: EvaluatedMaps) -> Scores:
        return self.aligned(explained, "deletion")
