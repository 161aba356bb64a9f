"""A metric on trial: how the checks ask it for scores."""

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fringe.attribution import IntegratedGradients, attribute
from fringe.metrics import EvaluationContext, Explainer, Metric, Scores, evaluate
from fringe.testing.examples import Graded, Maps, subject
from fringe.testing.networks import CPU, Laboratory, curved


@dataclass(frozen=True)
class Case:
    """Images ``x`` of a ``model`` with maps of them by a method that walks a path."""

    metric: Metric
    model: nn.Module
    x: Tensor
    maps: Maps

    def subject(self, rows: list[int] | None = None, batch_size: int = 16, seed: int = 0) -> EvaluationContext:
        """A fresh subject of the images ``rows``, all of them if None."""
        return subject(self.model, self.x if rows is None else self.x[rows], batch_size, seed)

    def score(self, of: EvaluationContext, rows: list[int] | None = None, values: Tensor | None = None) -> Scores:
        """The scores of the subject's images, which are those at ``rows``, for their maps or for ``values``."""
        maps = self.maps if values is None else dataclasses.replace(self.maps, values=values)
        return _score(self.metric, of, maps if rows is None else maps.take(rows), _gradients(of))


@dataclass(frozen=True)
class MetricTrial:
    """A configured metric and the device it is tried on."""

    metric: Metric
    device: torch.device = CPU

    def laboratory(self, dtype: torch.dtype = torch.float64) -> Laboratory:
        return Laboratory(dtype, self.device)

    def case(self, dtype: torch.dtype = torch.float64) -> Case:
        """Three images, explained by Integrated Gradients."""
        laboratory = self.laboratory(dtype)
        model, x = laboratory.build(curved), laboratory.images(3)
        found = attribute(model, x, method=IntegratedGradients(steps=4), space=laboratory.space())
        return Case(self.metric, model, x, Maps(found.values, found.diagnostics, found.completeness_residual))

    def score_graded(self, model: nn.Module, x: Tensor, graded: Graded) -> Tensor:
        """Scores (B,) of maps of known worth."""
        return _score(self.metric, subject(model, x), graded.maps, graded.explain).values


def _score(metric: Metric, of: EvaluationContext, maps: Maps, explain: Explainer) -> Scores:
    return evaluate(of, maps, [metric], explain)[metric.name]


def _gradients(of: EvaluationContext) -> Explainer:
    """Maps of other inputs: the score's gradients there."""
    return lambda x, rows: of.problem.logits_gradient(x, torch.tensor(rows, device=x.device))[1]
