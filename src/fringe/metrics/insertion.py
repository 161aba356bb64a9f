"""Insertion: how soon the important pixels bring the prediction back."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from fringe.metrics.base import Direction, EvaluatedMaps, Scores
from fringe.metrics.perturbation_area import PerturbationArea


@dataclass(frozen=True)
class Insertion(PerturbationArea):
    """Area under the target's probability while the input's pixels, the important ones first, are put into the
    reference."""

    name: ClassVar[str] = "insertion"
    title: ClassVar[str] = "Insertion AUC"
    direction: ClassVar[Direction] = "higher"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "raw": {"normalise": False},
        "fast": {"steps": 64},
        "zero": {"reference": "zeros"},
        "rise": {"reference": "folded", "size": 11, "sigma": 5.0, "normalise": False, "reduction": "abs_sum"},
    }

    def score(self, explained: EvaluatedMaps) -> Scores:
        return self.area_under(explained, "insertion")
