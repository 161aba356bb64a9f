"""Means and medians with their bootstrap intervals, against resampling by hand."""

import math

import numpy as np
import pytest

import fringe
from fringe.errors import InputError
from fringe.evaluation import _statistics as intervals
from fringe.evaluation import estimate, paired, paired_all

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
    assert estimate(SCORES) == estimate(SCORES, 0, "mean") == fringe.evaluation.estimate_all([(SCORES, "mean", {})])[0]
    found = estimate(SCORES, seed, summary="median")
    assert [found.low, found.high] == pytest.approx(by_hand(SCORES, seed, np.median), rel=1e-12)
    assert (found.summary, found.value) == ("median", np.median(SCORES))
    assert (found.mean, found.half_iqr) == (estimate(SCORES).mean, estimate(SCORES).half_iqr)


def test_half_the_distance_of_the_quartiles():
    assert estimate([7.0, 1.0, 3.0, 5.0, 9.0]).half_iqr == 2.0  # quartiles 3 and 7
    assert estimate([0.0, 1.0, 2.0, 4.0]).half_iqr == pytest.approx((2.5 - 0.75) / 2)


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


@pytest.mark.parametrize("summary", ["mean", "median"])
def test_images_without_a_score_are_drawn_and_do_not_count(summary):
    found, without = estimate([None, *SCORES, math.nan, math.inf], 3, summary), estimate(SCORES, 3, summary)
    holed = np.array([math.nan, *SCORES, math.nan, math.nan])
    expected = by_hand(holed, 3, np.nanmean if summary == "mean" else np.nanmedian)
    assert [found.low, found.high] == pytest.approx(expected, rel=1e-12)
    assert (found.mean, found.median, found.half_iqr) == (without.mean, without.median, without.half_iqr)
    assert found.n == without.n == 23


@pytest.mark.filterwarnings("error")
def test_resamples_without_any_score_are_left_out():
    """Of 1000 images two have a score: of resamples with some, one half has the mean of both ends or between."""
    found = estimate([0.0, 1.0, *[None] * 998])
    assert (found.low, found.high, found.n) == (0.0, 1.0, 2)
    assert estimate([0.0, 1.0, *[None] * 998], summary="median").high == 1.0


def test_too_few_scores_have_no_interval():
    one, none = estimate([0.5, None]), estimate([math.nan])
    assert (one.mean, one.median, one.n) == (0.5, 0.5, 1)
    assert math.isnan(one.low)
    assert math.isnan(one.high)
    assert math.isnan(one.half_iqr)
    assert (none.n, none.summary) == (0, "mean")
    for value in (none.mean, none.median, none.low, none.high, none.half_iqr, none.value):
        assert math.isnan(value)


@pytest.mark.parametrize("clusters", [None, ["a", "b"]])
def test_two_scores_have_the_interval_from_one_to_the_other(clusters):
    """A resample has the mean 0, 1/2 and 1 with chances 1/4, 1/2 and 1/4: both percentiles are an end."""
    found = estimate([0.0, 1.0], clusters=clusters)
    assert (found.low, found.mean, found.high, found.half_iqr) == (0.0, 0.5, 1.0, 0.25)


def test_the_global_generator_is_not_moved():
    np.random.seed(0)  # noqa: NPY002 - the state in question
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    estimate(list(SCORES))
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002


@pytest.mark.parametrize("summary", ["mean", "median"])
def test_the_resamples_of_many_scores_are_those_of_few_drawn_at_once(monkeypatch, summary):
    scores = np.random.default_rng(5).gamma(2.0, size=501).round(2)  # with ties
    one_by_one = estimate(scores, 3, summary)
    intervals._counts.cache_clear()
    monkeypatch.setattr(intervals, "_RESAMPLED_AT_ONCE", 100_000)  # a thousand resamples are six parts
    assert estimate(scores, 3, summary).low == pytest.approx(one_by_one.low, rel=1e-14)
    assert estimate(scores, 3, summary).high == pytest.approx(one_by_one.high, rel=1e-14)
    others = [(scores + shift, summary, {}) for shift in (0.0, 1.0, 3.0)] + [(scores[:400], summary, {})]
    for together, (column, _, _) in zip(fringe.evaluation.estimate_all(others, 3), others, strict=True):
        alone = estimate(column, 3, summary)
        assert (together.low, together.high) == pytest.approx((alone.low, alone.high), rel=1e-14)
    assert sum(part.sum() for part in intervals._counts(501, 3)) == 501 * fringe.evaluation.RESAMPLES


CLUSTERS = [f"c{i // 3:02d}" for i in range(24)]
NETWORKS = [f"n{i % 4}" for i in range(24)]
GROUPED = np.random.default_rng(7).normal(size=24)


@pytest.mark.parametrize("summary", ["mean", "median"])
@pytest.mark.parametrize("several", [False, True])
def test_clusters_and_networks_are_drawn_whole(summary, several):
    """Against a loop: draw clusters, draw networks, take every score as often as both are drawn."""
    clusters = np.random.default_rng(5).integers(0, 8, (1000, 8))
    networks = np.random.default_rng(6).integers(0, 4, (1000, 4))
    results = []
    for row, models in zip(clusters, networks, strict=True):
        values = []
        for cluster in row:
            for network in models if several else [None]:
                chosen = [
                    score
                    for score, c, n in zip(GROUPED, CLUSTERS, NETWORKS, strict=True)
                    if c == f"c{cluster:02d}" and network in (None, int(n[1]))
                ]
                values += chosen
        results.append(np.mean(values) if summary == "mean" else np.median(values))
    expected = np.percentile(results, [2.5, 97.5])
    made = estimate(GROUPED, 5, summary, clusters=CLUSTERS, networks=NETWORKS if several else None)
    assert (made.low, made.high) == pytest.approx(tuple(expected), rel=1e-9)
    assert made.mean == pytest.approx(GROUPED.mean())


def test_columns_together_are_each_column_by_itself_whether_they_are_clustered_or_not():
    holed = np.where(np.arange(24) % 5 == 0, np.nan, GROUPED)
    columns = [
        (GROUPED, "mean", {"clusters": CLUSTERS}),
        (GROUPED, "mean", {}),
        (holed, "median", {"clusters": CLUSTERS, "networks": NETWORKS}),
        (GROUPED[:12], "mean", {"clusters": CLUSTERS[:12]}),
        (holed, "mean", {"clusters": None}),
        ([], "mean", {"clusters": []}),
    ]
    together = fringe.evaluation.estimate_all(columns, 5)
    for made, (scores, summary, names) in zip(together, columns, strict=True):
        alone = estimate(scores, 5, summary, **names)
        assert (made.n, made.summary) == (alone.n, summary)
        numbers = [(one.mean, one.median, one.low, one.high, one.half_iqr) for one in (made, alone)]
        assert numbers[0] == pytest.approx(numbers[1], rel=1e-14, nan_ok=True)
    assert together[0].high - together[0].low != pytest.approx(together[1].high - together[1].low)


@pytest.mark.parametrize("networks", [None, NETWORKS])
def test_pairs_have_the_interval_of_their_differences_and_those_of_fewer_images_the_first_names(networks):
    other = np.random.default_rng(8).normal(size=24)
    given = {"clusters": CLUSTERS, "networks": networks}
    pairs = [(GROUPED, other, "mean", given), (GROUPED[:12], other[:12], "median", given)]
    together = paired_all(pairs, 5)
    for made, (a, b, how, _) in zip(together, pairs, strict=True):
        names = {"clusters": CLUSTERS[: len(a)], "networks": networks and networks[: len(a)]}
        assert made == paired(a, b, seed=5, summary=how, **names)
        expected = estimate(a - b, 5, how, **names)
        assert (made.value, made.low, made.high) == (expected.value, expected.low, expected.high)


def test_one_cluster_has_no_interval_and_what_has_no_score_does_not_count():
    assert math.isnan(estimate([1.0, 2.0, 3.0], clusters=["a"] * 3).low)
    holed = estimate([*GROUPED, math.nan], 5, clusters=[*CLUSTERS, "z"])
    of_cluster = [*GROUPED.reshape(8, 3).tolist(), []]
    drawn = np.random.default_rng(5).integers(0, 9, (1000, 9))
    expected = np.percentile([np.mean(np.concatenate([of_cluster[i] for i in row])) for row in drawn], [2.5, 97.5])
    assert (holed.low, holed.high) == pytest.approx(tuple(expected), rel=1e-12)
    assert holed.n == 24
    assert math.isnan(estimate([1.0, 2.0, math.nan], clusters=["a", "a", "z"]).low)
    with pytest.raises(InputError, match="clusters: got '2 names', expected 24"):
        estimate(GROUPED, clusters=["a", "b"])


def test_the_signs_of_a_cluster_are_flipped_together():
    """Repeated pairs have the p of the pairs themselves."""
    other = np.random.default_rng(9).normal(size=10)
    names = [f"c{i}" for i in range(10)]
    once = paired(SCORES[:10], other)
    often = paired(np.repeat(SCORES[:10], 5), np.repeat(other, 5), clusters=np.repeat(names, 5).tolist())
    assert often.p == pytest.approx(once.p)
    assert (often.low, often.high) == pytest.approx((once.low, once.high))
    assert paired(np.repeat(SCORES[:10], 5), np.repeat(other, 5)).p < often.p
