"""From results to all that a report says: a chapter per model, one for what failed and one for the settings."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fringe._tables import Cell, Row, Table
from fringe.bench.experiments import Results, Store
from fringe.bench.report._examples import choose_examples, plot_examples
from fringe.bench.report._failures import costs, failure_chapter
from fringe.bench.report._maps import MapSource, load_maps
from fringe.bench.report._protocol import header, how_to_rerun, protocol, read_commands, settings, versions
from fringe.bench.report._render import Image, Report, Section, versions_chapter
from fringe.bench.report._table import Column, ScoreTable
from fringe.bench.report._truth import failed_gates, truth_chapter
from fringe.bench.report._validity import MetricVerdicts
from fringe.errors import FringeError
from fringe.plots import (
    MAX_SERIES,
    Contrast,
    CurvePanel,
    Figure,
    ForestPanel,
    MeanCurve,
    method_title,
    plot_curves,
    plot_forest,
    png_of,
)

Curves = NDArray[np.floating]

_COST_TEXT = (
    "For the map of one image, without its scores. Passes and time of a batch are divided equally among its images. "
    "Seconds depend on the machine, on its other work and on the batch; passes do not."
)
_CURVES_TEXT = (
    "Means over images with bands of 1.96 standard errors; pixels are changed in the order of the map, and the score "
    "is the area under an image's curve."
)


@dataclass(frozen=True)
class ReportInputs:
    """What a report is made of: a run with its results, a table per model, where maps come from (None for no maps),
    and verdicts on the metrics by model."""

    store: Store
    results: Results
    tables: tuple[ScoreTable, ...]
    maps: MapSource | None
    validity: Mapping[str, MetricVerdicts] = field(default_factory=dict[str, MetricVerdicts])


def build_report(inputs: ReportInputs, commands: Sequence[str] = (), chapters: Sequence[Section] = ()) -> Report:
    """Build the report of a run; ``commands`` tell how the run was made, and ``chapters`` follow those of models."""
    results, truth = inputs.results, truth_chapter(inputs.results)
    prefixes = [f"{index}-" if len(inputs.tables) > 1 else "" for index in range(1, len(inputs.tables) + 1)]
    return Report(
        title=f"Attribution methods on {', '.join(results.manifest.scenes or results.models)}",
        header=header(results),
        chapters=(
            Section("Protocol", protocol(results)),
            *(() if truth is None else (truth,)),
            *(
                _model_chapter(inputs, table, prefix)
                for table, prefix in zip(inputs.tables, prefixes, strict=True)
                if not _is_one_of_many(results, table.model)
            ),
            *chapters,
            failure_chapter(results, inputs.tables, inputs.store),
            settings(results),
            versions_chapter(
                versions(results), how_to_rerun(results), (*commands, *read_commands(results, inputs.store.root.name))
            ),
        ),
    )


def _is_one_of_many(results: Results, model: str) -> bool:
    """Whether a scene trained several networks, of which this is one: its table pools them, and scores.csv has each."""
    scene = results.manifest.scene_of(model)
    return scene is not None and len(results.manifest.scenes[scene]["networks"]) > 1


def _model_chapter(inputs: ReportInputs, table: ScoreTable, prefix: str) -> Section:
    if inputs.results.manifest.scene_of(table.model) is not None:
        return _scene_chapter(inputs.results, table, prefix)
    verdicts = inputs.validity.get(table.model)
    sections = (
        Section("Scores", table=table.shown),
        *(() if verdicts is None else (verdicts.section(prefix),)),
        _difference_section(table, prefix),
        _curve_section(inputs.results, table, prefix),
        _map_section(inputs.results, table, inputs.maps, prefix),
        _cost_section(inputs.results, table),
    )
    return Section(table.model, sections=sections)


def _scene_chapter(results: Results, table: ScoreTable, prefix: str) -> Section:
    """One network of a scene; what its gates say stands before its scores."""
    failed = failed_gates(results.manifest, table.model)
    warning = (f"Gate failed: {'; '.join(failed)}. These scores are not to be read.",) if failed else ()
    sections = (
        Section("Scores", warning, table.shown),
        _difference_section(table, prefix),
        _cost_section(results, table),
    )
    return Section(f"{table.model} (gate failed)" if failed else table.model, sections=sections)


def _difference_section(table: ScoreTable, prefix: str) -> Section:
    title = f"Paired differences to {table.reference}"
    figure = forest(table)
    if figure is None:
        return Section(title, ("There is no other method to compare with.",))
    caption = (
        f"{table.reference} minus each other method on the same images, with the 95 % bootstrap interval. A filled "
        "point differs from zero with p < .05 (sign-flip test, adjusted after Holm for "
        f"{table.comparisons} comparisons)."
    )
    return Section(title, images=(Image(f"{prefix}differences", caption, png_of(figure)),))


def _curve_section(results: Results, table: ScoreTable, prefix: str) -> Section:
    title, drawn = "Insertion, deletion and MAS curves", curves(results, table)
    if not drawn:
        return Section(title, ("The run has no metric with curves.",))
    more = len(table.competing) - MAX_SERIES
    text = (f"{more} methods more are not drawn.",) if more > 0 else ()
    images = tuple(Image(f"{prefix}{name}", _CURVES_TEXT, png_of(figure)) for name, figure in drawn.items())
    return Section(title, text, images=images)


def _map_section(results: Results, table: ScoreTable, source: MapSource | None, prefix: str) -> Section:
    title = "Maps"
    if source is None:
        return Section(title, ("Maps were not asked for.",))
    examples = choose_examples(results, table)
    digests = list(dict.fromkeys(image for one in examples.sets for image in one.images))
    try:
        data = load_maps(results, table.model, digests, source)
    except (FringeError, OSError) as error:
        return Section(title, (f"Maps are left out: {str(error).rstrip('.')}.",))
    names = {image["digest"]: image["id"] for image in results.manifest.images}
    images: list[Image] = []
    for one in examples.sets:
        caption = f"{one.title}. Images: {', '.join(names[image] for image in one.images)}."
        figure = plot_examples(results, table, one, data)
        images.append(Image(f"{prefix}maps-{one.name}", caption, png_of(figure)))
    return Section(title, (examples.reason,), images=tuple(images))


def _cost_section(results: Results, table: ScoreTable) -> Section:
    head = ("method", "images", "forward", "forward mode (JVP)", "backward (VJP)", "passes", "seconds")
    rows: list[Row] = [
        (method, n, *(Cell(one, int(one != round(one)) if math.isfinite(one) else 0) for one in passes), seconds)
        for method, n, *passes, seconds in costs(results, table.model).rows()
    ]
    return Section("Cost", (_COST_TEXT,), Table(head, rows, "Cost of a map, means over images"))


def forest(table: ScoreTable) -> Figure | None:
    """Plot the reference method against the others under every metric with a direction; None without a comparison."""
    panels = [panel for index, column in enumerate(table.columns) if (panel := _forest_panel(table, index, column))]
    if not panels:
        return None
    title = f"{table.model}: {method_title(table.reference)} against its rivals"
    return plot_forest(panels, reference=table.reference, title=title)


def curves(results: Results, table: ScoreTable) -> dict[str, Figure]:
    """Plot the curves of insertion and deletion, and of both MAS metrics, if there are any, by a name for a file."""
    families = {
        "curves": ("insertion and deletion", ("insertion", "deletion")),
        "mas-curves": ("magnitude aligned scoring", ("mas_insertion", "mas_deletion")),
    }
    known = [column for column in table.columns if any(_metric(column) in metrics for _, metrics in families.values())]
    means: dict[str, dict[str, MeanCurve]] = {column.label: {} for column in known}
    for method in table.methods[:MAX_SERIES] if known else ():  # all metrics of a method are read at once
        lines = results.curves(table.model, method, {column.label: _curve(column)[0] for column in known})
        for label, curves in lines.items():
            mean = MeanCurve.of(stacked(curves)) if curves else None
            if mean is not None:
                means[label][method] = mean
    drawn: dict[str, Figure] = {}
    for name, (title, metrics) in families.items():
        panels = [
            CurvePanel(column.title, means[column.label], column.direction, _curve(column)[1])
            for column in known
            if _metric(column) in metrics and means[column.label]
        ]
        if panels:
            drawn[name] = plot_curves(panels, title=f"{table.model}: {title}")
    return drawn


def _forest_panel(table: ScoreTable, index: int, column: Column) -> ForestPanel | None:
    contrasts = tuple(
        Contrast(row.method, difference.value, difference.low, difference.high, cell.adjusted)
        for row in table.competing
        if (cell := row.cells[index]).difference is not None and (difference := cell.difference).n > 0
    )
    return ForestPanel(column.title, contrasts, column.direction, column.unit) if contrasts else None


def _metric(column: Column) -> str:
    return str(column.settings["metric"])


def _curve(column: Column) -> tuple[str, str]:
    """The name of a metric's curve, and the label of its axis."""
    if _metric(column).startswith("mas_"):
        return "aligned", "response, aligned"
    return ("normalised", "probability, normalised") if column.settings["normalise"] else ("raw", "probability")


def stacked(lines: Sequence[Curves]) -> Curves:
    """Stack curves to (n, N + 1). Images of another size have curves of other lengths: all are interpolated to the
    longest."""
    if len({len(line) for line in lines}) == 1:
        return np.stack(lines)
    share = np.linspace(0.0, 1.0, max(len(line) for line in lines))
    return np.array([np.interp(share, np.linspace(0.0, 1.0, len(line)), line) for line in lines])
