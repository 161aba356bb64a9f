"""The geometry of paths, step by step: the paper's geometric profile, of one path or of several side by side."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike, NDArray

from fringe.plots._layout import Canvas, fitted, open_sheet, root
from fringe.plots._style import (
    BLUE,
    GREEN,
    INK,
    LABEL,
    LINE,
    MUTED,
    ORANGE,
    SKY,
    TICK,
    VERMILION,
    Style,
    annotate,
    despine,
    draw_legend,
    method_title,
    sanitise,
    text_style,
    titled_figure,
)

Array = NDArray[np.floating]

#: Name and colour of each trust-region bound, by the number that the path gives it.
BOUNDS: dict[int, tuple[str, str]] = {
    0: ("the largest step factor (eta_max)", ORANGE),
    1: ("how far the prediction may move (tau)", SKY),
    2: ("how far the input may move (delta_euc)", GREEN),
    3: ("how far the logits may move", VERMILION),
}
#: Titles of the paper's methods and variants in a figure. A path of another label shows the label itself.
TITLES = {
    "ig": "IG",
    "no_cap": "FRInGe without cap",
    "cap": "FRInGe with cap",
    "euclidean": "Euclidean tracking",
    "fisher_rao_unregularized": "Unregularised Fisher–Rao",
    "fringe": "Full FRInGe",
    "gamma_step_only": "gamma_step only",
    "gamma_prior_only": "gamma_prior only",
    "non_geometric": "non-geometric",
    "diffusion": "diffusion (control)",
}
_SCALES = (
    "How far prediction (Fisher–Rao distance) and input (Euclidean distance) move in each step, each panel on its own "
    "scale from 0: what is constant looks flat. Entropy: 1 means that all classes are equally likely."
)
#: Inches of a panel of a profile with its words, of these words, between panels, and of the words below the last one.
_PANEL, _WORDS, _BETWEEN, _AXIS = 1.68, 0.38, 0.2, 0.48


def _nothing() -> Array:
    return np.empty(0)


@dataclass(frozen=True)
class PathRecord:
    """One method's path of T steps from an input, and the attribution that it gave.

    What a method does not measure is an empty array; a profile needs the lengths of steps, a figure of variants the
    images.

    Attributes:
        label: The method's name.
        entropy: Entropy (T + 1,) in units of log C.
        fisher_rao_step: Length (T,) of each step in radians.
        euclidean_step: Length (T,) of each step in units of the input.
        active_bound: Which bound set each step (T,), numbers of ``BOUNDS``.
        snapshot_steps: Steps (M,) after which the path is shown, the first of them 0.
        images: The inputs (M, H, W, 1 or 3) in [0, 1] after these steps.
        changes: Their blurred changes (M, H, W) since the first, in [0, 1].
        attribution: The final attribution (C, H, W).
        verdict: Its verdict, shown unless it is "ok".
    """

    label: str
    entropy: Array
    fisher_rao_step: Array = field(default_factory=_nothing)
    euclidean_step: Array = field(default_factory=_nothing)
    active_bound: Array = field(default_factory=_nothing)
    snapshot_steps: NDArray[np.integer] | Array = field(default_factory=_nothing)
    images: Array = field(default_factory=_nothing)
    changes: Array = field(default_factory=_nothing)
    attribution: Array = field(default_factory=_nothing)
    verdict: str = ""

    @property
    def title(self) -> str:
        """Its title in a figure."""
        return TITLES.get(self.label) or method_title(self.label)

    @property
    def remark(self) -> str:
        """Its verdict in words; "" for "ok"."""
        return "" if self.verdict == "ok" else self.verdict.replace("_", " ")


def geometric_profile(
    fisher_rao_step: ArrayLike,
    euclidean_step: ArrayLike,
    entropy: ArrayLike,
    active_bound: ArrayLike,
    *,
    title: str = "",
    classes: int | None = None,
    ax: Canvas | None = None,
) -> Figure:
    """Plot how far the prediction and the input of one path move in each step, and the entropy, with bands for what
    limited the step. Each panel says in a sentence what it shows.

    Args:
        fisher_rao_step: Length (T,) of each step in radians.
        euclidean_step: Length (T,) of each step in units of the input.
        entropy: Entropy (T + 1,) in nats.
        active_bound: Which bound set each step (T,): see ``BOUNDS``.
        title: Title of the figure.
        classes: Number of classes; the largest entropy is drawn if it is given.
        ax: Axes, or part of a figure, to draw on; None for a new figure.

    Returns:
        The figure.
    """
    series = [np.asarray(a, dtype=np.float64) for a in (fisher_rao_step, euclidean_step, entropy)]
    handles = _handles([active_bound])
    legend = 1.05 * LINE * (1 + len(handles)) if handles else 0.0
    sheet = open_sheet(7.4, 3 * _PANEL + _AXIS + legend - _BETWEEN, title=title, ax=ax)
    down, left = (sheet.height + _BETWEEN - _AXIS - legend) / 3, 0.75
    axes = [
        sheet.add_axes(left, k * down + _WORDS, sheet.width - left, max(down - _WORDS - 0.2, 0.1)) for k in range(3)
    ]
    _draw_path(axes, series, active_bound, None, last=len(series[0]))
    for k, (heading, sentence, unit) in enumerate(_panel_words(classes)):
        sheet.write(0, k * down, heading, text_style(LABEL, INK, fontweight="bold"))
        sheet.write(0, k * down + 0.17, fitted(sentence, sheet.width), text_style(TICK, MUTED))
        axes[k].set_ylabel(unit, labelpad=4, **text_style(TICK, MUTED))
        axes[k].yaxis.set_label_coords(-0.55 / max(sheet.width - left, 0.1), 0.5)
    if classes is not None and classes > 1:
        axes[2].axhline(math.log(classes), color=MUTED, linewidth=0.9, linestyle=(0, (4, 2)), gid="largest entropy")
        axes[2].set_ylim(0, 1.12 * max(math.log(classes), float(np.nanmax([0.0, *series[2]]))))
    if handles:
        corner = sheet.at(0, 3 * down - _BETWEEN + _AXIS)
        title = "Shaded: what limited the length of the step"
        draw_legend(sheet.figure, handles, title, loc="upper left", bbox_to_anchor=corner, borderaxespad=0)
    return root(sheet.figure)


def _panel_words(classes: int | None) -> list[tuple[str, str, str]]:
    """Return heading, sentence and unit of each panel of a profile."""
    largest = "" if classes is None else f" (dashed: ln {classes:,} = {math.log(classes):.1f})".replace(",", " ")
    return [
        (
            "How far the prediction moves in each step",
            "Fisher–Rao distance of the class probabilities before and after a step: 0 is no change, π the largest.",
            "radians",
        ),
        (
            "How far the input moves in each step",
            "Euclidean distance of the inputs before and after a step, in the model's units (after normalisation).",
            "input units",
        ),
        (
            "How undecided the prediction is",
            f"Entropy of the class probabilities: 0 is certainty; largest if all classes are equally likely{largest}.",
            "nats",
        ),
    ]


def plot_profiles(paths: Sequence[PathRecord], *, title: str = "") -> Figure:
    """Plot Fisher-Rao step, Euclidean step and entropy of several paths against the step, one column per path.

    Each panel of step lengths has its own linear scale that begins at 0: paths differ in them a hundredfold, and
    whether a length is constant, which is what the figure is for, cannot be seen on a logarithmic one. Entropy has one
    scale. Bands show which bound set each step, where a path has any. Raises ValueError for no paths.
    """
    if not paths:
        raise ValueError("plot_profiles: no paths")
    handles = _handles([path.active_bound for path in paths])
    caption = [_SCALES, *(["Shaded: what limited the length of the step."] if handles else [])]
    figure = titled_figure(2.9 * len(paths) + 0.5, 4.7, title=title, caption=caption, handles=handles)
    grid = figure.subplots(3, len(paths), squeeze=False)
    for column, path in enumerate(paths):
        series = [np.asarray(a, dtype=np.float64) for a in (path.fisher_rao_step, path.euclidean_step, path.entropy)]
        axes = list(grid[:, column])
        _draw_path(
            axes, series, path.active_bound, "share of ln C" if column == 0 else None, last=len(path.entropy) - 1
        )
        axes[2].set(ylim=(0, 1.04), yticks=[0, 0.5, 1])
        axes[0].set_title(sanitise(path.title, 20), loc="left", pad=7, fontweight="bold", **text_style(LABEL))
        axes[0].set_title(path.remark, loc="right", pad=7, **text_style(TICK, MUTED))
    figure.align_ylabels()
    return figure


def runs(active_bound: ArrayLike) -> Iterator[tuple[int, int, int]]:
    """Yield maximal runs (bound, first step, last step) of equal values; steps count from 1."""
    bounds = np.asarray(active_bound).astype(int)
    edges = np.flatnonzero(np.diff(bounds)) + 1
    for run in np.split(np.arange(len(bounds)), edges):
        if len(run):
            yield int(bounds[run[0]]), int(run[0]) + 1, int(run[-1]) + 1


def _handles(bounds: Sequence[ArrayLike]) -> list[Patch]:
    """Return the legend's entries of the bounds that occur."""
    occurring = sorted({bound for one in bounds for bound, _, _ in runs(one)})
    return [Patch(facecolor=BOUNDS[b][1], alpha=0.35, label=BOUNDS[b][0]) for b in occurring]


def _draw_path(
    panels: Sequence[Axes],
    series: Sequence[NDArray[np.float64]],
    active_bound: ArrayLike,
    unit: str | None,
    *,
    last: int,
) -> None:
    """Draw a path's three curves, each on its own scale from 0; ``unit`` is that of the entropy, None for no labels."""
    names = ("prediction moves\n(radians)", "input moves\n(input units)", f"entropy\n({unit})")
    for axes, values, name, colour in zip(panels, series, names, (BLUE, VERMILION, INK), strict=True):
        despine(axes)
        steps = np.arange(len(values)) + (axes is not panels[2])
        marker = "o" if len(values) <= 40 else None
        style: Style = {"marker": marker, "markersize": 2.5, "clip_on": False, "in_layout": False}
        axes.plot(steps, values, color=colour, linewidth=1.5, **style)
        finite = values[np.isfinite(values)]
        axes.set_ylim(0, (float(finite.max()) * 1.12 if finite.size else 0.0) or 1.0)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=4, min_n_ticks=3))
        axes.yaxis.set_major_formatter("{x:g}")  # a power of ten above the axis would stand on the words there
        axes.set_xlim(-0.5, max(last, 1) + 0.5)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
        axes.tick_params(labelbottom=axes is panels[2])
        if unit is not None:
            axes.set_ylabel(name, **text_style(LABEL, colour))
        if not values.size:
            axes.tick_params(labelleft=False)
            annotate(axes, "not measured" if last > 0 else "no step was taken")
        for bound, first, end in runs(active_bound):
            style: Style = {"facecolor": BOUNDS[bound][1], "alpha": 0.16, "linewidth": 0, "gid": f"{bound}"}
            axes.axvspan(first - 0.5, end + 0.5, **style)
    panels[2].set_xlabel("step", **text_style(LABEL, MUTED))
