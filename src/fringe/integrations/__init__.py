"""Explanations where people keep their training runs and data sets: trackers, Lightning and FiftyOne.

>>> from fringe.integrations import log_explanations
>>> log_explanations(result, "out/run", step=3)  # doctest: +SKIP
"""

import importlib
from typing import TYPE_CHECKING, Any

from fringe.errors import install_hint

if TYPE_CHECKING:
    from fringe.integrations._fiftyone import fiftyone_labels
    from fringe.integrations._lightning import ExplainCallback
    from fringe.integrations._trackers import Artifacts, log_explanations

__all__ = ["Artifacts", "log_explanations"]  # the other names need packages that are absent in most environments

_MODULES = {
    **dict.fromkeys(("Artifacts", "log_explanations"), "trackers"),
    **{"ExplainCallback": "lightning", "fiftyone_labels": "fiftyone"},
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _MODULES[name]
    try:
        return getattr(importlib.import_module(f"{__name__}._{module}"), name)
    except ModuleNotFoundError as error:
        missing = f"fringe.integrations.{name} needs {error.name}, which is not installed"
        raise ModuleNotFoundError(f"{missing}; {install_hint(module)}", name=error.name) from error
