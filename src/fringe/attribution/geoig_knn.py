"""Geodesic Integrated Gradients on a nearest-neighbour graph (Salek and Enguehard 2025)."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from fringe.attribution.base import Attribution, Attributor, Baseline
from fringe.attribution.diagnostics import path_attribution
from fringe.attribution.path_integral import integrate
from fringe.attribution.pieces import NodePieces
from fringe.attribution.reference_images import reference_images
from fringe.attribution.rules import quadrature_nodes
from fringe.paths import NeighbourGraph, PiecewiseNodes, Polyline, Problem, euclidean_lengths, model_lengths
from fringe.settings import Doc, PositiveInt, Search

Metric = Literal["geodesic", "euclidean"]


@dataclass(frozen=True)
class GeoIGKNN(Attributor):
    r"""Integrate the gradient along the shortest path through a graph of reference images (Salek and Enguehard 2025).

    An edge is as long as the model makes it, :math:`\omega(u, v) = \|u - v\| \sum_j w_j \|\nabla F^t(z_j)\|`, so paths
    avoid steep regions; ``"euclidean"`` takes :math:`\|u - v\|` instead (the authors' "enhanced" IG). The references
    come with the call, ``attribute(..., space=InputSpace(references=...))``.

    An image's graph has the references, itself and its own baseline. The published code puts all explained inputs and
    baselines into one graph, and there a map depends on the images it was made with. It also counts a point among its
    own ``neighbours``, so that its k is one more than ours. The references' part of the graph is measured once a target
    class and call; an image adds at most ``2 neighbours`` edges. In the space of large images nearest neighbours mean
    little: the method is meant for tables and small images.
    """

    name: ClassVar[str] = "geoig_knn"
    title: ClassVar[str] = "Geodesic Integrated Gradients on a nearest-neighbour graph"
    source: ClassVar[str] = "Salek and Enguehard 2025"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {}}

    neighbours: Annotated[PositiveInt, Search(3, 30, log=True), Doc("nearest others that a point is joined to (k)")] = (
        10
    )
    order: Annotated[PositiveInt, Search(2, 20), Doc("Gauss-Legendre nodes an edge (q)")] = 5
    metric: Annotated[Metric, Doc("what the shortest path is short in")] = "geodesic"
    baseline: Annotated[Baseline, Doc("where paths begin: zero, black, white, mean, blur, noise or uniform")] = "zero"

    @property
    def planned_passes(self) -> float:
        return 64 * self.order * min(self.neighbours, 64)  # the graph of 64 references, half of its edges shared

    def attribute(self, problem: Problem) -> Attribution:
        baseline = problem.resolve_baseline(self.baseline)
        references = reference_images(problem, "geoig_knn walks from one image of the data to the next")
        points = torch.cat((references, problem.inputs, baseline))
        graph = NeighbourGraph(references.flatten(1), self.neighbours)
        routes, lengths = self._routes(graph, points, problem)
        groups = _by_length(routes)
        quiet = dataclasses.replace(problem, progress=None)
        parts: list[Attribution] = []
        for group in groups:
            part = quiet.select(group)
            line = Polyline(points, torch.tensor([routes[i] for i in group], device=points.device))
            result = integrate(NodePieces(PiecewiseNodes(line, *self._rule()), part))
            plain = path_attribution(self, result, part, "use a higher order")
            own = _report(line, lengths[group])
            parts.append(dataclasses.replace(plain, diagnostics={**plain.diagnostics, **own}))
            if problem.progress is not None:
                problem.progress(sum(len(p.values) for p in parts), len(problem.inputs))
        order = torch.tensor([i for group in groups for i in group]).argsort()
        return Attribution.concat(parts).select(order.tolist())

    def _rule(self) -> tuple[Tensor, Tensor]:
        return quadrature_nodes("gausslegendre", self.order)

    def _routes(self, graph: NeighbourGraph, points: Tensor, problem: Problem) -> tuple[list[list[int]], Tensor]:
        """Each image's way to its baseline as rows of ``points`` (references, inputs, baselines), and its length (B,)
        in the metric."""
        batch, count = len(problem.inputs), len(points) - 2 * len(problem.inputs)
        routes, lengths = [[0]] * batch, torch.zeros(batch, dtype=torch.float64)
        for images in problem.groups(by_score=True):
            shared = self._measure(problem, images[0], points, graph.edges)
            own = [graph.attach(points[count + i].flatten(), points[count + batch + i].flatten()) for i in images]
            placed = torch.cat([_placed(e, count, i, batch) for i, e in zip(images, own, strict=True)])
            weights = self._measure(problem, images[0], points, placed).split([len(e) for e in own])
            for i, edges, weight in zip(images, own, weights, strict=True):
                way, length = graph.shortest_path(torch.cat((graph.edges, edges)), torch.cat((shared, weight)))
                routes[i], lengths[i] = _placed(torch.tensor(way), count, i, batch).tolist(), length
        return routes, lengths.to(points.device)

    def _measure(self, problem: Problem, row: int, points: Tensor, edges: Tensor) -> Tensor:
        """Lengths (E,) of ``edges`` (E, 2) in the metric of image ``row``, on the CPU."""
        edges = edges.to(points.device)
        if self.metric == "euclidean":
            return euclidean_lengths(points, edges).cpu()
        return model_lengths(problem, row, points, edges, *self._rule()).cpu()


def _placed(nodes: Tensor, count: int, image: int, batch: int) -> Tensor:
    """A graph's ``nodes`` as rows of all points: node R is the image's row, node R + 1 its baseline's."""
    nodes = torch.where(nodes == count + 1, count + batch + image, nodes)
    return torch.where(nodes == count, count + image, nodes)


def _by_length(routes: list[list[int]]) -> list[list[int]]:
    """Images whose ways have equally many pieces, together."""
    sizes = [len(route) for route in routes]
    return [[i for i, size in enumerate(sizes) if size == wanted] for wanted in sorted(set(sizes))]


def _report(line: Polyline, lengths: Tensor) -> dict[str, Tensor]:
    """What is known of the ways, ``lengths`` (B,) being theirs in the metric."""
    pieces = line.lengths()
    ends = line.points[line.route[:, 0]] - line.points[line.route[:, -1]]
    return {
        "path_length": pieces.sum(1),
        "straight_length": ends.flatten(1).double().norm(dim=1),
        "metric_length": lengths,
        "edges": torch.full((len(pieces),), pieces.shape[1], device=pieces.device),
    }
