"""Explain image files into a folder: maps, pictures and a JSON record per image; and compare methods on image files.

>>> from fringe.explanations import explain_images
>>> results = explain_images(["embedded:digits:3:5"], "out", method="ig")  # doctest: +SKIP

The options load nothing heavy: the command line shows them without torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from fringe.explanations._spec import CompareSpec, ExplainSpec

if TYPE_CHECKING:
    from fringe.explanations._compare import ComparisonRun
    from fringe.explanations._explain import Explanation, ExplanationRun, explain_images
    from fringe.explanations._inputs import Failure

__all__ = [
    "CompareSpec",
    "ComparisonRun",
    "ExplainSpec",
    "Explanation",
    "ExplanationRun",
    "Failure",
    "explain_images",
]

_MODULES = {"_compare": ("ComparisonRun",), "_explain": ("Explanation", "ExplanationRun", "explain_images")}


def __getattr__(name: str) -> Any:
    module = next((module for module, names in {**_MODULES, "_inputs": ("Failure",)}.items() if name in names), None)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
