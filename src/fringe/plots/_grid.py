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
from fringe.plots._maps import SMALL, Plane, clipped_aspect, colour_bar, display_scale, empty_reason, picture, show
from fringe.plots._style import (
    INK,
    LABEL,
    MUTED,
    TICK,
    Style,
    annotate,
    image_frame,
    sanitise,
    text_style,
    titled_figure,
)

COLOURS = "inferno"
#: Inches of an image's width.
_TILE = 1.5


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
        prediction: What the model predicts.
        cells: A cell per method.
    """

    image: NDArray[Any]
    name: str
    prediction: str
    cells: tuple[GridCell, ...]


@dataclass(frozen=True)
class MetricLabel:
    """A metric whose scores may stand under maps.

    Attributes:
        label: Its label in a table.
        name: Its registry name.
        title: Its title.
        direction: Which scores are better.
    """

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
        """Return the annotations of one image's scores, one per method; the best is marked."""
        best = best_of(values, self.direction)
        return [Annotation(f"{self.short} {short_number(value)}", value == best) for value in values]


def comparison_grid(
    rows: Sequence[GridRow], methods: Sequence[str], *, title: str = "", caption: str = "", pool: int | None = None
) -> Figure:
    """Draw images and their maps, one column per method.

    A map is drawn as the magnitude ``sum_c |A_c|`` of its pixels in units of its own 99th percentile: all share one
    colour scale, and methods of different units can be compared by where they look.

    Args:
        rows: The images.
        methods: Names of the columns.
        title: Title of the figure.
        caption: Text below it.
        pool: Side of the window that magnitudes are averaged over; None for :func:`pool_for` of each image.

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
    height = _TILE * clipped_aspect(*rows[0].image.shape[:2]) + 0.4
    size = (_TILE * (1 + len(methods)) + 0.9, height * len(rows) + 0.3)
    figure = titled_figure(*size, title=title, caption=(caption, _scaling(pools)), layout="compressed")
    grid = figure.subplots(len(rows), 1 + len(methods), squeeze=False)
    for axes, row, window in zip(grid, rows, pools, strict=True):
        _draw_row(axes, row, window)
    for column, (axes, name) in enumerate(zip(grid[0], ("input", *methods), strict=True)):
        weight = "bold" if column else "normal"
        axes.set_title(sanitise(name, 18), pad=5, **text_style(LABEL, INK if column else MUTED, fontweight=weight))
    bar = colour_bar(
        list(grid.flat),
        ScalarMappable(Normalize(0.0, 1.0), COLOURS),
        "of its 99th percentile",
        extend="max",
        shrink=min(1.0, 2 / len(rows)),
        anchor=(0.0, 1.0),
        aspect=18,
    )
    bar.set_ticks([0.0, 0.5, 1.0])
    return figure


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
    legend = [f"{metric.short} {metric.title} {ARROW[metric.direction]}".strip() for metric in metrics]
    return f"{' · '.join(legend)}; the best of an image is bold"


def short_number(value: float) -> str:
    """Return two decimals without a leading zero: ``.43``, ``-.07``, ``12``."""
    if not math.isfinite(value):
        return "–"
    text = f"{value:.2f}" if abs(value) < 10 else f"{value:.0f}" if abs(value) < 1e4 else f"{value:.0e}"
    return text.replace("0.", ".", 1) if abs(value) < 1 else text


def _box_sum(plane: Plane, window: int) -> Plane:
    before = (window - 1) // 2
    padded = np.pad(plane, (before, window - 1 - before))
    return np.lib.stride_tricks.sliding_window_view(padded, (window, window)).sum((-2, -1))


def _scaling(windows: Sequence[int]) -> str:
    pooled = [f"{window} × {window}" for window in sorted(set(windows)) if window > 1]
    averaged = f", averaged over {' or '.join(pooled)} pixels" if pooled else ""
    return f"Σ|attribution| of a pixel over its channels{averaged}; each map in units of its own 99th percentile"


def _draw_row(axes: Sequence[Axes], row: GridRow, pool: int) -> None:
    for one in axes:
        image_frame(one)
    show(axes[0], picture(row.image))
    _write(axes[0], 0.0, sanitise(row.prediction, 22), text_style(TICK))
    _write(axes[0], 0.0, sanitise(row.name, 24), text_style(TICK - 1, MUTED), line=1)
    for one, cell in zip(axes[1:], row.cells, strict=True):
        _draw_cell(one, cell, row.image.shape[:2], pool)
        for left, word in zip((0.0, 0.5), cell.annotations, strict=False):
            style = text_style(TICK, INK if word.best else MUTED, fontweight="bold" if word.best else "normal")
            _write(one, left, sanitise(word.text, 12), style)


def _write(axes: Axes, left: float, text: str, style: Style, line: int = 0) -> None:
    """Write a line of text below a map."""
    offset: Style = {"xytext": (0, -3 - 10.5 * line), "textcoords": "offset points", "va": "top"}
    axes.annotate(text, (left, 0.0), xycoords="axes fraction", **offset, **style)


def _draw_cell(axes: Axes, cell: GridCell, size: tuple[int, ...], pool: int) -> None:
    plane = np.full(size, np.nan) if cell.values is None else pooled_magnitude(cell.values, pool)
    colours = colormaps[COLOURS].with_extremes(bad="#eceef1")
    axes.imshow(plane / (display_scale(plane) or 1.0), cmap=colours, vmin=0.0, vmax=1.0, interpolation="antialiased")
    remark = cell.remark or empty_reason(plane)
    if remark:
        annotate(axes, sanitise(remark, 16))
