"""How sensitive an objective is to each setting: the paper's figure of its one-factor sweeps."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, SymmetricalLogLocator
from numpy.typing import NDArray

from fringe.plots import _style as styles

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
        _draw(axes, panel, looks)
        axes.margins(y=0.08)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
        styles.write(axes, x=styles.sanitise(panel.factor, 40))
    figure.supylabel(y, **styles.text_style(styles.LABEL, styles.MUTED))
    return figure


def _draw(axes: Axes, panel: SweepPanel, looks: Mapping[str, styles.Style]) -> None:
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
