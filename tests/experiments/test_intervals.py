"""Means and medians with their bootstrap intervals, against resampling by hand."""

import math

import numpy as np
import pytest

import fringe
from fringe.errors import InputError
from fringe.experiments import _resampling as intervals
from fringe.experiments import estimate

SCORES = np.random.default_rng(5).normal(size=23)


def by_hand(scores, seed, statistic=np.mean):
    chosen = np.random.default_rng(seed).integers(0, len(scores), (1000, len(scores)))
    found = np.sort([statistic([scores[i] for i in row]) for row in chosen])
    return [found[int(p)] + (p - int(p)) * (found[int(p) + 1] - found[int(p)]) for p in (0.025 * 999, 0.975 * 999)]


@pytest.mark.parametrize("seed", [0, 3])
def test_the_interval_is_the_percentile_bootstrap(seed):
    found = estimate(list(SCORES), seed)
    assert [found.low, found.high] == pytest.approx(by_hand(SCORES, seed), rel=1e-12)
    assert (found.mean, found.median, found.n) == (pytest.approx(SCORES.mean()), np.median(SCORES), 23)
    assert found.value == found.mean


@pytest.mark.parametrize("seed", [0, 3])
def test_the_interval_of_a_median_resamples_the_median(seed):
    found = estimate(SCORES, seed, summary="median")
    assert [found.low, found.high] == pytest.approx(by_hand(SCORES, seed, np.median), rel=1e-12)
    assert (found.summary, found.value) == ("median", np.median(SCORES))
    assert (found.mean, found.half_iqr) == (estimate(SCORES).mean, estimate(SCORES).half_iqr)


def test_half_the_distance_of_the_quartiles():
    assert estimate([7.0, 1.0, 3.0, 5.0, 9.0]).half_iqr == 2.0  # quartiles 3 and 7
    assert estimate([0.0, 1.0, 2.0, 4.0]).half_iqr == pytest.approx((2.5 - 0.75) / 2)
    assert estimate(np.random.default_rng(0).normal(size=4000)).half_iqr == pytest.approx(0.67449, abs=0.04)


@pytest.mark.parametrize("summary", ["mean", "median"])
@pytest.mark.filterwarnings("error")
def test_equal_scores_have_an_interval_of_no_width(summary):
    found = estimate([0.1] * 7, summary=summary)  # whose rounded mean is another number
    assert (found.mean, found.median, found.low, found.high, found.half_iqr) == (0.1, 0.1, 0.1, 0.1, 0.0)


@pytest.mark.parametrize("summary", ["mean", "median"])
def test_the_interval_does_not_depend_on_how_much_is_resampled_at_once(summary, monkeypatch):
    whole = estimate(SCORES, summary=summary)
    monkeypatch.setattr(intervals, "_RESAMPLED_AT_ONCE", 50)
    assert estimate(SCORES, summary=summary) == whole


def test_what_a_summary_is_and_what_a_column_is():
    for scores in ([], [1.0, 2.0]):
        with pytest.raises(InputError, match="summary: got 'mode', expected one of mean, median"):
            estimate(scores, summary="mode")
    with pytest.raises(InputError, match=r"scores: got \(2, 3\), expected one number an image"):
        estimate(np.ones((2, 3)))


def test_the_papers_choice_of_the_median():
    assert {name for name, metric in fringe.METRICS.items() if metric.aggregate == "median"} == {"max_sensitivity"}


def test_the_interval_has_the_width_of_the_central_limit():
    many = np.random.default_rng(0).normal(size=4000)
    found = estimate(list(many))
    assert found.high - found.low == pytest.approx(2 * 1.96 * many.std() / math.sqrt(4000), rel=0.1)


def test_methods_are_resampled_alike():
    first, second = estimate(list(SCORES)), estimate(list(SCORES + 10))
    assert second.low - first.low == pytest.approx(10, rel=1e-12)
    assert second.high - first.high == pytest.approx(10, rel=1e-12)


def test_what_is_no_number_is_left_out_and_not_counted():
    holes = [None, *SCORES, math.nan, math.inf]
    assert estimate(holes) == estimate(list(SCORES))


def test_too_few_scores_have_no_interval():
    one, none = estimate([0.5, None]), estimate([math.nan])
    assert (one.mean, one.median, one.n) == (0.5, 0.5, 1)
    assert math.isnan(one.low)
    assert math.isnan(one.high)
    assert math.isnan(one.half_iqr)
    assert (none.n, none.summary) == (0, "mean")
    for value in (none.mean, none.median, none.low, none.high, none.half_iqr, none.value):
        assert math.isnan(value)


def test_the_global_generator_is_not_moved():
    np.random.seed(0)  # noqa: NPY002 - the state in question
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    estimate(list(SCORES))
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002


@pytest.mark.parametrize("summary", ["mean", "median"])
def test_the_resamples_of_many_scores_are_those_of_few_drawn_at_once(monkeypatch, summary):
    scores = np.random.default_rng(5).gamma(2.0, size=501).round(2)  # with ties
    one_by_one = estimate(scores, 3, summary)
    monkeypatch.setattr(intervals, "MANY", 2)
    assert estimate(scores, 3, summary).low == pytest.approx(one_by_one.low, rel=1e-14)
    assert estimate(scores, 3, summary).high == pytest.approx(one_by_one.high, rel=1e-14)
    others = [(scores + shift, summary) for shift in (0.0, 1.0)] + [(scores[:400], summary)]
    for together, (column, _) in zip(fringe.experiments.estimate_all(others, 3), others, strict=True):
        alone = estimate(column, 3, summary)
        assert (together.low, together.high) == pytest.approx((alone.low, alone.high), rel=1e-14)
    assert intervals._counts(501, 3)[0].sum() == 501 * fringe.experiments.RESAMPLES
