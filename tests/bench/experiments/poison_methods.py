"""Methods that fail or end the process they work in, where another process can import them."""

import ctypes
import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from fringe.attribution import Attributor, IntegratedGradients
from fringe.errors import FringeError


@dataclass(frozen=True)
class Poison(Attributor):
    """IG once the file ``cure`` is there; before, a segmentation fault."""

    name: ClassVar[str] = "poison"
    cure: str = ""

    def attribute(self, problem):
        if not Path(self.cure).exists():
            ctypes.string_at(0)
        return IntegratedGradients(steps=8).attribute(problem)


@dataclass(frozen=True)
class Signalled(Attributor):
    """IG, in whose middle the process is sent the signal ``number`` until the file ``cure`` is there."""

    name: ClassVar[str] = "signalled"
    number: int = 2
    cure: str = ""

    def attribute(self, problem):
        if not Path(self.cure).exists():
            os.kill(os.getpid(), self.number)
        return IntegratedGradients(steps=8).attribute(problem)


TROUBLES = {
    "memory": lambda: MemoryError(),
    "numpy": lambda: np.empty(1 << 50),
    "torch": lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    "allocator": lambda: RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
    "disk": lambda: OSError(errno.EIO, "Input/output error"),
    "file": lambda: OSError("the cache of the method cannot be read"),
    "wrapped": lambda: caused(FringeError("tables: they cannot be read"), OSError(errno.ESTALE, "Stale file handle")),
    "nested": lambda: caused(FringeError("picture: cannot be decoded"), MemoryError()),
    "device": lambda: RuntimeError("CUDA error: an illegal memory access was encountered"),
    "bug": lambda: KeyError("waypoint"),
    "data": lambda: caused(FringeError("tables: they are no tables"), OSError("image file is truncated")),
    "shape": lambda: RuntimeError("mat1 and mat2 shapes cannot be multiplied (1x3 and 4x4)"),
}
"""What may go wrong in a method, by a name that a setting can hold."""


def caused(error, cause):
    error.__cause__ = cause
    return error


@dataclass(frozen=True)
class Troubled(Attributor):
    """IG once the file ``cure`` is there; before, it raises one of ``TROUBLES``."""

    name: ClassVar[str] = "troubled"
    trouble: str = "memory"
    cure: str = ""

    def attribute(self, problem):
        if not Path(self.cure).exists():
            raise TROUBLES[self.trouble]()
        return IntegratedGradients(steps=8).attribute(problem)
