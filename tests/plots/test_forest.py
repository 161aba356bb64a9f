"""The forest plot: every number where it belongs, and the words on the right side."""

import math

import pytest
from matplotlib.colors import to_hex
from plots_toys import named_lines

from fringe.plots._curves import Contrast, ForestPanel, plot_forest
from fringe.plots._style import BLUE, MUTED, VERMILION

NAN = math.nan
CONTRASTS = (
    Contrast("ig", 0.2, 0.1, 0.35, 0.01),
    Contrast("agi", -0.1, -0.3, 0.1, 0.4),
    Contrast("lonely", 0.05, NAN, NAN, NAN),
    Contrast("failed", NAN, NAN, NAN, NAN),
)


def panel(better="higher", **more):
    return ForestPanel("MAS insertion", CONTRASTS, better, **more)


def words(axes):
    return [text.get_text() for text in axes.texts]


def test_points_and_intervals_are_the_numbers_given():
    lines = named_lines(plot_forest([panel()]).axes[0])
    assert lines["value ig"].get_xydata().tolist() == [[0.2, 0.0]]
    assert lines["interval ig"].get_xydata().tolist() == [[0.1, 0.0], [0.35, 0.0]]
    assert lines["value agi"].get_xydata().tolist() == [[-0.1, 1.0]]
    assert lines["interval agi"].get_xydata().tolist() == [[-0.3, 1.0], [0.1, 1.0]]
    assert lines["value lonely"].get_xydata().tolist() == [[0.05, 2.0]]
    assert lines["zero"].get_xdata() == [0.0, 0.0]
    assert set(lines) == {"zero", "value ig", "interval ig", "value agi", "interval agi", "value lonely"}


def test_a_method_without_a_score_keeps_its_line_and_says_so():
    figure = plot_forest([panel(), ForestPanel("Deletion", CONTRASTS[:2], "lower")])
    first, second = figure.axes
    names = [label.get_text() for label in first.get_yticklabels()]
    assert names == ["Integrated Gradients", "Adversarial Gradients (AGI)", "lonely", "failed"]
    assert {text.get_position()[1] for text in first.texts if text.get_text() == "no score"} == {3}
    assert {text.get_position()[1] for text in second.texts if text.get_text() == "no score"} == {2, 3}


def test_the_first_method_is_on_top_and_a_rival_has_the_same_line_in_every_panel():
    other = ForestPanel("Deletion", (Contrast("agi", 0.5, 0.4, 0.6, 0.0), Contrast("new", 0.1, 0.0, 0.2, 0.0)), "lower")
    first, second = plot_forest([panel(), other]).axes
    assert named_lines(second)["value agi"].get_ydata()[0] == named_lines(first)["value agi"].get_ydata()[0] == 1.0
    assert named_lines(second)["value new"].get_ydata()[0] == 4.0
    assert first.get_ylim() == second.get_ylim()
    assert first.get_ylim()[0] > first.get_ylim()[1]


def test_a_marker_is_filled_below_a_twentieth():
    p_values = [0.0, 0.0499, 0.05, 1.0, NAN]
    contrasts = tuple(Contrast(f"{p}", 0.1, 0.0, 0.2, p) for p in p_values)
    lines = named_lines(plot_forest([ForestPanel("m", contrasts, "higher")]).axes[0])
    filled = [to_hex(lines[f"value {p}"].get_markerfacecolor()) for p in p_values]
    assert filled == [BLUE, BLUE, "#ffffff", "#ffffff", "#ffffff"]


@pytest.mark.parametrize(
    ("better", "colours", "sides"),
    [
        ("higher", (BLUE, VERMILION), ["← rival", "better: FRInGe →"]),
        ("lower", (VERMILION, BLUE), ["← better: FRInGe", "rival →"]),
        ("none", (MUTED, MUTED), ["← lower", "higher →"]),
    ],
)
def test_the_better_side_is_named_shaded_and_coloured(better, colours, sides):
    axes = plot_forest([panel(better)]).axes[0]
    lines = named_lines(axes)
    assert tuple(to_hex(lines[f"value {rival}"].get_color()) for rival in ("ig", "agi")) == colours
    assert [word for word in words(axes) if word != "no score"] == sides
    shades = [patch for patch in axes.patches if patch.get_gid() == "better"]
    low, high = axes.get_xlim()
    expected = {"higher": [0.0, high], "lower": [low, 0.0], "none": []}[better]
    assert [end for p in shades for end in (p.get_x(), p.get_x() + p.get_width())] == pytest.approx(expected)


def test_every_interval_and_zero_lie_inside_the_panel():
    for sign in (1, -1):
        contrasts = tuple(Contrast(f"{i}", sign * i, sign * i - 0.5, sign * i + 0.5, 0.0) for i in (7, 8))
        low, high = plot_forest([ForestPanel("m", contrasts, "higher")]).axes[0].get_xlim()
        assert low < min(0.0, sign * 8 - 0.5)
        assert high > max(0.0, sign * 8 + 0.5)
        assert min(-low, high) > 0.05 * (high - low)  # zero does not stand on the edge
    flat = (Contrast("same", 0.0, 0.0, 0.0, 1.0),)
    low, high = plot_forest([ForestPanel("m", flat, "higher")]).axes[0].get_xlim()
    assert low < 0.0 < high
