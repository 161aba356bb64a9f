r"""Adversarial walks: from an input, up the steepest ascent of another class, until the model predicts that class.

Source: Pan, Li and Zhu, "Explaining Deep Neural Network Models with Adversarial Gradient Integration" (2021).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fringe.classifier import Classifier
from fringe.paths.base import Path, Query
from fringe.paths.stepwise import StepwiseWalk, Visit


@dataclass(frozen=True)
class AdversarialPath(Path):
    r"""Row r of the query walks towards class ``toward[r]`` = l: :math:`z \leftarrow z + \epsilon\, \mathrm{sign}
    \nabla p_l(z)`, until l is predicted or ``steps`` steps are taken.

    ``epsilon`` is a share of the valid range of inputs, and steps are clipped to it; where the query's space knows no
    bounds, it is a share of the image's own range, and nothing is clipped. With ``restart`` every step departs from the
    input itself, though it follows the gradient of where the step before had led: the authors' code. Its segments all
    touch the input and carry that gradient there, so they are not a path, and do not sum to a change of the score
    beyond one step. ``closed`` asks for the gradient of the explained score at the last point.
    """

    toward: tuple[int, ...]
    steps: int
    epsilon: float
    restart: bool = False
    closed: bool = False

    def walk(self, classifier: Classifier, query: Query) -> "AdversarialWalk":
        return AdversarialWalk(self, classifier, query)


class AdversarialWalk(StepwiseWalk):
    """One run of the adversarial walks: a step is one forward pass and two VJPs, of the two classes, a row."""

    def __init__(self, path: AdversarialPath, classifier: Classifier, query: Query):
        super().__init__(classifier, query, path.steps, path.closed)
        self.path = path
        self.toward = torch.tensor(path.toward, device=query.inputs.device)

    def start(self, rows: Tensor) -> Tensor:
        return self.query.inputs[rows]

    def visit(self, rows: Tensor, x: Tensor) -> Visit:
        target, toward = self.query.target[rows], self.toward[rows]
        logits, gradients = self.classifier.batch_size.map(self._gradients, x, target, toward)
        origin = self.query.inputs[rows] if self.path.restart else x
        score, arrived = self.classifier.score(logits, target), logits.argmax(1) == toward
        return Visit(origin, logits, score, gradients[:, 0], gradients[:, 1], arrived)

    def advance(self, rows: Tensor, here: Visit, step: int) -> Tensor:
        low, high = self.query.space.bounds(self.query.inputs[rows])
        return self.clip(here.origin + self.path.epsilon * (high - low) * here.direction.sign())

    def _gradients(self, x: Tensor, target: Tensor, toward: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (L, C), and the gradients of the score and of the class ``toward`` (L, 2, *S), from one pass.

        Of a probability it is the gradient of its logarithm: of the same sign, and no zero where p underflows.
        """
        point = self.classifier.linearise(x, tangents=False)
        ascent = torch.nn.functional.one_hot(toward, point.value.shape[1]).to(point.value)
        if self.classifier.score_kind != "logit":
            ascent = ascent - point.value.softmax(-1)
        score = point.vjp(self.classifier.score_cotangent(point.value, target))
        return point.value, torch.stack([score, point.vjp(ascent)], 1)
