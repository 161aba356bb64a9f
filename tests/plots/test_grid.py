"""The grid of a comparison: what stands where, in which colours, and what is said of a map that is not there."""

import math
from dataclasses import replace

import numpy as np
import pytest
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.text import Text
from plots_toys import caption, written

from fringe.plots import Annotation, GridCell, GridRow, Prediction, comparison_grid
from fringe.plots._grid import MetricLabel, _pool_for, _short_number, captions, labels, pooled_magnitude

rng = np.random.default_rng(3)


def tile(size=(9, 9), scale=1.0):
    return GridCell(scale * rng.normal(size=(3, *size)), (Annotation("MI .43", True), Annotation("MD .21")))


def grid(rows=2, methods=3, size=(9, 9), **more):
    rows_ = [
        GridRow(
            rng.random((*size, 3)), f"image-{r}", Prediction("cat", 0.95), tuple(tile(size) for _ in range(methods))
        )
        for r in range(rows)
    ]
    return comparison_grid(rows_, [f"method {m}" for m in range(methods)], title="net", caption="MI", **more)


def one_map(values, **more) -> Figure:
    image = np.ones((*np.shape(values)[-2:], 1))
    return comparison_grid([GridRow(image, "a", None, (GridCell(np.asarray(values, float)),))], ["m"], **more)


def test_all_maps_share_the_limits_of_the_colour_bar():
    figure = grid(2, 3)
    maps = [axes for place, axes in enumerate(figure.axes) if place % 4]
    (bar,) = maps[2].child_axes
    assert {axes.images[0].get_clim() for axes in maps} == {(0.0, 1.0)}
    assert {axes.images[0].get_cmap().name for axes in maps} == {"inferno"}
    assert bar.get_ylim() == (0.0, 1.0)


def test_a_control_is_drawn_after_the_methods_and_named_as_one():
    cells = (tile((9, 9)), tile((9, 9)))
    row = GridRow(rng.random((9, 9, 3)), "a", None, cells, controls=(("edge", tile((9, 9))),))
    figure = comparison_grid([row], ["one", "two"])
    assert len([axes for axes in figure.axes if axes.images]) == 4
    assert "edge (control)" in " ".join(" ".join(written(figure)).split())
    with pytest.raises(ValueError, match="a map of each"):
        comparison_grid([row, replace(row, controls=())], ["one", "two"])


def test_a_map_is_drawn_in_units_of_its_own_99th_percentile():
    values = np.zeros((2, 10, 10))
    values[0], values[1] = -1.0, 2.0  # a mass of 3 everywhere
    values[:, 0, :2] *= 50.0  # two pixels of a hundred: beyond the scale
    drawn = one_map(values).axes[1].images[0].get_array()
    np.testing.assert_allclose(drawn[0, :2], 1.0)
    np.testing.assert_allclose(drawn[1:], 3.0 / 150.0)
    scaled = one_map(1e-6 * values).axes[1].images[0].get_array()
    np.testing.assert_allclose(scaled, drawn, rtol=1e-12)


def test_a_hot_pixel_has_the_strongest_colour_in_its_place_on_the_canvas():
    values = np.zeros((1, 8, 8))
    values[0, 2, 5] = -4.0
    figure = one_map(values)
    figure.canvas.draw()
    canvas = np.asarray(figure.canvas.buffer_rgba())[..., :3] / 255
    box = figure.axes[1].get_position()

    def at(row, column):
        x, y = box.x0 + (column + 0.5) / 8 * box.width, box.y1 - (row + 0.5) / 8 * box.height
        return canvas[int((1 - y) * canvas.shape[0]), int(x * canvas.shape[1])]

    np.testing.assert_allclose(at(2, 5), colormaps["inferno"](1.0)[:3], atol=1 / 255)
    for place in ((2, 4), (1, 5), (5, 2)):
        np.testing.assert_allclose(at(*place), colormaps["inferno"](0.0)[:3], atol=1 / 255)


def test_the_mass_sums_channels_without_their_signs_and_is_averaged_inside_the_picture():
    values = rng.normal(size=(3, 6, 7))
    np.testing.assert_allclose(pooled_magnitude(values), np.abs(values).sum(0))
    expected = np.empty((6, 7))
    for i in range(6):
        for j in range(7):
            window = np.abs(values)[:, max(i - 1, 0) : i + 2, max(j - 1, 0) : j + 2]
            expected[i, j] = window.sum(0).mean()
    np.testing.assert_allclose(pooled_magnitude(values, 3), expected, rtol=1e-12)
    assert pooled_magnitude(np.ones((4, 5)), 4).tolist() == np.ones((4, 5)).tolist()
    with pytest.raises(ValueError, match=r"values: expected \(C, H, W\)"):
        pooled_magnitude(np.ones(5))


def test_only_large_pictures_are_pooled_and_the_caption_says_so():
    assert [_pool_for((s, 10)) for s in (32, 64, 128, 224, 299)] == [1, 1, 3, 5, 7]

    assert "averaged" not in caption(grid(1, 4, size=(9, 9)))
    assert "averaged over 5 × 5 pixels for display" in caption(grid(1, 4, size=(224, 224)))
    assert "averaged over 3 × 3 pixels for display" in caption(grid(1, 4, size=(9, 9), pool=3))


def test_the_best_words_are_bold():
    weights = {text.get_text(): text.get_fontweight() for text in grid(1, 1).findobj(Text)}
    assert (weights["MI .43"], weights["MD .21"]) == ("bold", "normal")


def metrics(*names, direction="higher"):
    return [MetricLabel(f"{name}:rise", name, name.title(), direction) for name in names]


def test_two_scores_stand_under_a_map():
    def chosen(given):
        return [metric.short for metric in labels(given)]

    assert chosen(metrics("infidelity", "mas_deletion", "insertion", "mas_insertion")) == ["MD", "MI"]
    steps = metrics("tracking_error_max", direction="none")
    assert chosen(steps + metrics("infidelity", "insertion", "deletion")) == ["Inf", "Ins"]
    assert chosen(steps + metrics("sparseness")) == ["Spa", "TEM"]
    assert chosen(metrics("mas_insertion")) == ["MI"]


def test_numbers_are_short():
    values = {0.434: ".43", -0.071: "−.07", 0.999: "1.00", 0.0: ".00", 1.25: "1.25", 12.3: "12", 2.5e6: "2×10⁶"}
    assert {value: _short_number(value) for value in values} == values
    assert _short_number(math.nan) == "–"


def scored(values, direction="higher"):
    return [(word.text, word.best) for word in metrics("mas_insertion", direction=direction)[0].annotations(values)]


def test_the_best_of_an_image_is_marked_unless_two_tie():
    values = [0.25, math.nan, 0.75]
    assert scored(values) == [("MI .25", False), ("MI –", False), ("MI .75", True)]
    assert [best for _, best in scored(values, "lower")] == [True, False, False]
    assert not any(best for _, best in scored(values, "none"))
    assert not any(best for _, best in scored([math.nan]))
    assert not any(best for _, best in scored([0.25, 0.75, 0.75]))
    assert scored([0.75, 0.75 + 1e-9, 0.1]) == [("MI .75000", False), ("MI .75000", False), ("MI .10000", False)]


@pytest.mark.parametrize(
    ("values", "direction", "expected"),
    [
        ([0.4312, 0.4349, 0.2], "higher", ["MI .431", "MI .435", "MI .200"]),
        ([0.30001, 0.30002, 0.7], "lower", ["MI .30001", "MI .30002", "MI .70000"]),
        ([12.31, 12.34], "lower", ["MI 12.31", "MI 12.34"]),
        ([123456.0, 123789.0], "higher", ["MI 1.23×10⁵", "MI 1.24×10⁵"]),
        ([0.5, 0.6, 0.5001], "higher", ["MI .50", "MI .60", "MI .50"]),
    ],
)
def test_numbers_differ_where_bold_decides(values, direction, expected):
    assert [text for text, _ in scored(values, direction)] == expected
    (best,) = [text for text, best in scored(values, direction) if best]
    assert [text for text, _ in scored(values, direction)].count(best) == 1


def test_the_caption_says_which_way_is_better():
    both = [*metrics("insertion"), *metrics("mas_deletion", direction="lower")]
    assert captions(both) == "Ins = Insertion ↑ · MD = Mas_Deletion ↓; bold: the best of an image, unless two tie."


def test_two_variants_of_a_score_are_told_apart():
    def chosen(*given):
        return [
            metric.short for metric in labels([MetricLabel(one, one.partition(":")[0], "", "higher") for one in given])
        ]

    assert chosen("insertion", "insertion:zero") == ["Ins", "Ins zero"]
    assert chosen("signed_insertion", "signed_insertion:zero", "road") == ["SI", "ROAD"]
    assert chosen("mas_insertion", "mas_insertion:zero", "mas_deletion", "mas_deletion:zero") == ["MI", "MD"]
