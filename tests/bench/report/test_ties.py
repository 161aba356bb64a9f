"""Near ties by hand: whose interval overlaps that of the best."""

import math

import pytest

from fringe.bench.report._table import near_ties
from fringe.errors import InputError
from fringe.evaluation import Estimate


def mean(value, low, high):
    return Estimate(value, median=-99.0, low=low, high=high, n=10, half_iqr=99.0)


def median(value, half_iqr):
    """Mean and interval would say otherwise."""
    return Estimate(-99.0, value, low=value, high=value, n=64, half_iqr=half_iqr, summary="median")


MEANS = {
    "far below": mean(0.1, 0.0, 0.2),
    "touches": mean(0.4, 0.3, 0.5),
    "best": mean(0.6, 0.5, 0.7),
    "overlaps": mean(0.55, 0.45, 0.65),
    "wide": mean(0.3, 0.1, 0.8),
}


def test_the_best_and_who_overlaps_it():
    assert near_ties(MEANS, "higher") == ("best", {"touches", "overlaps", "wide"})
    assert near_ties(MEANS, "lower") == ("far below", {"wide"})


def test_nobody_is_best_where_no_way_is_better():
    assert near_ties(MEANS, "none") == (None, set())


def test_the_first_of_equals_is_best_and_the_other_ties():
    assert near_ties({"a": mean(1.0, 0.9, 1.1), "b": mean(1.0, 0.8, 1.2)}, "lower") == ("a", {"b"})


def test_a_score_without_an_interval_ties_with_nobody_and_no_score_is_never_best():
    lonely = {"one": mean(0.9, math.nan, math.nan), "none": mean(math.nan, math.nan, math.nan), **MEANS}
    assert near_ties(lonely, "higher") == ("one", set())
    assert near_ties(lonely, "lower") == ("far below", {"wide"})
    assert near_ties({"none": lonely["none"]}, "lower") == (None, set())
    assert near_ties({}, "lower") == (None, set())


@pytest.mark.parametrize(
    ("fringe", "ig", "expected"),
    [
        ((0.0758, 0.0122), (0.0833, 0.0171), ("fringe", {"ig"})),  # ResNet-18
        ((0.1139, 0.0141), (0.0917, 0.0313), ("ig", {"fringe"})),  # ResNet-50
        ((0.1225, 0.0138), (0.0829, 0.0209), ("ig", set())),  # ResNet-101
        ((0.1383, 0.0170), (0.0900, 0.0313), ("ig", set())),  # ResNet-152
        ((0.1081, 0.0131), (0.0381, 0.0093), ("ig", set())),  # Inception-v3
        ((0.0665, 0.0094), (0.0678, 0.0126), ("fringe", {"ig"})),  # VGG-19
    ],
)
def test_the_papers_table_of_max_sensitivity(fringe, ig, expected):
    """What the paper prints underlined and in bold, from what it prints as median and half-IQR."""
    assert near_ties({"fringe": median(*fringe), "ig": median(*ig)}, "lower") == expected


def test_medians_reach_half_an_iqr_to_either_side():
    pair = {"a": median(0.10, 0.01), "b": median(0.125, 0.02)}  # to 0.11, and from 0.105
    assert near_ties(pair, "lower") == ("a", {"b"})
    assert near_ties(pair, "higher") == ("b", {"a"})
    assert near_ties({**pair, "b": median(0.125, 0.014)}, "lower") == ("a", set())
    assert near_ties({**pair, "b": median(0.125, 0.014)}, "higher") == ("b", set())


def test_means_are_not_compared_with_medians():
    with pytest.raises(InputError, match="estimates: got 'mean and median', expected one summary for all"):
        near_ties({"a": mean(0.1, 0.0, 0.2), "b": median(0.1, 0.1)}, "lower")
