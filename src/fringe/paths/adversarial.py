r"""Adversarial walks: from an input, up the steepest ascent of another class, until the model predicts that class.

Source: Pan, Li and Zhu, "Explaining Deep Neural Network Models with Adversarial Gradient Integration" (2021).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fringe.paths.base import Path, Problem
from fringe.paths.stepwise import StepwiseWalk, Visit


@dataclass(frozen=True)
class AdversarialPath(Path):
    r"""Row r of the problem walks towards class ``toward[r]`` = l: :math:`z \leftarrow z + \epsilon\, \mathrm{sign}
    \nabla p_l(z)`, until l is predicted or ``steps`` steps are taken.

    ``epsilon`` is a share of the valid range of inputs, and steps are clipped to it; where the problem's domain knows
    no bounds, it is a share of the image's own range, and nothing is clipped. With ``restart`` every step departs from
    the input itself, though it follows the gradient of where the step before had led: the authors' code. Its segments
    all touch the input and carry that gradient there, so they are not a path, and do not sum to a change of the score
    beyond one step. ``closed`` asks for the gradient of the explained score at the last point.
    """

    toward: tuple[int, ...]
    steps: int
    epsilon: float
    restart: bool = False
    closed: bool = False

    def walk(self, problem: Problem) -> "AdversarialWalk":
        return AdversarialWalk(self, problem)


class AdversarialWalk(StepwiseWalk):
    """One run of the adversarial walks: a step is one forward pass and two VJPs, of the two classes, a row."""

    def __init__(self, path: AdversarialPath, problem: Problem):
        super().__init__(problem, path.steps, path.closed)
        self.path = path
        self.toward = torch.tensor(path.toward, device=problem.inputs.device)

    def start(self, rows: Tensor) -> Tensor:
        return self.problem.inputs[rows]

    def visit(self, rows: Tensor, x: Tensor) -> Visit:
        logits, gradients = self.problem.model.batch_size.map(self._gradients, x, rows)
        origin = self.problem.inputs[rows] if self.path.restart else x
        score, arrived = self.problem.score(logits, rows), logits.argmax(1) == self.toward[rows]
        return Visit(origin, logits, score, gradients[:, 0], gradients[:, 1], arrived)

    def advance(self, rows: Tensor, here: Visit, step: int) -> Tensor:
        low, high = self.problem.domain.bounds(self.problem.inputs[rows])
        return self.clip(here.origin + self.path.epsilon * (high - low) * here.direction.sign())

    def _gradients(self, x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (L, C), and the gradients of the score and of the class ``toward`` (L, 2, *S), from one pass.

        Of a probability it is the gradient of its logarithm: of the same sign, and no zero where p underflows.
        """
        point = self.problem.linearise(x, rows, tangents=False)
        ascent = torch.nn.functional.one_hot(self.toward[rows], point.value.shape[1]).to(point.value)
        if (self.problem.score_kind or self.problem.model.score_kind) != "logit":
            ascent = ascent - point.value.softmax(-1)
        score = point.vjp(self.problem.score_cotangent(point.value, rows))
        return point.value, torch.stack([score, point.vjp(ascent)], 1)
