"""Many maps on one sheet: everything that a run explained, and one image's maps for several classes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from fringe.plots._layout import Canvas, Prediction, Sheet, fitted, open_sheet, root, text_width, wrapped
from fringe.plots._maps import (
    annotate_empty,
    blend,
    clipped_aspect,
    display_scale,
    draw_outline,
    for_display,
    picture,
    show,
    show_signed,
    signed_caption,
    spatial,
)
from fringe.plots._style import INK, LABEL, MUTED, TICK, Style, class_title, image_frame, text_style

#: Inches of a tile, between tiles, and between columns of inputs.
_TILE, _GAP, _BETWEEN = 1.5, 0.06, 0.3
#: Inches of the words above the tiles of an input, of a line above a class, and below each row.
_HEAD, _LINE, _BELOW = 0.36, 0.16, 0.16
#: Colours of a verdict, those of a page: as small words on white, those of lines are too pale.
_TONES = {"checked": "#0b5688", "fair": "#8a5300", "bad": "#a8321a", "plain": MUTED}


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


def contact_sheet(items: Sequence[SheetItem], *, title: str = "", ax: Canvas | None = None) -> Figure:
    """Draw input, overlay and signed map of every item, each map on its own scale, with prediction and verdict above,
    on a new figure or on ``ax``. Raises ValueError for no items."""
    if not items:
        raise ValueError("contact_sheet: no items")
    columns = 1 if len(items) <= 3 else 2 if len(items) <= 12 else 3
    rows = math.ceil(len(items) / columns)
    aspect = clipped_aspect(*items[0].image.shape[:2])
    size = (columns * (3 * _TILE + 2 * _GAP + _BETWEEN) - _BETWEEN, rows * (_TILE * aspect + _HEAD + _BELOW) - _BELOW)
    first = "From left to right: the input; where the evidence lies, for or against the class (bright); its sign."
    largest = max(item.pixel * max(item.image.shape[:2]) for item in items)
    caption = [first, *signed_caption((largest, largest), outlined=True)]
    sheet = open_sheet(*size, title=title, caption=caption, ax=ax)
    across, down = (sheet.width + _BETWEEN) / columns, (sheet.height + _BELOW) / rows
    tile = max((across - _BETWEEN - 2 * _GAP) / 3, _GAP)
    high = max(min(down - _HEAD - _BELOW, tile * aspect), _GAP)
    for index, item in enumerate(items):
        row, column = divmod(index, columns)
        _draw_item(sheet, item, column * across, row * down, (tile, high))
    return root(sheet.figure)


def class_maps(
    image: ArrayLike,
    values: ArrayLike,
    labels: Sequence[str],
    *,
    probabilities: ArrayLike | None = None,
    title: str = "",
    ax: Canvas | None = None,
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
    shown, planes = picture(image), [spatial(one) for one in np.asarray(values, dtype=np.float64)]
    chances = [math.nan] * len(planes) if probabilities is None else [float(p) for p in np.asarray(probabilities)]
    if not planes or not len(planes) == len(labels) == len(chances):
        counts = f"{len(planes)} maps, {len(labels)} labels and {len(chances)} probabilities"
        raise ValueError(f"class_maps: got {counts}, expected as many of each and at least one")
    drawn = [for_display(plane) for plane in planes]
    scale = max(display_scale(plane) for plane in drawn)
    heads = [wrapped(class_title(label), _TILE, TICK, most=2, bold=True) for label in labels]
    head = _LINE * (1 + max(map(len, heads)) - (probabilities is None)) + 0.02
    size, aspect = planes[0].shape, clipped_aspect(*planes[0].shape)
    columns = min(1 + len(planes), 6)
    rows = math.ceil((1 + len(planes)) / columns)
    natural = (columns * (_TILE + _GAP) - _GAP, rows * (_TILE * aspect + head + _BELOW) - _BELOW)
    sheet = open_sheet(*natural, title=title, caption=_class_caption(size), ax=ax)
    columns, tile = _tiling(sheet, 1 + len(planes), aspect, head) if ax is not None else (columns, _TILE)
    for index in range(1 + len(planes)):
        top, left = (tile * aspect + head + _BELOW) * (index // columns), (tile + _GAP) * (index % columns)
        axes = sheet.add_axes(left, top + head, tile, tile * aspect)
        image_frame(axes)
        words = [("input", text_style(TICK, MUTED))]
        if index == 0:
            show(axes, shown)
        else:
            show_signed(axes, drawn[index - 1], scale)
            draw_outline(axes, image, size)
            annotate_empty(axes, planes[index - 1])
            lines = wrapped(class_title(labels[index - 1]), tile, TICK, most=2, bold=True)
            words = [(line, text_style(TICK, INK, fontweight="bold")) for line in lines]
            if math.isfinite(chances[index - 1]):
                words.append((f"probability {chances[index - 1]:.1%}", text_style(TICK, MUTED)))
        for line, (text, style) in enumerate(reversed(words), 1):
            sheet.write(left, top + head - _LINE * line, text, style)
    return root(sheet.figure)


def _tiling(sheet: Sheet, count: int, aspect: float, head: float) -> tuple[int, float]:
    """Return the number of columns that gives ``count`` tiles the largest width on a sheet, and this width."""

    def width(columns: int) -> float:
        rows = math.ceil(count / columns)
        high = (sheet.height + _BELOW) / rows - head - _BELOW
        return max(min((sheet.width + _GAP) / columns - _GAP, high / aspect), _GAP)

    columns = max(range(1, count + 1), key=width)
    return columns, width(columns)


def _class_caption(size: Sequence[int]) -> list[str]:
    (text,) = signed_caption(size, outlined=True)
    return [text.replace("the class", "the class above the map", 1), "All maps share one scale."]


def _draw_item(sheet: Sheet, item: SheetItem, left: float, top: float, tile: tuple[float, float]) -> None:
    plane = spatial(item.values)
    tiles = [sheet.add_axes(left + k * (tile[0] + _GAP), top + _HEAD, *tile) for k in range(3)]
    drawn = for_display(plane)
    show(tiles[0], picture(item.image))
    show(tiles[1], blend(item.image, item.values))
    show_signed(tiles[2], drawn, display_scale(drawn))
    draw_outline(tiles[2], item.image, plane.shape)
    for axes in tiles:
        image_frame(axes)
    annotate_empty(tiles[2], plane)
    right = left + 3 * tile[0] + 2 * _GAP
    verdict = fitted(item.verdict.replace("_", " "), right - left, TICK, bold=True)
    style: Style = text_style(TICK, _TONES[item.tone], fontweight="bold", ha="right")
    sheet.write(right, top + 0.01, verdict, style)
    room = right - left - text_width(verdict, TICK, bold=True) - 0.1
    (prediction,) = item.prediction.lines(room, LABEL)
    sheet.write(left, top, prediction, text_style(LABEL, INK))
    sheet.write(left, top + 0.18, fitted(item.name, right - left, TICK - 1), text_style(TICK - 1, MUTED))
