"""Maps of the same images by many methods, side by side, with the two scores that matter most under each."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from fringe._direction import ARROW, Direction, best_of
from fringe.plots._layout import Canvas, Prediction, Sheet, fitted, open_sheet, root, text_width, wrapped
from fringe.plots._maps import (
    SMALL,
    STRENGTH,
    Plane,
    clipped_aspect,
    colour_bar,
    display_scale,
    empty_reason,
    picture,
    show,
)
from fringe.plots._style import INK, LABEL, MUTED, TICK, annotate, image_frame, method_title, sanitise, text_style

#: Inches of an image's width, between two of them, of a line of text, and of the colour bar with its words.
_TILE, _GAP, _LINE, _BAR = 1.5, 0.08, 0.16, 0.75
#: Decimals that may show a difference between the best and the second.
_DECIMALS = 5


@dataclass(frozen=True)
class Annotation:
    """A score under a map.

    Attributes:
        text: The score, such as ``MI .43``.
        best: Whether it is the best of its kind, which is bold.
    """

    text: str
    best: bool = False


@dataclass(frozen=True)
class GridCell:
    """One method's map of one image.

    Attributes:
        values: The attribution (C, H, W), or None.
        annotations: Up to two scores under it.
        remark: Text in its middle; without values it says why there are none.
    """

    values: NDArray[Any] | None
    annotations: tuple[Annotation, ...] = ()
    remark: str = ""


@dataclass(frozen=True)
class GridRow:
    """One image and its maps.

    Attributes:
        image: The image (H, W, 1 or 3) in [0, 1].
        name: Its name.
        prediction: What the model predicts; None if it is not known.
        cells: A cell per method.
    """

    image: NDArray[Any]
    name: str
    prediction: Prediction | None
    cells: tuple[GridCell, ...]


@dataclass(frozen=True)
class MetricLabel:
    """A metric whose scores may stand under maps: its label in a table, its name in the registry, its title, and which
    scores are better."""

    label: str
    name: str
    title: str
    direction: Direction

    @property
    def short(self) -> str:
        """``MI`` for mas_insertion, ``Spa`` for sparseness."""
        words = self.name.split("_")
        return "".join(word[0] for word in words).upper() if len(words) > 1 else self.name[:3].capitalize()

    def annotations(self, values: Sequence[float]) -> list[Annotation]:
        """Return the annotations of one image's scores, one per method, with as many decimals as it takes to tell the
        best from the second. The best is marked, unless two tie."""
        best = best_of(values, self.direction)
        others = [value for value in values if math.isfinite(value) and value != best]
        tied = sum(value == best for value in values) > 1
        second = best_of(others, self.direction)
        decimals = 2
        if best is not None and second is not None and not tied:
            while decimals < _DECIMALS and short_number(best, decimals) == short_number(second, decimals):
                decimals += 1
            tied = short_number(best, decimals) == short_number(second, decimals)
        words = (f"{self.short} {short_number(value, decimals)}" for value in values)
        return [Annotation(text, value == best and not tied) for text, value in zip(words, values, strict=True)]


def comparison_grid(
    rows: Sequence[GridRow],
    methods: Sequence[str],
    *,
    title: str = "",
    caption: str = "",
    pool: int | None = None,
    ax: Canvas | None = None,
) -> Figure:
    """Draw images and their maps, one column per method.

    A map is drawn as the magnitude ``sum_c |A_c|`` of its pixels in units of its own 99th percentile. All maps share
    one colour scale, so the places that methods mark can be compared, even if their units differ.

    Args:
        rows: The images.
        methods: Names of the columns.
        title: Title of the figure.
        caption: Text below it.
        pool: Side of the window that magnitudes are averaged over; None for :func:`pool_for` of each image.
        ax: Axes, or part of a figure, to draw on; None for a new figure.

    Returns:
        The figure.

    Raises:
        ValueError: For no images, or an image without a cell per method.
    """
    if not rows:
        raise ValueError("comparison_grid: no images")
    if any(len(row.cells) != len(methods) for row in rows):
        raise ValueError(f"comparison_grid: every image needs a map of each of the {len(methods)} methods")
    pools = [pool or pool_for(row.image.shape[:2]) for row in rows]
    aspect, columns = clipped_aspect(*rows[0].image.shape[:2]), 1 + len(methods)
    heads = [wrapped(name, _TILE, LABEL, most=2, bold=bold) for name, bold in _headings(methods)]
    names = [row.prediction.lines(_TILE, most=3) if row.prediction else [] for row in rows]
    head, foot = _LINE * max(map(len, heads)), _LINE * (1 + max(map(len, names))) + _GAP
    size = (columns * (_TILE + _GAP) + _BAR, head + len(rows) * (_TILE * aspect + foot))
    sheet = open_sheet(*size, title=title, caption=(caption, _scaling(pools)), ax=ax)
    across, down = (sheet.width - _BAR) / columns, (sheet.height - head) / len(rows)
    tile = (max(across - _GAP, _GAP), max(min(down - foot, (across - _GAP) * aspect), _GAP))
    for column, ((_, bold), lines) in enumerate(zip(_headings(methods), heads, strict=True)):
        style = text_style(LABEL, INK if bold else MUTED, fontweight="bold" if bold else "normal", va="bottom")
        sheet.write(column * across, head - 0.04, "\n".join(lines), style)
    for index, (row, window, lines) in enumerate(zip(rows, pools, names, strict=True)):
        top = head + index * down
        axes = [sheet.add_axes(column * across, top, *tile) for column in range(columns)]
        _draw_row(axes, row, window)
        below = top + tile[1] + 0.04
        for number, line in enumerate(lines):
            sheet.write(0, below + _LINE * number, line, text_style(TICK))
        name = fitted(row.name, tile[0], TICK - 1)
        sheet.write(0, below + _LINE * len(lines), name, text_style(TICK - 1, MUTED))
        for column, cell in enumerate(row.cells, 1):
            _write_scores(sheet, column * across, below, tile[0], cell.annotations)
    colours = ScalarMappable(Normalize(0.0, 1.0), STRENGTH)
    bar = sheet.add_axes(columns * across + 0.06, head, 0.14, min(2 * tile[1], sheet.height - head))
    ticks = colour_bar(bar, colours, "of its 99th percentile", extend="max", cax=bar)
    ticks.set_ticks([0.0, 0.5, 1.0])
    return root(sheet.figure)


def _headings(methods: Sequence[str]) -> list[tuple[str, bool]]:
    """Return the head of each column, and whether it is bold."""
    return [("input", False), *((method_title(name), True) for name in methods)]


def pool_for(size: tuple[int, ...]) -> int:
    """Return the window (odd, in pixels) that makes maps of an image of this (H, W) readable in a grid."""
    longest = max(size)
    return 1 if longest <= SMALL else 2 * round(longest / 90) + 1


def pooled_magnitude(values: ArrayLike, pool: int = 1) -> Plane:
    """Return ``sum_c |A_c|`` (H, W) of an attribution (C, H, W), averaged over the pixels of a ``pool`` x ``pool``
    window that lie inside the image."""
    array = np.abs(np.asarray(values, dtype=np.float64))
    plane = array.sum(0) if array.ndim == 3 else array
    if plane.ndim != 2:
        raise ValueError(f"values: expected (C, H, W) or (H, W), got shape {array.shape}")
    return plane if pool == 1 else _box_sum(plane, pool) / _box_sum(np.ones_like(plane), pool)


def labels(metrics: Sequence[MetricLabel]) -> list[MetricLabel]:
    """Return MAS insertion and deletion if both occur, else the first two, those with a direction before others."""
    aligned = [metric for metric in metrics if metric.name in ("mas_insertion", "mas_deletion")]
    return aligned if len(aligned) == 2 else sorted(metrics, key=lambda metric: metric.direction == "none")[:2]


def captions(metrics: Sequence[MetricLabel]) -> str:
    """Return what the short names stand for."""
    legend = [f"{metric.short} = {metric.title} {ARROW[metric.direction]}".strip() for metric in metrics]
    return f"{' · '.join(legend)}; bold: the best of an image, unless two tie."


def short_number(value: float, decimals: int = 2) -> str:
    """Return ``decimals`` without a leading zero, fewer of large numbers: ``.43``, ``-.07``, ``12``, ``2e+06``."""
    if not math.isfinite(value):
        return "–"
    text = f"{value:.{decimals if abs(value) < 10 else decimals - 2}f}"
    if abs(value) >= 1e4:
        text = f"{value:.{decimals - 2}e}"
    return text.replace("0.", ".", 1) if abs(value) < 1 else text


def _box_sum(plane: Plane, window: int) -> Plane:
    before = (window - 1) // 2
    padded = np.pad(plane, (before, window - 1 - before))
    return np.lib.stride_tricks.sliding_window_view(padded, (window, window)).sum((-2, -1))


def _scaling(windows: Sequence[int]) -> str:
    pooled = [f"{window} × {window}" for window in sorted(set(windows)) if window > 1]
    averaged = f", averaged over {' or '.join(pooled)} pixels for display" if pooled else ""
    strength = f"Σ|attribution| over channels{averaged}; each map in units of its 99th percentile"
    return f"Bright: where the evidence lies, for or against ({strength})."


def _draw_row(axes: Sequence[Axes], row: GridRow, pool: int) -> None:
    for one in axes:
        image_frame(one)
    show(axes[0], picture(row.image))
    for one, cell in zip(axes[1:], row.cells, strict=True):
        _draw_cell(one, cell, row.image.shape[:2], pool)


def _write_scores(sheet: Sheet, left: float, top: float, width: float, scores: Sequence[Annotation]) -> None:
    """Write scores below a map: side by side, or below each other where that is too narrow."""
    wide = [text_width(score.text, TICK, bold=score.best) for score in scores]
    apart = len(scores) > 1 and max(wide) > width / len(scores) - 0.05
    for index, score in enumerate(scores):
        weight = "bold" if score.best else "normal"
        style = text_style(TICK, INK if score.best else MUTED, fontweight=weight)
        right, down = (0.0, index * _LINE) if apart else (index * width / len(scores), 0.0)
        sheet.write(left + right, top + down, fitted(score.text, width, bold=score.best), style)


def _draw_cell(axes: Axes, cell: GridCell, size: tuple[int, ...], pool: int) -> None:
    plane = np.full(size, np.nan) if cell.values is None else pooled_magnitude(cell.values, pool)
    colours = colormaps[STRENGTH].with_extremes(bad="#eceef1")
    axes.imshow(plane / (display_scale(plane) or 1.0), cmap=colours, vmin=0.0, vmax=1.0, interpolation="antialiased")
    remark = cell.remark or empty_reason(plane)
    if remark:
        annotate(axes, sanitise(remark, 16))
