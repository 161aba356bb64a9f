"""Where on [0, 1] to look, and how much each look counts: quadrature of a path that is known beforehand."""

from typing import Literal

import numpy as np
import torch
from torch import Tensor

NodeRule = Literal["midpoint", "gausslegendre", "trapezoid", "left", "right", "closed_mean"]


def quadrature_nodes(rule: NodeRule, count: int) -> tuple[Tensor, Tensor]:
    """Nodes (count,) in [0, 1], descending (from the input, a = 1, to the baseline), and their weights, in float64.

    Weights sum to one. ``left`` looks at the baseline's end of each interval and ``right`` at the input's;
    ``trapezoid`` halves the ends of a closed grid of ``count - 1`` intervals (Captum's divides by ``count`` and loses
    that share of every map); ``closed_mean`` weighs the closed grid equally, as PAIR-code/saliency does.
    """
    if rule == "gausslegendre":
        x, w = np.polynomial.legendre.leggauss(count)
        nodes, weights = torch.from_numpy((x + 1) / 2), torch.from_numpy(w / 2)
    else:
        k = torch.arange(count, dtype=torch.float64)
        shift = {"midpoint": 0.5, "left": 0.0, "right": 1.0}
        nodes = (k + shift[rule]) / count if rule in shift else torch.linspace(0, 1, count, dtype=torch.float64)
        weights = torch.full((count,), 1.0 / count, dtype=torch.float64)
        if rule == "trapezoid":
            weights = torch.full((count,), 1.0 / (count - 1), dtype=torch.float64)
            weights[[0, -1]] *= 0.5
    return nodes.flip(0), weights.flip(0)
