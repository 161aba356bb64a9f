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

from fringe._strings.names import method_title
from fringe.plots import _style as styles

Array = NDArray[np.floating]

#: Name and colour of each trust-region bound, by the number that the path gives it.
BOUNDS: dict[int, tuple[str, str]] = {
    0: ("the largest step factor (eta_max)", styles.ORANGE),
    1: ("how far the prediction may move (tau)", styles.SKY),
    2: ("how far the input may move (delta_euc)", styles.GREEN),
    3: ("how far the logits may move", styles.VERMILION),
}
_SCALES = (
    "How far prediction (Fisher–Rao distance) and input (Euclidean distance) move in each step, each panel on its own "
    "scale from 0: what is constant looks flat. Entropy: 1 means that all classes are equally likely."
)
_UNITS = ("prediction moves\n(radians)", "input moves\n(input units)", "entropy\n(share of ln C)")
_SHADED = "Shaded: what limited the length of the step."
#: What each panel of a profile shows.
_HEADINGS = (
    "How far the prediction moves in each step",
    "How far the input moves in each step",
    "How undecided the prediction is",
)
_MEANINGS = (
    "Prediction: Fisher–Rao distance of the class probabilities before and after a step, 0 to π.",
    "Input: Euclidean distance before and after a step, in the model's units (after normalisation).",
    "Entropy of the class probabilities: 0 is certainty; largest if all classes are equally likely",
)


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
        return method_title(self.label)

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
    ax: styles.Canvas | None = None,
) -> Figure:
    """Plot how far the prediction and the input of one path move in each step, and the entropy, with bands for what
    limited the step.

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
    lengths = [np.asarray(a) for a in (fisher_rao_step, euclidean_step)]
    path = PathRecord("", np.asarray(entropy), lengths[0], lengths[1], np.asarray(active_bound))
    largest = 0.0 if classes is None else math.log(classes)
    dashed = f" (dashed: {largest:.1f})" if largest > 0 else ""
    handles = _handles([active_bound])
    caption = [*_MEANINGS[:2], f"{_MEANINGS[2]}{dashed}.", *([_SHADED] if handles else [])]
    panel = styles.open_panel(7.4, 4.7, title=title, caption=caption, handles=handles, ax=ax)
    axes: list[Axes] = list(panel.subplots(3, 1))
    _draw_path(axes, path, last=len(path.fisher_rao_step))
    for one, words, unit in zip(axes, _HEADINGS, ("radians", "input units", "nats"), strict=True):
        styles.write(one, title=words, x="step" if one is axes[2] else "", y=unit)
    if largest > 0:
        axes[2].axhline(largest, color=styles.MUTED, linewidth=0.9, linestyle=(0, (4, 2)), gid="largest entropy")
        axes[2].set_ylim(0, 1.12 * max(largest, float(np.nanmax([0.0, *path.entropy]))))
    panel.align_ylabels()
    return styles.root(panel)


def plot_profiles(paths: Sequence[PathRecord], *, title: str = "") -> Figure:
    """Plot Fisher-Rao step, Euclidean step and entropy of several paths against the step, one column per path.

    Each panel of step lengths has its own linear scale that begins at 0: paths differ in them a hundredfold, and
    whether a length is constant, which is what the figure is for, cannot be seen on a logarithmic one. Entropy has one
    scale. Bands show which bound set each step, where a path has any. Raises ValueError for no paths.
    """
    if not paths:
        raise ValueError("plot_profiles: no paths")
    handles = _handles([path.active_bound for path in paths])
    caption = [_SCALES, *([_SHADED] if handles else [])]
    figure = styles.root(styles.open_panel(2.9 * len(paths) + 0.5, 4.7, title=title, caption=caption, handles=handles))
    grid = figure.subplots(3, len(paths), squeeze=False)
    for column, path in enumerate(paths):
        axes = list(grid[:, column])
        _draw_path(axes, path, last=len(path.entropy) - 1)
        axes[2].set(ylim=(0, 1.04), yticks=[0, 0.5, 1])
        for one, unit in zip(axes, _UNITS if column == 0 else ("", "", ""), strict=True):
            top = one is axes[0]
            words = (styles.sanitise(path.title, 20), path.remark) if top else ("", "")
            styles.write(one, title=words[0], note=words[1], x="step" if one is axes[2] else "", y=unit)
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


def _draw_path(panels: Sequence[Axes], path: PathRecord, *, last: int) -> None:
    """Draw a path's three curves, each on its own scale from 0."""
    series = [np.asarray(a, dtype=np.float64) for a in (path.fisher_rao_step, path.euclidean_step, path.entropy)]
    for axes, values, colour in zip(panels, series, (styles.BLUE, styles.VERMILION, styles.INK), strict=True):
        styles.despine(axes)
        steps = np.arange(len(values)) + (axes is not panels[2])
        marker = "o" if len(values) <= 40 else None
        style: styles.Style = {"marker": marker, "markersize": 2.5, "clip_on": False, "in_layout": False}
        axes.plot(steps, values, color=colour, linewidth=1.5, **style)
        finite = values[np.isfinite(values)]
        axes.set_ylim(0, (float(finite.max()) * 1.12 if finite.size else 0.0) or 1.0)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=4, min_n_ticks=3))
        axes.yaxis.set_major_formatter("{x:g}")  # a power of ten above the axis would stand on the words there
        axes.set_xlim(-0.5, max(last, 1) + 0.5)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
        axes.tick_params(labelbottom=axes is panels[2])
        if not values.size:
            axes.tick_params(labelleft=False)
            styles.annotate(axes, "not measured" if last > 0 else "no step was taken")
        for bound, first, end in runs(path.active_bound):
            style: styles.Style = {"facecolor": BOUNDS[bound][1], "alpha": 0.16, "linewidth": 0, "gid": f"{bound}"}
            axes.axvspan(first - 0.5, end + 0.5, **style)
