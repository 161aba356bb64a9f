"""Paired differences: against enumeration, Fisher's example, the t test, and scipy's own permutation test."""

import dataclasses
import importlib
import itertools
import math

import numpy as np
import pytest
from scipy import stats

from fringe.errors import InputError
from fringe.evaluation import estimate
from fringe.evaluation._statistics import Difference, holm, paired, paired_all, sign_flip_p
from fringe.evaluation._summary import significance_stars


@pytest.fixture
def rng():
    return np.random.default_rng(11)


def by_enumeration(differences):
    """The share of the 2^n assignments that are at least as extreme, one by one in exact fractions of 1/8."""
    observed = abs(sum(differences))
    signs = list(itertools.product((1, -1), repeat=len(differences)))
    return sum(abs(sum(s * d for s, d in zip(row, differences, strict=True))) >= observed for row in signs) / len(signs)


@pytest.mark.parametrize("n", range(1, 9))
def test_few_differences_are_enumerated(rng, n):
    for _ in range(5):
        differences = rng.integers(-9, 12, n) / 8  # eighths: sums are exact, and many are equal
        assert sign_flip_p(differences) == by_enumeration(differences.tolist())


def test_fishers_example_by_all_assignments():
    """Darwin's fifteen pairs of maize (Fisher 1935, section 21): 1726 of 2^15 assignments are at least as extreme."""
    darwin = np.array([49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48], dtype=float)
    sums = np.zeros(1)
    for difference in darwin:
        sums = np.concatenate([sums + difference, sums - difference])
    exact = np.mean(np.abs(sums) >= darwin.sum())
    assert exact == 1726 / 2**15
    assert sign_flip_p(darwin) == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / 9999))


@pytest.mark.parametrize(("n", "shift"), [(14, 0.5), (40, 0.3), (64, 0.1), (65, 0.0)])
def test_scipy_finds_the_same_p_of_random_assignments_but_for_chance(rng, n, shift):
    differences, options = rng.normal(shift, 1.0, n), {"permutation_type": "samples", "vectorized": True}
    theirs = stats.permutation_test((differences,), np.mean, n_resamples=9999, rng=np.random.default_rng(0), **options)
    found, theirs = sign_flip_p(differences), theirs.pvalue
    variance = found * (1 - found) + 4 * (found / 2) * (1 - found / 2)  # of one draw; scipy doubles a tail of half of p
    assert found == pytest.approx(theirs, abs=4 * math.sqrt(variance / 9999))


def test_the_interval_is_that_of_the_differences(rng):
    mine, theirs = rng.normal(size=(2, 30))
    for summary in ("mean", "median"):
        found, expected = paired(mine, theirs, seed=4, summary=summary), estimate(mine - theirs, 4, summary)
        assert (found.value, found.low, found.high, found.n) == (expected.value, expected.low, expected.high, 30)


def test_the_median_difference_is_not_the_difference_of_medians():
    mine, theirs = [1.0, 5.0, 6.0], [2.0, 3.0, 7.0]
    assert paired(mine, theirs, summary="median").value == -1.0  # of -1, 2 and -1; the medians differ by +2
    assert paired(mine, theirs).value == 0.0


@pytest.mark.parametrize("n", [19, 40])
def test_only_images_with_both_scores_count(rng, n):
    mine, theirs = rng.normal(size=(2, n))
    holes = [None if i == 3 else math.nan if i == 7 else value for i, value in enumerate(mine)]
    others = [math.inf if i == 11 else value for i, value in enumerate(theirs)]
    both = np.setdiff1d(np.arange(n), [3, 7, 11])
    found, without = paired(holes, others, seed=2), paired(mine[both], theirs[both], seed=2)
    assert (found.value, found.n, found.signs) == (without.value, n - 3, n - 3)
    holed = np.full(n, np.nan)
    holed[both] = (mine - theirs)[both]
    expected = estimate(holed, 2)
    assert (found.low, found.high) == (expected.low, expected.high)
    assert found.p == pytest.approx(without.p, abs=0 if n < 20 else 4 * math.sqrt(0.5 / 2**17))  # all signs, or a group


def test_a_cluster_without_a_difference_has_no_sign(rng):
    mine, theirs, names = rng.normal(size=6), rng.normal(size=6), ["a", "a", "b", "b", "c", "c"]
    mine[4:] = np.nan
    found, without = paired(mine, theirs, clusters=names), paired(mine[:4], theirs[:4], clusters=names[:4])
    assert (found.p, found.signs, found.n) == (without.p, without.signs, 4)
    assert found.signs == 2


def test_swapping_the_two_turns_the_sign_alone(rng):
    mine, theirs = rng.normal(size=(2, 30))
    found, swapped = paired(mine, theirs), paired(theirs, mine)
    assert (swapped.value, swapped.p) == (-found.value, found.p)
    assert [swapped.low, swapped.high] == pytest.approx([-found.high, -found.low], rel=1e-9)


@pytest.mark.filterwarnings("error")
def test_too_few_and_equal_scores():
    none, one = paired([None, 1.0], [2.0, math.nan]), paired([1.0], [0.25])
    assert none.n == 0
    assert all(math.isnan(value) for value in (none.value, none.low, none.high, none.p))
    assert (one.value, one.p, one.n) == (0.75, 1.0, 1)  # either sign is as extreme as the other
    assert math.isnan(one.low)
    assert paired([0.5] * 40, [0.5] * 40) == Difference(0.0, 0.0, 0.0, 1.0, 40, 40)
    assert paired([0.3] * 40, [0.1] * 40).p == 1 / 2**17  # the smallest that can be found


@pytest.mark.filterwarnings("error")
def test_rounding_does_not_break_ties():
    tenths = np.array([0.1, 0.2, 0.3, -0.6, 0.7, 0.1])  # 0.8; sums of tenths that are equal differ by rounding
    assert sign_flip_p(tenths) == by_enumeration(np.round(tenths * 10).astype(int).tolist())


def test_signs_follow_from_the_seed(rng):
    columns = list(rng.normal(0.2, 1.0, (5, 70)))
    alone = [sign_flip_p(column, 3) for column in columns]
    assert [sign_flip_p(column, 4) for column in columns] != alone
    assert [sign_flip_p(column, 3) for column in columns] == alone


def test_the_signs_of_many_differences_are_a_group(rng, monkeypatch):
    resampling = importlib.import_module("fringe.evaluation._statistics")
    monkeypatch.setattr(resampling, "GROUP", 64)
    differences = rng.normal(size=40)
    drawn = np.random.default_rng(5).integers(0, 64, 40)
    signs = np.array([[1 - 2 * ((j & int(c)).bit_count() % 2) for c in drawn] for j in range(64)])
    assert (signs[0] == 1).all()
    assert {tuple(a * b) for a in signs for b in signs} == set(map(tuple, signs))
    np.testing.assert_allclose(resampling._sums(differences, 5), signs @ differences, atol=1e-12)


def test_many_differences_have_the_p_of_the_t_test_and_keep_the_level(rng, monkeypatch):
    resampling = importlib.import_module("fringe.evaluation._statistics")
    columns = [rng.normal(shift, 1.0, 10_000) for shift in (0.0, 0.01, 0.02, 0.1)]
    expected = [stats.ttest_1samp(column, 0.0).pvalue for column in columns]
    p_values = [sign_flip_p(column, 1) for column in columns]
    assert p_values == pytest.approx(expected, abs=4 * math.sqrt(0.25 / resampling.GROUP))
    assert p_values[-1] == 1 / resampling.GROUP  # nothing but the observed signs is as extreme
    assert [sign_flip_p(np.full(10_000, one)) for one in (0.0, 0.1)] == [1.0, 1 / resampling.GROUP]

    monkeypatch.setattr(resampling, "GROUP", 256)  # p is a multiple of 1 / 256: at most .05 are 12 of them
    alarms = [sign_flip_p(rng.choice([-1.0, 1.0], 30) * rng.gamma(1.0, size=30), seed) <= 0.05 for seed in range(2000)]
    assert np.mean(alarms) == pytest.approx(12 / 256, abs=4 * math.sqrt(12 / 256 / 2000))


def test_many_pairs_at_once_are_each_pair_by_itself(rng):
    a, b = rng.normal(size=(2, 5, 30))
    b[1, 3] = np.nan
    pairs = [(x, y, summary, {}) for x, y, summary in zip(a, b, ["mean", "median"] * 2 + ["mean"], strict=True)]
    for seed in (4, 0):
        for together, (x, y, summary, _) in zip(paired_all(pairs, seed), pairs, strict=True):
            alone = paired(x, y, seed=seed, summary=summary)
            assert dataclasses.astuple(together) == pytest.approx(dataclasses.astuple(alone), rel=1e-12)
    assert paired_all(pairs[:1]) == [paired(*pairs[0][:2])]


def test_names_of_clusters_may_be_an_array(rng):
    a, b = rng.normal(size=(2, 30))
    a[3] = np.nan
    names = [f"cluster {i // 3}" for i in range(30)]
    listed = {"clusters": names, "networks": ["one"] * 15 + ["other"] * 15}
    arrays = {name: np.array(labels) for name, labels in listed.items()}
    assert paired(a, b, **arrays) == paired(a, b, **listed)
    assert estimate(a, **arrays) == estimate(a, **listed)
    assert estimate(a, clusters=np.array(names)) != estimate(a)


def test_scores_must_be_of_the_same_images():
    with pytest.raises(InputError, match="b: got '2 scores', expected 3, one for each of a"):
        paired([1.0, 2.0, 3.0], [1.0, 2.0])


def literal_holm(p_values):
    """Holm (1979): reject in order until the first p above level / (m - k + 1); adjusted: the level where that is."""
    m, order = len(p_values), sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted = [0.0] * m
    for k, i in enumerate(order):
        adjusted[i] = min(1.0, max((m - j) * p_values[order[j]] for j in range(k + 1)))
    return adjusted


def test_holms_textbook_example():
    """Four hypotheses of which two fall at .05 (Wikipedia, "Holm-Bonferroni method")."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_holm_is_its_definition(rng):
    for size in (1, 2, 7, 30):
        p_values = rng.uniform(0, 1, size) ** 3
        assert holm(p_values.tolist()) == pytest.approx(literal_holm(p_values.tolist()), rel=1e-12)


def test_what_was_not_tested_does_not_count():
    adjusted = holm([0.01, math.nan, 0.04, 0.03, 0.005, math.nan])
    assert [adjusted[i] for i in (0, 2, 3, 4)] == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert math.isnan(adjusted[1])
    assert math.isnan(adjusted[5])
    assert holm([]) == []
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([1.0, 0.0]) == [1.0, 0.0]  # equal columns have a p of exactly 1
    for wrong in (-0.1, 1.2):
        with pytest.raises(InputError, match="p_values: got"):
            holm([0.2, wrong])


@pytest.mark.parametrize(
    ("adjusted", "stars"),
    [(0.0, "***"), (0.00099, "***"), (0.001, "**"), (0.01, "*"), (0.049, "*"), (0.05, ""), (1.0, ""), (math.nan, "")],
)
def test_marks(adjusted, stars):
    assert significance_stars(adjusted) == stars
