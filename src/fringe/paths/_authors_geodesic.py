"""Stochastic variational inference of a path, as the published code of Geodesic IG (Salek and Enguehard 2025) does it.

Kept for comparison; :class:`fringe.paths._geodesic.PathOptimizer` is the method as its mathematics intend it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fringe.paths._geodesic import INITIAL_SCALE, Adam, AuthorsEnergy, NoiseFn, OptimizedPath

HALVE_AFTER, STOP_AFTER = 25, 100
"""Iterations without a new least loss after which the learning rate is halved, and after which the search ends."""

LOWEST_RATE, LEAST_GAIN = 1e-5, 1e-4
"""The learning rate is not halved below this; the search ends only at a step whose relative gain is below that."""


@dataclass(frozen=True)
class AuthorsSVI:
    r"""Fit ``N(mu, s^2)`` to the deviations of all points, the prior N(0, I), by one draw an iteration.

    The loss is ``E(gamma^0 + delta) + sum [delta^2 / 2 - eps^2 / 2 - ln s]`` with ``delta = mu + s eps``: the
    divergence, too, is sampled. The published code fits a batch under one loss and one learning rate; here every image
    has its own, so that its path is its own, and nothing is left over from an earlier call.
    """

    energy: AuthorsEnergy
    iterations: int
    learning_rate: float

    def run(self, straight: Tensor, rows: Tensor, draw: NoiseFn, tick: Callable[[int], None]) -> OptimizedPath:
        """The paths ``straight + mu`` (G, N, *S) for images ``rows`` (G,); ``tick`` hears of each iteration."""
        lanes = [_Lane(i, path, self.learning_rate) for i, path in enumerate(straight)]
        force = torch.zeros(len(lanes), dtype=torch.float64, device=straight.device)
        for iteration in range(self.iterations):
            active = [lane for lane in lanes if not lane.stopped]
            if not active:
                break
            going = torch.tensor([lane.place for lane in active], device=straight.device)
            deviation = torch.stack([lane.sample(draw(lane.place, iteration, lane.mean)) for lane in active])
            here = self.energy.at(straight[going] + deviation, straight[going], rows[going])
            # one transfer an iteration: the learning rate and the end depend on the loss
            for lane, energy, slope in zip(active, here.energy.tolist(), here.slope, strict=True):
                lane.step(energy, slope)
            force.index_add_(0, going, here.force)
            tick(len(active))
        start, end, taken = zip(*((lane.first, lane.loss, lane.taken) for lane in lanes), strict=True)
        count = torch.tensor(taken, device=straight.device)
        points = straight + torch.stack([lane.mean for lane in lanes])
        return OptimizedPath(points, force.new_tensor(start), force.new_tensor(end), force / count, count)


class _Lane:
    """One image's Gaussian about its straight path, its optimiser, and its patience."""

    def __init__(self, place: int, path: Tensor, learning_rate: float):
        self.place, self.rate = place, learning_rate
        self.mean, self.log_scale = torch.zeros_like(path), torch.full_like(path, math.log(INITIAL_SCALE))
        self.noise = self.mean
        self.adam = Adam(path), Adam(path)
        self.first = self.loss = math.nan
        self.least, self.since_least, self.since_halved, self.taken, self.stopped = math.inf, 0, 0, 0, False

    def sample(self, noise: Tensor) -> Tensor:
        self.noise = noise
        return self.mean + self.log_scale.exp() * noise

    def step(self, energy: float, slope: Tensor) -> None:
        """Descend from the latest sample, where the energy and its slope (N, *S) are these."""
        scaled = self.log_scale.exp() * self.noise
        deviation = self.mean + scaled
        divergence = 0.5 * (deviation.square() - self.noise.square()) - self.log_scale
        loss = energy + float(divergence.double().sum())
        slope = slope + deviation
        self.mean = self.mean - self.adam[0].step(slope, self.rate)
        self.log_scale = self.log_scale - self.adam[1].step(slope * scaled - 1.0, self.rate)
        self._watch(loss)

    def _watch(self, loss: float) -> None:
        """The published schedule; its first loss counts for the gain of the second, but not as a least one."""
        self.taken += 1
        before, self.loss = self.loss, loss
        if self.taken == 1:
            self.first = loss
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
