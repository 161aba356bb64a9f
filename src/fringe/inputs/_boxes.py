"""The boxes that a detector predicts on a photograph, each of which is explained by itself."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

import torch
from torch import Tensor

from fringe.attribution import Context, to_input, to_photograph
from fringe.data import ImageRef
from fringe.detection import Boxes, Detector
from fringe.models import LoadedModel


@dataclass(frozen=True)
class PredictedBox:
    """A box: its name and that of its photograph, its place, its ``sides`` (4,) in pixels of the photograph and of the
    input, its label with the probability that is explained, and which part (4,) of the photograph the input shows."""

    name: str
    photograph: str
    place: Tensor
    sides: Tensor
    on_input: Tensor
    label: int
    score: float
    part: Tensor


def predicted_boxes(
    loaded: LoadedModel, ref: ImageRef, boxes: Boxes, exif: Literal["transpose", "ignore"]
) -> tuple[list[PredictedBox], LoadedModel]:
    """Find the boxes of a photograph.

    Args:
        loaded: A model whose module is a :class:`fringe.Detector`.
        ref: The photograph.
        boxes: Which ones, as of :meth:`fringe.Detector.find`; given ones are in pixels of the photograph.
        exif: Whether the photograph is turned by its EXIF data.

    Returns:
        The boxes, and the model with a name for "no object" among its class names.

    Raises:
        InputError: If there is no such box.
        ImageError: If the photograph cannot be opened.
    """
    recipe, detector = loaded.preprocessing, cast(Detector, loaded.module)
    image = ref.open(channels=recipe.channels, exif=exif).image
    x, part = recipe.normalise(recipe.pixels(image)), torch.tensor(recipe.shown_part(*image.size))
    size, weight = x.shape[1:], next(detector.parameters(), x)
    asked = to_input(boxes, part, size) if isinstance(boxes, Tensor) else boxes
    found = detector.find(x[None].to(weight.device), asked)
    sides, on_input = to_photograph(found.boxes.cpu().float(), part, size), found.boxes.cpu()
    each = zip(found.places, sides, on_input, found.labels.tolist(), found.probabilities.tolist(), strict=True)
    named = replace(loaded, class_names=detector.names(loaded.class_names, found.classes))
    return [PredictedBox(f"{ref.id}-{k}", ref.id, *one, part=part) for k, one in enumerate(each, 1)], named


def with_boxes(context: Context, boxes: Sequence[PredictedBox]) -> Context:
    """A context of pictures that shows the box of each row."""
    sides, parts = (torch.stack([getattr(one, name) for one in boxes]) for name in ("sides", "part"))
    return replace(context, boxes=sides, parts=parts)
