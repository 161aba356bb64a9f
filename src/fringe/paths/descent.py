r"""Let a path relax: minimise its energy, or fit a Gaussian about it, by gradient descent."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fringe.paths.energy import Landscape, PathEnergy

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
