"""One sheet with everything a run explained."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fringe.plots._maps import blend, display_scale, emptiness, picture, show, show_signed, spatial
from fringe.plots._style import (
    GREEN,
    INK,
    LABEL,
    MUTED,
    TICK,
    TITLE,
    VERMILION,
    frame,
    new_figure,
    note,
    printable,
    text_style,
)


@dataclass(frozen=True)
class Cell:
    """One input of the sheet: ``image`` (H, W, 1 or 3) in [0, 1], its attribution ``values`` (C, H, W), and words."""

    image: NDArray[Any]
    values: NDArray[Any]
    name: str
    prediction: str
    verdict: str


_TILE, _GAP, _HEAD, _SPACE, _MARGIN = 1.45, 0.06, 0.44, 0.28, 0.25
"""Inches: a picture, the gap between pictures, the words above them, the space between inputs, the border."""
_BLOCK = 3 * _TILE + 2 * _GAP
_TITLE = 0.55


def contact_sheet(cells: Sequence[Cell], *, title: str = "") -> Figure:
    """Input, overlay and signed map of every cell, each map at its own scale, with prediction and verdict above."""
    if not cells:
        raise ValueError("contact_sheet: no cells")
    columns = 1 if len(cells) <= 3 else 2 if len(cells) <= 12 else 3
    rows = math.ceil(len(cells) / columns)
    width = 2 * _MARGIN + columns * _BLOCK + (columns - 1) * _SPACE
    height = 2 * _MARGIN + _TITLE + rows * (_HEAD + _TILE) + (rows - 1) * _SPACE
    figure = new_figure(width, height)
    figure.text(
        _MARGIN / width,
        1 - _MARGIN / height,
        printable(title, 34 * columns + 20),
        va="top",
        **text_style(TITLE, fontweight="bold"),
    )
    legend = "input · strength of the attribution · signed (red for, blue against the class)"
    figure.text(_MARGIN / width, 1 - (_MARGIN + 0.22) / height, legend, va="top", **text_style(TICK, MUTED))
    for index, cell in enumerate(cells):
        row, column = divmod(index, columns)
        left = _MARGIN + column * (_BLOCK + _SPACE)
        top = _MARGIN + _TITLE + row * (_HEAD + _TILE + _SPACE)
        _draw(figure, cell, left, top)
    return figure


def _draw(figure: Figure, cell: Cell, left: float, top: float) -> None:
    width, height = (float(side) for side in figure.get_size_inches())
    tiles: list[Axes] = []
    for k in range(3):
        x, y = left + k * (_TILE + _GAP), top + _HEAD + _TILE
        tiles.append(figure.add_axes((x / width, 1 - y / height, _TILE / width, _TILE / height)))
        frame(tiles[-1])
    plane = spatial(cell.values)
    show(tiles[0], picture(cell.image))
    show(tiles[1], blend(cell.image, cell.values))
    show_signed(tiles[2], np.asarray(plane), display_scale(plane))
    empty = emptiness(plane)
    if empty:
        note(tiles[2], empty)
    first, second = 1 - (top + 0.02) / height, 1 - (top + 0.22) / height
    figure.text(left / width, first, printable(cell.prediction, 40), va="top", **text_style(LABEL, INK))
    figure.text(left / width, second, printable(cell.name, 46), va="top", **text_style(TICK - 1, MUTED))
    colour = GREEN if cell.verdict == "ok" else VERMILION
    style = text_style(TICK, colour, ha="right", fontweight="bold")
    figure.text((left + _BLOCK) / width, first, printable(cell.verdict, 16), va="top", **style)
