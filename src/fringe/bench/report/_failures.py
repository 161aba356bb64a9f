"""What the images cost, and the chapter of a report on what is missing, what failed, and what came with a flag."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from fringe._tables import Cell, Row, Table
from fringe.bench.experiments import Results, Store, crashes, describe_failures, mixed
from fringe.bench.report._render import Section
from fringe.bench.report._table import ScoreTable

#: The status of a score as text.
STATUS = pl.col("status").cast(pl.String)
#: Reasons of one kind that a status shows.
SHOWN_REASONS = 10
_NO_MAP = ("failed", "unreadable")
#: A count of zero: other numbers should stand out.
ZERO = "·"


def costs(results: Results, model: str) -> pl.DataFrame:
    """Return ``method``, ``n``, and the means of ``forward``, ``jvp``, ``vjp``, ``passes`` and ``seconds`` over the n
    images that have a map, one row per method; controls cost nothing."""
    methods = results.methods(model, controls=False)
    rows = [cost_of_maps(results, [model], m).select(pl.lit(m).alias("method"), pl.all()) for m in methods]
    return pl.concat(rows)


def cost_of_maps(results: Results, models: Iterable[str], method: str) -> pl.DataFrame:
    """Return one row, as of :func:`costs`, for the maps of a method on some models together."""
    names = ("forward", "jvp", "vjp", "seconds")
    parts = [results.map_frame(model, method).filter(~STATUS.is_in(_NO_MAP)).select(names) for model in models]
    maps = pl.concat(parts).with_columns(passes=pl.sum_horizontal(names[:3]))
    return maps.select(pl.len().alias("n"), pl.col(*names[:3], "passes", "seconds").mean().fill_null(float("nan")))


def verdicts(results: Results, model: str) -> dict[str, dict[str, int]]:
    """Count how often a method gave each verdict on its maps; methods that give none are left out."""
    result: dict[str, dict[str, int]] = {}
    for name in results.methods(model, controls=False):
        counts = results.map_frame(model, name).drop_nulls("verdict").group_by("verdict").len().rows()
        result |= {name: dict(counts)} if counts else {}
    return result


def quarantined(store: Store, results: Results) -> list[str]:
    """Return a line per task of this plan that ended its process again and again, and is not retried."""
    known = results.manifest.settings
    return [
        f"set aside: {crash['model']}, {crash['method']}, {len(crash['images'])} images: {crash['reason']}"
        for crash in crashes(store)
        if crash["setting"] == known.get(crash["model"], {}).get(crash["method"])
    ]


def failure_chapter(results: Results, tables: Sequence[ScoreTable], store: Store) -> Section:
    """Return what is missing, what failed and why, verdicts of the methods on their own maps, and metrics' flags."""
    missing = (
        *results.missing(),
        *quarantined(store, results),
        *(f"drawn and not read: {reason}" for reason in results.manifest.missing),
    )
    sections = [Section("Not computed", lines=missing or ("Every image of the plan was computed.",))]
    failed: dict[tuple[str, int, str], list[str]] = {}
    for model, method, reason, _, images in results.failures().rows():
        failed.setdefault((model, images, reason.replace("not_finite", "not finite")), []).append(method)
    rows: list[Row] = [(model, ", ".join(names), images, why) for (model, images, why), names in failed.items()]
    table = Table(("model", "methods", "images", "reason"), rows, "Images that a method failed on")
    sections.append(_section("Failed", table, "No method failed on an image."))
    undefined: dict[tuple[str, str], list[str]] = {}
    for scores in tables:
        for row in scores.rows:
            for column, cell in zip(scores.columns, row.cells, strict=True):
                if cell.undefined:
                    undefined.setdefault((scores.model, column.title), []).append(f"{row.method} {cell.undefined}")
    rows = [(model, metric, ", ".join(names)) for (model, metric), names in undefined.items()]
    head = ("model", "metric", "images where it is not defined, by method")
    table = Table(head, rows, "Finite maps without a score")
    sections.append(_section("Not defined", table, "Every finite map has a score under every metric."))
    for model in results.models:
        counted = verdicts(results, model)
        names = sorted({name for counts in counted.values() for name in counts}, key=lambda name: (name != "ok", name))
        rows = [(method, *(counts.get(name) or ZERO for name in names)) for method, counts in counted.items()]
        table = Table(("method", *names), rows, f"Verdicts on {model}, images")
        sections += [Section(f"Verdicts on {model}", table=table)] if rows else []
    for scores in tables:
        pairs = sorted(scores.flags(controls=False) | scores.flags(controls=True))
        indices = {column.title: index for index, column in enumerate(scores.columns)}
        rows = [
            (flag, title, *(row.cells[indices[title]].flags.get(flag) or ZERO for row in scores.rows))
            for flag, title in pairs
        ]
        table = Table(
            ("flag", "metric", *(row.method for row in scores.rows)), rows, f"Flagged scores on {scores.model}"
        )
        sections += [Section(f"Flags on {scores.model}", table=table)] if rows else []
    return Section("Missing, failures and flags", sections=tuple(sections))


def _section(title: str, table: Table, empty: str) -> Section:
    """A table under a title, or a line where it is empty."""
    return Section(title, table=table) if table.cells else Section(title, lines=(empty,))


def describe_status(document: Mapping[str, Any]) -> Iterator[str | Table]:
    """Describe what a run folder holds, as :func:`fringe.bench.experiments.read_status` returns it."""
    if not document["plans"]:
        yield "no plan yet: nothing was asked for in this folder"
    for name, plan in document["plans"].items():
        yield f"{name}: {plan['images']} images"
        totals: dict[tuple[str, str], Counter[str]] = {}  # metrics together
        for cell in plan["cells"]:
            numbers = {name: cell[name] for name in ("required", "scored", "failed", "missing")}
            totals.setdefault((cell["model"], cell["method"]), Counter()).update(numbers)
        rows = list[Row]()
        for names, total in totals.items():
            # 100 only where none is missing
            share = 100 * (total["scored"] + total["failed"]) // max(total["required"], 1)
            counts = (total[name] or "" for name in ("failed", "missing"))
            rows.append((*names, f"{total['scored']}/{total['required']}", *counts, Cell(share / 100, 0, share=True)))
        yield Table(("model", "method", "scores", "failed", "missing", "done"), rows)
        yield from (f"  {line}" for line in describe_failures(plan["failures"], (), SHOWN_REASONS))
        yield from (f"  not read: {reason}" for reason in plan["not_read"][:SHOWN_REASONS])
        yield from (f"  results of several versions are mixed: {line}" for line in mixed(plan["versions"]))
    for path, problem in list(document["damaged"].items())[:SHOWN_REASONS]:
        yield f"damaged: {path} {problem}; the next run sets it aside and makes it again"
    for line in describe_failures((), document["set_aside"], SHOWN_REASONS):
        yield f"{line} (retry=True computes it again)"
    reasons = Counter((task["method"], task["model"], task["reason"]) for task in document["invalidated"])
    for (method, model, reason), tasks in reasons.most_common(SHOWN_REASONS):
        yield f"no longer asked for: {method} on {model}, {tasks} tasks: {reason}"
    if document["trials"]:
        yield f"stored from the trials of a search: {document['trials']} tasks"
