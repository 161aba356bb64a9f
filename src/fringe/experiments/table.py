"""Scores as plain rows, and rows as means with intervals."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fringe.experiments.compare import Comparison
from fringe.experiments.intervals import estimate
from fringe.experiments.row import MethodResult
from fringe.metrics import Metric


def tidy(comparison: Comparison) -> list[dict[str, Any]]:
    """One plain dict a method, metric and image: ``method``, ``control``, ``metric``, ``image``, ``score`` (None where
    there is none) and ``flags``: the metric's names of degenerate cases, or the fault of the map."""
    return [
        {"method": row.label, "control": row.control, "metric": metric, "image": image, **cell}
        for row in comparison.rows
        for metric in comparison.metrics
        for image, cell in zip(comparison.images, _cells(row, metric), strict=True)
    ]


def summarise(rows: Sequence[dict[str, Any]], metrics: Mapping[str, Metric], seed: int = 0) -> list[dict[str, Any]]:
    """One plain dict a method and metric of tidy ``rows``, in their order: :class:`Estimate` over the images that have
    a score, of how many ``images``, how many scores are ``flagged``, and how often each flag is up in ``flags``.
    ``metrics`` are a comparison's, by label: they say whether the mean or the median is the summary."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["method"], row["metric"]), []).append(row)
    return [
        {
            "method": method,
            "control": group[0]["control"],
            "metric": metric,
            **asdict(estimate([row["score"] for row in group], seed, metrics[metric].aggregate)),
            "images": len(group),
            "flagged": sum(bool(row["flags"]) for row in group),
            "flags": dict(Counter(flag for row in group for flag in row["flags"])),
        }
        for (method, metric), group in groups.items()
    ]


def _cells(row: MethodResult, metric: str) -> Iterable[dict[str, Any]]:
    scores = row.scores[metric]
    finite, values = scores.values.isfinite().tolist(), scores.values.tolist()
    raised = {name: flag.tolist() for name, flag in scores.flags.items()}
    for i, fault in enumerate(row.faults):
        flags = [fault] if fault else [name for name, flag in raised.items() if flag[i]]
        yield {"score": values[i] if finite[i] else None, "flags": flags}
