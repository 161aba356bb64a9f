"""The images of the data that some methods measure others against."""

import torch
from torch import Tensor

from fringe.errors import InputError
from fringe.paths import Problem


def reference_images(problem: Problem, purpose: str) -> Tensor:
    """The call's reference images (P, *S), in the dtype of the inputs and on their device.

    ``purpose`` completes "space: ..." in the InputError of a call that holds none, as in "ig2 walks towards images of
    other classes".
    """
    given, shape = problem.domain.references, tuple(problem.inputs.shape[1:])
    if given is None:
        raise InputError(f"space: {purpose}; pass some with attribute(..., space=InputSpace(references=...))")
    if tuple(given.shape[1:]) != shape or not len(given):
        wanted = ", ".join(["P", *map(str, shape)])
        raise InputError(f"space.references: got shape {tuple(given.shape)}, expected ({wanted}) with P at least 1")
    references = given.detach().to(problem.inputs)
    if not bool(torch.isfinite(references).all()):
        raise InputError("space.references: they hold NaN or infinity")
    return references
