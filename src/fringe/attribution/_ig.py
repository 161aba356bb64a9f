"""Integrated Gradients along lines, blurs, spectra and guided paths; slopes as weights, and climbs from the line."""

import dataclasses
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from fringe.attribution._base import Attribution, Attributor, Baseline, ProgressCounter
from fringe.attribution._diagnostics import (
    PathAttributor,
    finer,
    gradient_attribution,
    path_attribution,
    path_diagnostics,
)
from fringe.attribution._focus import FOCUS_PASSES, Focus, FocusedPaths, FocusFloor, length_ratio, read_focus
from fringe.attribution._integrate import (
    NodeRule,
    WeightFn,
    integrate,
    integrate_steps,
    iter_batches,
    quadrature_nodes,
)
from fringe.errors import require
from fringe.geometry import log_probabilities
from fringe.linalg import add_rows
from fringe.paths import BlurLine, Displacements, GuidedPath, Problem, SpectralLine, StraightLine
from fringe.settings import Doc, Fraction, Positive, PositiveFraction, PositiveInt, Search


@dataclass(frozen=True)
class IntegratedGradients(PathAttributor):
    """Integrate the gradient along the straight line from a baseline to the input (Sundararajan et al. 2017, eq. 1).

    .. math:: A = (x - x') \\odot \\int_0^1 \\nabla F^t(x' + a (x - x')) \\, da

    A ``focus`` cannot change a straight line between two points: it moves the baseline. In coordinates y with
    ``x + s (y - x)`` for the input the line to y = x' ends at ``x + s (x' - x)``, where entries outside of the region
    keep a share 1 - s of their values. The map sums to what the region alone takes from the score. The same is possible
    for each method with a baseline, by ``attribute(..., baseline=...)``.

    The preset ``paper``: 200 points are ours, from the ratios of run times in the FRInGe paper; its code takes 300.
    """

    name = "ig"
    title = "Integrated Gradients"
    source = "Sundararajan, Taly and Yan 2017"
    presets: ClassVar = {"paper": {"steps": 200}, "released": {"steps": 300, "rule": "gausslegendre"}}

    steps: Annotated[PositiveInt, Search(10, 500, log=True), Doc("gradients along the line")] = 50
    baseline: Baseline = "zero"
    rule: Annotated[NodeRule, Doc("quadrature")] = "midpoint"
    focus: Focus = "none"
    focus_floor: FocusFloor = 0.2

    def __post_init__(self) -> None:
        if not isinstance(self.focus, str):
            object.__setattr__(self, "focus", read_focus(self.focus))
        super().__post_init__()
        is_closed = self.rule in ("trapezoid", "closed_mean")
        expected = f"a whole number of at least 2 for rule {self.rule!r}"
        require(self.steps > 1 or not is_closed, "steps", self.steps, expected)

    def nodes(self, problem: Problem) -> StraightLine:
        """Return the points of the line, with their weights.

        Args:
            problem: The images (B, *S) and the model.

        Returns:
            The line from each image to its baseline.
        """
        baseline = problem.resolve_baseline(self.baseline)
        return StraightLine(problem.inputs, baseline, *quadrature_nodes(self.rule, self.steps))

    @property
    def planned_passes(self) -> float:
        return 2 * self.steps + FOCUS_PASSES.get(self.focus, 0)

    def attribute(self, problem: Problem) -> Attribution:
        if self.focus == "none":
            return super().attribute(problem)
        return FocusedPaths(self.focus, self.focus_floor).explain(problem, self._walk, ("ok",))

    def _walk(self, problem: Problem, scale: Tensor | None) -> Attribution:
        if scale is None:
            return super().attribute(problem)
        baseline = problem.resolve_baseline(self.baseline)
        ends = (baseline, problem.inputs.lerp(baseline, scale.to(baseline)))
        result = super().attribute(dataclasses.replace(problem, baseline=ends[1]))
        unfocused, length = ((end - problem.inputs).flatten(1).double().norm(dim=1) for end in ends)
        known = {"focus_length_ratio": length_ratio(unfocused, length), **result.diagnostics}
        return dataclasses.replace(result, diagnostics=known)


@dataclass(frozen=True)
class BlurIG(PathAttributor):
    """Integrate the gradient along ever stronger Gaussian blurs of the image (Xu et al. 2020).

    .. math:: A = -\\int_0^{\\sigma_m} \\nabla F^t(z(\\sigma)) \\odot z'(\\sigma) \\, d\\sigma,
              \\qquad z(\\sigma) = G_\\sigma * x

    ``sigma_max`` is a share of the image's shorter side: the authors' 50 pixels at 224. The map explains the change of
    the score from the blurred image to the image. ``mode="chord"`` multiplies gradients by chords of the path, as the
    trapezoid rule does; ``"derivative"`` multiplies them by forward differences over 0.01 pixels with the left rule, as
    the authors' code does. Beyond the edge the image is zero. The
    Gaussian ends at ``int(4 sigma + 1/2)`` pixels. Costs S + 1 forward passes and VJPs per image (S in the derivative
    mode) and a forward pass at the end.
    """

    name = "blur_ig"
    title = "Blur IG"
    source = "Xu, Venugopalan and Sundararajan 2020"
    presets: ClassVar = {"official": {"mode": "derivative"}, "released": {"sigma_max": 10 / 224}}

    steps: Annotated[PositiveInt, Search(20, 300, log=True), Doc("intervals between blurs (S)")] = 100
    sigma_max: Annotated[
        Positive, Search(0.05, 0.5, log=True), Doc("the strongest blur's sigma", unit="of the shorter side")
    ] = 50 / 224
    mode: Annotated[Displacements, Doc("gradients times chords, or the authors' forward differences")] = "chord"

    def nodes(self, problem: Problem) -> BlurLine:
        return BlurLine(problem.inputs, self._sigmas(min(problem.inputs.shape[-2:])), self.mode)

    @property
    def hint(self) -> str:
        return super().hint if self.mode == "chord" else "use mode='chord'"

    def _sigmas(self, side: int) -> Tensor:
        """Blurs (S + 1,) in pixels, from 0 to the strongest, for images whose shorter side is ``side`` pixels."""
        return self.sigma_max * side * torch.linspace(0, 1, self.steps + 1, dtype=torch.float64)


@dataclass(frozen=True)
class GuidedIG(Attributor):
    """Integrate the gradient along a path that moves the entries of small gradient first (Kapishnikov et al. 2021).

    The path avoids steep directions as long as possible. After step k of N it has covered k/N of the distance to the
    input in the L1 norm, and the progress of each entry differs from k/N by at most ``max_dist`` (0: the straight line,
    Integrated Gradients by the left rule; 1: anywhere in the box between baseline and input). A step is multiplied by
    the gradient at its beginning: N forward passes and VJPs.

    The preset ``paper``: 200 steps, .25 and .02 are of the library of the method's authors; the code of the FRInGe
    paper takes 100 steps.
    """

    name = "guided_ig"
    title = "Guided IG"
    source = "Kapishnikov et al. 2021"
    presets: ClassVar = {
        "paper": {},
        "released": {"steps": 100},
        "notebook": {"steps": 25, "fraction": 0.5, "max_dist": 1.0},
        "quick": {"steps": 50},
    }

    steps: Annotated[PositiveInt, Search(20, 500, log=True), Doc("gradients along the path (N)")] = 200
    fraction: Annotated[PositiveFraction, Search(0.02, 0.5, log=True), Doc("share of entries that move at once")] = 0.25
    max_dist: Annotated[Fraction, Search(0.005, 1.0, log=True), Doc("largest gap of an entry's progress to k/N")] = 0.02
    baseline: Baseline = "zero"

    @property
    def planned_passes(self) -> float:
        return 2 * self.steps

    def attribute(self, problem: Problem) -> Attribution:
        based = dataclasses.replace(problem, baseline=problem.resolve_baseline(self.baseline))
        path = GuidedPath(self.steps, self.fraction, self.max_dist)
        return path_attribution(self, integrate_steps(path, based), problem, finer(self))


@dataclass(frozen=True)
class SpectralIG(PathAttributor):
    """Integrate the gradient along a path that adds the strong spectral components first (Kim et al. 2026).

    .. math:: z(a) = x' + U \\operatorname{diag}(s \\odot m(a)) V^T, \\qquad
              m_i(a) = \\operatorname{clip}(\\frac{a - (1 - o)(1 - s_i / s_1)}{o}, 0, 1)

    with the singular values s of each channel of x - x'. The path ends at the input itself, so the map sums to the
    change of the score, up to quadrature. With ``overlap=1`` the path is the straight line. The authors' code counts
    points and not intervals: its 200 points are ``steps=199``. They explain the probability. Costs N forward passes and
    VJPs per image, a forward pass at the baseline, and a decomposition per channel.
    """

    name = "spectral_ig"
    title = "Spectral IG"
    source = "Kim et al. 2026"
    presets: ClassVar = {"official": {"steps": 199}, "quick": {"steps": 50}}

    steps: Annotated[PositiveInt, Search(20, 500, log=True), Doc("intervals of the path (N)")] = 200
    overlap: Annotated[PositiveFraction, Search(0.1, 1.0), Doc("share of the path along which a part enters (o)")] = 0.4
    baseline: Baseline = "zero"

    def nodes(self, problem: Problem) -> SpectralLine:
        baseline = problem.resolve_baseline(self.baseline)
        return SpectralLine(problem.inputs, baseline, self.steps, self.overlap)


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
        line, weight_fn = self._plan(problem)
        result = integrate(line, problem, weight_fn)
        diagnostics = path_diagnostics(result, log_probabilities(problem.logits))
        why = "its sum is the integral of the squared slope of the score"
        plain = gradient_attribution(self, result.values, problem, diagnostics, why)
        trajectory = result.trajectories or plain.trajectory
        return dataclasses.replace(plain, endpoint_score=result.endpoint_score, trajectory=trajectory)

    def _plan(self, problem: Problem) -> tuple[StraightLine, WeightFn]:
        """Where gradients are taken, and what each counts."""
        inputs, baseline = problem.inputs, problem.resolve_baseline(self.baseline)
        if self.mode == "importance":
            grid = torch.arange(self.steps, dtype=torch.float64) / self.steps
            scores = _scores(StraightLine(inputs, baseline, grid, grid), problem)
            at_input = problem.score(problem.logits).double()
            line = StraightLine(inputs, baseline, *importance_sampling_nodes(torch.cat((scores, at_input[:, None]), 1)))
            # the exact slope of the score, not its difference between nodes
            x = inputs - baseline
            return line, lambda at: at.sample.displacement * (at.gradient * x[at.rows]).flatten(1).sum(1)
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
    title = "Geometrically guided IG"
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
            flat, total = largest.flatten(1).to(values.dtype), values.view(batch, -1)
            if self.aggregate == "max":
                total.scatter_reduce_(0, rows[:, None].expand_as(flat), flat, "amax")
            else:
                add_rows(total, rows, flat * line.weights[rows, nodes].to(flat.dtype)[:, None])
        return values, climbed

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
