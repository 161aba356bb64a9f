"""Profiles side by side: curves, bands and scales are what the numbers say."""

from dataclasses import replace

import numpy as np
import pytest

from fringe.plots import PathRecord, geometric_profile, plot_profiles
from fringe.plots._profiles import BOUNDS

rng = np.random.default_rng(5)


def path(label, fisher_rao_step, euclidean_step, entropy, active_bound, verdict=""):
    return PathRecord(label, entropy, fisher_rao_step, euclidean_step, active_bound, verdict=verdict)


IG = path("ig", rng.random(8) / 9, np.full(8, 0.5), np.linspace(0, 0.3, 9), np.empty(0))
FREE = path("no_cap", rng.random(6), 50 * rng.random(6), np.linspace(0, 0.9, 7), np.array([0.0, 1, 1, 1, 1, 1]))
CAPPED = path("cap", rng.random(6), 10 * rng.random(6), np.linspace(0, 0.8, 7), np.array([2.0, 2, 2, 1, 1, 1]), "ok")
ALL = [IG, FREE, CAPPED]


def panels(figure, index):
    return [axes for axes in figure.axes if axes.get_subplotspec().colspan.start == index]


def bands(axes):
    return sorted((p.get_x(), p.get_x() + p.get_width(), p.get_gid()) for p in axes.patches)


def test_curves_hold_the_given_numbers_and_start_where_they_belong():
    figure = plot_profiles(ALL)
    for index, given in enumerate(ALL):
        steps = len(given.fisher_rao_step)
        along = (np.arange(1, steps + 1), np.arange(1, steps + 1), np.arange(steps + 1))
        series = (given.fisher_rao_step, given.euclidean_step, given.entropy)
        for axes, x, y in zip(panels(figure, index), along, series, strict=True):
            np.testing.assert_array_equal(axes.lines[0].get_xydata(), np.c_[x, y])


def test_bands_cover_the_steps_that_a_bound_set():
    figure = plot_profiles(ALL)
    for axes in panels(figure, 0):
        assert bands(axes) == []
    for axes in panels(figure, 1):
        assert bands(axes) == [(0.5, 1.5, "0"), (1.5, 6.5, "1")]
    for axes in panels(figure, 2):
        assert bands(axes) == [(0.5, 3.5, "2"), (3.5, 6.5, "1")]
    said = [text.get_text() for text in figure.legends[0].get_texts()]
    assert said == [BOUNDS[bound][0] for bound in (0, 1, 2)]
    assert plot_profiles([IG]).legends[0].get_texts() == []


def test_each_panel_of_lengths_has_its_own_scale_from_zero_and_entropy_has_one():
    figure = plot_profiles(ALL)
    for index, given in enumerate(ALL):
        radians, length, entropy = panels(figure, index)
        assert radians.get_ylim() == pytest.approx((0, 1.12 * given.fisher_rao_step.max()))
        assert length.get_ylim() == pytest.approx((0, 1.12 * given.euclidean_step.max()))
        assert entropy.get_ylim() == (0, 1.04)
        assert {axes.get_yscale() for axes in (radians, length, entropy)} == {"linear"}
    assert "own scale" in figure.legends[0].get_title().get_text()


def test_columns_are_named():
    figure = plot_profiles([IG, replace(FREE, verdict="at_reference"), CAPPED, replace(IG, label="mine")], title="cat")
    tops = figure.axes[:4]
    names = [axes.get_title(loc="left") for axes in tops]
    assert names == ["Integrated Gradients", "no_cap", "cap", "mine"]
    assert [axes.get_title(loc="right") for axes in tops] == ["", "at reference", "", ""]
    assert figure.get_suptitle() == "cat"


def test_the_profile_of_one_path_is_that_of_several():
    figure = geometric_profile(CAPPED.fisher_rao_step, CAPPED.euclidean_step, CAPPED.entropy, CAPPED.active_bound)
    for axes, other in zip(figure.axes, panels(plot_profiles([CAPPED]), 0), strict=True):
        np.testing.assert_array_equal(axes.lines[0].get_xydata(), other.lines[0].get_xydata())
        assert bands(axes) == bands(other)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [BOUNDS[b][0] for b in (1, 2)]
    none = geometric_profile([], [], [2.3], [])
    assert [text.get_text() for axes in none.axes for text in axes.texts] == ["no step was taken"] * 2


def test_what_was_not_measured_is_said():
    figure = plot_profiles([replace(IG, euclidean_step=np.empty(0)), path("at", *[np.empty(0)] * 2, np.ones(1), [])])
    figure.draw_without_rendering()
    said = [[text.get_text() for text in axes.texts] for index in (0, 1) for axes in panels(figure, index)]
    assert said == [[], ["not measured"], [], ["no step was taken"], ["no step was taken"], []]


def test_the_largest_entropy_is_drawn_where_the_number_of_classes_is_known():
    figure = geometric_profile([0.1], [0.1], [0.0, 1.0], [1], classes=10)
    (line,) = [line for line in figure.axes[2].lines if line.get_gid() == "largest entropy"]
    assert line.get_ydata()[0] == pytest.approx(np.log(10))
    assert figure.axes[2].get_ylim()[1] > np.log(10)
    assert len(geometric_profile([0.1], [0.1], [0.0, 1.0], [1]).axes[2].lines) == 1


def test_short_steps_have_no_power_of_ten_over_the_words():
    figure = geometric_profile([1e-7, 2e-7], [1.0, 2.0], [0.0, 0.1, 0.2], [0, 0])
    figure.draw_without_rendering()
    assert not any(axes.yaxis.get_offset_text().get_text() for axes in figure.axes)
