"""Stochastic variational inference of a path, as the published code of Geodesic IG (Salek and Enguehard 2025) does it.

For comparison; :class:`fringe.paths.PathOptimizer` is the method as its mathematics intend it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fringe.linalg import add_rows
from fringe.paths._geodesic import INITIAL_SCALE, Adam, AuthorsEnergy, NoiseFn, OptimizedPath

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
