"""What is known of the metrics of a run: verdicts that were made by ``fringe compare --validity``."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from fringe._files import read_json
from fringe.bench.report._render import Image, Section, SimpleTable
from fringe.errors import InputError
from fringe.plots import plot_agreement, png_of

_TEXT = (
    "In each map more and more pixels are shuffled. Validity is the rank correlation between how little was shuffled "
    "and how good the score is (1: it orders the maps of every image). Power is the effect size of shuffling 40 % of "
    "the pixels. Gap is the effect size between the best method and the best map that does not depend on the model. "
    "Metrics that do not reach all of {least} stand last in the table, after those that were not judged. Neither have "
    "a winner."
)


@dataclass(frozen=True)
class MetricVerdicts:
    """Verdicts on the metrics of one model, as they were written."""

    model: str
    document: Mapping[str, Any]

    @property
    def by_metric(self) -> dict[str, str]:
        """Whether a metric passes, does not pass, or was not judged, by label."""
        known = ("passes", "does not pass")
        entries = ((one["metric"], one["verdict"]) for one in self.document["metrics"])
        return {metric: verdict if verdict in known else "not judged" for metric, verdict in entries}

    def applies_to(self, model: str, models: Sequence[str]) -> bool:
        """Whether these are the verdicts for a model of a run."""
        return model == self.model or (len(models) == 1 and self.model not in models)

    def section(self, prefix: str) -> Section:
        """The section of a report."""
        rows = tuple(map(_row, self.document["metrics"]))
        head = ("metric", "validity", "power", "gap", "images", "verdict")
        least = ", ".join(f"{name} {value:g}" for name, value in self.document["least"].items())
        title = f"Metrics on {self.model}, {self.document['images']} images"
        table = SimpleTable(title, head, rows, frozenset(range(1, 5)))
        agreement, images = self.document["agreement"], ()
        if agreement is not None:
            matrices = [[[_value(v) for v in row] for row in agreement[name]] for name in ("tau", "low", "high")]
            figure = plot_agreement(agreement["metrics"], *matrices)
            caption = f"How alike the metrics rank {', '.join(agreement['methods'])} (Kendall's tau)."
            images = (Image(f"{prefix}agreement", caption, png_of(figure)),)
        return Section("Metric validity", (_TEXT.format(least=least),), simple=table, images=images)


def read_verdicts(path: Path) -> MetricVerdicts:
    """Read ``validity.json`` of ``fringe compare --validity``. Raises InputError if it cannot be read or is another."""
    document = read_json(path, "validity")
    wrong = InputError(f"{str(path)!r} holds no verdicts on metrics", argument="validity")
    if not isinstance(document, dict):
        raise wrong
    verdicts = MetricVerdicts(str(cast(dict[str, Any], document).get("model")), cast(dict[str, Any], document))
    try:
        verdicts.section("")
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise wrong from error
    return verdicts


def _row(one: Mapping[str, Any]) -> tuple[str, ...]:
    words = f"{one['verdict']}: {one['reason']}" if one["reason"] else str(one["verdict"])
    return one["metric"], _spread(one["validity"]), _number(one["power"]), _number(one["gap"]), str(one["n"]), words


def _value(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _number(value: float | None) -> str:
    return "—" if value is None else f"{value:.2f}"


def _spread(estimate: Mapping[str, Any]) -> str:
    if estimate["mean"] is None:
        return "—"
    ends = "" if estimate["low"] is None else f" [{estimate['low']:.2f}, {estimate['high']:.2f}]"
    return f"{estimate['mean']:.2f}{ends}"
