"""Control maps: maps that know nothing of the model. A score says little before it beats theirs."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from fringe.paths import Problem

Control = Callable[[Problem], Tensor]
"""From the images to a map (B, *S) of each."""


def _zero(problem: Problem) -> Tensor:
    """No evidence anywhere. Its infidelity is the model's own response to the perturbations."""
    return torch.zeros_like(problem.inputs)


def _random(problem: Problem) -> Tensor:
    """Standard normal numbers that belong to the image's name."""
    images = zip(problem.keys, problem.inputs, strict=True)
    return torch.stack([problem.rng.normal(f"control random {key}", x) for key, x in images])


def _uniform(problem: Problem) -> Tensor:
    """One everywhere: the order of the entries is the metric's own rule for ties."""
    return torch.ones_like(problem.inputs)


def _edge(problem: Problem) -> Tensor:
    """Gradient magnitude of the image: the norm over channels and spatial axes of its central differences (one-sided
    at the border), the same for each channel."""
    x = problem.inputs
    axes = [axis for axis in range(2 if x.dim() > 2 else 1, x.dim()) if x.shape[axis] > 1]
    if not axes:
        return torch.zeros_like(x)
    squares = torch.stack(torch.gradient(x, dim=axes)).square().sum(0)
    return (squares.sum(1, keepdim=True) if x.dim() > 2 else squares).sqrt().expand_as(x).clone()


CONTROLS: Mapping[str, Control] = {"zero": _zero, "random": _random, "uniform": _uniform, "edge": _edge}
