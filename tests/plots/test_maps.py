"""What is on the canvas, pixel by pixel."""

import numpy as np
import pytest
from matplotlib import colormaps, rc_context
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from PIL import Image
from plots_toys import caption

from fringe.plots import overlay, signed_map
from fringe.plots._maps import blend, display_scale, for_display, region_outline, smoothed
from fringe.plots._style import new_figure, sanitise, text_style

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


def test_the_display_scale_ignores_one_percent_of_extremes_but_not_a_map_of_one_pixel():
    plane = np.ones((100, 100))
    plane[0, :50] = -1e6
    assert display_scale(plane) == 1.0
    lonely = np.zeros((100, 100))
    lonely[3, 4] = -2.0
    assert display_scale(lonely) == 2.0
    assert display_scale(np.full((4, 4), np.nan)) == 0.0


def test_the_pixels_of_a_panorama_are_square():
    drawn = overlay(np.full((30, 300), 0.5), np.ones((30, 300)), title="wide")
    drawn.canvas.draw()
    box = drawn.axes[0].get_window_extent()
    assert box.width / box.height == pytest.approx(10, rel=0.01)


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


def opposite_neighbours(plane, apart=1):
    """Share of strong pixels (the upper tenth of |map|) this far apart whose signs are opposite."""
    strong = np.abs(plane) >= np.quantile(np.abs(plane), 0.9)
    pairs = [(plane[:-apart], plane[apart:], strong[:-apart] & strong[apart:])]
    pairs += [(plane[:, :-apart], plane[:, apart:], strong[:, :-apart] & strong[:, apart:])]
    return sum((b & (x * y < 0)).sum() for x, y, b in pairs) / sum(b.sum() for _, _, b in pairs)


def noisy_map(size):
    """Evidence for the class in the left half and against it in the right one, below noise ten times as large."""
    along = np.linspace(-1.0, 1.0, size)
    return 0.1 * np.sign(-along)[None, :] * np.ones((size, size)) + rng.normal(size=(size, size))


@pytest.mark.parametrize("size", [128, 224])
def test_signs_of_a_large_map_are_averaged_for_display_and_what_was_below_the_noise_shows(size):
    plane = noisy_map(size)
    drawn = signed_map(plane, image=np.ones((size, size))).axes[0].images[0].get_array().data
    assert opposite_neighbours(plane) > 0.4
    assert opposite_neighbours(drawn) < 0.02
    left, right = np.asarray(drawn[:, : size // 3]), np.asarray(drawn[:, -size // 3 :])
    assert left.mean() == pytest.approx(0.1, abs=0.02)
    assert right.mean() == pytest.approx(-0.1, abs=0.02)
    assert np.mean(left > 0) > np.mean(plane[:, : size // 3] > 0) + 0.1


def test_a_small_map_is_drawn_pixel_by_pixel():
    plane = noisy_map(64)
    figure = signed_map(plane, image=np.ones((64, 64)))
    np.testing.assert_array_equal(figure.axes[0].images[0].get_array(), plane)
    assert "averaged" not in caption(figure)


def test_what_is_not_finite_stays_blank_and_does_not_spread():
    plane = np.ones((100, 100))
    plane[10, 10], plane[50, 50] = np.nan, np.inf
    drawn = for_display(plane)
    assert np.isnan(drawn[10, 10])
    assert np.isinf(drawn[50, 50])
    np.testing.assert_allclose(drawn[np.isfinite(plane)], 1.0)


@pytest.mark.parametrize(
    ("size", "signed", "strength"),
    [(32, "", ""), (128, "3 × 3", "2 × 2"), (224, "6 × 6", "4 × 4"), (480, "13 × 13", "8 × 8")],
)
def test_captions_name_the_class_and_over_how_many_pixels_the_map_is_averaged(size, signed, strength):
    plane, image = rng.normal(size=(1, size, size)), rng.random((size, size))
    ends = [f"; averaged over about {words} pixels for display" if words else "" for words in (signed, strength)]
    edges = " Grey lines: edges of the image."
    figure = signed_map(plane, label="bald_eagle", image=image)
    assert caption(figure) == f"Red speaks for 'bald eagle', blue against it{ends[0]}.{edges}"
    assert caption(signed_map(plane)) == f"Red speaks for the class, blue against it{ends[0]}."
    assert caption(overlay(image, plane, label="cat")) == f"Bright: evidence for or against 'cat'{ends[1]}."
    half = np.zeros((size, size))  # the width in the caption is where the weight of a pixel is half of the largest
    half[size // 2, size // 2] = 1.0
    if signed:
        row = for_display(half)[size // 2]
        assert abs(np.sum(row >= row.max() / 2) - int(signed.split()[0])) <= 1


def test_an_outline_shows_where_the_image_changes_and_nowhere_else():
    image = np.zeros((128, 128, 3))
    image[:, 64:] = 1.0
    figure = signed_map(np.zeros((1, 128, 128)), image=image)
    (lines,) = [drawn for drawn in figure.axes[0].images if drawn.get_gid() == "outline"]
    opacity = np.asarray(lines.get_array())[..., 3]
    assert opacity[:, 62:66].max() == pytest.approx(0.4)
    assert opacity[:, :56].max() == opacity[:, 72:].max() == 0.0
    small = signed_map(np.zeros((1, 16, 16)), image=image[:16, 56:72])
    (contour,) = small.axes[0].collections
    assert {x for path in contour.get_paths() for x, _ in path.vertices} == {7.5}
    assert len(signed_map(np.ones((1, 128, 128)), image=np.ones((128, 128))).axes[0].images) == 2


def test_text_is_drawn_as_it_is_written():
    assert sanitise("a\n b\t c") == "a b c"
    assert sanitise("猫 $x^2$ é") == "□ $x^2$ é"
    with rc_context({"font.family": ["STIXGeneral"]}):  # has a letter that ours lacks
        assert sanitise("\u1d81 猫") == "\u1d81 □"
        assert new_figure(1, 1).text(0, 0, "", **text_style()).get_fontfamily() == ["DejaVu Sans", "STIXGeneral"]
    assert sanitise("\u1d81") == "□"
    assert sanitise("x" * 30, 10) == "x" * 9 + "…"


def test_the_outline_of_a_focus_is_where_its_weights_cross_one_half():
    """A block of ones: its edges, cut at the corners; at a border of the image the line runs along it."""
    weights = np.zeros((6, 8))
    weights[2:4, 3:6] = 1.0
    (line,) = region_outline(weights)
    np.testing.assert_array_equal(line[0], line[-1])
    np.testing.assert_allclose([line.min(0), line.max(0)], [[3.0, 2.0], [6.0, 4.0]])
    x, y = line.T
    assert abs(np.sum(x[:-1] * y[1:] - x[1:] * y[:-1])) / 2 == pytest.approx(6.0 - 4 * 0.125)
    slope = np.tile(np.linspace(0.0, 1.0, 9), (4, 1))  # one half in the middle of the fifth column
    (line,) = region_outline(slope)
    np.testing.assert_allclose([line.min(0), line.max(0)], [[4.5, 0.0], [9.0, 4.0]], atol=1e-12)
    assert region_outline(np.full((3, 3), 0.4)) == []


@pytest.mark.parametrize("draw", [overlay, signed_map])
def test_an_outline_is_drawn_and_named_only_where_there_is_a_focus(draw):
    image, values, weights = np.full((8, 8), 0.5), np.eye(8), np.eye(8)
    arguments = (image, values) if draw is overlay else (values,)
    plain, focused = draw(*arguments, title="t"), draw(*arguments, title="t", region=weights)
    assert "Outline: the focus." in caption(focused)
    assert "Outline" not in caption(plain)
    lines = [len(c.get_segments()) for c in focused.axes[0].collections if isinstance(c, LineCollection)]
    assert lines == [len(region_outline(weights))] * 2
    assert focused.axes[0].get_xlim() == plain.axes[0].get_xlim()


def test_any_picture_takes_a_map_of_any_size():
    """Uint8, grey values and a PIL image are one picture; a map of a layer is enlarged, and the caption says so."""
    pixels = np.random.default_rng(0).integers(0, 255, (20, 30, 3), dtype=np.uint8)
    cells = np.zeros((2, 3))
    cells[1, 2] = 1.0
    pictures = [pixels, pixels / 255, Image.fromarray(pixels), Image.fromarray(pixels).convert("RGBA")]
    drawn = [np.asarray(overlay(image, cells).axes[0].images[0].get_array()) for image in pictures]
    assert drawn[0].shape == (20, 30, 3)
    for other in drawn[1:]:
        np.testing.assert_allclose(other, drawn[0], atol=1e-12)
    covered = np.abs(drawn[0] - np.asarray(overlay(pixels, np.zeros((20, 30))).axes[0].images[0].get_array())).sum(2)
    assert covered[15:, 25:].min() > 0.1  # the cell itself, and nothing far from it
    assert covered[:5].max() == covered[:, :15].max() == 0
    assert caption(overlay(pixels, cells, label="cat")).endswith("'cat', enlarged from 2 × 3.")
    assert "enlarged" not in caption(overlay(pixels, np.ones((20, 30)), label="cat"))
    with pytest.raises(ValueError, match=r"image: expected \(H, W\), .* got shape \(3, 20, 30\)"):
        overlay(pixels.transpose(2, 0, 1), cells)
