"""Paths whose direction is that of a gradient at the point before: many images side by side."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from fringe.geometry import log_probabilities
from fringe.paths._base import (
    Geodesic,
    Here,
    Path,
    Point,
    Rows,
    Segment,
    State,
    all_finite,
    ends,
    fisher_rao_step,
)
from fringe.paths._problem import Problem


class Evaluation(NamedTuple):
    """The network at the current points of L paths.

    Attributes:
        logits: Logits (L, C).
        gradient: Gradient of the score (L, *S).
        direction: What the next step follows (L, *S).
        done: Which paths end here (L,); None: none before its last step.
    """

    logits: Tensor
    gradient: Tensor
    direction: Tensor
    done: Tensor | None = None


@dataclass(frozen=True)
class Left(Rows):
    """The points that the last step departed from, and predictions there (L, C)."""

    point: Point
    log_p: Tensor


class SequentialPath(Path):
    """Paths that take ``steps`` steps, unless they arrive before.

    At the last point only the score is evaluated, unless ``closed`` asks for its gradient: a quadrature rule that reads
    one end of a segment does not need it, and the segment then carries the gradient of its other end.
    """

    steps: int
    closed: bool

    def init(self, problem: Problem) -> State:
        return self.paths(problem, problem.every_row)

    def paths(self, problem: Problem, images: Tensor, goal: Tensor | None = None) -> State:
        """All paths before their first step: those of ``images`` (R,), towards goals (R, ...)."""
        rows, total = torch.arange(len(images), device=images.device), torch.full_like(images, self.steps)
        geodesic = Geodesic.between(log_probabilities(problem.logits))[images]
        step = torch.zeros_like(rows)
        return State(path=rows, image=images, step=step, total=total, limit=total, goal=goal, geodesic=geodesic)

    def begin(self, problem: Problem, images: Tensor) -> Tensor:
        """The first points (L, *S) of paths of ``images`` (L,): the inputs, unless overridden."""
        return problem.inputs[images]

    def evaluate(self, problem: Problem, state: State, x: Tensor) -> Evaluation:
        """Evaluate the model at points ``x`` (L, *S) of the paths; the next step follows the gradient, unless
        overridden."""
        logits, gradient = problem.logits_gradient(x.to(problem.inputs.dtype), state.image)
        return Evaluation(logits, gradient, gradient)

    @abstractmethod
    def advance(self, problem: Problem, state: State, origin: Tensor, direction: Tensor) -> Tensor:
        """The points (L, *S) after the next step, which departs from ``origin`` (L, *S)."""

    def origin(self, problem: Problem, state: State, x: Tensor) -> Tensor:
        """Where the next step departs from (L, *S): the current points ``x``, unless overridden."""
        return x

    def look(self, problem: Problem, state: State, closing: bool = False) -> tuple[Here, Tensor]:
        image, past = state.image, state.past
        x = self.begin(problem, image) if state.x is None else state.x
        if not closing:
            at = self.evaluate(problem, state, x)
        elif self.closed:
            at = SequentialPath.evaluate(self, problem, state, x)
        else:
            gradient = past.point.gradient
            at = Evaluation(problem.forward(x.to(problem.inputs.dtype), image), gradient, gradient)
        finite, log_p = all_finite(at.logits, at.gradient, at.direction), log_probabilities(at.logits)
        goes_on = finite & (state.step < state.limit)
        goes_on = goes_on if at.done is None else goes_on & ~at.done
        distance = state.step if self.begins == "input" else self.steps - state.step
        waypoint = state.geodesic.at(distance.double() / self.steps)
        point = Point(x, problem.score(at.logits, image), at.gradient)
        here = Here(point, log_p, log_p, waypoint, finite, goes_on, state.step + 1 >= state.limit)
        return here, at.direction

    def move(self, problem: Problem, state: State, here: Here, more: Tensor) -> State:
        origin = self.origin(problem, state, here.point.x)
        x = self.advance(problem, state, origin, more)
        past = Left(replace(here.point, x=origin), here.log_p)
        return replace(state, step=state.step + 1, x=x, past=past)

    def segment(self, state: State, here: Here) -> Segment | None:
        if state.past is None:
            return None
        before, log_p = state.past.point, (state.past.log_p, here.log_p)
        after = ends(here.point, before, here.finite)
        from_input = self.begins == "input"
        start, stop = (after, before) if from_input else (before, after)
        # measured at ``start``, which is this many of the path's steps from the input
        distance = state.step if from_input else self.steps - state.step + 1
        measured = state.geodesic.measured(log_p[from_input], state.geodesic.at(distance.double() / self.steps))
        length = (here.point.x - before.x).flatten(1).double().norm(dim=1)
        stats = torch.cat([torch.stack([length, fisher_rao_step(*log_p)], 1), measured], 1)
        return Segment(state.path, state.step, start, stop, stats, here.finite)


def clip(problem: Problem, x: Tensor) -> Tensor:
    """Clip ``x`` (L, *S) to the valid range, if one was given."""
    if problem.domain.low is None:
        return x
    low, high = problem.domain.bounds(x)
    return torch.minimum(torch.maximum(x, low), high)


# -- the guided path --------------------------------------------------------------------------------------------------


#: Distance from the goal of a step that counts as none, absolute or relative to the distance still to go; the published
#: code's. Points are stored in float64 for its sake.
CLOSE = 1e-9


@dataclass(frozen=True)
class GuidedPath(SequentialPath):
    r"""``steps`` steps from the problem's baseline x' to the input x, each of 1/N of their L1 distance.

    Step k moves the entries with the smallest ``|g_i|`` towards x, the lowest ``fraction`` of all entries at a time,
    until :math:`\|z - x\|_1 = (1 - k/N) \|x - x'\|_1`. The progress of an entry from x' to x never leaves
    ``k/N +- max_dist``: 0 is the straight line, 1 the full box between x' and x. ``closed`` requests the gradient at
    the end. An image that is its own baseline has no steps.
    """

    begins = "baseline"

    steps: int
    fraction: float
    max_dist: float
    closed: bool = False

    def init(self, problem: Problem) -> State:
        state = super().init(problem)
        moves = (problem.inputs != problem.baseline).flatten(1).any(1)
        return replace(state, total=torch.where(moves, state.total, 0))

    def begin(self, problem: Problem, images: Tensor) -> Tensor:
        assert problem.baseline is not None
        return problem.baseline[images].double()

    def advance(self, problem: Problem, state: State, origin: Tensor, direction: Tensor) -> Tensor:
        start, stop = self.begin(problem, state.image).flatten(1), problem.inputs[state.image].double().flatten(1)
        alpha = ((state.step + 1).double() / self.steps)[:, None]
        low, high = (alpha - self.max_dist).clamp_min(0.0), (alpha + self.max_dist).clamp_max(1.0)
        displacement, z = stop - start, origin.flatten(1)
        behind = (z - start) / displacement < low  # false for an entry with nothing to move: 0 / 0
        z = torch.where(behind, start + low * displacement, z)
        goal = displacement.abs().sum(1) * (1.0 - alpha[:, 0])
        size, distance = direction.flatten(1).abs(), (z - stop).abs().sum(1)
        bound = start + high * displacement
        return advance_to_goal(z, bound, size, distance, goal, self.fraction).view_as(origin)


def advance_to_goal(z: Tensor, bound: Tensor, size: Tensor, distance: Tensor, goal: Tensor, fraction: float) -> Tensor:
    """Move ``z`` (L, n) towards ``bound`` (L, n), entries of small gradients ``size`` (L, n) first, until the L1
    ``distance`` (L,) from the input has become ``goal`` (L,).

    Entries move in blocks. A block is the entries not at their bound whose size is at most the lower
    ``fraction``-quantile of all n sizes, those at their bound counted as infinite. It moves to its bound, and the next
    block follows, while the goal is farther; the last block moves by the share that is left. Blocks come in the order
    of the sizes, so one sort serves them all: the quantile of what remains lies ``rank`` entries further.
    """
    size = size.masked_fill(z == bound, torch.inf)
    ordered, order = size.sort(1)
    room = torch.nn.functional.pad((bound - z).abs().gather(1, order).cumsum(1), (1, 0))
    rank, free = int(fraction * (z.shape[1] - 1)), (ordered < torch.inf).sum(1, keepdim=True)
    left = (distance - goal)[:, None]
    near = CLOSE * torch.maximum(goal, torch.ones_like(goal))[:, None]
    begin = torch.zeros_like(free)
    while True:
        highest = ordered.gather(1, (begin + rank).clamp_max(z.shape[1] - 1))
        end = torch.minimum(torch.searchsorted(ordered, highest, right=True), free)
        rest = left - room.gather(1, begin)
        beyond = (left > room.gather(1, end)) & (end < free)
        if not bool(beyond.any()):
            break
        begin = torch.where(beyond, end, begin)
    gain = room.gather(1, end) - room.gather(1, begin)
    share = torch.where(rest > near, (rest / gain).clamp(max=1.0), 0.0)
    passed = torch.where(begin > 0, ordered.gather(1, (begin - 1).clamp_min(0)), -1.0)
    moved = torch.where(share < 1.0, z + share * (bound - z), bound)
    return torch.where(size <= passed, bound, torch.where(size <= highest, moved, z))
