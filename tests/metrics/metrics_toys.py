"""Networks whose curves are known, and subjects made of them, in float64."""

import math

import torch
from torch import Tensor, nn

from fringe import BinaryClassifier, Classifier
from fringe._rng import KeyedGenerator
from fringe.metrics import EvaluationContext
from fringe.paths import Problem


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


class Affine(nn.Module):
    """Logits ``W x + b`` of inputs of any shape."""

    def __init__(self, size: int, classes: int = 3, seed: int = 0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.register_buffer("weight", torch.randn(classes, size, generator=generator, dtype=torch.float64))
        self.register_buffer("bias", torch.randn(classes, generator=generator, dtype=torch.float64))
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.weight.T + self.bias


class Bent(nn.Module):
    """A network of inputs of any shape, n entries, whose probabilities go up and down along any walk."""

    def __init__(self, size: int = 84, classes: int = 4, seed: int = 0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.register_buffer("inner", torch.randn(16, size, generator=generator, dtype=torch.float64) / size**0.5)
        self.register_buffer("outer", torch.randn(classes, 16, generator=generator, dtype=torch.float64))
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return (x.flatten(1) @ self.inner.T).tanh() @ self.outer.T


def normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def doubtful(model: nn.Module, x: Tensor) -> list[int]:
    """The predicted class of each image, but of the last one the least likely: a reference is more confident of it."""
    logits = model(x)
    return [*logits[:-1].argmax(1).tolist(), int(logits[-1].argmin())]


def context_of(
    model: nn.Module, x: Tensor, target: object = "predicted", *, seed=0, ids=None, **options
) -> EvaluationContext:
    """Images ``x`` under evaluation; ``options`` are the classifier's."""
    classifier = Classifier(model, **options)
    problem = Problem.of(classifier, x, target=target, ids=ids, rng=KeyedGenerator(seed))
    classifier.passes.forward = 0
    return EvaluationContext(problem)
