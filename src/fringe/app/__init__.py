"""The web app: choose an image, a model and a method in a browser, and see the explanation.

>>> import fringe.app
>>> fringe.app.launch(model=["torchvision:resnet50"])  # doctest: +SKIP

Importing the options loads neither torch nor gradio, so the command line can show them quickly.
"""

import importlib
from typing import TYPE_CHECKING, Any

from fringe.app._spec import LOOPBACK, AppSpec

if TYPE_CHECKING:
    from fringe.app._blocks import build_app
    from fringe.app._server import AppServer, launch
    from fringe.app._service import Service, load_models
    from fringe.app._worker import Limits

__all__ = ["AppServer", "AppSpec", "Limits", "Service", "build_app", "launch", "load_models"]

_HOMES = {
    **dict.fromkeys(("AppServer", "launch"), "_server"),
    **dict.fromkeys(("Service", "load_models"), "_service"),
    **{"Limits": "_worker", "build_app": "_blocks"},
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
