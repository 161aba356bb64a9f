"""Many maps on one sheet: of many methods side by side, of everything that a run explained, of several classes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from fringe._strings.formats import number, percent
from fringe._strings.names import method_title
from fringe._strings.tables import ARROW, Direction, best_of
from fringe.plots import _maps as maps
from fringe.plots import _style as styles

#: Inches of an image's width with the gap beside it, and of the colour bar with its words.
_TILE, _BAR = 1.6, 0.75
#: Decimals that may show a difference between the best and the second.
_DECIMALS = 5


@dataclass(frozen=True)
class Prediction:
    """What a model says of an input: the best class, the explained one if that is another, and its contrast."""

    name: str
    probability: float
    explained: str = ""
    contrast: str = ""

    def text(self, letters: int = 400) -> str:
        """Return it in words, with at most so many letters of each name: a probability is never cut."""
        said = f", explained: {styles.sanitise(self.explained, letters)}" if self.explained else ""
        said += f", not {styles.sanitise(self.contrast, letters)}" if self.contrast else ""
        chance = "" if math.isnan(self.probability) else f" · {percent(self.probability)}"
        return f"{styles.sanitise(self.name, letters)}{chance}{said}"


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
        region: Weights (H, W) of a focus, whose outline is drawn.
    """

    values: NDArray[Any] | None
    annotations: tuple[Annotation, ...] = ()
    remark: str = ""
    region: NDArray[Any] | None = None


@dataclass(frozen=True)
class GridRow:
    """One image and its maps.

    Attributes:
        image: The image (H, W, 1 or 3) in [0, 1].
        name: Its name.
        prediction: What the model predicts; None if it is not known.
        cells: A cell per method.
        controls: Cells of control maps with their names, drawn after those of the methods.
        box: Left, top, right and bottom of an explained box, in pixels, which is drawn on all of them.
    """

    image: NDArray[Any]
    name: str
    prediction: Prediction | None
    cells: tuple[GridCell, ...]
    controls: tuple[tuple[str, GridCell], ...] = ()
    box: Sequence[float] | None = None

    @property
    def drawn(self) -> tuple[GridCell, ...]:
        """All cells, from left to right."""
        return (*self.cells, *(cell for _, cell in self.controls))


@dataclass(frozen=True)
class MetricLabel:
    """A metric whose scores may stand under maps: its label in a table, its name in the registry, its title, which
    scores are better, and whether they stand beside those of the same metric with other settings."""

    label: str
    name: str
    title: str
    direction: Direction
    is_variant: bool = False

    @property
    def short(self) -> str:
        """``ROAD`` for road, ``MI`` for mas_insertion, ``Spa`` for sparseness, ``Ins zero`` beside other insertion."""
        words = self.name.split("_")
        several = "".join(word[0] for word in words).upper() if len(words) > 1 else self.name[:3].capitalize()
        short = self.name.upper() if len(self.name) <= 4 else several
        return f"{short} {self.label.rpartition(':')[2].removeprefix(self.name)}".strip() if self.is_variant else short

    def annotations(self, values: Sequence[float]) -> list[Annotation]:
        """Return the annotations of one image's scores, one per method, with as many decimals as it takes to tell the
        best from the second. The best is marked, unless two tie."""
        best = best_of(values, self.direction)
        others = [value for value in values if math.isfinite(value) and value != best]
        tied = sum(value == best for value in values) > 1
        second = best_of(others, self.direction)
        decimals = 2
        if best is not None and second is not None and not tied:
            while decimals < _DECIMALS and _short_number(best, decimals) == _short_number(second, decimals):
                decimals += 1
            tied = _short_number(best, decimals) == _short_number(second, decimals)
        words = (f"{self.short} {_short_number(value, decimals)}" for value in values)
        return [Annotation(text, value == best and not tied) for text, value in zip(words, values, strict=True)]


def comparison_grid(
    rows: Sequence[GridRow],
    methods: Sequence[str],
    *,
    title: str = "",
    caption: str = "",
    pool: int | None = None,
    ax: styles.Canvas | None = None,
) -> Figure:
    """Draw images and their maps, one column per method, and then one per control.

    A map is drawn as the magnitude ``sum_c |A_c|`` of its pixels in units of its own 99th percentile. All maps share
    one colour scale, so the places that methods mark can be compared, even if their units differ.

    Args:
        rows: The images.
        methods: Names of the columns.
        title: Title of the figure.
        caption: Text below it.
        pool: Side of the window that magnitudes are averaged over; None for one that makes the maps readable.
        ax: Axes, or part of a figure, to draw on; None for a new figure.

    Returns:
        The figure.

    Raises:
        ValueError: For no images, or an image without a cell per method.
    """
    if not rows:
        raise ValueError("comparison_grid: no images")
    if any(len(row.cells) != len(methods) or len(row.controls) != len(rows[0].controls) for row in rows):
        raise ValueError(f"comparison_grid: every image needs a map of each of the {len(methods)} methods")
    pools = [pool or _pool_for(row.image.shape[:2]) for row in rows]
    titles = [method_title(name) for name in methods] + [f"{name} (control)" for name, _ in rows[0].controls]
    columns, aspect = 1 + len(titles), styles.clipped_aspect(*rows[0].image.shape[:2])
    size = (columns * _TILE + _BAR, len(rows) * (_TILE * aspect + 3 * styles.LINE))
    pooled = [f"{window} × {window}" for window in sorted(set(pools)) if window > 1]
    averaged = f", averaged over {' or '.join(pooled)} pixels for display" if pooled else ""
    strength = f"Σ|attribution| over channels{averaged}; each map in units of its 99th percentile"
    scaling = f"Bright: where the evidence lies, for or against ({strength})."
    scaling += maps.BOX_WORDS if any(row.box is not None for row in rows) else ""
    panel = styles.open_panel(*size, title=title, caption=(caption, scaling), ax=ax)
    letters = max(int((panel.bbox.width / panel.dpi - _BAR) / columns / styles.LETTER) - 2, 8)
    grid = panel.subplots(len(rows), columns, squeeze=False)
    for axes, row, window in zip(grid, rows, pools, strict=True):
        for one in axes:
            styles.image_frame(one)
        maps.show(axes[0], maps.picture(row.image))
        words = [styles.wrapped(row.prediction.text(letters), letters, 5)] if row.prediction else []
        words.append(styles.sanitise(row.name, letters - 1))
        styles.write(axes[0], title="input" if row is rows[0] else "", x="\n".join(words), bold=False)
        for one, cell in zip(axes[1:], row.drawn, strict=True):
            _draw_cell(one, cell, row.image.shape[:2], window)
            _write_scores(one, cell.annotations, letters)
        for one in axes:
            maps.draw_box(one, row.box)
    for axes, name in zip(grid[0, 1:], titles, strict=True):
        styles.write(axes, title=styles.wrapped(name, int(0.85 * letters)))
    colours = ScalarMappable(Normalize(0.0, 1.0), maps.STRENGTH)
    bar = maps.colour_bar(grid[0, -1], colours, "share of its\n99th percentile", width=0.08, extend="max")
    bar.set_ticks([0.0, 0.5, 1.0])
    if ax is None:
        styles.fit_height(grid[0, 0], len(rows))
    return styles.root(panel)


def _pool_for(size: tuple[int, ...]) -> int:
    """Return the window (odd, in pixels) that makes maps of an image of this (H, W) readable in a grid."""
    longest = max(size)
    return 1 if longest <= maps.SMALL else 2 * round(longest / 90) + 1


def pooled_magnitude(values: ArrayLike, pool: int = 1) -> maps.Plane:
    """Return ``sum_c |A_c|`` (H, W) of an attribution (C, H, W), averaged over the pixels of a ``pool`` x ``pool``
    window that lie inside the image."""
    array = np.abs(np.asarray(values, dtype=np.float64))
    plane = array.sum(0) if array.ndim == 3 else array
    if plane.ndim != 2:
        raise ValueError(f"values: expected (C, H, W) or (H, W), got shape {array.shape}")
    return plane if pool == 1 else _box_sum(plane, pool) / _box_sum(np.ones_like(plane), pool)


def labels(metrics: Sequence[MetricLabel]) -> list[MetricLabel]:
    """Return MAS insertion and deletion if both occur, else the first two, those with a direction before others, and
    metrics of other names before one with other settings."""
    first = {metric.name: metric for metric in reversed(metrics)}
    aligned = [first[metric.name] for metric in metrics if metric.name in ("mas_insertion", "mas_deletion")]
    if len(aligned := list(dict.fromkeys(aligned))) == 2:
        return aligned
    chosen = sorted(metrics, key=lambda one: (one.direction == "none", one is not first[one.name]))[:2]
    return [replace(one, is_variant=len({two.name for two in chosen}) < len(chosen)) for one in chosen]


def captions(metrics: Sequence[MetricLabel]) -> str:
    """Return what the short names stand for."""
    legend = [f"{metric.short} = {metric.title} {ARROW[metric.direction]}".strip() for metric in metrics]
    return f"{' · '.join(legend)}; bold: the best of an image, unless two tie."


def _short_number(value: float, decimals: int = 2) -> str:
    """Return ``decimals`` without a leading zero, fewer of large numbers: ``.43``, ``−.07``, ``12``, ``2×10⁶``."""
    large = abs(value) >= 1e4
    text = number(value, decimals if abs(value) < 10 else decimals - 2, digits=decimals - 1, scientific=large)
    if not text.strip("−0."):
        text = text.lstrip("−")  # a number that is rounded to zero has no sign
    return text.replace("0.", ".", 1) if abs(value) < 1 else text


def _box_sum(plane: maps.Plane, window: int) -> maps.Plane:
    before = (window - 1) // 2
    padded = np.pad(plane, (before, window - 1 - before))
    return np.lib.stride_tricks.sliding_window_view(padded, (window, window)).sum((-2, -1))


def _write_scores(axes: Axes, scores: Sequence[Annotation], letters: int) -> None:
    """Write scores below a map: side by side, or below each other where that is too narrow."""
    apart = 1.3 * sum(len(score.text) for score in scores) > letters
    for index, score in enumerate(scores):
        look = (styles.INK, "bold") if score.best else (styles.MUTED, "normal")
        style = styles.text_style(styles.TICK, look[0], fontweight=look[1], va="top")
        right = index > 0 and not apart
        point, align = ((1.0, 0.0), "right") if right else ((0.0, 0.0), "left")
        offset = (0.0, -4.0 - (72 * styles.LINE * index if apart else 0.0))
        axes.annotate(score.text, point, offset, "axes fraction", "offset points", ha=align, **style)


def _draw_cell(axes: Axes, cell: GridCell, size: tuple[int, ...], pool: int) -> None:
    plane = np.full(size, np.nan) if cell.values is None else pooled_magnitude(cell.values, pool)
    colours = colormaps[maps.STRENGTH].with_extremes(bad="#eceef1")
    shares = plane / (maps.display_scale(plane) or 1.0)
    axes.imshow(shares, cmap=colours, vmin=0.0, vmax=1.0, interpolation="antialiased")
    maps.draw_region(axes, cell.region)
    remark = cell.remark or maps.empty_reason(plane)
    if remark:
        styles.annotate(axes, styles.sanitise(remark, 16))


#: Inches of a tile with the gap beside it, and of the words around it.
_SHEET_TILE, _WORDS = 1.56, 0.5
#: Colours of a verdict, those of a page: as small words on white, those of lines are too pale.
_TONES = {"checked": "#0b5688", "fair": "#8a5300", "bad": "#a8321a", "plain": styles.MUTED}


@dataclass(frozen=True)
class SheetItem:
    """One input of a contact sheet: its image (H, W, 1 or 3) in [0, 1], the attribution (C, H, W), the prediction, and
    the verdict with its tone, of ``_TONES``. Where the image was made smaller, ``pixel`` is how many
    pixels of the input lie along the side of one of it. ``region``: weights (H, W) of a focus, whose outline is drawn,
    and ``box``: left, top, right and bottom of an explained box, in pixels of the image.
    """

    image: NDArray[Any]
    values: NDArray[Any]
    name: str
    prediction: Prediction
    verdict: str
    tone: str
    pixel: int = 1
    region: NDArray[Any] | None = None
    box: Sequence[float] | None = None


def contact_sheet(items: Sequence[SheetItem], *, title: str = "", ax: styles.Canvas | None = None) -> Figure:
    """Draw input, overlay and signed map of every item, each map on its own scale, with prediction and verdict above,
    on a new figure or on ``ax``. Raises ValueError for no items."""
    if not items:
        raise ValueError("contact_sheet: no items")
    columns = 1 if len(items) <= 3 else 2 if len(items) <= 12 else 3
    rows = math.ceil(len(items) / columns)
    first = "From left to right: the input; where the evidence lies, for or against the class (bright); its sign."
    first += " The word above is about the map's sum, not about its places."
    largest = max(item.pixel * max(item.image.shape[:2]) for item in items)
    caption = [first, *maps.signed_caption((largest, largest), outlined=True)]
    caption[-1] += maps.REGION_WORDS if any(item.region is not None for item in items) else ""
    caption[-1] += maps.BOX_WORDS if any(item.box is not None for item in items) else ""
    height = _SHEET_TILE * styles.clipped_aspect(*items[0].image.shape[:2]) + _WORDS
    size = (columns * 3.1 * _SHEET_TILE, rows * height)
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
    columns = min(count, 6)
    if ax is not None:  # the number that gives the images the largest width
        box = ax.get_window_extent() if isinstance(ax, Axes) else ax.bbox
        widths = {n: min(box.width / n, box.height / math.ceil(count / n) / aspect) for n in range(1, count + 1)}
        columns = max(widths, key=lambda n: widths[n])
    rows = math.ceil(count / columns)
    natural = (columns * _SHEET_TILE, rows * (_SHEET_TILE * aspect + _WORDS))
    words = maps.signed_caption(size, outlined=True)[0].replace("the class", "the class above the map", 1)
    panel = styles.open_panel(*natural, title=title, caption=[words, "All maps share one scale."], ax=ax)
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
        maps.draw_region(axes, item.region)
        maps.draw_box(axes, item.box)
    maps.annotate_empty(tiles[2], plane)
    across = part.bbox.width / part.dpi
    letters = int(across / styles.LETTER)
    prediction = item.prediction.text(letters // 4 if item.prediction.explained else letters // 2)
    style = styles.text_style(styles.LABEL, styles.INK, ha="left")
    words, wrap = styles.flowing(prediction, letters)
    part.suptitle(words, x=styles.MARGIN / across, wrap=wrap, **style)
    name = styles.sanitise(item.name, letters // 2)  # may stand over the second image
    small = styles.text_style(styles.TICK - 1, styles.MUTED, in_layout=False)
    tiles[0].set_title(name, loc="left", pad=5, **small)
    style = styles.text_style(styles.TICK, _TONES[item.tone], fontweight="bold")
    tiles[2].set_title(item.verdict.replace("_", " "), loc="right", pad=5, **style)
    return tiles[0]
