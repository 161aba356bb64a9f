"""Expected Gradients (Erion et al. 2021)."""

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from fringe._checks import require_choice, require_whole
from fringe._noise import Noise
from fringe._tunable import tunable
from fringe.attribution.base import Attribution, Attributor, Request
from fringe.attribution.diagnosis import assemble, judge_completeness, passes_now
from fringe.attribution.grouping import Ticker
from fringe.attribution.integral import completeness_gap
from fringe.attribution.node_integral import sum_nodes
from fringe.attribution.path_integral import Integrated
from fringe.attribution.reference_images import reference_images
from fringe.attribution.telemetry import Summary
from fringe.classifier import Classifier
from fringe.geometry import entropy, log_probabilities
from fringe.paths import Outcome, Query, ReferencePairs

Fractions = Literal["uniform", "stratified"]


@dataclass(frozen=True)
class ExpectedGradients(Attributor):
    """Integrated Gradients averaged over baselines from the data, by Monte Carlo (Erion et al. 2021).

    .. math:: A = \\mathbb E_{x' \\sim D,\\, a \\sim U(0, 1)} [ (x - x') \\odot \\nabla F^t(x' + a (x - x')) ]

    Each of m samples draws a reference x' of ``space.references`` and a fraction a; of ``"stratified"`` fractions one
    lies in each of m equal intervals, which leaves less noise and no bias. The sum of a map tends to the score minus
    its mean over the references: ``endpoint_score`` is that mean over those drawn, so the residual is what the
    fractions leave. Costs m forward passes and VJPs an image, and a forward pass for each reference that was drawn.
    """

    name: ClassVar[str] = "expected_gradients"
    uses_references: ClassVar[bool] = True

    samples: int = tunable(200, low=20, high=1000, log=True, help="pairs of a reference and a fraction (m)")
    fractions: Fractions = tunable(
        "uniform", choices=get_args(Fractions), help="places on the lines: independent, or one in each of m intervals"
    )

    def __post_init__(self) -> None:
        require_whole("samples", self.samples)
        require_choice("fractions", self.fractions, get_args(Fractions))

    @property
    def planned_passes(self) -> float:
        return 3 * self.samples

    def attribute(self, classifier: Classifier, query: Query, request: Request) -> Attribution:
        before = passes_now(classifier)
        references = reference_images(query, "expected_gradients averages over images of the data")
        pairs = ReferencePairs(query.inputs, references, *self.draw(query.keys, len(references), request.noise))
        ticker = Ticker(request.progress, len(query.inputs) * self.samples)
        values = sum_nodes(pairs, classifier, query.inputs, query.target, ticker.tick)
        score, (mean_score, mean_entropy) = (
            classifier.score(query.logits, query.target),
            _ends(classifier, query, pairs),
        )
        found = _integrated(values, query, score, mean_score, self.samples)
        diagnostics = {
            "steps": torch.tensor(found.steps, device=values.device),
            "entropy": entropy(log_probabilities(query.logits)),
            "endpoint_entropy": mean_entropy,
            "path_length": pairs.lengths(),
        }
        cure = "draw more samples" + ("" if self.fractions == "stratified" else ", or stratify their fractions")
        judgements = [judge_completeness(found, image, cure) for image in range(len(values))]
        return assemble(self, found, query, classifier, before, diagnostics, judgements)

    def draw(self, keys: tuple[str, ...], references: int, noise: Noise) -> tuple[Tensor, Tensor]:
        """Which reference (B, m), of so many, and what fraction (B, m) each sample of each image takes."""
        like, m = torch.empty(self.samples, dtype=torch.float64), self.samples
        drawn = [noise.integers(f"{self.name} references {key}", references, m) for key in keys]
        fractions = torch.stack([noise.uniform(f"{self.name} fractions {key}", like) for key in keys])
        if self.fractions == "stratified":
            fractions = (torch.arange(m) + fractions) / m
        return torch.tensor(drawn), fractions


def _ends(classifier: Classifier, query: Query, pairs: ReferencePairs) -> tuple[Tensor, Tensor]:
    """The target's score and the entropy (nats) at the references that each image drew, on average: (B,) each."""
    used, place = pairs.drawn.unique(return_inverse=True)
    logits = classifier.logits(pairs.references[used])
    entropies = entropy(log_probabilities(logits))
    scores = [
        classifier.score(logits, target.expand(len(used)))[mine].double().mean()
        for target, mine in zip(query.target, place, strict=True)
    ]
    return torch.stack(scores), entropies[place].mean(1)


def _integrated(values: Tensor, query: Query, score: Tensor, endpoint_score: Tensor, steps: int) -> Integrated:
    batch = len(values)
    sound = torch.isfinite(values).flatten(1).all(1).tolist()
    return Integrated(
        values=values.to(query.inputs.dtype),
        score=score,
        endpoint_score=endpoint_score.to(score.dtype),
        gap=completeness_gap(values, score.double() - endpoint_score),
        steps=[steps] * batch,
        outcomes=[Outcome.COMPLETE if ok else Outcome.DIVERGED for ok in sound],
        summary=Summary(batch, values.device),
        trajectories=None,
    )
