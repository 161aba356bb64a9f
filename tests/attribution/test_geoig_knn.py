"""Geodesic IG on a graph: against every simple path of small graphs, and what a path integral must satisfy."""

import dataclasses
import itertools
import sys

import numpy as np
import pytest
import torch
from attribution_toys import SoftplusMLP, images, score_and_gradient
from torch import nn

import fringe
from fringe.paths import NeighbourGraph, PiecewiseNodes, Polyline, Problem, Vertices


class Plane(nn.Module):
    """Three classes over tables of two features, twice differentiable: steep in the middle, flat outside."""

    def forward(self, x):
        bump = torch.exp(-(x**2).sum(1))
        return torch.stack((3 * bump + x[:, 0], (2 * x[:, 1]).tanh() - bump, x.sum(1) ** 2 / 4), 1)


def table(count, seed):
    return 1.5 * torch.randn(count, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def explain(model, x, references, **settings):
    call = {name: settings.pop(name) for name in ("target", "baseline", "batch_size", "seed") if name in settings}
    space = fringe.InputSpace(references=references)
    return fringe.attribute(model, x, method=fringe.GeoIGKNN(**settings), space=space, **call)


# -- a graph and its shortest path, written out -----------------------------------------------------------------------


def gauss(order):
    x, w = np.polynomial.legendre.leggauss(order)
    return [(float(a + 1) / 2, float(b) / 2) for a, b in zip(x, w, strict=True)]


def naive_edges(nodes, references, k):
    """Pairs (i, j), i < j: references among themselves and bridged, then the last two among all."""
    far = lambda i, j: float((nodes[i] - nodes[j]).norm())  # noqa: E731
    nearest = lambda i, others: sorted((j for j in others if j != i), key=lambda j: far(i, j))[:k]  # noqa: E731
    known = range(references)
    edges = {tuple(sorted((i, j))) for i in known for j in nearest(i, known)}
    part = {i: {i} for i in known}
    for i, j in edges:
        merged = part[i] | part[j]
        part.update(dict.fromkeys(merged, merged))
    parts = list({frozenset(p) for p in part.values()})
    for a, b in itertools.combinations(parts, 2):
        edges.add(tuple(sorted(min(itertools.product(a, b), key=lambda e: far(*e)))))
    for i in (references, references + 1):
        edges |= {tuple(sorted((i, j))) for j in nearest(i, range(references + 2))}
    return edges


def naive(model, x, target, baseline, references, k, order, euclidean):
    """The map and the metric length of one image: the least of all simple paths."""
    nodes, count = [*references, x, baseline], len(references)
    weight, share = {}, {}
    for i, j in naive_edges(nodes, count, k):
        away = nodes[j] - nodes[i]
        met = [(w, score_and_gradient(model, nodes[i] + a * away, target)[1]) for a, w in gauss(order)]
        weight[i, j] = weight[j, i] = float(away.norm()) * (
            1 if euclidean else sum(w * float(g.norm()) for w, g in met)
        )
        share[i, j] = away * sum(w * g for w, g in met)
        share[j, i] = -share[i, j]
    best, way = np.inf, None
    for size in range(count + 1):
        for inner in itertools.permutations(range(count), size):
            steps = list(itertools.pairwise((count + 1, *inner, count)))
            if all(step in weight for step in steps) and (total := sum(weight[s] for s in steps)) < best:
                best, way = total, steps
    return sum(share[step] for step in way), best, len(way)


@pytest.mark.parametrize("euclidean", [False, True])
@pytest.mark.parametrize("k", [1, 2, 3, 9])
def test_the_shortest_of_all_paths(k, euclidean):
    model, x, references = Plane().eval(), table(3, 1), table(6, 2)
    baseline, metric = torch.tensor([[1.5, -1.0]]).double().expand(3, 2), "euclidean" if euclidean else "geodesic"
    target = [0, 1, 0]
    found = explain(model, x, references, neighbours=k, order=3, metric=metric, target=target, baseline=baseline)
    counts = []
    for i in range(3):
        values, length, edges = naive(model, x[i], target[i], baseline[i], references, k, 3, euclidean)
        torch.testing.assert_close(found.values[i], values, rtol=1e-10, atol=1e-12)
        assert found.diagnostics["metric_length"][i].item() == pytest.approx(length, rel=1e-12)
        assert found.diagnostics["edges"][i] == edges
        counts.append(edges)
    assert k == 9 or max(counts) > 1


def test_paths_go_round_what_is_steep():
    """Across the bump the straight edge is the shortest for the eye, and not for the model."""
    model, x, baseline = Plane().eval(), torch.tensor([[-2.0, 0.0]]).double(), torch.tensor([2.0, 0.0]).double()
    angle = torch.linspace(0, np.pi, 7, dtype=torch.float64)
    references = 2 * torch.stack((angle.cos(), angle.sin()), 1)
    call = {"neighbours": 8, "order": 20, "target": 0, "baseline": baseline}
    bent, straight = (explain(model, x, references, metric=m, **call) for m in ("geodesic", "euclidean"))
    assert straight.diagnostics["edges"] == 1
    assert straight.diagnostics["path_length"].item() == pytest.approx(4.0, rel=1e-14)
    assert bent.diagnostics["edges"] > 1
    assert bent.diagnostics["path_length"] > 4.1
    assert bent.diagnostics["straight_length"].item() == 4.0
    for found in (bent, straight):
        assert found.completeness_residual < 1e-6
        assert found.verdict == ("ok",)


def test_points_of_a_polyline_know_how_far_they_are():
    """Right-angled corners of lengths 3 and 1, walked from the input: places, displacements, and shares of the way."""
    points = torch.tensor([[0.0, 0.0], [3.0, 1.0], [3.0, 0.0]]).double()
    line = Polyline(points, torch.tensor([[0, 2, 1]]))
    assert line.lengths().tolist() == [[3.0, 1.0]]
    rows, nodes = torch.zeros(4, dtype=torch.long), torch.arange(4)
    pieces = PiecewiseNodes(line, torch.tensor([0.75, 0.25]).double(), torch.tensor([0.4, 0.6]).double()).at(
        rows, nodes
    )
    expected = [[0.75, 0.0], [2.25, 0.0], [3.0, 0.25], [3.0, 0.75]]
    torch.testing.assert_close(pieces.x, torch.tensor(expected).double(), rtol=0, atol=1e-15)
    away = [[-1.2, 0.0], [-1.8, 0.0], [0.0, -0.4], [0.0, -0.6]]
    torch.testing.assert_close(pieces.displacement.float(), torch.tensor(away))
    shares = torch.tensor([3 / 16, 9 / 16, 13 / 16, 15 / 16]).double()
    torch.testing.assert_close(pieces.alpha, shares, rtol=0, atol=1e-15)
    corners = Vertices(line).at(rows[:3], nodes[:3])
    assert corners.x.tolist() == [[0.0, 0.0], [3.0, 0.0], [3.0, 1.0]]
    assert corners.displacement.tolist() == [[-1.5, 0.0], [-1.5, -0.5], [0.0, -0.5]]
    assert corners.alpha.tolist() == [0.0, 0.75, 1.0]


# -- what follows from it ---------------------------------------------------------------------------------------------


def test_the_references_graph_is_measured_once_a_class():
    """q gradients an edge: the references' edges once a class, an image's own edges, then its way."""
    model, x, references, q = SoftplusMLP(), images(5), images(12, seed=3), 3
    method = fringe.GeoIGKNN(neighbours=4, order=q)
    graph = NeighbourGraph(references.flatten(1), 4)
    own = sum(len(graph.attach(image.flatten(), torch.zeros(72).double())) for image in x)
    for target in ([0] * 5, [0, 1, 0, 3, 1]):
        classifier = fringe.Classifier(model)
        targets = torch.tensor(target)
        with classifier.session(x.device):
            domain = fringe.InputSpace(references=references)
            problem = Problem.of(classifier, x, target=targets, domain=domain)
            before = dataclasses.replace(classifier.passes)
            found = method.attribute(problem)
        passes = classifier.passes.since(before)
        ways = int(found.diagnostics["edges"].sum())
        assert passes.vjp == q * (len(set(target)) * len(graph.edges) + own + ways)
        assert passes.forward == passes.vjp + 5  # and the score at each baseline


# -- edges of the world -----------------------------------------------------------------------------------------------


def test_every_two_components_get_their_shortest_bridge():
    line = torch.tensor([0.0, 1.0, 10.0, 11.5, 30.0, 31.0]).double()[:, None]
    assert NeighbourGraph(line, 1).edges.tolist() == [[0, 1], [1, 2], [1, 4], [2, 3], [3, 4], [4, 5]]


def test_twins_and_images_among_the_references():
    references = torch.cat((table(4, 2), table(4, 2)))
    found = explain(Plane().eval(), references[:2], references, neighbours=2, order=12)
    assert torch.isfinite(found.values).all()
    assert found.completeness_residual.max() < 1e-3


def test_one_reference_is_enough():
    found = explain(Plane().eval(), table(2, 1), table(1, 2), neighbours=10, order=12)
    assert found.completeness_residual.max() < 1e-3
    assert found.diagnostics["edges"].max() <= 2


def test_where_the_model_breaks_the_map_says_so():
    """Gradients that are NaN on every way: the direct one is taken and the verdict is its."""
    broken = lambda x: Plane().eval()(x) + (x[:, :1] - 0.1).sqrt()  # noqa: E731
    x = torch.tensor([[1.0, 0.0]]).double()
    found = explain(broken, x, table(5, 2) - 9.0, neighbours=2, baseline=torch.tensor([-1.0, 0.0]).double(), target=0)
    assert found.verdict == ("diverged",)


def test_an_absent_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.neighbors", None)
    with pytest.raises(fringe.InputError, match=r'run pip install -c constraints.txt -e "\.\[graph\]"'):
        explain(SoftplusMLP(), images(2), images(4))
