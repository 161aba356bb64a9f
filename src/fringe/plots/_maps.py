"""Attribution maps as images: what of an array is drawn, the heat map over the image, the signed map; the path as a
strip of images, and variants of a map."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from contourpy import contour_generator
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colorbar import Colorbar
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike, NDArray

from fringe.plots import _style as styles
from fringe.plots._profiles import PathRecord

Plane = NDArray[np.float64]

#: Display scales end at this quantile of |map|: a few extreme pixels would otherwise leave the rest blank.
QUANTILE = 0.99
#: Colours of what has a sign, and of a strength; strong red speaks for the class.
DIVERGING, STRENGTH = "RdBu_r", "inferno"
#: Images with a longer side up to this are drawn pixel by pixel, larger ones are interpolated.
SMALL = 64
#: The heat on a larger image is averaged with a standard deviation of its longer side divided by this.
SMOOTHING = 150
#: The same for a signed map. Signs of neighbours cancel, so it needs more: of strong pixels (the upper tenth of |map|)
#: of MobileNet-V2 at 224 x 224, 37 to 38 % of direct neighbours and 47 to 48 % of those 4 pixels apart have opposite
#: signs; with 224 / 90 pixels, 0 % and 2 to 8 % do. With half as much, a quarter of the latter remains.
SIGNED_SMOOTHING = 90
#: Pixels of the longer side that small images are enlarged towards, by an integer factor.
LONG_SIDE = 640
#: The weight of a focus at its outline, which is half of the largest, and what a caption says of it.
REGION_LEVEL = 0.5
REGION_WORDS = " Outline: the focus."
BOX_WORDS = " Rectangle: the explained box."
#: Weights of red, green and blue in a grey value.
GREY = np.array([0.299, 0.587, 0.114])
#: Inches of the longer side of a picture with a title, of a colour bar with its words, and of the narrowest picture.
_SIDE, _BAR, _NARROWEST = 4.4, 0.95, 3.4


def overlay(
    image: Any,
    values: ArrayLike,
    *,
    title: str = "",
    label: str = "",
    region: ArrayLike | None = None,
    box: Sequence[float] | None = None,
    ax: styles.Canvas | None = None,
) -> Figure:
    """Draw the strength of any map over any picture: each pixel of a small image is a block of equal size.

    It shows where the evidence is: on large images its strength is smoothed a little (:func:`blend`). If the
    attribution is zero or not finite, the grey image has a note that says so. Without a title, a label and axes the
    picture fills the figure; otherwise a caption below explains it.

    Args:
        image: A PIL image, or an array (H, W), (H, W, 1) or (H, W, 3) in [0, 1] or of uint8.
        values: A map (C, H, W) or (H, W), with any sign and scale. One of another size, such as that of a layer, is
            enlarged to the picture, and the caption says so.
        title: Title of the picture.
        label: Name of the class.
        region: Weights (H, W) of a focus, whose outline is drawn.
        box: Left, top, right and bottom of an explained box, which is drawn.
        ax: Axes, or part of a figure, to draw on; None for a new figure.

    Returns:
        The figure.

    Raises:
        ValueError: For other shapes.
    """
    plane, shown = spatial(values), picture(image)
    given = ""
    if plane.shape != shown.shape[:2]:
        given = f", enlarged from {plane.shape[0]} \N{MULTIPLICATION SIGN} {plane.shape[1]}"
        for axis, side in enumerate(shown.shape[:2]):
            places = (np.arange(side) + 0.5) * plane.shape[axis] / side - 0.5  # of the pixels, in entries of the map
            plane = np.apply_along_axis(partial(np.interp, places, np.arange(plane.shape[axis])), axis, plane)
    blended = blend(shown, plane)
    if ax is None and not title and not label:
        factor = max(1, round(LONG_SIDE / max(plane.shape))) / 100
        height, width = plane.shape
        axes = styles.new_figure(width * factor, height * factor, dpi=100).add_axes((0, 0, 1, 1))
        axes.set_axis_off()
    else:
        given = f"{_averaging(plane.shape, SMOOTHING)}{given}.{REGION_WORDS if region is not None else ''}"
        given += BOX_WORDS if box is not None else ""
        caption = [f"Bright: evidence for or against {styles.quoted(label)}{given}"]
        axes = _picture_axes(plane.shape, title, caption, ax)
        styles.image_frame(axes)
    show(axes, blended)
    draw_region(axes, region)
    draw_box(axes, box)
    annotate_empty(axes, plane)
    if ax is None and (title or label):
        styles.fit_height(axes, 1, _SIDE)
    return styles.root(axes)


def signed_map(
    values: ArrayLike,
    *,
    title: str = "",
    unit: str = "",
    image: ArrayLike | None = None,
    label: str = "",
    note: str = "",
    region: ArrayLike | None = None,
    box: Sequence[float] | None = None,
    ax: styles.Canvas | None = None,
) -> Figure:
    """Draw an attribution, summed over channels, in diverging colours: zero is white, red speaks for the class, blue
    against it.

    Maps of images with a side of more than 64 pixels are averaged for display, and the caption says so: single pixels
    of opposite signs would hide the rest. The scale ends at a robust maximum (the points of the colour bar mean "and
    beyond"). A map that is zero or not finite is drawn blank with a note.

    Args:
        values: Attribution (C, H, W) or (H, W).
        title: Title of the picture.
        unit: Unit of the explained score.
        image: Image (H, W), (H, W, 1) or (H, W, 3) in [0, 1] whose edges are drawn over the map.
        label: Name of the class.
        note: A further sentence of the caption.
        region: Weights (H, W) of a focus, whose outline is drawn.
        box: Left, top, right and bottom of an explained box, which is drawn.
        ax: Axes, or part of a figure, to draw on; None for a new figure.

    Returns:
        The figure.

    Raises:
        ValueError: For another shape, or an image of another size.
    """
    plane = spatial(values)
    caption = signed_caption(plane.shape, label, outlined=image is not None)
    caption[0] += (REGION_WORDS if region is not None else "") + (BOX_WORDS if box is not None else "")
    axes = _picture_axes(plane.shape, title, [*caption, note] if note else caption, ax, beside=_BAR)
    drawn = for_display(plane)
    mappable = show_signed(axes, drawn, display_scale(drawn))
    if image is not None:
        draw_outline(axes, image, plane.shape)
    draw_region(axes, region)
    draw_box(axes, box)
    styles.image_frame(axes)
    words = f"evidence per pixel ({styles.sanitise(unit)})" if unit else "evidence per pixel"
    bar = colour_bar(axes, mappable, words, width=0.035 * max(styles.clipped_aspect(*plane.shape), 1.0), extend="both")
    bar.formatter.set_powerlimits((-2, 3))  # pyright: ignore[reportAttributeAccessIssue] - a ScalarFormatter
    bar.update_ticks()
    annotate_empty(axes, plane)
    if ax is None:
        styles.fit_height(axes, 1, _SIDE)
    return styles.root(axes)


def signed_caption(size: Sequence[int], label: str = "", *, outlined: bool = False) -> list[str]:
    """Return what to read in a signed map of this (H, W)."""
    text = f"Red speaks for {styles.quoted(label)}, blue against it{_averaging(size)}."
    return [f"{text} Grey lines: edges of the image." if outlined else text]


def for_display(plane: Plane) -> Plane:
    """Return a signed map as it is drawn: averaged where it is larger than ``SMALL``. What is not finite stays."""
    if max(plane.shape) <= SMALL:
        return plane
    finite, sigma = np.isfinite(plane), max(plane.shape) / SIGNED_SMOOTHING
    if finite.all():
        return smoothed(plane, sigma)
    weight = smoothed(finite.astype(np.float64), sigma)
    mean = smoothed(np.where(finite, plane, 0.0), sigma) / np.maximum(weight, np.finfo(np.float64).tiny)
    return np.where(finite, mean, plane)


def draw_outline(axes: Axes, image: ArrayLike, size: Sequence[int]) -> None:
    """Draw the edges of an image as faint grey lines over its map: where its grey value changes fast, or, in a small
    image, where it crosses the middle of its range."""
    shown = picture(image)
    if shown.shape[:2] != tuple(size):
        raise ValueError(f"image and values: sizes {shown.shape[:2]} and {tuple(size)} differ")
    if max(shown.shape[:2]) <= SMALL:
        grey = shown @ GREY
        if min(grey.shape) > 1 and grey.max() > grey.min():
            middle = (grey.max() + grey.min()) / 2
            axes.contour(grey, levels=[middle], colors=[styles.INK], linewidths=0.9, alpha=0.45)
        return
    edges = edge_strength(shown)
    lines = np.empty((*edges.shape, 4))
    lines[..., :3], lines[..., 3] = to_rgb(styles.INK), 0.4 * edges
    axes.imshow(lines, interpolation="bilinear", gid="outline")


def region_outline(weights: ArrayLike) -> list[Plane]:
    """Return the lines (n, 2) around the places of a focus, closed: x and y in pixels from the top left corner.

    Args:
        weights: Weights (H, W) of the focus, from 0 to 1; a line is where they cross ``REGION_LEVEL``.
    """
    around = np.pad(np.nan_to_num(np.asarray(weights, dtype=np.float64)), 1)
    return [np.asarray(line) - 0.5 for line in contour_generator(z=around).lines(REGION_LEVEL)]


def draw_region(axes: Axes, weights: ArrayLike | None) -> None:
    """Draw the outline of a focus with these weights (H, W) over an image: dark, with a light border."""
    if weights is None:
        return
    lines = [line - 0.5 for line in region_outline(weights)]
    for colour, width in (("white", 3.0), (styles.INK, 1.2)):
        axes.add_collection(LineCollection(lines, colors=colour, linewidths=width), False)


def draw_box(axes: Axes, box: Sequence[float] | None) -> None:
    """Draw a box, left, top, right and bottom in pixels from the top left corner, over an image."""
    if box is None:
        return
    x0, y0, x1, y1 = (side - 0.5 for side in box)
    line = [(x0, y0), (x1, y0), (x1, y1), (x0, y1), (x0, y0)]
    for colour, width in (("white", 3.0), (styles.INK, 1.2)):
        axes.add_collection(LineCollection([line], colors=colour, linewidths=width, linestyles="-"), False)


def edge_strength(shown: Plane) -> Plane:
    """Return how strong the edges of an image (H, W, 3) are, (H, W) in [0, 1]; weak ones are 0."""
    grey = shown @ GREY
    if min(grey.shape) < 2:
        return np.zeros_like(grey)
    grey = smoothed(grey, max(grey.shape) / 224)
    slope = np.hypot(np.gradient(grey, axis=0), np.gradient(grey, axis=1))
    largest = float(np.quantile(slope, 0.97))
    return np.clip((slope / largest - 0.25) / 0.75, 0.0, 1.0) if largest > 0 else np.zeros_like(slope)


def _averaging(size: Sequence[int], share: float = SIGNED_SMOOTHING) -> str:
    """Return over how many pixels a map of this (H, W) is averaged for display, the full width at half of the maximum
    of the weights; "" if it is not."""
    width = round(2.355 * max(size) / share)
    return "" if max(size) <= SMALL else f"; averaged over about {width} × {width} pixels for display"


def _picture_axes(
    size: Sequence[int], title: str, caption: Sequence[str], ax: styles.Canvas | None, *, beside: float = 0.0
) -> Axes:
    """Return axes for one image of this (H, W), with title and caption, and so many inches ``beside`` it."""
    aspect = styles.clipped_aspect(*size)
    width = _SIDE / max(aspect, 1.0)
    return styles.open_axes(max(width + beside, _NARROWEST), width * aspect, title=title, caption=caption, ax=ax)


def colour_bar(axes: Axes, mappable: ScalarMappable, label: str, *, width: float = 0.035, **more: Any) -> Colorbar:
    """Draw a colour bar to the right of an image, as high as it is and of this share of its width, with points at the
    ends that ``extend`` names."""
    bar = styles.parent(axes).colorbar(
        mappable, cax=axes.inset_axes((1 + width, 0, width, 1)), extendfrac=0.025, **more
    )
    bar.outline.set_visible(False)
    styles.style_ticks(bar.ax)
    bar.set_label(label, labelpad=6, **styles.text_style(styles.LABEL, styles.MUTED))
    return bar


def spatial(values: ArrayLike) -> Plane:
    """Return the map (H, W) of an attribution (C, H, W) or (H, W): its sum over the channels, with signs."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim not in (2, 3):
        raise ValueError(f"values: expected (C, H, W) or (H, W), got shape {array.shape}")
    return array.sum(0) if array.ndim == 3 else array


def picture(image: Any) -> Plane:
    """Return a PIL image, or an array (H, W), (H, W, 1) or (H, W, 3) in [0, 1] or of uint8, as (H, W, 3), clipped to
    the range a screen shows."""
    array = np.asarray(image.convert("RGB") if hasattr(image, "convert") else image)
    array = array.astype(np.float64) / (255 if array.dtype == np.uint8 else 1)
    if array.ndim == 2:
        array = array[..., None]
    if array.ndim != 3 or array.shape[-1] not in (1, 3):
        raise ValueError(f"image: expected (H, W), (H, W, 1) or (H, W, 3), got shape {array.shape}")
    return np.clip(np.broadcast_to(array, (*array.shape[:2], 3)), 0.0, 1.0)


def display_scale(plane: Plane) -> float:
    """Return the |value| that gets the strongest colour; 0 for a map without a finite non-zero value.

    It is the largest value where the quantile is zero, as for a map of few pixels.
    """
    size = np.abs(plane[np.isfinite(plane)])
    if size.size == 0:
        return 0.0
    return float(np.quantile(size, QUANTILE, method="higher")) or float(size.max())


def empty_reason(plane: Plane) -> str:
    """Return why there is nothing to draw, or an empty string."""
    return "" if display_scale(plane) > 0 else "zero" if np.isfinite(plane).any() else "not finite"


def annotate_empty(axes: Axes, plane: Plane) -> None:
    """Write on a map why it is blank, if it is."""
    reason = empty_reason(plane)
    if reason:
        styles.annotate(axes, f"the map is {reason}{' everywhere' if reason == 'zero' else ''}")


def blend(image: ArrayLike, values: ArrayLike) -> Plane:
    """Return the strength of |map| laid over the greyed image: (H, W, 3). Where the map is zero, the grey image shows.

    On images larger than ``SMALL`` the strength is averaged over a few pixels: single ones would not be seen.
    """
    shown, plane = picture(image), np.abs(np.nan_to_num(spatial(values), nan=0.0, posinf=0.0, neginf=0.0))
    if shown.shape[:2] != plane.shape:
        raise ValueError(f"image and values: sizes {shown.shape[:2]} and {plane.shape} differ")
    grey = shown @ GREY
    base = np.repeat((0.12 + 0.68 * grey)[..., None], 3, axis=-1)
    if max(plane.shape) > SMALL:
        plane = smoothed(plane, max(plane.shape) / SMOOTHING)
    scale = display_scale(plane)
    if scale == 0:
        return base
    strength = np.clip(plane / scale, 0.0, 1.0)
    colour = colormaps[STRENGTH](0.35 + 0.6 * strength)[..., :3]
    cover = (0.95 * strength**0.8)[..., None]
    return (1.0 - cover) * base + cover * colour


def smoothed(plane: Plane, sigma: float) -> Plane:
    """Return a Gaussian average of ``plane`` with standard deviation ``sigma`` pixels; edges repeat outwards."""
    reach = int(np.ceil(3 * sigma))
    weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    for axis in (0, 1):
        margin = [(reach, reach) if a == axis else (0, 0) for a in (0, 1)]
        windows = np.lib.stride_tricks.sliding_window_view(np.pad(plane, margin, mode="edge"), 2 * reach + 1, axis)
        plane = windows @ (weights / weights.sum())
    return plane


def show(axes: Axes, array: Plane) -> AxesImage:
    """Draw an RGB image at its own aspect ratio."""
    smooth = "nearest" if max(array.shape[:2]) <= SMALL else "bicubic"
    return axes.imshow(array, interpolation=smooth)


def show_signed(axes: Axes, plane: Plane, scale: float) -> AxesImage:
    """Draw a map with zero in the middle of the colours and ±``scale`` at their ends; NaN stays blank."""
    limit = scale if scale > 0 else 1.0
    return axes.imshow(plane, cmap=DIVERGING, vmin=-limit, vmax=limit, interpolation="antialiased")


#: Inches of an image of a trajectory with the gap beside it, of the curve, and of the names of rows.
_TILE, _CURVE, _NAMES = 1.6, 1.1, 1.1
_ENTROPY = "Entropy: 0% is certainty, 100% means that all classes are equally likely."
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
    drawn = [picture(image) for image in np.asarray(images, dtype=np.float64)]
    planes = [for_display(spatial(values)) for values in np.asarray(cumulative, dtype=np.float64)]
    if not len(steps) == len(drawn) == len(planes):
        raise ValueError(f"trajectory: {len(steps)} steps, {len(drawn)} images and {len(planes)} maps do not match")
    columns, size = max(len(steps), 3), drawn[0].shape[:2]
    tall = _TILE * styles.clipped_aspect(*size)
    natural = (_TILE * columns + _NAMES, _CURVE + 3 * tall + 0.9)
    caption = [_ENTROPY, _CHANGE, *signed_caption(size, label)]
    panel = styles.open_panel(*natural, title=title, caption=caption, ax=ax)
    grid = panel.add_gridspec(4, columns, height_ratios=[_CURVE, tall, tall, tall])
    above = panel.add_subplot(grid[0, :])
    tiles = [[panel.add_subplot(grid[row, column]) for column in range(len(steps))] for row in (1, 2, 3)]
    change, factor = amplified([image - drawn[0] for image in drawn])
    for column, (image, plane) in enumerate(zip(drawn, planes, strict=True)):
        show(tiles[0][column], image)
        show(tiles[1][column], change[column])
        show_signed(tiles[2][column], plane, display_scale(planes[-1]))
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
    above.set_yticks([0, 0.5, 1], ["0%", "50%", "100%"])
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


def amplified(differences: Sequence[Plane]) -> tuple[list[Plane], int]:
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
        count = {len(path.snapshot_steps), len(path.images), len(path.changes)}
        if len(count) != 1 or not len(path.snapshot_steps) or path.snapshot_steps[0] != 0:
            raise ValueError(
                f"plot_variants: {path.label!r} has {len(path.snapshot_steps)} steps, {len(path.images)} images and "
                f"{len(path.changes)} maps, expected as many of each, the first at step 0"
            )
    waypoints = max(len(path.snapshot_steps) for path in paths)
    tall = 0.9 * styles.clipped_aspect(*paths[0].changes.shape[1:])
    width = 2.5 + 0.88 * (waypoints + 2) + 0.3
    caption = [f"{_CAPTION}{_averaging(paths[0].changes.shape[1:])}."]
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
    show(start, picture(path.images[0]))
    for one, change in zip(changes, path.changes[1:], strict=True):
        one.imshow(change, cmap=STRENGTH, vmin=0.0, vmax=1.0, interpolation="antialiased")
    show(end, picture(path.images[-1]))
    plane = for_display(spatial(path.attribution))
    show_signed(attribution, plane, display_scale(plane))
    if empty_reason(plane):
        styles.annotate(attribution, empty_reason(plane))
    for one, name in zip(axes[1:], ("input", *(f"step {s}" for s in steps[1:]), "end", "attribution"), strict=True):
        styles.image_frame(one)
        one.set_title(name, pad=3, **styles.text_style(_SMALL, styles.INK if one is attribution else styles.MUTED))
