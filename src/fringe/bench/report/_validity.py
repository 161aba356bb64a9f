"""What is known of the metrics of a run: verdicts that were made by ``fringe compare --validity``."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from fringe._files import read_json
from fringe.bench.report._render import Image, Section
from fringe.errors import InputError
from fringe.evaluation import validity_table
from fringe.plots import plot_agreement, png_of

_TEXT = (
    "In each map more and more pixels are shuffled. Metrics that do not reach all of {least} stand last in the table, "
    "after those that were not judged. Neither have a winner."
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
        least = ", ".join(f"{name} {value:g}" for name, value in self.document["least"].items())
        title = f"Metrics on {self.model}, {self.document['images']} images"
        table = validity_table(self.document["metrics"], title)
        agreement, images = self.document["agreement"], ()
        if agreement is not None:
            matrices = [[[_value(v) for v in row] for row in agreement[name]] for name in ("tau", "low", "high")]
            figure = plot_agreement(agreement["metrics"], *matrices)
            caption = f"How alike the metrics rank {', '.join(agreement['methods'])} (Kendall's tau)."
            images = (Image(f"{prefix}agreement", caption, png_of(figure)),)
        return Section("Metric validity", (_TEXT.format(least=least),), table, images=images)


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


def _value(value: float | None) -> float:
    return math.nan if value is None else float(value)
