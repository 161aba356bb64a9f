"""Conversion of pictures in memory (PIL images and NumPy arrays) to images of mode RGB or L."""

from typing import Any, Literal, TypeGuard

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from fringe.data._images import to_channels
from fringe.errors import ImageError

_WHITE = (255, 255, 255)
#: PIL mode of an array (H, W, C) by its number of channels.
_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}


def is_picture(value: object) -> "TypeGuard[Image.Image | NDArray[Any]]":
    """Tell whether a value is a PIL image or a NumPy array."""
    return isinstance(value, (Image.Image, np.ndarray))


def to_images(picture: "Image.Image | NDArray[Any]", *, channels: Literal[1, 3] = 3) -> list[Image.Image]:
    """Convert pictures in memory, with the EXIF orientation of a PIL image applied.

    Args:
        picture: An image of any mode; or an array (H, W), (H, W, C) or (B, H, W, C) with C from 1 to 4, of uint8,
            uint16 (grey) or floats in [0, 1], which are rounded to 8 bits.
        channels: 3 for mode RGB, 1 for mode L.

    Returns:
        The images; one, unless an array has four axes.

    Raises:
        ImageError: If an array has another shape or dtype, or values outside the range.
    """
    if isinstance(picture, np.ndarray):
        batch = picture if picture.ndim == 4 else picture[None]
        return [to_channels(_from_array(array), channels, _WHITE) for array in batch]
    return [to_channels(ImageOps.exif_transpose(picture), channels, _WHITE)]


def _from_array(array: NDArray[Any]) -> Image.Image:
    plane = array[..., None] if array.ndim == 2 else array
    if plane.ndim != 3 or plane.shape[-1] not in _MODES or plane.size == 0:
        channels_first = array.ndim == 3 and array.shape[0] in _MODES
        hint = "move the channels last with array.transpose(1, 2, 0)" if channels_first else None
        raise ImageError(
            f"got an array of shape {array.shape}, expected (H, W) or (H, W, C) with C from 1 to 4", hint=hint
        )
    if np.issubdtype(plane.dtype, np.floating):
        low, high = float(plane.min()), float(plane.max())
        if not (low >= 0 and high <= 1):  # also false for NaN
            raise ImageError(
                f"got floats from {low:g} to {high:g}, expected pixels from 0 to 1",
                hint="divide pixels of 0 to 255 by 255, and pass an input that is normalised already as a torch tensor",
            )
        plane = np.rint(plane.astype(np.float64) * 255).astype(np.uint8)
    elif plane.dtype != np.uint8 and not (plane.dtype == np.uint16 and plane.shape[-1] == 1):
        raise ImageError(f"got an array of {plane.dtype}, expected uint8 or floats in [0, 1]")
    mode = _MODES[plane.shape[-1]]
    return Image.fromarray(np.ascontiguousarray(plane[..., 0] if mode == "L" else plane))
