"""What paths look like: the paper's trajectory figure, and paths of a method's variants under each other."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike, NDArray

from fringe.plots._maps import clipped_aspect, display_scale, empty_reason, picture, show, show_signed, spatial
from fringe.plots._profiles import PathRecord
from fringe.plots._style import (
    BLUE,
    INK,
    LABEL,
    MUTED,
    RULE,
    TICK,
    Style,
    annotate,
    despine,
    image_frame,
    sanitise,
    set_padding,
    text_style,
    titled_figure,
)

#: Colours of the blur-change maps: dark is no change.
CHANGES = "inferno"
#: Points: what is written in every row of variants.
_SMALL = TICK - 0.5
_CAPTION = (
    "entropy in units of ln C · change since the input, blurred, in units of the row's largest (dark: none) · "
    "attribution: red for the class, blue against it, own scale"
)


def trajectory(
    entropy: ArrayLike,
    snapshot_steps: ArrayLike,
    images: ArrayLike,
    cumulative: ArrayLike,
    *,
    title: str = "",
) -> Figure:
    """Plot the entropy along a path and below it the intermediate inputs and the attribution accumulated so far.

    Each column stands under its marker on the curve. All maps share the scale of the last one.

    Args:
        entropy: Entropy (T + 1,) divided by its maximum log C.
        snapshot_steps: Steps (M,) after which the path is shown.
        images: The inputs (M, H, W, 3 or 1) in [0, 1] after these steps.
        cumulative: The attribution (M, C, H, W) accumulated until then.
        title: Title of the figure.

    Returns:
        The figure.

    Raises:
        ValueError: If steps, images and maps differ in number.
    """
    curve, steps = np.asarray(entropy, dtype=np.float64), np.asarray(snapshot_steps)
    drawn = [picture(image) for image in np.asarray(images, dtype=np.float64)]
    planes = [spatial(values) for values in np.asarray(cumulative, dtype=np.float64)]
    if not len(steps) == len(drawn) == len(planes):
        raise ValueError(f"trajectory: {len(steps)} steps, {len(drawn)} images and {len(planes)} maps do not match")
    columns, tall = max(len(steps), 3), 1.5 * clipped_aspect(*drawn[0].shape[:2])
    figure = titled_figure(1.6 * columns + 0.7, 2 * tall + 2.3, title=title)
    set_padding(figure, w_pad=0.05, rect=(0.005, 0, 0.99, 1))
    grid = figure.add_gridspec(3, columns, height_ratios=[1.6, tall, tall])
    curve_axes = figure.add_subplot(grid[0, :])
    rows = [[figure.add_subplot(grid[row, column]) for column in range(columns)] for row in (1, 2)]
    scale = display_scale(planes[-1])
    for column, (image, plane) in enumerate(zip(drawn, planes, strict=True)):
        show(rows[0][column], image)
        show_signed(rows[1][column], plane, scale)
        style = text_style(LABEL, INK if column == 0 else MUTED)
        rows[0][column].set_title("input" if steps[column] == 0 else f"step {steps[column]}", pad=4, **style)
    for axes in (*rows[0], *rows[1]):
        image_frame(axes)
        axes.set_visible(bool(axes.images))
    for axes, name in zip((rows[0][0], rows[1][0]), ("intermediate\ninput", "attribution\nso far"), strict=True):
        axes.set_ylabel(name, labelpad=8, **text_style(LABEL, MUTED))
    last = _draw_curve(curve_axes, curve, steps)
    curve_axes.set_xticks([t for t in MaxNLocator(integer=True, nbins=9).tick_values(0, last) if 0 <= t <= last])
    curve_axes.set_ylabel("entropy / ln C", labelpad=6, **text_style(LABEL, MUTED))
    curve_axes.set_xlabel("step", labelpad=1, **text_style(LABEL, MUTED))
    _align(figure, curve_axes, rows[0][: max(len(steps), 2)], last)
    return figure


def plot_variants(paths: Sequence[PathRecord], *, title: str = "") -> Figure:
    """Plot a row per path: its entropy curve with the waypoints marked, the input, the blur-change map of each later
    waypoint, the input at the end, and the signed attribution map.

    All rows share the axis of steps. Blur-change maps are drawn from 0 to 1, that is in units of the largest change of
    their own row; each attribution map on its own scale.

    Args:
        paths: The paths, with their images.
        title: Title of the figure.

    Returns:
        The figure.

    Raises:
        ValueError: For no paths, or one whose steps, images and maps differ in number.
    """
    if not paths:
        raise ValueError("plot_variants: no paths")
    for path in paths:
        _check(path)
    waypoints = max(len(path.snapshot_steps) for path in paths)
    tall = 0.9 * clipped_aspect(*paths[0].changes.shape[1:])
    width = 2.5 + 0.88 * (waypoints + 2) + 0.3
    figure = titled_figure(width, (tall + 0.46) * len(paths) + 0.15, title=title, caption=[_CAPTION])
    set_padding(figure, w_pad=0.025, rect=(0.01, 0, 0.98, 1))
    ratios = [2.4, 1, 0.1, *[1] * (waypoints - 1), 0.1, 1, 1]
    grid = figure.add_gridspec(len(paths), len(ratios), width_ratios=ratios)
    last = max(len(path.entropy) for path in paths) - 1
    for row, path in enumerate(paths):
        used = [column for column, ratio in enumerate(ratios) if ratio >= 1]
        used = [*used[: 1 + len(path.snapshot_steps)], *used[-2:]]
        axes = [figure.add_subplot(grid[row, column]) for column in used]
        _draw_variant(axes, path, last)
        if path is paths[-1]:
            axes[0].set_xlabel("step", labelpad=1, **text_style(TICK, MUTED))
    return figure


def _check(path: PathRecord) -> None:
    count = {len(path.snapshot_steps), len(path.images), len(path.changes)}
    if len(count) != 1 or not len(path.snapshot_steps) or path.snapshot_steps[0] != 0:
        raise ValueError(
            f"plot_variants: {path.label!r} has {len(path.snapshot_steps)} steps, {len(path.images)} images and "
            f"{len(path.changes)} maps, expected as many of each, the first at step 0"
        )


def _draw_curve(axes: Axes, entropy: NDArray[Any], steps: NDArray[Any]) -> int:
    """Draw the entropy with markers at ``steps``; the last step."""
    despine(axes)
    along = np.arange(len(entropy))
    axes.plot(along, entropy, color=BLUE, linewidth=1.6, solid_capstyle="round")
    axes.fill_between(along, entropy, color=BLUE, alpha=0.08, linewidth=0)
    axes.vlines(steps, 0, entropy[steps], color=RULE, linewidth=0.8)
    edge: Style = {"markeredgecolor": "white", "markeredgewidth": 0.8, "clip_on": False, "zorder": 5}
    axes.plot(steps, entropy[steps], "o", color=BLUE, markersize=4.5, **edge)
    axes.set_ylim(0, max([1.04, *(1.04 * entropy[np.isfinite(entropy)])]))
    axes.set_yticks([0, 0.5, 1])
    return max(len(entropy) - 1, 1)


def _align(figure: Figure, curve: Axes, tiles: Sequence[Axes], last: int) -> None:
    """Set the curve's limits so that step 0 stands above the first image and the ``last`` one above the last."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    box = curve.get_position()
    first, end = (((p := axes.get_position()).x0 + p.x1) / 2 for axes in (tiles[0], tiles[-1]))
    step = (end - first) / last
    curve.set_xlim((box.x0 - first) / step, (box.x1 - first) / step)


def _draw_variant(axes: Sequence[Axes], path: PathRecord, last: int) -> None:
    steps = np.asarray(path.snapshot_steps)
    curve, start, *changes, end, attribution = axes
    heading = curve.set_title(sanitise(path.title, 27), loc="left", x=-0.14, **text_style(LABEL, fontweight="bold"))
    beside: Style = {"xytext": (5, 0), "textcoords": "offset points", "va": "bottom", "in_layout": False}
    curve.annotate(path.remark, (1, 0), xycoords=heading, **beside, **text_style(_SMALL, MUTED))
    _draw_curve(curve, np.asarray(path.entropy), steps)
    curve.set_xlim(-0.03 * max(last, 1), 1.03 * max(last, 1))
    curve.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
    curve.tick_params(labelsize=_SMALL, pad=2)
    show(start, picture(path.images[0]))
    for one, change in zip(changes, path.changes[1:], strict=True):
        one.imshow(change, cmap=CHANGES, vmin=0.0, vmax=1.0, interpolation="antialiased")
    show(end, picture(path.images[-1]))
    plane = spatial(path.attribution)
    show_signed(attribution, plane, display_scale(plane))
    if empty_reason(plane):
        annotate(attribution, empty_reason(plane))
    for one, name in zip(axes[1:], ("input", *(f"step {s}" for s in steps[1:]), "end", "attribution"), strict=True):
        image_frame(one)
        one.set_title(name, pad=3, **text_style(_SMALL, INK if one is attribution else MUTED))
