"""From results to all that a report says: a chapter per model, one for what failed and one for the settings."""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fringe._files import read_json
from fringe._names import method_title
from fringe._tables import Cell, Row, Table
from fringe.bench.experiments import Results, Store
from fringe.bench.report._examples import choose_examples, plot_examples
from fringe.bench.report._failures import costs, failure_chapter
from fringe.bench.report._maps import MapSource, load_maps
from fringe.bench.report._protocol import header, protocol, settings, versions
from fringe.bench.report._render import Image, Report, Section, versions_chapter
from fringe.bench.report._table import Column, ScoreTable
from fringe.bench.report._truth import failed_gates, truth_chapter
from fringe.errors import FringeError, InputError
from fringe.evaluation import validity_table
from fringe.plots import (
    MAX_SERIES,
    Contrast,
    CurvePanel,
    Figure,
    ForestPanel,
    MeanCurve,
    plot_agreement,
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
            matrices = [
                [[math.nan if v is None else float(v) for v in row] for row in agreement[name]]
                for name in ("tau", "low", "high")
            ]
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


def build_report(
    store: Store,
    results: Results,
    tables: Sequence[ScoreTable],
    maps: MapSource | None,
    validity: Mapping[str, MetricVerdicts],
    commands: Sequence[str] = (),
    more: Sequence[Section] = (),
) -> Report:
    """Build the report of a run from its results and a table per model; ``maps`` says where maps come from (None for no
    maps), ``validity`` holds verdicts on the metrics by model, ``commands`` tell how the run was made, and the chapters
    ``more`` follow those of models."""
    truth, chapters = truth_chapter(results), list[Section]()
    for index, table in enumerate(tables, 1):
        scene = results.manifest.scene_of(table.model)
        # of several networks of a scene the table of truth pools the scores, and scores.csv has each
        if scene is None or len(results.manifest.scenes[scene]["networks"]) == 1:
            prefix = f"{index}-" if len(tables) > 1 else ""
            chapters.append(_model_chapter(results, table, maps, validity.get(table.model), prefix))
    plan, run = results.manifest.name, shlex.quote(store.root.name)
    again = (f"fringe status {run}", f"fringe report {run} --plan {shlex.quote(plan)}")
    where = (
        f"The plan is in plans/{plan}.json in the run's folder, with the digests of weights, settings and images; "
        "every score, image by image, is in scores.csv beside this report."
    )
    return Report(
        title=f"Attribution methods on {', '.join(results.manifest.scenes or results.models)}",
        header=header(results),
        chapters=(
            Section("Protocol", protocol(results)),
            *(() if truth is None else (truth,)),
            *chapters,
            *more,
            failure_chapter(results, tables, store),
            settings(results),
            versions_chapter(versions(results), where, (*commands, *again)),
        ),
    )


def _model_chapter(
    results: Results, table: ScoreTable, maps: MapSource | None, verdicts: MetricVerdicts | None, prefix: str
) -> Section:
    """One model; of a network of a scene, what its gates say stands before its scores."""
    failed = failed_gates(results.manifest, table.model)
    warning = (f"Gate failed: {'; '.join(failed)}. These scores are not to be read.",) if failed else ()
    sections = [Section("Scores", warning, table.shown)]
    is_given = results.manifest.scene_of(table.model) is None
    if is_given and verdicts is not None:
        sections.append(verdicts.section(prefix))
    sections.append(_difference_section(table, prefix))
    if is_given:
        sections.append(_curve_section(results, table, prefix))
        sections.append(_map_section(results, table, maps, prefix))
    sections.append(_cost_section(results, table))
    return Section(f"{table.model} (gate failed)" if failed else table.model, sections=tuple(sections))


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
    sets, reason = choose_examples(results, table)
    digests = list(dict.fromkeys(image for one in sets for image in one.images))
    try:
        data = load_maps(results, table.model, digests, source)
    except (FringeError, OSError) as error:
        return Section(title, (f"Maps are left out: {str(error).rstrip('.')}.",))
    names = {image["digest"]: image["id"] for image in results.manifest.images}
    images: list[Image] = []
    for one in sets:
        caption = f"{one.title}. Images: {', '.join(names[image] for image in one.images)}."
        figure = plot_examples(results, table, one, data)
        images.append(Image(f"{prefix}maps-{one.name}", caption, png_of(figure)))
    return Section(title, (reason,), images=tuple(images))


def _cost_section(results: Results, table: ScoreTable) -> Section:
    head = ("method", "images", "forward", "forward mode (JVP)", "backward (VJP)", "passes", "seconds")
    rows: list[Row] = [
        (method, n, *(Cell(one, int(one != round(one)) if math.isfinite(one) else 0) for one in passes), seconds)
        for method, n, *passes, seconds in costs(results, table.model).rows()
    ]
    return Section("Cost", (_COST_TEXT,), Table(head, rows, "Cost of a map, means over images"))


def forest(table: ScoreTable) -> Figure | None:
    """Plot the reference method against the others under every metric with a direction; None without a comparison."""
    panels = list[ForestPanel]()
    for index, column in enumerate(table.columns):
        contrasts = tuple(
            Contrast(row.method, difference.value, difference.low, difference.high, cell.adjusted)
            for row in table.competing
            if (cell := row.cells[index]).difference is not None and (difference := cell.difference).n > 0
        )
        panels += [ForestPanel(column.title, contrasts, column.direction, column.unit)] if contrasts else []
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
        lines = results.details(table.model, method, {c.label: f"curve/{_curve(c)[0]}" for c in known})
        for label, curves in lines.items():
            mean = MeanCurve.of(stacked(list(curves.values()))) if curves else None
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
