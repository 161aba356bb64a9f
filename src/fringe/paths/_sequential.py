"""Paths whose every step depends on the one before: many images side by side, one batched model call per step."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fringe.geometry import log_probabilities
from fringe.paths._base import GeodesicDiagnostics, PathRun, PathStatus, Point, Rows, Segment, fisher_rao_step
from fringe.paths._problem import Problem


@dataclass(frozen=True)
class Evaluation(Rows):
    """The model at the current points of L paths.

    Attributes:
        origin: Where the next step departs from (L, *S).
        logits: Logits (L, C).
        score: Explained score (L,).
        gradient: Gradient of the score (L, *S).
        direction: What the next step follows (L, *S).
        done: Which paths end here (L,).
    """

    origin: Tensor
    logits: Tensor
    score: Tensor
    gradient: Tensor
    direction: Tensor
    done: Tensor

    def is_finite(self) -> Tensor:
        """Which paths hold neither NaN nor infinity (L,)."""
        parts = (self.logits, self.gradient, self.direction)
        return torch.stack([torch.isfinite(part).flatten(1).all(1) for part in parts]).all(0)


class SequentialRun(PathRun):
    """Paths that take ``steps`` steps in lockstep, a batch of images after the other.

    Images share nothing. A path whose logits or gradients are not finite ends at the point before, as DIVERGED; one
    that is done leaves, too, and the others continue without them. At the last point only the score is evaluated,
    unless ``closed`` asks for its gradient: a quadrature rule that reads one end of a segment does not need it, and the
    segment then carries the gradient of its other end.
    """

    def __init__(self, problem: Problem, steps: int, closed: bool):
        self.problem, self.steps, self.closed = problem, steps, closed
        self.diagnostics = GeodesicDiagnostics(log_probabilities(problem.logits))
        self.planned = [steps] * len(problem.inputs)
        self.steps_taken = [0] * len(problem.inputs)
        self.outcomes = [PathStatus.COMPLETE] * len(problem.inputs)

    def start(self, rows: Tensor) -> Tensor:
        """The first points (L, *S) of images ``rows`` (L,): the inputs, unless overridden."""
        return self.problem.inputs[rows]

    @abstractmethod
    def evaluate(self, rows: Tensor, x: Tensor) -> Evaluation:
        """Evaluate the model at points ``x`` (L, *S) of images ``rows`` (L,), in chunks of the batch size."""

    @abstractmethod
    def advance(self, rows: Tensor, current: Evaluation, step: int) -> Tensor:
        """The points (L, *S) after step number ``step`` (from 1 on), which departs from ``current``."""

    def segments(self) -> Iterator[Segment]:
        waiting = [i for i, steps in enumerate(self.planned) if steps > 0]
        while waiting:
            size = self.problem.model.batch_size.on(self.problem.inputs.device)
            yield from self._run_batch(waiting[:size])
            waiting = waiting[size:]

    def clip(self, x: Tensor) -> Tensor:
        """Clip ``x`` (L, *S) to the valid range, if one was given."""
        if self.problem.domain.low is None:
            return x
        low, high = self.problem.domain.bounds(x)
        return torch.minimum(torch.maximum(x, low), high)

    def _run_batch(self, images: list[int]) -> Iterator[Segment]:
        rows = torch.tensor(images, device=self.problem.inputs.device)
        current = self.evaluate(rows, self.start(rows))
        finite, done = self._states(images, current)
        going = [f and not d for f, d in zip(finite, done, strict=True)]
        images, rows, current = _select(going, images, rows, current)
        for step in range(1, self.steps + 1):
            if not images:
                return
            x = self.advance(rows, current, step)
            following = self.evaluate(rows, x) if step < self.steps else self._evaluate_end(rows, x, current)
            finite, done = self._states(images, following)
            done = [d for f, d in zip(finite, done, strict=True) if f]
            images, rows, current, x, following = _select(finite, images, rows, current, x, following)
            for image in images:
                self.steps_taken[image] = step
            yield self._segment(rows, step, current, x, following)
            images, rows, current = _select([not d for d in done], images, rows, following)

    def _evaluate_end(self, rows: Tensor, x: Tensor, current: Evaluation) -> Evaluation:
        points = x.to(self.problem.inputs.dtype)
        if self.closed:
            logits, gradient = self.problem.logits_gradient(points, rows)
        else:
            logits, gradient = self.problem.forward(points, rows), current.gradient
        score, done = self.problem.score(logits, rows), torch.ones_like(current.done)
        return Evaluation(x, logits, score, gradient, current.direction, done)

    def _states(self, images: list[int], evaluation: Evaluation) -> tuple[list[bool], list[bool]]:
        """Which paths are finite, and which are done; the others are recorded as diverged."""
        finite, done = torch.stack((evaluation.is_finite(), evaluation.done)).tolist()  # the host waits once a step
        for image, valid in zip(images, finite, strict=True):
            if not valid:
                self.outcomes[image] = PathStatus.DIVERGED
        return finite, done

    def _segment(self, rows: Tensor, step: int, current: Evaluation, x: Tensor, following: Evaluation) -> Segment:
        before = Point(current.origin, current.score, current.gradient)
        after = Point(x, following.score, following.gradient)
        log_p = log_probabilities(current.logits), log_probabilities(following.logits)
        from_input = self.begins == "input"
        start, stop = (after, before) if from_input else (before, after)
        # measured at ``start``, which is this many of the path's steps from the input
        distance = step if from_input else self.steps - step + 1
        alpha = torch.full((len(rows),), distance / self.steps, dtype=log_p[0].dtype, device=rows.device)
        stats = self.diagnostics.point(rows, log_p[from_input], self.diagnostics.waypoint(rows, alpha))
        stats["fisher_rao_step"] = fisher_rao_step(*log_p)
        stats["euclidean_step"] = (x - current.origin).flatten(1).double().norm(dim=1)
        return Segment(rows, torch.full_like(rows, step), start, stop, stats)


def _select(keep: list[bool], images: list[int], *columns: Any) -> tuple[Any, ...]:
    """``images`` and columns (L, ...) of those that ``keep`` says."""
    if all(keep):
        return images, *columns
    places = [i for i, one in enumerate(keep) if one]
    some = torch.tensor(places, dtype=torch.long, device=columns[0].device)
    return [images[i] for i in places], *(column[some] for column in columns)
