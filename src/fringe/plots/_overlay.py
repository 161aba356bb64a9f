"""The heat map over the image."""

from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from fringe.plots._maps import blend, emptiness, show, spatial
from fringe.plots._style import new_figure, note

LONG_SIDE = 640
"""Pixels of the longer side that small images are enlarged towards, by a whole factor."""


def overlay(image: ArrayLike, values: ArrayLike) -> Figure:
    """|attribution| over ``image``, filling the figure: each pixel of a small image is a block of equal size.

    It shows where the evidence lies: on large images its strength is smoothed a little (:func:`blend`).

    An attribution that is zero or not finite leaves the grey image with a note that says so.
    """
    blended = blend(image, values)
    height, width = blended.shape[:2]
    factor = max(1, round(LONG_SIDE / max(height, width)))
    figure = new_figure(width * factor / 100, height * factor / 100, dpi=100)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    show(axes, blended, aspect="auto")
    empty = emptiness(spatial(values))
    if empty:
        note(axes, empty)
    return figure
