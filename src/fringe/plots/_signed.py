"""The attribution with its signs."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from numpy.typing import ArrayLike

from fringe.plots._maps import display_scale, emptiness, show_signed, spatial
from fringe.plots._style import FONT, LABEL, MUTED, RULE, TICK, TITLE, frame, new_figure, note, printable, text_style

HEIGHT = 4.0
"""Inches of the map."""


def signed_map(values: ArrayLike, *, title: str = "", unit: str = "") -> Figure:
    """The map (summed over channels) in diverging colours: zero is white, red speaks for the class, blue against it.

    The scale ends at a robust maximum (the colour bar's points mean "and beyond"); ``unit`` is that of the explained
    score. A map that is zero or not finite is drawn blank with a note.
    """
    plane = spatial(values)
    ratio = min(max(plane.shape[1] / plane.shape[0], 0.4), 2.5)
    width = HEIGHT * ratio
    figure = new_figure(width + 1.3, HEIGHT + 0.62)
    total_w, total_h = width + 1.3, HEIGHT + 0.62
    axes = figure.add_axes((0.15 / total_w, 0.15 / total_h, width / total_w, HEIGHT / total_h))
    image = show_signed(axes, plane, display_scale(plane))
    frame(axes)
    axes.set_title(printable(title), loc="left", pad=8, **text_style(TITLE))
    bar = figure.add_axes(((width + 0.32) / total_w, 0.15 / total_h, 0.16 / total_w, HEIGHT / total_h))
    _colour_bar(figure, bar, image, unit)
    empty = emptiness(plane)
    if empty:
        note(axes, empty)
    return figure


def _colour_bar(figure: Figure, axes: Axes, image: AxesImage, unit: str) -> None:
    bar = figure.colorbar(image, cax=axes, extend="both", extendfrac=0.025)
    bar.outline.set_visible(False)
    axes.tick_params(color=RULE, labelcolor=MUTED, labelsize=TICK, width=0.8, length=3, labelfontfamily=FONT)
    axes.yaxis.get_offset_text().set_fontsize(TICK)
    bar.formatter.set_powerlimits((-2, 3))  # pyright: ignore[reportAttributeAccessIssue] - a ScalarFormatter
    bar.update_ticks()
    label = f"attribution per pixel ({unit})" if unit else "attribution per pixel"
    bar.set_label(printable(label), labelpad=6, **text_style(LABEL, MUTED))
