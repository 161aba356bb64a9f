"""Sheets of many maps: every picture has its place, its words and its scale."""

import dataclasses

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.text import Text
from plots_toys import caption, written

from fringe.plots import Prediction, SheetItem, class_maps, contact_sheet

rng = np.random.default_rng(7)


def items(count, size=(9, 9), name="n", prediction="a $b$ c_d", verdict="ok", tone="checked"):
    return [
        SheetItem(
            rng.random((*size, 1)),
            rng.normal(size=(1, *size)),
            f"{name}{i}",
            Prediction(prediction, 0.884),
            verdict,
            tone,
        )
        for i in range(count)
    ]


@pytest.mark.parametrize("tone", ["checked", "fair", "bad", "plain"])
def test_a_verdict_can_be_read_on_white(tone):
    text = next(
        text for text in contact_sheet(items(1, verdict="v", tone=tone)).findobj(Text) if text.get_text() == "v"
    )
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(text.get_color())]
    assert 1.05 / (np.dot((0.2126, 0.7152, 0.0722), linear) + 0.05) >= 4.5  # WCAG 2.2, 1.4.3


def test_the_outline_of_a_focus_is_drawn_over_every_picture_of_its_item():
    plain = items(2)
    focused = [dataclasses.replace(plain[0], region=np.eye(9)), plain[1]]
    lines = [[len(axes.collections) for axes in contact_sheet(given).axes] for given in (plain, focused)]
    assert (np.subtract(lines[1], lines[0]) == [2, 2, 2, 0, 0, 0]).all()  # dark, with a light border
    assert "Outline: the focus." in caption(contact_sheet(focused))
    assert "Outline" not in caption(contact_sheet(plain))


@pytest.mark.parametrize("explained", ["", "quite another class " * 9])
def test_a_long_name_of_a_class_does_not_hide_its_probability(explained):
    item = SheetItem(
        rng.random((9, 9, 1)), rng.normal(size=(1, 9, 9)), "n", Prediction("a class " * 20, 0.884), "ok", "checked"
    )
    item = dataclasses.replace(item, prediction=Prediction("a class " * 20, 0.884, explained))
    (line,) = (text for text in written(contact_sheet([item])) if text.startswith("a class"))
    name, rest = line.split(" · ")
    assert len(name) > (16 if explained else 30)
    assert name.endswith("…")
    assert rest.startswith("88.4%, explained: quite another" if explained else "88.4%")


def test_the_caption_counts_pixels_of_the_input_where_its_image_was_made_smaller():
    (item,) = items(1, (100, 90))
    assert "averaged over about 3 × 3 pixels" in caption(contact_sheet([item]))
    assert "averaged over about 10 × 10 pixels" in caption(contact_sheet([dataclasses.replace(item, pixel=4)]))


def test_maps_of_classes_share_one_scale_and_are_named():
    values = rng.normal(size=(3, 2, 9, 9))
    values[1] *= 10.0
    figure = class_maps(rng.random((9, 9, 3)), values, ["bald_eagle", "kite", "owl"], probabilities=[0.7, 0.2, 0.1])
    _, *maps = figure.axes
    np.testing.assert_array_equal([axes.images[0].get_array() for axes in maps], values.sum(1))
    (limits,) = {axes.images[0].get_clim() for axes in maps}
    assert limits[1] == -limits[0] == np.quantile(np.abs(values[1].sum(0)), 0.99, method="higher")
    drawn = written(figure)
    assert {"input", "bald eagle", "kite", "owl", "probability 70.0%", "probability 10.0%"} <= set(drawn)
    assert "Red speaks for the class above the map, blue against it." in caption(figure)
