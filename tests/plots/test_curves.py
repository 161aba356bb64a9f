"""The curves of many methods: means, bands and looks are what they should be."""

import itertools
import math

import numpy as np
import pytest
from matplotlib.colors import to_hex
from plots_toys import named_lines

from fringe.plots._curves import CurvePanel, plot_curves


def curves(seed, images=12, steps=8):
    return np.random.default_rng(seed).random((images, steps + 1))


def panel(*labels, title="Insertion", **more):
    return CurvePanel(title, {label: curves(i) for i, label in enumerate(labels)}, **more)


def band(axes, label):
    """Lower and upper edge of a band, by share of pixels."""
    (found,) = [b for b in axes.collections if b.get_gid() == f"band {label}"]
    corners = found.get_paths()[0].vertices
    shares = np.unique(corners[:, 0])
    edges = [corners[corners[:, 0] == share, 1] for share in shares]
    return shares, np.array([e.min() for e in edges]), np.array([e.max() for e in edges])


def test_a_curve_is_the_mean_over_images_over_the_share_of_pixels():
    axes = plot_curves([panel("fringe", "ig")]).axes[0]
    for i, label in enumerate(("fringe", "ig")):
        share, mean = named_lines(axes)[f"mean {label}"].get_data()
        np.testing.assert_allclose(share, np.arange(9) / 8)
        np.testing.assert_allclose(mean, curves(i).mean(0), rtol=1e-12)


def test_a_band_is_1_96_standard_errors_to_either_side():
    axes = plot_curves([panel("fringe")]).axes[0]
    share, low, high = band(axes, "fringe")
    error = np.array([np.std(column, ddof=1) / math.sqrt(12) for column in curves(0).T])
    np.testing.assert_allclose(share, np.arange(9) / 8)
    np.testing.assert_allclose(low, curves(0).mean(0) - 1.96 * error, rtol=1e-12)
    np.testing.assert_allclose(high, curves(0).mean(0) + 1.96 * error, rtol=1e-12)


@pytest.mark.filterwarnings("error")
def test_images_without_a_curve_are_left_out_and_one_alone_has_no_band():
    broken = curves(0)
    broken[3, 2], broken[5, 0] = np.nan, np.inf
    whole = np.delete(curves(0), [3, 5], axis=0)
    alone = np.where(np.arange(12)[:, None] == 4, curves(1), np.nan)
    nothing = np.full((12, 9), np.nan)
    figure = plot_curves([CurvePanel("m", {"broken": broken, "alone": alone, "nothing": nothing})])
    figure.draw_without_rendering()
    lines = named_lines(figure.axes[0])
    np.testing.assert_allclose(lines["mean broken"].get_ydata(), whole.mean(0), rtol=1e-12)
    np.testing.assert_array_equal(lines["mean alone"].get_ydata(), curves(1)[4])
    assert set(lines) == {"mean broken", "mean alone"}
    assert [b.get_gid() for b in figure.axes[0].collections] == ["band broken"]
    empty = plot_curves([CurvePanel("m", {"nothing": nothing})])
    assert [text.get_text() for text in empty.axes[0].texts] == ["no curve"]


def test_a_method_looks_the_same_in_every_panel_and_in_the_legend():
    figure = plot_curves([panel("fringe", "ig", "agi"), panel("agi", "new", "fringe", title="Deletion")])
    first, second = map(named_lines, figure.axes)
    legend = {line.get_label(): line for line in figure.legends[0].get_lines()}
    assert list(legend) == ["FRInGe", "Integrated Gradients", "Adversarial Gradients (AGI)", "new"]
    assert len(figure.legends) == 1
    for label, line in zip(("fringe", "ig", "agi", "new"), legend.values(), strict=True):
        found = [of[f"mean {label}"] for of in (first, second) if f"mean {label}" in of]
        assert {(to_hex(of.get_color()), of.get_linestyle(), of.get_linewidth()) for of in found} == {
            (to_hex(line.get_color()), line.get_linestyle(), line.get_linewidth())
        }
    assert first["mean fringe"].get_linewidth() > first["mean ig"].get_linewidth()
    assert first["mean fringe"].get_zorder() > first["mean ig"].get_zorder()


def test_methods_are_told_apart_and_one_too_many_is_refused():
    labels = [f"m{i}" for i in range(32)]
    lines = plot_curves([panel(*labels)]).axes[0].lines
    looks = [(to_hex(line.get_color()), line._dash_pattern[1] and tuple(line._dash_pattern[1])) for line in lines]
    assert len(set(looks)) == 32
    assert all(a[0] != b[0] and a[1] != b[1] for a, b in itertools.pairwise(looks))
    assert looks[0][1] is None
    with pytest.raises(ValueError, match="got 33 methods, expected at most 32"):
        plot_curves([panel(*labels, "one more")])


def test_what_is_written_around_a_panel():
    figure = plot_curves(
        [panel("a", better="higher", axis="p"), panel("a", better="lower", title="Deletion"), panel("a")], title="$t"
    )
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["Insertion", "Deletion", "Insertion"]
    assert [axes.get_title(loc="right").strip() for axes in figure.axes] == ["↑ better", "↓ better", ""]
    assert figure.get_suptitle() == "$t"
    assert figure.legends[0].get_title().get_text() == "mean over images; band: ± 1.96 standard errors"
    assert figure.axes[0].get_ylabel() == "p"


def test_responses_beyond_0_and_1_are_shown_whole():
    figure = plot_curves([CurvePanel("m", {"a": 3.0 * curves(0) - 1.0}), panel("a")])
    low, high = figure.axes[0].get_ylim()
    mean = (3.0 * curves(0) - 1.0).mean(0)
    assert low < mean.min()
    assert high > mean.max()
    assert figure.axes[1].get_ylim() == (-0.015, 1.015)
