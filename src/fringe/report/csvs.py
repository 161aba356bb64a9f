"""Results as CSV: a row an image, method and metric; and a row a method and metric."""

from collections.abc import Iterator, Sequence
from typing import Any

from fringe._text import to_csv
from fringe.experiments import Results, ScoreRecord
from fringe.report.numbers import spread
from fringe.report.tables import Column, Table, TableCell, TableRow


def scores_csv(results: Results) -> str:
    """Every score that the plan asks for, in its order. ``status`` is ``missing`` where an image was not computed; an
    empty ``score`` beside ``ok`` means that the metric is not defined there."""
    return to_csv(list(_score_rows(results)))


def summary_csv(tables: Sequence[Table]) -> str:
    """Every cell of the tables, with its difference to the reference method."""
    return to_csv(
        [
            {"model": table.model, **_summary(table, row, column, cell)}
            for table in tables
            for row in table.rows
            for column, cell in zip(table.columns, row.cells, strict=True)
        ]
    )


def _score_rows(results: Results) -> Iterator[dict[str, Any]]:
    for (model, method, metric), cell in results.cells.items():
        images = results.manifest.images_of(metric)
        for image, row in zip(images, cell.rows, strict=True):
            yield {
                "plan": results.manifest.name,
                "model": model,
                "method": method,
                "control": results.is_control(method),
                "metric": metric,
                "image": image["digest"],
                "image_id": image["id"],
                "label": image["label"],
                **_known(row),
            }


def _known(row: ScoreRecord | None) -> dict[str, Any]:
    names = ("target", "confidence", "score", "status", "error", "verdict")
    costs = ("forward", "jvp", "vjp", "seconds")
    if row is None:
        return {**dict.fromkeys(names), "status": "missing", "flags": None, **dict.fromkeys(costs)}
    found = {name: getattr(row, name) for name in names}
    return {**found, "flags": " ".join(row.flags), **{name: getattr(row, name) for name in costs}}


def _summary(table: Table, row: TableRow, column: Column, cell: TableCell) -> dict[str, Any]:
    found, difference = cell.estimate, cell.difference
    return {
        "method": row.method,
        "control": row.control,
        "metric": column.label,
        "direction": column.direction,
        "unit": column.unit,
        "summary": column.summary,
        "value": found.value,
        "spread": spread(found),
        **{name: getattr(found, name) for name in ("mean", "low", "high", "median", "half_iqr")},
        **{name: getattr(cell, name) for name in ("n", "wanted", "missing", "failed", "undefined", "best", "near_tie")},
        "reference": table.reference,
        **{
            f"difference_{name}": None if difference is None else getattr(difference, name)
            for name in ("value", "low", "high", "n", "p")
        },
        "p_holm": cell.adjusted,
        "flags": " ".join(f"{name}:{number}" for name, number in cell.flags.items()),
    }
