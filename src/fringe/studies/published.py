"""The paper's tables (arXiv 2605.06404), read from the files shipped beside this one."""

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

MODELS = ("resnet18", "resnet50", "resnet101", "resnet152", "inception_v3", "vgg19")
METRICS = {
    "mas_ins": "mas_insertion",
    "mas_del": "mas_deletion",
    "ins_auc": "insertion",
    "del_auc": "deletion",
    "infidelity": "infidelity",
    "sparseness": "sparseness",
}
SECONDS, SLOWDOWN = "seconds", "slowdown"
"""What the paper's table of run times holds: seconds of an image, and FRInGe's over those of IG."""
METHODS = {"geodesic_ig": "geoig_svi"}
"""The paper's names that are not ours."""


@dataclass(frozen=True)
class Published:
    """A cell of the paper: ``value`` with half its interval, or half its interquartile range for a median."""

    study: str
    model: str
    method: str
    metric: str
    value: float
    half: float


@cache
def published() -> tuple[Published, ...]:
    """Every cell of the paper's tables of scores, diagnostics, sensitivities and run times, by our names."""
    return (*_comparison(), *_ablation(), *_cap(), *_sensitivity(), *_runtime())


def _comparison() -> Iterator[Published]:
    for row in _rows("comparison"):
        method = METHODS.get(row["method"], row["method"])
        yield Published("comparison", row["model"], method, METRICS[row["metric"]], *_numbers(row))


def _ablation() -> Iterator[Published]:
    for row in _rows("ablation"):
        yield Published("ablation", row["model"], row["variant"], METRICS[row["metric"]], *_numbers(row))


def _cap() -> Iterator[Published]:
    for row in _rows("euclidean_cap"):
        label = {"on": "cap", "off": "no_cap"}[row["euclidean_cap"]]
        yield Published("cap", row["model"], label, row["diagnostic"], *_numbers(row))


def _sensitivity() -> Iterator[Published]:
    for row in _rows("max_sensitivity"):
        for method in ("fringe", "ig"):
            numbers = float(row[f"{method}_median"]), float(row[f"{method}_half_iqr"])
            yield Published("max_sensitivity", row["model"], method, "max_sensitivity", *numbers)


def _runtime() -> Iterator[Published]:
    for row in _rows("runtime"):
        for method in ("fringe", "ig"):
            numbers = float(row[f"{method}_s"]), float(row[f"{method}_ci95"])
            yield Published("runtime", row["model"], method, SECONDS, *numbers)
        yield Published("runtime", row["model"], "fringe", SLOWDOWN, float(row["slowdown"]), math.nan)


def _numbers(row: dict[str, Any]) -> tuple[float, float]:
    return float(row["mean"]), float(row["ci95"] or math.nan)


def _rows(name: str) -> list[dict[str, str]]:
    text = resources.files("fringe.studies").joinpath("tables", f"{name}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
