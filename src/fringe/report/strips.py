"""The grid as it is drawn: each image with its prediction, and under each map the two scores that matter most."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fringe.benchmark import Results, ScoreRow
from fringe.plots import Strip, Tile, Word, comparison_grid
from fringe.report.account import by_image
from fringe.report.content import Drawing
from fringe.report.grid import Shown
from fringe.report.picks import Choice
from fringe.report.tables import Column, Table


@dataclass(frozen=True)
class _Sheet:
    """What all rows of a grid share; ``rows`` by method and image."""

    results: Results
    model: str
    methods: Sequence[str]
    columns: Sequence[Column]
    shown: Shown
    rows: Mapping[str, Mapping[str, ScoreRow]]


def draw_choice(results: Results, table: Table, choice: Choice, shown: Shown) -> Drawing:
    """One grid: a row an image, the input and a column a method, the reference first."""
    methods = sorted((row.method for row in table.competing), key=lambda method: method != table.reference)
    rows = {method: by_image(results, table.model, method) for method in methods}
    sheet = _Sheet(results, table.model, methods, telemetry(table.columns), shown, rows)
    legend = [f"{short_name(column)} {column.title} {column.arrow}".strip() for column in sheet.columns]
    return comparison_grid(
        [_strip(sheet, image) for image in choice.images],
        methods,
        title=f"{table.model} · {choice.title}",
        caption=f"{' · '.join(legend)}; the best of an image is bold",
    )


def telemetry(columns: Sequence[Column]) -> list[Column]:
    """The two metrics under each map: MAS insertion and deletion where both are there, else the first two with a
    direction."""
    aligned = [column for column in columns if column.settings["metric"] in ("mas_insertion", "mas_deletion")]
    return aligned if len(aligned) == 2 else [column for column in columns if column.direction != "none"][:2]


def short_name(column: Column) -> str:
    """``MI`` for mas_insertion, ``Spa`` for sparseness."""
    words = column.settings["metric"].split("_")
    return "".join(word[0] for word in words).upper() if len(words) > 1 else words[0][:3].capitalize()


def short_number(value: float) -> str:
    """Two decimals without a leading zero: ``.43``, ``-.07``, ``12``."""
    if not math.isfinite(value):
        return "–"
    text = f"{value:.2f}" if abs(value) < 10 else f"{value:.0f}" if abs(value) < 1e4 else f"{value:.0e}"
    return text.replace("0.", ".", 1) if abs(value) < 1 else text


def _strip(sheet: _Sheet, image: str) -> Strip:
    about = next(one for one in sheet.results.manifest.images if one["digest"] == image)
    words = list(zip(*(_words(sheet, column, image) for column in sheet.columns), strict=True))
    tiles = tuple(
        Tile(sheet.shown.maps[method].get(image), words[place] if words else (), _remark(sheet, method, image))
        for place, method in enumerate(sheet.methods)
    )
    name = about["id"] if about["label"] is None else f"{about['id']}, is {_class(sheet, about['label'])}"
    return Strip(sheet.shown.images[image], name, _prediction(sheet, image), tiles)


def _words(sheet: _Sheet, column: Column, image: str) -> list[Word]:
    """What stands under each method's map."""
    values = [_score(sheet, method, column.label, image) for method in sheet.methods]
    finite = [value for value in values if math.isfinite(value)]
    best = None if not finite or column.direction == "none" else (max if column.direction == "higher" else min)(finite)
    return [Word(f"{short_name(column)} {short_number(value)}", value == best) for value in values]


def _score(sheet: _Sheet, method: str, metric: str, image: str) -> float:
    cell = sheet.results.cell(sheet.model, method, metric)
    places = [place for place, row in enumerate(cell.rows) if row is not None and row.image == image]
    return float(cell.scores[places[0]]) if places else math.nan


def _remark(sheet: _Sheet, method: str, image: str) -> str:
    row = sheet.rows[method].get(image)
    return "" if row is None or row.status == "ok" else row.status.replace("_", " ")


def _prediction(sheet: _Sheet, image: str) -> str:
    """The explained class and its probability."""
    known = [rows[image] for rows in sheet.rows.values() if image in rows]
    found = next((row for row in known if row.target is not None and row.confidence is not None), None)
    return "" if found is None else f"{_class(sheet, found.target or 0)} · {found.confidence:.1%}"


def _class(sheet: _Sheet, number: int) -> str:
    names = sheet.shown.class_names
    return names[number] if names is not None and number < len(names) else f"class {number}"
