"""Max Sensitivity: how far does a small move of the input carry the map? (Yeh et al. 2019)"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fringe._checks import require_positive, require_whole
from fringe._tunable import tunable
from fringe.errors import InputError
from fringe.geometry import geometry_dtype
from fringe.metrics.base import Aggregate, Direction, EvaluatedMaps, Explainer, Metric, Scores
from fringe.metrics.draws import over_draws


@dataclass(frozen=True)
class MaxSensitivity(Metric):
    """The largest move of the map over M moves of the input.

    .. math:: \\max_m \\frac{|\\hat\\Phi(x) - \\hat\\Phi(x + \\delta_m)|_2}{|\\delta_m|_2}, \\qquad
        \\hat\\Phi = \\Phi / |\\Phi|_2, \\quad \\delta_{m,i} \\sim U(-r, r)

    The target is that of x, and x + delta is not clipped. With ``normalise=False`` maps are not scaled to unit norm but
    their distance is divided by ``|Phi(x)|``; with ``per_distance=False`` it is not divided by ``|delta|`` (captum does
    neither; Quantus moves further and more often). The map of a zero map is zero, and 0 the distance of two: flag
    ``zero_map``. A map that is not finite makes the score NaN: flag ``undefined``. The extra ``bound`` is the largest
    value that unit maps can score, 2 over the smallest divisor; orthogonal maps score ``bound / sqrt 2``.
    Costs ``samples`` maps an image. A random method must meet the same noise at x and x + delta, or its own noise is
    what is measured: that is the caller's ``explain``.
    """

    name: ClassVar[str] = "max_sensitivity"
    title: ClassVar[str] = "Max sensitivity"
    direction: ClassVar[Direction] = "lower"
    unit: ClassVar[str] = "1 / input unit"
    space: ClassVar[str] = "maps of unit norm over noise on the model's input"
    source: ClassVar[str] = "Yeh et al. 2019, definition 2.3; FRInGe, appendix Metric definitions"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "captum": {"normalise": False, "per_distance": False},
        "quantus": {"normalise": False, "per_distance": False, "samples": 200, "radius": 0.2},
    }
    needs_explain: ClassVar[bool] = True
    summary: ClassVar[Aggregate] = "median"  # of maxima: appendix Robustness under small input perturbations

    samples: int = tunable(10, help="moves of an input (M)")
    radius: float = tunable(0.02, unit="input units", help="largest move of an entry (r)")
    normalise: bool = tunable(True, help="compare maps of unit norm")
    per_distance: bool = tunable(True, help="divide by the length of the move")

    def __post_init__(self) -> None:
        require_whole("samples", self.samples)
        require_positive("radius", self.radius)

    def score(self, explained: EvaluatedMaps) -> Scores:
        if explained.explain is None:
            raise InputError("max_sensitivity: it needs the method that made the maps (explain=), not maps alone")
        moved = self._moved(explained, explained.explain)
        divisor = moved[..., 1] if self.per_distance else torch.ones_like(moved[..., 1])
        values = (moved[..., 0] / divisor).amax(1)
        zero = (explained.values == 0).flatten(1).all(1) | moved[..., 2].bool().any(1)
        bound = {"bound": 2.0 / divisor.amin(1)} if self.normalise else {}
        return Scores(values, flags={"zero_map": zero, "undefined": torch.isnan(values)}, extras=bound)

    def _moved(self, explained: EvaluatedMaps, explain: Explainer) -> Tensor:
        """Of each draw (B, M, 3): how far the map moved, how far the input moved, and whether the new map is zero."""
        subject, inputs = explained.subject, explained.subject.problem.inputs
        before = explained.values.to(geometry_dtype(inputs.device))
        size = _norm(before)
        size = size.where(size > 0, 1.0)

        def measure(rows: Tensor, moves: Tensor) -> Tensor:
            after = explain(inputs[rows] + moves, rows.tolist())
            if after.shape != moves.shape:
                raise InputError(f"explain: got maps of shape {tuple(after.shape)}, expected {tuple(moves.shape)}")
            after = after.detach().to(before)
            length = _norm(after)
            unit = length.where(length > 0, 1.0) if self.normalise else size[rows]
            distance = _norm(_over(before[rows], size[rows]) - _over(after, unit))
            return torch.stack([distance, _norm(moves.to(before)), (length == 0).to(before)], 1)

        def draw(key: str, x: Tensor) -> Tensor:
            return self.radius * (2.0 * subject.problem.rng.uniform(key, x) - 1.0)

        return over_draws(subject, self.name, self.samples, draw, measure)


def _norm(maps: Tensor) -> Tensor:
    return maps.flatten(1).norm(dim=1)


def _over(maps: Tensor, divisor: Tensor) -> Tensor:
    return maps / divisor.view(-1, *[1] * (maps.dim() - 1))
