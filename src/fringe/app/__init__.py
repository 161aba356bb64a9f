"""The web app: choose an image, a model and a method in a browser, and see the explanation.

>>> import fringe.app
>>> fringe.app.launch(model=["torchvision:resnet50"])  # doctest: +SKIP

Importing the options loads neither torch nor gradio, so the command line can show them quickly.
"""

from typing import TYPE_CHECKING, Any

from fringe.app._spec import LOOPBACK, AppSpec

if TYPE_CHECKING:
    from fringe.app._server import AppServer, launch

__all__ = ["AppServer", "AppSpec", "launch"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fringe.app import _server

    return getattr(_server, name)
