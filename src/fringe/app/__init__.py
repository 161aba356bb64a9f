"""The web app: choose an image, a model and a method in a browser, and see the explanation.

>>> import fringe.app
>>> fringe.app.launch(model=["torchvision:resnet50"])  # doctest: +SKIP

The options load nothing heavy: the command line shows them without torch and gradio.
"""

import importlib
from typing import TYPE_CHECKING, Any

from fringe.app._spec import LOOPBACK as LOOPBACK
from fringe.app._spec import AppSpec

if TYPE_CHECKING:
    from fringe.app._blocks import build_blocks as build_app
    from fringe.app._server import AppServer, launch
    from fringe.app._service import Service, load_models
    from fringe.app._worker import Limits

__all__ = ["AppServer", "AppSpec", "Limits", "Service", "build_app", "launch", "load_models"]

_MODULES = {
    "AppServer": ("_server", "AppServer"),
    "Limits": ("_worker", "Limits"),
    "Service": ("_service", "Service"),
    "build_app": ("_blocks", "build_blocks"),
    "launch": ("_server", "launch"),
    "load_models": ("_service", "load_models"),
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _MODULES[name]
    return getattr(importlib.import_module(f"{__name__}.{module}"), attribute)
