"""Integrals along paths that the model shapes: AGI, IG2, and Geodesic Integrated Gradients (graph or fitted)."""

import dataclasses
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge
from torch import Tensor

from fringe.attribution._base import (
    Attribution,
    Attributor,
    Baseline,
    ProgressCounter,
    explain_by_size,
)
from fringe.attribution._diagnostics import finer, gradient_attribution, path_attribution, path_diagnostics
from fringe.attribution._integrate import integrate, integrate_steps, quadrature_nodes
from fringe.errors import InputError
from fringe.geometry import log_probabilities
from fringe.linalg import batch_view
from fringe.paths import (
    AdversarialPath,
    AuthorsEnergy,
    AuthorsSVI,
    CounterfactualPath,
    GradientNorm,
    JVPUse,
    NeighbourGraph,
    NoiseFn,
    OptimizedPath,
    PiecewiseNodes,
    Polyline,
    Problem,
    authors_spacing,
    euclidean_lengths,
    last_linear_layer,
    model_lengths,
)
from fringe.settings import Doc, NotNegative, Positive, PositiveInt, Search

AGIMode = Literal["path", "official"]


@dataclass(frozen=True)
class AGI(Attributor):
    r"""Integrate the score's gradient along adversarial paths from the input to other classes (Pan et al. 2021).

    There is one path to each class l of a fixed set without the target t. It steps by ``epsilon`` times the sign of
    :math:`\nabla p_l` until l is predicted, at most m times, and adds up :math:`-\nabla p_t \odot \Delta z` over all
    classes, with the gradient at the beginning of each step. There is no baseline. The classes are 0, s, 2s, ... below
    C with s = floor(C / k), or all C if k >= C (the authors never take the last class). These are more than k if k does
    not divide C. If only t were left, the class after t is taken.

    Steps are a share of the valid range of inputs, ``attribute(..., space=InputSpace(low=..., high=...))``, and are
    clipped to it. Without a range they are a share of the image's own range and not clipped. ``mode="path"`` is a path
    with completeness. ``"official"`` is the authors' code: every step restarts from the input, so the same change is
    counted up to m times, and the verdict is ``unchecked``. The probability is explained, whatever the score of the
    classifier. ``endpoint_score`` of the result is it minus its change on all paths together. Each class costs at most
    m forward passes and 2 m VJPs per image, and a forward pass at the end.

    The preset ``paper``: m = 20 is of the authors' notes, epsilon = .05 of their code, and one class of the scripts of
    the authors of MAS; the code of the FRInGe paper takes 5 classes.
    """

    name = "agi"
    title = "Adversarial Gradients (AGI)"
    source = "Pan, Li and Zhu 2021"
    many_paths = True
    needs_classes = True
    presets: ClassVar = {
        "paper": {"mode": "official", "classes": 1},
        "released": {"mode": "official", "classes": 5},
        "official": {"mode": "official"},
    }

    classes: Annotated[PositiveInt, Search(1, 50, log=True), Doc("classes to step towards (k)")] = 20
    steps: Annotated[PositiveInt, Search(5, 100, log=True), Doc("most steps of a path (m)")] = 20
    epsilon: Annotated[Positive, Search(0.002, 0.1, log=True), Doc("step of an entry", unit="of the range")] = 0.05
    mode: Annotated[AGIMode, Doc("a path, or restart from the input at every step")] = "path"

    def _towards(self, target: int, count: int) -> list[int]:
        """The classes that an image of class ``target`` is moved towards, of ``count`` classes."""
        ids = range(0, count, max(count // self.classes, 1))
        return [c for c in ids if c != target] or [(target + 1) % count]

    @property
    def is_complete(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride] - depends on a setting
        return self.mode == "path"

    @property
    def planned_passes(self) -> float:
        return 3 * self.classes * self.steps

    def attribute(self, problem: Problem) -> Attribution:
        problem, count = dataclasses.replace(problem, score_kind="probability"), problem.logits.shape[1]
        pairs = [(i, c) for i, t in enumerate(problem.target.tolist()) for c in self._towards(t, count)]
        images, toward = zip(*pairs, strict=True)
        path = AdversarialPath(images, toward, self.steps, self.epsilon, self.mode == "official")
        result = integrate_steps(path, problem, "sum")
        if self.mode == "path":
            return path_attribution(self, result, problem, _shorter("epsilon", self.epsilon), _AGI_STALLED)
        plain = gradient_attribution(
            self, result.values, problem, path_diagnostics(result, log_probabilities(problem.logits)), _NOT_A_PATH
        )
        return dataclasses.replace(plain, trajectory=result.trajectories)


def _shorter(name: str, length: float | str) -> str:
    """Advise a fourth of the ``length`` of a step."""
    return f"lower {name}" if isinstance(length, str) else f"use {name}={length / 4:.2g}"


_AGI_STALLED = (
    "no path took a step: the classes that paths lead to are predicted already, though another one is the target"
)
_NOT_A_PATH = "mode='official' restarts every step from the input, so its steps do not add up to a path"


@dataclass(frozen=True)
class IG2(Attributor):
    r"""Integrate the score's gradient along paths towards images of other classes (Zhuo and Ge 2024).

    From the input, S steps of length ``eta`` descend :math:`\|r(z) - r(x^r)\|^2`; :math:`(z - z^+) \odot \nabla F^t(z)`
    is added up (with the gradient at the point before the step, as the authors do) and averaged over R
    references. They are drawn for each image from ``attribute(..., space=InputSpace(references=...))``, without those
    that the model predicts as the target; if there are fewer than R, all are taken. The sum of the map is the mean
    change of the score on the paths, not the difference to the references.

    r is the input of the last linear layer that runs, for a model without one the logits. ``eta`` is in input units;
    ``"auto"`` is the authors' 256 grey values at 299 x 299 x 3, kept as a change in root mean square: 256 / 255 sqrt(n
    / (3 * 299^2)) times the range for n entries. All steps have the same length: near its reference a path oscillates.
    Points are clipped to the valid range if the space has one. An image costs R (S + 2) forward passes and 2 R S VJPs;
    a call costs one forward pass per reference, and one to find the layer.

    The preset ``paper``: R = 8 and S = 201 are of the authors' notebook; eta = .015 is ours, from the sparseness in the
    FRInGe paper's tables. Its code takes R = 5, S = 50 and eta = .1.
    """

    name = "ig2"
    title = "IG²"
    source = "Zhuo and Ge 2024"
    uses_references = True
    many_paths = True
    needs_classes = True
    presets: ClassVar = {
        "paper": {"eta": 0.015},
        "released": {"references": 5, "steps": 50, "eta": 0.1},
        "quick": {"references": 2, "steps": 51, "eta": 0.06},
    }

    references: Annotated[PositiveInt, Search(1, 16, log=True), Doc("paths per image, one per reference (R)")] = 8
    steps: Annotated[PositiveInt, Search(20, 500, log=True), Doc("steps of a path (S)")] = 201
    eta: Annotated[
        Positive | Literal["auto"],
        Search(0.005, 5.0, log=True),
        Doc("length of a step; auto: the authors'", unit="input units"),
    ] = "auto"

    @property
    def planned_passes(self) -> float:
        return 3 * self.references * self.steps

    def attribute(self, problem: Problem) -> Attribution:
        pairs = [(image, number) for image, references in enumerate(self._draw(problem)) for number in references]
        images, references = zip(*pairs, strict=True)
        path = CounterfactualPath(images, references, last_linear_layer(problem), self.steps, self.eta)
        result = integrate_steps(path, problem, "mean")
        return path_attribution(self, result, problem, _shorter("eta", self.eta), _IG2_STALLED)

    def _draw(self, problem: Problem) -> list[list[int]]:
        """The numbers of each image's references."""
        references = problem.reference_images("ig2 follows paths to images of other classes")
        classes: dict[int, list[int]] = {}
        for group in problem.groups(by_score=False):
            rows = torch.tensor(group[:1], device=references.device).expand(len(references))
            classes |= dict.fromkeys(group, problem.forward(references, rows).argmax(1).tolist())
        drawn: list[list[int]] = []
        for image, (key, target) in enumerate(zip(problem.keys, problem.target.tolist(), strict=True)):
            predicted = classes[image]
            order = problem.rng.permutation(f"{self.name} references {key}", len(predicted))
            others = [reference for reference in order if predicted[reference] != target]
            if not others:
                position = image if problem.rows is None else problem.rows[image]
                raise InputError(
                    f"the model predicts the target of image {position}, class {target}, for all {len(predicted)}",
                    argument="space.references",
                    hint="pass images of other classes with attribute(..., space=InputSpace(references=...))",
                )
            drawn.append(others[: self.references])
        return drawn


_IG2_STALLED = "no path took a step: the references have the image's own representation, or its gradient is zero"


Metric = Literal["geodesic", "euclidean"]


@dataclass(frozen=True)
class GeoIGKNN(Attributor):
    r"""Integrate the gradient along the shortest path through a graph of reference images (Salek and Enguehard 2025).

    An edge is as long as the model makes it, :math:`\omega(u, v) = \|u - v\| \sum_j w_j \|\nabla F^t(z_j)\|`, so paths
    avoid steep regions; ``"euclidean"`` takes :math:`\|u - v\|` instead (the authors' "enhanced" IG). The references
    come with the call, ``attribute(..., space=InputSpace(references=...))``.

    The graph of an image has the references, the image and its baseline. The published code puts all explained inputs
    and baselines into one graph, so a map depends on the other images. It also counts a point as its
    own neighbour, so its k is one more than ours. The references' part of the graph is measured once per target
    class and call; an image adds at most ``2 neighbours`` edges. Nearest neighbours of large images mean
    little: use the method for tables and small images. The preset ``paper`` has k = 10 and 5 nodes, as the authors'
    code suggests; the FRInGe paper does not say which variant it takes, and its code takes the fitted path.
    """

    name = "geoig_knn"
    title = "Geodesic IG (neighbours)"
    source = "Salek and Enguehard 2025"
    presets: ClassVar = {"paper": {}}
    uses_references = True

    neighbours: Annotated[PositiveInt, Search(3, 30, log=True), Doc("nearest points that a point is joined to (k)")] = (
        10
    )
    order: Annotated[PositiveInt, Search(2, 20), Doc("Gauss-Legendre nodes per edge (q)")] = 5
    metric: Annotated[Metric, Doc("length that the shortest path minimises")] = "geodesic"
    baseline: Baseline = "zero"

    @property
    def planned_passes(self) -> float:
        return 64 * self.order * min(self.neighbours, 64)  # the graph of 64 references, half of its edges shared

    def attribute(self, problem: Problem) -> Attribution:
        baseline = problem.resolve_baseline(self.baseline)
        references = problem.reference_images("geoig_knn goes from one image of the data to the next")
        points = torch.cat((references, problem.inputs, baseline))
        graph = NeighbourGraph(references.flatten(1), self.neighbours)
        routes, lengths = self._routes(graph, points, problem)
        quiet = dataclasses.replace(problem, progress=None)

        def along(group: list[int]) -> Attribution:
            part = quiet.select(group)
            line = Polyline(points, torch.tensor([routes[i] for i in group], device=points.device))
            result = integrate(PiecewiseNodes(line, *self._rule()), part)
            plain = path_attribution(self, result, part, finer(self, "order"))
            pieces, ends = line.lengths(), points[line.route[:, 0]] - points[line.route[:, -1]]
            measured = {
                "path_length": pieces.sum(1),
                "straight_length": ends.flatten(1).double().norm(dim=1),
                "metric_length": lengths[group],
                "edges": torch.full((len(pieces),), pieces.shape[1], device=pieces.device),
            }
            return dataclasses.replace(plain, diagnostics={**plain.diagnostics, **measured})

        return explain_by_size(along, list(map(len, routes)), problem.progress)

    def _rule(self) -> tuple[Tensor, Tensor]:
        return quadrature_nodes("gausslegendre", self.order)

    def _routes(self, graph: NeighbourGraph, points: Tensor, problem: Problem) -> tuple[list[list[int]], Tensor]:
        """Each image's path to its baseline as rows of ``points`` (references, inputs, baselines), and its length (B,)
        in the metric."""
        batch, count = len(problem.inputs), len(points) - 2 * len(problem.inputs)
        routes, lengths = [[0]] * batch, torch.zeros(batch, dtype=torch.float64)
        for images in problem.groups(by_score=True):
            shared = self._measure(problem, images[0], points, graph.edges)
            added = [graph.attach(points[count + i].flatten(), points[count + batch + i].flatten()) for i in images]
            placed = torch.cat([_placed(e, count, i, batch) for i, e in zip(images, added, strict=True)])
            weights = self._measure(problem, images[0], points, placed).split([len(e) for e in added])
            for i, edges, weight in zip(images, added, weights, strict=True):
                route, length = graph.shortest_path(torch.cat((graph.edges, edges)), torch.cat((shared, weight)))
                routes[i], lengths[i] = _placed(torch.tensor(route), count, i, batch).tolist(), length
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


@dataclass(frozen=True)
class GeoIGSVI(Attributor):
    r"""Fit a path around the straight line to an energy of the model's gradients (Salek and Enguehard 2025).

    It is what the authors' code computes. A path has N points between input and baseline. Adam fits a Gaussian around
    their deviations :math:`\delta` from the line, by one draw per iteration, to the energy
    :math:`\sum_k w_k \|\delta_k\| - \beta \sum_k s_k`, in which :math:`s` is the norm of the gradient of the *sum* of
    all logits, whatever the target, and the prior is :math:`\delta \sim N(0, 1)`. So steep points attract the path,
    against what the method intends. Where ``force_mean`` is zero, as for the piecewise constant gradients of a ReLU
    network, it is the straight line with noise.

    The map is :math:`\sum_k g(\gamma_k) \|\gamma_{k+1} - \gamma_k\|_2`: gradients times *lengths*. It is about
    :math:`\sqrt n` too large and never complete.

    The preset ``paper``, the default: 50 points, 500 iterations, beta .1 and a rate of .01 are of the authors'
    experiment with photos; the code of the FRInGe paper takes 10 points, 10 iterations and beta 1.
    """

    name = "geoig_svi"
    title = "Geodesic IG (fitted path)"
    source = "Salek and Enguehard 2025"
    is_complete = False
    has_path = False
    presets: ClassVar = {
        "paper": {},
        "released": {"steps": 10, "iterations": 10, "beta": 1.0},
        "official": {"iterations": 1000, "learning_rate": 1e-3, "beta": 0.3},
        "quick": {"steps": 10, "iterations": 30},
    }

    steps: Annotated[Annotated[int, Ge(2)], Search(10, 100, log=True), Doc("points of the path (N)")] = 50
    iterations: Annotated[PositiveInt, Search(30, 1000, log=True), Doc("iterations of the fit (I)")] = 500
    learning_rate: Annotated[Positive, Search(1e-4, 1e-1, log=True), Doc("of Adam", unit="input units")] = 1e-2
    beta: Annotated[NotNegative, Search(1e-2, 10.0, log=True), Doc("weight of the model's part of the energy")] = 0.1
    baseline: Baseline = "zero"

    def jvp_use(self, problem: Problem) -> JVPUse:
        return "required"  # second derivatives: the gradient of a gradient's norm

    @property
    def planned_passes(self) -> float:
        return 4 * self.steps * self.iterations

    def attribute(self, problem: Problem) -> Attribution:
        baseline = problem.resolve_baseline(self.baseline)
        counter = ProgressCounter(problem.progress, len(problem.inputs) * (self.iterations + 1))
        parts: list[Attribution] = []
        quiet = dataclasses.replace(problem, progress=None)
        start, count = 0, len(problem.inputs)
        while start < count:  # images whose points together fill a batch: more would only take memory
            size = max(1, problem.model.batch_size.on(problem.inputs.device) // self.steps)
            group = list(range(start, min(start + size, count)))
            start, part = start + size, quiet.select(group)
            parts.append(self._fitted(part, baseline[group], counter))
            counter.reach((group[-1] + 1) * (self.iterations + 1))
        return Attribution.concat(parts)

    def _fitted(self, problem: Problem, baseline: Tensor, counter: ProgressCounter) -> Attribution:
        fractions, _ = quadrature_nodes("gausslegendre", self.steps)
        straight = _line(problem.inputs, baseline, fractions.flip(0))  # from the baseline on, without the ends
        energy = AuthorsEnergy(GradientNorm(problem), self.beta)
        search = AuthorsSVI(energy, self.iterations, self.learning_rate)
        relaxed = search.run(straight, problem.every_row, _draw(problem), counter.tick)
        points = authors_spacing(relaxed.points)
        lengths = Polyline.from_vertices(points).lengths()
        _, gradient = problem.logits_gradient(points.flatten(0, 1), problem.every_row.repeat_interleave(self.steps))
        weights = torch.cat((lengths, lengths[:, -1:]), 1).double()
        rows = gradient.reshape(*points.shape[:2], -1).to(weights)
        values = torch.einsum("gn,gnd->gd", weights, rows).view_as(problem.inputs)
        diagnostics = _fit_diagnostics(problem, baseline, lengths, relaxed)
        why = "gradients times lengths are no path integral: nothing says what the map's sum should be"
        return gradient_attribution(self, values, problem, diagnostics, why)


def _line(inputs: Tensor, baseline: Tensor, fractions: Tensor) -> Tensor:
    """Points ``x' + a (x - x')`` (B, N, *S) for ``fractions`` a (N,)."""
    return baseline[:, None] + batch_view(fractions.to(inputs), inputs) * (inputs - baseline)[:, None]


def _draw(problem: Problem) -> NoiseFn:
    """Noise that belongs to an image and an iteration."""
    return lambda image, iteration, like: problem.rng.normal(f"geoig_svi {problem.keys[image]} {iteration}", like)


def _fit_diagnostics(problem: Problem, baseline: Tensor, lengths: Tensor, relaxed: OptimizedPath) -> dict[str, Tensor]:
    """How the path was fitted; ``lengths`` (B, pieces) are those of its pieces."""
    return {
        "path_length": lengths.sum(1),
        "straight_length": (problem.inputs - baseline).flatten(1).double().norm(dim=1),
        "iterations": relaxed.iterations,
        "force_mean": relaxed.gradient_norm,
        "energy_start": relaxed.initial_loss,
        "energy_end": relaxed.final_loss,
    }
