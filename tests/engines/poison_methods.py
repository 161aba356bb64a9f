"""Methods that end the process they work in, where another process can import them."""

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from fringe.attribution import Attributor, IntegratedGradients


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
