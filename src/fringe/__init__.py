"""Fisher-Rao Integrated Gradients for PyTorch classifiers.

Names are imported when they are first used: the command line answers ``--help`` without loading torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from fringe.errors import FringeError as FringeError
from fringe.errors import InputError as InputError
from fringe.errors import ModelOutputError as ModelOutputError
from fringe.errors import NotDifferentiableError as NotDifferentiableError
from fringe.errors import TargetError as TargetError

if TYPE_CHECKING:
    from fringe.attribution import METHODS as METHODS
    from fringe.attribution import Attribution as Attribution
    from fringe.attribution import Attributor as Attributor
    from fringe.attribution import FRInGe as FRInGe
    from fringe.attribution import IntegratedGradients as IntegratedGradients
    from fringe.attribution import Trajectory as Trajectory
    from fringe.attribution import attribute as attribute
    from fringe.baselines import InputSpace as InputSpace
    from fringe.classifier import BinaryClassifier as BinaryClassifier
    from fringe.classifier import Classifier as Classifier
    from fringe.classifier import PassCounts as PassCounts
    from fringe.classifier import Shared as Shared
    from fringe.experiments import compare as compare
    from fringe.metrics import METRICS as METRICS
    from fringe.metrics import Metric as Metric
    from fringe.metrics import Scores as Scores

__version__ = "0.1.0"

_HOMES = {
    **dict.fromkeys(("METHODS", "Attribution", "Attributor", "Trajectory", "attribute"), "attribution"),
    **dict.fromkeys(("METRICS", "Metric", "Scores"), "metrics"),
    "compare": "experiments",
    "InputSpace": "baselines",
    **dict.fromkeys(("Classifier", "PassCounts", "Shared", "BinaryClassifier"), "classifier"),
}


_CATALOGUES = ("attribution", "metrics")
"""Rooms whose catalogue's classes are public here, too."""


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return _public()
    homes = [_HOMES[name]] if name in _HOMES else [f"{room}.catalogue" for room in _CATALOGUES if name[:1].isupper()]
    modules = [importlib.import_module(f"fringe.{home}") for home in homes]
    found = [getattr(module, name) for module in modules if hasattr(module, name)]
    if not found:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = found[0]
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*_public(), *(name for name in globals() if name.startswith("__") and name.endswith("__"))})


def _public() -> list[str]:
    """What a user may name: errors, what ``_HOMES`` lists, and the classes of the catalogues."""
    errors = [name for name in globals() if name.endswith("Error")]
    catalogues = [importlib.import_module(f"fringe.{room}.catalogue") for room in _CATALOGUES]
    return sorted({*errors, *_HOMES, *(name for module in catalogues for name in vars(module) if name[:1].isupper())})
