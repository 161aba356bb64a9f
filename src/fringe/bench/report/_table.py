"""Methods by metrics on a model: as numbers, as the table that is printed, and what maps cost; and the table of each
scene with a known answer, over all its networks, with chance beside every score."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fringe._strings.formats import counted
from fringe._strings.names import Reference
from fringe._strings.report import Section
from fringe._strings.tables import Cell, Row, Table
from fringe.bench.experiments import MethodScores, Results
from fringe.errors import InputError
from fringe.evaluation import (
    LEVEL,
    NOT_BETTER_MEANS,
    RESAMPLES,
    Score,
    ScoreTable,
    conclude,
    method_cell,
    variants_of,
)
from fringe.metrics import ARROW, METRICS, Aggregate, Direction

#: The title of the chapter of scenes, and of its section of conditions.
TRUTH, GATES = "Tests with a known answer", "Gates"
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
    """A metric: its ``label`` in the plan and its ``title`` here. Where the metrics of the model were judged,
    ``verdict`` says how it did: only one that passes has a winner."""

    label: str
    title: str
    direction: Direction
    unit: str
    summary: Aggregate
    settings: Mapping[str, Any]
    verdict: str = "passes"

    @property
    def heading(self) -> str:
        """The title with the unit and the direction."""
        return " ".join(filter(None, (self.title, f"({self.unit})" * bool(self.unit), ARROW[self.direction])))


@dataclass(frozen=True)
class ModelTable:
    """The ``scores`` of a model of a run, under the metrics in ``columns``; methods are compared with ``reference``."""

    results: Results
    model: str
    reference: str
    columns: tuple[Column, ...]
    scores: ScoreTable

    @property
    def rows(self) -> tuple[str, ...]:
        """The methods, and then the controls."""
        return self.results.methods(self.model)

    @property
    def competing(self) -> tuple[str, ...]:
        """The methods without the controls."""
        return self.results.methods(self.model, controls=False)

    @property
    def methods(self) -> list[str]:
        """The methods, the reference first."""
        return sorted(self.competing, key=lambda method: method != self.reference)

    @property
    def gates_hold(self) -> bool:
        """Whether the answer of its scene is known; else its scores prove nothing."""
        return not self.results.manifest.failed_gates(self.model)

    def counts(self, method: str, column: Column) -> MethodScores:
        """How many scores there are, are missing and failed, and why."""
        return self.results.cells[self.model, method, column.label]

    def score(self, method: str, column: Column) -> Score:
        """What is known of a method, or a control, under a metric."""
        return self.scores.cells[method, column.label]

    def undefined(self, method: str, column: Column) -> int:
        """Of how many maps the metric is not defined."""
        return self.counts(method, column).scored - self.score(method, column).estimate.n

    @cached_property
    def conclusions(self) -> list[str]:
        """What the scores show."""
        variants = variants_of({column.label: column.settings for column in self.columns})
        without = [one.label for one in self.columns if one.verdict in UNFIT or one.settings["metric"] in _OF_PATHS]
        return conclude(self.scores, variants=variants, without=without) if self.gates_hold else []

    @property
    def groups(self) -> list[tuple[str, int]]:
        """The questions that the metrics answer, each with the number of its columns: :func:`sort_metrics` has put
        these side by side."""
        names = [UNFIT.get(column.verdict) or _metric_group(column.settings) for column in self.columns]
        return list(Counter(names).items())

    @property
    def shown(self) -> Table:
        """The table as it is printed; a cell has ``n=64``, or ``n=60 of 64`` if images have no score."""
        rows = list[Row]()
        for method in self.rows:
            cells, role = list[Cell](), "reference" if method == self.reference else "control"
            for column in self.columns:
                score, counts = self.score(method, column), self.counts(method, column)
                n = f"n={score.estimate.n}" + f" of {counts.required}" * (score.estimate.n != counts.required)
                cells.append(score.cell(n, mark=INCOMPLETE * bool(counts.missing), near=True))
            is_plain = method in self.competing and method != self.reference
            rows.append((method_cell(method, "" if is_plain else role), *cells))
        title = f"Methods on {self.model}"
        title += "" if self.gates_hold else ", whose gate failed: these scores are not to be read"
        rules = (len(self.competing) - 1,) if self.scores.controls else ()
        notes = [*self.conclusions, *legend(self), *flag_lines(self)]
        return Table(("method", *(one.heading for one in self.columns)), rows, title, rules, self.groups, notes)

    def flags(self, *, controls: bool) -> Counter[tuple[str, str]]:
        """Count how often each flag is up for the methods' scores, or the controls', by (flag, title of the metric)."""
        counts = Counter[tuple[str, str]]()
        for method in self.scores.controls if controls else self.competing:
            for column in self.columns:
                for name, count in self.counts(method, column).flags().items():
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
) -> ModelTable:
    """Build the table of a model.

    Methods are compared with the reference (default: ``fringe``, else the first).

    ``verdicts`` on the metrics of this model are by label, if they were judged: metrics that do not pass stand last,
    after those without a verdict, and neither have a best method. Raises InputError for a reference that is no method
    of the model.
    """
    reference = reference_of(results, model, reference)
    columns = sorted(columns_of(results, verdicts), key=lambda one: ["passes", *UNFIT].index(one.verdict))
    methods = results.methods(model)
    scores = ScoreTable(
        {(method, one.label): results.scores(model, method, one.label) for method in methods for one in columns},
        [method for method in methods if results.is_control(method)],
        {one.label: (one.direction, one.summary) for one in columns},
        int(results.manifest.plan["seed"]),
        {one.label: {"clusters": results.clusters(model, one.label)} for one in columns},
        reference,
        [one.label for one in columns if one.verdict in UNFIT],
    )
    return ModelTable(results, model, reference, tuple(columns), scores)


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


def legend(table: ModelTable) -> list[str]:
    """Return how to read the numbers and marks of a table."""
    medians = [column.title for column in table.columns if column.summary == "median"]
    clustered = any(group.get("clusters") is not None for group in table.scores.groups.values())
    unit = "clusters of images that share pixels" if clustered else "images"
    kind = f"mean (median for {', '.join(medians)})" if medians else "mean"
    interval = f"{LEVEL:.0%} bootstrap interval over {unit}, {RESAMPLES} resamples, seed {table.scores.seed}"
    lines = [f"Values: {kind} [{interval}].", "n: images with a score. ↑: higher is better, ↓: lower is better."]
    tests = table.scores.tests
    shown = ", if it is shown to be better than every control" * bool(tests)
    lines.append(
        f"Bold and underlined: the best method of a metric{shown}. Bold: its interval overlaps that of the best, which "
        "is no test. Controls are never bold."
    )
    for verdict, what in UNFIT.items():
        titles = [column.title for column in table.columns if column.verdict == verdict]
        lines += [f"{what}: {', '.join(titles)}. No method wins there."] if titles else []
    if count := table.scores.comparisons:
        lines.append(
            f"*, **, ***: differs from {table.reference} on the same images with p < .05, .01, .001 (sign-flip test of "
            f"the paired differences, adjusted after Holm for the {count} comparisons of this table)."
        )
    lines += (few := table.scores.untested())
    if tests and not few:
        lines.append(
            f"{NOT_BETTER_MEANS}. The greatest p of the sign-flip test against "
            f"each control counts, adjusted after Holm for {counted(len(tests), 'score')}. Such a score is no evidence "
            "for the map."
        )
    if any(table.counts(method, column).missing for method in table.rows for column in table.columns):
        lines.append(f"{INCOMPLETE}: incomplete, images of this cell were not computed.")
    return lines


def flag_lines(table: ModelTable) -> list[str]:
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
    "The best method is bold if it is shown to be better than every control. "
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
    sections = [Section(GATES, table=gates, text=unread)]
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
    return Section(TRUTH, sections=tuple(sections))


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
    cells = (table := ScoreTable(scores, controls, words, seed, groups)).cells
    shown = [metric for metric in metrics if any(cells[method, metric].estimate.n for method in methods)]
    head = ["method"]
    for metric in shown:  # the title, the preset that the label names, and the direction
        name, preset = manifest.metrics[metric]["title"], Reference.parse(metric).rest
        head.append(f"{name}{f', {preset}' if preset else ''} {ARROW[words[metric][0]]}")
    chances = (Cell(chance_of(results, models, m), cells[methods[0], m].decimals) for m in shown)
    rows: list[Row] = [("chance", *chances, "", "")]
    for method in methods:
        passes = Cell(float(cost_of_maps(results, models, method)["passes"][0]), 0)
        name = method_cell(method, "control" * results.is_control(method))
        rows.append((name, *(cells[method, metric].cell() for metric in shown), table.count(method), passes))
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
