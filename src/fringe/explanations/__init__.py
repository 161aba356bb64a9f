"""Explain image files into a folder: maps, pictures and a JSON record per image.

>>> from fringe.explanations import explain_images
>>> results = explain_images(["embedded:digits:3:5"], "out", method="ig")  # doctest: +SKIP

The options load nothing heavy: the command line shows them without torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from fringe.explanations._spec import CompareSpec, ExplainSpec

if TYPE_CHECKING:
    from fringe.explanations._base import Explanation, Failure, ImageRun, Prepared
    from fringe.explanations._call import explain
    from fringe.explanations._explain import ExplanationRun, explain_images

__all__ = [
    "CompareSpec",
    "ExplainSpec",
    "Explanation",
    "ExplanationRun",
    "Failure",
    "explain",
    "explain_images",
]

_MODULES = {
    "explain": "_call",
    **dict.fromkeys(("Explanation", "Failure", "ImageRun", "Prepared"), "_base"),
    **dict.fromkeys(("ExplanationRun", "explain_images"), "_explain"),
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
