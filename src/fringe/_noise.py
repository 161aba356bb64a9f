"""Random draws that belong to an image, not to a batch."""

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Noise:
    """Standard draws keyed by (``seed``, key): the same key gives the same numbers whatever else is computed, in any
    order and any batch. The global generators are neither read nor moved."""

    seed: int = 0

    def normal(self, key: str, like: Tensor) -> Tensor:
        """Standard normal numbers of the shape, dtype and device of ``like``; drawn on the CPU in float64 so that
        every device sees the same ones."""
        digest = hashlib.sha256(f"{self.seed}\x1f{key}".encode()).digest()
        generator = torch.Generator("cpu").manual_seed(int.from_bytes(digest[:8], "big") >> 1)
        draw = torch.randn(like.shape, generator=generator, dtype=torch.float64, device="cpu")
        return draw.to(like.device, like.dtype)
