"""Which images the grids of maps show, and why these; and the grids."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from fringe._names import method_title
from fringe.bench.experiments import Results
from fringe.bench.report._failures import STATUS
from fringe.bench.report._maps import GridData
from fringe.bench.report._table import Column, ScoreTable
from fringe.errors import InputError
from fringe.evaluation import WEIGHTS, dominance, pick
from fringe.metrics import Direction
from fringe.plots import (
    Figure,
    GridCell,
    GridRow,
    MetricLabel,
    Prediction,
    captions,
    class_title,
    comparison_grid,
    labels,
)

#: Images of a kind.
EXAMPLES = 3


@dataclass(frozen=True)
class ExampleSet:
    """Images (digests) under a ``title``; ``name`` is for a file."""

    name: str
    title: str
    images: tuple[str, ...]


def choose_examples(results: Results, table: ScoreTable, each: int = EXAMPLES) -> tuple[tuple[ExampleSet, ...], str]:
    """Choose strong, typical and failing images of the reference method by dominance, or the first images if the run
    lacks the metrics or the methods to compare with; and say in a sentence how they were chosen."""
    columns: dict[str, Column] = {}  # by the metric's name; of two settings of a metric the first
    for column in table.columns:
        if column.settings["metric"] in WEIGHTS:
            columns.setdefault(column.settings["metric"], column)
    digests = [image["digest"] for image in results.manifest.images_of(table.model)]
    size = min((results.manifest.metrics[column.label]["limit"] for column in columns.values()), default=0)
    scores = {
        name: {row.method: results.scores(table.model, row.method, column.label)[:size] for row in table.competing}
        for name, column in columns.items()
    }
    directions: dict[str, Direction] = {name: column.direction for name, column in columns.items()}
    try:
        ranked = dominance(scores, table.reference, directions)
    except InputError as error:
        first = ExampleSet("first", "First images of the draw", tuple(digests[:each]))
        return (first,), f"These images were not chosen by their scores ({error})."
    picks = pick(ranked, each)
    name = method_title(table.reference)
    kinds = {
        "strong": (f"Strong: {name} furthest ahead", picks.strong),
        "typical": (f"Typical: {name} near its median", picks.typical),
        "failures": (f"Failures: {name} furthest behind", picks.failures),
    }
    sets = tuple(
        ExampleSet(name, title, tuple(digests[index] for index in indices))
        for name, (title, indices) in kinds.items()
        if indices
    )
    terms = ", ".join(f"{column.title} (weight {WEIGHTS[name]:g})" for name, column in columns.items())
    return sets, (
        f"Images are ranked by how far {table.reference} is ahead of the other methods: the mean over {terms}. There "
        f"are {size} images. Strong: the highest of those where it beats more than half of the others on both MAS "
        "metrics. Failures: the lowest of all. Typical: the nearest to the median of the rest."
    )


def plot_examples(results: Results, table: ScoreTable, examples: ExampleSet, data: GridData) -> Figure:
    """Draw one grid: a row per image, the input and a column per method, the reference first."""
    metrics = labels([MetricLabel(c.label, c.settings["metric"], c.title, c.direction) for c in table.columns])
    shown = pl.col("image").cast(pl.String).is_in(list(examples.images))
    frames = [results.method_frame(table.model, method).filter(shown) for method in table.methods]
    maps = pl.concat([results.map_frame(table.model, method).filter(shown) for method in table.methods])
    rows = pl.concat(frames).filter(STATUS != "missing")
    return comparison_grid(
        [_grid_row(results, table, metrics, image, data, rows, maps) for image in examples.images],
        table.methods,
        title=f"{table.model} · {examples.title}",
        caption=captions(metrics),
    )


def _grid_row(
    results: Results,
    table: ScoreTable,
    metrics: Sequence[MetricLabel],
    image: str,
    data: GridData,
    computed: pl.DataFrame,
    by_map: pl.DataFrame,
) -> GridRow:
    scores = computed.filter(image=image).rows_by_key(["method", "metric"], named=True, unique=True)
    maps = by_map.filter(image=image).rows_by_key("method", named=True, unique=True)
    known = {key: row["score"] for key, row in scores.items() if row["score"] is not None}
    by_metric = [
        metric.annotations([known.get((m, metric.label), math.nan) for m in table.methods]) for metric in metrics
    ]
    annotations = list(zip(*by_metric, strict=True)) or [()] * len(table.methods)
    cells = list[GridCell]()
    for method, words in zip(table.methods, annotations, strict=True):
        status, values = maps[method]["status"] if method in maps else "ok", data.maps[method].get(image)
        remark = "not stored" * (values is None) if status == "ok" else status.replace("_", " ")
        cells.append(GridCell(values, words, remark))
    entry = next(one for one in results.manifest.images if one["digest"] == image)
    name = entry["id"] if entry["label"] is None else f"{entry['id']}, is {_class(data, entry['label'])}"
    explained = (maps[method] for method in table.methods if method in maps)
    row = next((row for row in explained if row["target"] is not None and row["confidence"] is not None), None)
    prediction = None if row is None else Prediction(_class(data, row["target"]), row["confidence"])
    return GridRow(data.images[image], name, prediction, tuple(cells))


def _class(data: GridData, number: int) -> str:
    names = data.class_names
    return class_title(names[number]) if names is not None and number < len(names) else f"class {number}"
