"""Bars of tables and lines of series."""

import numpy as np
import pytest
from matplotlib.collections import PathCollection
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle
from plots_toys import caption, written

from fringe.plots import feature_bars, feature_swarm, feature_waterfall, series_line


def bars(figure) -> list[Rectangle]:
    return [patch for axes in figure.axes for patch in axes.patches if isinstance(patch, Rectangle)]


def names(figure) -> list[str]:
    figure.draw_without_rendering()
    return [label.get_text() for label in figure.axes[0].get_yticklabels()]


def test_bars_are_sorted_by_strength_with_the_colour_of_their_sign():
    figure = feature_bars(["a", "b", "c"], [0.5, -2.0, 1.0], inputs=[1.5, 2.0, -3.0], label="yes", note="ok: good")
    assert names(figure) == ["b = 2", "c = −3", "a = 1.5"]
    assert [bar.get_width() for bar in bars(figure)] == [-2.0, 1.0, 0.5]
    red, _, blue, _ = bars(figure)[1].get_facecolor()
    assert red > blue
    red, _, blue, _ = bars(figure)[0].get_facecolor()
    assert blue > red
    assert caption(figure) == "Red bars speak for 'yes', blue bars against it. ok: good"


def test_a_long_name_keeps_the_value_behind_it():
    figure = feature_bars(["a very long name of a feature " * 9, "b"], [2.0, 1.0], inputs=[0.25, 1])
    assert names(figure)[0].endswith("… = 0.25")


@pytest.mark.filterwarnings("error")
def test_what_the_font_lacks_is_a_box_without_a_warning():
    assert names(feature_bars(["\U0001f41f", "b"], [2.0, 1.0]))[0] == "\u25a1"


def test_weak_features_share_the_last_bar():
    values = np.arange(30.0)
    figure = feature_bars([f"f{k}" for k in range(30)], values)
    assert names(figure)[-1] == "sum of 19 others"
    assert sum(bar.get_width() for bar in bars(figure)) == pytest.approx(values.sum())


def test_a_series_has_a_strip_for_each_sample_on_one_scale():
    inputs, values = np.random.default_rng(0).normal(size=(2, 2, 10))
    figure = series_line(inputs, values, names=["x", "y"], label="walk")
    strips = figure.findobj(AxesImage)
    for strip, expected in zip(strips, values, strict=True):
        np.testing.assert_array_equal(strip.get_array()[0], expected)
        assert strip.get_clim() == (-np.abs(values).max(), np.abs(values).max())
    np.testing.assert_array_equal(figure.axes[0].lines[0].get_ydata(), inputs[0])
    assert "speak for 'walk'" in caption(figure)


def test_the_strongest_channels_are_drawn():
    values = np.outer(np.arange(9.0), np.ones(4))
    figure = series_line(np.zeros((9, 4)), values)
    assert [axes.get_ylabel() for axes in figure.axes] == [f"channel {k}" for k in range(3, 9)]
    assert "6 of 9 channels" in caption(figure)


def test_a_value_that_is_not_finite_is_the_weakest():
    figure = feature_bars(["a", "b", "c", "d"], [1.0, float("nan"), 3.0, -2.0])
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["c", "d", "a", "b"]


def test_an_infinite_value_is_said_and_the_others_are_drawn():
    figure = feature_bars(["a", "b", "c"], [np.inf, -2.0, 1.0])
    assert names(figure) == ["b", "c", "a"]
    assert "some values are not finite" in written(figure)
    low, high = figure.axes[0].get_xlim()
    assert -4 < low < -2
    assert 1 < high < 3


def test_a_waterfall_leads_from_one_score_to_the_other():
    figure = feature_waterfall(["a", "b", "c"], [0.5, -2.0, 1.0], (3.0, 2.5), inputs=[1.5, 2.0, -3.0], label="yes")
    assert names(figure) == ["b = 2", "c = −3", "a = 1.5"]
    drawn = bars(figure)
    assert [bar.get_width() for bar in drawn] == [-2.0, 1.0, 0.5]
    ends = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in drawn]
    assert ends == [(4.5, 2.5), (3.5, 4.5), (3.0, 3.5)]  # each begins where the one below it ends
    assert "From the score 3 at the end of the path (below) to 2.5 of this input (above)" in caption(figure)
    beyond = feature_waterfall(["a", "b"], [2.0, -1.0], (1.0, 2.0))
    assert beyond.axes[0].get_xlim()[0] < 0.0  # the end of the second bar, where the first begins


def test_a_waterfall_shows_what_the_map_misses():
    figure = feature_waterfall(["a", "b"], [1.0, 2.0], (0.0, 3.5))
    assert names(figure)[-1] == "not in the map"
    missed = bars(figure)[-1]
    assert (missed.get_x(), missed.get_width()) == (0.0, 0.5)
    red, green, blue, _ = missed.get_facecolor()
    assert abs(red - blue) < 0.1 > abs(red - green)
    assert "not in the map" not in names(feature_waterfall(["a", "b"], [1.0, 2.0], (0.0, 3.02)))


def points(figure) -> list[np.ndarray]:
    found = [c for c in figure.axes[0].collections if isinstance(c, PathCollection)]
    return [np.column_stack([np.asarray(c.get_offsets()), c.get_facecolors()[:, :3].sum(1)]) for c in found]


def test_a_swarm_has_a_point_for_each_row_at_its_attribution():
    values = np.random.default_rng(0).normal(size=(60, 3)) * [0.1, 2.0, 1.0]
    inputs = np.arange(180.0).reshape(60, 3)
    figure = feature_swarm(["a", "b", "c"], values, inputs, label="yes")
    assert names(figure) == ["b", "c", "a"]
    for row, (k, drawn) in enumerate(zip((1, 2, 0), points(figure), strict=True)):
        np.testing.assert_allclose(drawn[:, 0], values[:, k])
        assert np.abs(drawn[:, 1] - row).max() < 0.45
        assert drawn[-1, 2] > drawn[0, 2]  # yellow, which is brighter, is a high value
    assert caption(figure) == "On the right, a row speaks for 'yes'; on the left, against it."
    together = points(feature_swarm(["a"], np.ones((9, 1)), np.ones((9, 1))))[0]
    assert len(np.unique(together[:, 1])) == 9  # no point hides another one


def test_a_swarm_shows_the_strongest_features_and_leaves_out_what_is_not_finite():
    values = np.arange(40.0)[None].repeat(5, 0)
    figure = feature_swarm([f"f{k}" for k in range(40)], values, values)
    assert names(figure) == [f"f{k}" for k in range(39, 27, -1)]
    assert "12 of 40 features" in caption(figure)
    values = np.array([[1.0], [np.nan], [2.0]])
    assert points(feature_swarm(["a"], values, np.zeros((3, 1))))[0][:, 0].tolist() == [1.0, 2.0]
    with pytest.raises(ValueError, match=r"got shape \(2, 3\) for inputs \(2, 3\) and 2 names"):
        feature_swarm(["a", "b"], np.ones((2, 3)), np.ones((2, 3)))
