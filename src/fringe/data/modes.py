"""Every pixel mode a file can come in, turned into RGB or L without losing or inventing light."""

from typing import Literal

import numpy as np
from PIL import Image

from fringe.data.errors import ImageError

#: Modes whose values are 16-bit grey, also where Pillow holds them in 32 bits.
_WHOLE = ("I", "I;16", "I;16B", "I;16L", "I;16N")

WHITE_16 = 65535


def to_channels(image: Image.Image, channels: Literal[1, 3], background: tuple[int, int, int]) -> Image.Image:
    """A new image of mode RGB or L; transparent parts are laid over ``background``.

    Pillow's own conversion clips 16-bit and float values at 255 and keeps the colour hidden below full
    transparency, so both are done here. Raises ``ImageError`` on values without a known scale.
    """
    if image.mode in _WHOLE:
        image = _from_values(np.array(image).astype(np.float64), WHITE_16, image.mode)
    elif image.mode == "F":
        image = _from_values(np.array(image).astype(np.float64), 1.0, image.mode)
    elif image.has_transparency_data or image.mode in ("La", "RGBa"):
        image = _over(image, background)
    # Pillow knows no direct way from every mode to L
    in_colour = image if image.mode in ("L", "1", "RGB") else image.convert("RGB")
    return in_colour.convert("RGB" if channels == 3 else "L")


def _from_values(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]], white: float, mode: str) -> Image.Image:
    low, high = float(values.min()), float(values.max())
    if not (low >= 0 and high <= white):  # false for NaN as well
        raise ImageError(f"mode {mode} has values from {low:g} to {high:g}; expected 0 to {white:g}")
    return Image.fromarray(np.rint(values * (255 / white)).astype(np.uint8))


def _over(image: Image.Image, background: tuple[int, int, int]) -> Image.Image:
    if image.mode in ("La", "RGBa"):  # colours already multiplied by alpha
        image = image.convert("LA" if image.mode == "La" else "RGBA")
    ground = Image.new("RGBA", image.size, (*background, 255))
    return Image.alpha_composite(ground, image.convert("RGBA")).convert("RGB")
