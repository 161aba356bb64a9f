r"""Paths that avoid points where the model's gradient is large: fitted to an energy, or on a graph of references.

The length of an edge of the graph is Euclidean, or in the metric of the model's gradient:

.. math:: \omega(u, v) = \|u - v\| \sum_j w_j \|\nabla F^t(z_j)\|, \qquad z_j = v + a_j (u - v)
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fringe.errors import InputError, NotDifferentiableError, first_line, install_hint, is_machine_error
from fringe.linalg import add_rows, batch_view
from fringe.paths._problem import Problem

#: Standard normal numbers from the image's index in the group, the iteration, and a tensor of their shape.
NoiseFn = Callable[[int, int, Tensor], Tensor]
#: Standard deviation that a fitted Gaussian starts from, in input units.
INITIAL_SCALE = 0.1
#: The published code's weight on deviations of the points at either end, and their share of the path.
END_PENALTY, END_SHARE = 100.0, 0.1


@dataclass(frozen=True)
class GradientNorm:
    r"""The norm of the gradient of the sum f of all logits at a point, and the gradient of this norm.

    .. math:: s(z) = \sum_i \|(\nabla f(z))_i\|_2, \qquad
              \nabla s = \nabla^2 f \; \frac{(\nabla f)_i}{\|(\nabla f)_i\|_2}

    over the rows i of the last axis, as in the published code. Where the gradient is zero, so is that of its norm. A
    network of ReLUs has piecewise constant gradients of its logits: ``nabla s`` is then zero.

    Attributes:
        problem: The problem, whose model is evaluated.
    """

    problem: Problem

    def __call__(self, x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Compute s (L,) and its gradient (L, *S) at points ``x`` (L, *S) of the images ``rows`` (L,), in chunks.

        A point costs a forward pass, a VJP, and the equivalent of a JVP and a VJP for the second derivative. Raises
        NotDifferentiableError if the model has no second derivatives.
        """
        model = self.problem.model
        if model.jvp_mode != "double_backward":  # detected by verify; autograd may also omit the terms silently
            raise _not_differentiable("its backward pass cannot be differentiated")
        with model.session(x.device):
            return model.batch_size.map(self._evaluate, x.detach(), rows)

    def _evaluate(self, x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        model, passes = self.problem.model, self.problem.model.passes
        x = x.clone().requires_grad_(True)
        logits = model.evaluate(x, self.problem.forward_args.select(rows), tangents=True)
        passes.vjp += len(x)
        with model.backward(x.device):
            (gradient,) = torch.autograd.grad(logits.sum(), x, create_graph=True, materialize_grads=True)
        norms = torch.linalg.vector_norm(gradient, dim=-1)
        norm = norms.reshape(len(x), -1).sum(1)
        if not norm.requires_grad:  # an affine model: its gradient does not depend on x
            return norm.detach(), torch.zeros_like(gradient)
        passes.jvp += len(x)
        passes.vjp += len(x)
        try:
            with model.backward(x.device):
                (gradient_of_norm,) = torch.autograd.grad(norm.sum(), x, materialize_grads=True)
        except RuntimeError as error:
            if is_machine_error(error):
                raise
            raise _not_differentiable(first_line(error)) from error
        return norm.detach(), gradient_of_norm


def _not_differentiable(reason: str) -> NotDifferentiableError:
    return NotDifferentiableError(
        f"it has no second derivatives ({reason}), and a path that depends on the norm of its gradient needs them",
        argument="model",
        hint="use method 'geoig_knn', which does not",
    )


# -- the energy of a path ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _EnergyAndGradient:
    """The ``energy`` (G,) of paths in float64, its ``gradient`` (G, N, *S), and ``model_gradient_norm`` (G,): the mean
    over points of the norm of the model's part of the gradient."""

    energy: Tensor
    gradient: Tensor
    model_gradient_norm: Tensor


@dataclass(frozen=True)
class AuthorsEnergy:
    r"""The published code's: ``sum_k |delta_k| - beta sum_k s(gamma_k) + 100 (|delta_k| over both ends' tenths)``.

    Its norms are sums over the last axis, in the distance as in ``gradient_norm``; and its sign makes large gradients
    attractive, against what its documentation means. At ``beta`` 0 the model is not evaluated.
    """

    gradient_norm: GradientNorm
    beta: float

    def at(self, points: Tensor, initial: Tensor, rows: Tensor) -> _EnergyAndGradient:
        """Evaluate at ``points`` near ``initial`` (G, N, *S), for images ``rows`` (G,)."""
        values, model_gradient = self._weighted(points, rows)
        deviation = points - initial
        distance = deviation.norm(dim=-1, keepdim=True)
        count = points.shape[1]
        ends = max(1, int(END_SHARE * count))
        weight = torch.ones(count, dtype=points.dtype, device=points.device)
        weight[:ends] += END_PENALTY
        weight[count - ends :] += END_PENALTY  # a path so short that its ends overlap pays twice
        energy = (weight.double() * distance.flatten(2).double().sum(2)).sum(1) - values.sum(1)
        gradient = batch_view(weight[None], points) * _unit(deviation, distance) - model_gradient
        return _EnergyAndGradient(energy, gradient, _mean_norm(model_gradient))

    def _weighted(self, points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """``beta s`` (G, N) in float64 and ``beta grad s`` (G, N, *S)."""
        if self.beta == 0:
            return torch.zeros(points.shape[:2], dtype=torch.float64, device=points.device), torch.zeros_like(points)
        values, gradients = self.gradient_norm(points.flatten(0, 1), rows.repeat_interleave(points.shape[1]))
        return self.beta * values.view(points.shape[:2]).double(), self.beta * gradients.view(points.shape)


def _unit(vector: Tensor, norm: Tensor) -> Tensor:
    """``vector / norm``, the gradient of the norm; zero where the norm is."""
    return torch.where(norm > 0, vector / torch.where(norm > 0, norm, 1.0), 0.0)


def _mean_norm(gradient: Tensor) -> Tensor:
    return gradient.flatten(2).double().norm(dim=2).mean(1)


# -- minimisation -----------------------------------------------------------------------------------------------------


class Adam:
    """Steps of Adam (Kingma and Ba 2015) for one tensor, with its usual constants."""

    def __init__(self, like: Tensor):
        self.first, self.second, self.count = torch.zeros_like(like), torch.zeros_like(like), 0

    def step(self, gradient: Tensor, learning_rate: float) -> Tensor:
        """Update the moments by ``gradient``, and return what to subtract."""
        self.count += 1
        self.first.lerp_(gradient, 0.1)
        self.second.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        root = (self.second / (1 - 0.999**self.count)).sqrt_().add_(1e-8)
        return self.first / root * (learning_rate / (1 - 0.9**self.count))


@dataclass(frozen=True)
class OptimizedPath:
    """Optimised paths of G images.

    Attributes:
        points: The paths (G, N, *S).
        initial_loss: What was minimised, before the first step (G,).
        final_loss: The same at the end (G,).
        gradient_norm: Mean over iterations and points of the norm of the model's part of the gradient (G,).
        iterations: Iterations done (G,).
    """

    points: Tensor
    initial_loss: Tensor
    final_loss: Tensor
    gradient_norm: Tensor
    iterations: Tensor


# -- the published code -----------------------------------------------------------------------------------------------


#: Iterations without a new least loss after which the learning rate is halved, and after which the search ends.
HALVE_AFTER, STOP_AFTER = 25, 100
#: The learning rate is not halved below this; the search ends only at a step whose relative gain is below that.
LOWEST_RATE, LEAST_GAIN = 1e-5, 1e-4


@dataclass(frozen=True)
class AuthorsSVI:
    r"""Fit ``N(mu, s^2)`` to the deviations of all points, the prior N(0, I), by one draw per iteration.

    The loss is ``E(gamma^0 + delta) + sum [delta^2 / 2 - eps^2 / 2 - ln s]`` with ``delta = mu + s eps``: the
    divergence, too, is sampled. The published code fits a batch under one loss and one learning rate, and keeps state
    between calls; here every image has its own, so that its path does not depend on the others.
    """

    energy: AuthorsEnergy
    iterations: int
    learning_rate: float

    def run(self, initial: Tensor, rows: Tensor, noise: NoiseFn, progress: Callable[[int], None]) -> OptimizedPath:
        """Fit the paths ``initial + mu`` (G, N, *S) for images ``rows`` (G,).

        ``progress`` is called with the number of active images after each iteration.
        """
        fits = [_Fit(i, path, self.learning_rate) for i, path in enumerate(initial)]
        norm = torch.zeros(len(fits), dtype=torch.float64, device=initial.device)
        for iteration in range(self.iterations):
            active = [fit for fit in fits if not fit.stopped]
            if not active:
                break
            index = torch.tensor([fit.index for fit in active], device=initial.device)
            deviation = torch.stack([fit.sample(noise(fit.index, iteration, fit.mean)) for fit in active])
            current = self.energy.at(initial[index] + deviation, initial[index], rows[index])
            # one transfer per iteration: the learning rate and the end depend on the loss
            for fit, energy, gradient in zip(active, current.energy.tolist(), current.gradient, strict=True):
                fit.step(energy, gradient)
            add_rows(norm, index, current.model_gradient_norm)
            progress(len(active))
        first, last, steps = zip(*((fit.first_loss, fit.loss, fit.steps_taken) for fit in fits), strict=True)
        count = torch.tensor(steps, device=initial.device)
        points = initial + torch.stack([fit.mean for fit in fits])
        return OptimizedPath(points, norm.new_tensor(first), norm.new_tensor(last), norm / count, count)


class _Fit:
    """One image's Gaussian around its initial path, with its optimiser and its learning rate schedule."""

    def __init__(self, index: int, path: Tensor, learning_rate: float):
        self.index, self.rate = index, learning_rate
        self.mean, self.log_scale = torch.zeros_like(path), torch.full_like(path, math.log(INITIAL_SCALE))
        self.noise = self.mean
        self.adam = Adam(path), Adam(path)
        self.first_loss = self.loss = math.nan
        self.least, self.since_least, self.since_halved, self.steps_taken, self.stopped = math.inf, 0, 0, 0, False

    def sample(self, noise: Tensor) -> Tensor:
        """Draw a deviation (N, *S) from standard normal ``noise``."""
        self.noise = noise
        return self.mean + self.log_scale.exp() * noise

    def step(self, energy: float, gradient: Tensor) -> None:
        """Descend from the latest sample, where the ``energy`` has this ``gradient`` (N, *S)."""
        scaled = self.log_scale.exp() * self.noise
        deviation = self.mean + scaled
        divergence = 0.5 * (deviation.square() - self.noise.square()) - self.log_scale
        loss = energy + float(divergence.double().sum())
        gradient = gradient + deviation
        self.mean = self.mean - self.adam[0].step(gradient, self.rate)
        self.log_scale = self.log_scale - self.adam[1].step(gradient * scaled - 1.0, self.rate)
        self._update_schedule(loss)

    def _update_schedule(self, loss: float) -> None:
        """The published schedule; the first loss counts for the gain of the second, but not as a least one."""
        self.steps_taken += 1
        before, self.loss = self.loss, loss
        if self.steps_taken == 1:
            self.first_loss = loss
            return
        if loss < self.least:
            self.least, self.since_least, self.since_halved = loss, 0, 0
            return
        self.since_least += 1
        self.since_halved += 1
        if self.since_halved >= HALVE_AFTER and self.rate > LOWEST_RATE:
            self.rate = max(self.rate / 2, LOWEST_RATE)
            self.since_halved = 0
            self.adam = Adam(self.mean), Adam(self.mean)
        gain = (before - loss) / before if before else 0.0
        self.stopped = self.since_least >= STOP_AFTER and gain < LEAST_GAIN


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
