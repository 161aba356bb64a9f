"""Paired differences as a forest plot: is the reference method better than each other method, and is it certain?"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from fringe._direction import Direction
from fringe.plots._style import (
    BLUE,
    INK,
    LABEL,
    LETTER,
    MUTED,
    RULE,
    TICK,
    VERMILION,
    Style,
    despine,
    is_leftmost,
    method_title,
    panels,
    sanitise,
    text_style,
)

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
    point: Style = {"color": MUTED, "marker": "o", "markersize": 5.5, "linewidth": 1.6}
    names = 1.15 * LETTER * max(len(sanitise(method_title(method), _NAME)) for method in methods)
    figure, grid = panels(
        len(data),
        (2.7, 0.25 * len(methods) + 0.9),
        across=4,
        width=names,
        narrowest=4.6,
        title=title,
        caption=(f"{sanitise(method_title(reference), 16)} − rival on the same images, with 95 % interval",),
        handles=[
            Line2D([], [], label="Holm-adjusted p < .05", **point),
            Line2D([], [], label="p ≥ .05", markerfacecolor="white", **point),
        ],
    )
    for axes, panel in zip(grid, data, strict=True):
        _label(axes, panel, methods)
        _draw(axes, panel, methods)
        _name_sides(axes, panel, reference)
    return figure


def _label(axes: Axes, panel: ForestPanel, methods: Sequence[str]) -> None:
    """Draw the empty panel; the methods are named beside the leftmost one only."""
    despine(axes)
    axes.grid(visible=False, axis="y")
    axes.grid(axis="x", color=RULE, linewidth=0.5, alpha=0.6)
    axes.spines["left"].set_visible(False)
    axes.set_ylim(len(methods) - 0.3, -0.7)
    names = [sanitise(method_title(name), _NAME) if is_leftmost(axes) else "" for name in methods]
    axes.set_yticks(range(len(methods)), names, parse_math=False)
    axes.tick_params(axis="y", length=0, labelcolor=INK, labelsize=LABEL)
    axes.set_xlim(*_limits(panel))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 2.5, 5, 10], min_n_ticks=3))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}".replace("-", "−"))
    unit = f" ({panel.unit})" if panel.unit else ""
    axes.set_title(sanitise(panel.title + unit, 34), loc="left", pad=6, **text_style(LABEL, INK, fontweight="bold"))


def _limits(panel: ForestPanel) -> tuple[float, float]:
    """Return limits around all points and intervals, with zero well inside."""
    ends = [end for c in panel.contrasts for end in (c.value, c.low, c.high) if math.isfinite(end)]
    low, high = min([0.0, *ends]), max([0.0, *ends])
    span = high - low or 1.0
    return min(low - 0.06 * span, -0.12 * span), max(high + 0.06 * span, 0.12 * span)


def _draw(axes: Axes, panel: ForestPanel, methods: Sequence[str]) -> None:
    axes.axvline(0.0, color=INK, linewidth=1.0, zorder=2, gid="zero")
    known = {contrast.method: contrast for contrast in panel.contrasts}
    for line, method in enumerate(methods):
        contrast = known.get(method)
        if contrast is None or not math.isfinite(contrast.value):
            style = text_style(TICK, MUTED, va="center", ha="right", fontstyle="italic")
            box: Style = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}  # hides the zero line behind the words
            axes.text(0.99, line, "no score", transform=axes.get_yaxis_transform(), bbox=box, zorder=3, **style)
            continue
        colour = _colour(contrast.value, panel.better)
        if math.isfinite(contrast.low) and math.isfinite(contrast.high):
            axes.plot(
                [contrast.low, contrast.high], [line, line], color=colour, linewidth=1.6, gid=f"interval {method}"
            )
        style: Style = {"color": colour, "markerfacecolor": colour if contrast.p < SIGNIFICANT else "white"}
        axes.plot([contrast.value], [line], "o", markersize=5.5, gid=f"value {method}", **style)


def _colour(value: float, better: Direction) -> str:
    if better == "none" or value == 0:
        return MUTED
    return BLUE if (value > 0) == (better == "higher") else VERMILION


def _name_sides(axes: Axes, panel: ForestPanel, reference: str) -> None:
    """Shade the side where the reference is better, and name both sides below the axis."""
    name = sanitise(method_title(reference), 16)
    if panel.better == "none":
        left, right = ("← lower", MUTED), ("higher →", MUTED)
    elif panel.better == "higher":
        left, right = ("← rival", VERMILION), (f"better: {name} →", BLUE)
    else:
        left, right = (f"← better: {name}", BLUE), ("rival →", VERMILION)
    if panel.better != "none":
        low, high = axes.get_xlim()
        side = (0.0, high) if panel.better == "higher" else (low, 0.0)
        axes.axvspan(*side, facecolor=BLUE, alpha=0.07, linewidth=0, zorder=0, gid="better")
    offset: Style = {"xycoords": "axes fraction", "xytext": (0, -19), "textcoords": "offset points", "va": "top"}
    for x, align, (words, colour) in ((0.0, "left", left), (1.0, "right", right)):
        axes.annotate(words, (x, 0.0), **offset, **text_style(TICK, colour, ha=align))
