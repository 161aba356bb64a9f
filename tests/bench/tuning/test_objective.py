"""The paper's objective: its formula, worked numbers, and that better scores never make it worse."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fringe import InputError
from fringe.bench.tuning import objective

shares = st.floats(0.0, 1.0)
images = st.lists(st.tuples(shares, shares, st.floats(0.0, 20.0)), min_size=1, max_size=8)


def literal(ins_auc, del_auc, inf, w_ins=1.0, w_del=1.0, w_fid=0.5, k=2.0, eps=1e-6):
    """The formula as printed."""
    fid = math.exp(-k * inf)
    return (w_ins + w_del + w_fid) / (w_ins / (ins_auc + eps) + w_del / ((1 - del_auc) + eps) + w_fid / (fid + eps))


def columns(rows):
    return [list(column) for column in zip(*rows, strict=True)]


def test_worked_by_hand():
    # Ins = 1/2, 1 - Del = 1/4, Fid = 1/2: 2.5 / (2 + 4 + 1) = 5/14
    half = math.log(2) / 2
    by_hand = objective([0.4, 0.6], [0.7, 0.8], [half, half])
    assert by_hand == pytest.approx(5 / 14, rel=1e-5)  # a millionth is added to each part
    assert by_hand == pytest.approx(literal(0.5, 0.75, half), rel=1e-14)
    single = [np.float32(column) for column in ([0.4, 0.6, 0.1], [0.7, 0.8, 0.1], [half, half, 0.3])]
    assert objective(*single) == objective(
        *(column.tolist() for column in single)
    )  # the means, too, in double precision
    # all parts one: one, and the millionth
    assert objective([1.0], [0.0], [0.0]) == pytest.approx(1 + 1e-6, rel=1e-12)


@given(images)
def test_it_is_the_formula_of_the_means(rows):
    insertion, deletion, infidelity = columns(rows)
    n = len(rows)
    means = (math.fsum(column) / n for column in (insertion, deletion, infidelity))
    assert objective(insertion, deletion, infidelity) == pytest.approx(literal(*means), rel=1e-9)


@given(images, st.data())
def test_better_scores_are_never_worse(rows, data):
    image = data.draw(st.integers(0, len(rows) - 1))
    before, better = columns(rows), columns(rows)
    which = data.draw(st.integers(0, 2))
    best = 1.0 if which == 0 else 0.0
    better[which][image] += data.draw(shares) * (best - better[which][image])
    assert objective(*better) >= objective(*before) * (1 - 1e-12)


def test_a_part_below_zero_counts_as_zero():
    at_zero = objective([0.0], [0.2], [0.1])
    assert at_zero == pytest.approx(literal(0.0, 0.2, 0.1), rel=1e-12)
    # the printed formula has a pole where Ins = -epsilon
    assert objective([-0.5], [0.2], [0.1]) == at_zero
    assert objective([0.5], [1.7], [0.1]) == objective([0.5], [1.0], [0.1])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("which", range(3))
def test_what_is_not_finite_makes_it_nan(bad, which):
    scores = [[0.5, 0.5], [0.5, 0.5], [0.1, 0.1]]
    scores[which][1] = bad
    assert math.isnan(objective(*scores))


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (([], [], []), "one number per image of the same images, got insertion \\(0,\\)"),
        (([0.5], [0.5, 0.5], [0.1]), "deletion \\(2,\\)"),
        (([[0.5]], [[0.5]], [[0.1]]), "insertion \\(1, 1\\)"),
        (([0.5], [0.5], [-0.1]), "infidelity: got a mean of -0.1"),
    ],
)
def test_scores_that_are_none(scores, message):
    with pytest.raises(InputError, match=message):
        objective(*scores)
