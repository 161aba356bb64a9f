"""Walks that advance many rows side by side: one batched model call a step, and none for a row that has ended."""

import dataclasses
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fringe.geometry import log_probabilities
from fringe.paths._base import (
    GeodesicDiagnostics,
    PathRun,
    PathStatus,
    Point,
    Segment,
    fisher_rao_step,
    uniform_log_probs,
)
from fringe.paths._problem import Problem


@dataclass(frozen=True)
class Visit:
    """What L rows know where they stand: ``logits`` (L, C), the explained ``score`` (L,) and its ``gradient`` (L, *S),
    the ``direction`` (L, *S) that the walk follows, and which rows are ``done`` (L,), so that they end there.
    ``origin`` (L, *S) is where the next step departs from."""

    origin: Tensor
    logits: Tensor
    score: Tensor
    gradient: Tensor
    direction: Tensor
    done: Tensor

    def take(self, rows: Tensor) -> "Visit":
        """The rows picked by a mask (L,)."""
        return Visit(*(getattr(self, f.name)[rows] for f in dataclasses.fields(self)))

    def sound(self) -> Tensor:
        """Which rows hold neither NaN nor infinity (L,)."""
        parts = (self.logits, self.gradient, self.direction)
        return torch.stack([torch.isfinite(part).flatten(1).all(1) for part in parts]).all(0)


class StepwiseWalk(PathRun):
    """Rows that take ``steps`` steps in lockstep, a batch of rows after the other.

    Nothing is shared between rows. A row whose logits or gradients are not finite ends at the point before, as
    DIVERGED; one that is done leaves too, and the others go on without them. At the last point only the score is
    evaluated, unless ``closed`` asks for its gradient: rules of quadrature that look at one end of a segment do not
    need it, and the segment then carries the gradient of its other end.
    """

    def __init__(self, problem: Problem, steps: int, closed: bool):
        self.problem, self.steps, self.closed = problem, steps, closed
        self.gauge = GeodesicDiagnostics(log_probabilities(problem.logits), uniform_log_probs(problem.logits))
        self.planned = [steps] * len(problem.inputs)
        self.taken = [0] * len(problem.inputs)
        self.outcomes = [PathStatus.COMPLETE] * len(problem.inputs)

    @abstractmethod
    def start(self, rows: Tensor) -> Tensor:
        """Where the walks of images ``rows`` (L,) begin: (L, *S)."""

    @abstractmethod
    def visit(self, rows: Tensor, x: Tensor) -> Visit:
        """Evaluate the model at points ``x`` (L, *S) of images ``rows`` (L,), in chunks of the batch size."""

    @abstractmethod
    def advance(self, rows: Tensor, here: Visit, step: int) -> Tensor:
        """The points (L, *S) after step number ``step`` (from 1 on), which departs from ``here``."""

    def segments(self) -> Iterator[Segment]:
        device = self.problem.inputs.device
        waiting = [i for i, steps in enumerate(self.planned) if steps > 0]
        while waiting:
            size = self.problem.model.batch_size.on(device)
            yield from self._together(torch.tensor(waiting[:size], device=device))
            waiting = waiting[size:]

    def clip(self, x: Tensor) -> Tensor:
        """``x`` (L, *S) within the valid range, where one was given."""
        if self.problem.domain.low is None:
            return x
        low, high = self.problem.domain.bounds(x)
        return torch.minimum(torch.maximum(x, low), high)

    def _together(self, rows: Tensor) -> Iterator[Segment]:
        here = self.visit(rows, self.start(rows))
        going = self._sound(rows, here) & ~here.done
        rows, here = rows[going], here.take(going)
        for step in range(1, self.steps + 1):
            if len(rows) == 0:
                return
            x = self.advance(rows, here, step)
            there = self.visit(rows, x) if step < self.steps else self._close(rows, x, here)
            sound = self._sound(rows, there)
            if not bool(sound.all()):
                rows, here, x, there = rows[sound], here.take(sound), x[sound], there.take(sound)
            yield self._segment(rows, step, here, x, there)
            here = there
            if bool(here.done.any()):
                rows, here = rows[~here.done], here.take(~here.done)

    def _close(self, rows: Tensor, x: Tensor, here: Visit) -> Visit:
        points = x.to(self.problem.inputs.dtype)
        if self.closed:
            logits, gradient = self.problem.logits_gradient(points, rows)
        else:
            logits, gradient = self.problem.forward(points, rows), here.gradient
        return Visit(x, logits, self.problem.score(logits, rows), gradient, here.direction, torch.ones_like(here.done))

    def _sound(self, rows: Tensor, visit: Visit) -> Tensor:
        sound = visit.sound()
        for row in rows[~sound].tolist():
            self.outcomes[row] = PathStatus.DIVERGED
        return sound

    def _segment(self, rows: Tensor, step: int, here: Visit, x: Tensor, there: Visit) -> Segment:
        for row in rows.tolist():
            self.taken[row] = step
        steps = torch.full_like(rows, step)
        near, far = Point(here.origin, here.score, here.gradient), Point(x, there.score, there.gradient)
        before, after = log_probabilities(here.logits), log_probabilities(there.logits)
        length = (x - here.origin).flatten(1).double().norm(dim=1)
        along = {"fisher_rao_step": fisher_rao_step(before, after), "euclidean_step": length}
        if self.begins == "input":
            return Segment(rows, steps, far, near, {**self._measure(rows, after, step), **along})
        stats = {**self._measure(rows, before, self.steps - step + 1), **along}
        return Segment(rows, steps, near, far, stats)

    def _measure(self, rows: Tensor, log_p: Tensor, steps: int) -> dict[str, Tensor]:
        """The gauge at points that are ``steps`` of the walk's steps from the input."""
        alpha = torch.full((len(rows),), steps / self.steps, dtype=log_p.dtype, device=log_p.device)
        return self.gauge.point(rows, log_p, alpha)
