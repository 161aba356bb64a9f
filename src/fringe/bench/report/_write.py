"""A report of a run, from its folder to files."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from pydantic import Field

from fringe._files.disk import require_inside, require_local, write_files
from fringe._strings.formats import FORMULA, to_csv
from fringe._strings.formats import cell as to_cell
from fringe._strings.report import Section, html_page, latex_document, markdown_report
from fringe._strings.tables import Table
from fringe.bench.experiments import Results, Store, read_results
from fringe.bench.report._build import MetricVerdicts, build_report, read_verdicts
from fringe.bench.report._table import GATES, TRUTH, Column, ModelTable, build_table, reference_of
from fringe.errors import InputError
from fringe.settings import Options

#: Missing cells that a refusal lists.
LISTED = 5


@dataclass(frozen=True)
class ReportFiles:
    """The files of a report, its ``page`` first, and the tables of scores in them, one for each model or scene."""

    paths: tuple[Path, ...]
    tables: tuple[Table, ...]

    @property
    def page(self) -> Path:
        """The HTML page."""
        return self.paths[0]


class ReportSpec(Options):
    """Options of :func:`write_report`, as keyword arguments and as flags.

    If the run has one model, the verdicts of ``validity`` on another model count for it.
    """

    plan: str | None = Field(None, description="Plan of the folder. Default: all.")
    reference: str | None = Field(
        None, description="Method that the others are compared with. Default: fringe, else the first."
    )
    allow_partial: bool = Field(False, description="Write the report although some images are not computed yet.")
    grid: bool = Field(True, description="Draw the stored maps of selected images.")
    validity: tuple[Path, ...] = Field(
        (), description="validity.json of 'compare --validity': metrics that fail go last; may be repeated."
    )


def report_folder(run: Path, plan: str) -> Path:
    """The folder of the report of a plan: ``report`` in the run's folder, for other plans than ``benchmark`` a folder
    in it. Raises InputError if a link, or the name of the plan, leads out of the run."""
    folder = run / "report" / ("" if plan == "benchmark" else plan)
    require_inside(folder, run)
    return folder


def write_report(
    run: Store | str | Path,
    out: str | os.PathLike[str] | None = None,
    *,
    commands: Sequence[str] = (),
    chapter: Callable[[Results], Section] | None = None,
    **options: Any,
) -> ReportFiles:
    """Write ``report.html``, ``report.md``, ``tables.tex``, ``scores.csv``, ``summary.csv`` and ``figures/*.png`` of a
    run. Each file is complete or absent.

    No model is loaded and no map is made: the folder may come from a stranger. The maps are those that the run stored.

    Args:
        run: Folder of the run.
        out: Folder of the report (default: see :func:`report_folder`).
        commands: Commands by which the run was made, printed in the report.
        chapter: Returns a chapter more from the results.
        **options: Fields of :class:`ReportSpec`: what the report says.

    Returns:
        The files that were written.

    Raises:
        InputError: For a plan or a reference that the run does not have, for a folder that cannot be written
            or contains a link to another folder, and for missing images.
    """
    spec = ReportSpec(**options)
    require_local("out", out or "")
    out = None if out is None else Path(out)
    store = run if isinstance(run, Store) else Store(run, create=False)
    results = read_results(store, spec.plan)
    chosen = [reference_of(results, model, spec.reference) for model in results.models]
    _check_complete(results, allow_partial=spec.allow_partial)
    verdicts = dict[str, MetricVerdicts]()
    for path in spec.validity:
        one = read_verdicts(path)
        concerned = [model for model in results.models if one.applies_to(model, results.models)]
        if not concerned:
            known = ", ".join(results.models)
            raise InputError(f"{str(path)!r} is about {one.model!r}; the models: {known}", argument="validity")
        verdicts |= dict.fromkeys(concerned, one)
    tables = tuple(
        build_table(results, model, name, verdicts[model].by_metric if model in verdicts else None)
        for model, name in zip(results.models, chosen, strict=True)
    )
    folder = out or report_folder(store.root, results.manifest.name)
    within = Path(os.path.abspath(folder)).is_relative_to(os.path.abspath(store.root))
    require_inside(folder, store.root if within else folder)
    scores = write_files(folder, {"scores.csv": scores_csv(results)})
    more = [] if chapter is None else [chapter(results)]
    report = build_report(store, results, tables, spec.grid, verdicts, commands, more)
    printed = tuple(table.shown for table in tables)
    truth = [part for chapter in report.chapters if chapter.title == TRUTH for part in chapter.sections]
    pooled = [part.table for part in truth if part.table and part.title != GATES]
    files = {
        "report.html": html_page(report),
        "report.md": markdown_report(report),
        "tables.tex": latex_document({table.model: shown for table, shown in zip(tables, printed, strict=True)}),
    }
    texts = {name: text.encode(errors="backslashreplace") for name, text in files.items()}  # names may not be UTF-8
    images = {f"figures/{image.name}.png": image.png for image in report.images}
    others = write_files(folder, {**texts, "summary.csv": summary_csv(tables).encode(), **images})
    return ReportFiles((*others[: len(texts)], *scores, *others[len(texts) :]), tuple(pooled) or printed)


def scores_csv(results: Results) -> Iterator[bytes]:
    """Yield every score that the plan requires, in its order, a part at a time: all of it may be longer than the
    memory. ``status`` is ``missing`` if an image was not computed; an empty ``score`` beside ``ok`` means that the
    metric is not defined there."""
    names, is_first = {"plan": results.manifest.name}, True
    for model, method in dict.fromkeys((model, method) for model, method, _ in results.cells):
        frame, end = results.method_frame(model, method), 0
        for metric in results.metrics:
            start, end = end, end + results.cells[model, method, metric].required
            names |= {"model": model, "method": method, "metric": metric}
            yield _csv(frame[start:end], names, header=is_first)
            is_first = False


def _csv(scores: pl.DataFrame, names: Mapping[str, str], *, header: bool) -> bytes:
    """Scores of a method under a metric as CSV, with the ``names`` of the plan, the model and these two."""
    text = pl.col(pl.String)
    is_formula = text.str.contains(f"^[{re.escape(''.join(FORMULA))}]")
    frame = scores.select(
        pl.col("image", "image_id").cast(pl.String),
        *("label", "target"),
        pl.col("confidence", "score").fill_nan(None),
        pl.col("status", "error", "verdict").cast(pl.String),
        pl.col("flags").list.join(" "),
        pl.col("forward", "jvp", "vjp", "seconds"),
        is_control=pl.when("control").then(pl.lit("yes")).otherwise(pl.lit("no")),
    ).with_columns(pl.when(is_formula).then(pl.lit("'") + text).when(text != "").then(text).name.keep())
    plan, model, method, metric = (pl.lit(to_cell(name)).alias(column) for column, name in names.items())
    named = frame.select(plan, model, method, pl.col("is_control").alias("control"), metric, pl.exclude("is_control"))
    named.write_csv(out := io.BytesIO(), include_header=header)
    return out.getvalue()


def summary_csv(tables: Sequence[ModelTable]) -> str:
    """Return every cell of the tables, with its difference to the reference method."""
    return to_csv(
        [
            {"model": table.model, "gates_hold": table.gates_hold, **_summary(table, method, column)}
            for table in tables
            for method in table.rows
            for column in table.columns
        ]
    )


def _check_complete(results: Results, *, allow_partial: bool) -> None:
    name, holes = results.manifest.name, results.missing()
    if not any(cell.scored or cell.failed for cell in results.cells.values()):
        raise InputError(f"nothing of the plan {name} is computed yet", argument="run", hint="run it first")
    if holes and not allow_partial:
        more = f"; and {len(holes) - LISTED} cells more" if len(holes) > LISTED else ""
        raise InputError(
            f"the plan {name} is incomplete ({'; '.join(holes[:LISTED])}{more})",
            argument="run",
            hint="repeat the run's command to compute the rest, or pass allow_partial=True for a report that states "
            "what is missing",
        )


def _summary(table: ModelTable, method: str, column: Column) -> dict[str, Any]:
    score, counts = table.score(method, column), table.counts(method, column)
    estimate, difference, test = score.estimate, score.difference, score.test
    return {
        "method": method,
        "control": method in table.scores.controls,
        "metric": column.label,
        "direction": column.direction,
        "unit": column.unit,
        "summary": column.summary,
        "value": estimate.value,
        **{name: getattr(estimate, name) for name in ("mean", "low", "high", "median", "half_iqr", "n")},
        **{name: getattr(counts, name) for name in ("required", "missing", "failed")},
        "undefined": table.undefined(method, column),
        **{name: score.rank == rank for name, rank in (("best", "best"), ("near_tie", "near"))},
        "reference": table.reference,
        **{
            f"difference_{name}": None if difference is None else getattr(difference, name)
            for name in ("value", "low", "high", "n", "p")
        },
        "p_holm": score.adjusted,
        "control_compared": None if test is None else test.control,
        **{
            f"control_difference_{name}": None if test is None else getattr(test.difference, name)
            for name in ("value", "low", "high", "n", "p")
        },
        "control_p_holm": None if test is None else test.adjusted,
        "flags": " ".join(f"{name}:{number}" for name, number in counts.flags().items()),
    }
