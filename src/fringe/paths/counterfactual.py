r"""Counterfactual walks: from an input towards where the network sees another image, by steps of equal length.

Source: Zhuo and Ge, "IG^2: Integrated Gradient on Iterative Gradient Path for Feature Attribution" (2024).
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fringe.paths.base import Path, Problem
from fringe.paths.representation import Features
from fringe.paths.stepwise import StepwiseWalk, Visit

AUTO_STEP = 256.0 / 255.0 / math.sqrt(299 * 299 * 3)
"""``eta="auto"`` is this times sqrt(n) times the range of inputs: the authors' step, 256 of 255 grey values in all at
299 x 299 x 3, kept as a change of an entry in root mean square. At 224 x 224 x 3 it is 0.75 of the range of [0, 1]."""


@dataclass(frozen=True)
class CounterfactualPath(Path):
    r"""Row r of the problem walks towards its reference, image ``references[r]`` of the problem's domain.

    .. math:: z \leftarrow z - \eta\, u / \|u\|_2, \qquad u = \nabla_z \|r(z) - r(x^r)\|^2

    with r the input of ``layer`` (None: the logits). ``eta`` is in input units; ``"auto"`` is ``AUTO_STEP`` sqrt(n)
    times the mean valid range of the entries. Steps are clipped to the valid range where the domain has one. A
    row whose u is zero, as at the reference itself, has arrived. ``closed`` asks for the score's gradient at the end.
    """

    references: tuple[int, ...]
    layer: str | None
    steps: int
    eta: float | Literal["auto"]
    closed: bool = False

    def walk(self, problem: Problem) -> "CounterfactualWalk":
        return CounterfactualWalk(self, problem)


class CounterfactualWalk(StepwiseWalk):
    """One run of the counterfactual walks: a forward pass a row for its reference, then one and two VJPs a step."""

    def __init__(self, path: CounterfactualPath, problem: Problem):
        super().__init__(problem, path.steps, path.closed)
        assert problem.domain.references is not None
        self.path = path
        self.features = Features(problem, path.layer)
        references = problem.domain.references[list(path.references)].to(problem.inputs)
        self.goal = self.features.of(references, problem.every_row)

    def start(self, rows: Tensor) -> Tensor:
        return self.problem.inputs[rows]

    def visit(self, rows: Tensor, x: Tensor) -> Visit:
        logits, gradients = self.features.gradients(x, rows, self.goal[rows])
        score, direction = self.problem.score(logits, rows), gradients[:, 1]
        return Visit(x, logits, score, gradients[:, 0], direction, (direction == 0).flatten(1).all(1))

    def advance(self, rows: Tensor, here: Visit, step: int) -> Tensor:
        x = here.origin
        shape = (-1, *[1] * (x.dim() - 1))
        largest = here.direction.abs().flatten(1).amax(1).view(shape)
        direction = here.direction / largest  # or the squares below underflow
        norm = direction.flatten(1).double().norm(dim=1).view(shape)
        return self.clip(x - (self._length(rows).view(shape) / norm).to(x.dtype) * direction)

    def _length(self, rows: Tensor) -> Tensor:
        """The length (L,) of the steps of images ``rows`` (L,), in input units."""
        x = self.problem.inputs[rows]
        if self.path.eta != "auto":
            return torch.full((len(rows),), self.path.eta, dtype=torch.float64, device=x.device)
        low, high = self.problem.domain.bounds(x)
        spread = (high - low).expand_as(x).flatten(1).double().mean(1)
        return AUTO_STEP * math.sqrt(x[0].numel()) * spread
