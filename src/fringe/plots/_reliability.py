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


def plot_reliability(bins: Sequence[Point], scenes: Sequence[tuple[str, Point]], *, title: str = "") -> Figure:
    """Draw the share of right maps against the predicted probability: in bins, and for each scene that was left out.

    Points on the diagonal are calibrated. Those that are not in order are orange; a number counts the maps.

    Args:
        bins: Maps of similar prediction.
        scenes: Names of scenes, each with its maps.
        title: Title of the figure.

    Returns:
        The figure.

    Raises:
        ValueError: For no bins.
    """
    if not bins:
        raise ValueError("plot_reliability: no bins")
    caption = (
        "scenes that the model was not fitted on; numbers: maps; bars: 95 % intervals; orange: off the diagonal",
    )
    figure, grid = panels(2, (3.5, 3.3), across=2, title=title, caption=caption)
    for axes, words in zip(grid, ("by predicted probability", "by the scene that was left out"), strict=True):
        despine(axes)
        axes.plot((0, 1), (0, 1), color=RULE, linewidth=1.0, gid="diagonal")
        axes.set_xlim(-0.03, 1.03)
        axes.set_ylim(-0.03, 1.03)
        axes.set_aspect("equal")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MultipleLocator(0.25))
            axis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
        axes.set_title(words, loc="left", pad=6, **text_style(LABEL, INK, fontweight="bold"))
        axes.set_xlabel("predicted", labelpad=2, **text_style(TICK, MUTED))
    grid[0].set_ylabel("right maps", labelpad=4, **text_style(TICK, MUTED))
    named = [*((0, f"{point[4]}", point) for point in bins), *((1, sanitise(n, 22), point) for n, point in scenes)]
    labelled: list[tuple[int, float, float]] = []
    for panel, name, (predicted, observed, low, high, _, holds) in named:
        colour = BLUE if holds else VERMILION
        ends = ([max(observed - low, 0.0)], [max(high - observed, 0.0)])
        grid[panel].errorbar(
            [predicted], [observed], yerr=ends, fmt="o", color=colour, markersize=5, elinewidth=1.2, capsize=2.5
        )
        right = predicted < 0.6
        box: Style = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.6}
        style = text_style(TICK - 1, MUTED, ha="left" if right else "right", va="center", bbox=box)
        near = sum(p == panel and abs(x - predicted) < 0.25 and abs(y - observed) < 0.06 for p, x, y in labelled)
        labelled.append((panel, predicted, observed))
        shift = (6 if right else -6, -10 * near)  # below the names of points beside it
        grid[panel].annotate(name, (predicted, observed), xytext=shift, textcoords="offset points", **style)
    return figure
