"""Control maps: maps that know nothing of the model. A score says little before it beats theirs."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from fringe._noise import Noise
from fringe.paths import Query

Control = Callable[[Query, Noise], Tensor]
"""From the images to a map (B, *S) of each."""


def _zero(query: Query, noise: Noise) -> Tensor:
    """No evidence anywhere. Its infidelity is the model's own response to the perturbations."""
    return torch.zeros_like(query.inputs)


def _random(query: Query, noise: Noise) -> Tensor:
    """Standard normal numbers that belong to the image's name."""
    images = zip(query.keys, query.inputs, strict=True)
    return torch.stack([noise.normal(f"control random {key}", x) for key, x in images])


def _uniform(query: Query, noise: Noise) -> Tensor:
    """One everywhere: the order of the entries is the metric's own rule for ties."""
    return torch.ones_like(query.inputs)


def _edge(query: Query, noise: Noise) -> Tensor:
    """Gradient magnitude of the image: the norm over channels and spatial axes of its central differences (one-sided
    at the border), the same for each channel."""
    x = query.inputs
    axes = [axis for axis in range(2 if x.dim() > 2 else 1, x.dim()) if x.shape[axis] > 1]
    if not axes:
        return torch.zeros_like(x)
    squares = torch.stack(torch.gradient(x, dim=axes)).square().sum(0)
    return (squares.sum(1, keepdim=True) if x.dim() > 2 else squares).sqrt().expand_as(x).clone()


CONTROLS: Mapping[str, Control] = {"zero": _zero, "random": _random, "uniform": _uniform, "edge": _edge}
