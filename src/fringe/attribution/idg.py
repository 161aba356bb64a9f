"""Integrated Decision Gradients (Walker et al. 2024)."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from fringe.attribution.base import Attribution, Attributor, Baseline
from fringe.attribution.decision_nodes import importance_nodes, published_nodes, published_slopes
from fringe.attribution.diagnostics import gradient_attribution, path_diagnostics
from fringe.attribution.path_integral import integrate
from fringe.attribution.pieces import Evaluation, NodePieces, WeightFn, iter_batches
from fringe.errors import InputError
from fringe.paths import Problem, StraightLine
from fringe.settings import Doc, PositiveInt, Search

Mode = Literal["importance", "official"]


@dataclass(frozen=True)
class IntegratedDecisionGradients(Attributor):
    """Integrated Gradients with each gradient weighted by the score's own slope along the line (Walker et al. 2024).

    .. math:: A = (x - x') \\odot \\int_0^1 \\nabla F^t(\\gamma(a)) \\, \\frac{dF^t}{da} \\, da

    Its sum is the integral of the squared slope, in squared units of the score, not the change of the score: there is
    no completeness identity. The slope is first read off N scores on a uniform grid, and the N gradients are taken
    where it is large. ``mode="importance"`` spaces them by a density proportional to the slope's size, weighs them by
    its inverse, and uses the exact slope, the gradient's own product with x - x'. ``"official"`` is the authors' code,
    whose places slide towards the baseline and whose maps are smaller by N: see ``published_nodes``.

    Costs N forward passes more than Integrated Gradients, 2 N more in the official mode.
    """

    name: ClassVar[str] = "idg"
    title: ClassVar[str] = "Integrated Decision Gradients"
    source: ClassVar[str] = "Walker et al. 2024"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"official": {"mode": "official"}}

    steps: Annotated[PositiveInt, Search(10, 500, log=True), Doc("scores on the grid, and gradients (N)")] = 50
    mode: Annotated[Mode, Doc("sampling by importance, or as the authors' code")] = "importance"
    baseline: Annotated[Baseline, Doc("where the line begins: zero, black, white, mean, blur, noise or uniform")] = (
        "zero"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mode == "official" and self.steps < 2:
            raise InputError(
                f"got {self.steps}, expected a whole number of at least 2 in mode 'official'", argument="steps"
            )

    @property
    def complete(self) -> bool:
        return False

    @property
    def planned_passes(self) -> float:
        return 4 * self.steps

    def attribute(self, problem: Problem) -> Attribution:
        baseline = problem.resolve_baseline(self.baseline)
        line, weight_fn = self._plan(problem, baseline)
        result = integrate(NodePieces(line, problem, weight_fn))
        diagnostics = path_diagnostics(result, problem)
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
            line = StraightLine(inputs, baseline, *importance_nodes(torch.cat((scores, at_input[:, None]), 1)))
            return line, lambda at: at.sample.displacement * _slope(at, inputs - baseline)
        grid = torch.linspace(0, 1, self.steps, dtype=torch.float64)
        places, spacing = published_nodes(_scores(StraightLine(inputs, baseline, grid, grid), problem))
        slopes = published_slopes(places, _scores(StraightLine(inputs, baseline, places, places), problem))
        line = StraightLine(inputs, baseline, places.flip(1), spacing.flip(1) / self.steps)
        return line, lambda at: at.sample.displacement * slopes.flip(1)[at.rows, at.nodes]


def _scores(line: StraightLine, problem: Problem) -> Tensor:
    """The target's score (B, N) at each node of each image, in float64; forward passes only."""
    found = [
        problem.score(problem.forward(line.at(rows, nodes).x, rows), rows).double()
        for rows, nodes in iter_batches(problem, line.count)
    ]
    return torch.cat(found).view(len(problem.inputs), line.count)


def _slope(at: Evaluation, way: Tensor) -> Tensor:
    """The exact slope (L,) of the score along ``way`` (B, *S) where a gradient was taken."""
    return (at.gradient * way[at.rows]).flatten(1).sum(1)
