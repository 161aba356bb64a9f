"""The grid as it is drawn: each image with its prediction, and under each map the two scores that matter most."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fringe.experiments import Results, ScoreRecord
from fringe.plots import GridCell, GridRow, MetricLabel, captions, comparison_grid, labels
from fringe.report.account import by_image
from fringe.report.content import Drawing
from fringe.report.grid import Shown
from fringe.report.picks import Choice
from fringe.report.tables import Table


@dataclass(frozen=True)
class _Sheet:
    """What all rows of a grid share; ``rows`` by method and image."""

    results: Results
    model: str
    methods: Sequence[str]
    gauges: Sequence[MetricLabel]
    shown: Shown
    rows: Mapping[str, Mapping[str, ScoreRecord]]


def draw_choice(results: Results, table: Table, choice: Choice, shown: Shown) -> Drawing:
    """One grid: a row an image, the input and a column a method, the reference first."""
    methods = sorted((row.method for row in table.competing), key=lambda method: method != table.reference)
    rows = {method: by_image(results, table.model, method) for method in methods}
    gauges = labels([MetricLabel(c.label, c.settings["metric"], c.title, c.direction) for c in table.columns])
    sheet = _Sheet(results, table.model, methods, gauges, shown, rows)
    return comparison_grid(
        [_strip(sheet, image) for image in choice.images],
        methods,
        title=f"{table.model} · {choice.title}",
        caption=captions(gauges),
    )


def _strip(sheet: _Sheet, image: str) -> GridRow:
    about = next(one for one in sheet.results.manifest.images if one["digest"] == image)
    scores = [[_score(sheet, method, gauge.label, image) for method in sheet.methods] for gauge in sheet.gauges]
    words = list(zip(*(g.annotations(values) for g, values in zip(sheet.gauges, scores, strict=True)), strict=True))
    tiles = tuple(
        GridCell(sheet.shown.maps[method].get(image), words[place] if words else (), _remark(sheet, method, image))
        for place, method in enumerate(sheet.methods)
    )
    name = about["id"] if about["label"] is None else f"{about['id']}, is {_class(sheet, about['label'])}"
    return GridRow(sheet.shown.images[image], name, _prediction(sheet, image), tiles)


def _score(sheet: _Sheet, method: str, metric: str, image: str) -> float:
    cell = sheet.results.cell(sheet.model, method, metric)
    places = [place for place, row in enumerate(cell.rows) if row is not None and row.image == image]
    return float(cell.scores[places[0]]) if places else math.nan


def _remark(sheet: _Sheet, method: str, image: str) -> str:
    row = sheet.rows[method].get(image)
    if row is not None and row.status != "ok":
        return row.status.replace("_", " ")
    return "" if image in sheet.shown.maps[method] else "not kept"


def _prediction(sheet: _Sheet, image: str) -> str:
    """The explained class and its probability."""
    known = [rows[image] for rows in sheet.rows.values() if image in rows]
    found = next((row for row in known if row.target is not None and row.confidence is not None), None)
    return "" if found is None else f"{_class(sheet, found.target or 0)} · {found.confidence:.1%}"


def _class(sheet: _Sheet, number: int) -> str:
    names = sheet.shown.class_names
    return names[number] if names is not None and number < len(names) else f"class {number}"
