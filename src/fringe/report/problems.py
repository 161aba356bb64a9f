"""The part of a report that says what is missing, what failed, and what came with a flag."""

from collections.abc import Sequence

from fringe.experiments import Results, Store
from fringe.report.account import failures, set_aside, verdicts
from fringe.report.content import Part, Plain, Section
from fringe.report.tables import Table


def problems(results: Results, tables: Sequence[Table], store: Store) -> Part:
    """What is missing, what failed and why, verdicts of the methods about their own maps, and flags of the metrics."""
    sections = [
        Section("Not computed", lines=_missing(results, store) or ("Every image of the plan was computed.",)),
        _failures(results),
        _undefined(tables),
        *(
            Section(f"Verdicts on {model}", plain=found)
            for model in results.models
            if (found := _verdicts(results, model))
        ),
        *(Section(f"Flags on {t.model}", plain=found) for t in tables if (found := _flags(t))),
    ]
    return Part("Missing, failures and flags", tuple(sections))


def _missing(results: Results, store: Store) -> tuple[str, ...]:
    aside = [
        f"set aside: {one.model}, {one.method}, {one.images} images: {one.reason}" for one in set_aside(store, results)
    ]
    unread = [f"drawn and not read: {reason}" for reason in results.manifest.missing]
    return (*results.missing(), *aside, *unread)


def _failures(results: Results) -> Section:
    found = failures(results)
    if not found:
        return Section("Failed", lines=("No method failed on an image.",))
    rows = tuple((one.model, one.method, str(one.images), one.reason) for one in found)
    return Section(
        "Failed",
        plain=Plain("Images that a method failed on", ("model", "method", "images", "reason"), rows, frozenset({2})),
    )


def _undefined(tables: Sequence[Table]) -> Section:
    found: dict[tuple[str, str], list[str]] = {}
    for table in tables:
        for row in table.rows:
            for column, cell in zip(table.columns, row.cells, strict=True):
                if cell.undefined:
                    found.setdefault((table.model, column.title), []).append(f"{row.method} {cell.undefined}")
    if not found:
        return Section("Not defined", lines=("Every sound map has a score under every metric.",))
    rows = tuple((model, metric, ", ".join(methods)) for (model, metric), methods in found.items())
    head = ("model", "metric", "images where it is not defined, by method")
    return Section("Not defined", plain=Plain("Sound maps without a score", head, rows))


def _verdicts(results: Results, model: str) -> Plain | None:
    found = verdicts(results, model)
    names = sorted({name for counts in found.values() for name in counts}, key=lambda name: (name != "ok", name))
    rows = tuple((method, *(_number(counts.get(name, 0)) for name in names)) for method, counts in found.items())
    return (
        Plain(f"Verdicts on {model}, images", ("method", *names), rows, frozenset(range(1, len(names) + 1)))
        if rows
        else None
    )


def _flags(table: Table) -> Plain | None:
    names = sorted(table.flags(controls=False) | table.flags(controls=True))
    places = {column.title: place for place, column in enumerate(table.columns)}
    rows = tuple(
        (flag, title, *(_number(row.cells[places[title]].flags.get(flag, 0)) for row in table.rows))
        for flag, title in names
    )
    head = ("flag", "metric", *(row.method for row in table.rows))
    return Plain(f"Flagged scores on {table.model}", head, rows, frozenset(range(2, len(head)))) if rows else None


def _number(count: int) -> str:
    """A count, or a point where there is none: what is there should stand out."""
    return str(count) if count else "·"
