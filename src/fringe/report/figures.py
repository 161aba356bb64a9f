"""The figures of a model that are drawn from scores: paired differences, and the curves behind the scores."""

import numpy as np
from numpy.typing import NDArray

from fringe.experiments import Cell, Results
from fringe.plots import MAX_SERIES, Contrast, CurvePanel, ForestPanel, plot_curves, plot_forest
from fringe.report.content import Drawing
from fringe.report.tables import Column, Table

Curves = NDArray[np.float64]


def forest(table: Table) -> Drawing | None:
    """The reference method against its rivals under every metric with a direction; None without a comparison."""
    panels = [panel for place, column in enumerate(table.columns) if (panel := _forest_panel(table, place, column))]
    if not panels:
        return None
    return plot_forest(panels, reference=table.reference, title=f"{table.model}: {table.reference} against its rivals")


def curves(results: Results, table: Table) -> dict[str, Drawing]:
    """By a name for a file: the curves of insertion and deletion, and of both MAS metrics, as far as there are any."""
    families = {"curves": ("insertion", "deletion"), "mas-curves": ("mas_insertion", "mas_deletion")}
    titles = {"curves": "insertion and deletion", "mas-curves": "magnitude aligned scoring"}
    drawn: dict[str, Drawing] = {}
    for family, metrics in families.items():
        panels = [
            panel
            for column in table.columns
            if column.settings["metric"] in metrics and (panel := _curve_panel(results, table, column)).curves
        ]
        if panels:
            drawn[family] = plot_curves(panels, title=f"{table.model}: {titles[family]}")
    return drawn


def _forest_panel(table: Table, place: int, column: Column) -> ForestPanel | None:
    contrasts = tuple(
        Contrast(row.method, found.value, found.low, found.high, cell.adjusted)
        for row in table.competing
        if (cell := row.cells[place]).difference is not None and (found := cell.difference).n > 0
    )
    return ForestPanel(column.title, contrasts, column.direction, column.unit) if contrasts else None


def _curve_panel(results: Results, table: Table, column: Column) -> CurvePanel:
    name, axis = _curve_of(column)
    methods = sorted((row.method for row in table.competing), key=lambda method: method != table.reference)
    found = {m: stacked(results.cell(table.model, m, column.label), name) for m in methods[:MAX_SERIES]}
    return CurvePanel(column.title, {m: c for m, c in found.items() if c.size}, column.direction, axis)


def _curve_of(column: Column) -> tuple[str, str]:
    """The curve whose area is the score, and what its axis says."""
    if column.settings["metric"].startswith("mas_"):
        return "aligned", "response, aligned"
    if column.settings["normalise"]:
        return "normalised", "probability, normalised"
    return "raw", "probability"


def stacked(cell: Cell, name: str) -> Curves:
    """The curves ``name`` of a cell's images, (n, N + 1). Images of another size have curves of other lengths: all are
    interpolated to the longest."""
    rows = [dict(row.curves) for row in cell.rows if row is not None]
    found = [np.asarray(row[name], dtype=np.float64) for row in rows if name in row]
    if not found:
        return np.empty((0, 0))
    share = np.linspace(0.0, 1.0, max(len(curve) for curve in found))
    return np.array([np.interp(share, np.linspace(0.0, 1.0, len(curve)), curve) for curve in found])
