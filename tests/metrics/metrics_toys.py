"""Networks whose perturbation curves are known, in float64."""

import math

import torch
from torch import Tensor, nn

from fringe import BinaryClassifier


class Odds(nn.Module):
    """Two classes with logits (0, sum w x): the odds of the second are a product over the pixels of (B, 1, 2, 2)."""

    ODDS = (8.0, 4.0, 2.0, 2.0)

    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.tensor([math.log(o) for o in self.ODDS], dtype=torch.float64))
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        z = x.flatten(1) @ self.weight
        return torch.stack([torch.zeros_like(z), z], 1)


def additive(weight: Tensor) -> nn.Module:
    """Two classes, the second of probability ``0.05 + 0.9 sum w x``: linear in the pixels."""
    return BinaryClassifier(lambda x: 0.05 + 0.9 * (x * weight).flatten(1).sum(1), output="probability").eval()


def doubtful(model: nn.Module, x: Tensor) -> list[int]:
    """The predicted class of each image, but of the last one the least likely: a reference is more confident of it."""
    logits = model(x)
    return [*logits[:-1].argmax(1).tolist(), int(logits[-1].argmin())]
