"""Methods by metrics, as numbers: what every form of the table is printed from."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fringe.errors import InputError
from fringe.experiments import (
    Cell,
    Difference,
    Estimate,
    Results,
    estimate,
    holm,
    near_ties,
    paired,
    significance_stars,
)
from fringe.metrics import ARROW, Aggregate, Direction
from fringe.report.groups import Group, groups, in_order
from fringe.report.numbers import decimals_for

OWN = "fringe"
"""The method that others are compared with, where a run has it."""


@dataclass(frozen=True)
class Column:
    """A metric: its ``label`` in the plan, its ``title`` here, and the ``decimals`` that its cells are printed with."""

    label: str
    title: str
    direction: Direction
    unit: str
    summary: Aggregate
    settings: Mapping[str, Any]
    decimals: int = 3

    @property
    def arrow(self) -> str:
        return ARROW[self.direction]


@dataclass(frozen=True)
class TableCell:
    """One method under one metric. Of the ``wanted`` images, ``n`` have a score, ``missing`` were not computed,
    ``failed`` have no sound map, and of the rest the metric is not defined. ``difference`` is the reference method less
    this one, image by image; ``adjusted`` its p after Holm, ``mark`` the asterisks of that. ``flags`` counts."""

    estimate: Estimate
    wanted: int
    missing: int
    failed: int
    flags: Mapping[str, int]
    best: bool = False
    near_tie: bool = False
    difference: Difference | None = None
    adjusted: float = float("nan")

    @property
    def n(self) -> int:
        return self.estimate.n

    @property
    def undefined(self) -> int:
        return self.wanted - self.n - self.missing - self.failed

    @property
    def mark(self) -> str:
        return significance_stars(self.adjusted)


@dataclass(frozen=True)
class TableRow:
    """A method or a control, and a cell a column."""

    method: str
    control: bool
    cells: tuple[TableCell, ...]


@dataclass(frozen=True)
class Table:
    """All methods of a ``model``, the controls last. ``comparisons`` is how many the adjustment of p counts, ``seed``
    that of the intervals."""

    title: str
    model: str
    reference: str
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]
    comparisons: int
    seed: int

    @property
    def competing(self) -> tuple[TableRow, ...]:
        return tuple(row for row in self.rows if not row.control)

    @property
    def controls(self) -> tuple[TableRow, ...]:
        return tuple(row for row in self.rows if row.control)

    @property
    def groups(self) -> list[Group]:
        """The columns by the question that they answer."""
        return groups([column.settings for column in self.columns])

    def flags(self, *, controls: bool) -> Counter[tuple[str, str]]:
        """How often each flag is up under each metric, by (flag, title of the metric): of the methods' scores, or of
        the controls'."""
        found: Counter[tuple[str, str]] = Counter()
        for row in self.controls if controls else self.competing:
            for column, cell in zip(self.columns, row.cells, strict=True):
                for name, count in cell.flags.items():
                    found[name, column.title] += count
        return found


def build_table(results: Results, model: str, reference: str | None = None) -> Table:
    """The table of a model. Per metric the best method and its near ties (:func:`near_ties`; who scores exactly as the
    best is best, too), and against the ``reference`` (default ``fringe``, else the first) each rival's paired
    difference under every metric with a direction, all of them together adjusted after Holm. Controls do not compete.
    Raises InputError for a reference that is no method of the model."""
    reference = reference_of(results, model, reference)
    seed = int(results.manifest.plan["seed"])
    labels = results.methods(model)
    settings = {label: about["settings"] for label, about in results.manifest.metrics.items()}
    drafts = [_column(results, metric) for metric in in_order(settings)]
    grid = {
        (label, column.label): _cell(results.cell(model, label, column.label), column.summary, seed)
        for label in labels
        for column in drafts
    }
    rivals = [label for label in results.methods(model, controls=False) if label != reference]
    asked = [(label, column) for label in rivals for column in drafts if column.direction != "none"]
    found = [
        paired(
            results.scores(model, reference, column.label),
            results.scores(model, label, column.label),
            seed=seed,
            summary=column.summary,
        )
        for label, column in asked
    ]
    adjusted = holm([difference.p for difference in found])
    for (label, column), difference, p in zip(asked, found, adjusted, strict=True):
        grid[label, column.label] = replace(grid[label, column.label], difference=difference, adjusted=p)
    columns = tuple(_judge(results, model, column, grid) for column in drafts)
    rows = tuple(
        TableRow(label, results.is_control(label), tuple(grid[label, column.label] for column in columns))
        for label in labels
    )
    return Table(
        f"Methods on {model}", model, reference, columns, rows, sum(difference.n > 0 for difference in found), seed
    )


def reference_of(results: Results, model: str, asked: str | None = None) -> str:
    """The method that the others of a model are compared with."""
    known = results.methods(model, controls=False)
    if asked is None:
        return OWN if OWN in known else known[0]
    if asked not in known:
        raise InputError(f"reference: got {asked!r}; the methods of {model}: {', '.join(known)}")
    return asked


def _column(results: Results, label: str) -> Column:
    metrics = results.manifest.metrics
    about = metrics[label]
    alike = [other for other in metrics.values() if other["title"] == about["title"]]
    title = about["title"] if len(alike) == 1 else f"{about['title']} ({label})"
    return Column(label, title, about["direction"], about["unit"], about["summary"], about["settings"])


def _cell(cell: Cell, summary: Aggregate, seed: int) -> TableCell:
    return TableCell(estimate(cell.scores, seed, summary), len(cell.rows), cell.missing, cell.failed, cell.flags())


def _judge(results: Results, model: str, column: Column, grid: dict[tuple[str, str], TableCell]) -> Column:
    """Mark the best of a column and its near ties in ``grid``; the column with the decimals that it needs."""
    competing = results.methods(model, controls=False)
    estimates = {label: grid[label, column.label].estimate for label in competing}
    best, near = near_ties(estimates, column.direction)
    for label, known in estimates.items():
        is_best = best is not None and known.value == estimates[best].value
        place = (label, column.label)
        grid[place] = replace(grid[place], best=is_best, near_tie=label in near and not is_best)
    return replace(column, decimals=decimals_for(list(estimates.values())))
