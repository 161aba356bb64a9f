r"""Shortest paths from an image to its baseline through a nearest-neighbour graph of reference points.

The length of an edge is Euclidean, or in the metric of the model's gradient:

.. math:: \omega(u, v) = \|u - v\| \sum_j w_j \|\nabla F^t(z_j)\|, \qquad z_j = v + a_j (u - v)
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fringe.errors import InputError, install_hint
from fringe.linalg import batch_view
from fringe.paths._problem import Problem

Indices = NDArray[np.int64]

#: Edges whose ends are looked up at a time.
EDGES_PER_CHUNK = 256


def euclidean_lengths(points: Tensor, edges: Tensor) -> Tensor:
    """Compute the lengths (E,) of ``edges`` (E, 2) between ``points`` (P, *S), in float64."""
    pairs = (chunk.T for chunk in edges.split(EDGES_PER_CHUNK))
    return torch.cat([(points[b] - points[a]).flatten(1).double().norm(dim=1) for a, b in pairs])


def model_lengths(
    problem: Problem, row: int, points: Tensor, edges: Tensor, fractions: Tensor, weights: Tensor
) -> Tensor:
    """Compute the lengths of edges in the metric that stretches space by the norm of the score's gradient.

    Costs q forward passes and VJPs per edge; memory does not grow with the edges.

    Args:
        problem: The problem.
        row: The image whose score is meant.
        points: Ends of edges (P, *S).
        edges: Rows of ``points`` that each edge joins (E, 2).
        fractions: Nodes (q,) of a quadrature rule on [0, 1].
        weights: Their weights (q,).

    Returns:
        Lengths (E,) in float64.
    """
    lengths, order = euclidean_lengths(points, edges), len(fractions)
    if not len(edges):
        return lengths
    fractions, weights = fractions.to(points), weights.to(lengths)

    def gradient_norm(pairs: Tensor) -> Tensor:
        ends = edges[pairs // order]
        start, stop = points[ends[:, 0]], points[ends[:, 1]]
        x = start + batch_view(fractions[pairs % order], start) * (stop - start)
        _, gradient = problem.logits_gradient(x, torch.full_like(pairs, row))
        return gradient.flatten(1).double().norm(dim=1)

    norms = problem.model.batch_size.map(gradient_norm, torch.arange(len(edges) * order, device=points.device))
    return lengths * (norms.view(-1, order) @ weights)


class NeighbourGraph:
    """The graph that joins each of R reference points to its nearest others, in both directions.

    If it falls into components, the shortest bridge between each two of them is added. Distances are Euclidean, in
    float64 on the CPU. ``edges`` (E, 2) are pairs of references i < j, once each.

    Args:
        points: The reference points (R, n).
        neighbours: Number of nearest others.

    Raises:
        InputError: If scikit-learn is missing.
    """

    def __init__(self, points: Tensor, neighbours: int):
        self.points, self.neighbours = _array(points), neighbours
        self._search = _search(self.points)
        edges = self._reference_edges()
        self.edges = torch.from_numpy(_unique(np.concatenate((edges, self._bridges(edges)))))

    def attach(self, image: Tensor, baseline: Tensor) -> Tensor:
        """Find the edges (E', 2) that join ``image`` (n,), node R, and ``baseline`` (n,), node R + 1, each to its
        nearest among the references and the other one. The references' own edges do not change.

        One search per image, so that its neighbours cannot depend on the other images, not even by rounding.
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
        """Find the shortest path from node R to node R + 1, and its length, by Dijkstra's algorithm.

        ``edges`` (E, 2) have the lengths ``weights`` (E,); one whose length is not finite is ignored. Without any path:
        the direct one, of infinite length.
        """
        from scipy.sparse.csgraph import dijkstra

        count, finite = len(self.points) + 2, torch.isfinite(weights)
        graph = _adjacency(edges[finite].numpy(), weights[finite].numpy(), count)
        length, before = dijkstra(graph, directed=False, indices=count - 2, return_predecessors=True)
        if before[count - 1] < 0:
            return [count - 2, count - 1], np.inf
        route = [count - 1]
        while route[-1] != count - 2:
            route.append(int(before[route[-1]]))
        return route[::-1], float(length[count - 1])

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
        message = "geoig_knn needs scikit-learn for its neighbours"
        raise InputError(message, hint=install_hint("graph")) from error
    return NearestNeighbors().fit(points)


def _adjacency(edges: Indices, weights: NDArray[np.float64], count: int) -> Any:
    """Each edge once; an edge may have the weight zero."""
    from scipy.sparse import coo_array

    return coo_array((weights, (edges[:, 0], edges[:, 1])), shape=(count, count))


def _unique(edges: Indices) -> Indices:
    return np.unique(np.sort(edges, axis=1), axis=0)
