"""Infidelity: does the map predict how the score answers small noise? (Yeh et al. 2019)"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from fringe._checks import require_positive, require_whole
from fringe._tunable import tunable
from fringe.geometry import geometry_dtype
from fringe.metrics.base import Direction, EvaluatedMaps, EvaluationContext, Metric, Scores
from fringe.metrics.draws import Measure, inner_product, over_draws


@dataclass(frozen=True)
class Infidelity(Metric):
    """Mean squared error of the map as a linear prediction of the score's change.

    .. math:: E_\\delta\\bigl[(\\delta^T \\Phi - (F^t(x) - F^t(x - \\delta)))^2\\bigr],
        \\qquad \\delta_i \\sim N(0, \\sigma^2)

    F is the classifier's score, delta lives in the model's own coordinates. The draws belong to the image: all methods
    meet the same ones, and share their forward passes, ``samples`` an image.

    A map that says nothing scores about what the zero map does plus ``sigma^2 |Phi|^2``: it is judged by its norm. So
    the score of the zero map is the extra ``zero_map``, and ``ratio`` the score over it. ``normalise`` scales each map
    by the factor that fits best (captum), ``beta = E[<delta, Phi> dF] / E[<delta, Phi>^2]``, the extra ``scale``; then
    the map's own scale does not matter, and no map scores above the zero map. Flag: ``zero_map``.
    """

    name: ClassVar[str] = "infidelity"
    title: ClassVar[str] = "Infidelity"
    direction: ClassVar[Direction] = "lower"
    unit: ClassVar[str] = "score^2"
    space: ClassVar[str] = "the score's change over noise on the model's input"
    source: ClassVar[str] = "Yeh et al. 2019, definition 2.1; FRInGe, appendix Metric definitions"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "captum": {"samples": 10},
        "scale_free": {"normalise": True},
    }

    samples: int = tunable(50, help="draws of noise an image")
    sigma: float = tunable(0.02, unit="input units", help="standard deviation of the noise")
    normalise: bool = tunable(False, help="scale each map by the factor that fits best")

    def __post_init__(self) -> None:
        require_whole("samples", self.samples)
        require_positive("sigma", self.sigma)

    def score(self, explained: EvaluatedMaps) -> Scores:
        subject, values = explained.subject, explained.values
        change = subject.once(("score change", self.samples, self.sigma), lambda: self._changes(subject))
        wide = values.to(change.dtype)
        predicted = self._over_draws(subject, lambda rows, moves: inner_product(wide[rows], moves))
        scale = _best_scale(predicted, change) if self.normalise else change.new_ones(len(change))
        error = (scale[:, None] * predicted - change).square().mean(1)
        zero = change.square().mean(1)
        return Scores(
            error,
            flags={"zero_map": (values == 0).flatten(1).all(1)},
            extras={"zero_map": zero, "ratio": error / zero, "scale": scale},
        )

    def _changes(self, subject: EvaluationContext) -> Tensor:
        """``F(x) - F(x - delta)``: (B, samples)."""
        problem = subject.problem
        dtype = geometry_dtype(problem.inputs.device)
        score = problem.score(problem.logits.to(dtype))

        def change(rows: Tensor, moves: Tensor) -> Tensor:
            logits = problem.forward(problem.inputs[rows] - moves, rows)
            return score[rows] - problem.score(logits.to(dtype), rows)

        return self._over_draws(subject, change)

    def _over_draws(self, subject: EvaluationContext, measure: Measure) -> Tensor:
        def draw(key: str, x: Tensor) -> Tensor:
            return self.sigma * subject.problem.rng.normal(key, x)

        return over_draws(subject, self.name, self.samples, draw, measure)


def _best_scale(predicted: Tensor, change: Tensor) -> Tensor:
    """The factor (B,) of ``predicted`` (B, M) nearest to ``change`` in least squares; one where all is zero."""
    power = predicted.square().sum(1)
    return ((predicted * change).sum(1) / power).where(power > 0, 1.0)
