"""Fisher-Rao Integrated Gradients for PyTorch classifiers.

Names are imported when they are first used: the command line answers ``--help`` without loading torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from fringe._errors import FringeError as FringeError
from fringe._errors import InputError as InputError
from fringe._errors import ModelOutputError as ModelOutputError
from fringe._errors import NotDifferentiableError as NotDifferentiableError
from fringe._errors import TargetError as TargetError

if TYPE_CHECKING:
    from fringe.attribution import METHODS as METHODS
    from fringe.attribution import Attribution as Attribution
    from fringe.attribution import Attributor as Attributor
    from fringe.attribution import FRInGe as FRInGe
    from fringe.attribution import Trajectory as Trajectory
    from fringe.attribution import attribute as attribute
    from fringe.classifier import Classifier as Classifier
    from fringe.classifier import PassCounts as PassCounts
    from fringe.classifier import TwoClass as TwoClass

__version__ = "0.1.0"

_HOMES = {
    **dict.fromkeys(("METHODS", "Attribution", "Attributor", "FRInGe", "Trajectory", "attribute"), "attribution"),
    **dict.fromkeys(("Classifier", "PassCounts", "TwoClass"), "classifier"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
