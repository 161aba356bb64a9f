"""Which pixels a map puts first: its spatial map, the order of the pixels, and the mass of the first ones."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from fringe.geometry import geometry_dtype
from fringe.metrics.base import EvaluatedMaps

Reduction = Literal["max", "abs_sum", "sum_abs", "l2"]
"""From channels to pixels: max |A_c| (the FRInGe paper), |sum A_c| (RISE, MAS), sum |A_c|, or the Euclidean norm."""

REDUCTIONS: tuple[Reduction, ...] = get_args(Reduction)

_REDUCE: dict[Reduction, Callable[[Tensor], Tensor]] = {
    "max": lambda a: a.abs().amax(1),
    "abs_sum": lambda a: a.sum(1).abs(),
    "sum_abs": lambda a: a.abs().sum(1),
    "l2": lambda a: a.square().sum(1).sqrt(),
}


def spatial_map(values: Tensor, reduction: Reduction) -> Tensor:
    """The map's importance of each pixel, not negative: (B, C, H, W) -> (B, H, W), (B, C, L) -> (B, L).

    Tabular maps (B, F) have no channels: each feature is a pixel, and its importance |A|.
    """
    wide = values.to(geometry_dtype(values.device))
    return wide.abs() if wide.dim() == 2 else _REDUCE[reduction](wide)


@dataclass(frozen=True)
class Ranking:
    """The P pixels of B maps, the most important first; of equal ones, the first in row-major order.

    ``rank`` (B, *space) is each pixel's place, 0 ... P - 1; ``mass`` (B, P) the importances in descending order.
    """

    rank: Tensor
    mass: Tensor

    @property
    def pixels(self) -> int:
        return self.mass.shape[1]

    def density(self, changed: Tensor) -> Tensor:
        """Share (B, N + 1) of the mass that lies on the first ``changed`` (N + 1,) pixels; NaN for a zero map."""
        gathered = torch.nn.functional.pad(self.mass.cumsum(1), (1, 0))
        return gathered[:, changed] / gathered[:, -1:]

    def flags(self) -> dict[str, Tensor]:
        """``zero_map``, and ``constant_map``, whose order is the rule for ties and nothing else: (B,) each."""
        return {"zero_map": self.mass[:, 0] == 0, "constant_map": self.mass[:, 0] == self.mass[:, -1]}

    def ties(self) -> Tensor:
        """Share (B,) of pixels as important as another one."""
        equal = self.mass[:, 1:] == self.mass[:, :-1]
        tied = torch.nn.functional.pad(equal, (1, 0)) | torch.nn.functional.pad(equal, (0, 1))
        return tied.to(self.mass.dtype).mean(1)


def ranking_of(explained: EvaluatedMaps, reduction: Reduction) -> Ranking:
    """The ranking of the maps' pixels, sorted once for all metrics."""
    return explained.once(("ranking", reduction), lambda: rank_pixels(spatial_map(explained.values, reduction)))


def rank_pixels(importance: Tensor) -> Ranking:
    """Rank the pixels of (B, *space) by a stable descending sort."""
    mass, order = importance.flatten(1).sort(dim=1, descending=True, stable=True)
    places = torch.arange(order.shape[1], dtype=torch.int32, device=order.device).expand(order.shape)
    rank = torch.empty_like(order, dtype=torch.int32).scatter_(1, order, places)
    return Ranking(rank.view(importance.shape), mass)
