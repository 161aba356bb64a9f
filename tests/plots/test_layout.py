"""Pictures drawn into a reader's own figure, and words that fit the room they have."""

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from plots_toys import assert_apart, caption, words

from fringe import METHODS
from fringe.plots import (
    GridCell,
    GridRow,
    Prediction,
    SheetItem,
    class_maps,
    comparison_grid,
    contact_sheet,
    geometric_profile,
    method_title,
    overlay,
    signed_map,
    trajectory,
)
from fringe.plots._layout import fitted, text_width, wrapped

rng = np.random.default_rng(4)
IMAGE, VALUES = rng.random((20, 20, 3)), rng.normal(size=(3, 20, 20))
ROW = GridRow(IMAGE, "a", Prediction("cat", 0.5), (GridCell(VALUES), GridCell(VALUES)))
PICTURES = {
    "overlay": lambda ax: overlay(IMAGE, VALUES, title="t", ax=ax),
    "signed": lambda ax: signed_map(VALUES, title="t", image=IMAGE, unit="logit", ax=ax),
    "path": lambda ax: trajectory(
        [0.1, 0.5, 0.9], [0, 1, 2], np.stack([IMAGE] * 3), np.stack([VALUES] * 3), title="t", ax=ax
    ),
    "profile": lambda ax: geometric_profile([0.1, 0.2], [1.0, 2.0], [0.0, 1.0, 2.0], [1, 2], title="t", ax=ax),
    "classes": lambda ax: class_maps(IMAGE, np.stack([VALUES] * 3), ["a", "b", "c"], title="t", ax=ax),
    "sheet": lambda ax: contact_sheet(
        [SheetItem(IMAGE, VALUES, "n", Prediction("p", 0.5), "ok", "checked")] * 2, title="t", ax=ax
    ),
    "grid": lambda ax: comparison_grid([ROW], ["fringe", "ig"], title="t", ax=ax),
}


def figure_of(layout=None):
    figure = Figure(figsize=(16, 8), layout=layout)
    FigureCanvasAgg(figure)
    return figure


@pytest.mark.parametrize("layout", [None, "constrained"])
@pytest.mark.parametrize("name", PICTURES)
def test_every_picture_is_drawn_on_given_axes_and_leaves_the_others_alone(name, layout):
    figure = figure_of(layout)
    own, given = figure.subplots(1, 2)
    own.plot([0, 1])
    assert PICTURES[name](given) is figure
    figure.canvas.draw()
    drawn = [axes for axes in figure.findobj(lambda a: hasattr(a, "get_images")) if axes.images or axes.lines]
    assert own in drawn
    middle = figure.bbox.width / 2
    for axes in drawn:
        assert (axes.get_window_extent().x0 >= 0.95 * middle) == (axes is not own)
    assert "t" in [text.get_text() for text in words(figure)]
    assert own.get_title() == ""


@pytest.mark.parametrize("name", PICTURES)
def test_every_picture_fits_a_part_of_a_figure(name):
    figure = figure_of()
    _, part = figure.subfigures(1, 2)
    assert PICTURES[name](part) is figure
    figure.canvas.draw()
    axes = [axes.get_window_extent() for axes in part.axes]
    assert all(box.x0 >= part.bbox.x0 and box.x1 <= part.bbox.x1 for box in axes)
    assert_apart(figure, [*axes, *(text.get_window_extent() for text in words(figure))])
    assert name == "profile" or caption(figure)


@pytest.mark.parametrize("name", ["path", "profile", "classes", "sheet", "grid"])
def test_axes_outside_a_grid_are_refused_where_a_picture_needs_several(name):
    with pytest.raises(ValueError, match="ax: got Axes outside a grid, expected a SubFigure"):
        PICTURES[name](figure_of().add_axes((0, 0, 1, 1)))


@pytest.mark.parametrize("dpi", [100, 150])
@pytest.mark.parametrize("bold", [False, True])
@pytest.mark.parametrize("text", ["Red speaks for", "Integrated Gradients", "a class a class a class", "iii WWW"])
def test_a_text_is_drawn_at_most_as_wide_as_it_is_measured(text, bold, dpi):
    figure = figure_of()
    figure.set_dpi(dpi)
    style = {"fontsize": 8, "fontfamily": "DejaVu Sans", "fontweight": "bold" if bold else "normal"}
    drawn = figure.text(0, 0, text, **style).get_window_extent().width / dpi
    assert drawn <= text_width(text, 8, bold=bold) <= 1.3 * drawn


def test_words_are_cut_to_the_width_and_wrapped_between_words():
    assert fitted("short", 9.0) == "short"
    cut = fitted("W" * 99, 1.0)
    assert cut.endswith("…")
    assert 0.85 < text_width(cut) <= 1.0
    lines = wrapped("one two three four five six seven", 0.8)
    assert " ".join(lines) == "one two three four five six seven"
    assert all(text_width(line) <= 0.8 for line in lines)
    assert len(wrapped("one two three four five six seven", 0.8, most=2)) == 2
    assert wrapped("one two three four five six seven", 0.8, most=2)[-1].endswith("…")
    assert wrapped("", 1.0) == []


def test_every_method_has_a_title_in_words():
    assert all(method_title(name) != name for name in METHODS)
    assert len({method_title(name) for name in METHODS}) == len(METHODS)
    assert method_title("fringe:preview") == "FRInGe (preview)"
    assert method_title("mine") == "mine"
