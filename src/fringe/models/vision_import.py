"""Importing the libraries of networks: what is absent is named with the extra that brings it; torchvision also where
its compiled operators do not fit the installed PyTorch."""

import functools
import importlib
import importlib.util
from typing import Any

import torch

from fringe.models.errors import ModelError

#: What torchvision's own extension declares; classification never calls either.
_SCHEMAS = {
    "nms": "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}


def import_extra(package: str, extra: str) -> Any:
    """The package; raises ``ModelError`` naming the extra where it, or something that it needs, is absent."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        absent = (error.name or package).partition(".")[0]
        what = (
            f"{package} is not installed" if absent == package else f"{package} needs {absent}, which is not installed"
        )
        raise ModelError(f"{what}; install fringe[{extra}]") from error
    except ImportError as error:  # versions that do not fit together
        raise ModelError(f"{package} cannot be imported ({error}); install fringe[{extra}] again") from error


def import_torchvision(extra: str = "vision") -> Any:
    """The torchvision package; raises ``ModelError`` naming the ``extra`` where it is absent.

    Beside a PyTorch built for another accelerator the extension does not load, and the package then fails to
    import because it describes two operators nobody declared. Declaring them is enough for every classifier.
    """
    try:
        return import_extra("torchvision", extra)
    except RuntimeError as error:
        if "operator torchvision::" not in str(error):
            raise
    _declare_operators()
    return import_extra("torchvision", extra)


def is_installed(package: str) -> bool:
    """Whether a package can be found; nothing is imported."""
    try:
        return importlib.util.find_spec(package) is not None
    except (ModuleNotFoundError, ValueError):
        return False


@functools.cache  # the declarations last as long as the Library object, which this keeps for the process
def _declare_operators() -> torch.library.Library:
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name, schema in _SCHEMAS.items():
        if getattr(torch.ops.torchvision, name, None) is None:
            library.define(schema)  # pyright: ignore[reportUnknownMemberType] - untyped in torch
    return library
