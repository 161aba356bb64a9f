"""Near ties by hand: whose interval overlaps that of the best."""

import math

import pytest

from fringe.errors import InputError
from fringe.evaluation import Estimate
from fringe.evaluation._summary import near_ties


def mean(value, low, high):
    return Estimate(value, median=-99.0, low=low, high=high, n=10, half_iqr=99.0)


def median(value, half):
    """A median with half the width of its interval; the mean and the quartiles would say otherwise."""
    return Estimate(-99.0, value, value - half, value + half, n=64, half_iqr=99.0, summary="median")


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


def test_medians_tie_by_their_intervals():
    pair = {"a": median(0.10, 0.01), "b": median(0.125, 0.02)}  # to 0.11, and from 0.105
    assert near_ties(pair, "lower") == ("a", {"b"})
    assert near_ties(pair, "higher") == ("b", {"a"})
    assert near_ties({**pair, "b": median(0.125, 0.014)}, "lower") == ("a", set())
    assert near_ties({**pair, "b": median(0.125, 0.014)}, "higher") == ("b", set())


def test_means_are_not_compared_with_medians():
    with pytest.raises(InputError, match="estimates: got 'mean and median', expected one summary for all"):
        near_ties({"a": mean(0.1, 0.0, 0.2), "b": median(0.1, 0.1)}, "lower")
