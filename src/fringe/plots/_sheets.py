"""Many maps on one sheet: everything that a run explained, and one image's maps for several classes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from fringe._text import percent
from fringe.plots import _maps as maps
from fringe.plots import _style as styles
from fringe.plots._grid import Prediction

#: Inches of a tile with the gap beside it, and of the words around it.
_TILE, _WORDS = 1.56, 0.5
#: Colours of a verdict, those of a page: as small words on white, those of lines are too pale.
_TONES = {"checked": "#0b5688", "fair": "#8a5300", "bad": "#a8321a", "plain": styles.MUTED}


@dataclass(frozen=True)
class SheetItem:
    """One input of a contact sheet: its image (H, W, 1 or 3) in [0, 1], the attribution (C, H, W), the prediction, and
    the verdict with its tone, of ``_TONES``. Where the image was made smaller, ``pixel`` is how many
    pixels of the input lie along the side of one of it."""

    image: NDArray[Any]
    values: NDArray[Any]
    name: str
    prediction: Prediction
    verdict: str
    tone: str
    pixel: int = 1


def contact_sheet(items: Sequence[SheetItem], *, title: str = "", ax: styles.Canvas | None = None) -> Figure:
    """Draw input, overlay and signed map of every item, each map on its own scale, with prediction and verdict above,
    on a new figure or on ``ax``. Raises ValueError for no items."""
    if not items:
        raise ValueError("contact_sheet: no items")
    columns = 1 if len(items) <= 3 else 2 if len(items) <= 12 else 3
    rows = math.ceil(len(items) / columns)
    first = "From left to right: the input; where the evidence lies, for or against the class (bright); its sign."
    largest = max(item.pixel * max(item.image.shape[:2]) for item in items)
    caption = [first, *maps.signed_caption((largest, largest), outlined=True)]
    size = (columns * 3.1 * _TILE, rows * (_TILE * styles.clipped_aspect(*items[0].image.shape[:2]) + _WORDS))
    panel = styles.open_panel(*size, title=title, caption=caption, ax=ax)
    parts = panel.subfigures(rows, columns, squeeze=False).flat
    tiles = [_draw_item(part, item) for part, item in zip(parts, items, strict=False)]
    if ax is None:
        styles.fit_height(tiles[0], rows)
    return styles.root(panel)


def class_maps(
    image: ArrayLike,
    values: ArrayLike,
    labels: Sequence[str],
    *,
    probabilities: ArrayLike | None = None,
    title: str = "",
    ax: styles.Canvas | None = None,
) -> Figure:
    """Draw one image, and beside it its signed maps for several classes, all on one scale.

    Args:
        image: Image (H, W), (H, W, 1) or (H, W, 3) in [0, 1].
        values: Attributions (K, C, H, W) or (K, H, W), one per class.
        labels: Names of the K classes.
        probabilities: Their probabilities (K,), written beside the names.
        title: Title of the picture.
        ax: Axes, or part of a figure, to draw on; None for a new figure.

    Returns:
        The figure.

    Raises:
        ValueError: For no classes, or parts of other sizes.
    """
    shown, planes = maps.picture(image), [maps.spatial(one) for one in np.asarray(values, dtype=np.float64)]
    chances = [math.nan] * len(planes) if probabilities is None else [float(p) for p in np.asarray(probabilities)]
    if not planes or not len(planes) == len(labels) == len(chances):
        counts = f"{len(planes)} maps, {len(labels)} labels and {len(chances)} probabilities"
        raise ValueError(f"class_maps: got {counts}, expected as many of each and at least one")
    drawn = [maps.for_display(plane) for plane in planes]
    scale = max(maps.display_scale(plane) for plane in drawn)
    size, aspect, count = planes[0].shape, styles.clipped_aspect(*planes[0].shape), 1 + len(planes)
    columns = min(count, 6) if ax is None else _columns(ax, count, aspect)
    rows = math.ceil(count / columns)
    natural = (columns * _TILE, rows * (_TILE * aspect + _WORDS))
    panel = styles.open_panel(*natural, title=title, caption=_class_caption(size), ax=ax)
    letters = max(int(0.78 * panel.bbox.width / panel.dpi / columns / styles.LETTER) - 1, 8)
    grid = list(panel.subplots(rows, columns, squeeze=False).flat)
    for axes in grid[count:]:
        axes.remove()
    for axes in grid[:count]:
        styles.image_frame(axes)
    maps.show(grid[0], shown)
    styles.write(grid[0], title="input", bold=False)
    for axes, plane, averaged, label, chance in zip(grid[1:], planes, drawn, labels, chances, strict=False):
        maps.show_signed(axes, averaged, scale)
        maps.draw_outline(axes, image, size)
        maps.annotate_empty(axes, plane)
        below = f"probability {percent(chance)}" if math.isfinite(chance) else ""
        styles.write(axes, title=styles.wrapped(styles.class_title(label), letters), x=below)
    if ax is None:
        styles.fit_height(grid[0], rows)
    return styles.root(panel)


def _columns(ax: styles.Canvas, count: int, aspect: float) -> int:
    """Return the number of columns that gives ``count`` images of this aspect the largest width on a canvas."""
    box = ax.get_window_extent() if isinstance(ax, Axes) else ax.bbox
    return max(range(1, count + 1), key=lambda n: min(box.width / n, box.height / math.ceil(count / n) / aspect))


def _class_caption(size: Sequence[int]) -> list[str]:
    (text,) = maps.signed_caption(size, outlined=True)
    return [text.replace("the class", "the class above the map", 1), "All maps share one scale."]


def _draw_item(part: styles.Panel, item: SheetItem) -> Axes:
    """Draw one input with its words, and return its first image."""
    plane = maps.spatial(item.values)
    tiles = part.subplots(1, 3)
    drawn = maps.for_display(plane)
    maps.show(tiles[0], maps.picture(item.image))
    maps.show(tiles[1], maps.blend(item.image, item.values))
    maps.show_signed(tiles[2], drawn, maps.display_scale(drawn))
    maps.draw_outline(tiles[2], item.image, plane.shape)
    for axes in tiles:
        styles.image_frame(axes)
    maps.annotate_empty(tiles[2], plane)
    across = part.bbox.width / part.dpi
    letters = int(across / styles.LETTER)
    prediction = item.prediction.text(letters // 4 if item.prediction.explained else letters // 2)
    part.suptitle(
        prediction, x=styles.MARGIN / across, ha="left", wrap=True, **styles.text_style(styles.LABEL, styles.INK)
    )
    name = styles.sanitise(item.name, letters // 2)  # may stand over the second image
    small = styles.text_style(styles.TICK - 1, styles.MUTED, in_layout=False)
    tiles[0].set_title(name, loc="left", pad=5, **small)
    style = styles.text_style(styles.TICK, _TONES[item.tone], fontweight="bold")
    tiles[2].set_title(item.verdict.replace("_", " "), loc="right", pad=5, **style)
    return tiles[0]
