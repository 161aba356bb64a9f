"""Average over small random moves of the inputs: M draws an image, keyed, drawn again rather than kept."""

from collections.abc import Callable

import torch
from torch import Tensor

from fringe.metrics.base import EvaluationContext

Draw = Callable[[str, Tensor], Tensor]
"""``draw(key, x)``: the move of one image ``x`` (*S) that belongs to ``key``, alone and always the same."""

Measure = Callable[[Tensor, Tensor], Tensor]
"""``measure(rows, moves)``: numbers (L, ...) of the images ``rows`` (L,) under ``moves`` (L, *S)."""


def over_draws(subject: EvaluationContext, name: str, samples: int, draw: Draw, measure: Measure) -> Tensor:
    """``measure`` of each image under each of its draws: (B, samples, ...). It meets at most the classifier's batch
    size of them at once, so memory does not grow with their number."""
    problem, device = subject.problem, subject.problem.inputs.device
    images = torch.arange(len(problem.inputs), device=device).repeat_interleave(samples)
    numbers = torch.arange(samples, device=device).repeat(len(problem.inputs))

    def chunk(rows: Tensor, draws: Tensor) -> Tensor:
        pairs = zip(rows.tolist(), draws.tolist(), strict=True)
        moves = torch.stack([draw(f"{name} {problem.keys[i]} {m}", problem.inputs[i]) for i, m in pairs])
        return measure(rows, moves)

    found = problem.model.batch_size.map(chunk, images, numbers)
    return found.view(len(problem.inputs), samples, *found.shape[1:])


def inner_product(a: Tensor, b: Tensor) -> Tensor:
    """``<a, b>`` (L,) over all entries of (L, *S), summed in the dtype of ``a``."""
    return (a * b.to(a.dtype)).flatten(1).sum(1)
