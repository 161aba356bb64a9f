"""The bands of variants: the numbers that were given, where a reader looks for them, on one page."""

import numpy as np
import pytest
from plots_toys import caption, written

from fringe.plots import PathRecord, plot_variants, trajectory

STEPS = np.array([0, 3, 6, 9, 12, 15])
VARIANTS = ("fringe", "gamma_step_only")

rng = np.random.default_rng(7)


def variant(label="fringe", steps=STEPS, size=(16, 16), **more):
    rng = np.random.default_rng(len(label))
    count, last = len(steps), int(steps[-1])
    known = {
        "entropy": np.linspace(0.05, 0.95, last + 1) ** 2,
        "snapshot_steps": np.asarray(steps),
        "images": rng.random((count, *size, 3)),
        "changes": rng.random((count, *size)),
        "attribution": rng.normal(size=(3, *size)),
    }
    return PathRecord(label, **{**known, **more})


def both():
    return [variant(label) for label in VARIANTS]


def tiles(figure, index):
    """Curve and pictures of a variant."""
    size = len(STEPS) + 3
    return figure.axes[index * size], figure.axes[index * size + 1 : (index + 1) * size]


def shown(axes):
    return np.asarray(axes.images[0].get_array())


def test_size_holds_the_given_numbers():
    figure = plot_variants(both())
    for index, given in enumerate(both()):
        curve, (start, *changes, end, found) = tiles(figure, index)
        np.testing.assert_array_equal(curve.lines[0].get_xydata(), np.c_[np.arange(16), given.entropy])
        np.testing.assert_array_equal(curve.lines[1].get_xydata(), np.c_[STEPS, given.entropy[STEPS]])
        np.testing.assert_array_equal(shown(start), given.images[0])
        np.testing.assert_array_equal(shown(end), given.images[-1])
        np.testing.assert_array_equal([shown(axes) for axes in changes], given.changes[1:])
        np.testing.assert_array_equal(shown(found), given.attribution.sum(0))


def test_changes_are_drawn_from_zero_to_one_and_each_map_on_its_own_scale():
    strong = variant("ig", attribution=np.full((3, 16, 16), 20.0))
    figure = plot_variants([variant(attribution=np.full((1, 16, 16), -0.5)), strong])
    for index, scale in enumerate((0.5, 60.0)):
        _, (_, *changes, _, found) = tiles(figure, index)
        assert {axes.images[0].get_clim() for axes in changes} == {(0.0, 1.0)}
        assert found.images[0].get_clim() == (-scale, scale)


def test_pictures_are_named_by_their_steps_and_variants_by_what_was_left_out():
    figure = plot_variants(
        [variant("gamma_step_only", verdict="ok"), variant("mine", verdict="at_reference")], title="cat"
    )
    _, pictures = tiles(figure, 1)
    names = [axes.get_title() for axes in pictures]
    assert names == ["input", "step 3", "step 6", "step 9", "step 12", "step 15", "end", "attribution"]
    assert {"cat", "gamma_step_only", "mine", "at reference"} <= set(written(figure))
    assert "ok" not in written(figure)


def test_steps_share_one_axis():
    figure = plot_variants([variant(), variant("short", steps=np.array([0, 1, 2]))])
    limits = {axes.get_xlim() for axes in figure.axes if axes.lines}
    assert limits == {(-0.03 * 15, 1.03 * 15)}


def a_trajectory(steps=(0, 3, 6, 9, 12, 15), size=(20, 20)):
    count = len(steps)
    images, maps = rng.random((count, *size, 3)), rng.normal(size=(count, 3, *size))
    return trajectory(np.linspace(0.1, 0.9, steps[-1] + 1), steps, images, maps, title="cat")


def test_each_picture_stands_under_its_marker():
    figure = a_trajectory()
    figure.draw_without_rendering()
    curve, *pictures = figure.axes
    for step, axes in zip((0, 3, 6, 9, 12, 15), pictures[:6], strict=True):
        box = axes.get_window_extent()
        assert curve.transData.transform((step, 0))[0] == pytest.approx((box.x0 + box.x1) / 2, abs=0.5)


def test_all_maps_of_a_trajectory_share_the_scale_of_the_last():
    maps = np.zeros((3, 1, 9, 9))
    maps[1, 0, 2, 2], maps[2, 0, 2, 2] = 100.0, -5.0
    figure = trajectory([0.1, 0.2, 0.4], [0, 1, 2], np.ones((3, 9, 9, 1)), maps)
    assert {axes.images[0].get_clim() for axes in figure.axes[7:]} == {(-5.0, 5.0)}


def test_the_change_since_the_input_is_amplified_by_the_factor_beside_it():
    images = np.full((3, 9, 9, 3), 0.5)
    images[1, :4] += 0.02
    images[2, :4] += 0.04
    images[2, 5:] -= 0.04
    figure = trajectory([0.1, 0.2, 0.4], [0, 1, 2], images, np.ones((3, 1, 9, 9)))
    (factor,) = [text for text in written(figure) if text.startswith("change")]
    assert factor == "change since\nthe input\n× 10"
    for axes, image in zip(figure.axes[4:7], images, strict=True):
        np.testing.assert_allclose(shown(axes), 0.5 + 10 * (image - images[0]))


@pytest.mark.parametrize(("size", "factor"), [(0.0, ""), (0.6, ""), (0.2, "× 2"), (1e-9, "× 1 000")])
def test_the_factor_fits_the_change(size, factor):
    images = np.stack([np.full((9, 9, 1), 0.1), np.full((9, 9, 1), 0.1 + size)])
    figure = trajectory([0.1, 0.2], [0, 1], images, np.ones((2, 1, 9, 9)))
    (text,) = [text for text in written(figure) if text.startswith("change")]
    assert text == "change since\nthe input" + (f"\n{factor}" if factor else "")


def test_the_caption_of_a_trajectory_names_the_class_and_the_averaging():
    maps = rng.normal(size=(2, 1, 96, 96))
    figure = trajectory([0.1, 0.2], [0, 1], np.ones((2, 96, 96, 1)), maps, label="bald_eagle")
    assert "Red speaks for 'bald eagle', blue against it; averaged over about 3 × 3 pixels" in caption(figure)
    assert not np.allclose(shown(figure.axes[-1]), maps[-1].sum(0))
    small = a_trajectory()
    assert caption(small).endswith("Red speaks for the class, blue against it.")
