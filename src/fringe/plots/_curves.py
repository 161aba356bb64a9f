"""Mean insertion, deletion and MAS curves of many methods."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from fringe._tables import ARROW, Direction
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
    looks = {label: _style(index) for index, label in enumerate(labels)}
    handles = [
        Line2D([], [], label=styles.sanitise(styles.method_title(label), 30), **style) for label, style in looks.items()
    ]
    caption = ("mean over images; band: ± 1.96 standard errors",)
    figure, grid = styles.panels(len(data), (3.7, 3.1), across=3, title=title, caption=caption, handles=handles)
    for axes, panel in zip(grid, data, strict=True):
        _draw(axes, panel, looks)
        _label(axes, panel)
    return figure


def _style(index: int) -> styles.Style:
    weight: styles.Style = {"linewidth": 2.2, "zorder": 4} if index == 0 else {"linewidth": 1.3, "zorder": 3}
    return {**styles.series_style(index), **weight}


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


def _label(axes: Axes, panel: CurvePanel) -> None:
    styles.despine(axes)
    axes.set_xlim(0.0, 1.0)
    drawn = np.concatenate([line.get_ydata() for line in axes.lines] or [np.zeros(1)])  # pyright: ignore[reportArgumentType]
    if drawn.min() >= 0.0 and drawn.max() <= 1.0:
        axes.set_ylim(-0.015, 1.015)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, min_n_ticks=3))
    direction = f"{ARROW[panel.better]} better" if panel.better != "none" else ""
    styles.write(
        axes,
        title=styles.sanitise(panel.title, 30),
        note=direction,
        x="pixels changed",
        y=styles.sanitise(panel.axis, 40),
    )
