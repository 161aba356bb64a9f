"""Means and their bootstrap intervals, against resampling by hand."""

import math

import numpy as np
import pytest

from fringe.benchmark import estimate

SCORES = np.random.default_rng(5).normal(size=23)


def by_hand(scores, seed):
    chosen = np.random.default_rng(seed).integers(0, len(scores), (1000, len(scores)))
    means = np.sort([np.mean([scores[i] for i in row]) for row in chosen])
    return [means[int(p)] + (p - int(p)) * (means[int(p) + 1] - means[int(p)]) for p in (0.025 * 999, 0.975 * 999)]


@pytest.mark.parametrize("seed", [0, 3])
def test_the_interval_is_the_percentile_bootstrap(seed):
    found = estimate(list(SCORES), seed)
    assert [found.low, found.high] == pytest.approx(by_hand(SCORES, seed), rel=1e-12)
    assert (found.mean, found.median, found.n) == (pytest.approx(SCORES.mean()), np.median(SCORES), 23)


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
    assert none.n == 0
    assert math.isnan(none.mean)


def test_the_global_generator_is_not_moved():
    np.random.seed(0)  # noqa: NPY002 - the state in question
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    estimate(list(SCORES))
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002
