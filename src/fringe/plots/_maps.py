"""Attribution maps as images: what of an array is drawn, the heat map over the image, the signed map, and one sheet
with everything that a run explained."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colorbar import Colorbar
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from numpy.typing import ArrayLike, NDArray

from fringe.plots._style import (
    GREEN,
    LABEL,
    MARGIN,
    MUTED,
    TICK,
    TITLE,
    VERMILION,
    Style,
    annotate,
    image_frame,
    new_figure,
    sanitise,
    set_padding,
    style_ticks,
    text_style,
    titled_figure,
)

Plane = NDArray[np.float64]

#: Display scales end at this quantile of |map|: a few extreme pixels would otherwise leave the rest blank.
QUANTILE = 0.99
DIVERGING = "RdBu_r"
#: Images with a longer side up to this are drawn pixel by pixel, larger ones are interpolated.
SMALL = 64
#: The heat on a larger image is averaged with a standard deviation of its longer side divided by this.
SMOOTHING = 150
#: Pixels of the longer side that small images are enlarged towards, by an integer factor.
LONG_SIDE = 640


@dataclass(frozen=True)
class SheetItem:
    """One input of a contact sheet.

    Attributes:
        image: The input (H, W, 1 or 3) in [0, 1].
        values: Its attribution (C, H, W).
        name: Its name.
        prediction: What the model predicts.
        verdict: Verdict on the attribution.
    """

    image: NDArray[Any]
    values: NDArray[Any]
    name: str
    prediction: str
    verdict: str


def overlay(image: ArrayLike, values: ArrayLike) -> Figure:
    """Draw |attribution| over an image, filling the figure: each pixel of a small image is a block of equal size.

    It shows where the evidence lies: on large images its strength is smoothed a little (:func:`blend`). An attribution
    that is zero or not finite leaves the grey image with a note that says so.

    Args:
        image: Image (H, W), (H, W, 1) or (H, W, 3) in [0, 1].
        values: Attribution (C, H, W) or (H, W), with any sign and scale.

    Returns:
        The figure.

    Raises:
        ValueError: For other shapes, or sizes that differ.
    """
    blended = blend(image, values)
    height, width = blended.shape[:2]
    factor = max(1, round(LONG_SIDE / max(height, width)))
    figure = new_figure(width * factor / 100, height * factor / 100, dpi=100)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    show(axes, blended, aspect="auto")
    annotate_empty(axes, spatial(values))
    return figure


def signed_map(values: ArrayLike, *, title: str = "", unit: str = "") -> Figure:
    """Draw an attribution, summed over channels, in diverging colours: zero is white, red speaks for the class, blue
    against it.

    The scale ends at a robust maximum (the colour bar's points mean "and beyond"). A map that is zero or not finite is
    drawn blank with a note.

    Args:
        values: Attribution (C, H, W) or (H, W).
        title: Title of the figure.
        unit: Unit of the explained score.

    Returns:
        The figure.

    Raises:
        ValueError: For another shape.
    """
    plane = spatial(values)
    width = 4.0 * clipped_aspect(plane.shape[1], plane.shape[0])
    figure = new_figure(width + 1.4, 4.6, layout="compressed")
    set_padding(figure, w_pad=MARGIN, h_pad=MARGIN)
    axes = figure.add_subplot()
    image = show_signed(axes, plane, display_scale(plane))
    image_frame(axes)
    axes.set_title(sanitise(title), loc="left", pad=8, **text_style(TITLE))
    bar = colour_bar(axes, image, f"attribution per pixel ({unit})" if unit else "attribution per pixel", extend="both")
    bar.formatter.set_powerlimits((-2, 3))  # pyright: ignore[reportAttributeAccessIssue] - a ScalarFormatter
    bar.update_ticks()
    annotate_empty(axes, plane)
    return figure


def contact_sheet(items: Sequence[SheetItem], *, title: str = "") -> Figure:
    """Draw input, overlay and signed map of every item, each map on its own scale, with prediction and verdict above.

    Args:
        items: The inputs.
        title: Title of the figure.

    Returns:
        The figure.

    Raises:
        ValueError: For no items.
    """
    if not items:
        raise ValueError("contact_sheet: no items")
    columns = 1 if len(items) <= 3 else 2 if len(items) <= 12 else 3
    rows = math.ceil(len(items) / columns)
    height = 1.45 * clipped_aspect(*items[0].image.shape[:2]) + 0.5
    caption = ("input · strength of the attribution · signed (red for, blue against the class)",)
    figure = titled_figure(columns * 4.8, rows * height, title=title, caption=caption, layout="compressed")
    grid = figure.add_gridspec(rows, 4 * columns, width_ratios=[1, 1, 1, 0.15] * columns)
    for index, item in enumerate(items):
        row, column = divmod(index, columns)
        _draw_item([figure.add_subplot(grid[row, 4 * column + k]) for k in range(3)], item)
    return figure


def _draw_item(tiles: list[Axes], item: SheetItem) -> None:
    plane = spatial(item.values)
    show(tiles[0], picture(item.image))
    show(tiles[1], blend(item.image, item.values))
    show_signed(tiles[2], plane, display_scale(plane))
    for axes in tiles:
        image_frame(axes)
    annotate_empty(tiles[2], plane)
    tiles[0].set_title(sanitise(item.prediction, 40), loc="left", pad=15, **text_style(LABEL))
    above: Style = {"xytext": (0, 4), "textcoords": "offset points", "in_layout": False}
    tiles[0].annotate(sanitise(item.name, 46), (0, 1), xycoords="axes fraction", **above, **text_style(TICK - 1, MUTED))
    style = text_style(TICK, GREEN if item.verdict == "ok" else VERMILION, fontweight="bold")
    tiles[2].set_title(sanitise(item.verdict, 16), loc="right", pad=15, **style)


def colour_bar(axes: Any, mappable: ScalarMappable, label: str, **more: Any) -> Colorbar:
    """Draw a colour bar to the right of ``axes``, one or several, with points at the ends that ``extend`` names."""
    figure = (axes if isinstance(axes, Axes) else axes[0]).figure
    options: Style = {"extendfrac": 0.025, "fraction": 0.05, "pad": 0.02, "aspect": 25, **more}
    bar = figure.colorbar(mappable, ax=axes, **options)
    bar.outline.set_visible(False)
    style_ticks(bar.ax)
    bar.set_label(sanitise(label), labelpad=6, **text_style(LABEL, MUTED))
    return bar


def clipped_aspect(height: float, width: float) -> float:
    """Return the ratio of two sides, within what fits on a page."""
    return min(max(height / width, 0.4), 2.5)


def spatial(values: ArrayLike) -> Plane:
    """Return the map (H, W) of an attribution (C, H, W) or (H, W): its sum over the channels, with signs."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim not in (2, 3):
        raise ValueError(f"values: expected (C, H, W) or (H, W), got shape {array.shape}")
    return array.sum(0) if array.ndim == 3 else array


def picture(image: ArrayLike) -> Plane:
    """Return an image (H, W), (H, W, 1) or (H, W, 3) in [0, 1] as (H, W, 3), clipped to the range a screen shows."""
    array = np.asarray(image, dtype=np.float64)
    if array.ndim == 2:
        array = array[..., None]
    if array.ndim != 3 or array.shape[-1] not in (1, 3):
        raise ValueError(f"image: expected (H, W), (H, W, 1) or (H, W, 3), got shape {array.shape}")
    return np.clip(np.broadcast_to(array, (*array.shape[:2], 3)), 0.0, 1.0)


def display_scale(plane: Plane) -> float:
    """Return the |value| that gets the strongest colour; 0 for a map without a finite non-zero value.

    It is the largest value where the quantile is zero, as for a map of few pixels.
    """
    size = np.abs(plane[np.isfinite(plane)])
    if size.size == 0:
        return 0.0
    return float(np.quantile(size, QUANTILE, method="higher")) or float(size.max())


def empty_reason(plane: Plane) -> str:
    """Return why there is nothing to draw, or an empty string."""
    return "" if display_scale(plane) > 0 else "zero" if np.isfinite(plane).any() else "not finite"


def annotate_empty(axes: Axes, plane: Plane) -> None:
    """Write on a map why it is blank, if it is."""
    reason = empty_reason(plane)
    if reason:
        annotate(axes, f"the map is {reason}{' everywhere' if reason == 'zero' else ''}")


def blend(image: ArrayLike, values: ArrayLike) -> Plane:
    """Return the strength of |map| laid over the greyed image: (H, W, 3). Where the map is zero, the grey image shows.

    On images larger than ``SMALL`` the strength is averaged over a few pixels: single ones would not be seen.
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
    """Return a Gaussian average of ``plane`` with standard deviation ``sigma`` pixels; edges repeat outwards."""
    reach = int(np.ceil(3 * sigma))
    weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    for axis in (0, 1):
        margin = [(reach, reach) if a == axis else (0, 0) for a in (0, 1)]
        windows = np.lib.stride_tricks.sliding_window_view(np.pad(plane, margin, mode="edge"), 2 * reach + 1, axis)
        plane = windows @ (weights / weights.sum())
    return plane


def show(axes: Axes, array: Plane, **settings: Any) -> AxesImage:
    """Draw an RGB image at its own aspect ratio."""
    smooth = "nearest" if max(array.shape[:2]) <= SMALL else "bicubic"
    return axes.imshow(array, interpolation=smooth, **settings)


def show_signed(axes: Axes, plane: Plane, scale: float) -> AxesImage:
    """Draw a map with zero in the middle of the colours and ±``scale`` at their ends; NaN stays blank."""
    limit = scale if scale > 0 else 1.0
    return axes.imshow(plane, cmap=DIVERGING, vmin=-limit, vmax=limit, interpolation="antialiased")
