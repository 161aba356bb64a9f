"""What is on the canvas, pixel by pixel."""

import numpy as np
import pytest
from matplotlib import colormaps
from matplotlib.figure import Figure
from plots_toys import assert_apart

from fringe.plots import SheetItem, contact_sheet, overlay, signed_map
from fringe.plots._maps import blend, display_scale, smoothed, spatial
from fringe.plots._style import sanitise

rng = np.random.default_rng(7)


def canvas(figure: Figure) -> np.ndarray:
    figure.canvas.draw()
    return np.asarray(figure.canvas.buffer_rgba())[..., :3].astype(float) / 255


def test_a_single_hot_pixel_colours_exactly_its_block():
    values = np.zeros((3, 8, 8))
    values[1, 2, 5] = -4.0
    drawn = canvas(overlay(np.full((8, 8, 3), 0.5), values))
    assert drawn.shape == (640, 640, 3)
    inside = np.zeros((640, 640), dtype=bool)
    inside[160:240, 400:480] = True
    grey = 0.12 + 0.68 * 0.5
    hot = 0.05 * grey + 0.95 * np.array(colormaps["inferno"](0.95)[:3])
    np.testing.assert_allclose(drawn[~inside], grey, atol=1 / 255)
    np.testing.assert_allclose(drawn[inside], np.broadcast_to(hot, (6400, 3)), atol=1.01 / 255)


def test_signed_colours_have_zero_in_the_middle_even_for_a_one_signed_map():
    values = np.zeros((1, 8, 8))
    values[0, :4] = 3.0
    image = signed_map(values).axes[0].images[0]
    centre = colormaps["RdBu_r"](0.5)
    assert image.norm(0.0) == 0.5
    np.testing.assert_allclose(image.to_rgba(np.zeros((1, 1)))[0, 0], centre)
    drawn = canvas(signed_map(values))
    axes = signed_map(values).axes[0].get_position()
    height, width = drawn.shape[:2]

    def at(x: float, y: float) -> np.ndarray:
        column, row = (axes.x0 + x * axes.width) * width, (1 - axes.y0 - y * axes.height) * height
        return drawn[int(row), int(column)]

    np.testing.assert_allclose(at(0.5, 0.25), centre[:3], atol=1 / 255)
    np.testing.assert_allclose(at(0.5, 0.75), colormaps["RdBu_r"](1.0)[:3], atol=1 / 255)


def test_channels_are_summed_with_their_signs():
    values = np.array([[[1.0, -2.0]], [[-1.0, -3.0]]])
    np.testing.assert_array_equal(spatial(values), [[0.0, -5.0]])


def test_the_display_scale_ignores_one_percent_of_extremes_but_not_a_map_of_one_pixel():
    plane = np.ones((100, 100))
    plane[0, :50] = -1e6
    assert display_scale(plane) == 1.0
    lonely = np.zeros((100, 100))
    lonely[3, 4] = -2.0
    assert display_scale(lonely) == 2.0
    assert display_scale(np.full((4, 4), np.nan)) == 0.0


@pytest.mark.parametrize(
    ("values", "words"),
    [(np.zeros((1, 8, 8)), "zero everywhere"), (np.full((1, 8, 8), np.nan), "not finite")],
)
def test_a_map_without_content_says_so(values, words):
    for figure in (overlay(np.ones((8, 8)), values), signed_map(values, title="t", unit="logit")):
        canvas(figure)
        assert any(words in text.get_text() for text in figure.axes[0].texts)


def test_one_signed_and_partly_infinite_maps_are_drawn():
    values = np.abs(np.random.default_rng(0).normal(size=(3, 16, 16)))
    values[0, 0, 0] = np.inf
    for sign in (1, -1):
        assert np.isfinite(blend(np.ones((16, 16, 3)), sign * values)).all()
        canvas(signed_map(sign * values))


def test_smoothing_keeps_constants_and_the_sum_of_an_inner_pixel():
    np.testing.assert_allclose(smoothed(np.full((20, 30), 7.0), 1.5), 7.0)
    dot = np.zeros((31, 41))
    dot[15, 20] = 1.0
    soft = smoothed(dot, 1.5)
    assert soft.shape == dot.shape
    assert soft.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(soft, soft[::-1, ::-1], atol=1e-15)
    assert soft[15, 20] / soft[15, 21] == pytest.approx(np.exp(0.5 / 1.5**2))


def test_sizes_that_do_not_match_are_named():
    with pytest.raises(ValueError, match=r"sizes \(8, 8\) and \(4, 4\) differ"):
        overlay(np.ones((8, 8)), np.ones((1, 4, 4)))
    with pytest.raises(ValueError, match=r"values: expected \(C, H, W\)"):
        signed_map(np.ones(5))
    with pytest.raises(ValueError, match="image: expected"):
        overlay(np.ones((2, 8, 8)), np.ones((8, 8)))


@pytest.mark.parametrize("count", [1, 4, 13, 24])
def test_a_sheet_has_three_pictures_an_input_and_none_overlaps(count):
    items = [
        SheetItem(rng.random((9, 9, 1)), rng.normal(size=(1, 9, 9)), f"n{i}", "a $b$ c_d", "ok") for i in range(count)
    ]
    figure = contact_sheet(items, title="t")
    figure.canvas.draw()
    boxes = [axes.get_window_extent() for axes in figure.axes]
    assert len(boxes) == 3 * count
    titles = [text for axes in figure.axes for text in (axes._left_title, axes._right_title, *axes.texts)]
    texts = [text for text in (*titles, *figure.texts) if text.get_text()]
    boxes += [text.get_window_extent() for text in texts] + [figure.legends[0].get_window_extent()]
    assert_apart(figure, boxes)


def test_an_empty_sheet_is_refused():
    with pytest.raises(ValueError, match="no items"):
        contact_sheet([])


def test_text_is_drawn_as_it_is_written():
    assert sanitise("a\n b\t c") == "a b c"
    assert sanitise("猫 $x^2$ é") == "□ $x^2$ é"
    assert sanitise("x" * 30, 10) == "x" * 9 + "…"
    signed_map(np.ones((1, 4, 4)), title=r"$\frac{$", unit=r"$\frac{$").canvas.draw()
