"""Polylines from an input to a baseline, as points to integrate at."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fringe.paths.nodes import Node, Nodes


@dataclass(frozen=True)
class Polyline:
    """B polylines of V vertices each: vertex k of image b is row ``route[b, k]`` of ``points`` (P, *S).

    They run from the input to the baseline. ``route`` (B, V) may use a point more than once.
    """

    points: Tensor
    route: Tensor

    def vertex(self, rows: Tensor, k: Tensor) -> Tensor:
        """Vertices ``k`` (L,) of images ``rows`` (L,): (L, *S)."""
        return self.points[self.route[rows, k]]

    def lengths(self) -> Tensor:
        """Euclidean length of each of the V - 1 pieces: (B, V - 1), in float64."""
        pieces = [self.points[b] - self.points[a] for a, b in zip(self.route.T, self.route.T[1:], strict=False)]
        return torch.stack([p.flatten(1).double().norm(dim=1) for p in pieces], 1)

    def ways(self) -> Tensor:
        """How far from the input each vertex lies, as a fraction of the length: (B, V); equal shares where it is 0."""
        lengths = self.lengths()
        shares = torch.where(lengths.sum(1, keepdim=True) > 0, lengths, 1.0)
        way = torch.nn.functional.pad(shares.cumsum(1), (1, 0))
        return way / way[:, -1:]


def stacked(vertices: Tensor) -> Polyline:
    """The polylines with ``vertices`` (B, V, *S)."""
    batch, count = vertices.shape[:2]
    return Polyline(vertices.flatten(0, 1), torch.arange(batch * count, device=vertices.device).view(batch, count))


class Vertices(Nodes):
    r"""The trapezoid rule at the vertices: displacement ``(z_{k-1} - z_{k+1}) / 2``, one-sided at the ends.

    .. math:: \sum_k \tfrac12 (g_k + g_{k+1}) \odot (z_k - z_{k+1}) = \sum_k g_k \odot \tfrac12 (z_{k-1} - z_{k+1})
    """

    def __init__(self, line: Polyline):
        self.line, self.count = line, line.route.shape[1]
        self.endpoint = line.points[line.route[:, -1]]
        self._ways = line.ways()

    def at(self, rows: Tensor, nodes: Tensor) -> Node:
        before, after = (nodes - 1).clamp_min(0), (nodes + 1).clamp_max(self.count - 1)
        displacement = 0.5 * (self.line.vertex(rows, before) - self.line.vertex(rows, after))
        return Node(self.line.vertex(rows, nodes), displacement, self._ways[rows, nodes])


class PiecewiseNodes(Nodes):
    """A rule on every piece: ``fractions`` (q,) of it and their ``weights`` (q,), both from its input's end (1) on."""

    def __init__(self, line: Polyline, fractions: Tensor, weights: Tensor):
        self.line, self.order = line, len(fractions)
        self.count = (line.route.shape[1] - 1) * self.order
        self.endpoint = line.points[line.route[:, -1]]
        self.fractions, self.weights = fractions.to(self.endpoint.device), weights.to(self.endpoint.device)
        self._ways = line.ways()

    def at(self, rows: Tensor, nodes: Tensor) -> Node:
        piece, place = nodes // self.order, nodes % self.order
        start, stop = self.line.vertex(rows, piece + 1), self.line.vertex(rows, piece)
        fraction, weight, way = self.fractions[place], self.weights[place], stop - start
        shape = (-1, *[1] * (way.dim() - 1))
        alpha = fraction * self._ways[rows, piece] + (1 - fraction) * self._ways[rows, piece + 1]
        x = start + fraction.to(way.dtype).view(shape) * way
        return Node(x, weight.to(way.dtype).view(shape) * way, alpha)
