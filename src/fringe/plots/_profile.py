"""The geometry of the path, step by step: the paper's geometric profile."""

from collections.abc import Iterator

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike, NDArray

from fringe.plots._style import (
    BLUE,
    FONT,
    GREEN,
    INK,
    LABEL,
    MUTED,
    ORANGE,
    SKY,
    TICK,
    TITLE,
    VERMILION,
    new_figure,
    printable,
    text_style,
    tidy,
)

BOUNDS: dict[int, tuple[str, str]] = {
    0: ("largest step factor (η max)", ORANGE),
    1: ("KL budget (τ)", SKY),
    2: ("Euclidean cap (δ euc)", GREEN),
    3: ("change of the logits", VERMILION),
}
"""Name and colour of each trust-region bound, by the number that the path gives it."""


def runs(active_bound: ArrayLike) -> Iterator[tuple[int, int, int]]:
    """Maximal runs (bound, first step, last step) of equal values; steps count from 1."""
    bounds = np.asarray(active_bound).astype(int)
    edges = np.flatnonzero(np.diff(bounds)) + 1
    for run in np.split(np.arange(len(bounds)), edges):
        if len(run):
            yield int(bounds[run[0]]), int(run[0]) + 1, int(run[-1]) + 1


def geometric_profile(
    fisher_rao_step: ArrayLike,
    euclidean_step: ArrayLike,
    entropy: ArrayLike,
    active_bound: ArrayLike,
    *,
    title: str = "",
) -> Figure:
    """Three curves against the step: Fisher-Rao step (T,) in radians, Euclidean step (T,) in units of the input, and
    entropy (T + 1,) in nats. Bands show which bound ``active_bound`` (T,) set each step: see :data:`BOUNDS`."""
    figure = new_figure(7.2, 5.3)
    panels = figure.subplots(3, 1, sharex=True)
    figure.subplots_adjust(left=0.115, right=0.975, top=0.865, bottom=0.09, hspace=0.16)
    series = [np.asarray(a, dtype=np.float64) for a in (fisher_rao_step, euclidean_step, entropy)]
    names = ("Fisher–Rao step\n(rad)", "Euclidean step\n(input units)", "entropy\n(nats)")
    for axes, values, name, colour in zip(panels, series, names, (BLUE, VERMILION, INK), strict=True):
        _panel(axes, values, name, colour, first=0 if name.startswith("entropy") else 1)
    seen = _bands(list(panels), active_bound)
    _decorate(figure, panels[-1], len(series[0]), title, seen)
    return figure


def _panel(axes: Axes, values: NDArray[np.float64], name: str, colour: str, first: int) -> None:
    tidy(axes)
    marker = "o" if len(values) <= 40 else None
    axes.plot(
        np.arange(first, first + len(values)),
        values,
        color=colour,
        linewidth=1.6,
        marker=marker,
        markersize=3,
        clip_on=False,
    )
    axes.set_ylabel(name, **text_style(LABEL, colour))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4, min_n_ticks=3))
    axes.yaxis.get_offset_text().set_fontsize(TICK)
    finite = values[np.isfinite(values)]
    axes.set_ylim(0, (float(finite.max()) * 1.12 if finite.size else 0.0) or 1.0)
    axes.yaxis.set_label_coords(-0.075, 0.5)


def _bands(panels: list[Axes], active_bound: ArrayLike) -> list[int]:
    """Shade the steps that each bound set, half a step to both sides; the bounds seen."""
    seen: set[int] = set()
    for bound, first, last in runs(active_bound):
        seen.add(bound)
        for axes in panels:
            axes.axvspan(first - 0.5, last + 0.5, facecolor=BOUNDS[bound][1], alpha=0.16, linewidth=0, gid=f"{bound}")
    return sorted(seen)


def _decorate(figure: Figure, lowest: Axes, steps: int, title: str, seen: list[int]) -> None:
    lowest.set_xlim(-0.5, max(steps, 1) + 0.5)
    lowest.xaxis.set_major_locator(MaxNLocator(integer=True))
    lowest.set_xlabel("step", **text_style(LABEL, MUTED))
    figure.text(0.115, 0.965, printable(title, 90), va="center", **text_style(TITLE))
    what = "length of a step set by" if seen else "" if steps else "no step was taken"
    figure.text(0.115, 0.908, what, va="center", **text_style(TICK, MUTED))
    if not seen:
        return
    handles = [Patch(facecolor=BOUNDS[b][1], alpha=0.35, label=BOUNDS[b][0]) for b in seen]
    figure.legend(
        handles=handles,
        loc="center left",
        bbox_to_anchor=(0.31, 0.908),
        ncols=len(handles),
        frameon=False,
        prop={"family": FONT, "size": TICK},
        labelcolor=INK,
        handlelength=1.4,
        columnspacing=1.6,
        borderpad=0,
    )
