"""The matrix of rank agreement: every number in its cell."""

import math

from fringe.plots import plot_agreement

TAU = ((1.0, 0.33, math.nan), (0.33, 1.0, -0.67), (math.nan, -0.67, 1.0))
LOW = ((1.0, -0.2, math.nan), (-0.2, 1.0, -1.0), (math.nan, -1.0, 1.0))
HIGH = ((1.0, 0.8, math.nan), (0.8, 1.0, 0.1), (math.nan, 0.1, 1.0))
NAMES = ("insertion", "deletion", "a$b_c")


def test_every_number_stands_in_its_cell():
    (axes,) = plot_agreement(NAMES, TAU, LOW, HIGH, title="net").axes
    cells = {}
    for text in axes.texts:
        column, row = text.get_position()
        cells.setdefault((round(row), round(column)), []).append(text.get_text())
    assert cells[0, 1] == ["0.33"]
    assert cells[1, 0] == ["0.33", "−0.2…0.8"]
    assert cells[2, 1] == ["−0.67", "−1.0…0.1"]
    assert cells[2, 0] == ["–"]
    assert cells[1, 1] == ["1.00"]
    assert [label.get_text() for label in axes.get_yticklabels()] == list(NAMES)
    assert axes.images[0].get_array().shape == (3, 3)
