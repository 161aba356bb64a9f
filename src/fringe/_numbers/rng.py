"""Random draws that belong to an image, not to a batch."""

import contextlib
import hashlib
import random
from collections.abc import Generator
from dataclasses import dataclass, field
from numbers import Integral

import numpy as np
import torch
from torch import Tensor

from fringe.errors import require


@contextlib.contextmanager
def global_seed(seed: int) -> Generator[None]:
    """Seed the global generators of torch, NumPy and Python, for code that draws from them; their states are restored
    at the end."""
    before = np.random.get_state(), random.getstate()  # noqa: NPY002
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(before[0])  # noqa: NPY002
            random.setstate(before[1])


@dataclass(frozen=True)
class KeyedGenerator:
    """Random numbers by key: a key gives the same numbers whatever else is computed, in any order and any batch.

    The global generators are neither read nor advanced; :meth:`seeded` restores them. Numbers are drawn on the CPU in
    float64, so that every device and precision sees the same ones.

    Attributes:
        seed: Seed of all keys.
        places: Positions (N,) that normal and uniform numbers (..., N) take instead of those in which they are drawn.
    """

    seed: int = 0
    places: Tensor | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        is_integer = isinstance(self.seed, Integral)  # pyright: ignore[reportUnnecessaryIsInstance]
        is_exact = is_integer and 0 <= self.seed < 2**53  # in JSON, and for generators that take no negative seed
        require(is_exact, "seed", self.seed, "an integer from 0 to 2**53 - 1")

    def normal(self, key: str, like: Tensor) -> Tensor:
        """Return standard normal numbers of the shape, dtype and device of ``like``."""
        draw = torch.randn(like.shape, generator=self._generator(key), dtype=torch.float64, device="cpu")
        return self._placed(draw).to(like.device, like.dtype)

    def uniform(self, key: str, like: Tensor) -> Tensor:
        """Return numbers uniform on [0, 1) of the shape, dtype and device of ``like``."""
        draw = torch.rand(like.shape, generator=self._generator(key), dtype=torch.float64, device="cpu")
        return self._placed(draw).to(like.device, like.dtype)

    def integers(self, key: str, high: int, count: int) -> list[int]:
        """Return ``count`` integers uniform on 0 ... ``high - 1``, with replacement."""
        return torch.randint(high, (count,), generator=self._generator(key), device="cpu").tolist()

    def permutation(self, key: str, size: int) -> list[int]:
        """Return 0 ... ``size - 1`` in random order."""
        return torch.randperm(size, generator=self._generator(key), device="cpu").tolist()

    def seeded(self, key: str) -> contextlib.AbstractContextManager[None]:
        """Seed the global generators by a key, see :func:`global_seed`."""
        return global_seed(self._generator(key).initial_seed())

    def _placed(self, draw: Tensor) -> Tensor:
        if self.places is None or draw.shape[-1:] != self.places.shape:
            return draw
        return torch.empty_like(draw).index_copy_(-1, self.places, draw)

    def _generator(self, key: str) -> torch.Generator:
        digest = hashlib.sha256(f"{self.seed}\x1f{key}".encode()).digest()
        return torch.Generator("cpu").manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def content_hash(x: Tensor) -> str:
    """Return a name for an image that depends on its numbers alone: equal images get equal noise, at any position and
    in both precisions."""
    plain = x.detach().to("cpu").contiguous()
    if plain.dtype == torch.float64 and torch.equal(plain, plain.float().double()):
        plain = plain.float()
    header = f"{plain.dtype} {tuple(plain.shape)} ".encode()
    return hashlib.sha256(header + plain.numpy().tobytes()).hexdigest()
