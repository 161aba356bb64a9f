"""Infidelity and max sensitivity (Yeh et al. 2019): maps under small random perturbations of the input."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from fringe.linalg import batch_view
from fringe.metrics._base import EvaluatedMaps, EvaluationContext, Metric, Scores, is_zero
from fringe.metrics._perturbation import for_each
from fringe.settings import Doc, Positive, PositiveInt

#: ``draw(key, x)``: the perturbation of one image ``x`` (*S) that belongs to ``key``, the same in every batch.
Draw = Callable[[str, Tensor], Tensor]

#: ``measure(rows, perturbations)``: numbers (L, ...) of the images ``rows`` (L,) under ``perturbations`` (L, *S).
Measure = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Infidelity(Metric):
    """Mean squared error of the map as a linear prediction of the score's change.

    .. math:: E_\\delta\\bigl[(\\delta^T \\Phi - (F^t(x) - F^t(x - \\delta)))^2\\bigr],
        \\qquad \\delta_i \\sim N(0, \\sigma^2)

    F is the classifier's score, delta is in the model's own coordinates. The draws belong to the image: all methods
    get the same draws, and share their forward passes, ``samples`` per image.

    A map that predicts nothing scores about as the zero map plus ``sigma^2 |Phi|^2``: its norm dominates. So the detail
    ``zero_map`` is the score of the zero map, and ``ratio`` is the score divided by it. ``normalise`` scales each map
    by the factor that fits best (captum), ``beta = E[<delta, Phi> dF] / E[<delta, Phi>^2]``, the detail ``scale``. Then
    the map's own scale does not matter, and no map scores above the zero map. Flag: ``zero_map``.
    """

    name = "infidelity"
    title = "Infidelity"
    direction = "lower"
    unit = "score^2"
    space = "the score's change over noise on the model's input"
    source = "Yeh et al. 2019, definition 2.1; FRInGe, appendix Metric definitions"
    presets: ClassVar = {
        "paper": {},
        "released": {},
        "captum": {"samples": 10},
        "scale_free": {"normalise": True},
    }

    samples: Annotated[PositiveInt, Doc("draws of noise per image")] = 50
    sigma: Annotated[Positive, Doc("standard deviation of the noise", unit="input units")] = 0.02
    normalise: Annotated[bool, Doc("scale each map by the factor that fits best")] = False

    def score(self, maps: EvaluatedMaps) -> Scores:
        context, values = maps.context, maps.values
        change = context.cached(("score change", self.samples, self.sigma), lambda: self._changes(context))
        a = values.to(change.dtype)
        predicted = self._monte_carlo(context, lambda rows, noise: (a[rows] * noise.to(a)).flatten(1).sum(1))
        scale = _best_scale(predicted, change) if self.normalise else change.new_ones(len(change))
        error = (scale[:, None] * predicted - change).square().mean(1)
        zero = change.square().mean(1)
        return Scores(
            error,
            flags={"zero_map": is_zero(values)},
            details={"zero_map": zero, "ratio": error / zero, "scale": scale},
        )

    def _changes(self, context: EvaluationContext) -> Tensor:
        """``F(x) - F(x - delta)``: (B, samples)."""
        problem = context.problem
        score = problem.score(problem.logits.double())

        def change(rows: Tensor, noise: Tensor) -> Tensor:
            logits = problem.forward(problem.inputs[rows] - noise, rows)
            return score[rows] - problem.score(logits.double(), rows)

        return self._monte_carlo(context, change)

    def _monte_carlo(self, context: EvaluationContext, measure: Measure) -> Tensor:
        def draw(key: str, x: Tensor) -> Tensor:
            return self.sigma * context.problem.rng.normal(key, x)

        return monte_carlo(context, self.name, self.samples, draw, measure)


@dataclass(frozen=True)
class MaxSensitivity(Metric):
    """The largest change of the map over M perturbations of the input.

    .. math:: \\max_m \\frac{|\\hat\\Phi(x) - \\hat\\Phi(x + \\delta_m)|_2}{|\\delta_m|_2}, \\qquad
        \\hat\\Phi = \\Phi / |\\Phi|_2, \\quad \\delta_{m,i} \\sim U(-r, r)

    The target is that of x, and x + delta is not clipped. With ``normalise=False`` maps are not scaled to unit norm;
    their distance is divided by ``|Phi(x)|``. With ``per_distance=False`` it is not divided by ``|delta|`` (captum does
    neither; Quantus draws larger and more perturbations). A zero map has no direction: it is compared as it is, and two
    zero maps have distance 0; flag ``zero_map``. If a map is not finite, the score is NaN: flag ``undefined``. The
    detail ``bound`` is the largest possible score of unit maps, 2 over the smallest divisor; orthogonal maps score
    ``bound / sqrt 2``.

    Costs ``samples`` maps per image. A random method must have the same noise at x and x + delta (``explain`` decides
    this); otherwise the score measures this noise.
    """

    name = "max_sensitivity"
    title = "Max sensitivity"
    direction = "lower"
    unit = "1 / input unit"
    space = "maps of unit norm over noise on the model's input"
    source = "Yeh et al. 2019, definition 2.3; FRInGe, appendix Metric definitions"
    presets: ClassVar = {
        "paper": {},
        "released": {},
        "captum": {"normalise": False, "per_distance": False},
        "quantus": {"normalise": False, "per_distance": False, "samples": 200, "radius": 0.2},
    }
    requires_explainer = True
    aggregate = "median"  # of maxima: appendix Robustness under small input perturbations

    samples: Annotated[PositiveInt, Doc("perturbations of an input (M)")] = 10
    radius: Annotated[Positive, Doc("largest perturbation of an entry (r)", unit="input units")] = 0.02
    normalise: Annotated[bool, Doc("compare maps of unit norm")] = True
    per_distance: Annotated[bool, Doc("divide by the norm of the perturbation")] = True

    def score(self, maps: EvaluatedMaps) -> Scores:
        changes = self._changes(maps)
        divisor = changes[..., 1] if self.per_distance else torch.ones_like(changes[..., 1])
        values = (changes[..., 0] / divisor).amax(1)
        zero = is_zero(maps.values) | changes[..., 2].bool().any(1)
        bound = {"bound": 2.0 / divisor.amin(1)} if self.normalise else {}
        return Scores(values, flags={"zero_map": zero, "undefined": torch.isnan(values)}, details=bound)

    def _changes(self, maps: EvaluatedMaps) -> Tensor:
        """Change of the map, norm of the perturbation, and whether the new map is zero, for each draw (B, M, 3)."""
        context, inputs = maps.context, maps.context.problem.inputs
        before = maps.values.double()
        size = _norm(before)
        size = size.where(size > 0, 1.0)

        def measure(rows: Tensor, noise: Tensor) -> Tensor:
            after = maps.maps_of(inputs[rows] + noise, rows.tolist()).to(before)
            length = _norm(after)
            unit = length.where(length > 0, 1.0) if self.normalise else size[rows]
            distance = _norm(before[rows] / batch_view(size[rows], after) - after / batch_view(unit, after))
            return torch.stack([distance, _norm(noise.to(before)), (length == 0).to(before)], 1)

        def draw(key: str, x: Tensor) -> Tensor:
            return self.radius * (2.0 * context.problem.rng.uniform(key, x) - 1.0)

        return monte_carlo(context, self.name, self.samples, draw, measure)


def monte_carlo(context: EvaluationContext, name: str, samples: int, draw: Draw, measure: Measure) -> Tensor:
    """Return ``measure`` of each image under each of its draws, (B, samples, ...).

    Draws are keyed by image and number, and made again instead of stored: ``measure`` is given at most the classifier's
    batch size of them at once, so memory does not grow with their number.
    """
    problem = context.problem

    def chunk(rows: Tensor, draws: Tensor) -> Tensor:
        pairs = zip(rows.tolist(), draws.tolist(), strict=True)
        noise = torch.stack([draw(f"{name} {problem.keys[i]} {m}", problem.inputs[i]) for i, m in pairs])
        return measure(rows, noise)

    return for_each(problem, samples, chunk)


def _best_scale(predicted: Tensor, change: Tensor) -> Tensor:
    """The factor (B,) of ``predicted`` (B, M) nearest to ``change`` in least squares; 1 if all are zero."""
    power = predicted.square().sum(1)
    return ((predicted * change).sum(1) / power).where(power > 0, 1.0)


def _norm(maps: Tensor) -> Tensor:
    return maps.flatten(1).norm(dim=1)
