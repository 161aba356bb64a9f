r"""Energies of discrete paths that a model makes costly where it is steep, with their gradients.

A path is G rows of N points :math:`\gamma_k` (G, N, *S) about straight lines :math:`\gamma^0_k`; :math:`\delta_k =
\gamma_k - \gamma^0_k`, and :math:`s` is the :class:`GradientNorm` of the model.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fringe._linear_layers import LinearLayers
from fringe.classifier import Score
from fringe.errors import NotDifferentiableError
from fringe.paths._problem import Problem

Scalar = Literal["score", "log_probability", "outputs"]
"""f: the explained score of the target, its log-probability, or the sum of all logits."""


@dataclass(frozen=True)
class GradientNorm:
    """``s(z)`` of the scalar ``of``, and its gradient by a second backward pass.

    ``last_axis=True`` sums the norms of the rows of the last axis instead of taking one norm over the input. Where the
    gradient is zero, so is that of its norm. A network of ReLUs has piecewise constant gradients of its logits:
    there s pushes nowhere for ``"outputs"`` and the logit, while ``log p`` bends between the kinks, too.
    """

    problem: Problem
    of: Scalar
    last_axis: bool = False

    def __call__(self, x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """s (L,) and its gradient (L, *S) at points ``x`` (L, *S) of images ``rows`` (L,), in chunks.

        A point costs a forward pass, a VJP, and for the gradient of the gradient a JVP and a VJP's worth. Raises
        NotDifferentiableError for a model without second derivatives.
        """
        model = self.problem.model
        if model.jvp_mode == "forward":  # found by verify; autograd may also leave the terms out silently
            raise _refusal("its backward pass cannot be differentiated")
        with model.session(x.device):
            return model.batch_size.map(self._evaluate, x.detach(), rows)

    def _evaluate(self, x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        model, passes = self.problem.model, self.problem.model.passes
        x = x.clone().requires_grad_(True)
        with LinearLayers():
            value = self._scalar(model.evaluate(x, self.problem.forward_args.select(rows)), rows)
        passes.vjp += len(x)
        (gradient,) = torch.autograd.grad(value.sum(), x, create_graph=True, materialize_grads=True)
        norms = torch.linalg.vector_norm(gradient if self.last_axis else gradient.flatten(1), dim=-1)
        norm = norms.reshape(len(x), -1).sum(1)
        if not norm.requires_grad:  # an affine model: its gradient does not know x
            return norm.detach(), torch.zeros_like(gradient)
        passes.jvp += len(x)
        passes.vjp += len(x)
        try:
            (push,) = torch.autograd.grad(norm.sum(), x, materialize_grads=True)
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            raise _refusal(str(error).splitlines()[0]) from error
        return norm.detach(), push

    def _scalar(self, logits: Tensor, rows: Tensor) -> Tensor:
        if self.of == "outputs":
            return logits.sum(1)
        kind: Score | None = "log_probability" if self.of == "log_probability" else None
        return self.problem.score(logits, rows, kind)


def _refusal(reason: str) -> NotDifferentiableError:
    return NotDifferentiableError(
        f"model: it has no second derivatives ({reason}), and a path that follows its steepness needs them; use method "
        "'geoig_knn', which does not"
    )


END_PENALTY, END_SHARE = 100.0, 0.1
"""The published code's weight on deviations of the points at either end, and their share of the path."""


@dataclass(frozen=True)
class Landscape:
    """Where a path stands: its ``energy`` (G,) in float64, the gradient ``slope`` (G, N, *S) of it, and ``force`` (G,),
    how hard the model pushes: the mean over points of the norm of the model's part of the slope."""

    energy: Tensor
    slope: Tensor
    force: Tensor


class PathEnergy(ABC):
    """An energy with weight ``beta`` on the model's part; without it the model is not asked."""

    steepness: GradientNorm
    beta: float

    @abstractmethod
    def at(self, points: Tensor, straight: Tensor, rows: Tensor) -> Landscape:
        """The landscape at ``points`` about ``straight`` (G, N, *S), for images ``rows`` (G,)."""

    def weighted(self, points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """``beta s`` (G, N) in float64 and ``beta grad s`` (G, N, *S)."""
        if self.beta == 0:
            return torch.zeros(points.shape[:2], dtype=torch.float64, device=points.device), torch.zeros_like(points)
        values, slopes = self.steepness(points.flatten(0, 1), rows.repeat_interleave(points.shape[1]))
        return self.beta * values.view(points.shape[:2]).double(), self.beta * slopes.view(points.shape)


@dataclass(frozen=True)
class PointEnergy(PathEnergy):
    r"""``sum_k |delta_k| + beta sum_k s(gamma_k)``: a sum over points, without a term between neighbours."""

    steepness: GradientNorm
    beta: float

    def at(self, points: Tensor, straight: Tensor, rows: Tensor) -> Landscape:
        steep, push = self.weighted(points, rows)
        deviation = points - straight
        distance = deviation.flatten(2).norm(dim=2)
        energy = distance.double().sum(1) + steep.sum(1)
        return Landscape(energy, push + _unit(deviation, _like(distance, deviation)), _force(push))


@dataclass(frozen=True)
class LengthEnergy(PathEnergy):
    r"""``sum_k (1 + beta (s_k + s_{k+1}) / 2) |gamma_{k+1} - gamma_k|``: the length of the path in the metric that
    stretches space by ``1 + beta s``. Large beta is the metric of the neighbour graph."""

    steepness: GradientNorm
    beta: float

    def at(self, points: Tensor, straight: Tensor, rows: Tensor) -> Landscape:
        steep, push = self.weighted(points, rows)
        step = points[:, 1:] - points[:, :-1]
        length = step.flatten(2).norm(dim=2)
        stretch = 1.0 + 0.5 * (steep[:, 1:] + steep[:, :-1])
        near = torch.zeros_like(steep)
        near[:, 1:] += 0.5 * length
        near[:, :-1] += 0.5 * length
        push = push * _like(near, points)
        pull = _like(stretch, points) * _unit(step, _like(length, points))
        slope = push.clone()
        slope[:, 1:] += pull
        slope[:, :-1] -= pull
        return Landscape((stretch * length.double()).sum(1), slope, _force(push))


@dataclass(frozen=True)
class AuthorsEnergy(PathEnergy):
    r"""The published code's: ``sum_k |delta_k| - beta sum_k s(gamma_k) + 100 (|delta_k| over both ends' tenths)``.

    Its norms are sums over the last axis, in the distance as in ``steepness``; and its sign makes steep places
    attractive, against what its documentation means.
    """

    steepness: GradientNorm
    beta: float

    def at(self, points: Tensor, straight: Tensor, rows: Tensor) -> Landscape:
        steep, push = self.weighted(points, rows)
        deviation = points - straight
        distance = deviation.norm(dim=-1, keepdim=True)
        count = points.shape[1]
        ends = max(1, int(END_SHARE * count))
        weight = torch.ones(count, dtype=points.dtype, device=points.device)
        weight[:ends] += END_PENALTY
        weight[count - ends :] += END_PENALTY  # a path so short that its ends overlap pays twice
        energy = (weight.double() * distance.flatten(2).double().sum(2)).sum(1) - steep.sum(1)
        return Landscape(energy, _like(weight[None], points) * _unit(deviation, distance) - push, _force(push))


def _unit(vector: Tensor, norm: Tensor) -> Tensor:
    """``vector / norm``, the gradient of the norm; zero where the norm is."""
    return torch.where(norm > 0, vector / torch.where(norm > 0, norm, 1.0), 0.0)


def _like(values: Tensor, points: Tensor) -> Tensor:
    """``values`` (G, N) for broadcasting against ``points`` (G, N, *S), in its dtype."""
    return values.to(points.dtype).view(*values.shape, *[1] * (points.dim() - 2))


def _force(push: Tensor) -> Tensor:
    return push.flatten(2).double().norm(dim=2).mean(1)


NoiseFn = Callable[[int, int, Tensor], Tensor]
"""Standard normal numbers from the image's place in the group, the iteration, and a tensor of their shape."""

INITIAL_SCALE = 0.1
"""Standard deviation that a fitted Gaussian starts from, in input units."""


class Adam:
    """Steps of Adam (Kingma and Ba 2015) for one tensor, with its usual constants."""

    def __init__(self, like: Tensor):
        self.first, self.second, self.count = torch.zeros_like(like), torch.zeros_like(like), 0

    def step(self, gradient: Tensor, learning_rate: float) -> Tensor:
        """What to subtract."""
        self.count += 1
        self.first.lerp_(gradient, 0.1)
        self.second.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        root = (self.second / (1 - 0.999**self.count)).sqrt_().add_(1e-8)
        return self.first / root * (learning_rate / (1 - 0.9**self.count))


@dataclass(frozen=True)
class OptimizedPath:
    """Paths ``points`` (G, N, *S) after relaxing, what was minimised at the ``start`` and at the ``end`` (G,), the mean
    ``force`` (G,) of the model on the way, and the iterations ``taken`` (G,)."""

    points: Tensor
    start: Tensor
    end: Tensor
    force: Tensor
    taken: Tensor


@dataclass(frozen=True)
class PathOptimizer:
    r"""Minimise ``E(gamma^0 + delta) + |delta|^2 / 2`` over the points between the ends, which stay.

    That is the most probable path under the prior ``delta ~ N(0, I)``. With ``stochastic`` it is instead the mean of
    the Gaussian ``N(mu, s^2)`` that is nearest to the posterior: minimise :math:`\mathbb E\,E(\gamma^0 + \mu + s
    \varepsilon) + \sum [\tfrac12 (s^2 + \mu^2 - 1) - \ln s]` with one draw an iteration. The learning rate falls
    linearly to nothing, and without noise the best path met is kept: a norm has a kink at zero, around which Adam
    would dance for ever.
    """

    energy: PathEnergy
    iterations: int
    learning_rate: float
    stochastic: bool

    def run(self, straight: Tensor, rows: Tensor, draw: NoiseFn, tick: Callable[[int], None]) -> OptimizedPath:
        """Relax the paths ``straight`` (G, N, *S) of images ``rows`` (G,); ``tick`` hears of each iteration."""
        if self.energy.beta == 0 or straight.shape[1] < 3:  # the straight path is the least
            tick(len(straight) * self.iterations)
            return _unmoved(straight)
        return self._fit(straight, rows, draw, tick) if self.stochastic else self._minimise(straight, rows, tick)

    def _minimise(self, straight: Tensor, rows: Tensor, tick: Callable[[int], None]) -> OptimizedPath:
        deviation = torch.zeros_like(straight[:, 1:-1])
        adam, best = Adam(deviation), deviation.clone()
        least = torch.full(straight.shape[:1], torch.inf, dtype=torch.float64, device=straight.device)
        start, force = least, torch.zeros_like(least)
        for iteration in range(self.iterations):
            here = self._at(straight, deviation, rows)
            total = here.energy + 0.5 * _squares(deviation)
            start = total if iteration == 0 else start
            better = total < least
            least, force = torch.where(better, total, least), force + here.force / self.iterations
            best[better] = deviation[better]
            deviation = deviation - adam.step(here.slope[:, 1:-1] + deviation, self._rate(iteration))
            tick(len(straight))
        return OptimizedPath(_moved(straight, best), start, least, force, torch.full_like(force, self.iterations))

    def _fit(self, straight: Tensor, rows: Tensor, draw: NoiseFn, tick: Callable[[int], None]) -> OptimizedPath:
        mean = torch.zeros_like(straight[:, 1:-1])
        log_scale = torch.full_like(mean, math.log(INITIAL_SCALE))
        of_mean, of_scale = Adam(mean), Adam(mean)
        start = end = force = torch.zeros(len(straight), dtype=torch.float64, device=straight.device)
        for iteration in range(self.iterations):
            noise = torch.stack([draw(i, iteration, like) for i, like in enumerate(mean)])
            scale = log_scale.exp()
            here = self._at(straight, mean + scale * noise, rows)
            divergence = 0.5 * (_squares(mean) + _squares(scale)) - (log_scale + 0.5).flatten(1).double().sum(1)
            end, force = here.energy + divergence, force + here.force / self.iterations
            start = end if iteration == 0 else start
            slope = here.slope[:, 1:-1]
            rate = self._rate(iteration)
            mean = mean - of_mean.step(slope + mean, rate)
            log_scale = log_scale - of_scale.step(slope * noise * scale + scale.square() - 1.0, rate)
            tick(len(straight))
        return OptimizedPath(_moved(straight, mean), start, end, force, torch.full_like(force, self.iterations))

    def _at(self, straight: Tensor, deviation: Tensor, rows: Tensor) -> Landscape:
        return self.energy.at(_moved(straight, deviation), straight, rows)

    def _rate(self, iteration: int) -> float:
        return self.learning_rate * (1 - iteration / self.iterations)


def _unmoved(straight: Tensor) -> OptimizedPath:
    zero = torch.zeros(len(straight), dtype=torch.float64, device=straight.device)
    return OptimizedPath(straight, zero, zero, zero, zero)


def _moved(straight: Tensor, deviation: Tensor) -> Tensor:
    """The path whose points between the ends are moved by ``deviation`` (G, N - 2, *S)."""
    return torch.cat((straight[:, :1], straight[:, 1:-1] + deviation, straight[:, -1:]), 1)


def _squares(values: Tensor) -> Tensor:
    """Sum of squares of each row (G,), in float64."""
    return values.flatten(1).double().square().sum(1)
