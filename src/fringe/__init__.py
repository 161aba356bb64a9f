"""Fisher-Rao Integrated Gradients for PyTorch classifiers.

Names are imported when they are first used: the command line answers ``--help`` without loading torch.
"""

import importlib.util
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
    from fringe.attribution import load as load
    from fringe.baselines import InputSpace as InputSpace
    from fringe.bench.experiments import ExperimentSpec as ExperimentSpec
    from fringe.bench.experiments import run_experiment as run_experiment
    from fringe.bench.report import write_report as write_report
    from fringe.classifier import BinaryClassifier as BinaryClassifier
    from fringe.classifier import Classifier as Classifier
    from fringe.classifier import PassCounts as PassCounts
    from fringe.classifier import Region as Region
    from fringe.classifier import Shared as Shared
    from fringe.detection import Detector as Detector
    from fringe.evaluation import compare as compare
    from fringe.explanations import explain as explain
    from fringe.explanations import explain_images as explain_images
    from fringe.metrics import METRICS as METRICS
    from fringe.metrics import Metric as Metric
    from fringe.metrics import Scores as Scores
    from fringe.page import write_page as write_page
    from fringe.similarity import Similarity as Similarity

__version__ = "0.2.0"

_HOMES = {
    **dict.fromkeys(("METHODS", "Attribution", "Attributor", "Trajectory", "attribute", "load"), "attribution"),
    **dict.fromkeys(("METRICS", "Metric", "Scores"), "metrics"),
    **dict.fromkeys(("BinaryClassifier", "Classifier", "PassCounts", "Region", "Shared"), "classifier"),
    "InputSpace": "baselines",
    "Detector": "detection",
    "Similarity": "similarity",
    "compare": "evaluation",
    **dict.fromkeys(("ExperimentSpec", "run_experiment"), "bench.experiments"),
    **dict.fromkeys(("explain", "explain_images"), "explanations"),
    "write_page": "page",
    "write_report": "bench.report",
}
_REGISTRIES = {"attribution": "METHODS", "metrics": "METRICS"}  # their classes are public names of this package as well


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return _public()
    if name in _HOMES:
        value = getattr(importlib.import_module(f"fringe.{_HOMES[name]}"), name)
    else:
        kinds = (_classes(package).get(name) for package in _REGISTRIES if name[:1].isupper())
        value = next((kind for kind in kinds if kind is not None), None)
    if value is None and not name.startswith("_") and importlib.util.find_spec(f"fringe.{name}"):
        return importlib.import_module(f"fringe.{name}")
    if value is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, value)


def __dir__() -> list[str]:
    return sorted({*_public(), *(name for name in globals() if name.startswith("__") and name.endswith("__"))})


def _classes(package: str) -> dict[str, type]:
    """The registered classes of a package by their names in Python."""
    registry = getattr(importlib.import_module(f"fringe.{package}"), _REGISTRIES[package])
    return {kind.__name__: kind for kind in registry.values()}


def _public() -> list[str]:
    errors = [name for name in globals() if name.endswith("Error")]
    return sorted({*errors, *_HOMES, *(name for package in _REGISTRIES for name in _classes(package))})
