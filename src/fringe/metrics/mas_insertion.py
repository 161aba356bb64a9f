"""MAS insertion: does the prediction come back as fast as the map's mass says?"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from fringe.metrics.alignment import MagnitudeAlignment
from fringe.metrics.base import Direction, EvaluatedMaps, Scores


@dataclass(frozen=True)
class MASInsertion(MagnitudeAlignment):
    """Magnitude Aligned Scoring while the input's pixels, the important ones first, are put into the reference."""

    name: ClassVar[str] = "mas_insertion"
    title: ClassVar[str] = "MAS insertion"
    direction: ClassVar[Direction] = "higher"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "walker2024": {
            "reference": "folded",
            "size": 11,
            "sigma": 11.0,
            "padding": "zeros",
            "reduction": "abs_sum",
        },
        "text": {"scale": "guarded", "monotone": False, "clip": False, "rescale": False, "average": "mean"},
        "fast": {"steps": 64},
        "zero": {"reference": "zeros"},
    }

    def score(self, explained: EvaluatedMaps) -> Scores:
        return self.aligned(explained, "insertion")
