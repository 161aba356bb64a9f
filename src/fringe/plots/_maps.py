"""From arrays as they come to what can be drawn: planes, display scales and RGB pictures."""

from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.image import AxesImage
from numpy.typing import ArrayLike, NDArray

Plane = NDArray[np.float64]

QUANTILE = 0.99
"""Display scales end at this quantile of |map|: a few extreme pixels would otherwise leave the rest blank."""

DIVERGING = "RdBu_r"
SMALL = 64
"""Pictures with a longer side up to this are drawn pixel by pixel, larger ones are interpolated."""
SMOOTHING = 150
"""The heat on a larger picture is averaged with a standard deviation of its longer side divided by this."""


def spatial(values: ArrayLike) -> Plane:
    """The map (H, W) of an attribution (C, H, W) or (H, W): its sum over the channels, signs kept."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim not in (2, 3):
        raise ValueError(f"values: expected (C, H, W) or (H, W), got shape {array.shape}")
    return array.sum(0) if array.ndim == 3 else array


def picture(image: ArrayLike) -> Plane:
    """An image (H, W), (H, W, 1) or (H, W, 3) in [0, 1] as (H, W, 3), clipped to the range a screen shows."""
    array = np.asarray(image, dtype=np.float64)
    if array.ndim == 2:
        array = array[..., None]
    if array.ndim != 3 or array.shape[-1] not in (1, 3):
        raise ValueError(f"image: expected (H, W), (H, W, 1) or (H, W, 3), got shape {array.shape}")
    return np.clip(np.broadcast_to(array, (*array.shape[:2], 3)), 0.0, 1.0)


def display_scale(plane: Plane) -> float:
    """The |value| that gets the strongest colour; 0 for a map without a finite non-zero value.

    The largest value where the quantile is zero, as for a map of few pixels.
    """
    size = np.abs(plane[np.isfinite(plane)])
    if size.size == 0:
        return 0.0
    return float(np.quantile(size, QUANTILE, method="higher")) or float(size.max())


def emptiness(plane: Plane) -> str:
    """Why there is nothing to draw, or an empty string."""
    if not np.isfinite(plane).any():
        return "the map is not finite"
    return "" if display_scale(plane) > 0 else "the map is zero everywhere"


def blend(image: ArrayLike, values: ArrayLike) -> Plane:
    """Strength of |map| laid over the greyed image: (H, W, 3). Where the map is zero, the grey image shows.

    On pictures larger than ``SMALL`` the strength is averaged over a few pixels: single ones would not be seen.
    """
    shown, plane = picture(image), np.abs(np.nan_to_num(spatial(values), nan=0.0, posinf=0.0, neginf=0.0))
    if shown.shape[:2] != plane.shape:
        raise ValueError(f"image and values: sizes {shown.shape[:2]} and {plane.shape} differ")
    grey = shown @ np.array([0.299, 0.587, 0.114])
    base = np.repeat((0.12 + 0.68 * grey)[..., None], 3, axis=-1)
    if max(plane.shape) > SMALL:
        plane = smoothed(plane, max(plane.shape) / SMOOTHING)
    scale = display_scale(plane)
    if scale == 0:
        return base
    strength = np.clip(plane / scale, 0.0, 1.0)
    colour = colormaps["inferno"](0.35 + 0.6 * strength)[..., :3]
    cover = (0.95 * strength**0.8)[..., None]
    return (1.0 - cover) * base + cover * colour


def smoothed(plane: Plane, sigma: float) -> Plane:
    """A Gaussian average of ``plane`` with standard deviation ``sigma`` pixels; edges repeat outwards."""
    reach = int(np.ceil(3 * sigma))
    weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    for axis in (0, 1):
        margin = [(reach, reach) if a == axis else (0, 0) for a in (0, 1)]
        windows = np.lib.stride_tricks.sliding_window_view(np.pad(plane, margin, mode="edge"), 2 * reach + 1, axis)
        plane = windows @ (weights / weights.sum())
    return plane


def show(axes: Axes, array: Plane, **settings: Any) -> AxesImage:
    """Draw an RGB picture at its own aspect ratio."""
    smooth = "nearest" if max(array.shape[:2]) <= SMALL else "bicubic"
    return axes.imshow(array, interpolation=smooth, **settings)


def show_signed(axes: Axes, plane: Plane, scale: float) -> AxesImage:
    """Draw a map with zero in the middle of the colours and ±``scale`` at their ends; NaN stays blank."""
    limit = scale if scale > 0 else 1.0
    return axes.imshow(plane, cmap=DIVERGING, vmin=-limit, vmax=limit, interpolation="antialiased")
