"""The bands of variants: the numbers that were given, where a reader looks for them, on one page."""

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.image import imread

from fringe.plots._variants import NAMES, Band, draw_variants

STEPS = np.array([0, 3, 6, 9, 12, 15])


def band(label="fringe", steps=STEPS, size=(16, 16), **more):
    rng = np.random.default_rng(len(label))
    count, last = len(steps), int(steps[-1])
    known = {
        "entropy": np.linspace(0.05, 0.95, last + 1) ** 2,
        "snapshot_steps": np.asarray(steps),
        "images": rng.random((count, *size, 3)),
        "changes": rng.random((count, *size)),
        "attribution": rng.normal(size=(3, *size)),
    }
    return Band(label, **{**known, **more})


def six():
    return [band(label) for label in NAMES]


def tiles(figure, place):
    """Curve and pictures of a band."""
    a_band = len(STEPS) + 3
    return figure.axes[place * a_band], figure.axes[place * a_band + 1 : (place + 1) * a_band]


def shown(axes):
    return np.asarray(axes.images[0].get_array())


def words(figure):
    """Every text that is drawn, with its box."""
    around = [text for axes in figure.axes for text in (axes.title, axes.xaxis.label)]
    curves = [axes for axes in figure.axes if axes.lines]
    numbers = [
        tick for axes in curves for tick in axes.get_xticklabels() if tick.get_position()[0] <= axes.get_xlim()[1]
    ]
    return {text: text.get_window_extent() for text in (*figure.texts, *around, *numbers) if text.get_text()}


def test_a_band_holds_the_given_numbers():
    figure = draw_variants(six())
    for place, given in enumerate(six()):
        curve, (start, *changes, end, found) = tiles(figure, place)
        np.testing.assert_array_equal(curve.lines[0].get_xydata(), np.c_[np.arange(16), given.entropy])
        np.testing.assert_array_equal(curve.lines[1].get_xydata(), np.c_[STEPS, given.entropy[STEPS]])
        np.testing.assert_array_equal(shown(start), given.images[0])
        np.testing.assert_array_equal(shown(end), given.images[-1])
        np.testing.assert_array_equal([shown(axes) for axes in changes], given.changes[1:])
        np.testing.assert_array_equal(shown(found), given.attribution.sum(0))


def test_changes_are_drawn_from_zero_to_one_and_each_map_on_its_own_scale():
    strong = band("ig", attribution=np.full((3, 16, 16), 20.0))
    figure = draw_variants([band(attribution=np.full((1, 16, 16), -0.5)), strong])
    for place, scale in enumerate((0.5, 60.0)):
        _, (_, *changes, _, found) = tiles(figure, place)
        assert {axes.images[0].get_clim() for axes in changes} == {(0.0, 1.0)}
        assert found.images[0].get_clim() == (-scale, scale)


def test_pictures_are_named_by_their_steps_and_bands_by_what_was_left_out():
    figure = draw_variants([band("gamma_step_only", verdict="ok"), band("mine", verdict="at_reference")], title="cat")
    _, pictures = tiles(figure, 1)
    names = [axes.get_title() for axes in pictures]
    assert names == ["input", "step 3", "step 6", "step 9", "step 12", "step 15", "end", "attribution"]
    written = [text.get_text() for text in figure.texts]
    assert {"cat", "gamma_step only", "mine", "at reference"} <= set(written)
    assert "ok" not in written


def test_steps_share_one_axis():
    figure = draw_variants([band(), band("short", steps=np.array([0, 1, 2]))])
    limits = {axes.get_xlim() for axes in figure.axes if axes.lines}
    assert limits == {(-0.03 * 15, 1.03 * 15)}


@pytest.mark.parametrize("verdict", ["", "at_reference"])
def test_six_bands_fit_a_page_and_no_words_meet(verdict):
    figure = draw_variants([replace(one, verdict=verdict) for one in six()], title="digits: " + "a long title " * 4)
    figure.canvas.draw()
    width, height = figure.get_size_inches()
    assert width <= 10
    assert height / width <= 11 / 8.5
    boxes = list(words(figure).values())
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.width and box.y0 >= 0 for box in boxes)
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    axes = [one.get_window_extent() for one in figure.axes]
    assert not any(a.overlaps(b) for i, a in enumerate(axes) for b in axes[:i])
    assert not any(a.overlaps(b) for a in axes for b in boxes)


@pytest.mark.parametrize("steps", [(0,), (0, 1), (0, 1, 2)])
def test_short_paths_are_drawn_within_the_figure(steps):
    figure = draw_variants([band(steps=np.array(steps), size=(8, 20))])
    figure.canvas.draw()
    assert sum(bool(axes.images) for axes in figure.axes) == len(steps) + 2
    assert all(box.x1 <= figure.bbox.width and box.y0 >= 0 for box in words(figure).values())


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("value", "said"), [(0.0, "zero"), (np.nan, "not finite")])
def test_a_map_with_nothing_to_show_says_so(value, said):
    figure = draw_variants([band(attribution=np.full((3, 16, 16), value), entropy=np.full(16, value))])
    figure.canvas.draw()
    assert [text.get_text() for text in figure.axes[-1].texts] == [said]


def test_the_figure_is_saved(tmp_path):
    figure = draw_variants([band()], tmp_path / "variants.png")
    figure.canvas.draw()
    saved = np.round(255 * imread(tmp_path / "variants.png"))
    np.testing.assert_array_equal(saved[..., :3], np.asarray(figure.canvas.buffer_rgba())[..., :3])


@pytest.mark.parametrize("change", [{"changes": np.ones((5, 16, 16))}, {"snapshot_steps": STEPS + 1}])
def test_bands_of_unequal_parts_are_refused(change):
    with pytest.raises(ValueError, match=r"'fringe' has 6 steps, 6 images and \d maps.*the first at step 0"):
        draw_variants([band("ig"), band(**change)])


def test_no_bands_are_refused():
    with pytest.raises(ValueError, match="no bands"):
        draw_variants([])
