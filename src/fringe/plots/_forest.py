"""Paired differences as a forest plot: is the champion better than each rival, and is it sure?"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from fringe.plots._style import (
    BLUE,
    FONT,
    INK,
    LABEL,
    MUTED,
    RULE,
    TICK,
    TITLE,
    VERMILION,
    new_figure,
    printable,
    text_style,
    tidy,
)

Better = Literal["higher", "lower", "none"]
"""Which scores are better; "none" where no way is."""

SURE = 0.05
"""An adjusted p below this fills the marker."""


@dataclass(frozen=True)
class Contrast:
    """Champion - ``rival`` on the same images: ``value`` with its interval ``low`` to ``high``, and ``p`` adjusted for
    the number of comparisons. NaN where there is none."""

    rival: str
    value: float
    low: float
    high: float
    p: float


@dataclass(frozen=True)
class ForestPanel:
    """One metric: its ``title``, its ``unit`` ("" for a pure number), and a contrast a rival."""

    title: str
    contrasts: tuple[Contrast, ...]
    better: Better
    unit: str = ""


_PANEL, _GAP, _RIGHT, _NARROWEST = 2.45, 0.22, 0.25, 4.6
"""Inches: the width of a panel, between panels, right of the last, and of the figure with a single panel at least."""
_LETTER, _LONGEST = 0.072, 24
"""Inches that a letter of a rival's name takes, and letters that are shown."""
_LINE, _HEAD, _NAME, _FOOT, _BORDER = 0.25, 0.8, 0.34, 0.6, 0.14
"""Inches: a rival, the words above all panels, a panel's title, the words below it, the border."""
_SIDES = -19.0
"""Points from the axis down to the words about its two sides, below the numbers."""
_ACROSS = 4
"""Panels side by side at most."""


def draw_forest(
    groups: Sequence[ForestPanel], path: Path | None = None, *, champion: str = "FRInGe", title: str = ""
) -> Figure:
    """One panel a metric, one line a rival, in the order in which rivals first appear; written to ``path`` if given.

    A marker is filled where the adjusted p is below .05. The side of zero where the champion is better is shaded, and
    named below the axis; colours of points follow the side.
    """
    if not groups or not any(panel.contrasts for panel in groups):
        raise ValueError("draw_forest: nothing to compare")
    rivals = list(dict.fromkeys(contrast.rival for panel in groups for contrast in panel.contrasts))
    left = _BORDER + 0.1 + _LETTER * max(len(printable(rival, _LONGEST)) for rival in rivals)
    down = math.ceil(len(groups) / _ACROSS)
    across = math.ceil(len(groups) / down)
    tall = _LINE * len(rivals) + 0.1
    wide = max(_PANEL, (_NARROWEST - left - _RIGHT) / across)
    width = left + across * wide + (across - 1) * _GAP + _RIGHT
    height = _HEAD + down * (_NAME + tall + _FOOT)
    figure = new_figure(width, height)
    for place, panel in enumerate(groups):
        row, column = divmod(place, across)
        x = left + column * (wide + _GAP)
        y = height - _HEAD - row * (_NAME + tall + _FOOT) - _NAME - tall
        axes = figure.add_axes((x / width, y / height, wide / width, tall / height))
        _frame(axes, panel, rivals if column == 0 else None, len(rivals))
        _draw(axes, panel, rivals)
        _name_sides(axes, panel, champion)
    _explain(figure, champion, title)
    if path is not None:
        figure.savefig(path)
    return figure


def _frame(axes: Axes, panel: ForestPanel, names: Sequence[str] | None, lines: int) -> None:
    """The empty panel; ``names`` of the lines stand beside the leftmost one only."""
    tidy(axes)
    axes.grid(visible=False, axis="y")
    axes.grid(axis="x", color=RULE, linewidth=0.5, alpha=0.6)
    axes.spines["left"].set_visible(False)
    axes.set_ylim(lines - 0.5 + 0.2, -0.5 - 0.2)
    axes.set_yticks(range(lines), [printable(name, _LONGEST) for name in names] if names else [""] * lines)
    axes.tick_params(axis="y", length=0, labelcolor=INK, labelsize=LABEL)
    for label in axes.get_yticklabels():
        label.set_parse_math(False)
    axes.set_xlim(*_limits(panel))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 2.5, 5, 10], min_n_ticks=3))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}".replace("-", "−"))
    unit = f" ({panel.unit})" if panel.unit else ""
    axes.set_title(printable(panel.title + unit, 34), loc="left", pad=6, **text_style(LABEL, INK, fontweight="bold"))


def _limits(panel: ForestPanel) -> tuple[float, float]:
    """All points and intervals, with zero well inside."""
    ends = [end for c in panel.contrasts for end in (c.value, c.low, c.high) if math.isfinite(end)]
    low, high = min([0.0, *ends]), max([0.0, *ends])
    span = high - low or 1.0
    return min(low - 0.06 * span, -0.12 * span), max(high + 0.06 * span, 0.12 * span)


def _draw(axes: Axes, panel: ForestPanel, rivals: Sequence[str]) -> None:
    axes.axvline(0.0, color=INK, linewidth=1.0, zorder=2, gid="zero")
    known = {contrast.rival: contrast for contrast in panel.contrasts}
    for line, rival in enumerate(rivals):
        contrast = known.get(rival)
        if contrast is None or not math.isfinite(contrast.value):
            style = text_style(TICK, MUTED, va="center", ha="right", fontstyle="italic")
            box = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}  # the zero line would run through the words
            axes.text(0.99, line, "no score", transform=axes.get_yaxis_transform(), bbox=box, zorder=3, **style)
            continue
        colour = _colour(contrast.value, panel.better)
        if math.isfinite(contrast.low) and math.isfinite(contrast.high):
            axes.plot([contrast.low, contrast.high], [line, line], color=colour, linewidth=1.6, gid=f"interval {rival}")
        fill = colour if contrast.p < SURE else "white"
        axes.plot(
            [contrast.value], [line], "o", markersize=5.5, color=colour, markerfacecolor=fill, gid=f"value {rival}"
        )


def _colour(value: float, better: Better) -> str:
    if better == "none" or value == 0:
        return MUTED
    return BLUE if (value > 0) == (better == "higher") else VERMILION


def _name_sides(axes: Axes, panel: ForestPanel, champion: str) -> None:
    """Shade the champion's side, and say below the axis whose is which."""
    name = printable(champion, 12)
    if panel.better == "none":
        left, right = (f"← {name} lower", MUTED), (f"{name} higher →", MUTED)
    elif panel.better == "higher":
        left, right = ("← rival", VERMILION), (f"better: {name} →", BLUE)
    else:
        left, right = (f"← better: {name}", BLUE), ("rival →", VERMILION)
    if panel.better != "none":
        low, high = axes.get_xlim()
        side = (0.0, high) if panel.better == "higher" else (low, 0.0)
        axes.axvspan(*side, facecolor=BLUE, alpha=0.07, linewidth=0, zorder=0, gid="better")
    for x, align, (words, colour) in ((0.0, "left", left), (1.0, "right", right)):
        axes.annotate(
            words,
            (x, 0.0),
            xycoords="axes fraction",
            xytext=(0, _SIDES),
            textcoords="offset points",
            va="top",
            **text_style(TICK, colour, ha=align),
        )


def _explain(figure: Figure, champion: str, title: str) -> None:
    width, height = (float(side) for side in figure.get_size_inches())
    left = _BORDER / width
    figure.text(
        left,
        1 - _BORDER / height,
        printable(title, int((width - 2 * _BORDER) * 10)),
        va="top",
        **text_style(TITLE, fontweight="bold"),
    )
    words = f"{printable(champion, 12)} − rival on the same images, with 95 % interval"
    figure.text(left, 1 - 0.44 / height, words, va="center", **text_style(TICK, MUTED))
    figure.legend(
        handles=[
            Line2D([], [], color=MUTED, marker="o", markersize=5.5, linewidth=1.6, label="Holm-adjusted p < .05"),
            Line2D(
                [], [], color=MUTED, marker="o", markersize=5.5, linewidth=1.6, markerfacecolor="white", label="p ≥ .05"
            ),
        ],
        loc="center left",
        bbox_to_anchor=(left, 1 - 0.64 / height),
        ncols=2,
        frameon=False,
        prop={"family": FONT, "size": TICK},
        labelcolor=MUTED,
        columnspacing=1.6,
        borderpad=0,
        borderaxespad=0,
    )
