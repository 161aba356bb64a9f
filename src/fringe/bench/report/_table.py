"""Methods by metrics, as numbers: what every form of the table is printed from."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fringe.bench.experiments import Results
from fringe.errors import InputError
from fringe.evaluation import (
    ControlTest,
    Difference,
    Estimate,
    adjust_tests,
    compare_with_controls,
    estimate_all,
    holm,
    near_ties,
    paired_all,
    significance_stars,
)
from fringe.metrics import ARROW, METRICS, Aggregate, Direction

#: The method that others are compared with, where a run has it.
DEFAULT_REFERENCE = "fringe"
#: Fewest and most decimals; the paper prints three.
MIN_DECIMALS, MAX_DECIMALS = 3, 6
#: From here on a number is printed as a power of ten, as in the paper's tables.
LARGE = 1000.0

# The groups of rows in the paper's tables, by the question that a metric answers.
CALIBRATION = "Attribution calibration"
FAITHFULNESS = "Causal faithfulness (normalized, blur)"
OTHER_FAITHFULNESS = "Causal faithfulness (raw, or without blur)"
FOCUS = "Map focus and local robustness"
LOCALISATION = "Localisation (known answer)"
FOLLOWING = "Dependence on model and class"
OTHERS = "Other metrics"
#: The groups after those, where the metrics were judged on the model: only metrics that pass have a winner.
UNFIT = {"not judged": "Metrics not judged on this model", "does not pass": "Metrics that do not pass on this model"}
_GROUPS = (LOCALISATION, CALIBRATION, FAITHFULNESS, OTHER_FAITHFULNESS, FOCUS, FOLLOWING, OTHERS)
_PAPER = ("mas_insertion", "mas_deletion", "insertion", "deletion", "sparseness", "infidelity", "max_sensitivity")
_BLURS = ("box", "gaussian", "folded")


@dataclass(frozen=True)
class Column:
    """A metric: its ``label`` in the plan, its ``title`` here, and the ``decimals`` that its cells are printed with.
    Where the metrics of the model were judged, ``verdict`` says how it did: only one that passes has a winner."""

    label: str
    title: str
    direction: Direction
    unit: str
    summary: Aggregate
    settings: Mapping[str, Any]
    decimals: int = MIN_DECIMALS
    verdict: str = "passes"

    @property
    def valid(self) -> bool:
        return self.verdict not in UNFIT

    @property
    def arrow(self) -> str:
        return ARROW[self.direction]

    @property
    def heading(self) -> str:
        """The title with the unit."""
        return f"{self.title} ({self.unit})" if self.unit else self.title


@dataclass(frozen=True)
class TableCell:
    """One method under one metric. Of the ``required`` images, ``n`` have a score, ``missing`` were not computed,
    ``failed`` have no valid map, and for the rest the metric is not defined; ``clustered`` says that images which
    share pixels are resampled together. ``difference`` is the reference method
    less this one, image by image; ``adjusted`` its p after Holm, ``mark`` the asterisks of that. ``control`` compares
    it with the controls. ``flags`` counts."""

    estimate: Estimate
    required: int
    missing: int
    failed: int
    flags: Mapping[str, int]
    best: bool = False
    near_tie: bool = False
    difference: Difference | None = None
    adjusted: float = float("nan")
    clustered: bool = False
    control: ControlTest | None = None

    @property
    def n(self) -> int:
        return self.estimate.n

    @property
    def undefined(self) -> int:
        return self.required - self.n - self.missing - self.failed

    @property
    def mark(self) -> str:
        return significance_stars(self.adjusted)

    @property
    def count(self) -> str:
        """``n=64``, or ``n=60 of 64`` if images have no score."""
        return f"n={self.n}" if self.n == self.required else f"n={self.n} of {self.required}"


@dataclass(frozen=True)
class TableRow:
    """A method or a control, and a cell per column."""

    method: str
    control: bool
    cells: tuple[TableCell, ...]


@dataclass(frozen=True)
class Group:
    """Metrics that answer one question, by their indices among a table's columns: neighbours, as
    :func:`sort_metrics` puts them."""

    name: str
    columns: tuple[int, ...]


@dataclass(frozen=True)
class Table:
    """All methods of a model, the controls last, under its metrics. ``comparisons`` is how many the adjustment of p
    counts, ``seed`` that of the intervals. Unless all gates of the model hold, its scores prove nothing."""

    title: str
    model: str
    reference: str
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]
    comparisons: int
    seed: int
    gates_hold: bool

    @property
    def competing(self) -> tuple[TableRow, ...]:
        """The methods, without the controls."""
        return tuple(row for row in self.rows if not row.control)

    @property
    def controls(self) -> tuple[TableRow, ...]:
        """The controls."""
        return tuple(row for row in self.rows if row.control)

    @property
    def control_tests(self) -> tuple[ControlTest, ...]:
        """The comparisons of methods with the controls."""
        return tuple(cell.control for row in self.rows for cell in row.cells if cell.control is not None)

    @property
    def methods(self) -> list[str]:
        """Names of the methods, the reference first."""
        return sorted((row.method for row in self.competing), key=lambda method: method != self.reference)

    @property
    def groups(self) -> list[Group]:
        """The columns by the question that they answer."""
        indices: dict[str, list[int]] = {}
        for index, column in enumerate(self.columns):
            indices.setdefault(UNFIT.get(column.verdict) or metric_group(column.settings), []).append(index)
        return [Group(name, tuple(columns)) for name, columns in indices.items()]

    def flags(self, *, controls: bool) -> Counter[tuple[str, str]]:
        """Count how often each flag is up for the methods' scores, or the controls', by (flag, title of the metric)."""
        counts: Counter[tuple[str, str]] = Counter()
        for row in self.controls if controls else self.competing:
            for column, cell in zip(self.columns, row.cells, strict=True):
                for name, count in cell.flags.items():
                    counts[name, column.title] += count
        return counts


def build_table(
    results: Results, model: str, reference: str | None = None, verdicts: Mapping[str, str] | None = None
) -> Table:
    """Build the table of a model.

    Per metric it marks the best method and its near ties (:func:`near_ties`; a method with exactly the best score is
    best, too), and against the reference (default: ``fringe``, else the first method) each other method's paired
    difference under every metric with a direction, all of them together adjusted after Holm. Controls do not compete:
    each method is compared with them (:func:`compare_with_controls`).

    ``verdicts`` on the metrics of this model are by label, if they were judged: metrics that do not pass stand last,
    after those without a verdict, and neither have a best method. Raises InputError for a reference that is no method
    of the model.
    """
    reference = reference_of(results, model, reference)
    seed = int(results.manifest.plan["seed"])
    labels = results.methods(model)
    settings = {label: metric["settings"] for label, metric in results.manifest.metrics.items()}
    drafts = [
        _column(results, metric, "passes" if verdicts is None else verdicts.get(metric, "not judged"))
        for metric in sort_metrics(settings)
    ]
    drafts.sort(key=lambda column: ["passes", *UNFIT].index(column.verdict))
    names = [(label, column) for label in labels for column in drafts]
    cells = [results.cell(model, label, column.label) for label, column in names]
    clusters = {column.label: results.clusters(model, column.label) for column in drafts}
    columns_of = zip(cells, names, strict=True)
    estimates = estimate_all(
        [(c.scores, column.summary, clusters[column.label]) for c, (_, column) in columns_of], seed
    )
    grid = {
        (label, column.label): TableCell(
            *(value, len(cell.scores), cell.missing, cell.failed, cell.flags()),
            clustered=clusters[column.label] is not None,
        )
        for (label, column), cell, value in zip(names, cells, estimates, strict=True)
    }
    others = [label for label in results.methods(model, controls=False) if label != reference]
    compared = [(label, column) for label in others for column in drafts if column.direction != "none"]
    first = {column.label: results.scores(model, reference, column.label) for column in drafts}
    differences = paired_all(
        [
            (first[column.label], results.scores(model, label, column.label), column.summary)
            for label, column in compared
        ],
        seed,
        clusters=results.clusters(model),
    )
    adjusted = holm([difference.p for difference in differences])
    for (label, column), difference, p in zip(compared, differences, adjusted, strict=True):
        grid[label, column.label] = replace(grid[label, column.label], difference=difference, adjusted=p)
    tests: dict[tuple[str, str], ControlTest] = {}
    controls = [label for label in labels if results.is_control(label)]
    for column in drafts:
        scores = {label: results.scores(model, label, column.label) for label in labels}
        words = column.direction, column.summary, seed
        compared = compare_with_controls(scores, controls, *words, clusters=clusters[column.label])
        tests |= {(label, column.label): test for label, test in compared.items()}
    for key, test in adjust_tests(tests).items():
        grid[key] = replace(grid[key], control=test)
    columns = tuple(_mark_best(results, model, column, grid) for column in drafts)
    rows = tuple(
        TableRow(label, results.is_control(label), tuple(grid[label, column.label] for column in columns))
        for label in labels
    )
    comparisons = sum(difference.n > 0 for difference in differences)
    gates_hold = all(gate["holds"] for gate in results.manifest.gates(model))
    title = f"Methods on {model}" + ("" if gates_hold else ", whose gate failed: these scores are not to be read")
    return Table(title, model, reference, columns, rows, comparisons, seed, gates_hold)


def reference_of(results: Results, model: str, reference: str | None = None) -> str:
    """Return the method that the others of a model are compared with."""
    known = results.methods(model, controls=False)
    if reference is None:
        return DEFAULT_REFERENCE if DEFAULT_REFERENCE in known else known[0]
    if reference not in known:
        raise InputError(f"got {reference!r}; the methods of {model}: {', '.join(known)}", argument="reference")
    return reference


def metric_group(settings: Mapping[str, Any]) -> str:
    """Return the group of a metric with these settings."""
    name = settings["metric"]
    if name in ("mas_insertion", "mas_deletion"):
        return CALIBRATION
    if name in ("insertion", "deletion"):
        blurred = settings["reference"] in _BLURS
        return FAITHFULNESS if blurred and settings["normalise"] else OTHER_FAITHFULNESS
    if name in ("mprt", "efficient_mprt", "random_logit"):
        return FOLLOWING
    if name in METRICS and METRICS[name].requires_truth:
        return LOCALISATION
    return FOCUS if name in _PAPER else OTHERS


def sort_metrics(metrics: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return labels of metrics (settings by label) as the paper's tables order them, others after those."""

    def rank(label: str) -> tuple[int, int]:
        name = metrics[label]["metric"]
        return _GROUPS.index(metric_group(metrics[label])), _PAPER.index(name) if name in _PAPER else len(_PAPER)

    return sorted(metrics, key=rank)


def half_width(value: Estimate) -> float:
    """Return what stands behind the ±: half the width of a mean's interval, or the half-IQR of a median; NaN for
    neither."""
    return value.half_iqr if value.summary == "median" else (value.high - value.low) / 2


def decimals_for(estimates: Sequence[Estimate]) -> int:
    """Return the fewest decimals, of three to six, with which no spread is printed as zero, except those that six show
    as zero, too, such as rounding, or that belong to a number printed as a power of ten."""
    widths = [half_width(e) for e in estimates if math.isfinite(e.value) and abs(e.value) < LARGE]
    smallest = min((w for w in widths if math.isfinite(w) and round(w, MAX_DECIMALS) > 0), default=1.0)
    return next(d for d in range(MIN_DECIMALS, MAX_DECIMALS + 1) if round(smallest, d) > 0)


def _column(results: Results, label: str, verdict: str) -> Column:
    metrics = results.manifest.metrics
    metric = metrics[label]
    alike = [other for other in metrics.values() if other["title"] == metric["title"]]
    title = metric["title"] if len(alike) == 1 else f"{metric['title']} ({label})"
    words = (metric["direction"], metric["unit"], metric["summary"], metric["settings"])
    return Column(label, title, *words, verdict=verdict)


def _mark_best(results: Results, model: str, column: Column, grid: dict[tuple[str, str], TableCell]) -> Column:
    """Mark the best of a column and its near ties in ``grid``; return the column with the decimals that it needs."""
    competing = results.methods(model, controls=False)
    estimates = {label: grid[label, column.label].estimate for label in competing}
    best, near = near_ties(estimates, column.direction if column.valid else "none")
    for label, value in estimates.items():
        is_best = best is not None and value.value == estimates[best].value
        key = (label, column.label)
        grid[key] = replace(grid[key], best=is_best, near_tie=label in near and not is_best)
    return replace(column, decimals=decimals_for(list(estimates.values())))
