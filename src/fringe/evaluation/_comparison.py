"""A comparison, and what is read off it: rows of scores, means with intervals, text, table and picture."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fringe._tables import Cell, FrameLibrary, Table, make_frame
from fringe._text import counted, decimals_for
from fringe.attribution import Context
from fringe.errors import InputError
from fringe.evaluation._evaluator import MethodResult
from fringe.evaluation._statistics import (
    NOT_BETTER,
    NOT_BETTER_MEANS,
    ControlTest,
    adjust_tests,
    as_column,
    compare_with_controls,
    estimate,
    too_few,
)
from fringe.metrics import ARROW, EvaluationContext, Metric, best_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fringe.plots import GridRow, MetricLabel

#: Images of a picture.
MOST_IMAGES = 8
#: The control beside the methods in a picture: it looks like a map, and does not look at the network.
DRAWN_CONTROL = "edge"
#: The flag of a map that a metric refused.
METRIC_REFUSED = "metric_refused"


@dataclass(frozen=True, repr=False)
class Comparison:
    """Maps and scores of several methods on the same images.

    Attributes:
        images: Names of the B images.
        target: Explained classes (B,).
        metrics: Configured metrics by label.
        rows: One result for each method and control.
        seed: The key of all randomness.
        context: The images as a person reads them; None for other inputs.
        evaluation: The images and the model of the scores; None if they were not stored.
    """

    images: tuple[str, ...]
    target: Tensor
    metrics: Mapping[str, Metric]
    rows: tuple[MethodResult, ...]
    seed: int
    context: Context | None = None
    evaluation: EvaluationContext | None = None

    def __len__(self) -> int:
        return len(self.images)

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if not name.startswith("_")]

    def __repr__(self) -> str:
        lines = [line.rstrip() for line in str(self._table()).splitlines()]
        return "\n".join([f"Comparison of {self._count()}", *(f"  {line}" for line in lines)])

    def _repr_html_(self) -> str:
        from fringe._html import render
        from fringe.plots import png_of

        picture = None if isinstance(self._drawable(), str) else png_of(self.plot(), dpi=90)
        return render("comparison", count=self._count(), table=self._table(), picture=picture)

    def reasons(self) -> list[str]:
        """List why scores are missing.

        Returns:
            The reasons of methods that failed and of metrics that refused, each once.
        """
        failed = [f"{row.label}: {error}" for row in self.rows for error in row.errors if error]
        refused = [
            reason for row in self.rows for scores in row.scores.values() for reason in scores.refusals if reason
        ]
        return list(dict.fromkeys([*failed, *refused]))

    def plot(self, *, ax: Any = None) -> "Figure":
        """Draw the maps of the first images side by side, one column per method.

        Args:
            ax: Axes, or a Figure or SubFigure, to draw on; a new figure by default.

        Returns:
            The figure.

        Raises:
            InputError: If the inputs are no images, or the maps were not stored.
        """
        from fringe.plots import captions, comparison_grid

        context = self._drawable()
        if isinstance(context, str):
            raise InputError(f"there is no picture: {context}", argument="plot")
        rows = [grid_row(self, context, index) for index in range(min(len(self), MOST_IMAGES))]
        methods = [row.label for row in self.rows if not row.control]
        caption = captions(metric_labels(self.metrics))
        return comparison_grid(rows, methods, title=self._count(), caption=caption, ax=ax)

    def to_dataframe(self, library: FrameLibrary = "pandas") -> Any:
        """Make a table with one row for each method, metric and image.

        Args:
            library: ``pandas`` or ``polars``.

        Returns:
            A DataFrame of that library: the method and whether it is a control, the metric, the image, the score (none
            where there is none) and the flags.

        Raises:
            InputError: If the library is not installed.
        """
        return make_frame(tidy(self), library)

    def _count(self) -> str:
        methods = sum(not row.control for row in self.rows)
        model = "" if self.context is None else f"{self.context.model} · "
        return f"{model}{counted(len(self), 'image')} · {counted(methods, 'method')}"

    def _table(self) -> Table:
        """The summary of each metric for each method; the passes are of one image."""
        entries = summarise(tidy(self), self.metrics, self.seed)
        passes = {
            row.label: [Cell((row.passes.forward + row.passes.jvp + row.passes.vjp) / len(self), 0)]
            for row in self.rows
        }
        table = score_table(entries, self.metrics, passes, ["passes"])
        return replace(table, title=f"Scores of {self._count()}", notes=[*table.notes, *self.reasons()])

    def _drawable(self) -> Context | str:
        """The context, or why there is no picture."""
        if self.context is None or self.context.kind != "image":
            return "the inputs are no images"
        if all(row.maps is None for row in self.rows if not row.control):
            return "the maps were not stored (keep_maps=False), or every method failed"
        return self.context


def metric_labels(metrics: Mapping[str, Metric]) -> list["MetricLabel"]:
    """The metrics whose scores stand under maps."""
    from fringe.plots import MetricLabel, labels

    return labels([MetricLabel(name, m.name, m.title, m.direction) for name, m in metrics.items()])


def grid_row(comparison: Comparison, context: Context, index: int) -> "GridRow":
    """Image ``index`` of a comparison, which the context shows, as a row of its picture."""
    from fringe.plots import GridCell, GridRow, Prediction, class_title

    methods = [row for row in comparison.rows if not row.control]
    drawn = [*methods, *(row for row in comparison.rows if row.control and row.label == DRAWN_CONTROL)]
    words = [
        label.annotations([float(row.scores[label.label].values[index]) for row in drawn])
        for label in metric_labels(comparison.metrics)
    ]
    cells = [
        GridCell(
            None if row.maps is None else row.maps[index].cpu().numpy().copy(),
            notes,
            row.faults[index].replace("_", " "),
            None if row.attribution is None else row.attribution.focus_weights(index),
        )
        for row, notes in zip(drawn, zip(*words, strict=True), strict=True)
    ]
    best, name, probability = context.top(index, 1)[0]
    target = int(comparison.target[index])
    explained = "" if best == target else class_title(context.class_label(target))
    prediction = Prediction(class_title(name), probability, explained)
    image = context.picture(context.inputs[index])
    controls = tuple((row.label, cell) for row, cell in zip(drawn, cells, strict=True) if row.control)
    return GridRow(
        image=image,
        name=context.ids[index],
        prediction=prediction,
        cells=tuple(cells[: len(methods)]),
        controls=controls,
    )


def tidy(comparison: Comparison) -> list[dict[str, Any]]:
    """One plain dict a method, metric and image: ``method``, ``control``, ``metric``, ``image``, ``score`` (None where
    there is none) and ``flags``: the metric's names of degenerate cases, ``metric_refused`` or the fault of the map."""
    return [
        {"method": row.label, "control": row.control, "metric": metric, "image": image, **cell}
        for row in comparison.rows
        for metric in comparison.metrics
        for image, cell in zip(comparison.images, _cells(row, metric), strict=True)
    ]


def summarise(rows: Sequence[dict[str, Any]], metrics: Mapping[str, Metric], seed: int = 0) -> list[dict[str, Any]]:
    """One plain dict a method and metric of tidy ``rows``, in their order: :class:`Estimate` over the images that have
    a score, of how many ``images``, how many scores are ``flagged``, and how often each flag is up in ``flags``.
    ``better_than_controls`` says whether a method is better than every control (:func:`compare_with_controls`); it is
    None for a control and where nothing was tested, and ``control`` whether it is one. ``metrics`` are a comparison's,
    by label: they say whether the mean or the median is the summary."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["method"], row["metric"]), []).append(row)
    tests = adjust_tests(_control_tests(groups, metrics, seed))
    return [
        {
            "method": method,
            "control": group[0]["control"],
            "metric": metric,
            **asdict(estimate([row["score"] for row in group], seed, metrics[metric].aggregate)),
            "images": len(group),
            "better_than_controls": tests[method, metric].better if (method, metric) in tests else None,
            "flagged": sum(bool(row["flags"]) for row in group),
            "flags": dict(Counter(flag for row in group for flag in row["flags"])),
        }
        for (method, metric), group in groups.items()
    ]


def score_table(
    entries: Iterable[Mapping[str, Any]],
    metrics: Mapping[str, Metric],
    costs: Mapping[str, Sequence[Any]],
    names: Sequence[str],
) -> Table:
    """Make a table of methods by metrics.

    Args:
        entries: Summaries, as of :func:`summarise`.
        metrics: Metrics by label.
        costs: Further cells of each method, in the order of the rows.
        names: Headers of these.

    Returns:
        Means or medians with their intervals, the best of the methods marked, and the controls below a rule.
    """
    known = {(entry["method"], entry["metric"]): entry for entry in entries}
    columns = [_column([known[method, label] for method in costs], metric) for label, metric in metrics.items()]
    is_control = {method: entry["control"] for (method, _), entry in known.items()}
    rows = [
        (Cell(method, note="control" * is_control[method]), *(column[index] for column in columns), *more)
        for index, (method, more) in enumerate(costs.items())
    ]
    methods = sum(not is_control[method] for method in costs)
    marked = any(cell.mark for column in columns for cell in column)
    return Table(
        (
            "method",
            *(f"{label.replace('_', ' ')} {ARROW[metric.direction]}".strip() for label, metric in metrics.items()),
            *names,
        ),
        rows,
        rules=(methods - 1,) if 0 < methods < len(rows) else (),
        notes=[NOT_BETTER_MEANS] * marked + _untested(known, metrics),
    )


def _untested(entries: Mapping[tuple[str, str], Mapping[str, Any]], metrics: Mapping[str, Metric]) -> list[str]:
    """Say that there are too few images, where a method could not be better than controls."""
    tested = [one for (_, label), one in entries.items() if not one["control"] and metrics[label].direction != "none"]
    if len(tested) == len(entries) or any(one["better_than_controls"] is not None for one in tested):
        return []
    return too_few(max((one["n"] for one in tested), default=0), len(tested))


def _column(entries: Sequence[Mapping[str, Any]], metric: Metric) -> list[Cell]:
    """The summaries of one metric as cells."""
    values = [entry[entry["summary"]] for entry in entries]
    best = best_of(
        [value for value, entry in zip(values, entries, strict=True) if not entry["control"]], metric.direction
    )
    ends = [(entry["low"], entry["high"]) for entry in entries]
    spreads = [(value, (high - low) / 2) for value, (low, high) in zip(values, ends, strict=True) if low is not None]
    decimals = decimals_for(spreads)
    return [
        Cell(
            value,
            decimals,
            ends=(entry["low"], entry["high"]),
            style="best" if best is not None and value == best and not entry["control"] and not failed else "",
            mark=NOT_BETTER * failed,
        )
        for value, entry in zip(values, entries, strict=True)
        for failed in [entry["better_than_controls"] is False]  # what is not shown is not bold
    ]


def _control_tests(
    groups: Mapping[tuple[str, str], Sequence[dict[str, Any]]], metrics: Mapping[str, Metric], seed: int
) -> dict[tuple[str, str], ControlTest]:
    tests: dict[tuple[str, str], ControlTest] = {}
    for label, metric in metrics.items():
        rows = {method: group for (method, name), group in groups.items() if name == label}
        scores = {method: as_column(method, [row["score"] for row in group]) for method, group in rows.items()}
        controls = [method for method, group in rows.items() if group[0]["control"]]
        compared = compare_with_controls(scores, controls, metric.direction, metric.aggregate, seed)
        tests |= {(method, label): test for method, test in compared.items()}
    return tests


def _cells(row: MethodResult, metric: str) -> Iterable[dict[str, Any]]:
    scores = row.scores[metric]
    finite, values = scores.values.isfinite().tolist(), scores.values.tolist()
    raised = {name: flag.tolist() for name, flag in scores.flags.items()}
    for i, fault in enumerate(row.faults):
        refused = [METRIC_REFUSED] if any(scores.refusals[i : i + 1]) else []
        flags = [fault] if fault else [*refused, *(name for name, flag in raised.items() if flag[i])]
        yield {"score": values[i] if finite[i] else None, "flags": flags}
