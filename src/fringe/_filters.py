"""Blurs of images with finite kernels: what baselines and references are made with."""

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from fringe._checks import require
from fringe.errors import InputError

Padding = Literal["zeros", "reflect", "replicate", "exclude"]
"""What a kernel sees beyond the edge: zeros (counted), the image mirrored without or with its edge, or nothing."""


def gaussian_kernel(sigma: float, size: int | None = None, truncate: float = 4.0) -> Tensor:
    """Weights (size,) of a Gaussian of ``sigma`` pixels that sum to one, float64; without ``size`` it reaches
    ``int(truncate sigma + 1/2)`` pixels each way (SciPy's rule), so it is the identity below sigma = 1/8."""
    require(size is None or size % 2 == 1, "size", size, "an odd number of pixels")
    radius = int(truncate * sigma + 0.5) if size is None else size // 2
    offsets = torch.arange(-radius, radius + 1, dtype=torch.float64)
    weights = torch.exp(-0.5 * (offsets / sigma) ** 2) if radius else torch.ones(1, dtype=torch.float64)
    return weights / weights.sum()


def box_kernel(size: int) -> Tensor:
    """``size`` equal weights that sum to one, float64."""
    return torch.full((size,), 1.0 / size, dtype=torch.float64)


def blur(x: Tensor, taps: Tensor, padding: Padding) -> Tensor:
    """Images ``x`` (B, C, H, W) filtered by ``taps`` (odd length) along both axes."""
    if x.dim() != 4:
        raise InputError(f"inputs: got shape {tuple(x.shape)}, expected images (B, C, H, W) to blur")
    require(taps.numel() % 2 == 1, "taps", taps.numel(), "an odd number of weights")
    if taps.numel() == 1:
        return x.clone()
    kernel = taps.to(x.device, x.dtype)
    if padding == "exclude":
        weight = _filter(torch.ones_like(x[:1, :1]), kernel, "zeros")
        return _filter(x, kernel, "zeros") / weight
    return _filter(x, kernel, padding)


def gaussian_blur(x: Tensor, sigma: float, padding: Padding = "reflect", size: int | None = None) -> Tensor:
    """``x`` (B, C, H, W) under a Gaussian of ``sigma`` pixels."""
    return blur(x, gaussian_kernel(sigma, size), padding)


def _filter(x: Tensor, kernel: Tensor, padding: Padding) -> Tensor:
    rows, height, width = x.flatten(0, 1)[:, None], x.shape[-2], x.shape[-1]
    radius = kernel.numel() // 2
    rows = functional.conv2d(_pad(rows, (0, radius), padding), kernel.view(1, 1, -1, 1))
    rows = functional.conv2d(_pad(rows, (radius, 0), padding), kernel.view(1, 1, 1, -1))
    return rows.reshape(*x.shape[:2], height, width)


def _pad(x: Tensor, radius: tuple[int, int], padding: Padding) -> Tensor:
    horizontal, vertical = radius
    if padding == "zeros":
        return functional.pad(x, (horizontal, horizontal, vertical, vertical))
    axis, reach = (-1, horizontal) if horizontal else (-2, vertical)
    size = x.shape[axis]
    places = torch.arange(-reach, size + reach, device=x.device)
    return x.index_select(axis, _fold(places, size) if padding == "reflect" else places.clamp(0, size - 1))


def _fold(places: Tensor, size: int) -> Tensor:
    """Mirror places into 0 ... size - 1 without repeating the edge, however far outside they lie."""
    if size == 1:
        return torch.zeros_like(places)
    period = 2 * (size - 1)
    places = places.remainder(period)
    return torch.minimum(places, period - places)


def round_up_to_odd(value: float) -> int:
    """The smallest odd whole number that is not below ``value``."""
    whole = math.ceil(value)
    return whole + 1 - whole % 2
