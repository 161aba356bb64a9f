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


def _registered() -> dict[str, type]:
    """The classes of the registered methods and metrics, which are public here, too, by their own names."""
    from fringe.attribution import METHODS
    from fringe.metrics import METRICS

    return {kind.__name__: kind for kind in (*METHODS.values(), *METRICS.values())}


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return _public()
    if name in _HOMES:
        value = vars(importlib.import_module(f"fringe.{_HOMES[name]}"))[name]
    elif name[:1].isupper() and name in (registered := _registered()):
        value = registered[name]
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*_public(), *(name for name in globals() if name.startswith("__") and name.endswith("__"))})


def _public() -> list[str]:
    """What a user may name: errors, what ``_HOMES`` lists, and the registered classes."""
    errors = [name for name in globals() if name.endswith("Error")]
    return sorted({*errors, *_HOMES, *_registered()})
