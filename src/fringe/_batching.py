"""How many images go through the network at once."""

from collections.abc import Callable
from typing import Any, Literal, TypeVar, cast

import torch
from torch import Tensor

from fringe.errors import InputError

Result = TypeVar("Result", Tensor, tuple[Tensor, Tensor])

_START = {"cuda": 256, "cpu": 16}
"""Where "auto" begins. A GPU reports when memory runs out; a CPU process is killed, and gains nothing past a few."""


class BatchSize:
    """A bound on images a pass, halved by whoever meets the end of memory; what it learnt stays for later calls."""

    def __init__(self, size: int | Literal["auto"] = "auto"):
        whole = isinstance(size, int) and not isinstance(size, bool)  # a caller may pass 2.5, True or None
        if size != "auto" and (not whole or size < 1):
            raise InputError(f"batch_size: got {size!r}, expected 'auto' or a positive integer")
        self.asked: int | Literal["auto"] = size
        self._size = None if size == "auto" else size

    def on(self, device: torch.device) -> int:
        return self._size or _START.get(device.type, 16)

    def halve(self, device: torch.device, error: Exception) -> None:
        """Take half as many from now on; re-raises ``error`` when one image already is too much."""
        size = self.on(device)
        if size == 1:
            raise error
        self._size = size // 2
        if device.type == "cuda":
            torch.cuda.empty_cache()

    def map(self, function: Callable[..., Result], *arguments: Tensor) -> Result:
        """``function`` over the rows of ``arguments`` in chunks, results concatenated."""
        device, total = arguments[0].device, arguments[0].shape[0]
        parts: list[Any] = []
        done = 0
        while done < total or not parts:  # no rows: one call says what their results look like
            stop = min(done + self.on(device), total)
            try:
                parts.append(function(*(a[done:stop] for a in arguments)))
            except torch.OutOfMemoryError as error:
                self.halve(device, error)
                continue
            done = stop
        if isinstance(parts[0], Tensor):
            return cast(Result, torch.cat(parts))
        return cast(Result, tuple(torch.cat(column) for column in zip(*parts, strict=True)))
