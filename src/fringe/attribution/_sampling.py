"""Averages over random samples: SmoothGrad, RISE and Expected Gradients."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from fringe._numbers.filters import require_images
from fringe._numbers.rng import KeyedGenerator
from fringe.attribution._base import Attribution, Attributor, ProgressCounter
from fringe.attribution._diagnostics import build_attribution, completeness_status, finer, gradient_attribution
from fringe.attribution._integrate import add_weighted, integrate, iter_batches
from fringe.geometry import entropy, log_probabilities
from fringe.linalg import add_rows, batch_view
from fringe.paths import Problem, ReferencePairs
from fringe.settings import Doc, Positive, PositiveFraction, PositiveInt, Search

#: ``draw(rows, copies)``: noise (L, *S) for the copies numbered ``copies`` (L,) of images ``rows`` (L,).
Draw = Callable[[Tensor, Tensor], Tensor]

#: ``explain(x, rows)``: maps (L, *S) of noisy copies ``x`` (L, *S) of images ``rows`` (L,).
Explain = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class SmoothGrad(Attributor):
    """Average the gradient over noisy copies of the input (Smilkov et al. 2017).

    .. math:: A = \\frac1m \\sum_{j=1}^m \\nabla F^t(x + \\varepsilon_j), \\qquad \\varepsilon_j \\sim N(0, \\sigma^2 I)

    sigma is ``spread`` times the range of the image itself, its largest entry minus its smallest. The copies are not
    clipped. ``square`` averages squares (Hooker et al. 2019). The map is a gradient, not a share of the score: it has
    no completeness identity. ``relative_error`` is the standard error of the mean over the map's own norm. Costs m
    forward passes and VJPs per image.

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

    @property
    def planned_passes(self) -> float:
        return 2 * self.samples

    def attribute(self, problem: Problem) -> Attribution:
        flat = problem.inputs.flatten(1)
        sigma = self.spread * (flat.amax(1) - flat.amin(1))
        if self.sigma is not None:
            sigma = torch.full_like(sigma, self.sigma)
        counter = ProgressCounter(problem.progress, len(sigma) * self.samples)
        draw = _keyed(problem, sigma)

        def term(rows: Tensor, copies: Tensor) -> Tensor:
            _, gradient = problem.logits_gradient(problem.inputs[rows] + draw(rows, copies), rows)
            return gradient.square() if self.square else gradient

        values, error = averaged(term, problem, self.samples, counter)
        steps = torch.full_like(problem.every_row, self.samples)
        diagnostics = {"steps": steps, "sigma": sigma.double(), "relative_error": error}
        why = "a mean of gradients has no completeness identity"
        return gradient_attribution(self, values, problem, diagnostics, why)


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


@dataclass(frozen=True)
class RISE(Attributor):
    """Weigh random masks by the score of the masked image (Petsiuk et al. 2018, eq. 6).

    .. math:: A = \\frac{1}{p N} \\sum_{i=1}^N F^t(x \\odot M_i) \\, M_i

    A mask is a grid of ``cells`` x ``cells`` zeros and ones (one with probability p). It is scaled up bilinearly to
    ``(cells + 1) c`` pixels, c = ``ceil(H / cells)``, and cut out at a random offset below c. Masked pixels are zero in
    the model's own coordinates, as in the authors' code. The defaults are the authors'; the probability is explained,
    whatever the score of the classifier, and they take 8,000 masks for ResNet-50. Every image has its own masks, keyed
    by its name. Each channel gets an equal part of the map. The map has no completeness identity. If the model ignores
    the image, the map is not zero but the mean of the masks. ``relative_error`` is the standard error of the mean over
    the map's own norm. Costs N forward passes per image.
    """

    name = "rise"
    uses_gradients = False
    title = "RISE"
    source = "Petsiuk, Das and Saenko 2018"
    is_complete = False
    has_path = False
    presets: ClassVar = {"official": {}, "quick": {"masks": 500}}

    masks: Annotated[PositiveInt, Search(100, 8000, log=True), Doc("random masks (N)")] = 4000
    cells: Annotated[PositiveInt, Search(3, 16), Doc("cells of a mask along each side")] = 7
    keep: Annotated[PositiveFraction, Search(0.1, 0.9), Doc("share of cells that are not masked (p)")] = 0.5

    @property
    def planned_passes(self) -> float:
        return self.masks

    def attribute(self, problem: Problem) -> Attribution:
        require_images(problem.inputs, "to mask")
        problem = dataclasses.replace(problem, score_kind="probability")
        grids, offsets = self._draw(problem)
        channels = problem.inputs.shape[1]

        def term(rows: Tensor, copies: Tensor) -> Tensor:
            masks = self._masks(grids[rows, copies], offsets[rows, copies], problem.inputs)
            score = problem.score(problem.forward(problem.inputs[rows] * masks, rows), rows)
            return (score.view(-1, 1, 1, 1) * masks / (self.keep * channels)).expand(-1, channels, -1, -1)

        counter = ProgressCounter(problem.progress, len(grids) * self.masks)
        values, error = averaged(term, problem, self.masks, counter)
        steps = torch.full_like(problem.every_row, self.masks)
        why = "a mean of masks, weighted by scores, has no completeness identity"
        return gradient_attribution(self, values, problem, {"steps": steps, "relative_error": error}, why)

    def _draw(self, problem: Problem) -> tuple[Tensor, Tensor]:
        """The grids (B, N, s, s) of each image's masks, and where in them masks begin (B, N, 2), in pixels."""
        like = torch.empty(self.masks, self.cells, self.cells, dtype=torch.float64)
        grids, offsets = list[Tensor](), list[Tensor]()
        for key in problem.keys:
            grids.append(problem.rng.uniform(f"rise {key}", like) < self.keep)
            axes = zip(("rows", "columns"), self._cell(problem.inputs), strict=True)
            drawn = [problem.rng.integers(f"rise {axis} {key}", size, self.masks) for axis, size in axes]
            offsets.append(torch.tensor(drawn).T)
        device = problem.inputs.device
        return torch.stack(grids).to(device), torch.stack(offsets).to(device)

    def _cell(self, inputs: Tensor) -> tuple[int, int]:
        """Height and width of a cell in pixels."""
        height, width = (-(-side // self.cells) for side in inputs.shape[-2:])
        return height, width

    def _masks(self, grids: Tensor, offsets: Tensor, inputs: Tensor) -> Tensor:
        """Masks (L, 1, H, W) from grids (L, s, s) and offsets (L, 2)."""
        sizes = [(self.cells + 1) * side for side in self._cell(inputs)]
        scaled = functional.interpolate(grids[:, None].to(inputs.dtype), size=sizes, mode="bilinear")
        rows, columns = (
            offsets[:, axis, None] + torch.arange(side, device=inputs.device)
            for axis, side in enumerate(inputs.shape[-2:])
        )
        every = torch.arange(len(grids), device=inputs.device)[:, None, None]
        return scaled[every, 0, rows[:, :, None], columns[:, None, :]][:, None]


@dataclass(frozen=True)
class ExpectedGradients(Attributor):
    """Integrated Gradients averaged over baselines from the data, by Monte Carlo (Erion et al. 2021).

    .. math:: A = \\mathbb E_{x' \\sim D,\\, a \\sim U(0, 1)} [ (x - x') \\odot \\nabla F^t(x' + a (x - x')) ]

    Each of m samples draws a reference x' of ``space.references`` and a fraction a. The sum of a map tends to the score
    minus the mean score of the references. ``endpoint_score`` is this mean over the drawn references, so the residual
    is the error of the fractions. Costs m forward passes and VJPs per image, and a forward pass per drawn reference.
    """

    name = "expected_gradients"
    title = "Expected Gradients"
    source = "Erion et al. 2021"
    uses_references = True

    samples: Annotated[PositiveInt, Search(20, 1000, log=True), Doc("pairs of a reference and a fraction (m)")] = 200

    @property
    def planned_passes(self) -> float:
        return 3 * self.samples

    def attribute(self, problem: Problem) -> Attribution:
        references = problem.reference_images("expected_gradients averages over images of the data")
        pairs = ReferencePairs(problem.inputs, references, *self._draw(problem.keys, len(references), problem.rng))
        mean_score, mean_entropy = _ends(problem, pairs)
        end = mean_score.to(problem.logits.dtype)
        result = integrate(pairs, dataclasses.replace(problem, record_path=False), endpoint_score=end)
        diagnostics = {
            "steps": torch.tensor(result.steps, device=mean_score.device),
            "entropy": entropy(log_probabilities(problem.logits)),
            "endpoint_entropy": mean_entropy,
            "path_length": pairs.lengths(),
        }
        hint = finer(self, "samples")
        statuses = [[completeness_status(result, image, hint)] for image in range(len(result.steps))]
        return build_attribution(self, result, problem, diagnostics, statuses)

    def _draw(self, keys: tuple[str, ...], references: int, noise: KeyedGenerator) -> tuple[Tensor, Tensor]:
        """Which reference (B, m), of so many, and what fraction (B, m) each sample of each image takes."""
        like, m = torch.empty(self.samples, dtype=torch.float64), self.samples
        drawn = [noise.integers(f"{self.name} references {key}", references, m) for key in keys]
        fractions = torch.stack([noise.uniform(f"{self.name} fractions {key}", like) for key in keys])
        return torch.tensor(drawn), fractions


def _ends(problem: Problem, pairs: ReferencePairs) -> tuple[Tensor, Tensor]:
    """The explained score and the entropy (nats) at the references that each image drew, on average: (B,) each."""
    scores = torch.zeros(len(problem.inputs), dtype=torch.float64, device=problem.inputs.device)
    entropies = torch.zeros_like(scores)
    for group in problem.groups(by_score=False):
        rows = torch.tensor(group, device=problem.inputs.device)
        used, index = pairs.drawn[rows].unique(return_inverse=True)
        logits = problem.forward(pairs.references[used], rows[:1].expand(len(used)))
        entropies[rows] = entropy(log_probabilities(logits))[index].double().mean(1)
        for row, drawn in zip(rows, index, strict=True):
            scores[row] = problem.score(logits, row.expand(len(used)))[drawn].double().mean()
    return scores, entropies
