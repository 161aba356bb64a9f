"""Put the important pixels first: the target's probability while pixels are exchanged between input and reference."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fringe._checks import is_whole, require, require_choice
from fringe.metrics.base import EvaluatedMaps, EvaluationContext
from fringe.metrics.curves import Mode
from fringe.metrics.ranking import REDUCTIONS, Ranking, Reduction, ranking_of
from fringe.metrics.references import Reference, reference_of


@dataclass(frozen=True)
class Walk:
    """What N steps from one image to another gave: the target's probability ``curve`` (B, N + 1), which begins and ends
    at ``p_input`` and ``p_reference`` (B,), after ``changed`` (N + 1,) of the pixels of ``ranking``."""

    curve: Tensor
    p_input: Tensor
    p_reference: Tensor
    changed: Tensor
    ranking: Ranking

    def flags(self) -> dict[str, Tensor]:
        """Degenerate images: (B,) each."""
        return {"blur_more_confident": self.p_input <= self.p_reference, **self.ranking.flags()}

    def extras(self) -> dict[str, Tensor]:
        """Numbers that a table wants beside the score: (B,) each."""
        return {"p_input": self.p_input, "p_reference": self.p_reference, "ties": self.ranking.ties()}


@dataclass(frozen=True)
class Perturbation:
    """How pixels are exchanged: with which ``reference``, ordered by which ``reduction``, in how many ``steps``.

    Step s of N has ``round(s P / N)`` of P pixels changed, each with all its channels. ``steps=None``: as many as the
    first axis of space is long, so a row's width of pixels a step in an image. There are never more steps than pixels.
    """

    reference: Reference
    reduction: Reduction
    steps: int | None

    def __post_init__(self) -> None:
        require_choice("reduction", self.reduction, REDUCTIONS)
        require(self.steps is None or is_whole(self.steps), "steps", self.steps, "a positive integer, or none")

    def walk(self, explained: EvaluatedMaps, mode: Mode) -> Walk:
        """Walk once for all metrics of these maps that ask for the same: N - 1 forward passes an image, and one for
        the reference of the subject."""
        subject, ranking = explained.subject, ranking_of(explained, self.reduction)
        reference = self.reference.on(subject.problem.inputs)
        changed = _grid(ranking, self.steps)
        key = ("walk", mode, reference, self.reduction, len(changed))
        return explained.once(key, lambda: _walk(subject, ranking, reference, changed, mode))


def _grid(ranking: Ranking, steps: int | None) -> Tensor:
    pixels = ranking.pixels
    count = min(steps or ranking.rank.shape[1], pixels)
    return torch.tensor([round(s * pixels / count) for s in range(count + 1)], device=ranking.rank.device)


def _walk(subject: EvaluationContext, ranking: Ranking, reference: Reference, changed: Tensor, mode: Mode) -> Walk:
    problem, replaced = subject.problem, reference_of(subject, reference)
    p_input = problem.probability(problem.logits)
    every = problem.every_row
    p_reference = subject.once(
        ("p_reference", reference), lambda: problem.probability(problem.forward(replaced, every), every)
    )
    before, after = (replaced, problem.inputs) if mode == "insertion" else (problem.inputs, replaced)
    broadcast = ranking.rank.unsqueeze(1) if ranking.rank.dim() < before.dim() else ranking.rank

    def probe(rows: Tensor, counts: Tensor) -> Tensor:
        exchanged = broadcast[rows] < counts.view(-1, *[1] * (before.dim() - 1))
        mixed = torch.where(exchanged, after[rows], before[rows])
        return problem.probability(problem.forward(mixed, rows), rows)

    batch, inner = len(problem.inputs), changed[1:-1]
    ends = (p_reference, p_input) if mode == "insertion" else (p_input, p_reference)
    curve = torch.stack(ends, 1)
    if len(inner):
        rows = torch.arange(batch, device=inner.device).repeat_interleave(len(inner))
        between = problem.model.batch_size.map(probe, rows, inner.repeat(batch)).view(batch, -1)
        curve = torch.cat([curve[:, :1], between, curve[:, 1:]], 1)
    return Walk(curve, p_input, p_reference, changed, ranking)
