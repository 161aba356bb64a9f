"""Walk a path, integrate gradients along it, and keep account: the part that all path methods share."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fringe.attribution.base import Trajectory
from fringe.attribution.integral import Quadrature, completeness_gap, segment_error
from fringe.attribution.telemetry import Recorder, Summary
from fringe.geometry import geometry_dtype
from fringe.paths import Outcome, Path, Problem, Segment, Walk


@dataclass(frozen=True)
class Integrated:
    """A path integral of B images: ``values`` (B, *S), the explained ``score`` and ``endpoint_score`` (B,), the
    completeness ``gap`` (B,), ``steps`` and ``outcomes`` per image, and what was measured on the way. Of K classes,
    ``values`` are (B, K, *S) and scores and gaps (B, K). ``uncorrected_gap`` is the gap that the rule had before the
    map was corrected, where it was."""

    values: Tensor
    score: Tensor
    endpoint_score: Tensor
    gap: Tensor
    steps: list[int]
    outcomes: list[Outcome]
    summary: Summary
    trajectories: tuple[Trajectory, ...] | None
    uncorrected_gap: Tensor | None = None

    @property
    def residual(self) -> Tensor:
        """The paper's epsilon_comp (B,): |gap| over the score difference; 0 where both are zero."""
        return self._relative(self.gap)

    @property
    def rule_residual(self) -> Tensor:
        """The residual (B,) that the rule of integration left, of the worst of K classes: what a map is judged by."""
        residual = self._relative(self.gap if self.uncorrected_gap is None else self.uncorrected_gap)
        return residual.view(len(residual), -1).amax(1)

    def _relative(self, gap: Tensor) -> Tensor:
        return torch.where(gap == 0, 0.0, gap.abs() / (self.score - self.endpoint_score).double().abs())


def integrate(path: Path, quadrature: Quadrature, problem: Problem) -> Integrated:
    """Integrate the score's gradient along ``path`` for each image of ``problem``."""
    walk = path.walk(problem)
    account = _Account(walk, quadrature, problem)
    for segment in walk.segments():
        account.add(segment)
    return account.close()


class _Account:
    """The running totals of one integration."""

    def __init__(self, walk: Walk, quadrature: Quadrature, problem: Problem):
        self.walk, self.quadrature, self.problem = walk, quadrature, problem
        device = problem.inputs.device
        shape = (*problem.target.shape, *problem.inputs.shape[1:])
        self.values = torch.zeros(shape, dtype=geometry_dtype(device), device=device)
        self.score = problem.score(problem.logits)
        self.endpoint_score = self.score.clone()
        self.error = torch.zeros_like(self.score, dtype=torch.float64) if quadrature.rule == "corrected" else None
        self.planned = torch.tensor(walk.planned, device=device)
        self.summary = Summary(len(walk.planned), device, walk.begins)
        self.done, self.total = 0, sum(walk.planned)
        self.recorder = self._recorder() if problem.record_path else None

    def _recorder(self) -> Recorder:
        gauge = self.walk.gauge
        rows = torch.arange(len(self.score), device=self.score.device)
        start = gauge.point(rows, gauge.log_p0, torch.zeros_like(gauge.log_p0[:, 0]))
        return Recorder(self.problem.inputs, self.walk.planned, {**start, "score": self.score}, self.values)

    def add(self, segment: Segment) -> None:
        rows = torch.tensor(segment.index, device=self.values.device)
        self._meet_ends(segment, rows)
        share = self.quadrature.integrate(self.problem, rows, segment, self._scale(segment, rows)).to(self.values.dtype)
        if self.error is not None:
            self.error.index_add_(0, rows, segment_error(segment.start, segment.stop))
        if self.walk.begins == "input":
            self.values.index_add_(0, rows, share)
            self._record(segment)
        else:
            self._record(segment)
            self.values.index_add_(0, rows, share)
        self.summary.add(rows, segment.stats)
        self.done += len(segment.index)
        if self.problem.progress is not None:
            self.problem.progress(self.done, max(self.total, self.done))

    def _meet_ends(self, segment: Segment, rows: Tensor) -> None:
        """Scores at the ends are taken from the path's own points, so that the sum telescopes exactly."""
        step, planned = torch.tensor(segment.step, device=rows.device), self.planned[rows]
        if self.score.dim() > 1:
            step, planned = step[:, None], planned[:, None]
        if self.walk.begins == "input":
            self.score[rows] = torch.where(step == 1, segment.stop.score, self.score[rows])
            self.endpoint_score[rows] = segment.start.score
        else:
            arrived = step == planned
            self.score[rows] = torch.where(arrived, segment.stop.score, self.score[rows])
            self.endpoint_score[rows] = torch.where(step == 1, segment.start.score, self.endpoint_score[rows])

    def _scale(self, segment: Segment, rows: Tensor) -> Tensor:
        """How much the score moves along this segment, or along a mean one so far, whichever is more: (L,)."""
        here = (segment.stop.score - segment.start.score).double().abs()
        first, latest = (self.score[rows], segment.start.score)
        if self.walk.begins == "baseline":
            first, latest = segment.stop.score, self.endpoint_score[rows]
        planned = self.planned[rows].view(-1, *[1] * (here.dim() - 1))
        return torch.maximum(here, (first - latest).double().abs() / planned)

    def _record(self, segment: Segment) -> None:
        if self.recorder is not None:
            self.recorder.add(segment, self.values, self.walk.begins)

    def close(self) -> Integrated:
        trajectories = None
        if self.recorder is not None:
            trajectories = self.recorder.trajectories(None if self.walk.begins == "input" else self.values)
        return Integrated(
            values=self.values.to(self.problem.inputs.dtype),
            score=self.score,
            endpoint_score=self.endpoint_score,
            gap=completeness_gap(self.values, (self.score.double() - self.endpoint_score.double())),
            steps=list(self.walk.taken),
            outcomes=list(self.walk.outcomes),
            summary=self.summary,
            trajectories=trajectories,
            uncorrected_gap=self.error,
        )
