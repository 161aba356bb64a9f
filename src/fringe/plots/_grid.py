"""Many methods' maps of the same images, side by side."""

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from fringe.plots._maps import SMALL, Plane, display_scale, picture, show
from fringe.plots._style import (
    FONT,
    INK,
    LABEL,
    MUTED,
    RULE,
    TICK,
    TITLE,
    frame,
    new_figure,
    note,
    printable,
    text_style,
)

COLOURS = "inferno"


@dataclass(frozen=True)
class Word:
    """A number under a map, such as ``MI .43``; the best of its kind is set in bold."""

    text: str
    best: bool = False


@dataclass(frozen=True)
class Tile:
    """An attribution ``values`` (C, H, W) and up to two words about it. ``remark`` stands in its middle; without values
    it says why there are none."""

    values: NDArray[Any] | None
    words: tuple[Word, ...] = ()
    remark: str = ""


@dataclass(frozen=True)
class Strip:
    """One row of the grid: ``image`` (H, W, 1 or 3) in [0, 1] with its name and prediction, and a tile a method."""

    image: NDArray[Any]
    name: str
    prediction: str
    tiles: tuple[Tile, ...]


_TILE, _GAP, _WORDS, _MARGIN, _BAR = 1.45, 0.07, 0.42, 0.25, 0.85
"""Inches: a picture, the gap between columns, the words below a picture, the border, the colour bar with its words."""
_TITLE, _LINE, _NAMES = 0.22, 0.17, 0.36
"""Inches: the title, a line of the caption, the names of the columns."""
_LETTERS = 14
"""Letters of a caption that an inch holds at least."""


def comparison_grid(
    strips: Sequence[Strip], methods: Sequence[str], *, title: str = "", caption: str = "", pool: int | None = None
) -> Figure:
    """Input and maps of every strip, a column a method. A map is drawn as the mass ``sum_c |A_c|`` of its pixels,
    averaged over ``pool`` x ``pool`` of them (None: :func:`pool_for` each image), in units of its own 99th percentile:
    all share one scale of colours, and methods of different units can be compared by where they look.
    """
    if not strips:
        raise ValueError("comparison_grid: no images")
    if any(len(strip.tiles) != len(methods) for strip in strips):
        raise ValueError(f"comparison_grid: every image needs a map of each of the {len(methods)} methods")
    pools = [pool or pool_for(strip.image.shape[:2]) for strip in strips]
    width = 2 * _MARGIN + (1 + len(methods)) * (_TILE + _GAP) - _GAP + _BAR
    captions = [
        line for text in (caption, _scaling(pools)) for line in wrap(text, int((width - 2 * _MARGIN) * _LETTERS))
    ]
    head = _MARGIN + _TITLE + len(captions) * _LINE + _NAMES
    figure = new_figure(width, head + len(strips) * (_TILE + _WORDS) + _MARGIN)
    _headline(figure, title, captions, methods, head)
    for row, (strip, window) in enumerate(zip(strips, pools, strict=True)):
        _draw_strip(figure, strip, head + row * (_TILE + _WORDS), window)
    _colour_bar(figure, head, min(len(strips), 2) * (_TILE + _WORDS) - _WORDS)
    return figure


def pool_for(size: tuple[int, ...]) -> int:
    """The window (odd, in pixels) that makes maps of a picture of this (H, W) readable at the size of a tile."""
    longest = max(size)
    return 1 if longest <= SMALL else 2 * round(longest / 90) + 1


def mass(values: ArrayLike, pool: int = 1) -> Plane:
    """``sum_c |A_c|`` (H, W) of an attribution (C, H, W), averaged over the pixels of a ``pool`` x ``pool`` window that
    lie inside the picture."""
    array = np.abs(np.asarray(values, dtype=np.float64))
    plane = array.sum(0) if array.ndim == 3 else array
    if plane.ndim != 2:
        raise ValueError(f"values: expected (C, H, W) or (H, W), got shape {array.shape}")
    return plane if pool == 1 else _box_sum(plane, pool) / _box_sum(np.ones_like(plane), pool)


def _box_sum(plane: Plane, window: int) -> Plane:
    before = (window - 1) // 2
    padded = np.pad(plane, (before, window - 1 - before))
    return np.lib.stride_tricks.sliding_window_view(padded, (window, window)).sum((-2, -1))


def _scaling(windows: Sequence[int]) -> str:
    pooled = [f"{window} × {window}" for window in sorted(set(windows)) if window > 1]
    averaged = f", averaged over {' or '.join(pooled)} pixels" if pooled else ""
    return f"Σ|attribution| of a pixel over its channels{averaged}; each map in units of its own 99th percentile"


def _headline(figure: Figure, title: str, captions: Sequence[str], methods: Sequence[str], head: float) -> None:
    width = float(figure.get_figwidth())
    style = text_style(TITLE, fontweight="bold")
    _write(figure, _MARGIN, _MARGIN, printable(title, int((width - 2 * _MARGIN) * 10)), style)
    for line, caption in enumerate(captions):
        _write(figure, _MARGIN, _MARGIN + _TITLE + line * _LINE, printable(caption, 400), text_style(TICK, MUTED))
    for column, name in enumerate(("input", *methods)):
        style = text_style(LABEL, INK if column else MUTED, ha="center", fontweight="bold" if column else "normal")
        _write(figure, _left(column) + _TILE / 2, head - 0.21, printable(name, 18), style)


def _draw_strip(figure: Figure, strip: Strip, top: float, pool: int) -> None:
    show(_place(figure, 0, top), picture(strip.image))
    below = top + _TILE + 0.05
    _write(figure, _left(0), below, printable(strip.prediction, 22), text_style(TICK))
    _write(figure, _left(0), below + 0.15, printable(strip.name, 24), text_style(TICK - 1, MUTED))
    for column, tile in enumerate(strip.tiles, start=1):
        _draw_tile(_place(figure, column, top), tile, strip.image.shape[:2], pool)
        for k, word in enumerate(tile.words[:2]):
            style = text_style(TICK, INK if word.best else MUTED, fontweight="bold" if word.best else "normal")
            _write(figure, _left(column) + (0.02 + 0.5 * k) * _TILE, below, printable(word.text, 12), style)


def _left(column: int) -> float:
    return _MARGIN + column * (_TILE + _GAP)


def _write(figure: Figure, left: float, top: float, text: str, style: dict[str, Any]) -> None:
    """``text`` with its upper edge ``top`` inches from the figure's."""
    width, height = (float(side) for side in figure.get_size_inches())
    figure.text(left / width, 1 - top / height, text, va="top", **style)


def _place(figure: Figure, column: int, top: float) -> Axes:
    width, height = (float(side) for side in figure.get_size_inches())
    box = (_left(column) / width, 1 - (top + _TILE) / height, _TILE / width, _TILE / height)
    axes = figure.add_axes(box)
    frame(axes)
    return axes


def _draw_tile(axes: Axes, tile: Tile, size: tuple[int, ...], pool: int) -> None:
    plane = np.full(size, np.nan) if tile.values is None else mass(tile.values, pool)
    scale = display_scale(plane)
    colours = colormaps[COLOURS].with_extremes(bad="#eceef1")
    axes.imshow(plane / (scale or 1.0), cmap=colours, vmin=0.0, vmax=1.0, interpolation="antialiased")
    remark = tile.remark or ("not finite" if not np.isfinite(plane).any() else "" if scale else "zero")
    if remark:
        note(axes, printable(remark, 16))


def _colour_bar(figure: Figure, top: float, length: float) -> None:
    width, height = (float(side) for side in figure.get_size_inches())
    left = width - _MARGIN - _BAR + 0.14
    axes = figure.add_axes((left / width, 1 - (top + length) / height, 0.13 / width, length / height))
    bar = figure.colorbar(ScalarMappable(Normalize(0.0, 1.0), COLOURS), cax=axes, extend="max", extendfrac=0.03)
    bar.outline.set_visible(False)
    bar.set_ticks([0.0, 0.5, 1.0])
    axes.tick_params(color=RULE, labelcolor=MUTED, labelsize=TICK, width=0.8, length=3, labelfontfamily=FONT)
    bar.set_label("of its 99th percentile", labelpad=4, **text_style(TICK, MUTED))
