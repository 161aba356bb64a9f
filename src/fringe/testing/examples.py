"""Images whose answer is known, with maps from perfect to perverse: what a metric must tell apart."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fringe._rng import KeyedGenerator, content_hash
from fringe.classifier import Classifier
from fringe.metrics import EvaluationContext, Explainer
from fringe.paths import Problem
from fringe.testing.networks import Laboratory

IMAGES, SIDE = 6, 16
EVIDENCE = 8.0
"""Logit of an image's own class: its probability is then near one, and near 1/6 without the evidence."""


@dataclass(frozen=True)
class Maps:
    """Maps (B, *S) as a method hands them to a metric: with the ``diagnostics`` of their paths, (B,) each."""

    values: Tensor
    diagnostics: Mapping[str, Tensor]
    completeness_residual: Tensor

    def take(self, rows: list[int]) -> "Maps":
        """Those of the images at ``rows``."""
        diagnostics = {name: value[rows] for name, value in self.diagnostics.items()}
        return Maps(self.values[rows], diagnostics, self.completeness_residual[rows])


@dataclass(frozen=True)
class Graded:
    """Maps of one quality, and maps of other inputs that are as stable as that quality has it."""

    maps: Maps
    explain: Explainer


def evidence(laboratory: Laboratory) -> tuple[nn.Module, Tensor, Tensor]:
    """A linear network, images (B, 1, H, W), and the contributions (B, 1, H, W) of their entries, all of them known.

    Image i has entries -1 and 1 at random. Class i reads a round patch of image i with the weights m x, so the entries
    of the patch speak for the class by m, and no others do; a blurred image says little.
    """
    x = laboratory.images(IMAGES, (1, SIDE, SIDE), "signs").sign()
    axis = torch.arange(SIDE, dtype=x.dtype, device=x.device)
    centres = 5.0 + laboratory.images(IMAGES, (2,), "centres")[..., None] + 2.5
    distance = (axis - centres[:, :1]).square()[:, :, :, None] + (axis - centres[:, 1:]).square()[:, :, None, :]
    patch = torch.exp(-distance / 12.5)
    contribution = EVIDENCE * patch / patch.flatten(1).sum(1).view(-1, 1, 1, 1)
    model = nn.Sequential(nn.Flatten(), nn.utils.skip_init(nn.Linear, SIDE * SIDE, IMAGES, bias=False)).to(x)
    with torch.no_grad():
        next(model.parameters()).copy_((contribution * x).flatten(1))
    return model.eval(), x, contribution


def subject(model: nn.Module, x: Tensor, batch_size: int = 16, seed: int = 0) -> EvaluationContext:
    """The images ``x`` under evaluation, each for the class that the model predicts."""
    classifier = Classifier(model, batch_size=batch_size)
    space = Laboratory(x.dtype, x.device).space(tuple(x.shape[1:]))
    return EvaluationContext(Problem.of(classifier, x.detach(), rng=KeyedGenerator(seed), domain=space))


def graded(x: Tensor, contribution: Tensor, diagnostics: Collection[str]) -> dict[str, tuple[Graded, ...]]:
    """Perfect, random and perverse maps, in each of the two things that a map can mean.

    ``contributions`` sum to the score, and their reverse calls the strongest entries the weakest; ``gradients`` answer
    a change of the input, and their reverse has the wrong sign. Random maps are Gaussian and as long as the perfect
    ones. Their paths' ``diagnostics`` and residuals are 0.1, 0.5 and 1.
    """
    gradient = contribution * x
    largest = contribution.flatten(1).amax(1).view(-1, 1, 1, 1)
    noise = torch.stack([KeyedGenerator(0).normal(f"random map {i}", image) for i, image in enumerate(x)])
    noise = _as_long(noise, gradient)
    return {
        meaning: tuple(
            Graded(_reported(values, diagnostics, error), _explain(values, trust))
            for values, error, trust in ((perfect, 0.1, 1.0), (noise, 0.5, 0.0), (reverse, 1.0, -1.0))
        )
        for meaning, perfect, reverse in (
            ("contributions", contribution, largest - contribution),
            ("gradients", gradient, -gradient),
        )
    }


def _reported(values: Tensor, diagnostics: Collection[str], error: float) -> Maps:
    rows = torch.full((len(values),), error, dtype=torch.float64, device=values.device)
    return Maps(values, dict.fromkeys(diagnostics, rows), rows)


def _explain(values: Tensor, trust: float) -> Explainer:
    """Maps of other inputs: the same again (1), the negative (-1), or unrelated to it and to each other (0)."""

    def explain(x: Tensor, rows: list[int]) -> Tensor:
        if trust:
            return trust * values[rows]
        noise = torch.stack([KeyedGenerator(0).normal(content_hash(image), image) for image in x])
        return _as_long(noise, values[rows])

    return explain


def _as_long(maps: Tensor, like: Tensor) -> Tensor:
    """``maps`` (L, *S) with the Euclidean lengths of others."""
    scale = like.flatten(1).norm(dim=1) / maps.flatten(1).norm(dim=1)
    return maps * scale.view(-1, *[1] * (maps.dim() - 1))
