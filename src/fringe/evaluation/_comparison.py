"""Compare methods on images in memory; and what is read off a comparison: rows of scores, means with intervals, text,
table and picture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from fringe._network.arguments import explained_inputs
from fringe._numbers.rng import KeyedGenerator
from fringe._strings.class_names import ClassNames
from fringe._strings.formats import counted, to_csv
from fringe._strings.names import hint_unknown, unique
from fringe._strings.progress import shown
from fringe._strings.tables import Cell, FrameLibrary, Table, make_frame
from fringe.attribution import Context
from fringe.baselines import InputSpace
from fringe.classifier import Classifier, Target
from fringe.detection import Boxes, is_detector
from fringe.errors import InputError, TargetError
from fringe.evaluation._conclusions import conclude, variants_of
from fringe.evaluation._evaluator import Evaluator, MethodResult, Methods, Progress, parse_methods
from fringe.evaluation._summary import ScoreTable, method_cell
from fringe.inputs import ModelInputs, Request, image_inputs, image_scale, open_model
from fringe.metrics import (
    ARROW,
    METRICS,
    USUAL_METRICS,
    Aggregate,
    Direction,
    EvaluationContext,
    Metric,
    get_metric,
)
from fringe.models import LoadedModel, Preprocessing
from fringe.paths import Problem, verify
from fringe.settings import canonical_name

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
        clusters: The photograph of each of B boxes of a detector; None where each image is one of its own.
    """

    images: tuple[str, ...]
    target: Tensor
    metrics: Mapping[str, Metric]
    rows: tuple[MethodResult, ...]
    seed: int
    context: Context | None = None
    evaluation: EvaluationContext | None = None
    clusters: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.images)

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if not name.startswith("_")]

    def __repr__(self) -> str:
        lines = [line.rstrip() for line in str(self._table()).splitlines()]
        return "\n".join([f"Comparison of {self._count()}", *(f"  {line}" for line in lines)])

    def _repr_html_(self) -> str:
        from fringe._strings.html import render
        from fringe.plots import png_of

        picture = None if isinstance(self._drawable(), str) else png_of(self.plot(), dpi=90)
        return render("comparison", count=self._count(), table=self._table(), picture=picture)

    @cached_property
    def tidy_scores(self) -> TidyScores:
        """The scores, and all that follows from them."""
        return TidyScores(tidy(self), self.metrics, self.seed, self.clusters)

    def conclusions(self) -> list[str]:
        """Say what the scores show.

        Returns:
            At most four sentences: which method is better than all others and all controls, and in which metrics; which
            control the best is not shown to be better than; whether the reference decides; what more images would show.
        """
        return self.tidy_scores.conclusions

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

    def plot(self, *, ax: Any = None) -> Figure:
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
        what = counted(len(self), "image")
        if self.clusters is not None:
            what = f"{counted(len(self), 'box')} of {counted(len({*self.clusters}), 'photograph')}"
        return f"{model}{what} · {counted(methods, 'method')}"

    def _table(self) -> Table:
        """The summary of each metric for each method; the passes are of one image."""
        passes = {
            row.label: [Cell(round((row.passes.forward + row.passes.jvp + row.passes.vjp) / len(self)), 0)]
            for row in self.rows
        }
        table = self.tidy_scores.printed(passes, ["passes"])
        title = f"Scores of {self._count()}"
        return replace(table, title=title, notes=[*self.conclusions(), *table.notes, *self.reasons()])

    def _drawable(self) -> Context | str:
        """The context, or why there is no picture."""
        if self.context is None or self.context.kind != "image":
            return "the inputs are no images"
        if all(row.maps is None for row in self.rows if not row.control):
            return "the maps were not stored (keep_maps=False), or every method failed"
        return self.context


def metric_labels(metrics: Mapping[str, Metric]) -> list[MetricLabel]:
    """The metrics whose scores stand under maps."""
    from fringe.plots import MetricLabel, labels

    return labels([MetricLabel(name, m.name, m.title, m.direction) for name, m in metrics.items()])


def grid_row(comparison: Comparison, context: Context, index: int) -> GridRow:
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
        box=context.box_on_input(index),
    )


def tidy(comparison: Comparison) -> list[dict[str, Any]]:
    """One plain dict a method, metric and image: ``method``, ``control``, ``metric``, ``image``, ``score`` (None where
    there is none) and ``flags``: the metric's names of degenerate cases, ``metric_refused`` or the fault of the map."""
    rows = list[dict[str, Any]]()
    for row in comparison.rows:
        for metric in comparison.metrics:
            scores = row.scores[metric]
            finite, values = scores.values.isfinite().tolist(), scores.values.tolist()
            raised = {name: flag.tolist() for name, flag in scores.flags.items()}
            for i, (image, fault) in enumerate(zip(comparison.images, row.faults, strict=True)):
                refused = [METRIC_REFUSED] if any(scores.refusals[i : i + 1]) else []
                flags = [fault] if fault else [*refused, *(name for name, flag in raised.items() if flag[i])]
                names = {"method": row.label, "control": row.control, "metric": metric, "image": image}
                rows.append({**names, "score": values[i] if finite[i] else None, "flags": flags})
    return rows


@dataclass(frozen=True)
class TidyScores:
    """Tidy ``rows`` of a comparison, the ``metrics`` by label, and the table of scores that they are.

    ``clusters`` are names of groups of the images, in their order, such as the boxes of a photograph: intervals and
    tests draw whole groups. ``by_value`` is that of :class:`ScoreTable`.
    """

    rows: Sequence[Mapping[str, Any]]
    metrics: Mapping[str, Metric]
    seed: int = 0
    clusters: Sequence[str] | None = None
    by_value: bool = False

    @cached_property
    def groups(self) -> dict[tuple[str, str], list[Mapping[str, Any]]]:
        """The rows by method and metric."""
        groups = dict[tuple[str, str], list[Mapping[str, Any]]]()
        for row in self.rows:
            groups.setdefault((row["method"], row["metric"]), []).append(row)
        return groups

    @cached_property
    def table(self) -> ScoreTable:
        """The scores, and all that follows from them."""
        scores = {key: [row["score"] for row in group] for key, group in self.groups.items()}
        controls = list(dict.fromkeys(method for (method, _), group in self.groups.items() if group[0]["control"]))
        words: dict[str, tuple[Direction, Aggregate]] = {k: (m.direction, m.aggregate) for k, m in self.metrics.items()}
        shared = {label: {"clusters": self.clusters} for label in self.metrics}
        return ScoreTable(scores, controls, words, self.seed, shared, by_value=self.by_value)

    @cached_property
    def conclusions(self) -> list[str]:
        """What the scores show (:func:`conclude`)."""
        return conclude(self.table, variants=variants_of({k: metric.record() for k, metric in self.metrics.items()}))

    @property
    def untested(self) -> list[str]:
        """Say, in a sentence or none, that there are too few images, or photographs of boxes, for the tests."""
        return self.table.untested(self._noun)

    @property
    def _noun(self) -> str:
        return "image" if self.clusters is None else "photograph"

    def entries(self) -> list[dict[str, Any]]:
        """One plain dict a method and metric, in the order of the rows: :class:`Estimate` over the images that have a
        score, of how many ``images``, and ``clusters`` if there are any; how many scores are ``flagged``, and how often
        each flag is up in ``flags``. ``control`` says whether it is one, and ``better_than_controls`` whether a method
        is better than every control (:func:`compare_with_controls`): None for a control and where nothing was
        tested."""
        more = {} if self.clusters is None else {"clusters": len({*self.clusters})}
        return [
            {
                "method": method,
                "control": group[0]["control"],
                "metric": metric,
                **asdict(self.table.cells[method, metric].estimate),
                "images": len(group),
                **more,
                "better_than_controls": self.table.cells[method, metric].better,
                "flagged": sum(bool(row["flags"]) for row in group),
                "flags": dict(Counter(flag for row in group for flag in row["flags"])),
            }
            for (method, metric), group in self.groups.items()
        ]

    def csv(self) -> str:
        """One line per method, metric and image; a missing score is empty, flags have semicolons between them."""
        lines = [{**row, "control": str(row["control"]).lower(), "flags": ";".join(row["flags"])} for row in self.rows]
        return to_csv(lines, ("method", "control", "metric", "image", "score", "flags"))

    def printed(
        self, costs: Mapping[str, Sequence[Any]], names: Sequence[str], titles: Mapping[str, str] | None = None
    ) -> Table:
        """Make a table of methods by metrics.

        Args:
            costs: Further cells of each method, in the order of the rows.
            names: Headers of these.
            titles: What methods are called, instead of their labels.

        Returns:
            Means or medians with their intervals, the controls below a rule, and why scores are not marked or missing.
            The best of the methods is bold if it is shown to be better than every control, or if there is none.
        """
        cells, controls = self.table.cells, self.table.controls
        rows = [
            (
                method_cell(method, "control" * (method in controls), (titles or {}).get(method)),
                *(cells[method, metric].cell() for metric in self.metrics),
                *more,
            )
            for method, more in costs.items()
        ]
        methods = sum(method not in controls for method in costs)
        notes = self.table.notes(self._noun)
        for label in self.metrics:
            ones = [row for (_, metric), group in self.groups.items() if metric == label for row in group]
            flags = sorted({flag for row in ones for flag in row["flags"]})
            if METRIC_REFUSED not in flags and all(row["score"] is None for row in ones):
                why = ", ".join(flags).replace("_", " ") or "not defined for these maps"
                notes.append(f"metric {label}: no score ({why})")
        heads = (f"{label.replace('_', ' ')} {ARROW[m.direction]}".strip() for label, m in self.metrics.items())
        return Table(("method", *heads, *names), rows, rules=(methods - 1,) * (0 < methods < len(rows)), notes=notes)


@hint_unknown
def compare(
    model: str | Path | Callable[..., Any] | Classifier | LoadedModel,
    inputs: Any,
    methods: Methods = ("fringe", "ig"),
    metrics: Sequence[str | Metric] | Mapping[str, Metric] = USUAL_METRICS,
    *,
    target: Target = "predicted",
    controls: bool = True,
    seed: int = 0,
    batch_size: int | Literal["auto"] | None = None,
    space: InputSpace | None = None,
    ids: Sequence[str] | None = None,
    progress: bool | Progress | None = None,
    keep_maps: bool = True,
    boxes: Boxes | None = None,
    forward_args: Sequence[Any] | None = None,
    forward_kwargs: Mapping[str, Any] | None = None,
    preprocessing: Preprocessing | str | None = None,
    classes: ClassNames | None = None,
    device: str = "auto",
    trust_code: bool = False,
) -> Comparison:
    """Explain inputs with every method, and score every map under every metric.

    All methods explain the same classes with the same noise (from ``seed`` and ``ids``), and a metric perturbs an image
    in the same way for all of them. If a method raises a FringeError, it explains each image alone: an image that it
    fails on has the reason in ``errors`` of its row, and the other images and methods continue. A map that is not
    finite, or whose path diverged, has no scores. For many images, and for scores on disk, see :func:`run_experiment`.

    Args:
        model: A classifier as in :func:`fringe.attribute`, or a model as in :func:`fringe.explain`, such as
            ``"torchvision:resnet50"``.
        inputs: Inputs (B, *S), or a dictionary of model inputs as in :func:`fringe.attribute`; or pictures, paths and
            arrays as in :func:`fringe.explain`.
        methods: Names, configured methods, or pairs of a label and either.
        metrics: Names or configured metrics.
        target: Class to explain: "predicted", a number, or one number for each image.
        controls: Whether to add the control maps, which do not depend on the model. Those of a box take part in any
            case.
        seed: Keys all randomness.
        batch_size: Images of a forward pass, "auto", or None for the classifier's own.
        space: Bounds, references and baselines of the inputs.
        ids: Names of the images, which key their noise; their positions if None.
        progress: True for a progress bar, or a function. It is called with the name of the current work, and with the
            numbers of finished and of planned maps.
        keep_maps: Whether rows hold the maps and attributions.
        boxes: Of a detector, what is explained, as in :func:`fringe.explain`. Boxes of one photograph are one cluster
            of the intervals and tests, as they share its pixels.
        forward_args: Further positional arguments of the model, as in :func:`fringe.attribute`.
        forward_kwargs: Further keyword arguments of the model.
        preprocessing: How pictures are prepared, as in :func:`fringe.explain`.
        classes: Class names, as in :func:`fringe.explain`.
        device: Device of a model that is named by a spec.
        trust_code: Whether a model that is code may run.

    Returns:
        The comparison. :func:`tidy` makes plain rows of its scores; :func:`summarise` means and intervals of the rows.

    Raises:
        FringeError: For a model, image, target, name or label that cannot be used.
    """
    request = Request(model, inputs, preprocessing, classes, device, trust_code, {"boxes": boxes})
    is_plain = isinstance(inputs, (Tensor, Mapping)) and preprocessing is None and boxes is None
    is_plain &= not isinstance(model, (str, Path, LoadedModel))
    is_plain &= forward_kwargs is not None or not is_detector(model)
    opened = None if is_plain else image_inputs(request)  # a form that only explain takes
    if opened is not None:
        inputs, space, ids = opened.inputs, space or opened.space, opened.keys if ids is None else ids
        forward_kwargs = {**opened.arguments.get("forward_kwargs", {}), **(forward_kwargs or {})}
        if isinstance(target, str) and target == "predicted" and opened.predicted is not None:
            target = list(opened.predicted)  # "no object" is none of them
    clusters = None if opened is None else opened.clusters
    candidates, by_label = parse_methods(methods, controls, clusters is not None), _by_label(metrics)
    classifier = Classifier.of(request.model if opened is None else opened.model, batch_size=batch_size)
    x, arguments = explained_inputs(inputs, forward_args, forward_kwargs, ids)
    if not classifier.has_classes:
        message = "metrics compare predictions, and this model gives numbers that are no classes"
        raise InputError(message, argument="model", hint="give a model of classes, and no function as score")
    names = None if ids is None else tuple(map(str, ids))
    with classifier.session(x.device):
        domain = space or InputSpace()
        problem = Problem.of(
            classifier, x, target=target, forward_args=arguments, ids=names, rng=KeyedGenerator(seed), domain=domain
        )
        if problem.target.dim() > 1:
            count = problem.target.shape[1]
            raise TargetError(f"target: got {count} classes per image, expected one: metrics score one map per image")
        finite = x.isfinite().flatten(1).all(1) & problem.logits.isfinite().all(1)
        if bad := (~finite).nonzero()[:, 0].tolist():
            raise InputError(f"inputs: images {bad} hold NaN or infinity, or their logits do; leave them out")
        used = [candidate.method for candidate in candidates if candidate.method is not None]
        used = [method for method in used if method.uses_gradients]
        has_sum = all(method.is_complete or method.innermost.is_complete for method in used)
        verify(problem, {method.jvp_use(problem) for method in used}, has_sum=has_sum)
        with shown(progress is True, "comparing") as bar:
            drawn: Progress | None = None if bar is None else lambda what, done, total: bar(done, total, what)
            report = drawn if isinstance(progress, bool) else progress
            evaluation = EvaluationContext(problem)
            evaluator = Evaluator(evaluation, candidates, by_label, report)
            rows = evaluator.rows(keep_maps)
    labels = names or (tuple(map(str, range(len(x)))) if opened is None else opened.ids)
    context = _context(opened, request, x, problem.logits, labels)
    stored = evaluation if keep_maps else None
    return Comparison(labels, problem.target, by_label, rows, seed, context, stored, clusters)


def _context(
    opened: ModelInputs | None, request: Request, x: Tensor, logits: Tensor, ids: Sequence[str]
) -> Context | None:
    """What pictures need; None where the inputs are no images."""
    if opened is None:
        if x.dim() != 4:
            return None
        model, (mean, std) = open_model(request), image_scale(x, None)
        opened = ModelInputs(model.model, model.label, model.class_names, x, tuple(ids), mean=mean, std=std)
    return opened.context("image", logits, ids)


def _by_label(metrics: Sequence[str | Metric] | Mapping[str, Metric]) -> dict[str, Metric]:
    """The configured metrics by the names that their scores go by."""
    if isinstance(metrics, Mapping):
        return {label: get_metric(metric) for label, metric in metrics.items()}
    if isinstance(metrics, (str, Metric)):
        raise InputError(f"metrics: got {metrics!r}, expected a list such as [{metrics!r}]")
    if not metrics:
        raise InputError("metrics: none given")
    chosen = [(metric, get_metric(metric)) for metric in metrics]
    labels = [canonical_name(given, METRICS) if isinstance(given, str) else metric.name for given, metric in chosen]
    return unique(zip(labels, (metric for _, metric in chosen), strict=True), "metrics")
