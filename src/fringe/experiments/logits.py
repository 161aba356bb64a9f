"""Whether a model still computes what it did: logits of a few images. The digest of its weights does not see the code
of ``forward``, nor the library that runs it."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from fringe.classifier import Classifier
from fringe.errors import FringeError, TransientError, is_transient
from fringe.experiments.draw import ImageEntry, open_picture
from fringe.models import LoadedModel

IMAGES = 4
"""Images of a model whose logits are kept."""

TOLERANCE = 1e-4
"""Largest difference that is rounding, as a part of the largest logit, on one kind of device."""
OTHER_DEVICE = 5e-2
"""The same between two kinds, of which one may multiply in a shorter format."""


@dataclass(frozen=True)
class FirstLogits:
    """Logits (C,) of a model by image digest, and the ``tolerance`` within which they are the same again."""

    values: Mapping[str, Tensor]
    tolerance: float = TOLERANCE

    def differing(self, others: Mapping[str, Tensor], *, same_device: bool = True) -> tuple[str, float] | None:
        """The image on which ``others`` differ most, and by how much, if that is more than rounding; None where they
        agree on all images that both have. Of two devices one may not run the model at all: what only one of them could
        compute is then no difference."""
        tolerance = self.tolerance if same_device else max(self.tolerance, OTHER_DEVICE)
        pairs = {image: (others[image], now) for image, now in self.values.items() if image in others}
        if not same_device:
            pairs = {image: pair for image, pair in pairs.items() if all(bool(one.isfinite().all()) for one in pair)}
        both = {image: _apart(*pair) for image, pair in pairs.items()}
        far = [(image, distance) for image, (distance, size) in both.items() if not distance <= tolerance * size]
        return max(far, key=lambda one: one[1], default=None)


def first_logits(
    model: LoadedModel,
    pictures: Iterable[ImageEntry],
    exif: Literal["transpose", "ignore"],
    device: str | torch.device = "cpu",
) -> FirstLogits:
    """The logits of the first images that can be opened; one NaN where the model does not take an image. Raises
    TransientError where memory or the device fails."""
    classifier, found = Classifier(model.module), dict[str, Tensor]()
    for picture in pictures:
        if len(found) == IMAGES:
            break
        try:
            x = open_picture(picture, model.preprocessing, exif)
        except FringeError:  # its row will say why it has no score
            continue
        try:
            found[picture.digest] = classifier.logits(x[None].to(device))[0].float().cpu()
        except Exception as error:  # a model may raise nearly anything; the rows will say what
            if is_transient(error):
                reason = str(error).strip().splitlines() or [type(error).__name__]
                raise TransientError(f"model {model.spec!r}: {reason[0]}") from error
            found[picture.digest] = torch.full((1,), math.nan)
    return FirstLogits(found, _tolerance(model.module))


def _tolerance(module: nn.Module) -> float:
    """What rounding may move: more in a model of short numbers."""
    kinds = {parameter.dtype for parameter in module.parameters() if parameter.dtype.is_floating_point}
    return max([TOLERANCE, *(16 * torch.finfo(kind).eps for kind in kinds)])


def _apart(before: Tensor, now: Tensor) -> tuple[float, float]:
    """The largest difference, infinite where one has other classes or numbers that are not finite, and the size of the
    logits."""
    if not torch.equal(before.isfinite(), now.isfinite()):  # nor are they for two shapes
        return math.inf, 0.0
    finite = before.isfinite()
    if not finite.any():
        return 0.0, 0.0
    size = float(before[finite].abs().max())
    return float((before - now)[finite].abs().max()), max(size, 1e-3)
