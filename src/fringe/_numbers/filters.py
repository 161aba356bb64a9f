"""Blurs along axes of space with finite kernels, for baselines and references."""

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from fringe.errors import InputError, require

#: The image mirrored with its edge: a symmetric kernel then leaves the sum of an image as it is.
Mirror = Literal["mirror"]
#: What a kernel sees beyond the edge: zeros (counted), the image mirrored without its edge, the edge, or nothing.
Padding = Literal["zeros", "reflect", "replicate", "exclude"]
#: Pixels: beyond any image, and a kernel of some megabytes.
LARGEST_SIGMA = 100_000


def gaussian_kernel(sigma: float, size: int | None = None) -> Tensor:
    """Return the weights (size,) of a Gaussian of ``sigma`` pixels; they sum to one, float64.

    Without ``size`` it reaches ``int(4 sigma + 1/2)`` pixels each way (SciPy's rule), so it is the identity
    below sigma = 1/8.
    """
    require(size is None or size % 2 == 1, "size", size, "an odd number of pixels")
    require(size is not None or sigma <= LARGEST_SIGMA, "sigma", sigma, f"at most {LARGEST_SIGMA} pixels")
    radius = int(4.0 * sigma + 0.5) if size is None else size // 2
    offsets = torch.arange(-radius, radius + 1, dtype=torch.float64)
    weights = torch.exp(-0.5 * (offsets / sigma) ** 2) if radius else torch.ones(1, dtype=torch.float64)
    return weights / weights.sum()


def require_images(inputs: Tensor, purpose: str) -> None:
    """Raise InputError unless inputs are images (B, C, H, W), with their ``purpose``: "to blur"."""
    if inputs.dim() != 4:
        message = f"got shape {tuple(inputs.shape)}, expected images (B, C, H, W) {purpose}"
        raise InputError(message, argument="inputs")


def box_kernel(size: int) -> Tensor:
    """Return ``size`` equal weights that sum to one, float64."""
    return torch.full((size,), 1.0 / size, dtype=torch.float64)


def blur(x: Tensor, kernel: Tensor, padding: Padding | Mirror) -> Tensor:
    """Filter series, images or volumes ``x`` (B, C, *S) by a ``kernel`` of odd length along every axis of space."""
    if x.dim() < 3:
        message = f"got shape {tuple(x.shape)}, expected series, images or volumes (B, C, *S) to blur"
        raise InputError(message, argument="inputs")
    require(kernel.numel() % 2 == 1, "kernel", kernel.numel(), "an odd number of weights")
    if kernel.numel() == 1:
        return x.clone()
    kernel = kernel.to(x.device, x.dtype)
    if padding == "exclude":
        weight = _filter(torch.ones_like(x[:1, :1]), kernel, "zeros")
        return _filter(x, kernel, "zeros") / weight
    return _filter(x, kernel, padding)


def gaussian_blur(x: Tensor, sigma: float, padding: Padding | Mirror = "reflect") -> Tensor:
    """Blur series, images or volumes ``x`` (B, C, *S) by a Gaussian of ``sigma`` pixels."""
    return blur(x, gaussian_kernel(sigma), padding)


def _filter(x: Tensor, kernel: Tensor, padding: Padding | Mirror) -> Tensor:
    shape, reach = x.shape, kernel.numel() // 2
    for axis in range(2, len(shape) - 1):
        rows = x.reshape(-1, 1, shape[axis], shape[axis + 1 :].numel())
        x = functional.conv2d(_pad(rows, -2, reach, padding), kernel.view(1, 1, -1, 1))
    rows = x.reshape(-1, 1, shape[2:-1].numel(), shape[-1])
    return functional.conv2d(_pad(rows, -1, reach, padding), kernel.view(1, 1, 1, -1)).reshape(shape)


def _pad(x: Tensor, axis: int, reach: int, padding: Padding | Mirror) -> Tensor:
    """Add ``reach`` entries at either end of an axis, however far beyond the image they lie."""
    if padding == "zeros":
        return functional.pad(x, (reach, reach) if axis == -1 else (0, 0, reach, reach))
    size = x.shape[axis]
    index = torch.arange(-reach, size + reach, device=x.device)
    if padding == "replicate":
        return x.index_select(axis, index.clamp(0, size - 1))
    edges = int(padding == "mirror")  # which repeats them
    period = max(2 * (size - 1 + edges), 1)
    index = index.remainder(period)
    return x.index_select(axis, torch.minimum(index, period - edges - index))


def round_up_to_odd(value: float) -> int:
    """Return the smallest odd integer that is not below ``value``."""
    ceiling = math.ceil(value)
    return ceiling + 1 - ceiling % 2
