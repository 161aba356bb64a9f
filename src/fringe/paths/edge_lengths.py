r"""How long the edges of a graph of points are, for the eye and for a model.

.. math:: \omega(u, v) = \|u - v\| \sum_j w_j \|\nabla F^t(z_j)\|, \qquad z_j = v + a_j (u - v)
"""

import torch
from torch import Tensor

from fringe.paths.base import Problem

PART = 256
"""Edges whose ends are looked up at a time."""


def euclidean_lengths(points: Tensor, edges: Tensor) -> Tensor:
    """Lengths (E,) of ``edges`` (E, 2) between ``points`` (P, *S), in float64."""
    parts = [(points[b] - points[a]).flatten(1).double().norm(dim=1) for a, b in (e.T for e in edges.split(PART))]
    return torch.cat(parts)


def model_lengths(
    problem: Problem, row: int, points: Tensor, edges: Tensor, fractions: Tensor, weights: Tensor
) -> Tensor:
    """Lengths (E,) in the metric that stretches space by the norm of the gradient of the score that explains image
    ``row``.

    ``fractions`` and ``weights`` (q,) are a rule on [0, 1]. Costs q forward passes and VJPs an edge; memory does not
    grow with the edges.
    """
    lengths, order = euclidean_lengths(points, edges), len(fractions)
    if not len(edges):
        return lengths
    fractions, weights = fractions.to(points), weights.to(lengths)

    def stretch(pairs: Tensor) -> Tensor:
        ends, place = edges[pairs // order], fractions[pairs % order]
        start, stop = points[ends[:, 0]], points[ends[:, 1]]
        x = start + place.view(-1, *[1] * (points.dim() - 1)) * (stop - start)
        _, gradient = problem.logits_gradient(x, torch.full_like(pairs, row))
        return gradient.flatten(1).double().norm(dim=1)

    norms = problem.model.batch_size.map(stretch, torch.arange(len(edges) * order, device=points.device))
    return lengths * (norms.view(-1, order) @ weights)
