"""What the path looks like: the paper's trajectory figure."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from fringe.plots._maps import display_scale, picture, show, show_signed, spatial
from fringe.plots._style import BLUE, INK, LABEL, MUTED, RULE, TITLE, frame, new_figure, printable, text_style, tidy

_TILE, _GAP, _LEFT, _RIGHT = 1.5, 0.1, 0.75, 0.15
"""Inches: a picture, the gap between two, and the margins."""
_CURVE, _TOP, _MIDDLE, _BOTTOM = 1.55, 0.42, 0.62, 0.15


def trajectory(
    entropy: ArrayLike,
    snapshot_steps: ArrayLike,
    images: ArrayLike,
    cumulative: ArrayLike,
    *,
    title: str = "",
) -> Figure:
    """Normalised entropy (T + 1,) in [0, 1] against the step; below it the M intermediate images (M, H, W, 3 or 1)
    after ``snapshot_steps`` (M,) steps, and the attribution (M, C, H, W) gathered until there.

    Each column stands under its marker on the curve. All maps share the scale of the last one.
    """
    curve, steps = np.asarray(entropy, dtype=np.float64), np.asarray(snapshot_steps)
    shown = [picture(image) for image in np.asarray(images, dtype=np.float64)]
    planes = [spatial(values) for values in np.asarray(cumulative, dtype=np.float64)]
    if not len(steps) == len(shown) == len(planes):
        raise ValueError(f"trajectory: {len(steps)} steps, {len(shown)} images and {len(planes)} maps do not match")
    figure, curve_axes, rows = _layout(len(steps), shown[0].shape[0] / shown[0].shape[1])
    _draw_curve(curve_axes, curve, steps, len(steps))
    curve_axes.set_title(printable(title, 100), loc="left", pad=9, **text_style(TITLE))
    scale = display_scale(planes[-1])
    for column, (image, plane) in enumerate(zip(shown, planes, strict=True)):
        show(rows[0][column], image)
        show_signed(rows[1][column], plane, scale)
        style = text_style(LABEL, INK if column == 0 else MUTED)
        rows[0][column].set_title("input" if steps[column] == 0 else f"step {steps[column]}", pad=4, **style)
    for axes, name in zip((rows[0][0], rows[1][0]), ("intermediate\ninput", "attribution\nso far"), strict=True):
        axes.set_ylabel(name, labelpad=8, **text_style(LABEL, MUTED))
    return figure


def _layout(columns: int, aspect: float) -> tuple[Figure, Axes, list[list[Axes]]]:
    tall = _TILE * min(max(aspect, 0.4), 2.5)
    inner = max(columns, 3) * _TILE + (max(columns, 3) - 1) * _GAP
    width, height = _LEFT + inner + _RIGHT, _TOP + _CURVE + _MIDDLE + 2 * tall + _GAP + _BOTTOM
    figure = new_figure(width, height)

    def place(left: float, top: float, wide: float, high: float) -> Axes:
        return figure.add_axes((left / width, 1 - (top + high) / height, wide / width, high / height))

    curve = place(_LEFT, _TOP, inner, _CURVE)
    first = _TOP + _CURVE + _MIDDLE
    rows = [
        [place(_LEFT + c * (_TILE + _GAP), first + r * (tall + _GAP), _TILE, tall) for c in range(columns)]
        for r in range(2)
    ]
    for axes in (*rows[0], *rows[1]):
        frame(axes)
    return figure, curve, rows


def _draw_curve(axes: Axes, entropy: np.ndarray, steps: np.ndarray, columns: int) -> None:
    tidy(axes)
    last = max(len(entropy) - 1, 1)
    axes.plot(np.arange(len(entropy)), entropy, color=BLUE, linewidth=1.8, solid_capstyle="round")
    axes.fill_between(np.arange(len(entropy)), entropy, color=BLUE, alpha=0.08, linewidth=0)
    axes.vlines(steps, 0, entropy[steps], color=RULE, linewidth=0.8)
    axes.plot(
        steps,
        entropy[steps],
        "o",
        color=BLUE,
        markersize=5,
        markeredgecolor="white",
        markeredgewidth=1,
        clip_on=False,
        zorder=5,
    )
    # The pictures' centres divide the width evenly; with these limits the markers stand above them.
    half = last * (_TILE / 2) / ((max(columns, 3) - 1) * (_TILE + _GAP))
    axes.set_xlim(-half, last + half)
    axes.set_ylim(0, max(1.04, float(np.nanmax(entropy)) * 1.04))
    axes.set_yticks([0, 0.5, 1])
    axes.set_xticks([t for t in MaxNLocator(integer=True, nbins=9).tick_values(0, last) if 0 <= t <= last])
    axes.set_ylabel("entropy / ln C", labelpad=6, **text_style(LABEL, MUTED))
    axes.set_xlabel("step", labelpad=1, **text_style(LABEL, MUTED))
