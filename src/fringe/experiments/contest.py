"""One entrant after the other makes its maps, and the same metrics judge them."""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fringe.attribution import Attribution
from fringe.errors import FringeError, is_transient
from fringe.experiments.entrants import Candidate, make_maps, record
from fringe.experiments.row import MethodResult
from fringe.metrics import EvaluationContext, Explainer, Metric, Scores, evaluate

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
