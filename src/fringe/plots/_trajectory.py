"""What paths look like: the paper's trajectory figure, and paths of a method's variants under each other."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike, NDArray

from fringe.plots import _maps as maps
from fringe.plots import _style as styles
from fringe.plots._profiles import PathRecord

#: Inches of an image of a trajectory with the gap beside it, of the curve, and of the names of rows.
_TILE, _CURVE, _NAMES = 1.6, 1.1, 1.1
_ENTROPY = "Entropy: 0 % is certainty, 100 % means that all classes are equally likely."
_CHANGE = "Change: grey is unchanged, lighter is brighter and darker is darker than the input."
#: Points: what is written in every row of variants.
_SMALL = styles.TICK - 0.5
_CAPTION = (
    "Entropy: 1 means that all classes are equally likely. Change since the input: blurred, bright is the row's "
    "largest. Attribution: red speaks for the class, blue against it, each on its own scale"
)


def trajectory(
    entropy: ArrayLike,
    snapshot_steps: ArrayLike,
    images: ArrayLike,
    cumulative: ArrayLike,
    *,
    title: str = "",
    label: str = "",
    ax: styles.Canvas | None = None,
) -> Figure:
    """Plot the entropy along a path and below it the intermediate inputs, how they differ from the first one, and the
    attribution accumulated so far.

    The first and the last column are under their markers on the curve. Differences are multiplied by the factor beside
    their row, around grey. All maps share the scale of the last map; large maps are averaged for display.

    Args:
        entropy: Entropy (T + 1,) divided by its maximum log C.
        snapshot_steps: Steps (M,) after which the path is shown.
        images: The inputs (M, H, W, 3 or 1) in [0, 1] after these steps.
        cumulative: The attribution (M, C, H, W) accumulated until then.
        title: Title of the figure.
        label: Name of the class.
        ax: Axes, or part of a figure, to draw on; None for a new figure.

    Returns:
        The figure.

    Raises:
        ValueError: If steps, images and maps differ in number.
    """
    curve, steps = np.asarray(entropy, dtype=np.float64), np.asarray(snapshot_steps)
    drawn = [maps.picture(image) for image in np.asarray(images, dtype=np.float64)]
    planes = [maps.for_display(maps.spatial(values)) for values in np.asarray(cumulative, dtype=np.float64)]
    if not len(steps) == len(drawn) == len(planes):
        raise ValueError(f"trajectory: {len(steps)} steps, {len(drawn)} images and {len(planes)} maps do not match")
    columns, size = max(len(steps), 3), drawn[0].shape[:2]
    tall = _TILE * styles.clipped_aspect(*size)
    natural = (_TILE * columns + _NAMES, _CURVE + 3 * tall + 0.9)
    caption = [_ENTROPY, _CHANGE, *maps.signed_caption(size, label)]
    panel = styles.open_panel(*natural, title=title, caption=caption, ax=ax)
    grid = panel.add_gridspec(4, columns, height_ratios=[_CURVE, tall, tall, tall])
    above = panel.add_subplot(grid[0, :])
    tiles = [[panel.add_subplot(grid[row, column]) for column in range(len(steps))] for row in (1, 2, 3)]
    change, factor = amplified([image - drawn[0] for image in drawn])
    for column, (image, plane) in enumerate(zip(drawn, planes, strict=True)):
        maps.show(tiles[0][column], image)
        maps.show(tiles[1][column], change[column])
        maps.show_signed(tiles[2][column], plane, maps.display_scale(planes[-1]))
        styles.write(tiles[0][column], title="input" if steps[column] == 0 else f"step {steps[column]}", bold=False)
    for axes in (*tiles[0], *tiles[1], *tiles[2]):
        styles.image_frame(axes)
    amount = f"\n× {factor:,}".replace(",", " ") if factor > 1 else ""
    names = ("image on\nthe path", f"change since\nthe input{amount}", "evidence\nso far")
    for name, row in zip(names, tiles, strict=True):
        style = styles.text_style(styles.LABEL, styles.MUTED, ha="right", va="center", linespacing=1.3)
        row[0].set_ylabel(name, rotation=0, labelpad=6, **style)
    last = _draw_curve(above, curve, steps)
    above.set_xticks([t for t in MaxNLocator(integer=True, nbins=9).tick_values(0, last) if 0 <= t <= last])
    above.set_yticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])
    styles.write(above, x="step of the path", y="entropy of\nthe prediction")
    if ax is None:
        styles.fit_height(tiles[0][0], 3 + _CURVE / tall)
    _align(above, tiles[0], last)
    return styles.root(panel)


def _align(curve: Axes, tiles: Sequence[Axes], last: int) -> None:
    """Set the limits of a curve so that step 0 stands above the first image and the ``last`` one above the last."""
    styles.lay_out(styles.root(curve))
    box, images = curve.get_position(), [axes.get_position() for axes in tiles]
    first, *_, end = [(image.x0 + image.width / 2 - box.x0) / box.width for image in (*images, images[-1])]
    if len(tiles) == 1:
        end = 1 - first
    curve.set_xlim(-first * last / (end - first), (1 - first) * last / (end - first))


def amplified(differences: Sequence[maps.Plane]) -> tuple[list[maps.Plane], int]:
    """Return differences (H, W, 3) of images times a factor around grey, in [0, 1], and the factor: 1, 2 or 5 times a
    power of ten, so that the largest of the last one just fits but for its upper twentieth."""
    size = float(np.quantile(np.abs(differences[-1]), 0.95))
    largest = min(0.5 / size, 1000.0) if size > 0 else 1.0
    factor = max(factor for factor in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if factor <= max(largest, 1.0))
    return [np.clip(0.5 + factor * difference, 0.0, 1.0) for difference in differences], factor


def plot_variants(paths: Sequence[PathRecord], *, title: str = "") -> Figure:
    """Plot a row per path: its entropy curve with the waypoints marked, the input, the blur-change map of each later
    waypoint, the input at the end, and the signed attribution map.

    All rows share the axis of steps. Blur-change maps are drawn from 0 to 1, that is in units of the largest change of
    their own row; each attribution map on its own scale. Raises ValueError for no paths, or one whose steps, images and
    maps differ in number.
    """
    if not paths:
        raise ValueError("plot_variants: no paths")
    for path in paths:
        _check(path)
    waypoints = max(len(path.snapshot_steps) for path in paths)
    tall = 0.9 * styles.clipped_aspect(*paths[0].changes.shape[1:])
    width = 2.5 + 0.88 * (waypoints + 2) + 0.3
    caption = [f"{_CAPTION}{maps.averaging(paths[0].changes.shape[1:])}."]
    height = (max(tall, 0.55) + 0.54) * len(paths) + 0.15
    figure = styles.root(styles.open_panel(width, height, title=title, caption=caption))
    figure.set_layout_engine("constrained", w_pad=0.025, h_pad=styles.MARGIN, wspace=0, rect=(0.01, 0, 0.98, 1))
    ratios = [2.4, 1, 0.1, *[1] * (waypoints - 1), 0.1, 1, 1]
    grid = figure.add_gridspec(len(paths), len(ratios), width_ratios=ratios)
    last = max(len(path.entropy) for path in paths) - 1
    for row, path in enumerate(paths):
        used = [column for column, ratio in enumerate(ratios) if ratio >= 1]
        used = [*used[: 1 + len(path.snapshot_steps)], *used[-2:]]
        axes = [figure.add_subplot(grid[row, column]) for column in used]
        _draw_variant(axes, path, last)
        below = "step" if path is paths[-1] else ""
        axes[0].set_xlabel(below, labelpad=1, **styles.text_style(styles.TICK, styles.MUTED))
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
    styles.despine(axes)
    along = np.arange(len(entropy))
    axes.plot(along, entropy, color=styles.BLUE, linewidth=1.6, solid_capstyle="round")
    axes.fill_between(along, entropy, color=styles.BLUE, alpha=0.08, linewidth=0)
    axes.vlines(steps, 0, entropy[steps], color=styles.RULE, linewidth=0.8)
    edge: styles.Style = {"markeredgecolor": "white", "markeredgewidth": 0.8, "clip_on": False, "zorder": 5}
    axes.plot(steps, entropy[steps], "o", color=styles.BLUE, markersize=4.5, **edge)
    axes.set_ylim(0, max([1.04, *(1.04 * entropy[np.isfinite(entropy)])]))
    axes.set_yticks([0, 0.5, 1])
    return max(len(entropy) - 1, 1)


def _draw_variant(axes: Sequence[Axes], path: PathRecord, last: int) -> None:
    steps = np.asarray(path.snapshot_steps)
    curve, start, *changes, end, attribution = axes
    heading = curve.set_title(
        styles.sanitise(path.title, 24), loc="left", x=-0.14, **styles.text_style(styles.LABEL, fontweight="bold")
    )
    beside: styles.Style = {"xytext": (5, 0), "textcoords": "offset points", "va": "bottom", "in_layout": False}
    curve.annotate(path.remark, (1, 0), xycoords=heading, **beside, **styles.text_style(_SMALL, styles.MUTED))
    _draw_curve(curve, np.asarray(path.entropy), steps)
    curve.set_xlim(-0.03 * max(last, 1), 1.03 * max(last, 1))
    curve.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
    curve.tick_params(labelsize=_SMALL, pad=2)
    maps.show(start, maps.picture(path.images[0]))
    for one, change in zip(changes, path.changes[1:], strict=True):
        one.imshow(change, cmap=maps.STRENGTH, vmin=0.0, vmax=1.0, interpolation="antialiased")
    maps.show(end, maps.picture(path.images[-1]))
    plane = maps.for_display(maps.spatial(path.attribution))
    maps.show_signed(attribution, plane, maps.display_scale(plane))
    if maps.empty_reason(plane):
        styles.annotate(attribution, maps.empty_reason(plane))
    for one, name in zip(axes[1:], ("input", *(f"step {s}" for s in steps[1:]), "end", "attribution"), strict=True):
        styles.image_frame(one)
        one.set_title(name, pad=3, **styles.text_style(_SMALL, styles.INK if one is attribution else styles.MUTED))
