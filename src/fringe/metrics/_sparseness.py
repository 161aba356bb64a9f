"""Sparseness: the Gini index of a map (Chalasani et al. 2020; Hurley and Rickard 2009)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fringe.metrics._base import EvaluatedMaps, Metric, Scores, is_zero
from fringe.metrics._perturbation import spatial_map


@dataclass(frozen=True)
class Sparseness(Metric):
    """The concentration of a map: the Gini index of |A| over all n entries. 0: all equal; (n - 1)/n: all in one entry.

    .. math:: G = \\frac{\\sum_i (2 i - n - 1)\\, a_{(i)}}{n \\sum_i a_{(i)}}, \\qquad a_{(1)} \\le \\dots \\le a_{(n)}

    It does not depend on the map's scale, sign or order. The zero map scores 0 and is flagged ``zero_map``. The detail
    ``spatial`` is the index over pixels, each by its largest channel: with one step per pixel, the area under the
    density response of :class:`MASInsertion` is (1 + ``spatial``) / 2.
    """

    name = "sparseness"
    title = "Sparseness"
    direction = "higher"
    space = "the signed map, all entries"
    source = "Chalasani et al. 2020; FRInGe, section Metrics"

    def score(self, maps: EvaluatedMaps) -> Scores:
        return Scores(
            gini(maps.values),
            flags={"zero_map": is_zero(maps.values)},
            details={"spatial": gini(spatial_map(maps.values, "max"))},
        )


def gini(values: Tensor) -> Tensor:
    """Gini index (B,) of the absolute values of ``values`` (B, *S), in float64; 0 for a row of zeros."""
    a = values.detach().abs().flatten(1).double().sort(dim=1).values
    n, total = a.shape[1], a.sum(1)
    rank = 2.0 * torch.arange(1, n + 1, dtype=a.dtype, device=a.device) - n - 1
    return torch.where(total > 0, (a @ rank) / (n * total.clamp_min(torch.finfo(a.dtype).tiny)), 0.0).clamp(0.0, 1.0)
