"""Evaluate methods on a batch of images: every candidate makes its maps, and the same metrics score them."""

import dataclasses
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from fringe._strings.names import unique
from fringe.attribution import (
    METHODS,
    Attribution,
    Attributor,
    CentrePrior,
    Diffusion,
    FRInGe,
    Incomplete,
    Power,
    Reweighted,
    explain_problem,
    get_method,
)
from fringe.classifier import PassCounts
from fringe.detection import Detector
from fringe.errors import FringeError, InputError, is_transient, require_order
from fringe.metrics import (
    EvaluatedMaps,
    EvaluationContext,
    Maps,
    Metric,
    PlainMaps,
    Scores,
    evaluated_maps,
    score,
    why_refused,
)
from fringe.paths import Problem
from fringe.settings import canonical_name

#: From the images to a map (B, *S) of each.
Control = Callable[[Problem], Tensor]


def _edge(problem: Problem) -> Tensor:
    """Gradient magnitude of the image: the norm over channels and spatial axes of its central differences (one-sided
    at the border), the same for each channel. In double precision, so that entries that are equal stay equal: the
    rounding of a processor would order them."""
    x = problem.inputs
    axes = [axis for axis in range(2 if x.dim() > 2 else 1, x.dim()) if x.shape[axis] > 1]
    if not axes:
        return torch.zeros_like(x)
    squares = torch.stack(torch.gradient(x.double(), dim=axes)).square().sum(0)
    return (squares.sum(1, keepdim=True) if x.dim() > 2 else squares).sqrt().to(x.dtype).expand_as(x).clone()


CONTROLS: Mapping[str, Control] = {
    "zero": lambda problem: torch.zeros_like(problem.inputs),  # infidelity: the model's response to the perturbations
    "random": lambda problem: torch.stack(
        [problem.rng.normal(f"control random {key}", x) for key, x in zip(problem.keys, problem.inputs, strict=True)]
    ),
    "uniform": lambda problem: torch.ones_like(problem.inputs),  # without an order: equal pixels
    "edge": _edge,
}


def _sides(problem: Problem) -> Tensor:
    """The boxes (B, 4) of the explained places of a detector."""
    detector, rows = problem.model.module, torch.arange(len(problem.inputs), device=problem.inputs.device)
    assert isinstance(detector, Detector)  # or there are no such controls

    def boxes(x: Tensor, of: Tensor) -> Tensor:
        return detector.box(x, problem.forward_args.select(of).kwargs["place"])

    problem.model.passes.forward += len(rows)
    with torch.no_grad():
        return problem.model.batch_size.map(boxes, problem.inputs, rows)


def _box(problem: Problem) -> Tensor:
    """The part of each pixel that lies in the box."""
    return _of_sides(problem, lambda u, low, high: (high.minimum(u + 0.5) - low.maximum(u - 0.5)).clamp_min(0))


def _box_centre(problem: Problem) -> Tensor:
    """A Gaussian at the centre of the box, whose standard deviations are a quarter of its sides."""

    def profile(u: Tensor, low: Tensor, high: Tensor) -> Tensor:
        away = (u - (low + high) / 2) / ((high - low) / 4).clamp_min(torch.finfo(u.dtype).tiny)
        return (-away.square() / 2).exp()

    return _of_sides(problem, profile)


def _of_sides(problem: Problem, profile: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
    """The product of a ``profile`` along rows and one along columns: of the centres of pixels, and the two sides (B, 1)
    of the boxes; the same for each channel."""
    x, sides = problem.inputs, _sides(problem)[:, :, None]
    down, across = (
        profile(torch.arange(size, dtype=x.dtype, device=x.device) + 0.5, sides[:, axis], sides[:, axis + 2])
        for axis, size in ((1, x.shape[2]), (0, x.shape[3]))
    )
    return (down[:, None, :, None] * across[:, None, None, :]).expand_as(x).clone()


#: Maps that lie in the box of a detector, whatever the network reads there: scored wherever boxes are explained.
BOX_CONTROLS: Mapping[str, Control] = {
    "box": _box,
    "box_centre": _box_centre,
    "box_edge": lambda problem: _edge(problem) * _box(problem),
}


def _of_words(number: Callable[[Tensor], Tensor]) -> Control:
    """A number (B, L) of each word, which the entries of its embedding in the inputs (B, L, D) share."""

    def values(problem: Problem) -> Tensor:
        x = problem.inputs
        return (number(x) / x.shape[2])[..., None].expand_as(x).clone()

    return values


#: Maps of texts that do not look at the model: later words, words that stand more often in the text, long embeddings.
TEXT_CONTROLS: Mapping[str, Control] = {
    "position": _of_words(lambda x: torch.arange(1, x.shape[1] + 1).to(x).expand(x.shape[:2])),
    "frequency": _of_words(lambda x: (x[:, :, None] == x[:, None]).all(3).sum(2).to(x)),
    "length": _of_words(lambda x: x.square().sum(2).sqrt()),
}

Named = tuple[str, str | Attributor]
#: Names, configured methods, or pairs of a label and either.
Methods = Sequence[str | Attributor | Named] | Mapping[str, str | Attributor]


@dataclass(frozen=True)
class Candidate:
    """A method under a ``label``, or the control of that name, one of ``CONTROLS``, ``BOX_CONTROLS`` or
    ``TEXT_CONTROLS`` (``method`` None), a method whose path ``ignores_model``, or one that is made of the maps ``of``
    the method with this label, which are ``cached``."""

    label: str
    method: Attributor | None
    ignores_model: bool = False
    of: str = ""
    cached: bool = False

    @property
    def control(self) -> bool:
        return self.method is None or self.ignores_model or bool(self.of)

    def record(self) -> dict[str, Any]:
        """The method and its settings as plain data."""
        settings = {} if self.method is None else self.method.record()
        return {**settings, "control": self.label} if self.control else settings


#: The control of FRInGe: a path that smooths the image, whatever the model predicts on the way.
DIFFUSION = "diffusion"


def _walks(method: Attributor) -> bool:
    """Whether a method is FRInGe or FRInGe-B, and not their control."""
    return isinstance(method, FRInGe) and not isinstance(method, Diffusion)


def control_candidates(methods: Mapping[str, Attributor | None], kind: Iterable[str] = ()) -> list[Candidate]:
    """The controls beside these methods: the maps of ``CONTROLS`` and those of the ``kind`` of input, ``DIFFUSION``
    with the settings of the first FRInGe among them, and those of the map of this FRInGe, or of the first method;
    unless a method has their name."""
    controls = [Candidate(name, None) for name in (*CONTROLS, *kind)]
    named = {label: method for label, method in methods.items() if method is not None}
    label = next((label for label, method in named.items() if _walks(method)), next(iter(named), ""))
    first = named.get(label)
    if isinstance(first, FRInGe) and _walks(first) and first.structure != "none":
        controls.append(Candidate(DIFFUSION, Diffusion.of(first), ignores_model=True))
    controls += [] if first is None else map_controls(label, first)
    return [one for one in controls if one.method is None or one.label not in methods]


def planned_work(
    methods: Mapping[str, Attributor | None],
    metrics: Mapping[str, Metric],
    images: int,
    limits: Mapping[str, int] | None = None,
    controls: bool | tuple[str, ...] = False,
) -> list[tuple[str, float, float]]:
    """List what maps and scores would take, as far as the settings tell: what is computed, the forward and backward
    passes of one, and how many. ``limits`` are metrics that are computed on the first images only; ``controls`` says
    that those of the methods are computed, too."""
    if controls:  # those of a method's map are made without a pass
        more = {one.label: None if one.of else one.method for one in control_candidates(methods)}
        methods = {**methods, **more}
    makers = [(f"a map by {name}", method.planned_passes or 0.0) for name, method in methods.items() if method]
    work: list[tuple[str, float, float]] = []
    for label, metric in metrics.items():
        count = min((limits or {}).get(label, images), images)
        work.append((f"the score {label}", metric.planned_passes, count * len(methods)))
        if metric.requires_explainer:
            more = metric.planned_maps * count
            work += [(*maker, more) for maker in makers]
    return work + [(*maker, images) for maker in makers]


def map_controls(label: str, method: Attributor) -> list[Candidate]:
    """The controls of one method's map: the map sharper, in the same order, and the map towards the centre.

    Scores of MAS, and shares of a map in a region, gain from both. They are made of the map that the method made, so
    they take no pass, and metrics that need further maps leave them out.
    """
    if isinstance(method, Incomplete):
        return []
    made = Power(of=method), CentrePrior(of=method)
    return [Candidate(f"{control.label.partition(':')[0]}:{label}", control, of=label) for control in made]


def with_controls(
    methods: Sequence[Candidate], controls: bool | tuple[str, ...] = True, kind: Iterable[str] = ()
) -> list[Candidate]:
    """These methods, then their controls, or those that are named and those of maps. Those of the ``kind`` of input
    take part in any case: a share of a map in a box says nothing without that of the box itself."""
    if not controls:
        return [*methods, *(Candidate(name, None) for name in kind)]
    chosen = control_candidates({one.label: one.method for one in methods}, kind)
    bases = {one.of for one in chosen}
    if controls is not True:
        chosen = [one for one in chosen if one.of or one.label in (*controls, *kind)]
    return [*(dataclasses.replace(one, cached=one.label in bases) for one in methods), *chosen]


def parse_methods(methods: Methods, controls: bool, boxes: bool = False) -> list[Candidate]:
    """List the methods in their order, then the controls, and those of ``boxes`` in any case. Raises InputError for
    unknown methods and repeated labels."""
    if isinstance(methods, (str, Attributor)):
        raise InputError(f"methods: got {methods!r}, expected a list such as [{methods!r}]")
    require_order("methods", methods)  # the first one has controls of its map
    entries: Iterable[str | Attributor | Named] = methods.items() if isinstance(methods, Mapping) else methods
    candidates = list[Candidate]()
    for entry in entries:
        label, given = entry if isinstance(entry, tuple) else ("", entry)
        method = get_method(given)
        label = label or (canonical_name(given, METHODS) if isinstance(given, str) else method.label)
        candidates.append(Candidate(label, method))
    if not candidates:
        raise InputError("methods: none given")
    candidates = with_controls(candidates, controls, BOX_CONTROLS if boxes else ())
    labelled = ((candidate.label, candidate) for candidate in candidates)
    return list(unique(labelled, "methods", "tell them apart with pairs (label, method)").values())


def make_maps(candidate: Candidate, problem: Problem) -> tuple[Tensor, Attribution | None]:
    """Make the maps (B, *S), of K classes (B, K, *S), of a candidate, and for a method its attribution. Needs an open
    session of the model."""
    if candidate.method is None:
        values = {**CONTROLS, **BOX_CONTROLS, **TEXT_CONTROLS}[candidate.label](problem)
        classes = problem.target.shape[1:]
        return torch.stack([values] * classes[0], 1) if classes else values, None
    attribution = explain_problem(candidate.method, problem)
    return attribution.values, attribution


def _made(candidate: Candidate, subject: EvaluationContext, problem: Problem) -> tuple[Tensor, Attribution | None]:
    """As :func:`make_maps`; a control of a method's map is made of the one that the method made of this subject."""
    if not candidate.of or not isinstance(candidate.method, Reweighted):
        made = make_maps(candidate, problem)
        return subject.cached(("maps", candidate.label), lambda: made) if candidate.cached else made
    method = Candidate(candidate.of, candidate.method.of)
    inner = subject.cached(("maps", candidate.of), lambda: make_maps(method, problem))[1]
    assert inner is not None  # of a method
    result = candidate.method.derive(inner, problem)
    return result.values, dataclasses.replace(result, diagnostics={})  # those of the path are the method's


@dataclass(frozen=True)
class MethodResult:
    """One method of a comparison of B images.

    Attributes:
        label: Label of the method or control.
        control: Whether it is a control map.
        settings: Its settings as plain data.
        scores: Scores (B,) by metric, NaN where there is no valid map.
        faults: Why an image has no scores: "diverged", "not_finite", or "failed"; "" where it has.
        passes: Passes through the model for making the maps, without scoring.
        seconds: Time of making the maps.
        errors: Why the method failed on an image; "" where it did not.
        transient: Whether a failure may pass.
        maps: Maps (B, *S), NaN where the method failed, if required; None if it failed on all images.
        attribution: The attribution of a method, if required; None if it failed on an image.
    """

    label: str
    control: bool
    settings: Mapping[str, Any]
    scores: Mapping[str, Scores]
    faults: tuple[str, ...]
    passes: PassCounts = field(default_factory=PassCounts)
    seconds: float = 0.0
    errors: tuple[str, ...] = ()
    transient: bool = False
    maps: Tensor | None = None
    attribution: Attribution | None = None

    @property
    def error(self) -> str | None:
        """Why the method failed on the first image that it failed on; None if it failed on none."""
        return next(filter(None, self.errors), None)


Batch = TypeVar("Batch")
Result = TypeVar("Result")


def one_by_one(
    batches: Iterable[Batch],
    evaluate: Callable[[Batch], Result],
    failed: Callable[[Result], object],
    split: Callable[[Batch], Sequence[Batch]],
) -> Generator[tuple[Batch, Result]]:
    """Evaluate batches, and the images of a batch that failed each alone: one must not cost the others their scores.
    Yields the batches, or their images, with their results."""
    for batch in (queue := list(batches)):
        result = evaluate(batch)
        parts = split(batch) if failed(result) else ()
        if len(parts) > 1:
            queue += parts
        else:
            yield batch, result


#: Called with the current step, the maps made so far (a half-made map counts 0.5), and the number of maps.
Progress = Callable[[str, float, int], None]


class Evaluator:
    """The candidates of one comparison on a shared ``subject``, which caches what is computed once. The caller holds
    the session of the model open."""

    def __init__(
        self,
        subject: EvaluationContext,
        candidates: Sequence[Candidate],
        metrics: Mapping[str, Metric],
        progress: Progress | None,
    ):
        self.subject, self.metrics, problem = subject, metrics, subject.problem
        self.candidates = [
            one
            for one in candidates
            if not one.of or not isinstance(one.method, Reweighted) or one.method.fits(problem)
        ]
        self.batch, self.progress = len(subject.problem.inputs), progress
        self._parts: dict[tuple[int, ...], EvaluationContext] = {tuple(range(self.batch)): subject}

    def rows(self, keep_maps: bool) -> tuple[MethodResult, ...]:
        """One result for each candidate, in their order. Where one fails, its images are tried each alone."""
        rows: list[MethodResult] = []
        for index, candidate in enumerate(self.candidates):

            def evaluate(images: list[int], candidate: Candidate = candidate, index: int = index) -> MethodResult:
                if len(images) == self.batch:
                    return self.row(candidate, index * self.batch)
                return Evaluator(self._part(images), [candidate], self.metrics, None).row(candidate)

            everything = [list(range(self.batch))]
            split = one_by_one(everything, evaluate, lambda row: row.error, lambda images: [[i] for i in images])
            parts = [part for _, part in split]
            row = parts[0] if len(parts) == 1 else _join(parts)
            rows.append(row if keep_maps else dataclasses.replace(row, maps=None, attribution=None))
        return tuple(rows)

    def row(self, candidate: Candidate, before: int = 0) -> MethodResult:
        """The result of a candidate after ``before`` maps of other candidates; an error fails all images."""
        classifier = self.subject.problem.model
        start, passes = time.perf_counter(), dataclasses.replace(classifier.passes)
        row = MethodResult(
            candidate.label, candidate.control, candidate.record(), self._nothing(), ("failed",) * self.batch
        )
        self._notify(candidate.label, before)
        try:

            def progress(done: int, planned: int) -> None:
                self._notify(candidate.label, before + self.batch * done / max(planned, 1))

            problem = dataclasses.replace(self.subject.problem, progress=progress)
            values, attribution = _made(candidate, self.subject, problem)
            # waits for the device, so that the clock sees all of the work
            finite = values.isfinite().flatten(1).all(1).tolist()
            verdicts = ("",) * len(values) if attribution is None else attribution.verdict
            faults = tuple(
                "diverged" if verdict == "diverged" else "" if is_finite else "not_finite"
                for is_finite, verdict in zip(finite, verdicts, strict=True)
            )
            row = dataclasses.replace(
                row,
                # a control of a map is made of that of its method, whose passes these would be
                passes=PassCounts() if candidate.of else classifier.passes.since(passes),
                seconds=time.perf_counter() - start,
                maps=values,
                attribution=attribution,
            )
            self._notify(f"{candidate.label}: scores", before + self.batch)
            diagnostics = dict[str, Tensor]()
            if attribution is not None:
                row = dataclasses.replace(row, settings={**row.settings, **attribution.settings})  # as they were used
                diagnostics = {**attribution.diagnostics, "completeness_residual": attribution.completeness_residual}
            return dataclasses.replace(
                row, scores=self.score_maps(candidate, values, diagnostics, faults), faults=faults
            )
        except FringeError as error:
            return dataclasses.replace(row, errors=(str(error),) * self.batch, transient=is_transient(error))

    def score_maps(
        self, candidate: Candidate, values: Tensor, diagnostics: Mapping[str, Tensor], faults: tuple[str, ...]
    ) -> dict[str, Scores]:
        """Score a candidate's maps (B, *S) that have no fault; NaN for the others, and where a metric refuses one."""
        valid = [i for i, fault in enumerate(faults) if not fault]
        if not valid:
            return self._nothing()
        subject, at = self._part(valid), torch.tensor(valid, device=values.device)
        maps = PlainMaps(values[at], {name: column[at.to(column.device)] for name, column in diagnostics.items()})

        def explain(problem: Problem) -> Maps | Tensor:  # maps of other problems by the same candidate
            values, attribution = make_maps(candidate, problem)
            return values if attribution is None else attribution

        evaluated, nothing = evaluated_maps(subject, maps, explain), Scores(_nan(len(valid)))
        scores = {  # further maps would cost those of the method again
            name: nothing if candidate.of and metric.requires_explainer else _score_or_reasons(name, metric, evaluated)
            for name, metric in self.metrics.items()
        }
        if len(valid) == self.batch:
            return scores
        return {name: _spread({tuple(valid): one}, self.batch) for name, one in scores.items()}

    def _part(self, valid: list[int]) -> EvaluationContext:
        """The subject of some images alone; candidates that fail on the same images share it."""
        if tuple(valid) not in self._parts:
            self._parts[tuple(valid)] = self.subject.select(valid)
        return self._parts[tuple(valid)]

    def _nothing(self) -> dict[str, Scores]:
        return dict.fromkeys(self.metrics, Scores(_nan(self.batch)))

    def _notify(self, label: str, done: float) -> None:
        if self.progress is not None:
            self.progress(label, done, len(self.candidates) * self.batch)


def _score_or_reasons(name: str, metric: Metric, maps: EvaluatedMaps) -> Scores:
    """The scores of one metric, or why it refuses these maps. Raises FringeError for what may pass, and for a reason
    that may hold for one of several maps: each is then tried alone."""
    count = len(maps.values)
    try:
        reason = why_refused(metric, maps)
        if not reason:
            return score(name, metric, maps)
    except FringeError as error:
        if count > 1 or is_transient(error):
            raise
        reason = str(error).removeprefix(f"metric {name}: ")
    return Scores(_nan(count), refusals=(f"metric {name}: {reason}",) * count)


def _join(rows: Sequence[MethodResult]) -> MethodResult:
    """The results of a method on images, each alone, as one."""
    shown = [row.maps for row in rows if row.maps is not None]
    counts = [dataclasses.astuple(row.passes) for row in rows]
    scored = [i for i, row in enumerate(rows) if not row.faults[0]]

    def scores(metric: str) -> Scores:
        return _spread({(i,): rows[i].scores[metric] for i in scored}, len(rows)) if scored else Scores(_nan(len(rows)))

    return dataclasses.replace(
        rows[0],
        scores={metric: scores(metric) for metric in rows[0].scores},
        faults=tuple(row.faults[0] for row in rows),
        passes=PassCounts(*map(sum, zip(*counts, strict=True))),
        seconds=sum(row.seconds for row in rows),
        errors=tuple(row.error or "" for row in rows),
        transient=any(row.transient for row in rows),
        maps=torch.cat([torch.full_like(shown[0], torch.nan) if r.maps is None else r.maps for r in rows])
        if shown
        else None,
        attribution=None,
    )


def _spread(parts: Mapping[tuple[int, ...], Scores], batch: int) -> Scores:
    """Scores of the images at some rows among all: NaN, and no flag, for the others; a refused map has its reason."""

    def wide(columns: Mapping[tuple[int, ...], Tensor]) -> Tensor:
        first = next(iter(columns.values()))
        empty = False if first.dtype == torch.bool else torch.nan
        out = torch.full((batch, *first.shape[1:]), empty, dtype=first.dtype, device=first.device)
        for rows, column in columns.items():
            out.index_copy_(0, torch.tensor(rows, device=column.device), column)
        return out

    def named(kind: str) -> dict[str, Tensor]:
        tables: dict[tuple[int, ...], Mapping[str, Tensor]] = {rows: getattr(one, kind) for rows, one in parts.items()}
        names = dict.fromkeys(name for table in tables.values() for name in table)
        return {name: wide({rows: table[name] for rows, table in tables.items() if name in table}) for name in names}

    reasons = {row: why for rows, one in parts.items() for row, why in zip(rows, one.refusals, strict=False)}
    refusals = tuple(reasons.get(row, "") for row in range(batch)) if any(reasons.values()) else ()
    values = wide({rows: one.values for rows, one in parts.items()})
    return Scores(values, named("flags"), named("details"), named("curves"), refusals)


def _nan(count: int) -> Tensor:
    return torch.full((count,), torch.nan, dtype=torch.float64)
