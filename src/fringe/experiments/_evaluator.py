"""One entrant after the other makes its maps, and the same metrics judge them."""

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fringe.attribution import Attribution, Attributor, get_method
from fringe.classifier import PassCounts
from fringe.errors import FringeError, InputError, is_transient
from fringe.metrics import EvaluationContext, Explainer, Metric, Scores, evaluate
from fringe.paths import Problem

Control = Callable[[Problem], Tensor]
"""From the images to a map (B, *S) of each."""


def _zero(problem: Problem) -> Tensor:
    """No evidence anywhere. Its infidelity is the model's own response to the perturbations."""
    return torch.zeros_like(problem.inputs)


def _random(problem: Problem) -> Tensor:
    """Standard normal numbers that belong to the image's name."""
    images = zip(problem.keys, problem.inputs, strict=True)
    return torch.stack([problem.rng.normal(f"control random {key}", x) for key, x in images])


def _uniform(problem: Problem) -> Tensor:
    """One everywhere: the order of the entries is the metric's own rule for ties."""
    return torch.ones_like(problem.inputs)


def _edge(problem: Problem) -> Tensor:
    """Gradient magnitude of the image: the norm over channels and spatial axes of its central differences (one-sided
    at the border), the same for each channel."""
    x = problem.inputs
    axes = [axis for axis in range(2 if x.dim() > 2 else 1, x.dim()) if x.shape[axis] > 1]
    if not axes:
        return torch.zeros_like(x)
    squares = torch.stack(torch.gradient(x, dim=axes)).square().sum(0)
    return (squares.sum(1, keepdim=True) if x.dim() > 2 else squares).sqrt().expand_as(x).clone()


CONTROLS: Mapping[str, Control] = {"zero": _zero, "random": _random, "uniform": _uniform, "edge": _edge}


Named = tuple[str, str | Attributor]
Methods = Sequence[str | Attributor | Named] | Mapping[str, str | Attributor]
"""Names, configured methods, or pairs of a label and either."""


@dataclass(frozen=True)
class Candidate:
    """A method under a ``label``, or (``method`` None) the control of that name."""

    label: str
    method: Attributor | None

    @property
    def control(self) -> bool:
        return self.method is None


def enter(methods: Methods, controls: bool) -> list[Candidate]:
    """The methods in their order, then the controls. Raises InputError on unknown methods and on labels used twice."""
    if isinstance(methods, str):
        raise InputError(f"methods: got the text {methods!r}, expected a list such as [{methods!r}]")
    entries: Iterable[str | Attributor | Named] = methods.items() if isinstance(methods, Mapping) else methods
    entrants = [_entrant(entry) for entry in entries]
    if not entrants:
        raise InputError("methods: none given")
    entrants += [Candidate(name, None) for name in CONTROLS] if controls else []
    labels = [entrant.label for entrant in entrants]
    refuse_twice("methods", labels, "; tell them apart with pairs (label, method)")
    return entrants


def refuse_twice(argument: str, labels: Sequence[str], cure: str = "") -> None:
    """Raise InputError where two of ``labels`` are the same."""
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise InputError(f"{argument}: {', '.join(twice)} given twice{cure}")


def make_maps(entrant: Candidate, problem: Problem) -> tuple[Tensor, Attribution | None]:
    """The entrant's maps (B, *S) of ``problem``, with all a method says about them. Needs an open session."""
    if entrant.method is None:
        return CONTROLS[entrant.label](problem), None
    found = entrant.method.attribute(problem)
    return found.values, found


def record(entrant: Candidate) -> dict[str, Any]:
    """The entrant and its settings as plain data."""
    return {"control": entrant.label} if entrant.method is None else entrant.method.record()


def _entrant(entry: str | Attributor | Named) -> Candidate:
    if isinstance(entry, tuple):
        label, method = entry
        return Candidate(label, get_method(method))
    return Candidate(entry if isinstance(entry, str) else entry.name, get_method(entry))


@dataclass(frozen=True)
class MethodResult:
    """One entrant of a comparison of B images.

    ``scores`` holds (B,) values by metric, NaN where there is no sound map, and ``faults`` (B) says why there is none
    ("" for a sound one): ``diverged``, ``not_finite``, or ``failed`` for all where ``error`` tells what went wrong;
    ``transient`` if that may pass.
    ``passes`` and ``seconds`` are what making the maps took, scoring left out. ``maps`` (B, *S) and, for a method,
    the whole ``attribution`` are there where they were asked for.
    """

    label: str
    control: bool
    settings: Mapping[str, Any]
    scores: Mapping[str, Scores]
    faults: tuple[str, ...]
    passes: PassCounts = field(default_factory=PassCounts)
    seconds: float = 0.0
    error: str | None = None
    transient: bool = False
    maps: Tensor | None = None
    attribution: Attribution | None = None


Watcher = Callable[[str, float, int], None]
"""Called with what is in work, and how many maps of how many are made; one half made counts as a half."""


@dataclass(frozen=True)
class _Maps:
    values: Tensor
    diagnostics: Mapping[str, Tensor]


class Contest:
    """What the entrants of one comparison share: the ``subject``, with all that is paid for once, and the metrics.
    The caller holds the model's session open."""

    def __init__(
        self,
        subject: EvaluationContext,
        entrants: Sequence[Candidate],
        metrics: Sequence[str | Metric] | Mapping[str, Metric],
        labels: Sequence[str],
        watch: Watcher | None,
    ):
        self.subject, self.entrants, self.metrics, self.labels = subject, entrants, metrics, labels
        self.batch, self.watch = len(subject.problem.inputs), watch
        self._parts: dict[tuple[int, ...], EvaluationContext] = {tuple(range(self.batch)): subject}

    def rows(self, keep_maps: bool) -> tuple[MethodResult, ...]:
        """A row an entrant, in their order."""
        rows: list[MethodResult] = []
        for place, entrant in enumerate(self.entrants):
            row = self._row(entrant, place * self.batch)
            rows.append(row if keep_maps else dataclasses.replace(row, maps=None, attribution=None))
        return tuple(rows)

    def _row(self, entrant: Candidate, before: int) -> MethodResult:
        """The row of an entrant that comes after ``before`` maps."""
        classifier = self.subject.problem.model
        start, passes = time.perf_counter(), dataclasses.replace(classifier.passes)
        row = MethodResult(entrant.label, entrant.control, record(entrant), self._nothing(), ("failed",) * self.batch)
        self._tell(entrant.label, before)
        try:

            def progress(done: int, planned: int) -> None:
                self._tell(entrant.label, before + self.batch * done / max(planned, 1))

            problem = dataclasses.replace(self.subject.problem, progress=progress)
            values, found = make_maps(entrant, problem)
            faults = _faults(values, found)  # waits for the device, so that the clock sees all of the work
            row = dataclasses.replace(
                row,
                passes=classifier.passes.since(passes),
                seconds=time.perf_counter() - start,
                maps=values,
                attribution=found,
            )
            self._tell(f"{entrant.label}: scores", before + self.batch)
            diagnostics = {} if found is None else _diagnostics(found)
            return dataclasses.replace(row, scores=self.judge(entrant, values, diagnostics, faults), faults=faults)
        except FringeError as error:
            return dataclasses.replace(row, error=str(error), transient=is_transient(error))

    def judge(
        self, entrant: Candidate, values: Tensor, diagnostics: Mapping[str, Tensor], faults: tuple[str, ...]
    ) -> dict[str, Scores]:
        """Scores (B,) of an entrant's maps (B, *S) that have no fault, NaN for the others."""
        sound = [i for i, fault in enumerate(faults) if not fault]
        if not sound:
            return self._nothing()
        subject, at = self._part(sound), torch.tensor(sound, device=values.device)
        maps = _Maps(values[at], {name: column[at.to(column.device)] for name, column in diagnostics.items()})
        scores = evaluate(subject, maps, self.metrics, _explainer(entrant, subject))
        return {
            name: scores[name] if len(sound) == self.batch else _spread(scores[name], at, self.batch)
            for name in self.labels
        }

    def _part(self, sound: list[int]) -> EvaluationContext:
        """The subject of these images alone; entrants that fail on the same ones share it and what it remembers."""
        if tuple(sound) not in self._parts:
            self._parts[tuple(sound)] = EvaluationContext(self.subject.problem.select(sound))
        return self._parts[tuple(sound)]

    def _nothing(self) -> dict[str, Scores]:
        return dict.fromkeys(self.labels, Scores(torch.full((self.batch,), torch.nan, dtype=torch.float64)))

    def _tell(self, label: str, done: float) -> None:
        if self.watch is not None:
            self.watch(label, done, len(self.entrants) * self.batch)


def _explainer(entrant: Candidate, subject: EvaluationContext) -> Explainer:
    """Maps of other inputs by the same entrant, with the target and the noise of the subject's images at ``rows``."""

    def explain(x: Tensor, rows: list[int]) -> Tensor:
        part = subject.problem.select(rows)
        return make_maps(entrant, dataclasses.replace(part, inputs=x, logits=part.forward(x, part.every_row)))[0]

    return explain


def _diagnostics(found: Attribution) -> dict[str, Tensor]:
    return {**found.diagnostics, "completeness_residual": found.completeness_residual}


def _faults(values: Tensor, found: Attribution | None) -> tuple[str, ...]:
    """Why each image's map cannot be scored, "" where it can."""
    finite = values.isfinite().flatten(1).all(1).tolist()
    verdicts = ("",) * len(values) if found is None else found.verdict
    return tuple(
        "diverged" if verdict == "diverged" else "" if whole else "not_finite"
        for whole, verdict in zip(finite, verdicts, strict=True)
    )


def _spread(scores: Scores, rows: Tensor, batch: int) -> Scores:
    """``scores`` of the images at ``rows`` among all: NaN, and no flag, for those without a map."""

    def wide(column: Tensor) -> Tensor:
        empty = False if column.dtype == torch.bool else torch.nan
        out = torch.full((batch, *column.shape[1:]), empty, dtype=column.dtype, device=column.device)
        return out.index_copy(0, rows.to(column.device), column)

    def all_wide(columns: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: wide(column) for name, column in columns.items()}

    return Scores(wide(scores.values), all_wide(scores.flags), all_wide(scores.details), all_wide(scores.curves))
