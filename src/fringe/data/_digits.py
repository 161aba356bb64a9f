"""Embedded handwritten digits: 1797 scans of 8x8 pixels with their labels.

The scans are the test part of "Optical Recognition of Handwritten Digits" by E. Alpaydin and C. Kaynak,
UCI Machine Learning Repository (1998), doi:10.24432/C50P49, licensed CC BY 4.0; scikit-learn distributes
the same copy. The values 0..16 are unchanged; the split into 1437 training and 360 test scans,
balanced over the classes, is ours.
"""

from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from safetensors.numpy import load

from fringe.data._images import Sample

FILE = "digits.safetensors"
SOURCE = "embedded:digits"
#: Darkest value of a scan.
INK = 16

Split = Literal["train", "test"]


@dataclass(frozen=True)
class Digits:
    """The scans of digits, with labels and splits.

    Attributes:
        images: Scans (1797, 8, 8), from 0 (paper) to 16 (ink).
        labels: Digits (1797,), from 0 to 9.
        train: Indices of the training scans (1437,).
        test: Indices of the test scans (360,).
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.uint8]
    train: NDArray[np.uint16]
    test: NDArray[np.uint16]


def load_digits() -> Digits:
    """Read the embedded scans with their labels and splits."""
    arrays: dict[str, NDArray[Any]] = load(resources.files("fringe.data").joinpath(FILE).read_bytes())
    return Digits(**{name: arrays[name] for name in ("images", "labels", "train", "test")})


def digit_image(scan: NDArray[np.uint8]) -> Image.Image:
    """Turn a scan ``(8, 8)`` into an 8x8 image of mode L, with 0..16 spread over 0..255.

    The preprocessing of the embedded classifier enlarges it to 32x32 pixels.
    """
    return Image.fromarray(np.rint(scan.astype(np.float64) * (255 / INK)).astype(np.uint8))


def digits_samples(split: Split = "test") -> tuple[Sample, ...]:
    """Return every scan of one split in its stored order.

    Args:
        split: ``"test"`` (360 scans) or ``"train"`` (1437 scans).

    Returns:
        8x8 images of mode L. The eighth has the id ``digits-0007`` in the test split and ``digits-train-0007`` in the
        training split.
    """
    digits = load_digits()
    chosen = digits.test if split == "test" else digits.train
    prefix = "digits" if split == "test" else "digits-train"
    return tuple(
        Sample(f"{prefix}-{i:04d}", digit_image(digits.images[k]), int(digits.labels[k]), f"{SOURCE}:{i}")
        for i, k in enumerate(chosen)
    )
