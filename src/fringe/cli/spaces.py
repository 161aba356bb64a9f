"""What a command knows of the inputs' space: the range of pixels, and reference images."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fringe.baselines import InputSpace
from fringe.cli.gather import Prepared, find, prepare
from fringe.cli.options import Exif
from fringe.cli.problems import remark
from fringe.cli.record import Failed
from fringe.data import ImageRef
from fringe.errors import InputError
from fringe.models import LoadedModel, Preprocessing

MOST = 64
"""Reference images that are kept."""


class Spaces:
    """What is known of inputs of each shape: the valid range, and the references of that shape. ``source`` tells in
    words where the references come from."""

    def __init__(self, recipe: Preprocessing, references: Sequence[Prepared], source: str, device: torch.device):
        self._bounds = [bound.to(device) for bound in recipe.bounds()]
        self._source, self._ids = source, [reference.ref.id for reference in references]
        shapes = dict.fromkeys(tuple(reference.x.shape) for reference in references)
        self._references = {
            shape: torch.stack([r.x for r in references if tuple(r.x.shape) == shape]).to(device) for shape in shapes
        }

    def of(self, inputs: Tensor) -> InputSpace:
        """The space of ``inputs`` (B, *S)."""
        low, high = self._bounds
        return InputSpace(low, high, self._references.get(tuple(inputs.shape[1:])))

    def record(self) -> dict[str, Any] | None:
        """Which references there are, as plain data; None where there are none."""
        return {"source": self._source, "images": self._ids} if self._ids else None


def open_spaces(
    text: str | None, inputs: Sequence[ImageRef], loaded: LoadedModel, device: torch.device, exif: Exif
) -> Spaces:
    """Spaces with the references behind ``--references``, or else with ``inputs``: at most ``MOST``, spread evenly.

    Raises InputError where ``--references`` leads to no image that can be opened.
    """
    refs, source = list(inputs), "inputs"
    if text is not None:
        (refs, missing), source = find([text]), text
        if not refs:
            raise InputError(f"--references: {missing[0].reason}")
        for failure in missing:
            remark(f"warning: references left out: {failure.reason}")
    count = min(len(refs), MOST)
    opened = [prepare(refs[i * len(refs) // count], loaded.preprocessing, exif) for i in range(count)]
    good = [item for item in opened if isinstance(item, Prepared)]
    if text is not None:
        for item in opened:
            if isinstance(item, Failed):
                remark(f"warning: reference left out: {item.reason}")
        if not good:
            raise InputError(f"--references: none of the {count} images behind {text!r} can be opened")
    return Spaces(loaded.preprocessing, good, source, device)
