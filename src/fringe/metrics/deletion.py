"""Deletion: how soon the prediction goes when the important pixels do."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from fringe.metrics.base import Direction, EvaluatedMaps, Scores
from fringe.metrics.perturbation_area import PerturbationArea


@dataclass(frozen=True)
class Deletion(PerturbationArea):
    """Area under the target's probability while the reference's pixels, the important ones first, are put into the
    input."""

    name: ClassVar[str] = "deletion"
    title: ClassVar[str] = "Deletion AUC"
    direction: ClassVar[Direction] = "lower"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "raw": {"normalise": False},
        "fast": {"steps": 64},
        "zero": {"reference": "zeros"},
        "rise": {"reference": "zeros", "normalise": False, "reduction": "abs_sum"},
    }

    def score(self, explained: EvaluatedMaps) -> Scores:
        return self.area_under(explained, "deletion")
