"""Geometrically guided Integrated Gradients (Rahman, Lewis and Plis 2022)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from fringe.attribution._base import Attribution, Attributor, Baseline, ProgressCounter
from fringe.attribution._diagnostics import gradient_attribution
from fringe.attribution._quadrature import quadrature_nodes
from fringe.attribution._terms import iter_batches
from fringe.linalg import add_rows
from fringe.paths import Problem, StraightLine
from fringe.settings import Doc, Positive, PositiveInt, Search

Aggregate = Literal["max", "trapezoid", "mean"]
InputFactor = Literal["none", "input", "difference"]


@dataclass(frozen=True)
class GGIG(Attributor):
    """Take the largest gradients on climbs of the score from points of the straight line (Rahman et al. 2022).

    From each of M + 1 points ``z_i = x' + (i / M) (x - x')``, I steps ``z <- z + lr g(z)`` increase the score. ``G_i``
    is the largest signed gradient of these steps, entry by entry. The map is the maximum, the trapezoid or the mean
    of ``G_i`` over i, times 1, ``x`` (``"input"``, as in the authors' code) or ``x - x'`` (``"difference"``).

    It has no completeness identity: a signed maximum keeps the evidence for the target and drops the evidence against
    it. With one iteration, the trapezoid and the difference it equals Integrated Gradients; use that method for a
    verdict by completeness. Steps are in input units, so lr depends on the scale of the input.

    The preset ``paper``: M = 50 is of the authors' code, I = 100 of its script for ImageNet; lr = .01 and the maximum
    are ours, from the maps' norms in the FRInGe paper's tables. Its code takes I = 20 and lr = 1e-4.
    """

    name = "ggig"
    title = "Geometrically guided Integrated Gradients"
    source = "Rahman, Lewis and Plis 2022"
    is_complete = False
    has_path = False
    presets: ClassVar = {
        "paper": {},
        "released": {"iterations": 20, "learning_rate": 1e-4},
        "scaled": {"learning_rate": 1e-4, "aggregate": "trapezoid", "input_factor": "input"},
        "quick": {"intervals": 10, "iterations": 20},
    }

    intervals: Annotated[PositiveInt, Search(5, 100, log=True), Doc("parts of the line (M): M + 1 climbs")] = 50
    iterations: Annotated[PositiveInt, Search(1, 200, log=True), Doc("gradients per climb (I)")] = 100
    learning_rate: Annotated[Positive, Search(1e-4, 1.0, log=True), Doc("step of the climb per unit of gradient")] = (
        1e-2
    )
    aggregate: Annotated[Aggregate, Doc("how points of the line are combined")] = "max"
    input_factor: Annotated[InputFactor, Doc("what the map is multiplied by")] = "none"
    baseline: Baseline = "zero"

    @property
    def planned_passes(self) -> float:
        return 2 * (self.intervals + 1) * self.iterations

    def attribute(self, problem: Problem) -> Attribution:
        baseline = problem.resolve_baseline(self.baseline)
        values, climbed = self._maps(problem, baseline)
        if self.input_factor != "none":
            values = values * (problem.inputs if self.input_factor == "input" else problem.inputs - baseline)
        steps = torch.full((len(values),), self.iterations, device=values.device)
        diagnostics = {"steps": steps, "climb_mean": climbed}
        why = "gradient maxima along climbs have no completeness identity"
        return gradient_attribution(self, values, problem, diagnostics, why)

    def _maps(self, problem: Problem, baseline: Tensor) -> tuple[Tensor, Tensor]:
        """Aggregated gradients (B, *S), and how far the climbs went on average (B,), in input units.

        A batch of climbs is finished before the next begins, so memory grows neither with M nor with I.
        """
        rule = "trapezoid" if self.aggregate == "trapezoid" else "closed_mean"
        line = StraightLine(problem.inputs, baseline, *quadrature_nodes(rule, self.intervals + 1))
        batch, device = len(problem.inputs), problem.inputs.device
        start = -torch.inf if self.aggregate == "max" else 0.0
        values = torch.full(problem.inputs.shape, start, dtype=torch.float64, device=device)
        climbed = torch.zeros(batch, dtype=torch.float64, device=device)
        counter = ProgressCounter(problem.progress, batch * line.count * self.iterations)
        for rows, nodes in iter_batches(problem, line.count):
            begin = line.at(rows, nodes).x
            largest, end = self._climb(problem, begin, rows, counter)
            add_rows(climbed, rows, (end - begin).flatten(1).double().norm(dim=1) / line.count)
            self._aggregate(values, rows, largest, line.weights[rows, nodes])
        return values, climbed

    def _aggregate(self, values: Tensor, rows: Tensor, largest: Tensor, weights: Tensor) -> None:
        """Add to ``values`` (B, *S) the largest gradients of points of images ``rows`` (L,)."""
        flat = largest.flatten(1).to(values.dtype)
        if self.aggregate == "max":
            values.view(len(values), -1).scatter_reduce_(0, rows[:, None].expand_as(flat), flat, "amax")
        else:
            add_rows(values.view(len(values), -1), rows, flat * weights.to(flat.dtype)[:, None])

    def _climb(self, problem: Problem, x: Tensor, rows: Tensor, counter: ProgressCounter) -> tuple[Tensor, Tensor]:
        """The largest gradient (L, *S) met from ``x`` (L, *S) on, and the last point whose gradient was taken."""
        largest = torch.full_like(x, -torch.inf)
        for iteration in range(self.iterations):
            _, gradient = problem.logits_gradient(x, rows)
            largest = torch.maximum(largest, gradient)
            if iteration + 1 < self.iterations:
                x = x + self.learning_rate * gradient
            counter.tick(len(x))
        return largest, x
