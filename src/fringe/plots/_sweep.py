"""How sensitive an objective is to each setting: the paper's figure of its one-factor sweeps."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, SymmetricalLogLocator
from numpy.typing import NDArray

from fringe.plots._style import (
    FONT,
    INK,
    LABEL,
    MOST_SERIES,
    MUTED,
    TICK,
    TITLE,
    new_figure,
    printable,
    series_style,
    text_style,
    tidy,
)

Style = Mapping[str, Any]
"""Colour and dashes of a network."""

_COLUMNS = 3
_WIDTH, _HEIGHT = 2.45, 1.75
"""Inches of a panel's axes."""
_LEFT, _RIGHT, _TOP, _GAP, _BELOW = 0.66, 0.2, 0.16, 0.26, 0.64
"""Inches: borders, the gap between columns, and the room below a panel for its numbers and name."""
_TITLE, _LINE = 0.3, 0.2
"""Inches: the title, and a line of the legend."""
_SHORT = 2.5
"""Decades up to which numbers stand on an axis as they are, and not as powers of ten."""
_LINES: dict[str, Any] = {"linewidth": 1.4, "marker": "o", "markersize": 2.6}


@dataclass(frozen=True)
class SweepCurve:
    """The objective (V,) of one network at ``values`` (V,) of a setting, with intervals ``low`` to ``high`` (V,); NaN
    where it failed. ``centre`` is the value from which the other settings are varied; where that is no number it is
    None, and ``centre_objective`` is drawn as a level."""

    name: str
    values: Sequence[float]
    objective: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    centre: float | None = None
    centre_objective: float = math.nan


@dataclass(frozen=True)
class SweepPanel:
    """The curves of one setting, which ``factor`` names."""

    factor: str
    curves: tuple[SweepCurve, ...]


def sensitivity(panels: Sequence[SweepPanel], *, title: str = "", measure: str = "objective") -> Figure:
    """A panel a setting, all on one scale of the objective, which ``measure`` names; a colour a network. Bands are the
    intervals. The axis of a setting is logarithmic where its values span more than a decade, with zero beside it."""
    curves = [curve for panel in panels for curve in panel.curves]
    if not curves:
        raise ValueError("sensitivity: no curves")
    for curve in curves:
        if len({len(row) for row in (curve.values, curve.objective, curve.low, curve.high)}) != 1:
            raise ValueError(f"sensitivity: values, objective, low and high of {curve.name!r} differ in length")
    names = list(dict.fromkeys(curve.name for curve in curves))
    if len(names) > MOST_SERIES:
        raise ValueError(f"sensitivity: {len(names)} networks, and looks for {MOST_SERIES}")
    styles: dict[str, Style] = {name: series_style(place) for place, name in enumerate(names)}
    columns, rows = min(_COLUMNS, len(panels)), -(-len(panels) // _COLUMNS)
    width = _LEFT + columns * (_WIDTH + _GAP) - _GAP + _RIGHT
    legends = [entries for entries in (_networks(styles), _marks(curves)) if entries]
    above = _TOP + (_TITLE if title else 0.0)
    head = above + sum(-(-len(entries) // _across(entries, width)) * _LINE for entries in legends) + 0.16
    figure = new_figure(width, head + rows * (_HEIGHT + _BELOW))
    figure.text(_LEFT / width, 1 - _TOP / figure.get_figheight(), printable(title, int(width * 11)), **_heading())
    for entries in legends:
        above += _place_legend(figure, entries, above)
    limits = _limits(curves)
    for place, panel in enumerate(panels):
        row, column = divmod(place, columns)
        axes = _place(figure, column, head + row * (_HEIGHT + _BELOW))
        _draw(axes, panel, styles)
        axes.set_ylim(*limits)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
        axes.tick_params(labelleft=column == 0)
        axes.set_ylabel(printable(measure, 40) if column == 0 else "", **text_style(LABEL, MUTED))
    return figure


def _draw(axes: Axes, panel: SweepPanel, styles: Mapping[str, Style]) -> None:
    tidy(axes)
    axes.set_xlabel(printable(panel.factor, 40), **text_style(LABEL, INK))
    axes.xaxis.set_label_coords(0.5, -0.17)
    _scale(axes, _array(v for curve in panel.curves for v in curve.values))
    for curve in panel.curves:
        colour = styles[curve.name]["color"]
        values, best, low, high = (_array(row) for row in (curve.values, curve.objective, curve.low, curve.high))
        axes.fill_between(values, low, high, color=colour, alpha=0.12, linewidth=0)
        axes.plot(values, best, **styles[curve.name], **_LINES)
        failed = values[~np.isfinite(best)]
        below = axes.get_xaxis_transform()
        axes.plot(failed, np.full(failed.size, 0.04), transform=below, **_failed(colour))
        if curve.centre is None:
            if math.isfinite(curve.centre_objective):
                axes.axhline(curve.centre_objective, **_level(colour))
        else:
            here = values == curve.centre
            axes.plot(values[here], best[here], **_ring(colour))


def _scale(axes: Axes, values: NDArray[np.float64]) -> None:
    """A logarithmic axis for values that span more than a decade; linear about zero if some are not positive."""
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


def _limits(curves: Sequence[SweepCurve]) -> tuple[float, float]:
    """Of all finite numbers that are drawn, with a margin."""
    rows = [row for curve in curves for row in (curve.objective, curve.low, curve.high, (curve.centre_objective,))]
    drawn = _array(v for row in rows for v in row if math.isfinite(v))
    if drawn.size == 0:
        return 0.0, 1.0
    low, high = float(drawn.min()), float(drawn.max())
    margin = 0.08 * (high - low) or 0.05 * abs(high) or 1.0
    return low - margin, high + margin


def _networks(styles: Mapping[str, Style]) -> list[Line2D]:
    return [Line2D([], [], label=printable(name), **style, **_LINES) for name, style in styles.items() if name]


def _marks(curves: Sequence[SweepCurve]) -> list[Line2D]:
    """What the legend says of the marks that are there."""
    found: list[Line2D] = []
    if any(curve.centre is not None for curve in curves):
        found.append(Line2D([], [], label="centre of the sweeps", **_ring(INK)))
    if any(curve.centre is None and math.isfinite(curve.centre_objective) for curve in curves):
        found.append(Line2D([], [], label="centre, off this axis", **_level(INK)))
    if any(not math.isfinite(v) for curve in curves for v in curve.objective):
        found.append(Line2D([], [], label="failed", **_failed(INK)))
    return found


def _across(entries: Sequence[Line2D], width: float) -> int:
    """How many entries of a legend stand beside each other in a figure of that many inches."""
    longest = max(len(str(entry.get_label())) for entry in entries)
    return max(1, min(len(entries), int((width - _LEFT - _RIGHT) / (0.064 * longest + 0.6))))


def _place_legend(figure: Figure, entries: list[Line2D], top: float) -> float:
    """Draw a legend ``top`` inches below the figure's edge; the inches that it takes."""
    width, height = (float(side) for side in figure.get_size_inches())
    figure.legend(
        handles=entries,
        loc="upper left",
        bbox_to_anchor=(_LEFT / width, 1 - top / height),
        ncols=_across(entries, width),
        frameon=False,
        prop={"family": FONT, "size": TICK},
        labelcolor=INK,
        handlelength=2.6,
        columnspacing=1.5,
        labelspacing=0.45,
        borderpad=0,
        borderaxespad=0,
    )
    return -(-len(entries) // _across(entries, width)) * _LINE


def _place(figure: Figure, column: int, top: float) -> Axes:
    width, height = (float(side) for side in figure.get_size_inches())
    left = _LEFT + column * (_WIDTH + _GAP)
    return figure.add_axes((left / width, 1 - (top + _HEIGHT) / height, _WIDTH / width, _HEIGHT / height))


def _heading() -> dict[str, Any]:
    return text_style(TITLE, va="top", fontweight="bold")


def _ring(colour: str) -> dict[str, Any]:
    """The mark of the centre."""
    around = {"markersize": 6.5, "markerfacecolor": "white", "markeredgewidth": 1.4}
    return {"color": colour, "marker": "o", "linestyle": "none", **around}


def _level(colour: str) -> dict[str, Any]:
    """The objective of a centre that has no place on the axis: a hairline, for dashes tell networks apart."""
    return {"color": colour, "linewidth": 0.7, "gid": "centre off the axis"}


def _failed(colour: str) -> dict[str, Any]:
    return {"color": colour, "marker": "x", "linestyle": "none", "markersize": 4.5, "markeredgewidth": 1.2}


def _array(values: Iterable[float]) -> NDArray[np.float64]:
    return np.asarray(list(values), dtype=np.float64)
