"""One law for all figures: every word can be read, also with long names, many methods, and in a reader's own figure."""

import dataclasses
import math

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from plots_toys import assert_legible, caption, words, written

from fringe import METHODS
from fringe._strings.names import method_title
from fringe.plots import (
    Annotation,
    Contrast,
    CurvePanel,
    ForestPanel,
    GridCell,
    GridRow,
    PathRecord,
    Prediction,
    SheetItem,
    SweepCurve,
    SweepPanel,
    class_maps,
    comparison_grid,
    contact_sheet,
    feature_bars,
    feature_swarm,
    feature_waterfall,
    geometric_profile,
    heading,
    overlay,
    plot_agreement,
    plot_curves,
    plot_forest,
    plot_profiles,
    plot_sensitivity,
    plot_variants,
    series_line,
    signed_map,
    token_html,
    token_map,
    token_text,
    trajectory,
)

rng = np.random.default_rng(4)
CLASS = r"$\frac{$, a class of sixty letters that are no formula: $\frac{$"  # drawing raises if it is read as one
TITLE = heading(CLASS, "evidence for and against", "geoig_knn")
FILE = "a_file_whose_name_has_no_end" * 4
NAMES = list(METHODS)[:12]


def image(size=(20, 20)):
    return rng.random((*size, 3))


def values(size=(20, 20), scale=1.0):
    return scale * rng.normal(size=(3, *size))


def path(size=(20, 20), steps=(0, 1, 2), **more):
    pictures, maps = np.stack([image(size) for _ in steps]), np.stack([values(size) for _ in steps])
    return trajectory(np.linspace(0.1, 0.9, steps[-1] + 1), steps, pictures, maps, **more)


def profile(bounds=(1, 2), **more):
    return geometric_profile([0.1, 0.2], [1.0, 2.0], [0.0, 1.0, 2.0], bounds, **more)


def sheet(count=2, size=(20, 20), verdict="ok", **more):
    long = Prediction(CLASS, 0.884, CLASS)
    given = [SheetItem(image(size), values(size), FILE, long, verdict, "checked") for _ in range(count)]
    return contact_sheet(given, **more)


def classes(count=3, size=(20, 20), **more):
    maps, chances = np.stack([values(size)] * count), np.full(count, 0.1)
    return class_maps(image(size), maps, [CLASS] * count, probabilities=chances, **more)


def grid(rows=1, methods=2, size=(20, 20), names=None, scores=("MI .43", "MD .21"), **more):
    cells = tuple(GridCell(values(size), tuple(Annotation(s, s == scores[0]) for s in scores)) for _ in range(methods))
    row = GridRow(image(size), FILE, Prediction(CLASS, 0.95, CLASS), cells)
    return comparison_grid([row] * rows, names or NAMES[:methods], **more)


def curves(count, names, **more):
    drawn = {name: rng.random((5, 9)) for name in names}
    return plot_curves([CurvePanel(CLASS, drawn, "lower", CLASS) for _ in range(count)], **more)


def forest(count, names, scale=1.0, **more):
    contrasts = tuple(Contrast(name, k * scale, (k - 1) * scale, (k + 1) * scale, 0.03) for k, name in enumerate(names))
    sides = ("lower", "higher", "none")
    made = [ForestPanel("MAS insertion", contrasts, sides[k % 3], "1 / input unit") for k in range(count)]
    return plot_forest(made, **more)


def record(verdict="at_reference", label="fringe", size=(16, 16), steps=(0, 3, 6, 9, 12, 15)):
    pictures, last = np.stack([image(size) for _ in steps]), steps[-1]
    lengths = (rng.random(last), rng.random(last), np.resize([0, 1, 2], last))
    more = (np.array(steps), pictures, rng.random((len(steps), *size)), values(size), verdict)
    return PathRecord(label, np.linspace(0.05, 0.95, last + 1), *lengths, *more)


def sweep(count, networks):
    lines = [
        SweepCurve(f"ResNet-{k:03d} of some length", (1e-3, 1e-2, 1e-1), (0.1, k, 1), (0, k, 0), (1, k, 2), 1e-2)
        for k in range(networks)
    ]
    return plot_sensitivity([SweepPanel("setting of a long name", tuple(lines))] * count, title=TITLE)


def agreement(names):
    tau = np.full((len(names), len(names)), -0.67)
    return plot_agreement(names, tau, tau, tau, title=TITLE)


#: Pictures that may be drawn on a reader's own axes.
PICTURES = {
    "overlay": lambda ax: overlay(image(), values(), title="t", label=CLASS, ax=ax),
    "signed": lambda ax: signed_map(values(), title="t", image=image(), unit="logit", ax=ax),
    "path": lambda ax: path(title="t", ax=ax),
    "profile": lambda ax: profile(title="t", ax=ax),
    "classes": lambda ax: classes(title="t", ax=ax),
    "sheet": lambda ax: sheet(title="t", ax=ax),
    "grid": lambda ax: grid(title="t", ax=ax),
    "bars": lambda ax: feature_bars([f"feature {k}" for k in range(5)], rng.normal(size=5), title="t", ax=ax),
    "line": lambda ax: series_line(rng.random((2, 9)), rng.normal(size=(2, 9)), title="t", ax=ax),
    "words": lambda ax: token_map(CLASS.split() * 3, rng.normal(size=3 * len(CLASS.split())), title="t", ax=ax),
}
WIDE, TALL = (20, 60), (60, 20)
ONES = np.ones((8, 8))
LONG_ROW = 0.1 * np.linspace(-1, 1, 51) ** 3
FIGURES = {
    "overlay": lambda: overlay(image(), values(), title=TITLE, label=CLASS),
    "overlay of a wide image": lambda: overlay(image(WIDE), values(WIDE), title=TITLE, label=CLASS),
    "signed": lambda: signed_map(values((96, 96)), title=TITLE, unit="logit", image=image((96, 96)), label=CLASS),
    "signed with a power of ten": lambda: signed_map(values(scale=1e-6)),
    "signed, tall": lambda: signed_map(values(TALL), title="a title " * 20, image=image(TALL), label=CLASS),
    "signed, zero": lambda: signed_map(np.zeros((9, 9)), title="$\\frac{$", unit="$\\frac{$"),
    "path": lambda: path(steps=(0, 3, 6, 9, 12, 15), title=TITLE),
    "path of a wide image": lambda: path(WIDE, (0, 1), title=TITLE),
    "profile": lambda: profile((1, 0), title="a title " * 30, classes=1000),
    "profile without bounds": lambda: profile((), title=TITLE, classes=10),
    "classes, tall": lambda: classes(5, TALL, title=TITLE),
    "one class": lambda: classes(1, title=TITLE),
    "sheet": lambda: sheet(4, verdict="not_converged", title=TITLE),
    "sheet of one": lambda: sheet(1, WIDE, title="a title " * 30),
    "grid of twelve methods": lambda: grid(2, 12, title=TITLE),
    "grid of long names": lambda: grid(2, 3, names=[CLASS] * 3, scores=("MI .12345", "MD 1.235e+05"), title=TITLE),
    "grid of wide images": lambda: grid(2, 3, WIDE, title=TITLE),
    "bars": lambda: feature_bars([CLASS] * 51, LONG_ROW, inputs=1e4 * LONG_ROW, title=TITLE, label=CLASS),
    "swarm": lambda: feature_swarm([CLASS] * 20, values((30, 20))[0], values((30, 20))[0], title=TITLE, label=CLASS),
    "waterfall": lambda: feature_waterfall([CLASS] * 20, LONG_ROW[:20], (0.0, 1.0), title=TITLE, label=CLASS),
    "line": lambda: series_line(3e7 * rng.random((9, 9)), values((9, 9))[0], names=[CLASS] * 9, title=TITLE),
    "words": lambda: token_map(
        [*CLASS.split(), "x" * 90] * 9, rng.normal(size=9 * len(CLASS.split()) + 9), title=TITLE, label=CLASS
    ),
    "curves of one method": lambda: curves(1, ["fringe"], title=TITLE),
    "curves": lambda: curves(4, [*NAMES, CLASS], title=TITLE),
    "forest of one method": lambda: forest(1, ["ig"], title=TITLE),
    "forest": lambda: forest(5, [*NAMES, CLASS], 1e-5, title=TITLE, reference=CLASS),
    "forest of large numbers": lambda: forest(3, NAMES, 1e4, title=TITLE),
    "agreement": lambda: agreement(["insertion", "deletion", CLASS]),
    "profiles": lambda: plot_profiles([record(), record(label=CLASS)], title="a title " * 9),
    "variants": lambda: plot_variants([record(label=name) for name in ("cap", "diffusion", CLASS)], title=TITLE),
    "variant without a step": lambda: plot_variants([record(steps=(0,))]),
    "sweep": lambda: sweep(5, 6),
}


#: Sizes and numbers of pictures that are drawn in another one, too.
FURTHER = (*(" of a wide", " of wide", ", tall", "large numbers", "power of ten", " of one"),)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.thorough if any(part in name for part in FURTHER) else ())
        for name in FIGURES
    ],
)
def test_every_word_can_be_read(name):
    figure = FIGURES[name]()
    assert_legible(figure)
    if len(figure.axes) > 1 and figure.axes[-1].images:  # nothing is left blank around images
        assert figure.get_tightbbox().height > 0.9 * figure.get_figheight()


def one_cell(content, remark=""):
    return comparison_grid([GridRow(image((8, 8)), "a", None, (GridCell(content, remark=remark),))], ["m"])


def without(content):
    return dataclasses.replace(record(), attribution=np.full((3, 16, 16), content), entropy=np.full(16, content))


ZERO, NAN = np.zeros((1, 8, 8)), np.full((1, 8, 8), np.nan)
WITHOUT_CONTENT = {
    "overlay, zero": (lambda: overlay(image((8, 8)), ZERO), "zero everywhere"),
    "overlay, nan": (lambda: overlay(image((8, 8)), NAN), "not finite"),
    "signed, zero": (lambda: signed_map(ZERO, title="t", unit="logit"), "zero everywhere"),
    "signed, nan": (lambda: signed_map(NAN), "not finite"),
    "cell, zero": (lambda: one_cell(ZERO), "zero"),
    "cell, nan": (lambda: one_cell(NAN), "not finite"),
    "cell that failed": (lambda: one_cell(None, "failed"), "failed"),
    "cell that diverged": (lambda: one_cell(ZERO + 1, "diverged"), "diverged"),
    "variant, zero": (lambda: plot_variants([without(0.0)]), "zero"),
    "variant, nan": (lambda: plot_variants([without(np.nan)]), "not finite"),
    "bars": (lambda: feature_bars(["a"], [0.0]), "the map is zero everywhere"),
    "line": (lambda: series_line([1.0, 2.0], [0.0, 0.0]), "the map is zero everywhere"),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", WITHOUT_CONTENT)
def test_a_map_without_content_says_so(name):
    draw, said = WITHOUT_CONTENT[name]
    assert any(said in text.get_text() for text in words(draw()))


def panel_of(**given):
    return [CurvePanel("Insertion", given)]


UNEQUAL = SweepCurve("net", (1.0, 2.0), (0.5,), (0.4,), (0.6,))
REFUSED = {
    "outline": (lambda: signed_map(np.ones((1, 9, 9)), image=ONES), r"sizes \(8, 8\) and \(9, 9\) differ"),
    "values": (lambda: signed_map(np.ones(5)), r"values: expected \(C, H, W\)"),
    "image": (lambda: overlay(np.ones((2, 8, 8)), ONES), "image: expected"),
    "path": (lambda: trajectory([0.1, 0.2], [0, 1], ONES[None], ONES[None]), "2 steps, 1 images and 1 maps"),
    "variants": (lambda: plot_variants([]), "no paths"),
    "changes": (
        lambda: plot_variants([record(label="ig"), dataclasses.replace(record(), changes=np.ones((5, 16, 16)))]),
        "'fringe' has 6 steps, 6 images and 5 maps.*the first at step 0",
    ),
    "steps": (
        lambda: plot_variants([dataclasses.replace(record(), snapshot_steps=np.array([1, 4, 7, 10, 13, 16]))]),
        "'fringe' has 6 steps, 6 images and 6 maps.*the first at step 0",
    ),
    "profiles": (lambda: plot_profiles([]), "no paths"),
    "grid": (lambda: comparison_grid([], ["m"]), "no images"),
    "cells": (lambda: grid(methods=1, names=["m", "n"]), "each of the 2 methods"),
    "curves": (lambda: plot_curves([]), "no curves"),
    "curve": (
        lambda: plot_curves(panel_of(ig=np.zeros(9))),
        r"Insertion: ig has curves of shape \(9,\), expected \(n, N",
    ),
    "forest": (lambda: plot_forest([]), "nothing to compare"),
    "forest of none": (lambda: plot_forest([ForestPanel("m", (), "higher")]), "nothing to compare"),
    "sweep": (lambda: plot_sensitivity([]), "no curves"),
    "sweep of unequal parts": (lambda: plot_sensitivity([SweepPanel("tau", (UNEQUAL,))]), "'net' differ in length"),
    "sheet": (lambda: contact_sheet([]), "no items"),
    "labels": (lambda: class_maps(ONES, np.ones((2, 9, 9)), ["a"]), "2 maps, 1 labels and 2 probabilities"),
    "classes": (lambda: class_maps(ONES, np.ones((0, 9, 9)), []), "0 maps"),
    "bars": (lambda: feature_bars(["a"], [1.0, 2.0]), r"values: got shape \(2,\) for 1 names"),
    "line": (lambda: series_line([1.0, 2.0], [1.0, 2.0, 3.0]), r"got shape \(1, 3\) for a series of shape \(1, 2\)"),
    "words": (lambda: token_map(["a", "b"], [1.0]), r"values: got shape \(1,\) for 2 words"),
    "html": (lambda: token_html(["a", "b"], [1.0]), r"values: got shape \(1,\) for 2 words"),
    "text": (lambda: token_text(["a", "b"], [1.0]), r"values: got shape \(1,\) for 2 words"),
    "agreement": (
        lambda: plot_agreement(["a"], *[np.ones((2, 2))] * 3),
        "got 1 names, expected matrices of as many rows",
    ),
    "agreement of none": (lambda: plot_agreement((), (), (), ()), "plot_agreement: got 0 names"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_drawn_is_refused(name):
    draw, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        draw()


def figure_of(layout=None, size=(16, 8)):
    figure = Figure(figsize=size, layout=layout)
    FigureCanvasAgg(figure)
    return figure


@pytest.mark.parametrize(
    ("name", "layout"),
    [*((name, None) for name in PICTURES), *((name, "constrained") for name in ("overlay", "sheet", "bars"))],
)
def test_every_picture_is_drawn_on_given_axes_and_leaves_the_others_alone(name, layout):
    figure = figure_of(layout)
    own, given = figure.subplots(1, 2)
    own.plot([0, 1])
    assert PICTURES[name](given) is figure
    assert_legible(figure)
    middle = figure.bbox.width / 2
    for axes in figure.findobj(lambda a: hasattr(a, "get_images") and (a.images or a.lines)):
        assert (axes.get_window_extent().x0 >= 0.95 * middle) == (axes is not own)
    assert "t" in written(figure)
    assert own.get_title() == ""


@pytest.mark.parametrize("name", PICTURES)
def test_every_picture_fits_a_part_of_a_figure_and_a_telephone(name):
    wide, narrow = figure_of(), figure_of(size=(3.9, 5))
    parts = wide.subfigures(1, 2)
    for figure, part in ((wide, parts[1]), (narrow, narrow)):
        assert PICTURES[name](part) is figure
        assert caption(figure)
    assert_legible(wide)
    narrow.draw_without_rendering()
    for part in (parts[1], narrow):
        boxes = [axes.get_window_extent() for axes in part.axes]
        assert all(part.bbox.x0 <= box.x0 and box.x1 <= part.bbox.x1 for box in boxes)


@pytest.mark.parametrize("name", ["path", "profile", "classes", "sheet", "grid", "line", "words"])
def test_axes_outside_a_grid_are_refused_where_a_picture_needs_several(name):
    with pytest.raises(ValueError, match="ax: got Axes outside a grid, expected a SubFigure"):
        PICTURES[name](figure_of().add_axes((0, 0, 1, 1)))


def test_no_figure_touches_the_settings_of_the_process():
    before = dict(mpl.rcParams)
    for name in ("signed", "bars", "forest of one method"):
        FIGURES[name]().draw_without_rendering()
    assert dict(mpl.rcParams) == before


def test_images_fill_their_columns():
    for figure in (classes(3), grid(2, 3), sheet(2)):
        figure.draw_without_rendering()
        for axes in figure.findobj(lambda a: hasattr(a, "get_images") and a.images):
            slot, drawn = axes.get_position(original=True), axes.get_position()
            assert math.isclose(slot.width, drawn.width, rel_tol=0.03)
            assert math.isclose(slot.height, drawn.height, rel_tol=0.03)


def test_every_method_has_a_title_in_words():
    assert all(method_title(name) != name for name in METHODS)
    assert len({method_title(name) for name in METHODS}) == len(METHODS)
    assert method_title("fringe:fast") == "FRInGe (fast)"
    assert method_title("mine") == "mine"


def test_a_sentence_without_end_leaves_a_picture_of_a_page():
    """Names of classes are a stranger's, and stand in titles and captions."""
    endless = "$\\frac{$ " + "w" * 10_000 + " of" * 10_000
    figure = trajectory([0.1], [0], np.zeros((1, 4, 4, 3)), np.zeros((1, 4, 4)), title=endless, label=endless)
    figure.draw_without_rendering()
    assert figure.get_figheight() < 12
