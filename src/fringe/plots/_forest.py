"""Paired differences as a forest plot: is the reference method better than each other method, and is it certain?"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from fringe._tables import Direction
from fringe.plots import _style as styles

#: An adjusted p below this fills the marker.
SIGNIFICANT = 0.05

#: Letters of a method's name that are shown.
_NAME = 30


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
    names = 1.15 * styles.LETTER * max(len(styles.sanitise(styles.method_title(method), _NAME)) for method in methods)
    figure, grid = styles.panels(
        len(data),
        (2.7, 0.25 * len(methods) + 0.9),
        sharey=True,
        across=4,
        width=names,
        narrowest=4.6,
        title=title,
        caption=(
            f"{styles.sanitise(styles.method_title(reference), 16)} − rival on the same images, with 95 % interval",
        ),
        handles=[
            Line2D([], [], label="Holm-adjusted p < .05", **point),
            Line2D([], [], label="p ≥ .05", markerfacecolor="white", **point),
        ],
    )
    for axes, panel in zip(grid, data, strict=True):
        styles.name_rows(axes, [styles.sanitise(styles.method_title(name), _NAME) for name in methods])
        axes.grid(axis="x", color=styles.RULE, linewidth=0.5, alpha=0.6)
        axes.margins(x=0.12)  # zero stands well inside
        axes.xaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 2.5, 5, 10], min_n_ticks=3))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}".replace("-", "−"))
        styles.write(axes, title=styles.sanitise(panel.title + (f" ({panel.unit})" if panel.unit else ""), 34))
        _draw(axes, panel, methods)
        _name_sides(axes, panel, reference)
    return figure


def _draw(axes: Axes, panel: ForestPanel, methods: Sequence[str]) -> None:
    axes.axvline(0.0, color=styles.INK, linewidth=1.0, zorder=2, gid="zero")
    known = {contrast.method: contrast for contrast in panel.contrasts}
    for line, method in enumerate(methods):
        contrast = known.get(method)
        if contrast is None or not math.isfinite(contrast.value):
            style = styles.text_style(styles.TICK, styles.MUTED, va="center", ha="right", fontstyle="italic")
            box: styles.Style = {
                "facecolor": "white",
                "edgecolor": "none",
                "pad": 1.0,
            }  # hides the zero line behind the words
            axes.text(0.99, line, "no score", transform=axes.get_yaxis_transform(), bbox=box, zorder=3, **style)
            continue
        colour = _colour(contrast.value, panel.better)
        if math.isfinite(contrast.low) and math.isfinite(contrast.high):
            ends = (contrast.low, contrast.high)
            axes.plot(ends, (line, line), color=colour, linewidth=1.6, gid=f"interval {method}")
        style: styles.Style = {"color": colour, "markerfacecolor": colour if contrast.p < SIGNIFICANT else "white"}
        axes.plot([contrast.value], [line], "o", markersize=5.5, gid=f"value {method}", **style)


def _colour(value: float, better: Direction) -> str:
    if better == "none" or value == 0:
        return styles.MUTED
    return styles.BLUE if (value > 0) == (better == "higher") else styles.VERMILION


def _name_sides(axes: Axes, panel: ForestPanel, reference: str) -> None:
    """Shade the side where the reference is better, and name both sides below the axis."""
    name = styles.sanitise(styles.method_title(reference), 16)
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
