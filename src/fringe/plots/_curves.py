"""Charts of scores: curves and sweeps, how alike metrics rank methods, and paired differences."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, PercentFormatter, SymmetricalLogLocator
from numpy.typing import NDArray

from fringe._strings.formats import number
from fringe._strings.names import method_title
from fringe._strings.tables import ARROW, Direction
from fringe.plots import _style as styles

Curves = NDArray[np.floating]

#: Standard errors of the mean on either side: 95 % at each share of pixels by itself.
BAND = 1.96


@dataclass(frozen=True)
class MeanCurve:
    """The mean (N + 1,) of curves, and its standard error, NaN for a single curve."""

    mean: Curves
    error: Curves

    @classmethod
    def of(cls, curves: Curves) -> "MeanCurve | None":
        """Return the mean of the finite ones among ``curves`` (n, N + 1); None if there are none."""
        finite = curves[np.isfinite(curves).all(1)]
        if len(finite) == 0:
            return None
        if len(finite) == 1:
            return cls(finite[0], np.full(finite.shape[1], np.nan))
        # the curves of many images are in single precision, to take half of the memory
        return cls(finite.mean(0, dtype=np.float64), finite.std(0, ddof=1, dtype=np.float64) / math.sqrt(len(finite)))


@dataclass(frozen=True)
class CurvePanel:
    """The curves of one metric.

    Attributes:
        title: Title of the panel.
        curves: By method, curves (n, N + 1) of n images over shares of changed pixels from 0 to 1 in N equal steps, or
            their mean.
        better: Which scores are better.
        axis: Label of the axis of responses.
    """

    title: str
    curves: Mapping[str, Curves | MeanCurve]
    better: Direction = "none"
    axis: str = ""


def plot_curves(data: Sequence[CurvePanel], *, title: str = "") -> Figure:
    """Plot each method's mean over images with a band of 1.96 standard errors, one panel per metric.

    A method has one colour and dash in all panels, by the order in which methods first appear. The first method is
    drawn thicker and above the others. A curve with NaN or infinity is left out. A single image has no band.

    Args:
        data: The panels.
        title: Title of the figure.

    Returns:
        The figure.

    Raises:
        ValueError: For no curves, more than ``MAX_SERIES`` methods, or curves of another shape.
    """
    labels = list(dict.fromkeys(label for panel in data for label in panel.curves))
    if not labels:
        raise ValueError("plot_curves: no curves")
    if len(labels) > styles.MAX_SERIES:
        raise ValueError(f"plot_curves: got {len(labels)} methods, expected at most {styles.MAX_SERIES}")
    first: styles.Style = {"linewidth": 2.2, "zorder": 4}
    others: styles.Style = {"linewidth": 1.3, "zorder": 3}
    looks = {label: styles.series_style(i) | (others if i else first) for i, label in enumerate(labels)}
    handles = [
        Line2D([], [], label=styles.sanitise(method_title(label), 30), **style) for label, style in looks.items()
    ]
    caption = ("mean over images; band: ± 1.96 standard errors",)
    figure, grid = styles.panels(len(data), (3.7, 3.1), across=3, title=title, caption=caption, handles=handles)
    for axes, panel in zip(grid, data, strict=True):
        _draw(axes, panel, looks)
    return figure


def _draw(axes: Axes, panel: CurvePanel, looks: Mapping[str, styles.Style]) -> None:
    for label, curves in panel.curves.items():
        if not isinstance(curves, MeanCurve) and (curves.ndim != 2 or curves.shape[1] < 2):
            raise ValueError(f"{panel.title}: {label} has curves of shape {curves.shape}, expected (n, N + 1)")
        curve = curves if isinstance(curves, MeanCurve) else MeanCurve.of(curves)
        if curve is None:
            continue
        mean, error = curve.mean, curve.error
        share = np.linspace(0.0, 1.0, len(mean))
        axes.plot(share, mean, gid=f"mean {label}", **looks[label])
        if np.isfinite(error).all():
            low, high = mean - BAND * error, mean + BAND * error
            colour = looks[label]["color"]
            axes.fill_between(share, low, high, color=colour, alpha=0.11, linewidth=0, gid=f"band {label}")
    if not axes.lines:
        styles.annotate(axes, "no curve")
    styles.despine(axes)
    axes.set_xlim(0.0, 1.0)
    drawn = np.concatenate([line.get_ydata() for line in axes.lines] or [np.zeros(1)])  # pyright: ignore[reportArgumentType]
    if drawn.min() >= 0.0 and drawn.max() <= 1.0:
        axes.set_ylim(-0.015, 1.015)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol="%"))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, min_n_ticks=3))
    heading, axis = styles.sanitise(panel.title, 30), styles.sanitise(panel.axis, 40)
    direction = f"{ARROW[panel.better]} better" if panel.better != "none" else ""
    styles.write(axes, title=heading, note=direction, x="pixels changed", y=axis)


#: Letters of a name.
_NAME = 26
#: Inches of a cell.
_CELL = 0.62


def plot_agreement(
    names: Sequence[str],
    tau: Sequence[Sequence[float]],
    low: Sequence[Sequence[float]],
    high: Sequence[Sequence[float]],
    *,
    title: str = "",
) -> Figure:
    """Draw Kendall's tau (M, M) between metrics, NaN where it is not defined: blue for the same order and red for the
    opposite one. Below the diagonal each cell has the interval, too. Raises ValueError for no metrics, or another
    shape."""
    count = len(names)
    if not count or any(len(rows) != count or any(len(row) != count for row in rows) for rows in (tau, low, high)):
        raise ValueError(f"plot_agreement: got {count} names, expected matrices of as many rows and columns")
    shown = [styles.sanitise(name, _NAME) for name in names]
    room = 1.1 * styles.LETTER * max(map(len, shown))
    figure, (axes,) = styles.panels(
        1,
        (_CELL * count, _CELL * count + 0.8 * room),
        across=1,
        width=room,
        narrowest=3.4,
        title=title,
        caption=("Kendall's τ of the order of the methods; below the diagonal with its 95% interval over images",),
    )
    values = [[float(value) for value in row] for row in tau]
    axes.imshow(values, cmap="RdBu", vmin=-1.25, vmax=1.25, aspect="equal", gid="agreement")
    for row in range(count):
        for column in range(count):
            _write(axes, row, column, values[row][column], (low[row][column], high[row][column]))
    axes.set_xticks(range(count), shown, rotation=45, ha="right", rotation_mode="anchor", parse_math=False)
    axes.set_yticks(range(count), shown, parse_math=False)
    axes.tick_params(length=0, labelcolor=styles.INK, labelsize=styles.TICK)
    axes.grid(visible=False)
    axes.set_xticks([edge - 0.5 for edge in range(1, count)], minor=True)
    axes.set_yticks([edge - 0.5 for edge in range(1, count)], minor=True)
    axes.grid(which="minor", color="white", linewidth=1.5)
    axes.tick_params(which="minor", length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return figure


def _write(axes: Axes, row: int, column: int, value: float, ends: tuple[float, float]) -> None:
    """Write a cell; below the diagonal with its interval."""
    colour = "white" if math.isfinite(value) and abs(value) > 0.8 else styles.INK
    style = styles.text_style(styles.TICK, colour, ha="center", va="center")
    with_interval = column < row and all(map(math.isfinite, ends))
    axes.text(column, row - (0.12 if with_interval else 0.0), number(value, 2), **style)
    if with_interval:
        words = "…".join(number(end, 1) for end in ends)
        muted = colour if colour == "white" or abs(value) > 0.4 else styles.MUTED
        axes.text(column, row + 0.22, words, **styles.text_style(styles.TICK - 2, muted, ha="center", va="center"))


#: Decades up to which tick labels are plain numbers, not powers of ten.
_SHORT = 2.5
_LINES: styles.Style = {"linewidth": 1.4, "marker": "o", "markersize": 2.6}
_CENTRE: styles.Style = {"marker": "o", "linestyle": "none", "markersize": 6.5, "markerfacecolor": "white"}
_CENTRE["markeredgewidth"] = 1.4
# A thin line, because dashes distinguish networks.
_CENTRE_OFF_AXIS: styles.Style = {"linewidth": 0.7, "gid": "centre off the axis"}
_FAILED: styles.Style = {"marker": "x", "linestyle": "none", "markersize": 4.5, "markeredgewidth": 1.2}


@dataclass(frozen=True)
class SweepCurve:
    """The objective of the network ``name`` along one setting: NaN where it failed, with its intervals, (V,) each.

    ``centre`` is the value from which the other settings are varied; None if that is no number, and its objective is
    then drawn as a level.
    """

    name: str
    values: Sequence[float]
    objective: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    centre: float | None = None
    centre_objective: float = math.nan


@dataclass(frozen=True)
class SweepPanel:
    """The curves of one setting, the ``factor``, one for each network."""

    factor: str
    curves: tuple[SweepCurve, ...]


def plot_sensitivity(data: Sequence[SweepPanel], *, title: str = "", y: str = "objective") -> Figure:
    """Plot the objective against each setting, one panel per setting and one colour per network.

    All panels share the scale of the objective; bands are the intervals. The axis of a setting is logarithmic where its
    values span more than a decade, with zero beside it. Raises ValueError for no curves, more than ``MAX_SERIES``
    networks, or a curve whose columns differ in length.
    """
    curves = [curve for panel in data for curve in panel.curves]
    if not curves:
        raise ValueError("plot_sensitivity: no curves")
    for curve in curves:
        if len({len(row) for row in (curve.values, curve.objective, curve.low, curve.high)}) != 1:
            raise ValueError(f"plot_sensitivity: values, objective, low and high of {curve.name!r} differ in length")
    names = list(dict.fromkeys(curve.name for curve in curves))
    if len(names) > styles.MAX_SERIES:
        raise ValueError(f"plot_sensitivity: got {len(names)} networks, expected at most {styles.MAX_SERIES}")
    looks: dict[str, styles.Style] = {name: styles.series_style(index) for index, name in enumerate(names)}
    handles = [Line2D([], [], label=styles.sanitise(name), **style, **_LINES) for name, style in looks.items() if name]
    figure, grid = styles.panels(
        len(data), (2.75, 2.35), across=3, narrowest=3.4, sharey=True, title=title, handles=[*handles, *_marks(curves)]
    )
    for axes, panel in zip(grid, data, strict=True):
        _draw_sweep(axes, panel, looks)
        axes.margins(y=0.08)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
        styles.write(axes, x=styles.sanitise(panel.factor, 40))
    figure.supylabel(y, **styles.text_style(styles.LABEL, styles.MUTED))
    return figure


def _draw_sweep(axes: Axes, panel: SweepPanel, looks: Mapping[str, styles.Style]) -> None:
    styles.despine(axes)
    _set_scale(axes, _array(v for curve in panel.curves for v in curve.values))
    for curve in panel.curves:
        colour = looks[curve.name]["color"]
        values, best, low, high = (_array(row) for row in (curve.values, curve.objective, curve.low, curve.high))
        axes.fill_between(values, low, high, color=colour, alpha=0.12, linewidth=0)
        axes.plot(values, best, **looks[curve.name], **_LINES)
        failed = values[~np.isfinite(best)]
        axes.plot(failed, np.full(failed.size, 0.04), transform=axes.get_xaxis_transform(), color=colour, **_FAILED)
        if curve.centre is not None:
            at = values == curve.centre
            axes.plot(values[at], best[at], color=colour, **_CENTRE)
        elif math.isfinite(curve.centre_objective):
            axes.axhline(curve.centre_objective, color=colour, **_CENTRE_OFF_AXIS)


def _set_scale(axes: Axes, values: NDArray[np.float64]) -> None:
    """Use a logarithmic axis for values that span more than a decade; linear near zero if some are not positive."""
    positive = values[values > 0]
    if positive.size == 0 or positive.max() <= 10 * positive.min():
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
        return
    smallest, short = float(positive.min()), positive.max() <= 10**_SHORT * positive.min()
    if positive.size == values.size:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0) if short else (1.0,), numticks=7))
    else:
        axes.set_xscale("symlog", linthresh=smallest, linscale=0.6)
        axes.xaxis.set_major_locator(SymmetricalLogLocator(base=10, linthresh=smallest))
    if short:
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_locator(NullLocator())


def _marks(curves: Sequence[SweepCurve]) -> list[Line2D]:
    """Return the legend's entries of the marks that occur."""
    off_axis = any(curve.centre is None and math.isfinite(curve.centre_objective) for curve in curves)
    occurs = (
        (any(curve.centre is not None for curve in curves), "centre of the sweeps", _CENTRE),
        (off_axis, "centre, off this axis", _CENTRE_OFF_AXIS),
        (any(not math.isfinite(v) for curve in curves for v in curve.objective), "failed", _FAILED),
    )
    return [Line2D([], [], label=label, color=styles.INK, **style) for known, label, style in occurs if known]


def _array(values: Iterable[float]) -> NDArray[np.float64]:
    return np.asarray(list(values), dtype=np.float64)


#: An adjusted p below this fills the marker.
SIGNIFICANT = 0.05

#: Letters of a method's name that are shown.
_FOREST_NAME = 30


@dataclass(frozen=True)
class Contrast:
    """The difference of the reference method, less another one, on the same images: NaN if there is none, with its
    interval, and a p that is adjusted for the number of comparisons."""

    method: str
    value: float
    low: float
    high: float
    p: float


@dataclass(frozen=True)
class ForestPanel:
    """The differences under one metric, which scores are ``better``, and its unit: "" for a pure number."""

    title: str
    contrasts: tuple[Contrast, ...]
    better: Direction
    unit: str = ""


def plot_forest(data: Sequence[ForestPanel], *, reference: str = "FRInGe", title: str = "") -> Figure:
    """Plot paired differences, one panel per metric and one line per method, in the order in which they first appear.

    A marker is filled where the adjusted p is below .05. The side of zero where the reference is better is shaded and
    named below the axis; colours of points follow the side. Raises ValueError for no contrasts.
    """
    methods = list(dict.fromkeys(contrast.method for panel in data for contrast in panel.contrasts))
    if not methods:
        raise ValueError("plot_forest: nothing to compare")
    point: styles.Style = {"color": styles.MUTED, "marker": "o", "markersize": 5.5, "linewidth": 1.6}
    titles = [styles.sanitise(method_title(method), _FOREST_NAME) for method in methods]
    names = 1.15 * styles.LETTER * max(map(len, titles))
    figure, grid = styles.panels(
        len(data),
        (2.7, 0.25 * len(methods) + 0.9),
        sharey=True,
        across=4,
        width=names,
        narrowest=4.6,
        title=title,
        caption=(f"{styles.sanitise(method_title(reference), 16)} − rival on the same images, with 95% interval",),
        handles=[
            Line2D([], [], label="Holm-adjusted p < .05", **point),
            Line2D([], [], label="p ≥ .05", markerfacecolor="white", **point),
        ],
    )
    for axes, panel in zip(grid, data, strict=True):
        styles.name_rows(axes, [styles.sanitise(method_title(name), _FOREST_NAME) for name in methods])
        axes.grid(axis="x", color=styles.RULE, linewidth=0.5, alpha=0.6)
        axes.margins(x=0.12)  # zero stands well inside
        axes.xaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 2.5, 5, 10], min_n_ticks=3))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}".replace("-", "−"))
        styles.write(axes, title=styles.sanitise(panel.title + (f" ({panel.unit})" if panel.unit else ""), 34))
        _draw_forest(axes, panel, methods)
        _name_sides(axes, panel, reference)
    return figure


def _draw_forest(axes: Axes, panel: ForestPanel, methods: Sequence[str]) -> None:
    axes.axvline(0.0, color=styles.INK, linewidth=1.0, zorder=2, gid="zero")
    known = {contrast.method: contrast for contrast in panel.contrasts}
    for line, method in enumerate(methods):
        contrast = known.get(method)
        if contrast is None or not math.isfinite(contrast.value):
            style = styles.text_style(styles.TICK, styles.MUTED, va="center", ha="right", fontstyle="italic")
            box: styles.Style = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}  # hides the zero line behind it
            axes.text(0.99, line, "no score", transform=axes.get_yaxis_transform(), bbox=box, zorder=3, **style)
            continue
        sides = (styles.BLUE, styles.VERMILION) if panel.better == "higher" else (styles.VERMILION, styles.BLUE)
        undecided = panel.better == "none" or contrast.value == 0
        colour = styles.MUTED if undecided else sides[contrast.value < 0]
        if math.isfinite(contrast.low) and math.isfinite(contrast.high):
            ends = (contrast.low, contrast.high)
            axes.plot(ends, (line, line), color=colour, linewidth=1.6, gid=f"interval {method}")
        style: styles.Style = {"color": colour, "markerfacecolor": colour if contrast.p < SIGNIFICANT else "white"}
        axes.plot([contrast.value], [line], "o", markersize=5.5, gid=f"value {method}", **style)


def _name_sides(axes: Axes, panel: ForestPanel, reference: str) -> None:
    """Shade the side where the reference is better, and name both sides below the axis."""
    name = styles.sanitise(method_title(reference), 16)
    if panel.better == "none":
        left, right = ("← lower", styles.MUTED), ("higher →", styles.MUTED)
    elif panel.better == "higher":
        left, right = ("← rival", styles.VERMILION), (f"better: {name} →", styles.BLUE)
    else:
        left, right = (f"← better: {name}", styles.BLUE), ("rival →", styles.VERMILION)
    low, high = axes.get_xlim()
    axes.set_xlim(low, high)
    if panel.better != "none":
        side = (0.0, high) if panel.better == "higher" else (low, 0.0)
        axes.axvspan(*side, facecolor=styles.BLUE, alpha=0.07, linewidth=0, zorder=0, gid="better")
    offset: styles.Style = {"xycoords": "axes fraction", "xytext": (0, -19), "textcoords": "offset points", "va": "top"}
    for x, align, (words, colour) in ((0.0, "left", left), (1.0, "right", right)):
        axes.annotate(words, (x, 0.0), **offset, **styles.text_style(styles.TICK, colour, ha=align))
