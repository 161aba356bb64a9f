"""Integrated Decision Gradients (Walker et al. 2024)."""

import dataclasses
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from fringe.attribution._base import Attribution, Attributor, Baseline
from fringe.attribution._diagnostics import gradient_attribution, path_diagnostics
from fringe.attribution._integrate import integrate
from fringe.attribution._terms import Evaluation, NodeTerms, WeightFn, iter_batches
from fringe.errors import require
from fringe.geometry import log_probabilities
from fringe.paths import Problem, StraightLine
from fringe.settings import Doc, PositiveInt, Search

Mode = Literal["importance", "official"]


@dataclass(frozen=True)
class IntegratedDecisionGradients(Attributor):
    """Integrated Gradients with each gradient weighted by the score's own slope along the line (Walker et al. 2024).

    .. math:: A = (x - x') \\odot \\int_0^1 \\nabla F^t(\\gamma(a)) \\, \\frac{dF^t}{da} \\, da

    The sum of the map is the integral of the squared slope, in squared units of the score, not the change of the score:
    there is no completeness identity. The slope is first estimated from the scores at the ends of N equal intervals,
    and the N gradients are taken where the slope is large. ``mode="importance"`` spaces them by a density rho
    proportional to ``|slope| + 0.05 mean |slope|``: node k is where its integral is (k + 1/2) / N, with the weight 1 /
    (N rho). It uses the exact slope, the gradient's product with x - x'. ``"official"`` is the authors' code. Its nodes
    slide towards the baseline, and its maps are smaller by N: see ``reference_nodes``.

    Costs N forward passes more than Integrated Gradients, 2 N more in the official mode.
    """

    name = "idg"
    title = "Integrated Decision Gradients"
    source = "Walker et al. 2024"
    is_complete = False
    presets: ClassVar = {"official": {"mode": "official"}}

    steps: Annotated[PositiveInt, Search(10, 500, log=True), Doc("scores on the grid, and gradients (N)")] = 50
    mode: Annotated[Mode, Doc("sampling by importance, or as the authors' code")] = "importance"
    baseline: Baseline = "zero"

    def __post_init__(self) -> None:
        super().__post_init__()
        expected = "a whole number of at least 2 in mode 'official'"
        require(self.steps > 1 or self.mode != "official", "steps", self.steps, expected)

    @property
    def planned_passes(self) -> float:
        return 4 * self.steps

    def attribute(self, problem: Problem) -> Attribution:
        baseline = problem.resolve_baseline(self.baseline)
        line, weight_fn = self._plan(problem, baseline)
        result = integrate(NodeTerms(line, problem, weight_fn))
        diagnostics = path_diagnostics(result, log_probabilities(problem.logits))
        why = "its sum is the integral of the squared slope of the score"
        plain = gradient_attribution(self, result.values, problem, diagnostics, why)
        trajectory = result.trajectories or plain.trajectory
        return dataclasses.replace(plain, endpoint_score=result.endpoint_score, trajectory=trajectory)

    def _plan(self, problem: Problem, baseline: Tensor) -> tuple[StraightLine, WeightFn]:
        """Where gradients are taken, and what each counts."""
        inputs = problem.inputs
        if self.mode == "importance":
            grid = torch.arange(self.steps, dtype=torch.float64) / self.steps
            scores = _scores(StraightLine(inputs, baseline, grid, grid), problem)
            at_input = problem.score(problem.logits).double()
            line = StraightLine(inputs, baseline, *importance_sampling_nodes(torch.cat((scores, at_input[:, None]), 1)))
            return line, lambda at: at.sample.displacement * _slope(at, inputs - baseline)
        grid = torch.linspace(0, 1, self.steps, dtype=torch.float64)
        nodes, spacing = reference_nodes(_scores(StraightLine(inputs, baseline, grid, grid), problem))
        slopes = reference_slopes(nodes, _scores(StraightLine(inputs, baseline, nodes, nodes), problem))
        line = StraightLine(inputs, baseline, nodes.flip(1), spacing.flip(1) / self.steps)
        return line, lambda at: at.sample.displacement * slopes.flip(1)[at.rows, at.nodes]


def _scores(line: StraightLine, problem: Problem) -> Tensor:
    """The target's score (B, N) at each node of each image, in float64; forward passes only."""
    scores = [
        problem.score(problem.forward(line.at(rows, nodes).x, rows), rows).double()
        for rows, nodes in iter_batches(problem, line.count)
    ]
    return torch.cat(scores).view(len(problem.inputs), line.count)


def _slope(at: Evaluation, displacement: Tensor) -> Tensor:
    """The exact slope (L,) of the score along ``displacement`` (B, *S) at nodes."""
    return (at.gradient * displacement[at.rows]).flatten(1).sum(1)


#: Share of the mean slope that every interval's density has: no part of the line is left out.
FLOOR = 0.05


def importance_sampling_nodes(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes (B, N) and weights (B, N), from the input (1) to the baseline (0), by importance sampling.

    ``scores`` (B, N + 1) are taken on the closed uniform grid of N intervals, whose density rho is proportional to
    ``|slope| + 0.05 mean |slope|``. Node k is where the density's integral is (k + 1/2) / N, its weight 1 / (N rho).
    """
    count = scores.shape[1] - 1
    slope = scores.diff(dim=1).abs()
    mean = slope.mean(1, keepdim=True)
    density = torch.where(mean > 0, (slope + FLOOR * mean) / ((1.0 + FLOOR) * mean), 1.0)
    reached = density.cumsum(1) / count
    targets = ((torch.arange(count, dtype=density.dtype, device=density.device) + 0.5) / count).repeat(len(density), 1)
    interval = torch.searchsorted(reached, targets).clamp_max(count - 1)
    density_at = density.gather(1, interval)
    before = reached.gather(1, interval) - density_at / count
    nodes = (interval + (targets - before) * count / density_at) / count
    return nodes.flip(1), (1.0 / (count * density_at)).flip(1)


def reference_nodes(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes (B, N) and spacings (B, N), ascending, as the authors' code (2024) lays them out.

    ``scores`` (B, N) are taken on the closed uniform grid, of N - 1 intervals of length d. Slopes, with a slope of 0
    before the first interval, are mapped to [0, 1] by their extremes, so the steepest descent counts as nothing; they
    share N samples in proportion, rounded down, and what is left goes to the largest shares that got none. A difference
    to what the method describes, reproduced: an interval without samples is skipped without moving on, so all later
    samples lie too near the baseline. Of equal shares the last is served first.
    """
    count = scores.shape[1]
    length = 1.0 / (count - 1)
    slope = torch.nn.functional.pad(scores.diff(dim=1) / length, (1, 0))
    low, high = slope.amin(1, keepdim=True), slope.amax(1, keepdim=True)
    share = (slope - low) / (high - low)  # NaN of a constant score, of which theirs are NaN as well
    share[:, 0] = 0.0
    total = share.sum(1, keepdim=True)
    quota = torch.where(total > 0, share / total, 0.0) * count
    return _spread(_fill(quota.floor().long(), quota), length)


def reference_slopes(nodes: Tensor, scores: Tensor) -> Tensor:
    """Slope (B, N) at each of ``nodes`` (B, N) by the difference to the one before; 0 at the first, which is lost, and
    where two nodes are one (theirs is NaN there)."""
    run, rise = nodes.diff(dim=1), scores.diff(dim=1)
    return torch.nn.functional.pad(torch.where(run == 0, 0.0, rise / run), (1, 0))


def _fill(placed: Tensor, quota: Tensor) -> Tensor:
    """One sample each for the empty slots of the largest quotas, as many as are left over: never more than are empty,
    as the quotas add up to the number of slots."""
    left = placed.shape[1] - placed.sum(1, keepdim=True)
    order = torch.where(placed > 0, -1.0, quota).sort(dim=1, stable=True).indices.flip(1)
    return torch.where(order.argsort(1) < left, 1, placed)


def _spread(placed: Tensor, length: float) -> tuple[Tensor, Tensor]:
    """The samples of the q-th slot that has any, evenly from q ``length`` on, and how far apart they lie."""
    count, ends = placed.shape[1], placed.cumsum(1)
    sample = torch.arange(count, device=placed.device).repeat(len(placed), 1)
    slot = torch.searchsorted(ends, sample, right=True)
    samples = placed.gather(1, slot)
    visited = ((placed > 0).cumsum(1) - 1).gather(1, slot)
    within = sample - (ends.gather(1, slot) - samples)
    spacing = length / samples.double()
    return visited.double() * length + within * spacing, spacing
