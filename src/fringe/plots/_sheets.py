"""Many maps on one sheet: everything that a run explained, and one image's maps for several classes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from fringe.plots._layout import Canvas, Sheet, fitted, open_sheet, root, text_width
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
from fringe.plots._style import (
    GREEN,
    INK,
    LABEL,
    MUTED,
    TICK,
    VERMILION,
    Style,
    class_title,
    image_frame,
    text_style,
)

#: Inches of a tile, between tiles, and between columns of inputs.
_TILE, _GAP, _BETWEEN = 1.5, 0.06, 0.3
#: Inches of the words above the tiles of an input, of those above a class, and below each row.
_HEAD, _LABEL, _BELOW = 0.36, 0.34, 0.16


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


def contact_sheet(items: Sequence[SheetItem], *, title: str = "", ax: Canvas | None = None) -> Figure:
    """Draw input, overlay and signed map of every item, each map on its own scale, with prediction and verdict above.

    Args:
        items: The inputs.
        title: Title of the figure.
        ax: Axes, or part of a figure, to draw on; None for a new figure.

    Returns:
        The figure.

    Raises:
        ValueError: For no items.
    """
    if not items:
        raise ValueError("contact_sheet: no items")
    columns = 1 if len(items) <= 3 else 2 if len(items) <= 12 else 3
    rows = math.ceil(len(items) / columns)
    aspect = clipped_aspect(*items[0].image.shape[:2])
    size = (columns * (3 * _TILE + 2 * _GAP + _BETWEEN) - _BETWEEN, rows * (_TILE * aspect + _HEAD + _BELOW) - _BELOW)
    first = "From left to right: the input; where the evidence lies, for or against the class (bright); its sign."
    largest = max((item.image.shape[:2] for item in items), key=max)
    caption = [first, *signed_caption(largest, outlined=True)]
    sheet = open_sheet(*size, title=title, caption=caption, ax=ax)
    across, down = (sheet.width + _BETWEEN) / columns, (sheet.height + _BELOW) / rows
    tile = max((across - _BETWEEN - 2 * _GAP) / 3, _GAP)
    for index, item in enumerate(items):
        row, column = divmod(index, columns)
        _draw_item(sheet, item, column * across, row * down, (tile, max(down - _HEAD - _BELOW, _GAP)))
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
    """Draw one image's signed maps for several classes beside it, all on one scale: what speaks for one class may
    speak against another.

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
    columns = min(1 + len(planes), 6)
    rows, aspect = math.ceil((1 + len(planes)) / columns), clipped_aspect(*shown.shape[:2])
    caption = _class_caption(planes[0].shape)
    size = (columns * (_TILE + _GAP) - _GAP, rows * (_TILE * aspect + _LABEL + _BELOW) - _BELOW)
    sheet = open_sheet(*size, title=title, caption=caption, ax=ax)
    across, down = (sheet.width + _GAP) / columns, (sheet.height + _BELOW) / rows
    tile = (max(across - _GAP, _GAP), max(down - _LABEL - _BELOW, _GAP))
    for index in range(1 + len(planes)):
        top, left = down * (index // columns), across * (index % columns)
        axes = sheet.place(left, top + _LABEL, *tile)
        image_frame(axes)
        if index == 0:
            show(axes, shown)
            sheet.write(left, top + 0.17, "input", text_style(TICK, MUTED))
            continue
        show_signed(axes, drawn[index - 1], scale)
        draw_outline(axes, image, planes[index - 1].shape)
        annotate_empty(axes, planes[index - 1])
        name = fitted(class_title(labels[index - 1]), tile[0], TICK, bold=True)
        sheet.write(left, top, name, text_style(TICK, INK, fontweight="bold"))
        if math.isfinite(chances[index - 1]):
            sheet.write(left, top + 0.17, f"probability {chances[index - 1]:.1%}", text_style(TICK, MUTED))
    return root(sheet.figure)


def _class_caption(size: Sequence[int]) -> list[str]:
    (text,) = signed_caption(size, outlined=True)
    return [text.replace("the class", "the class above the map", 1), "All maps share one scale."]


def _draw_item(sheet: Sheet, item: SheetItem, left: float, top: float, tile: tuple[float, float]) -> None:
    plane = spatial(item.values)
    tiles = [sheet.place(left + k * (tile[0] + _GAP), top + _HEAD, *tile) for k in range(3)]
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
    colour = GREEN if item.verdict == "ok" else VERMILION
    style: Style = text_style(TICK, colour, fontweight="bold", ha="right")
    sheet.write(right, top + 0.01, verdict, style)
    room = right - left - text_width(verdict, TICK, bold=True) - 0.1
    sheet.write(left, top, fitted(item.prediction, room, LABEL), text_style(LABEL, INK))
    sheet.write(left, top + 0.18, fitted(item.name, right - left, TICK - 1), text_style(TICK - 1, MUTED))
