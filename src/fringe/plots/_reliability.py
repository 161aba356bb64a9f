"""The reliability diagram: what was predicted against what was seen."""

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator, PercentFormatter

from fringe.plots._style import (
    BLUE,
    INK,
    LABEL,
    MUTED,
    RULE,
    TICK,
    VERMILION,
    Style,
    despine,
    panels,
    sanitise,
    text_style,
)

#: Predicted probability, share of right maps, both ends of its interval, number of maps, and whether it is in order.
Point = tuple[float, float, float, float, int, bool]

#: How a share of maps is drawn.
_DOT: Style = {"fmt": "o", "markersize": 5, "elinewidth": 1.2, "capsize": 2.5}


def plot_reliability(bins: Sequence[Point], scenes: Sequence[tuple[str, Point]], *, title: str = "") -> Figure:
    """Draw the share of right maps against the predicted probability: in bins of similar prediction, and for each
    scene, by name, that was left out.

    Bins on the diagonal are calibrated. What is not in order is orange; numbers count the maps. Raises ValueError for
    no bins.
    """
    if not bins:
        raise ValueError("plot_reliability: no bins")
    sizes = sorted({point[4] for point in bins})
    each = " to ".join(str(size) for size in dict.fromkeys((sizes[0], sizes[-1])))
    caption = (
        f"scenes that the model was not fitted on; dots: share of right maps, on the left of {each} maps each, with "
        "95 % intervals; diamonds: predicted; orange: too far apart",
    )
    figure, (left, right) = panels(2, (3.5, 3.3), across=2, title=title, caption=caption)
    for axes, words in ((left, "by predicted probability"), (right, "by the scene that was left out")):
        despine(axes)
        axes.set_title(words, loc="left", pad=6, **text_style(LABEL, INK, fontweight="bold"))
        axes.set_xlim(-0.03, 1.03)
    for axis in (left.xaxis, left.yaxis, right.xaxis):
        axis.set_major_locator(MultipleLocator(0.25))
        axis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
    left.plot((0, 1), (0, 1), color=RULE, linewidth=1.0, gid="diagonal")
    left.set_ylim(-0.03, 1.03)
    left.set_aspect("equal")
    left.set_xlabel("predicted", labelpad=2, **text_style(TICK, MUTED))
    left.set_ylabel("right maps", labelpad=4, **text_style(TICK, MUTED))
    for point in bins:
        predicted, observed, *_ = point
        left.errorbar([predicted], [observed], yerr=_bar(point), color=_colour(point), **_DOT)
    rows = range(len(scenes))
    right.set_yticks(rows, [f"{sanitise(name, 22)} ({point[4]})" for name, point in scenes], parse_math=False)
    right.set_ylim(len(scenes) - 0.5, -0.5)
    for row, (_, point) in zip(rows, scenes, strict=True):
        predicted, observed, *_ = point
        right.plot([predicted, observed], [row, row], color=RULE, linewidth=1.0, zorder=1)
        right.errorbar([observed], [row], xerr=_bar(point), color=_colour(point), **_DOT)
        right.plot([predicted], [row], "D", markerfacecolor="white", markeredgecolor=_colour(point), markersize=4.5)
    return figure


def _bar(point: Point) -> tuple[list[float], list[float]]:
    """How far the ends of an interval are from its share."""
    _, observed, low, high, *_ = point
    return [max(observed - low, 0.0)], [max(high - observed, 0.0)]


def _colour(point: Point) -> str:
    return BLUE if point[-1] else VERMILION
