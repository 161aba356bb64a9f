"""Mean insertion, deletion and MAS curves of many methods."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from fringe.plots._forest import Better
from fringe.plots._style import (
    FONT,
    INK,
    LABEL,
    MOST_SERIES,
    MUTED,
    TICK,
    TITLE,
    new_figure,
    note,
    printable,
    series_style,
    text_style,
    tidy,
)

Curves = NDArray[np.float64]

BAND = 1.96
"""Standard errors of the mean on either side: 95 % at each share of pixels by itself."""


@dataclass(frozen=True)
class CurvePanel:
    """One metric: its ``title``, curves (n, N + 1) of n images by method, over shares of changed pixels from 0 to 1 in
    N equal steps, which way is ``better``, and what the ``axis`` of responses says."""

    title: str
    curves: Mapping[str, Curves]
    better: Better = "none"
    axis: str = ""


_PANEL, _TALL, _GAP, _LEFT, _RIGHT = 2.9, 2.35, 0.8, 0.66, 0.32
"""Inches: width and height of a panel, between panels, and the margins."""
_HEAD, _NAME, _FOOT, _ENTRY, _BORDER = 0.62, 0.34, 0.5, 0.2, 0.14
"""Inches: the words above all panels, a panel's title, the words below it, a line of the legend, the border."""
_ACROSS, _COLUMN = 3, 1.72
"""Panels side by side at most; inches that an entry of the legend takes."""


def draw_curves(panels: Sequence[CurvePanel], path: Path | None = None, *, title: str = "") -> Figure:
    """Of each method the mean over images with a band of 1.96 standard errors, one panel a metric; written to ``path``
    if given.

    A method has one colour and dash in all panels, by the order in which methods first appear; the first is drawn
    thicker and above the others. A curve that is not finite everywhere is left out; one image alone has no band.
    """
    labels = list(dict.fromkeys(label for panel in panels for label in panel.curves))
    if not labels:
        raise ValueError("draw_curves: no curves")
    if len(labels) > MOST_SERIES:
        raise ValueError(f"draw_curves: {len(labels)} methods, and looks for {MOST_SERIES}")
    looks = {label: _look(place) for place, label in enumerate(labels)}
    down = math.ceil(len(panels) / _ACROSS)
    across = math.ceil(len(panels) / down)
    width = _LEFT + across * _PANEL + (across - 1) * _GAP + _RIGHT
    columns = max(1, int((width - 2 * _BORDER) / _COLUMN))
    legend = _ENTRY * math.ceil(len(labels) / columns) + _BORDER
    height = _HEAD + down * (_NAME + _TALL + _FOOT) + legend
    figure = new_figure(width, height)
    for place, panel in enumerate(panels):
        row, column = divmod(place, across)
        x = _LEFT + column * (_PANEL + _GAP)
        y = height - _HEAD - row * (_NAME + _TALL + _FOOT) - _NAME - _TALL
        axes = figure.add_axes((x / width, y / height, _PANEL / width, _TALL / height))
        _draw(axes, panel, looks)
        _frame(axes, panel)
    _explain(figure, looks, columns, title)
    if path is not None:
        figure.savefig(path)
    return figure


def mean_and_error(curves: Curves) -> tuple[Curves, Curves] | None:
    """Mean (N + 1,) and its standard error of the finite ones among ``curves`` (n, N + 1); the error of one is NaN, and
    None stands for none."""
    kept = curves[np.isfinite(curves).all(1)]
    if len(kept) == 0:
        return None
    if len(kept) == 1:
        return kept[0], np.full(kept.shape[1], np.nan)
    return kept.mean(0), kept.std(0, ddof=1) / math.sqrt(len(kept))


def _look(place: int) -> dict[str, Any]:
    """Colour, dash, weight and height of the method at this place."""
    weight = {"linewidth": 2.2, "zorder": 4} if place == 0 else {"linewidth": 1.3, "zorder": 3}
    return {**series_style(place), **weight}


def _draw(axes: Axes, panel: CurvePanel, looks: Mapping[str, dict[str, Any]]) -> None:
    for label, curves in panel.curves.items():
        if curves.ndim != 2 or curves.shape[1] < 2:
            raise ValueError(f"{panel.title}: {label} has curves of shape {curves.shape}, expected (n, N + 1)")
        found = mean_and_error(curves)
        if found is None:
            continue
        mean, error = found
        share = np.linspace(0.0, 1.0, len(mean))
        axes.plot(share, mean, gid=f"mean {label}", **looks[label])
        if np.isfinite(error).all():
            low, high = mean - BAND * error, mean + BAND * error
            colour = looks[label]["color"]
            axes.fill_between(share, low, high, color=colour, alpha=0.11, linewidth=0, gid=f"band {label}")
    if not axes.lines:
        note(axes, "no curve")


def _frame(axes: Axes, panel: CurvePanel) -> None:
    tidy(axes)
    axes.set_xlim(0.0, 1.0)
    ends = np.concatenate([line.get_ydata() for line in axes.lines] or [np.zeros(1)])  # pyright: ignore[reportArgumentType]
    if ends.min() >= 0.0 and ends.max() <= 1.0:
        axes.set_ylim(-0.015, 1.015)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, min_n_ticks=3))
    arrow = {"higher": "  ↑ better", "lower": "  ↓ better", "none": ""}[panel.better]
    axes.set_title(printable(panel.title, 30), loc="left", pad=6, **text_style(LABEL, INK, fontweight="bold"))
    axes.set_title(arrow, loc="right", pad=6, **text_style(TICK, MUTED))
    axes.set_xlabel("pixels changed", labelpad=2, **text_style(TICK, MUTED))
    axes.set_ylabel(printable(panel.axis, 40), labelpad=4, **text_style(TICK, MUTED))


def _explain(figure: Figure, looks: Mapping[str, dict[str, Any]], columns: int, title: str) -> None:
    width, height = (float(side) for side in figure.get_size_inches())
    left = _BORDER / width
    style = text_style(TITLE, fontweight="bold")
    figure.text(left, 1 - _BORDER / height, printable(title, int((width - 2 * _BORDER) * 10)), va="top", **style)
    words = "mean over images; band: ± 1.96 standard errors"
    figure.text(left, 1 - 0.44 / height, words, va="center", **text_style(TICK, MUTED))
    figure.legend(
        handles=[Line2D([], [], label=printable(label, 20), **look) for label, look in looks.items()],
        loc="lower left",
        bbox_to_anchor=(left, _BORDER / height),
        ncols=columns,
        frameon=False,
        prop={"family": FONT, "size": TICK},
        labelcolor=INK,
        handlelength=2.4,
        columnspacing=1.4,
        borderpad=0,
        borderaxespad=0,
    )
