"""The sensitivity figure: where each number stands, and what its marks say."""

import math

import numpy as np
import pytest
from matplotlib.colors import to_hex

from fringe.plots._curves import SweepCurve, SweepPanel, plot_sensitivity
from fringe.plots._style import BLUE, VERMILION

NAN = math.nan


def curve(name="net", values=(1e-3, 1e-2, 1e-1), level=0.5, **more):
    best = [level + 0.01 * i for i in range(len(values))]
    return SweepCurve(name, values, best, [b - 0.02 for b in best], [b + 0.03 for b in best], **more)


def drawn(figure):
    figure.draw_without_rendering()
    return figure


def texts(figure):
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def curves(axes):
    """The lines that join points."""
    return [line for line in axes.lines if line.get_linestyle() in ("-", "--") and line.get_marker() == "o"]


def test_numbers_stand_where_they_belong():
    a, b = curve("a", centre=1e-2), curve("b", level=0.7)
    figure = drawn(plot_sensitivity([SweepPanel("damping", (a, b))]))
    (axes,) = figure.axes
    for line, band, given, colour in zip(curves(axes), axes.collections, (a, b), (BLUE, VERMILION), strict=True):
        assert line.get_xydata().tolist() == [list(pair) for pair in zip(given.values, given.objective, strict=True)]
        assert to_hex(line.get_color()) == to_hex(band.get_facecolor()[0][:3]) == colour
        corners = {tuple(corner) for corner in band.get_paths()[0].vertices}
        assert {(x, y) for row in (given.low, given.high) for x, y in zip(given.values, row, strict=True)} <= corners
    assert axes.get_xlabel() == "damping"
    assert texts(figure) == ["a", "b", "centre of the sweeps"]


def test_the_centre_is_a_ring_on_its_own_curve():
    (axes,) = drawn(plot_sensitivity([SweepPanel("damping", (curve("a", centre=1e-2), curve("b", level=0.7)))])).axes
    rings = [line for line in axes.lines if line.get_markerfacecolor() == "white"]
    assert [line.get_xydata().tolist() for line in rings] == [[[1e-2, 0.51]]]
    assert rings[0].get_color() == BLUE


def test_a_centre_that_is_no_number_is_a_level():
    figure = drawn(plot_sensitivity([SweepPanel("delta_euc", (curve(centre=None, centre_objective=0.47),))]))
    levels = [line for line in figure.axes[0].lines if line.get_gid() == "centre off the axis"]
    assert [set(line.get_ydata()) for line in levels] == [{0.47}]
    assert texts(figure) == ["net", "centre, off this axis"]
    assert "centre, off this axis" not in texts(plot_sensitivity([SweepPanel("tau", (curve(),))]))


@pytest.mark.parametrize(
    ("values", "scale", "ticks"),
    [
        ((1.0, 2.0, 9.0), "linear", None),
        ((1.0, 10.0), "linear", None),
        ((-5.0, 0.0, 5.0), "linear", None),
        ((1.0, 3.0, 30.0), "log", {"1", "3", "10", "30"}),
        ((1e-12, 1e-6, 1e-1), "log", None),
        ((0.0, 1e-4, 1e-2), "symlog", {"0", "0.0001", "0.001", "0.01"}),
    ],
)
def test_an_axis_is_logarithmic_over_more_than_a_decade(values, scale, ticks):
    (axes,) = drawn(plot_sensitivity([SweepPanel("tau", (curve(values=values),))])).axes
    assert axes.get_xscale() == scale
    places = axes.transData.transform(np.column_stack([values, np.full(len(values), 0.5)]))[:, 0]
    assert np.isfinite(places).all()
    assert (np.diff(places) > 5).all()
    low, high = axes.get_xlim()
    shown = {t.get_text() for t, at in zip(axes.get_xticklabels(), axes.get_xticks(), strict=True) if low <= at <= high}
    assert 2 <= len(shown) <= 8
    assert ticks is None or shown == ticks


def test_all_panels_share_the_scale_of_the_objective():
    figure = drawn(plot_sensitivity([SweepPanel("a", (curve(level=0.2),)), SweepPanel("b", (curve(level=0.8),))]))
    (low, high), other = (axes.get_ylim() for axes in figure.axes)
    assert (low, high) == other
    assert low < 0.18
    assert high > 0.85
    assert figure.get_supylabel() == "objective"


def test_failed_settings_are_gaps_with_a_cross():
    broken = SweepCurve("net", (1.0, 2.0, 3.0), (0.5, NAN, 0.6), (0.4, NAN, 0.5), (0.6, NAN, 0.7))
    figure = drawn(plot_sensitivity([SweepPanel("tau", (broken,))]))
    crosses = [line for line in figure.axes[0].lines if line.get_marker() == "x"]
    assert [line.get_xdata().tolist() for line in crosses] == [[2.0]]
    assert np.isnan(curves(figure.axes[0])[0].get_ydata()[1])
    assert "failed" in texts(figure)
    nothing = SweepCurve("net", (1.0,), (NAN,), (NAN,), (NAN,))
    drawn(plot_sensitivity([SweepPanel("tau", (nothing,))]))
