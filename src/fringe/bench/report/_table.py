"""Methods by metrics on a model: as numbers, as the table that is printed, and what maps cost; and the table of each
scene with a known answer, over all its networks, with chance beside every score."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fringe._strings.formats import counted, decimals_for
from fringe._strings.names import Reference
from fringe._strings.tables import Cell, Row, Table, best_of
from fringe.bench.experiments import Results
from fringe.bench.report._render import Section
from fringe.errors import InputError, require
from fringe.evaluation import (
    LEVEL,
    NOT_BETTER,
    NOT_BETTER_MEANS,
    RESAMPLES,
    ControlTest,
    Difference,
    Estimate,
    conclude,
    holm,
    is_of_another,
    paired_all,
    summary,
    too_few,
    variants_of,
)
from fringe.metrics import ARROW, METRICS, Aggregate, Direction

#: The method that others are compared with, where a run has it.
DEFAULT_REFERENCE = "fringe"
#: Marks cells with images that were not computed.
INCOMPLETE = "†"

# The groups of rows in the paper's tables, by the question that a metric answers.
CALIBRATION = "Attribution calibration"
FAITHFULNESS = "Causal faithfulness (normalised, blur)"
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
#: Metrics of paths, which are no scores of maps: conclusions leave them out.
_OF_PATHS = ("completeness_residual", "endpoint_kl", "tracking_error_mean", "tracking_error_max")
#: The status of a score as text.
STATUS = pl.col("status").cast(pl.String)
_NO_MAP = ("failed", "unreadable")


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
    decimals: int = 3
    verdict: str = "passes"

    @property
    def valid(self) -> bool:
        return self.verdict not in UNFIT

    @property
    def heading(self) -> str:
        """The title with the unit and the direction."""
        return " ".join(filter(None, (self.title, f"({self.unit})" * bool(self.unit), ARROW[self.direction])))


@dataclass(frozen=True)
class ScoreCell:
    """One method under one metric. Of the ``required`` images, ``n`` have a score, ``missing`` were not computed,
    ``failed`` have no valid map, and for the rest the metric is not defined; ``clustered`` says that images which
    share pixels are resampled together. ``difference`` is the reference method
    less this one, image by image; ``adjusted`` its p after Holm, ``mark`` the asterisks of that. ``control`` compares
    it with the controls, and ``behind`` says that one made of another method's map has a better score. ``flags``
    counts."""

    estimate: Estimate
    required: int
    missing: int
    failed: int
    flags: Mapping[str, int]
    best: bool
    near_tie: bool
    difference: Difference | None
    adjusted: float
    clustered: bool
    control: ControlTest | None
    behind: bool = False

    @property
    def n(self) -> int:
        return self.estimate.n

    @property
    def undefined(self) -> int:
        return self.required - self.n - self.missing - self.failed

    @property
    def mark(self) -> str:
        """Asterisks of the difference, and the signs of what is not shown and of what is not computed."""
        not_better = self.control is not None and self.control.better is False
        return significance_stars(self.adjusted) + NOT_BETTER * not_better + INCOMPLETE * bool(self.missing)

    def shown(self, decimals: int) -> Cell:
        """The cell as it is printed, with ``n=64``, or ``n=60 of 64`` if images have no score."""
        is_shown = not self.behind and (self.control is None or bool(self.control.better))
        return Cell(
            self.estimate.value,
            decimals,
            ends=(self.estimate.low, self.estimate.high),
            style="" if not is_shown else "best" if self.best else "near" if self.near_tie else "",
            mark=self.mark,
            note=f"n={self.n}" if self.n == self.required else f"n={self.n} of {self.required}",
            hint=f"not shown to be better than {self.control.control}"
            if NOT_BETTER in self.mark and self.control
            else "",
        )


@dataclass(frozen=True)
class ScoreRow:
    """A method or a control, and a cell per column."""

    method: str
    control: bool
    cells: tuple[ScoreCell, ...]


@dataclass(frozen=True)
class ScoreTable:
    """All methods of a model, the controls last, under its metrics. ``comparisons`` is how many the adjustment of p
    counts, ``seed`` that of the intervals; ``conclusions`` say what the scores show. Unless all gates of the model
    hold, its scores prove nothing."""

    title: str
    model: str
    reference: str
    columns: tuple[Column, ...]
    rows: tuple[ScoreRow, ...]
    comparisons: int
    seed: int
    gates_hold: bool
    conclusions: tuple[str, ...] = ()

    @property
    def competing(self) -> tuple[ScoreRow, ...]:
        """The methods, without the controls."""
        return tuple(row for row in self.rows if not row.control)

    @property
    def controls(self) -> tuple[ScoreRow, ...]:
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
    def groups(self) -> list[tuple[str, int]]:
        """The questions that the metrics answer, each with the number of its columns: :func:`sort_metrics` has put
        these side by side."""
        names = [UNFIT.get(column.verdict) or _metric_group(column.settings) for column in self.columns]
        return list(Counter(names).items())

    @property
    def shown(self) -> Table:
        """The table as it is printed."""
        rows = [
            (
                Cell(row.method, note="reference" if row.method == self.reference else "control" * row.control),
                *(cell.shown(column.decimals) for cell, column in zip(row.cells, self.columns, strict=True)),
            )
            for row in (*self.competing, *self.controls)
        ]
        rules = (len(self.competing) - 1,) if self.controls else ()
        columns = ("method", *(column.heading for column in self.columns))
        return Table(
            columns, rows, self.title, rules, self.groups, [*self.conclusions, *legend(self), *flag_lines(self)]
        )

    def flags(self, *, controls: bool) -> Counter[tuple[str, str]]:
        """Count how often each flag is up for the methods' scores, or the controls', by (flag, title of the metric)."""
        counts: Counter[tuple[str, str]] = Counter()
        for row in self.controls if controls else self.competing:
            for column, cell in zip(self.columns, row.cells, strict=True):
                for name, count in cell.flags.items():
                    counts[name, column.title] += count
        return counts


def columns_of(results: Results, verdicts: Mapping[str, str] | None = None) -> list[Column]:
    """The metrics of a run, those that answer one question together; ``verdicts`` on them are by label."""
    known = results.manifest.metrics
    columns, titles = list[Column](), Counter(metric["title"] for metric in known.values())
    for label in sort_metrics({label: metric["settings"] for label, metric in known.items()}):
        metric = known[label]
        title = metric["title"] if titles[metric["title"]] == 1 else f"{metric['title']} ({label})"
        described = (metric["direction"], metric["unit"], metric["summary"], metric["settings"])
        verdict = "passes" if verdicts is None else verdicts.get(label, "not judged")
        columns.append(Column(label, title, *described, verdict=verdict))
    return columns


def build_table(
    results: Results, model: str, reference: str | None = None, verdicts: Mapping[str, str] | None = None
) -> ScoreTable:
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
    drafts = columns_of(results, verdicts)
    drafts.sort(key=lambda column: ["passes", *UNFIT].index(column.verdict))
    known = {column.label: column for column in drafts}
    labels, methods = results.methods(model), results.methods(model, controls=False)
    cells = {(method, label): results.cells[model, method, label] for method in labels for label in known}
    scores = {key: cell.scores for key, cell in cells.items()}
    clusters = {label: results.clusters(model, label) for label in known}
    controls = [method for method in labels if method not in methods]
    words: dict[str, tuple[Direction, Aggregate]] = {k: (one.direction, one.summary) for k, one in known.items()}
    summaries = summary(scores, controls, words, seed, {label: {"clusters": clusters[label]} for label in known})
    estimates = {key: one.estimate for key, one in summaries.items()}
    others = set(methods) - {reference}
    compared = [(m, label) for m, label in cells if m in others and known[label].direction != "none"]
    paired = paired_all(
        [(scores[reference, label], scores[method, label], known[label].summary) for method, label in compared],
        seed,
        clusters=results.clusters(model),
    )
    differences = dict(zip(compared, paired, strict=True))
    adjusted = dict(zip(compared, holm([difference.p for difference in paired]), strict=True))
    grid: dict[tuple[str, str], ScoreCell] = {}
    for label, column in known.items():
        competing = {method: estimates[method, label] for method in methods}
        first, near = near_ties(competing, column.direction if column.valid else "none")
        best = {method for method in methods if first is not None and competing[method].value == competing[first].value}
        known[label] = replace(column, decimals=decimals_for((one.value, one.half) for one in competing.values()))
        for key in ((method, label) for method in labels):
            grid[key] = ScoreCell(
                estimates[key],
                *(len(scores[key]), cells[key].missing, cells[key].failed, cells[key].flags()),
                best=key[0] in best,
                near_tie=key[0] in near - best,
                difference=differences.get(key),
                adjusted=adjusted.get(key, math.nan),
                clustered=clusters[label] is not None,
                control=summaries[key].test,
                behind=_is_behind(key, estimates, controls, column.direction),
            )
    columns = tuple(known.values())
    rows = tuple(
        ScoreRow(method, method not in methods, tuple(grid[method, label] for label in known)) for method in labels
    )
    comparisons = sum(difference.n > 0 for difference in paired)
    gates_hold = not results.manifest.failed_gates(model)
    title = f"Methods on {model}" + ("" if gates_hold else ", whose gate failed: these scores are not to be read")
    read = (label for label, column in known.items() if column.valid and column.settings["metric"] not in _OF_PATHS)
    valid = {label: words[label] for label in read}
    variants = variants_of({label: known[label].settings for label in valid})
    groups = {label: {"clusters": clusters[label]} for label in valid}
    sentences = (
        conclude(scores, summaries, controls, valid, seed, variants=variants, groups=groups) if gates_hold else []
    )
    return ScoreTable(title, model, reference, columns, rows, comparisons, seed, gates_hold, tuple(sentences))


def _is_behind(
    key: tuple[str, str], estimates: Mapping[tuple[str, str], Estimate], controls: Sequence[str], direction: Direction
) -> bool:
    """Whether a control that is made of another method's map has a better score than this method and metric."""
    method, metric = key
    made = [estimates[one, metric].value for one in controls if is_of_another(one, method)]
    return best_of([estimates[key].value, *made], direction) not in (None, estimates[key].value)


def significance_stars(adjusted: float) -> str:
    """``***`` for an adjusted p below .001, ``**`` below .01, ``*`` below .05, nothing for others and NaN."""
    return "*" * sum(adjusted < level for level in (0.05, 0.01, 0.001))


def near_ties(estimates: Mapping[str, Estimate], direction: Direction) -> tuple[str | None, set[str]]:
    """Find the label of the best estimate, and those whose interval overlaps its interval; None and nothing if no
    direction is better, or there is no score. Raises InputError for means among medians.

    A description, not a test: intervals of two methods may overlap where their paired difference is significant (see
    :func:`paired`). The first of equals is the best; an estimate without an interval ties with none.
    """
    kinds = sorted({item.summary for item in estimates.values()})
    require(len(kinds) < 2, "estimates", " and ".join(kinds), "one summary for all")
    known = {label: item for label, item in estimates.items() if math.isfinite(item.value)}
    if direction == "none" or not known:
        return None, set()
    choose = max if direction == "higher" else min
    best = choose(known, key=lambda label: known[label].value)
    first = known.pop(best)
    return best, {label for label, one in known.items() if one.low <= first.high and one.high >= first.low}


def reference_of(results: Results, model: str, reference: str | None = None) -> str:
    """Return the method that the others of a model are compared with."""
    known = results.methods(model, controls=False)
    if reference is None:
        return DEFAULT_REFERENCE if DEFAULT_REFERENCE in known else known[0]
    if reference not in known:
        raise InputError(f"got {reference!r}; the methods of {model}: {', '.join(known)}", argument="reference")
    return reference


def _metric_group(settings: Mapping[str, Any]) -> str:
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
        return _GROUPS.index(_metric_group(metrics[label])), _PAPER.index(name) if name in _PAPER else len(_PAPER)

    return sorted(metrics, key=rank)


def legend(table: ScoreTable) -> list[str]:
    """Return how to read the numbers and marks of a table."""
    medians = [column.title for column in table.columns if column.summary == "median"]
    clustered = any(cell.clustered for row in table.rows for cell in row.cells)
    unit = "clusters of images that share pixels" if clustered else "images"
    kind = f"mean (median for {', '.join(medians)})" if medians else "mean"
    interval = f"{LEVEL:.0%} bootstrap interval over {unit}, {RESAMPLES} resamples, seed {table.seed}"
    lines = [f"Values: {kind} [{interval}].", "n: images with a score. ↑: higher is better, ↓: lower is better."]
    shown = ", if it is shown to be better than every control" * bool(table.control_tests)
    lines.append(
        f"Bold and underlined: the best method of a metric{shown}. Bold: its interval overlaps that of the best, which "
        "is no test. Controls are never bold."
    )
    for verdict, what in UNFIT.items():
        titles = [column.title for column in table.columns if column.verdict == verdict]
        lines += [f"{what}: {', '.join(titles)}. No method wins there."] if titles else []
    if table.comparisons:
        lines.append(
            f"*, **, ***: differs from {table.reference} on the same images with p < .05, .01, .001 (sign-flip test of "
            f"the paired differences, adjusted after Holm for the {table.comparisons} comparisons of this table)."
        )
    tests = table.control_tests
    lines += (few := too_few(max((test.difference.signs for test in tests), default=0), len(tests)))
    if tests and not few:
        lines.append(
            f"{NOT_BETTER_MEANS}. The greatest p of the sign-flip test against "
            f"each control counts, adjusted after Holm for {counted(len(tests), 'score')}. Such a score is no evidence "
            "for the map."
        )
    if any(cell.missing for row in table.rows for cell in row.cells):
        lines.append(f"{INCOMPLETE}: incomplete, images of this cell were not computed.")
    return lines


def flag_lines(table: ScoreTable) -> list[str]:
    """Return how often each flag is up: one line for the methods' scores and one for the controls'."""
    lines = list[str]()
    for who in ("methods", "controls"):
        by_flag: dict[str, dict[str, int]] = {}
        for (flag, title), number in table.flags(controls=who == "controls").items():
            by_flag.setdefault(flag, {})[title] = number
        parts = [  # zero_map 8 (Sparseness 4, Infidelity 4)
            f"{flag} {sum(counts.values())} ({', '.join(f'{title} {n}' for title, n in counts.items())})"
            for flag, counts in by_flag.items()
        ]
        lines += [f"Flagged scores of the {who}: {'; '.join(parts)}."] if parts else []
    return lines or ["No score is flagged."]


def cost_of_maps(results: Results, models: Iterable[str], method: str) -> pl.DataFrame:
    """Return one row: ``n``, and the means of ``forward``, ``jvp``, ``vjp``, ``passes`` and ``seconds`` over the n
    images of some models that have a map by a method."""
    names = ("forward", "jvp", "vjp", "seconds")
    parts = [results.map_frame(model, method).filter(~STATUS.is_in(_NO_MAP)).select(names) for model in models]
    maps = pl.concat(parts).with_columns(passes=pl.sum_horizontal(names[:3]))
    return maps.select(pl.len().alias("n"), pl.col(*names[:3], "passes", "seconds").mean().fill_null(float("nan")))


_READING = (
    "Mean [95% bootstrap interval]. Examples that share pixels are resampled together, and "
    "where a scene has several networks these are resampled, too: scores.csv has each of them. n is the number of maps "
    "with a score, the fewest and the most of a column. Chance is the score of a map that says nothing. "
    f"{NOT_BETTER_MEANS}, for these networks. The greatest p of the sign-flip "
    "test against each control counts, adjusted after Holm for the methods and scores of a table. A smoothed score "
    "filters the map first: do not compare it with an unsmoothed score."
)


def truth_chapter(results: Results) -> Section | None:
    """Return the scores of every scene, pooled over its networks, and whether its gates hold; None without scenes.

    Networks whose gates fail prove nothing: they are listed, and their scores are left out of the means.
    """
    manifest = results.manifest
    if not manifest.scenes:
        return None
    rows, failed = list[Row](), {model: manifest.failed_gates(model) for model in manifest.settings}
    for label, scene in manifest.scenes.items():
        for model, network in scene["networks"].items():
            texts = [gate["text"] for gate in network["gates"]] or ["none: the answer is known without a condition"]
            rows += [(label, model, text) for text in texts]
    gates = Table(("scene", "network", "gate"), rows, "Conditions under which the answer is known")
    lines = [f"{model}: gate failed ({'; '.join(texts)})" for model, texts in failed.items() if texts]
    unread = tuple(f"{line}. Its scores are not to be read, and no mean holds them." for line in lines)
    sections = [Section("Gates", table=gates, text=unread)]
    for label, scene in manifest.scenes.items():
        groups: dict[str, list[str]] = {}
        for model, network in scene["networks"].items():
            groups.setdefault(network["given"], []).append(model)
        for given, models in groups.items():
            title = f"{scene['title']} ({label})" + (f" on {given}" if given else "")
            valid = [model for model in models if not failed[model]]
            answer = f"The answer is known: {scene['answer']}. Source: {scene['source']}."
            if not valid:
                why = "Gate failed: no network of this scene is one that the answer is known of; it has no scores."
                sections.append(Section(title, (answer, why)))
                continue
            sections.append(Section(title, (answer,), _table(results, title, valid)))
    sections[1:1] = [Section("How to read the tables", (_READING,))]
    return Section("Tests with a known answer", sections=tuple(sections))


def _table(results: Results, title: str, models: Sequence[str]) -> Table:
    """Methods and controls by localisation scores, over all networks."""
    manifest = results.manifest
    metrics = [
        label
        for label, metric in manifest.metrics.items()
        if (kind := METRICS.get(metric["settings"]["metric"])) is not None and kind.requires_truth
    ]
    methods = results.methods(models[0])
    scores, groups = dict[tuple[str, str], NDArray[np.float64]](), dict[str, dict[str, list[str]]]()
    for metric in metrics:  # over all networks
        for method in methods:
            scores[method, metric] = np.concatenate([results.scores(model, method, metric) for model in models])
        clusters = [cluster for model in models for cluster in results.clusters(model, metric) or ()]
        networks = [model for model in models for _ in results.scores(model, methods[0], metric)]
        groups[metric] = {"clusters": clusters, "networks": networks}
    seed, controls = int(manifest.plan["seed"]), [method for method in methods if results.is_control(method)]
    words = {metric: (manifest.metrics[metric]["direction"], manifest.metrics[metric]["summary"]) for metric in metrics}
    summaries = summary(scores, controls, words, seed, groups)
    cells = {key: one.estimate for key, one in summaries.items()}
    marks = {key: NOT_BETTER for key, one in summaries.items() if one.test is not None and one.test.better is False}
    shown = [metric for metric in metrics if any(cells[method, metric].n for method in methods)]
    head = ["method"]
    for metric in shown:  # the title, the preset that the label names, and the direction
        name, preset = manifest.metrics[metric]["title"], Reference.parse(metric).rest
        head.append(f"{name}{f', {preset}' if preset else ''} {ARROW[words[metric][0]]}")
    decimals = {m: decimals_for((cells[name, m].value, cells[name, m].half) for name in methods) for m in shown}
    rows: list[Row] = [("chance", *(Cell(chance_of(results, models, m), decimals[m]) for m in shown), "", "")]
    for method in methods:
        estimates = {metric: cells[method, metric] for metric in shown}
        counts = sorted({one.n for one in estimates.values() if one.n}) or [0]
        values = [
            Cell(one.value, decimals[metric], ends=(one.low, one.high), mark=marks.get((method, metric), ""))
            for metric, one in estimates.items()
        ]
        n = counts[0] if len(counts) == 1 else f"{counts[0]}–{counts[-1]}"
        passes = Cell(float(cost_of_maps(results, models, method)["passes"][0]), 0)
        rows.append((Cell(method, note="control" if results.is_control(method) else ""), *values, n, passes))
    return Table([*head, "n", "passes"], rows, title)


def chance_of(results: Results, models: Sequence[str], metric: str) -> float:
    """Return the mean score of a map that says nothing, as the metric reports it; NaN if it does not."""

    def scored(model: str) -> str:  # the method with the most scores: a map that failed reports no chance
        return max(
            results.methods(model), key=lambda method: int(np.isfinite(results.scores(model, method, metric)).sum())
        )

    name = {metric: "extra/chance"}
    columns = [results.details(model, scored(model), name)[metric].values() for model in models]
    known = np.array([values[0] for column in columns for values in column])
    return float(known[np.isfinite(known)].mean()) if np.isfinite(known).any() else math.nan
