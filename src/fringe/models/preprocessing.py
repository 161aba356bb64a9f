"""From a decoded image to what a network reads: geometry first, normalisation second, kept apart.

Kept apart because methods may work on pixels, pictures are drawn without normalisation, and a base point
such as "black" means something only before it.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fringe.models.errors import ModelError, did_you_mean
from fringe.models.recipe import read_recipe

RESAMPLING = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}

#: Resizing the short side of a very long strip would ask for gigabytes; this is 200 MB of RGB.
MAX_RESIZED_PIXELS = 67_108_864


@dataclass(frozen=True)
class Preprocessing:
    """The recipe of one model; resizing and cropping agree with ``torchvision.transforms`` to the bit.

    ``resize`` is ``(short_side,)`` or ``(height, width)``, None keeps the size; ``crop`` is a centre crop
    ``(height, width)`` that pads with black where the image is smaller. ``mean`` and ``std`` refer to pixels
    in [0, 1], one number per channel. Raises ``ModelError`` on a recipe that cannot be meant.
    """

    resize: tuple[int, ...] | None
    crop: tuple[int, int] | None
    mean: tuple[float, ...]
    std: tuple[float, ...]
    channels: int = 3
    interpolation: str = "bilinear"

    def __post_init__(self) -> None:
        if self.channels not in (1, 3):
            raise ModelError(f"channels={self.channels}: images have 1 or 3 channels")
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) != self.channels:
                raise ModelError(f"{name} has {len(values)} numbers for {self.channels} channels; give one each")
            if not all(np.isfinite(values)):
                raise ModelError(f"{name}={values} must be finite")
        if min(self.std) <= 0:
            raise ModelError(f"std={self.std} must be positive: normalisation divides by it")
        if self.resize is not None and len(self.resize) not in (1, 2):
            raise ModelError(f"resize={self.resize} must be (short_side,) or (height, width)")
        if self.crop is not None and len(self.crop) != 2:
            raise ModelError(f"crop={self.crop} must be (height, width)")
        if min((*(self.resize or ()), *(self.crop or ()), 1)) < 1:
            raise ModelError(f"resize={self.resize} and crop={self.crop} must be at least 1 pixel")
        if self.crop is not None and self.crop[0] * self.crop[1] > MAX_RESIZED_PIXELS:
            raise ModelError(f"crop={self.crop} is more than {MAX_RESIZED_PIXELS} pixels")
        if self.interpolation not in RESAMPLING:
            hint = did_you_mean(self.interpolation, RESAMPLING)
            raise ModelError(f"interpolation {self.interpolation!r} is none of {', '.join(RESAMPLING)}{hint}")

    @classmethod
    def parse(cls, text: str) -> "Preprocessing":
        """Read ``"resize=256,crop=224,mean=0.5/0.5/0.5,std=0.5/0.5/0.5"``, ``"imagenet"`` or ``"unit"``.

        Keys after a shortcut replace its parts: ``"imagenet,mean=0.5,std=0.5"``. A size is ``256`` or
        ``HEIGHTxWIDTH``, or ``none``; a single mean or std stands for every channel.
        """
        return cls(**read_recipe(text))

    def pixels(self, image: Image.Image) -> Tensor:
        """The geometric part: an image of mode RGB or L to ``(channels, H, W)`` float32 in [0, 1]."""
        if image.mode not in ("RGB", "L"):
            raise ModelError(f"image mode {image.mode} is neither RGB nor L; open it with fringe.data.open_image")
        image = image.convert("RGB" if self.channels == 3 else "L")
        if self.resize is not None:
            height, width = _resized(image.height, image.width, self.resize)
            image = image.resize((width, height), RESAMPLING[self.interpolation])
        if self.crop is not None:
            image = _centre_crop(image, *self.crop)
        values = np.array(image).reshape(image.height, image.width, self.channels)
        return torch.tensor(values).permute(2, 0, 1).contiguous().to(torch.float32) / 255

    def normalise(self, pixels: Tensor) -> Tensor:
        """Pixels ``(..., channels, H, W)`` in [0, 1] to the model's input; keeps dtype and device."""
        mean, std = self._columns(pixels)
        return (pixels - mean) / std

    def denormalise(self, x: Tensor) -> Tensor:
        """The inverse of ``normalise``."""
        mean, std = self._columns(x)
        return x * std + mean

    def bounds(self) -> tuple[Tensor, Tensor]:
        """The model's inputs for black and for white: (0 - mean) / std and (1 - mean) / std, (channels, 1, 1) each,
        float32. No image is prepared to anything outside them."""
        black = torch.zeros(self.channels, 1, 1)
        return self.normalise(black), self.normalise(torch.ones_like(black))

    def record(self) -> dict[str, Any]:
        """The fields as JSON-able values, to be stored beside a result."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] - asdict is untyped

    def _columns(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if x.ndim < 3 or x.shape[-3] != self.channels:
            raise ModelError(f"expected (..., {self.channels}, H, W), got {tuple(x.shape)}")
        return x.new_tensor(self.mean)[:, None, None], x.new_tensor(self.std)[:, None, None]


def _resized(height: int, width: int, target: tuple[int, ...]) -> tuple[int, int]:
    """The size after resizing; the long side is cut down to a whole number, as torchvision does."""
    if len(target) == 2:
        new = (target[0], target[1])
    elif height <= width:
        new = (target[0], int(target[0] * width / height))
    else:
        new = (int(target[0] * height / width), target[0])
    if new[0] * new[1] > MAX_RESIZED_PIXELS:
        raise ModelError(f"resizing {height}x{width} gives {new[0]}x{new[1]} pixels; crop the image first")
    return new


def _centre_crop(image: Image.Image, height: int, width: int) -> Image.Image:
    # Same rounding as torchvision: the padding's odd pixel goes to the right and below, and an odd margin
    # is cut with Python's round-half-to-even. Pillow fills what lies outside the image with black.
    if image.width < width or image.height < height:
        left, top = max(width - image.width, 0) // 2, max(height - image.height, 0) // 2
        padded = (max(width, image.width), max(height, image.height))
        image = image.crop((-left, -top, padded[0] - left, padded[1] - top))
    left, top = round((image.width - width) / 2.0), round((image.height - height) / 2.0)
    return image.crop((left, top, left + width, top + height))
