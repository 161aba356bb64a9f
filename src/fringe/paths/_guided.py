r"""The guided path: from a baseline to an input, the entries with the smallest gradients first.

Source: Kapishnikov, Venugopalan, Avci, Wedin, Terry and Bolukbasi, "Guided Integrated Gradients" (2021).
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fringe.paths._base import State
from fringe.paths._problem import Problem
from fringe.paths._sequential import Evaluation, SequentialPath

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

    def evaluate(self, problem: Problem, state: State, x: Tensor) -> Evaluation:
        logits, gradient = problem.logits_gradient(x.to(problem.inputs.dtype), state.image)
        return Evaluation(logits, gradient, gradient)

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
