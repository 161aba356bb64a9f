"""The geometry of several paths, side by side: the paper's comparison of trust regions."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from fringe.plots._profile import BOUNDS, runs
from fringe.plots._style import (
    BLUE,
    FONT,
    INK,
    LABEL,
    MUTED,
    TICK,
    TITLE,
    VERMILION,
    new_figure,
    note,
    printable,
    text_style,
    tidy,
)

NAMES = {"ig": "IG", "no_cap": "FRInGe without cap", "cap": "FRInGe with cap"}
"""What the paths of the paper's comparison are called in a figure. A column of another label shows the label itself."""


@dataclass(frozen=True)
class Column:
    """One path of T steps: ``fisher_rao_step`` (T,) in radians, ``euclidean_step`` (T,) in units of the input,
    ``entropy`` (T + 1,) in units of log C, and which bound set each step, ``active_bound`` (T,), numbers of
    :data:`BOUNDS`. A path that does not measure something has an empty array there. ``verdict`` is
    shown unless it is "ok"."""

    label: str
    fisher_rao_step: NDArray[Any]
    euclidean_step: NDArray[Any]
    entropy: NDArray[Any]
    active_bound: NDArray[Any]
    verdict: str = ""


_WIDE, _HIGH, _ACROSS, _DOWN = 2.45, 1.25, 0.48, 0.14
"""Inches: a panel, and the gaps between columns and rows."""
_MARGIN, _LEFT, _RIGHT, _TOP, _BOTTOM, _TITLE, _LINE = 0.15, 0.95, 0.2, 0.12, 0.48, 0.28, 0.18
_LETTERS = 16
"""Letters of the caption that an inch holds at least."""

_SCALES = (
    "Lengths of steps from 0, each panel on its own scale: what is constant looks flat, a number is read off the axis."
)


def draw_profiles(columns: Sequence[Column], path: Path | None = None, *, title: str = "") -> Figure:
    """A column a path: Fisher-Rao step, Euclidean step and entropy against the step. Saved under ``path`` if one is
    given.

    Each panel of step lengths has its own linear scale that begins at 0: paths differ in them a hundredfold, and
    whether a length is constant, which is what the figure is for, cannot be seen on a logarithmic one. Entropy has one
    scale. Bands show which bound set each step, where a path has any.
    """
    if not columns:
        raise ValueError("draw_profiles: no columns")
    seen = sorted({bound for column in columns for bound, _, _ in runs(column.active_bound)})
    width = _LEFT + len(columns) * (_WIDE + _ACROSS) - _ACROSS + _RIGHT
    scales = wrap(_SCALES, int((width - 2 * _MARGIN) * _LETTERS))
    legend = _rows(seen, width) * _LINE + 0.06 if seen else 0.0
    above = _TOP + (_TITLE if title else 0.0)
    head = above + len(scales) * _LINE + legend + 0.34
    height = head + 3 * (_HIGH + _DOWN) - _DOWN + _BOTTOM
    figure = new_figure(width, height)
    headline = text_style(TITLE, va="top", fontweight="bold")
    figure.text(_MARGIN / width, 1 - _TOP / height, printable(title, int(width * 10)), **headline)
    for line, text in enumerate(scales):
        figure.text(_MARGIN / width, 1 - (above + line * _LINE) / height, text, va="top", **text_style(TICK, MUTED))
    if seen:
        _legend(figure, seen, above + len(scales) * _LINE + 0.06)
    for place, column in enumerate(columns):
        left = _LEFT + place * (_WIDE + _ACROSS)
        boxes = [
            (left / width, 1 - (head + row * (_HIGH + _DOWN) + _HIGH) / height, _WIDE / width, _HIGH / height)
            for row in range(3)
        ]
        _draw(column, [figure.add_axes(box) for box in boxes], first=place == 0)
    if path is not None:
        figure.savefig(path)
    return figure


def _draw(column: Column, panels: list[Axes], first: bool) -> None:
    series = [np.asarray(a, dtype=np.float64) for a in (column.fisher_rao_step, column.euclidean_step, column.entropy)]
    words = ("Fisher–Rao step\n(rad)", "Euclidean step\n(input units)", "entropy\n(of ln C)")
    last = len(series[2]) - 1
    for row, (axes, values, name) in enumerate(zip(panels, series, words, strict=True)):
        colour = (BLUE, VERMILION, INK)[row]
        _panel(axes, values, colour, begins=0 if row == 2 else 1)
        if row == 2:
            axes.set_ylim(0, 1.04)
            axes.set_yticks([0, 0.5, 1])
        axes.set_xlim(-0.5, max(last, 1) + 0.5)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
        axes.tick_params(labelbottom=row == 2)
        if first:
            axes.set_ylabel(name, **text_style(LABEL, colour))
            axes.yaxis.set_label_coords(-0.21, 0.5)
        if not values.size:
            axes.tick_params(labelleft=False)
            note(axes, "not measured" if last > 0 else "no step was taken")
        for bound, begin, end in runs(column.active_bound):
            look: dict[str, Any] = {"facecolor": BOUNDS[bound][1], "alpha": 0.16, "linewidth": 0}
            axes.axvspan(begin - 0.5, end + 0.5, gid=f"{bound}", **look)
    name, verdict = NAMES.get(column.label, column.label), "" if column.verdict == "ok" else column.verdict
    panels[0].set_title(printable(name, 20), loc="left", pad=7, fontweight="bold", **text_style(LABEL))
    panels[0].set_title(verdict.replace("_", " "), loc="right", pad=7, **text_style(TICK, MUTED))
    panels[2].set_xlabel("step", **text_style(LABEL, MUTED))


def _panel(axes: Axes, values: NDArray[np.float64], colour: str, begins: int) -> None:
    """A curve from 0 up to its own largest value."""
    tidy(axes)
    marker = "o" if len(values) <= 40 else None
    along = np.arange(begins, begins + len(values))
    axes.plot(along, values, color=colour, linewidth=1.5, marker=marker, markersize=2.5, clip_on=False)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4, min_n_ticks=3))
    axes.yaxis.get_offset_text().set_fontsize(TICK)
    finite = values[np.isfinite(values)]
    axes.set_ylim(0, (float(finite.max()) * 1.12 if finite.size else 0.0) or 1.0)


def _rows(seen: Sequence[int], width: float) -> int:
    """Lines that the legend takes: one, or one a bound where the figure is narrow."""
    return 1 if width > 2.3 * len(seen) else len(seen)


def _legend(figure: Figure, seen: Sequence[int], top: float) -> None:
    """What the bands mean, ``top`` inches below the figure's edge."""
    width, height = (float(side) for side in figure.get_size_inches())
    handles = [Patch(facecolor=BOUNDS[b][1], alpha=0.35, label=f"step set by: {BOUNDS[b][0]}") for b in seen]
    figure.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(_MARGIN / width, 1 - top / height),
        ncols=len(seen) // _rows(seen, width),
        frameon=False,
        prop={"family": FONT, "size": TICK},
        labelcolor=INK,
        handlelength=1.4,
        columnspacing=1.6,
        labelspacing=0.45,
        borderpad=0,
        borderaxespad=0,
    )
