"""Small operations on tensors that all packages share."""

import torch
from torch import Tensor


def batch_view(values: Tensor, like: Tensor) -> Tensor:
    """Append axes of length one to ``values`` (B, ...), so that they broadcast over ``like`` (B, ..., *S)."""
    return values.view(*values.shape, *[1] * (like.dim() - values.dim()))


def detached(x: Tensor) -> Tensor:
    """Return ``x`` without its graph; an inference tensor, which autograd refuses, is copied."""
    with torch.inference_mode(False):
        return x.clone() if x.is_inference() else x.detach()
