"""SmoothGrad (Smilkov et al. 2017)."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from fringe.attribution._base import Attribution, Attributor, Baseline, ProgressCounter
from fringe.attribution._diagnostics import gradient_attribution
from fringe.attribution._integrate import add_weighted, integrate
from fringe.attribution._quadrature import quadrature_nodes
from fringe.attribution._terms import SampleTerms, iter_batches
from fringe.errors import require
from fringe.linalg import add_rows, batch_view
from fringe.paths import Problem, StraightLine
from fringe.settings import Doc, Positive, PositiveInt, Search

Inner = Literal["gradient", "ig"]

#: ``draw(rows, copies)``: noise (L, *S) for the copies numbered ``copies`` (L,) of images ``rows`` (L,).
Draw = Callable[[Tensor, Tensor], Tensor]

#: ``explain(x, rows)``: maps (L, *S) of noisy copies ``x`` (L, *S) of images ``rows`` (L,).
Explain = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class SmoothGrad(Attributor):
    """Average the gradient over noisy copies of the input (Smilkov et al. 2017).

    .. math:: A = \\frac1m \\sum_{j=1}^m \\nabla F^t(x + \\varepsilon_j), \\qquad \\varepsilon_j \\sim N(0, \\sigma^2 I)

    sigma is ``spread`` times the range of the image itself, its largest entry minus its smallest. The copies are not
    clipped. ``square`` averages squares (Hooker et al. 2019), ``inner="ig"`` smooths Integrated Gradients. The map is a
    gradient, not a share of the score: it has no completeness identity. ``relative_error`` is the standard error of the
    mean over the map's own norm. Costs m forward passes and VJPs per image, ``inner_steps`` times that with ``"ig"``.

    The preset ``paper``: 50 copies and a noise of 10 to 20 % are of the method's paper, .15 is of its authors' library;
    the code of the FRInGe paper takes 25 copies.
    """

    name = "smoothgrad"
    title = "SmoothGrad"
    source = "Smilkov et al. 2017"
    is_complete = False
    has_path = False
    presets: ClassVar = {"paper": {}, "released": {"samples": 25}, "official": {"samples": 25, "square": True}}

    samples: Annotated[PositiveInt, Search(10, 200, log=True), Doc("noisy copies (m)")] = 50
    spread: Annotated[Positive, Search(0.02, 0.5, log=True), Doc("noise (sigma), as a share of the range")] = 0.15
    sigma: Annotated[Positive | None, Doc("the noise itself, instead of spread", unit="input units")] = None
    square: Annotated[bool, Doc("average squares of maps")] = False
    multiply_by_input: Annotated[bool, Doc("multiply the averaged gradient by the input")] = False
    inner: Annotated[Inner, Doc("what is averaged: gradients or IG maps")] = "gradient"
    inner_steps: Annotated[PositiveInt, Search(5, 100, log=True), Doc("midpoint steps of an inner IG map")] = 20
    baseline: Annotated[Baseline, Doc("of inner IG maps: zero, black, white, mean, blur, noise or uniform")] = "zero"

    def __post_init__(self) -> None:
        super().__post_init__()
        expected = "False with inner='ig', whose maps hold the factor already"
        require(self.inner != "ig" or not self.multiply_by_input, "multiply_by_input", True, expected)

    @property
    def planned_passes(self) -> float:
        return 2 * self.samples * (self.inner_steps if self.inner == "ig" else 1)

    def attribute(self, problem: Problem) -> Attribution:
        sigma = self._sigma(problem.inputs)
        draw = _keyed(problem, sigma)
        explain = self._explainer(problem)
        counter = ProgressCounter(problem.progress, len(sigma) * self.samples)
        values, error = smoothed(explain, draw, problem, self.samples, self.square, counter)
        if self.multiply_by_input:
            values = values * problem.inputs
        steps = torch.full_like(problem.every_row, self.samples)
        diagnostics = {"steps": steps, "sigma": sigma.double(), "relative_error": error}
        why = "a mean of gradients has no completeness identity"
        if self.inner == "ig":
            why = "maps of noisy copies add up to their own scores, not the image's"
        return gradient_attribution(self, values, problem, diagnostics, why)

    def _sigma(self, inputs: Tensor) -> Tensor:
        """Standard deviation (B,) of the noise."""
        flat = inputs.flatten(1)
        if self.sigma is not None:
            return torch.full_like(flat[:, 0], self.sigma)
        return self.spread * (flat.amax(1) - flat.amin(1))

    def _explainer(self, problem: Problem) -> Explain:
        """The function that makes a map of a noisy copy."""
        if self.inner == "gradient":
            return lambda x, rows: problem.logits_gradient(x, rows)[1]
        baseline = problem.resolve_baseline(self.baseline)
        nodes = quadrature_nodes("midpoint", self.inner_steps)
        quiet = dataclasses.replace(problem, progress=None, record_path=False)

        def integrated(x: Tensor, rows: Tensor) -> Tensor:
            line = StraightLine(x, baseline[rows], *nodes)
            return integrate(SampleTerms(line, quiet.select(rows))).values

        return integrated


def smoothed(
    explain: Explain, draw: Draw, problem: Problem, count: int, square: bool, counter: ProgressCounter
) -> tuple[Tensor, Tensor]:
    """Mean (B, *S) of the maps of ``count`` noisy copies of each input (B, *S), or of their squares, and its relative
    standard error (B,)."""
    inputs = problem.inputs

    def term(rows: Tensor, copies: Tensor) -> Tensor:
        maps = explain(inputs[rows] + draw(rows, copies), rows)
        return maps.square() if square else maps

    return averaged(term, problem, count, counter)


def averaged(
    term: Callable[[Tensor, Tensor], Tensor], problem: Problem, count: int, counter: ProgressCounter
) -> tuple[Tensor, Tensor]:
    """Mean (B, *S) of ``count`` independent terms of each image, and its relative standard error (B,).

    ``term(rows, copies)`` computes the terms (L, *S) numbered ``copies`` (L,) of the images ``rows`` (L,), a batch at a
    time. Memory does not grow with their number.
    """
    mean = torch.zeros_like(problem.inputs, dtype=torch.float64)
    energy = torch.zeros_like(mean.flatten(1)[:, 0])
    for rows, copies in iter_batches(problem, count):
        maps = term(rows, copies)
        add_weighted(mean, rows, torch.full_like(energy, 1.0 / count)[rows], maps)
        add_rows(energy, rows, maps.flatten(1).to(energy.dtype).square().sum(1) / count)
        counter.tick(len(rows))
    size = mean.flatten(1).square().sum(1)
    spread = (energy - size).clamp_min(0.0)
    error = (spread / size / (count - 1)).sqrt() if count > 1 else torch.full_like(size, torch.nan)
    return mean, torch.where(energy == 0, 0.0, error)


def _keyed(problem: Problem, sigma: Tensor) -> Draw:
    """Gaussian noise of ``sigma`` (B,), keyed by the image and the number of the copy."""

    def draw(rows: Tensor, copies: Tensor) -> Tensor:
        pairs = zip(rows.tolist(), copies.tolist(), strict=True)
        drawn = [problem.rng.normal(f"smoothgrad {problem.keys[i]} {j}", problem.inputs[i]) for i, j in pairs]
        return batch_view(sigma[rows], problem.inputs) * torch.stack(drawn)

    return draw
