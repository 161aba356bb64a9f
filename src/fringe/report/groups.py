"""Which question a metric answers: the groups of rows in the paper's tables, and their order."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

CALIBRATION = "Attribution calibration"
FAITHFULNESS = "Causal faithfulness (normalized, blur)"
OTHER_FAITHFULNESS = "Causal faithfulness (raw, or without blur)"
FOCUS = "Map focus and local robustness"
OTHERS = "Other metrics"

_GROUPS = (CALIBRATION, FAITHFULNESS, OTHER_FAITHFULNESS, FOCUS, OTHERS)
_PAPER = ("mas_insertion", "mas_deletion", "insertion", "deletion", "sparseness", "infidelity", "max_sensitivity")
_BLURS = ("box", "gaussian", "folded")


@dataclass(frozen=True)
class Group:
    """A question, and the places of its metrics among a table's columns: neighbours, as :func:`in_order` puts them."""

    name: str
    places: tuple[int, ...]


def group_of(settings: Mapping[str, Any]) -> str:
    """The group of a metric with these settings."""
    name = settings["metric"]
    if name in ("mas_insertion", "mas_deletion"):
        return CALIBRATION
    if name in ("insertion", "deletion"):
        blurred = settings["reference"] in _BLURS
        return FAITHFULNESS if blurred and settings["normalise"] else OTHER_FAITHFULNESS
    return FOCUS if name in _PAPER else OTHERS


def in_order(metrics: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The labels of metrics (settings by label) as the paper's tables order them, others after those in their order."""

    def place(label: str) -> tuple[int, int]:
        name = metrics[label]["metric"]
        return _GROUPS.index(group_of(metrics[label])), _PAPER.index(name) if name in _PAPER else len(_PAPER)

    return sorted(metrics, key=place)


def groups(columns: Sequence[Mapping[str, Any]]) -> list[Group]:
    """The groups of metrics with these settings, empty ones left out."""
    found: dict[str, list[int]] = {}
    for place, settings in enumerate(columns):
        found.setdefault(group_of(settings), []).append(place)
    return [Group(name, tuple(places)) for name, places in found.items()]
