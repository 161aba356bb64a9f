"""A nearest-neighbour graph of reference points, and shortest paths through it from an image to its baseline."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fringe.errors import InputError
from fringe.paths._problem import Problem

Indices = NDArray[np.int64]


class NeighbourGraph:
    """The graph that joins each of R reference points (R, n) to its ``neighbours`` nearest others (Euclidean), both
    ways. Where that falls into components, the shortest bridge between each two of them is added.

    ``edges`` (E, 2) are pairs of references i < j, once each. Distances are in float64 on the CPU. Raises InputError
    where scikit-learn is missing.
    """

    def __init__(self, points: Tensor, neighbours: int):
        self.points, self.neighbours = _array(points), neighbours
        self._search = _search(self.points)
        edges = self._reference_edges()
        self.edges = torch.from_numpy(_unique(np.concatenate((edges, self._bridges(edges)))))

    def attach(self, image: Tensor, baseline: Tensor) -> Tensor:
        """Edges (E', 2) that join ``image`` (n,), node R, and ``baseline`` (n,), node R + 1, each to its nearest among
        the references and the other one. The references' own edges stay as they are.

        One search an image, so that its neighbours cannot depend on the images around it, not even by rounding.
        """
        pair, count = _array(torch.stack((image, baseline))), len(self.points)
        nearest = min(self.neighbours, count)
        distances, indices = self._search.kneighbors(pair, n_neighbors=nearest)
        apart = float(np.linalg.norm(pair[0] - pair[1]))
        edges: list[tuple[int, int]] = []
        for node, distance, index in zip((count, count + 1), distances, indices, strict=True):
            chosen = [int(i) for i in index]
            if nearest < self.neighbours or apart <= distance[-1]:
                chosen = [*chosen[: self.neighbours - 1], 2 * count + 1 - node]
            edges += [(node, other) for other in chosen]
        return torch.from_numpy(_unique(np.array(edges, dtype=np.int64)))

    def shortest_path(self, edges: Tensor, weights: Tensor) -> tuple[list[int], float]:
        """Nodes of the lightest way from node R to node R + 1, and its weight (Dijkstra's algorithm).

        An edge of no finite weight is no edge; where none leads there, the way is the direct one, of infinite weight.
        """
        from scipy.sparse.csgraph import dijkstra

        count, sound = len(self.points) + 2, torch.isfinite(weights)
        graph = _adjacency(edges[sound].numpy(), weights[sound].numpy(), count)
        weight, before = dijkstra(graph, directed=False, indices=count - 2, return_predecessors=True)
        if before[count - 1] < 0:
            return [count - 2, count - 1], np.inf
        route = [count - 1]
        while route[-1] != count - 2:
            route.append(int(before[route[-1]]))
        return route[::-1], float(weight[count - 1])

    def _reference_edges(self) -> Indices:
        count = len(self.points)
        nearest = min(self.neighbours, count - 1)
        if nearest == 0:
            return np.empty((0, 2), dtype=np.int64)
        others = self._search.kneighbors(n_neighbors=nearest, return_distance=False)  # never the point itself
        return np.stack((np.repeat(np.arange(count), nearest), others.ravel()), 1).astype(np.int64)

    def _bridges(self, edges: Indices) -> Indices:
        """The shortest edge between every two components that ``edges`` leave, (bridges, 2)."""
        from scipy.sparse.csgraph import connected_components

        count = len(self.points)
        components, label = connected_components(_adjacency(edges, np.ones(len(edges)), count), directed=False)
        bridges: list[tuple[int, int]] = []
        for later in range(1, components):
            members = np.flatnonzero(label == later)
            distance, nearest = (a[:, 0] for a in _search(self.points[members]).kneighbors(self.points, n_neighbors=1))
            for earlier in range(later):
                others = np.flatnonzero(label == earlier)
                end = others[np.argmin(distance[others])]
                bridges.append((int(end), int(members[nearest[end]])))
        return np.array(bridges, dtype=np.int64).reshape(-1, 2)


def _array(points: Tensor) -> NDArray[np.float64]:
    return points.detach().to("cpu", torch.float64).numpy()


def _search(points: NDArray[np.float64]) -> Any:
    try:
        from sklearn.neighbors import NearestNeighbors
    except ModuleNotFoundError as error:
        raise InputError("geoig_knn needs scikit-learn for its neighbours: pip install 'fringe[graph]'") from error
    return NearestNeighbors().fit(points)


def _adjacency(edges: Indices, weights: NDArray[np.float64], count: int) -> Any:
    """Each edge once; a weight of zero is an edge, too."""
    from scipy.sparse import coo_array

    return coo_array((weights, (edges[:, 0], edges[:, 1])), shape=(count, count))


def _unique(edges: Indices) -> Indices:
    return np.unique(np.sort(edges, axis=1), axis=0)


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
