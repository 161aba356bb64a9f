"""Expected Gradients (Erion et al. 2021)."""

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from fringe._rng import KeyedGenerator
from fringe.attribution._base import Attribution, Attributor, reference_images
from fringe.attribution._diagnostics import build_attribution, completeness_status
from fringe.attribution._integrate import integrate
from fringe.attribution._terms import SampleTerms
from fringe.geometry import entropy, log_probabilities
from fringe.paths import Problem, ReferencePairs
from fringe.settings import Doc, PositiveInt, Search

Fractions = Literal["uniform", "stratified"]


@dataclass(frozen=True)
class ExpectedGradients(Attributor):
    """Integrated Gradients averaged over baselines from the data, by Monte Carlo (Erion et al. 2021).

    .. math:: A = \\mathbb E_{x' \\sim D,\\, a \\sim U(0, 1)} [ (x - x') \\odot \\nabla F^t(x' + a (x - x')) ]

    Each of m samples draws a reference x' of ``space.references`` and a fraction a. With ``"stratified"`` fractions
    each of m equal intervals has one, which gives less noise and no bias. The sum of a map tends to the score minus the
    mean score of the references. ``endpoint_score`` is this mean over the drawn references, so the residual is the
    error of the fractions. Costs m forward passes and VJPs per image, and a forward pass per drawn reference.
    """

    name = "expected_gradients"
    title = "Expected Gradients"
    source = "Erion et al. 2021"
    uses_references = True

    samples: Annotated[PositiveInt, Search(20, 1000, log=True), Doc("pairs of a reference and a fraction (m)")] = 200
    fractions: Annotated[Fractions, Doc("points on the lines: independent, or one in each of m intervals")] = "uniform"

    @property
    def planned_passes(self) -> float:
        return 3 * self.samples

    def attribute(self, problem: Problem) -> Attribution:
        references = reference_images(problem, "expected_gradients averages over images of the data")
        pairs = ReferencePairs(problem.inputs, references, *self._draw(problem.keys, len(references), problem.rng))
        mean_score, mean_entropy = _ends(problem, pairs)
        end = mean_score.to(problem.logits.dtype)
        result = integrate(SampleTerms(pairs, dataclasses.replace(problem, record_path=False), endpoint_score=end))
        diagnostics = {
            "steps": torch.tensor(result.steps, device=mean_score.device),
            "entropy": entropy(log_probabilities(problem.logits)),
            "endpoint_entropy": mean_entropy,
            "path_length": pairs.lengths(),
        }
        hint = "draw more samples" + ("" if self.fractions == "stratified" else ", or stratify their fractions")
        statuses = [[completeness_status(result, image, hint)] for image in range(len(result.steps))]
        return build_attribution(self, result, problem, diagnostics, statuses)

    def _draw(self, keys: tuple[str, ...], references: int, noise: KeyedGenerator) -> tuple[Tensor, Tensor]:
        """Which reference (B, m), of so many, and what fraction (B, m) each sample of each image takes."""
        like, m = torch.empty(self.samples, dtype=torch.float64), self.samples
        drawn = [noise.integers(f"{self.name} references {key}", references, m) for key in keys]
        fractions = torch.stack([noise.uniform(f"{self.name} fractions {key}", like) for key in keys])
        if self.fractions == "stratified":
            fractions = (torch.arange(m) + fractions) / m
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
