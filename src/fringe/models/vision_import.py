"""Importing torchvision, also where its compiled operators do not fit the installed PyTorch."""

import functools
import importlib
from typing import Any

import torch

from fringe.models.errors import ModelError

#: What torchvision's own extension declares; classification never calls either.
_SCHEMAS = {
    "nms": "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}


def import_torchvision() -> Any:
    """The torchvision package; raises ``ModelError`` naming the extra where it is absent.

    Beside a PyTorch built for another accelerator the extension does not load, and the package then fails to
    import because it describes two operators nobody declared. Declaring them is enough for every classifier.
    """
    try:
        return importlib.import_module("torchvision")
    except ModuleNotFoundError as error:
        raise ModelError("torchvision is not installed; install fringe[vision]") from error
    except RuntimeError as error:
        if "operator torchvision::" not in str(error):
            raise
    _declare_operators()
    return importlib.import_module("torchvision")


@functools.cache  # the declarations last as long as the Library object, which this keeps for the process
def _declare_operators() -> torch.library.Library:
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name, schema in _SCHEMAS.items():
        if getattr(torch.ops.torchvision, name, None) is None:
            library.define(schema)  # pyright: ignore[reportUnknownMemberType] - untyped in torch
    return library
