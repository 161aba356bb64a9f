"""The figures with axes: where things stand and what they say."""

import matplotlib as mpl
import numpy as np
import pytest

from fringe.plots import Cell, contact_sheet, geometric_profile, overlay, signed_map, trajectory
from fringe.plots._profile import BOUNDS, runs
from fringe.plots._style import printable

rng = np.random.default_rng(7)


def a_trajectory(steps=(0, 3, 6, 9, 12, 15), size=(20, 20)):
    count = len(steps)
    images, maps = rng.random((count, *size, 3)), rng.normal(size=(count, 3, *size))
    return trajectory(np.linspace(0.1, 0.9, steps[-1] + 1), steps, images, maps, title="cat")


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ([2, 2, 2, 1, 1, 0], [(2, 1, 3), (1, 4, 5), (0, 6, 6)]),
        ([1], [(1, 1, 1)]),
        ([1, 1, 1], [(1, 1, 3)]),
        ([0, 1, 0], [(0, 1, 1), (1, 2, 2), (0, 3, 3)]),
        ([], []),
    ],
)
def test_runs(bounds, expected):
    assert list(runs(bounds)) == expected


def test_bands_cover_each_step_with_the_colour_of_its_bound():
    bounds = np.array([2.0, 2, 1, 1, 1, 0])
    figure = geometric_profile(rng.random(6), rng.random(6), rng.random(7), bounds, title="cat")
    figure.canvas.draw()
    for axes in figure.axes:
        bands = sorted((p.get_x(), p.get_x() + p.get_width(), p.get_gid()) for p in axes.patches)
        assert bands == [(0.5, 2.5, "2"), (2.5, 5.5, "1"), (5.5, 6.5, "0")]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [BOUNDS[b][0] for b in (0, 1, 2)]


def test_curves_start_where_their_numbers_belong():
    figure = geometric_profile([0.1, 0.2], [3.0, 4.0], [0.0, 1.0, 2.0], [1, 1])
    drawn = [axes.lines[0].get_xydata().tolist() for axes in figure.axes]
    assert drawn == [[[1, 0.1], [2, 0.2]], [[1, 3.0], [2, 4.0]], [[0, 0.0], [1, 1.0], [2, 2.0]]]


def test_a_path_without_steps_is_drawn():
    figure = geometric_profile([], [], [2.3], [])
    figure.canvas.draw()
    assert any("no step" in text.get_text() for text in figure.texts)


def test_each_picture_stands_under_its_marker():
    figure = a_trajectory()
    figure.canvas.draw()
    curve, *pictures = figure.axes
    for step, axes in zip((0, 3, 6, 9, 12, 15), pictures[:6], strict=True):
        box = axes.get_window_extent()
        assert curve.transData.transform((step, 0))[0] == pytest.approx((box.x0 + box.x1) / 2, abs=0.5)


def test_all_maps_of_a_trajectory_share_the_scale_of_the_last():
    maps = np.zeros((3, 1, 9, 9))
    maps[1, 0, 2, 2], maps[2, 0, 2, 2] = 100.0, -5.0
    figure = trajectory([0.1, 0.2, 0.4], [0, 1, 2], np.ones((3, 9, 9, 1)), maps)
    assert {axes.images[0].get_clim() for axes in figure.axes[4:]} == {(-5.0, 5.0)}


@pytest.mark.parametrize("steps", [(0,), (0, 1), (0, 1, 2)])
def test_short_trajectories_are_drawn(steps):
    figure = a_trajectory(steps, (12, 30))
    figure.canvas.draw()
    assert sum(bool(axes.images) for axes in figure.axes) == 2 * len(steps)  # an image and a map for each point


def test_a_trajectory_of_unequal_parts_is_refused():
    with pytest.raises(ValueError, match="2 steps, 1 images and 1 maps"):
        trajectory([0.1, 0.2], [0, 1], np.ones((1, 9, 9, 1)), np.ones((1, 1, 9, 9)))


@pytest.mark.parametrize("count", [1, 4, 13, 24])
def test_a_sheet_has_three_pictures_an_input_and_none_overlaps(count):
    cells = [Cell(rng.random((9, 9, 1)), rng.normal(size=(1, 9, 9)), f"n{i}", "a $b$ c_d", "ok") for i in range(count)]
    figure = contact_sheet(cells, title="t")
    figure.canvas.draw()
    boxes = [axes.get_window_extent() for axes in figure.axes]
    assert len(boxes) == 3 * count
    assert all(not a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.width and box.y0 >= 0 for box in boxes)


def test_an_empty_sheet_is_refused():
    with pytest.raises(ValueError, match="no cells"):
        contact_sheet([])


def test_text_is_drawn_as_it_is_written():
    assert printable("a\n b\t c") == "a b c"
    assert printable("猫 $x^2$ é") == "□ $x^2$ é"
    assert printable("x" * 30, 10) == "x" * 9 + "…"
    signed_map(np.ones((1, 4, 4)), title=r"$\frac{", unit="$").canvas.draw()


def test_no_figure_touches_the_settings_of_the_process():
    before = dict(mpl.rcParams)
    for figure in (a_trajectory(), overlay(np.ones((9, 9)), np.ones((9, 9))), signed_map(np.ones((9, 9)))):
        figure.canvas.draw()
    assert dict(mpl.rcParams) == before
