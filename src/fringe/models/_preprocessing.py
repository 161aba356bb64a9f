"""From a decoded image to what a network reads: geometry first, normalisation second.

The two are separate because methods may work on pixels, pictures are drawn without normalisation, and a baseline such
as "black" means something only before it.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import floor
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fringe.errors import ModelError, did_you_mean

RESAMPLING = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}

#: Resizing the short side of a very long strip would ask for gigabytes; this is 200 MB of RGB.
MAX_RESIZED_PIXELS = 67_108_864

_UNIT: dict[str, Any] = {
    "resize": None,
    "longest": None,
    "crop": None,
    "mean": (0.0,),
    "std": (1.0,),
    "channels": 3,
    "interpolation": "bilinear",
}

#: Recipes with a name of their own in the text form.
SHORTCUTS: dict[str, dict[str, Any]] = {
    "unit": _UNIT,
    "imagenet": _UNIT
    | {"resize": (256,), "crop": (224, 224), "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)},
}


@dataclass(frozen=True)
class Preprocessing:
    """The preprocessing of one model; resizing and cropping equal ``torchvision.transforms`` bit for bit.

    Attributes:
        resize: ``(short_side,)`` or ``(height, width)`` in pixels; None keeps the size.
        longest: The most pixels of the long side, to which an image of another shape is made smaller; None: no limit.
        crop: Centre crop ``(height, width)``, padded with black where the image is smaller; None crops nothing.
        mean: Mean of each channel, of pixels in [0, 1].
        std: Standard deviation of each channel, of pixels in [0, 1].
        channels: 3 for RGB, 1 for grey.
        interpolation: How pixels are resampled: nearest, bilinear, bicubic or lanczos.
        crop_margin: How half of an odd margin is rounded: to even numbers, as in torchvision, or down, as in the
            transformers library.

    Raises:
        ModelError: If a field has no valid value.
    """

    resize: tuple[int, ...] | None
    crop: tuple[int, int] | None
    mean: tuple[float, ...]
    std: tuple[float, ...]
    channels: Literal[1, 3] = 3
    interpolation: str = "bilinear"
    crop_margin: Literal["even", "down"] = "even"
    longest: int | None = None

    def __post_init__(self) -> None:
        if self.channels not in (1, 3):
            raise ModelError(f"channels={self.channels}: images have 1 or 3 channels")
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) != self.channels:
                raise ModelError(f"{name} has {len(values)} numbers for {self.channels} channels", hint="give one each")
            if not all(np.isfinite(values)):
                raise ModelError(f"{name}={values} must be finite")
        if min(self.std) <= 0:
            raise ModelError(f"std={self.std} must be positive: normalisation divides by it")
        if self.resize is not None and len(self.resize) not in (1, 2):
            raise ModelError(f"resize={self.resize} must be (short_side,) or (height, width)")
        if self.longest is not None and (self.resize is None or len(self.resize) != 1 or self.longest < self.resize[0]):
            raise ModelError(f"longest={self.longest} needs resize=SHORT_SIDE, of at most as many pixels")
        if self.crop is not None and len(self.crop) != 2:
            raise ModelError(f"crop={self.crop} must be (height, width)")
        if min((*(self.resize or ()), *(self.crop or ()), 1)) < 1:
            raise ModelError(f"resize={self.resize} and crop={self.crop} must be at least 1 pixel")
        if self.crop is not None and self.crop[0] * self.crop[1] > MAX_RESIZED_PIXELS:
            raise ModelError(f"crop={self.crop} is more than {MAX_RESIZED_PIXELS} pixels")
        if self.interpolation not in RESAMPLING:
            raise ModelError(
                f"interpolation {self.interpolation!r} is none of {', '.join(RESAMPLING)}",
                hint=did_you_mean(self.interpolation, RESAMPLING),
            )

    @classmethod
    def parse(cls, text: str) -> "Preprocessing":
        """Read the text form of a preprocessing.

        Args:
            text: ``"imagenet"``, ``"unit"``, or items such as ``"resize=256,crop=224,mean=0.5/0.5/0.5,std=0.5"``. Items
                after a shortcut replace its parts: ``"imagenet,mean=0.5,std=0.5"``. A size is ``256``,
                ``HEIGHTxWIDTH`` or ``none``; a single mean or std counts for every channel.

        Returns:
            The preprocessing.

        Raises:
            ModelError: For an unknown or repeated key, for a value that is no number, and for a mean without a std or a
                std without a mean, unless a shortcut states the other.
        """
        try:
            return cls._parse(text)
        except ModelError as error:
            raise ModelError(error.message, argument="preprocessing", hint=error.hint) from None

    @classmethod
    def _parse(cls, text: str) -> "Preprocessing":
        items = [item.strip() for item in text.split(",")]
        shortcut = None if "=" in items[0] else items.pop(0)
        if shortcut is not None and shortcut not in SHORTCUTS:
            message = f"{shortcut!r} is neither a shortcut ({', '.join(SHORTCUTS)}) nor KEY=VALUE"
            raise ModelError(message, hint=did_you_mean(shortcut, SHORTCUTS))
        fields = dict(SHORTCUTS[shortcut or "unit"])
        seen: set[str] = set()
        for item in items:
            key, equals, value = (part.strip() for part in item.partition("="))
            if not equals or key not in _READERS:
                hint = did_you_mean(key, _READERS, f"known: {', '.join(_READERS)}")
                raise ModelError(f"item {item!r} is not one of KEY=VALUE with a known key", hint=hint)
            if key in seen:
                raise ModelError(f"key {key!r} is given twice")
            seen.add(key)
            read, expected = _READERS[key]
            try:
                fields[key] = read(value)
            except ValueError:
                raise ModelError(f"{key}={value!r}, expected {expected}") from None
        for key, other, neutral in (("mean", "std", 1), ("std", "mean", 0)):
            if shortcut is None and key in seen and other not in seen:  # in most cases the rest of a copied line
                hint = f"write {other}=..., or {other}={neutral} if you mean it"
                raise ModelError(f"got {key} without {other}", hint=hint)
            fields[key] *= fields["channels"] if len(fields[key]) == 1 else 1
        return cls(**fields)

    def pixels(self, image: Image.Image) -> Tensor:
        """Resize and crop an image.

        Args:
            image: An image of mode RGB or L.

        Returns:
            Pixels ``(channels, H, W)``, float32 in [0, 1].

        Raises:
            ModelError: For another mode, and for an image that would become too large.
        """
        if image.mode not in ("RGB", "L"):
            raise ModelError(
                f"image mode {image.mode} is neither RGB nor L", hint="open the image with fringe.data.open_image"
            )
        image = image.convert("RGB" if self.channels == 3 else "L")
        if self.resize is not None:
            height, width = _resized(image.height, image.width, self.resize, self.longest)
            image = image.resize((width, height), RESAMPLING[self.interpolation])
        if self.crop is not None:
            image = image.crop(self._crop_box(*image.size))  # Pillow fills what lies outside with black
        values = np.array(image).reshape(image.height, image.width, self.channels)
        return torch.tensor(values).permute(2, 0, 1).contiguous().to(torch.float32) / 255

    def shown_part(self, width: int, height: int) -> tuple[float, float, float, float]:
        """Compute which part of an image the model sees: the inverse of resizing, cropping and padding.

        Args:
            width: Width of the image in pixels.
            height: Its height.

        Returns:
            Left, top, right and bottom of the model's input in pixels of the image; they lie outside of it where the
            input is padded.
        """
        high, wide = (height, width) if self.resize is None else _resized(height, width, self.resize, self.longest)
        left, top, right, bottom = (0, 0, wide, high) if self.crop is None else self._crop_box(wide, high)
        x, y = width / wide, height / high
        return left * x, top * y, right * x, bottom * y

    def _crop_box(self, width: int, height: int) -> tuple[int, int, int, int]:
        """Left, top, right and bottom of the centre crop of an image that was resized. The padding's odd pixel goes to
        the right and below."""
        rounded = floor if self.crop_margin == "down" else round
        high, wide = self.crop or (height, width)
        left, top = (
            -((side - size) // 2) if size < side else rounded((size - side) / 2)
            for side, size in ((wide, width), (high, height))
        )
        return left, top, left + wide, top + high

    def normalise(self, pixels: Tensor) -> Tensor:
        """Map pixels to the model's input.

        Args:
            pixels: Pixels ``(..., channels, H, W)`` in [0, 1].

        Returns:
            The input, of the same shape, dtype and device.
        """
        mean, std = self._columns(pixels)
        return (pixels - mean) / std

    def denormalise(self, x: Tensor) -> Tensor:
        """Map the model's input back to pixels: the inverse of :meth:`normalise`.

        Args:
            x: Model input ``(..., channels, H, W)``.

        Returns:
            Pixels of the same shape, dtype and device.
        """
        mean, std = self._columns(x)
        return x * std + mean

    def bounds(self) -> tuple[Tensor, Tensor]:
        """Compute the model's inputs for black and for white; every prepared image lies between them.

        Returns:
            (0 - mean) / std and (1 - mean) / std, ``(channels, 1, 1)`` float32 each.
        """
        black = torch.zeros(self.channels, 1, 1)
        return self.normalise(black), self.normalise(torch.ones_like(black))

    def record(self) -> dict[str, Any]:
        """Return the fields as plain data, to be stored beside a result.

        Returns:
            The fields by name, tuples as lists; without the crop margin if it is rounded to even numbers, and without
            the long side if it has no limit.
        """
        fields = {name: v for name, v in asdict(self).items() if (name, v) not in _USUAL}
        return {name: list(v) if isinstance(v, tuple) else v for name, v in fields.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] - asdict is untyped

    def _columns(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if x.ndim < 3 or x.shape[-3] != self.channels:
            raise ModelError(f"expected (..., {self.channels}, H, W), got {tuple(x.shape)}")
        return x.new_tensor(self.mean)[:, None, None], x.new_tensor(self.std)[:, None, None]


#: Fields that a record has only where they have another value.
_USUAL = (("crop_margin", "even"), ("longest", None))


def _sides(value: str) -> tuple[int, ...] | None:
    return None if value == "none" else tuple(map(int, value.split("x")))


def _both_sides(value: str) -> tuple[int, ...] | None:
    sides = _sides(value)
    return sides * 2 if sides is not None and len(sides) == 1 else sides


def _numbers(value: str) -> tuple[float, ...]:
    return tuple(map(float, value.split("/")))


#: Each key of the text form: how its value is read, and what is expected.
_READERS: dict[str, tuple[Callable[[str], object], str]] = {
    "resize": (_sides, "a whole number, HEIGHTxWIDTH or none"),
    "longest": (int, "a whole number"),
    "crop": (_both_sides, "a whole number, HEIGHTxWIDTH or none"),
    "mean": (_numbers, "numbers separated by '/'"),
    "std": (_numbers, "numbers separated by '/'"),
    "channels": (int, "a whole number"),
    "interpolation": (str, "a name"),
}


def _resized(height: int, width: int, target: tuple[int, ...], longest: int | None) -> tuple[int, int]:
    """The size after resizing; the long side is rounded down, as in torchvision."""
    short, long = min(height, width), max(height, width)
    exact = float(target[0])
    if longest is not None and long / short * exact > longest:  # as in DETR's own processor
        exact = longest * short / long
    other = int(exact * long / short)
    new = (round(exact), other) if height <= width else (other, round(exact))
    new = (target[0], target[1]) if len(target) == 2 else new
    if new[0] * new[1] > MAX_RESIZED_PIXELS:
        raise ModelError(f"resizing {width}x{height} gives {new[1]}x{new[0]} pixels", hint="crop the image first")
    return new
