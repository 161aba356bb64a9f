"""Which question a metric answers: the groups of rows in the paper's tables."""

from collections.abc import Sequence
from dataclasses import dataclass

from fringe.report.tables import Column


@dataclass(frozen=True)
class Group:
    """Metrics that answer one question, under its name."""

    name: str
    columns: tuple[int, ...]
    """Places of the metrics among the table's columns."""


CALIBRATION = "Attribution calibration"
FAITHFULNESS = "Causal faithfulness (normalized, blur)"
OTHER_FAITHFULNESS = "Causal faithfulness (raw, or without blur)"
FOCUS = "Map focus and local robustness"
OTHERS = "Other metrics"


def groups(columns: Sequence[Column]) -> list[Group]:
    """The columns in the groups of the paper's tables, empty ones left out."""
    found: dict[str, list[int]] = {name: [] for name in (CALIBRATION, FAITHFULNESS, OTHER_FAITHFULNESS, FOCUS, OTHERS)}
    for place, column in enumerate(columns):
        found[_group_of(column)].append(place)
    return [Group(name, tuple(places)) for name, places in found.items() if places]


def _group_of(column: Column) -> str:
    name, settings = column.settings["metric"], column.settings
    if name in ("mas_insertion", "mas_deletion"):
        return CALIBRATION
    if name in ("insertion", "deletion"):
        blurred = settings["reference"] in ("box", "gaussian", "folded")
        return FAITHFULNESS if blurred and settings["normalise"] else OTHER_FAITHFULNESS
    return FOCUS if name in ("sparseness", "infidelity", "max_sensitivity") else OTHERS
