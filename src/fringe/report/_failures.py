"""What the images cost, and the chapter of a report on what is missing, what failed, and what came with a flag."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fringe.experiments import Results, ScoreRecord, Store, crashes
from fringe.report._render import Chapter, Section, SimpleTable
from fringe.report._table import Table


@dataclass(frozen=True)
class Cost:
    """What an image's map takes by a method, means over the ``n`` images for which it was computed."""

    method: str
    n: int
    forward: float
    jvp: float
    vjp: float
    seconds: float

    @property
    def passes(self) -> float:
        return self.forward + self.jvp + self.vjp


@dataclass(frozen=True)
class Failure:
    """On how many ``images`` a method failed, under at least one metric, and why."""

    model: str
    method: str
    images: int
    reason: str


def by_image(results: Results, model: str, method: str) -> dict[str, ScoreRecord]:
    """Return a record per computed image, by digest, a valid one if there is one: what it says of the map holds for
    every metric."""
    records: dict[str, ScoreRecord] = {}
    for row in _rows(results, model, method):
        if row.image not in records or records[row.image].status != "ok":
            records[row.image] = row
    return records


def costs(results: Results, model: str) -> list[Cost]:
    """Return the cost of each method; images without a map are left out, and controls cost nothing."""
    lines: list[Cost] = []
    for method in results.methods(model, controls=False):
        rows = [row for row in by_image(results, model, method).values() if row.status not in ("failed", "unreadable")]
        spent = np.array([(row.forward, row.jvp, row.vjp, row.seconds) for row in rows]).reshape(-1, 4)
        mean = [float(column.mean()) if column.size else float("nan") for column in spent.T]
        lines.append(Cost(method, len(rows), *mean))
    return lines


def failures(results: Results) -> list[Failure]:
    """Return why images have no score, the most frequent reason of a method first."""
    result: list[Failure] = []
    for model in results.models:
        for method in results.methods(model):
            pairs = {(_reason(row), row.image) for row in _rows(results, model, method) if row.status != "ok"}
            reasons = Counter(reason for reason, _ in sorted(pairs))
            result += [Failure(model, method, images, reason) for reason, images in reasons.most_common()]
    return result


def verdicts(results: Results, model: str) -> dict[str, Mapping[str, int]]:
    """Count how often a method gave each verdict on its maps; methods that give none are left out."""
    result = {
        method: Counter(row.verdict for row in by_image(results, model, method).values() if row.verdict is not None)
        for method in results.methods(model, controls=False)
    }
    return {method: counts for method, counts in result.items() if counts}


def quarantined(store: Store, results: Results) -> list[Failure]:
    """Return the tasks of this plan that ended their process again and again, and are not retried."""
    known = results.manifest.settings
    return [
        Failure(crash["model"], crash["method"], len(crash["images"]), crash["reason"])
        for crash in crashes(store)
        if crash["setting"] == known.get(crash["model"], {}).get(crash["method"])
    ]


def failure_chapter(results: Results, tables: Sequence[Table], store: Store) -> Chapter:
    """Return what is missing, what failed and why, verdicts of the methods on their own maps, and metrics' flags."""
    missing = (
        *results.missing(),
        *(f"set aside: {q.model}, {q.method}, {q.images} images: {q.reason}" for q in quarantined(store, results)),
        *(f"drawn and not read: {reason}" for reason in results.manifest.missing),
    )
    sections = [
        Section("Not computed", lines=missing or ("Every image of the plan was computed.",)),
        _failures(results),
        _undefined(tables),
        *(Section(f"Verdicts on {m}", simple=table) for m in results.models if (table := _verdicts(results, m))),
        *(Section(f"Flags on {t.model}", simple=table) for t in tables if (table := _flags(t))),
    ]
    return Chapter("Missing, failures and flags", tuple(sections))


def _failures(results: Results) -> Section:
    rows = tuple((one.model, one.method, str(one.images), one.reason) for one in failures(results))
    if not rows:
        return Section("Failed", lines=("No method failed on an image.",))
    head = ("model", "method", "images", "reason")
    return Section("Failed", simple=SimpleTable("Images that a method failed on", head, rows, frozenset({2})))


def _undefined(tables: Sequence[Table]) -> Section:
    methods: dict[tuple[str, str], list[str]] = {}
    for table in tables:
        for row in table.rows:
            for column, cell in zip(table.columns, row.cells, strict=True):
                if cell.undefined:
                    methods.setdefault((table.model, column.title), []).append(f"{row.method} {cell.undefined}")
    if not methods:
        return Section("Not defined", lines=("Every sound map has a score under every metric.",))
    rows = tuple((model, metric, ", ".join(names)) for (model, metric), names in methods.items())
    head = ("model", "metric", "images where it is not defined, by method")
    return Section("Not defined", simple=SimpleTable("Sound maps without a score", head, rows))


def _verdicts(results: Results, model: str) -> SimpleTable | None:
    counted = verdicts(results, model)
    names = sorted({name for counts in counted.values() for name in counts}, key=lambda name: (name != "ok", name))
    rows = tuple((method, *(_number(counts.get(name, 0)) for name in names)) for method, counts in counted.items())
    numeric = frozenset(range(1, len(names) + 1))
    return SimpleTable(f"Verdicts on {model}, images", ("method", *names), rows, numeric) if rows else None


def _flags(table: Table) -> SimpleTable | None:
    names = sorted(table.flags(controls=False) | table.flags(controls=True))
    indices = {column.title: index for index, column in enumerate(table.columns)}
    rows = tuple(
        (flag, title, *(_number(row.cells[indices[title]].flags.get(flag, 0)) for row in table.rows))
        for flag, title in names
    )
    head = ("flag", "metric", *(row.method for row in table.rows))
    numeric = frozenset(range(2, len(head)))
    return SimpleTable(f"Flagged scores on {table.model}", head, rows, numeric) if rows else None


def _number(count: int) -> str:
    """Return a count, or a point for zero: other numbers should stand out."""
    return str(count) if count else "·"


def _rows(results: Results, model: str, method: str) -> Iterator[ScoreRecord]:
    for metric in results.metrics:
        yield from (row for row in results.cell(model, method, metric).rows if row is not None)


def _reason(row: ScoreRecord) -> str:
    status = row.status.replace("_", " ")
    return f"{status}: {row.error}" if row.error else status
