r"""The guided path: from a baseline to an input, the entries with the smallest gradients first.

Source: Kapishnikov, Venugopalan, Avci, Wedin, Terry and Bolukbasi, "Guided Integrated Gradients" (2021).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fringe.geometry import geometry_dtype
from fringe.paths._base import Path, PathStatus
from fringe.paths._problem import Problem
from fringe.paths._sequential import StepwiseWalk, Visit

CLOSE = 1e-9
"""Distance from a step's goal that counts as none, absolute or relative to the distance still to go; the published
code's. States are kept in float64 for its sake."""


@dataclass(frozen=True)
class GuidedPath(Path):
    r"""``steps`` steps from the problem's baseline x' to the input x, each shortening the way by 1/N in the L1 norm.

    Step k moves the entries with the smallest ``|g_i|`` towards x, the lowest ``fraction`` of all entries at a time,
    until :math:`\|z - x\|_1 = (1 - k/N) \|x - x'\|_1`. The progress of an entry from x' to x never leaves
    ``k/N +- max_dist``: 0 is the straight line, 1 the whole box between x' and x. ``closed`` asks for the gradient at
    the end.
    """

    steps: int
    fraction: float
    max_dist: float
    closed: bool = False

    def walk(self, problem: Problem) -> "GuidedWalk":
        return GuidedWalk(self, problem)


class GuidedWalk(StepwiseWalk):
    """One run of the guided path. An image that is its own baseline has no steps."""

    begins = "baseline"

    def __init__(self, path: GuidedPath, problem: Problem):
        super().__init__(problem, path.steps, path.closed)
        assert problem.baseline is not None
        self.path, self.baseline = path, problem.baseline
        self.dtype = geometry_dtype(problem.inputs.device)
        for i, still in enumerate((problem.inputs == self.baseline).flatten(1).all(1).tolist()):
            if still:
                self.planned[i], self.outcomes[i] = 0, PathStatus.AT_REFERENCE

    def start(self, rows: Tensor) -> Tensor:
        return self.baseline[rows].to(self.dtype)

    def visit(self, rows: Tensor, x: Tensor) -> Visit:
        logits, gradient = self.problem.logits_gradient(x.to(self.problem.inputs.dtype), rows)
        never = torch.zeros(len(rows), dtype=torch.bool, device=x.device)
        return Visit(x, logits, self.problem.score(logits, rows), gradient, gradient, never)

    def advance(self, rows: Tensor, here: Visit, step: int) -> Tensor:
        start, stop = (t[rows].to(self.dtype).flatten(1) for t in (self.baseline, self.problem.inputs))
        alpha, reach = step / self.steps, self.path.max_dist
        low, high = max(alpha - reach, 0.0), min(alpha + reach, 1.0)
        way, z = stop - start, here.origin.flatten(1)
        behind = (z - start) / way < low  # not so where there is no way to go: 0 / 0
        z = torch.where(behind, start + low * way, z)
        goal = way.abs().sum(1) * (1.0 - alpha)
        slope, distance = here.direction.flatten(1).abs(), (z - stop).abs().sum(1)
        return approach(z, start + high * way, slope, distance, goal, self.path.fraction).view_as(here.origin)


def approach(z: Tensor, bound: Tensor, slope: Tensor, distance: Tensor, goal: Tensor, fraction: float) -> Tensor:
    """``z`` (L, n) moved towards ``bound`` (L, n), entries of small ``slope`` (L, n) first, until the L1 ``distance``
    (L,) from the input has become ``goal`` (L,).

    Entries move in blocks. A block is the entries not at their bound whose slope is at most the lower
    ``fraction``-quantile of all n slopes, those at their bound counted as infinite. It moves all the way, and the next
    block follows, while the goal is farther; the last block moves by the share that is left. Blocks come in the order
    of the slopes, so one sort serves them all: the quantile of what remains lies ``rank`` entries further.
    """
    slope = slope.masked_fill(z == bound, torch.inf)
    ordered, order = slope.sort(1)
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
    return torch.where(slope <= passed, bound, torch.where(slope <= highest, moved, z))
