"""Explain image files into a folder: maps, pictures and a JSON record per image.

>>> from fringe.explanations import explain_images
>>> results = explain_images(["embedded:digits:3:5"], "out", method="ig")  # doctest: +SKIP

The options load nothing heavy: the command line shows them without torch.
"""

from typing import TYPE_CHECKING, Any

from fringe.explanations._spec import ExplainSpec

if TYPE_CHECKING:
    from fringe.explanations._run import Explanation, ExplanationRun, Failure, explain_images

__all__ = ["ExplainSpec", "Explanation", "ExplanationRun", "Failure", "explain_images"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fringe.explanations import _run

    return getattr(_run, name)
