"""Geodesic Integrated Gradients along a path that is fitted to an energy (Salek and Enguehard 2025)."""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge
from torch import Tensor

from fringe.attribution.base import Attribution, Attributor, Baseline, ProgressCounter
from fringe.attribution.diagnostics import gradient_attribution, path_attribution
from fringe.attribution.path_integral import integrate
from fringe.attribution.pieces import NodePieces
from fringe.attribution.rules import quadrature_nodes
from fringe.geometry import geometry_dtype
from fringe.paths import (
    AuthorsEnergy,
    AuthorsSVI,
    GradientNorm,
    LengthEnergy,
    NoiseFn,
    OptimizedPath,
    PathEnergy,
    PathOptimizer,
    PointEnergy,
    Problem,
    Vertices,
    authors_spacing,
    resample_by_arc_length,
    stacked,
)
from fringe.settings import Doc, NotNegative, Positive, PositiveInt, Search

Mode = Literal["repaired", "official"]
Objective = Literal["points", "length"]
NormOf = Literal["log_probability", "score"]


@dataclass(frozen=True)
class GeoIGSVI(Attributor):
    r"""Bend the straight line away from where the model is steep, and integrate the gradient along it.

    ``"repaired"`` is the method as its mathematics intend it. N points from input to baseline, both ends fixed, relax
    under ``"points"``, :math:`\sum_k \|\delta_k\| + \beta \sum_k s_k`, or ``"length"``, :math:`\sum_k (1 + \beta (s_k
    + s_{k+1}) / 2) \|\gamma_{k+1} - \gamma_k\|`, both with the prior's :math:`\|\delta\|^2 / 2`, where :math:`\delta`
    is the deviation from the straight line and :math:`s` the norm of the gradient ``norm_of`` the log-probability of
    the target, or of the explained score. The logits of a ReLU network have piecewise constant gradients, so their
    norm exerts no force at all and the line stays straight; log-probabilities bend between the kinks. The trapezoid
    rule on the path is complete, as every path integral is.

    ``"official"`` is what the authors' code computes, for comparison with numbers made by it: a map
    :math:`\sum_k g(\gamma_k) \|\gamma_{k+1} - \gamma_k\|_2`, gradients times *lengths* and therefore about
    :math:`\sqrt n` too large and never complete, along a path that steep places attract, by the gradient of the *sum*
    of all logits, whatever the target, under noise in every entry. ``objective``, ``norm_of`` and ``stochastic`` do
    not apply to it. Where ``force_mean`` is zero, its path is the straight line and noise.
    """

    name: ClassVar[str] = "geoig_svi"
    title: ClassVar[str] = "Geodesic Integrated Gradients along a path that is fitted to an energy"
    source: ClassVar[str] = "Salek and Enguehard 2025"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {"mode": "official", "iterations": 500, "learning_rate": 1e-2},
        "official": {"mode": "official", "iterations": 1000, "learning_rate": 1e-3, "beta": 0.3},
        "quick": {"mode": "official", "steps": 10, "iterations": 30, "learning_rate": 1e-2},
    }

    mode: Annotated[Mode, Doc("the method as meant, or what its code computes")] = "repaired"
    steps: Annotated[Annotated[int, Ge(2)], Search(10, 100, log=True), Doc("points of the path (N)")] = 50
    iterations: Annotated[PositiveInt, Search(30, 1000, log=True), Doc("of the fit (I)")] = 100
    learning_rate: Annotated[Positive, Search(1e-4, 1e-1, log=True), Doc("of Adam", unit="input units")] = 3e-3
    beta: Annotated[NotNegative, Search(1e-2, 10.0, log=True), Doc("weight of the model's part of the energy")] = 0.1
    objective: Annotated[Objective, Doc("what a path should be short in")] = "points"
    norm_of: Annotated[NormOf, Doc("whose gradient makes a place steep")] = "log_probability"
    stochastic: Annotated[bool, Doc("fit a Gaussian about the path instead of the most probable one")] = False
    resample: Annotated[bool, Doc("spread the points evenly along the fitted path")] = True
    baseline: Annotated[Baseline, Doc("where paths begin: zero, black, white, mean, blur, noise or uniform")] = "zero"

    def needs_jvp(self, classes: int) -> bool:
        return True  # second derivatives: the gradient of a gradient's norm

    @property
    def complete(self) -> bool:
        return self.mode == "repaired"

    @property
    def planned_passes(self) -> float:
        return 4 * self.steps * self.iterations

    def attribute(self, problem: Problem) -> Attribution:
        baseline = problem.resolve_baseline(self.baseline)
        counter = ProgressCounter(problem.progress, len(problem.inputs) * (self.iterations + 1))
        parts: list[Attribution] = []
        quiet = dataclasses.replace(problem, progress=None)
        for group in self._groups(problem):
            part = quiet.select(group)
            fit = self._repaired if self.mode == "repaired" else self._official
            parts.append(fit(part, baseline[group], counter))
            counter.reach((group[-1] + 1) * (self.iterations + 1))
        return Attribution.concat(parts)

    def _groups(self, problem: Problem) -> Iterator[list[int]]:
        """Images whose points together fill a batch: more would only take memory, several tensors a point."""
        start = 0
        while start < len(problem.inputs):
            size = max(1, problem.model.batch_size.on(problem.inputs.device) // self.steps)
            yield list(range(start, min(start + size, len(problem.inputs))))
            start += size

    def _repaired(self, problem: Problem, baseline: Tensor, counter: ProgressCounter) -> Attribution:
        fractions, _ = quadrature_nodes("trapezoid", self.steps)
        straight = _line(problem.inputs, baseline, fractions)
        relaxation = PathOptimizer(self._energy(problem), self.iterations, self.learning_rate, self.stochastic)
        relaxed = relaxation.run(straight, problem.every_row, _draw(problem), counter.tick)
        moves = (problem.inputs != baseline).flatten(1).any(1)  # where there is no way to go, none is gone
        points = torch.where(moves.view(-1, *[1] * problem.inputs.dim()), relaxed.points, straight)
        line = stacked(resample_by_arc_length(points) if self.resample else points)
        result = integrate(NodePieces(Vertices(line), problem))
        plain = path_attribution(self, result, problem, "use more steps")
        own = _report(problem, baseline, line.lengths(), relaxed)
        return dataclasses.replace(plain, diagnostics={**plain.diagnostics, **own})

    def _energy(self, problem: Problem) -> PathEnergy:
        kind = PointEnergy if self.objective == "points" else LengthEnergy
        return kind(GradientNorm(problem, self.norm_of), self.beta)

    def _official(self, problem: Problem, baseline: Tensor, counter: ProgressCounter) -> Attribution:
        fractions, _ = quadrature_nodes("gausslegendre", self.steps)
        straight = _line(problem.inputs, baseline, fractions.flip(0))  # from the baseline on, without the ends
        energy = AuthorsEnergy(GradientNorm(problem, "outputs", last_axis=True), self.beta)
        search = AuthorsSVI(energy, self.iterations, self.learning_rate)
        relaxed = search.run(straight, problem.every_row, _draw(problem), counter.tick)
        points = authors_spacing(relaxed.points) if self.resample else relaxed.points
        lengths = stacked(points).lengths()
        _, gradient = problem.logits_gradient(points.flatten(0, 1), problem.every_row.repeat_interleave(self.steps))
        weights = torch.cat((lengths, lengths[:, -1:]), 1).to(geometry_dtype(points.device))
        rows = gradient.reshape(*points.shape[:2], -1).to(weights)
        values = torch.einsum("gn,gnd->gd", weights, rows).view_as(problem.inputs)
        diagnostics = _report(problem, baseline, lengths, relaxed)
        why = "gradients times lengths are no path integral: nothing says what the map's sum should be"
        return gradient_attribution(self, values, problem, diagnostics, why)


def _line(inputs: Tensor, baseline: Tensor, fractions: Tensor) -> Tensor:
    """Points ``x' + a (x - x')`` (B, N, *S) for ``fractions`` a (N,)."""
    a = fractions.to(inputs).view(1, -1, *[1] * (inputs.dim() - 1))
    return baseline[:, None] + a * (inputs - baseline)[:, None]


def _draw(problem: Problem) -> NoiseFn:
    """Noise that belongs to an image and an iteration."""
    return lambda place, iteration, like: problem.rng.normal(f"geoig_svi {problem.keys[place]} {iteration}", like)


def _report(problem: Problem, baseline: Tensor, lengths: Tensor, relaxed: OptimizedPath) -> dict[str, Tensor]:
    """How the path was found, and the ``lengths`` (B, pieces) of what it became."""
    return {
        "path_length": lengths.sum(1),
        "straight_length": (problem.inputs - baseline).flatten(1).double().norm(dim=1),
        "iterations": relaxed.taken,
        "force_mean": relaxed.force,
        "energy_start": relaxed.start,
        "energy_end": relaxed.end,
    }
