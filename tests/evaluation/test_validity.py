"""Metrics are judged: constructed metrics of which the validity is known, and each number by hand."""

import dataclasses
import itertools
import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import scipy.stats
import torch

from fringe import InputError, IntegratedGradients, SmoothGrad
from fringe._numbers.rng import KeyedGenerator
from fringe.evaluation import LEAST, SHARES, compare, degraded_scores, judge_metrics, tidy, validate_metrics
from fringe.evaluation._statistics import _counts
from fringe.evaluation._validity import _effect, _order, _verdict, degrade
from fringe.metrics import Deletion, EvaluatedMaps, Insertion, MaxSensitivity, Metric, Scores
from toys import build, images, normal

X = images(6)
METHODS = {"ig": IntegratedGradients(steps=8), "sg": SmoothGrad(samples=3), "mid": IntegratedGradients(steps=2)}


@dataclass(frozen=True)
class Constructed(Metric):
    """Base of metrics that are made up for these tests."""

    title: ClassVar[str] = "Constructed"
    direction: ClassVar[str] = "higher"
    space: ClassVar[str] = "the map"
    source: ClassVar[str] = "nowhere"


@dataclass(frozen=True)
class Exact(Constructed):
    """The share of pixels that hold what the first map of a method held there: it falls with every pixel that moves."""

    name: ClassVar[str] = "exact"

    def score(self, maps: EvaluatedMaps) -> Scores:
        firsts = maps.context.cached("firsts", list)
        keys = [tuple(one.sort().values.tolist()) for one in maps.values.flatten(1)]
        known = dict(firsts)
        firsts += [(key, one.clone()) for key, one in zip(keys, maps.values, strict=True) if key not in known]
        known = dict(firsts)
        same = [(one == known[key]).double().mean() for key, one in zip(keys, maps.values, strict=True)]
        return Scores(torch.stack(same))


@dataclass(frozen=True)
class Total(Constructed):
    """A sum, which does not know where what is."""

    name: ClassVar[str] = "total"

    def score(self, maps: EvaluatedMaps) -> Scores:
        return Scores(maps.values.abs().flatten(1).double().sum(1))


@dataclass(frozen=True)
class Neither(Total):
    name: ClassVar[str] = "neither"
    direction: ClassVar[str] = "none"


def judged(*metrics, seed=0, controls=True, x=X, methods=METHODS):
    comparison = compare(build(), x, methods, list(metrics), controls=controls, seed=seed)
    return {one.metric: one for one in validate_metrics(comparison).metrics}


def test_degraded_maps_move_a_share_of_the_pixels_and_keep_the_numbers():
    maps, rng, keys = images(2, "maps"), KeyedGenerator(0), ("a", "b")
    before = torch.zeros(2, 64, dtype=torch.bool)
    for share in SHARES:
        worse = degrade(maps, share, rng, keys)
        moved = (worse != maps).flatten(2)
        assert torch.equal(moved[:, 0], moved[:, 1])  # all channels together
        for one, other in zip(worse.flatten(2), maps.flatten(2), strict=True):
            assert torch.equal(one[:, one[0].argsort()], other[:, other[0].argsort()])
        assert moved[:, 0].sum(1).max() <= round(share * 64)
        assert moved[:, 0].sum(1).min() >= round(share * 64) - 8  # some draw their own place
        assert not bool((before & ~moved[:, 0]).sum() > 8)
        before = moved[:, 0]
    alone = degrade(maps[1:], 0.6, rng, keys[1:])
    assert torch.equal(alone, degrade(maps, 0.6, rng, keys)[1:])
    rows = normal(2, 9)
    assert not torch.equal(degrade(rows, 1.0, rng, keys), rows)


def test_a_metric_that_orders_every_degraded_map_passes():
    result = judged(Exact(), x=images(6, "other"))["exact"]
    assert result.validity.mean == 1.0
    assert (result.validity.low, result.validity.high) == (1.0, 1.0)
    assert result.power > 10
    assert result.levels[0] == 1.0
    assert list(result.levels) == sorted(result.levels, reverse=True)
    assert result.n == 6


def test_what_does_not_depend_on_the_order_is_not_judged():
    results = judged(Total(), Neither(), "max_sensitivity", controls=False)
    assert (results["total"].verdict, results["neither"].verdict) == ("not judged", "not judged")
    assert results["total"].reason == "it does not depend on the order of the pixels"
    assert results["neither"].reason == "neither end is better"
    assert results["max_sensitivity"].reason == "there is nothing to compare with"


def test_a_metric_that_needs_further_maps_is_judged_by_its_gap():
    result = judged("efficient_mprt")["efficient_mprt"]
    assert math.isnan(result.validity.mean)
    assert result.verdict == ("passes" if result.gap >= LEAST["gap"] else "does not pass")
    assert result.control in ("edge", "random")


def test_degraded_maps_are_counted_before_each_share():
    told = []
    comparison = compare(build(), X, ["ig", "smoothgrad"], {"deletion": Deletion(steps=2)})
    degraded_scores(comparison, lambda *what: told.append(what))
    assert [made for made, _, _ in told] == list(range(0, 10 * len(X), len(X)))
    assert {planned for _, planned, _ in told} == {10 * len(X)}
    assert (told[0][2], told[-1][2]) == ("ig with 20% of its pixels moved", "smoothgrad with 100% of its pixels moved")


@pytest.mark.parametrize("count", [1, 8])
def test_power_does_not_grow_with_the_number_of_methods(count):
    """Scores with an effect of .5 and independent noise; of 8 methods, the means over them have an effect of 1.4."""
    noise, n = np.random.default_rng(0), 2000
    pairs = list(itertools.product(range(n), map(str, range(count))))
    rows = [
        {"metric": "insertion", "image": i, "method": m, "control": False, "score": noise.normal()} for i, m in pairs
    ]
    worse = [
        {**row, "share": share, "score": row["score"] - 0.5 + noise.normal()} for row in rows for share in SHARES[1:]
    ]
    (result,) = judge_metrics(rows, worse, {"insertion": Insertion()}).metrics
    assert result.power == pytest.approx(0.5, abs=0.06)


def test_each_number_by_hand():
    """SciPy's correlations, and means and deviations as written; a deletion score is better if lower."""
    metrics = {"insertion": Insertion(), "deletion": Deletion()}
    comparison = compare(build(), X, METHODS, metrics)
    rows, worse = tidy(comparison), degraded_scores(comparison)
    results = {one.metric: one for one in judge_metrics(rows, worse, metrics).metrics}
    for metric, sign in (("insertion", 1.0), ("deletion", -1.0)):

        def column(method, share=0.0, metric=metric):
            table = rows if share == 0 else [row for row in worse if row["share"] == share]
            return np.array([r["score"] for r in table if (r["method"], r["metric"]) == (method, metric)])

        levels = {m: np.array([column(m, share) for share in SHARES]) for m in METHODS}
        orders = [[scipy.stats.spearmanr(SHARES, -sign * levels[m][:, i]).statistic for i in range(6)] for m in METHODS]
        result = results[metric]
        assert result.validity.mean == pytest.approx(np.mean(orders))
        assert result.levels == pytest.approx(np.mean([levels[m] for m in METHODS], axis=(0, 2)))
        effects = [(d := sign * (levels[m][0] - levels[m][2])).mean() / d.std(ddof=1) for m in METHODS]
        assert result.power == pytest.approx(np.median(effects))
        means = {m: sign * column(m).mean() for m in METHODS}
        blind = {c: sign * column(c).mean() for c in ("zero", "random", "uniform", "edge")}
        best, control = max(means, key=means.get), max(blind, key=blind.get)
        assert (result.best, result.control) == (best, control)
        gap = sign * (column(best) - column(control))
        assert result.gap == pytest.approx(gap.mean() / gap.std(ddof=1))


@pytest.mark.parametrize(
    ("differences", "expected"),
    [
        ([1.0, 3.0], math.sqrt(2)),
        ([0.0, -2.0, math.nan], -1 / math.sqrt(2)),
        ([0.3] * 3, 1000.0),  # without a deviation but for rounding
        ([-0.3] * 3, -1000.0),
        ([1.0, 1.0001], 1000.0),  # 14,142 is more than is said
        ([-1.0, -1.0001], -1000.0),
        ([0.0, 0.0], 0.0),
        ([1.0, math.nan], math.nan),
        ([], math.nan),
    ],
)
def test_an_effect_is_a_mean_over_its_deviation(differences, expected):
    assert _effect(np.array(differences)) == pytest.approx(expected, rel=1e-12, nan_ok=True)


@pytest.mark.filterwarnings("error")
def test_an_order_is_spearmans_and_zero_of_equal_scores():
    rows = np.array([[6.0, 5, 4, 3, 2, 1], [1, 2, 3, 4, 5, 6], [3, 3, 3, 3, 3, 3], [2, 2, 1, 1, 1, 0]])
    expected = [1.0, -1.0, 0.0, scipy.stats.spearmanr(rows[3], range(6, 0, -1)).statistic]
    assert _order(rows) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("moved", "n", "numbers", "expected"),
    [
        (True, 2, (0.5, 0.5, 0.2), ("passes", "")),
        (True, 2, (0.5, 0.5, math.nan), ("passes", "")),
        (True, 2, (0.49, 0.5, 0.2), ("does not pass", "validity 0.49 is below 0.5")),
        (True, 2, (0.5, 0.49, 0.19), ("does not pass", "power 0.49 is below 0.5, gap 0.19 is below 0.2")),
        (True, 2, (0.5, 0.4953, 0.2), ("does not pass", "power 0.4953 is below 0.5")),
        (True, 1, (0.5, 0.5, 0.2), ("not judged", "fewer than two images have all scores")),
        (False, 0, (0.5, 0.5, 0.2), ("not judged", "fewer than two images have all scores")),
        (False, 2, (0.5, 0.5, 0.2), ("not judged", "it does not depend on the order of the pixels")),
        (True, 2, (math.nan,) * 3, ("not judged", "there is nothing to compare with")),
    ],
)
def test_what_a_metric_has_to_reach(moved, n, numbers, expected):
    assert _verdict(Insertion(), moved, n, dict(zip(LEAST, numbers, strict=True))) == expected


def test_images_without_all_scores_do_not_count():
    metrics = {"insertion": Insertion()}
    comparison = compare(build(), X, {"ig": METHODS["ig"]}, metrics)
    rows, worse = tidy(comparison), degraded_scores(comparison)
    holed = [{**row, "score": None} if (row["image"], row["share"]) == ("2", 0.6) else row for row in worse]
    (result,) = judge_metrics(rows, holed, metrics).metrics
    (without,) = judge_metrics(rows, [row for row in worse if row["image"] != "2"], metrics).metrics
    assert result.n == without.n == 5
    assert result.validity == without.validity
    nothing = [{**row, "score": None} for row in rows]
    (result,) = judge_metrics(nothing, [], metrics).metrics
    assert (result.verdict, result.n) == ("not judged", 0)


def ranked(metrics, columns, seed=4):
    rows = [
        {"method": method, "metric": metric, "control": False, "image": str(i), "score": float(v)}
        for (metric, method), column in columns.items()
        for i, v in enumerate(column)
    ]
    return judge_metrics(rows, [], metrics, seed=seed).agreement


RANKED = {"insertion": Insertion(), "deletion": Deletion(), "max_sensitivity": MaxSensitivity(), "neither": Neither()}


def scored(methods):
    rng = np.random.default_rng(3)
    return {
        (metric, method): (4 * rng.normal(loc, 1.0, 8)).round() / 4  # exact sums, and ties
        for metric in ("insertion", "deletion", "max_sensitivity")
        for method, loc in zip(methods, (0.0, 0.1, 0.5, 0.9), strict=False)
    }


def test_agreement_is_scipys_tau_and_its_interval_a_bootstrap():
    """The last two metrics are better if lower, and the last one's scores are summarised by their median."""
    columns = scored("abcd")
    agreement = ranked(RANKED, columns)
    assert agreement.metrics == ("insertion", "deletion", "max_sensitivity")
    draws = np.random.default_rng(4).integers(0, 8, (1000, 8))

    def summaries(name, drawn):
        middle = np.median if name == "max_sensitivity" else np.mean
        table = np.array([columns[name, method] for method in "abcd"])
        return (1.0 if name == "insertion" else -1.0) * middle(table[:, drawn], axis=1)

    for (i, first), (j, second) in itertools.product(enumerate(agreement.metrics), repeat=2):
        whole = (summaries(name, np.arange(8)) for name in (first, second))
        assert agreement.tau[i][j] == pytest.approx(scipy.stats.kendalltau(*whole).statistic)
        if i < j:
            taus = [scipy.stats.kendalltau(summaries(first, d), summaries(second, d)).statistic for d in draws]
            ends = (agreement.low[i][j], agreement.high[i][j])
            assert ends == pytest.approx(np.nanpercentile(taus, [2.5, 97.5]))


def test_images_without_a_score_are_left_out_of_a_ranking_and_a_scale_changes_nothing():
    """Where one method has no score at all in a draw, the draw has no order, and does not count."""
    columns = scored("abc")
    columns["insertion", "a"][[2, 5]] = np.nan
    agreement = ranked({"insertion": Insertion(), "deletion": Deletion()}, columns)
    up, down = (np.array([columns[name, m] for m in "abc"]) for name in ("insertion", "deletion"))
    means = [np.nanmean(table, axis=1) * sign for table, sign in ((up, 1.0), (down, -1.0))]
    assert agreement.tau[0][1] == pytest.approx(scipy.stats.kendalltau(*means).statistic)
    small = {key: 2.0**-40 * column for key, column in columns.items()}
    assert ranked({"insertion": Insertion(), "deletion": Deletion()}, small) == agreement
    alone = {key: column.copy() for key, column in columns.items()}
    alone["insertion", "a"][1:] = np.nan  # a third of the draws lack its one score
    found = ranked({"insertion": Insertion(), "deletion": Deletion()}, alone)
    draws = np.random.default_rng(4).integers(0, 8, (1000, 8))
    up[0, 1:] = np.nan
    taus = [
        scipy.stats.kendalltau(np.nanmean(up[:, d], axis=1), -down[:, d].mean(1)).statistic
        for d in draws
        if (d == 0).any()
    ]
    assert 500 < len(taus) < 800
    assert (found.low[0][1], found.high[0][1]) == pytest.approx(np.nanpercentile(taus, [2.5, 97.5]))


def test_agreement_needs_three_methods_and_two_metrics_and_not_all_draws_at_once(monkeypatch):
    agreement = ranked(RANKED, scored("abc"))
    assert agreement.methods == ("a", "b", "c")
    monkeypatch.setattr("fringe.evaluation._statistics._RESAMPLED_AT_ONCE", 7 * 8)  # seven draws of a thousand
    _counts.cache_clear()
    assert ranked(RANKED, scored("abc")) == agreement
    _counts.cache_clear()
    assert ranked({"insertion": Insertion(), "neither": Neither()}, scored("abc")) is None
    assert ranked(RANKED, scored("ab")) is None


def test_a_broken_map_and_a_comparison_without_maps():
    comparison = compare(build(), X, METHODS, ["insertion"])
    faulty = [dataclasses.replace(comparison.rows[0], faults=("", "diverged", "", "", "", "")), *comparison.rows[1:]]
    rows = degraded_scores(dataclasses.replace(comparison, rows=tuple(faulty)))
    assert [row["image"] for row in rows if (row["method"], row["share"]) == ("ig", 0.2)] == ["0", "2", "3", "4", "5"]
    whole = [row for row in degraded_scores(comparison) if row["image"] != "1" or row["method"] != "ig"]
    for one, other in zip(rows, whole, strict=True):
        assert one["score"] == pytest.approx(other["score"], rel=1e-9)
    with pytest.raises(InputError, match="comparison: the maps of the comparison were not stored; compare with"):
        validate_metrics(compare(build(), X, METHODS, ["insertion"], keep_maps=False))


def test_it_prints_its_verdicts():
    comparison = compare(build(), X, METHODS, ["insertion", "efficient_mprt"])
    text = repr(validate_metrics(comparison))
    assert "insertion" in text
    assert "verdict" in text
    assert "nan" not in text


def test_the_gap_is_to_maps_that_know_nothing_of_the_model():
    """Diffusion is a control that runs the network: to come near it is no fault of a metric."""
    scores = {"ig": 0.8, "edge": 0.5, "diffusion": 0.9}
    rows = [
        {"method": method, "metric": "insertion", "control": method != "ig", "image": str(i), "score": value + 0.01 * i}
        for method, value in scores.items()
        for i in (0, 1, 3)
    ]
    (one,) = judge_metrics(rows, [], {"insertion": Insertion()}).metrics
    assert (one.best, one.control) == ("ig", "edge")
    assert one.gap > 0


def test_images_of_one_name_all_count():
    metrics = {"deletion": Deletion(reference="zeros")}
    comparison = compare(build(), X, {"ig": METHODS["ig"]}, metrics)
    named = dataclasses.replace(comparison, images=("a", "b", "a", "c", "a", "d"))
    assert validate_metrics(named).metrics == validate_metrics(comparison).metrics
    assert validate_metrics(named).metrics[0].n == len(X)
