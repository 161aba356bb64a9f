"""Statistics of scores over images: estimates with intervals, paired differences, tests against controls, and the
images to show."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fringe._text import counted
from fringe.errors import InputError, require
from fringe.evaluation._resampling import Groups, intervals, sign_flip_ps
from fringe.metrics import Aggregate, Direction

#: The name of the cluster, or of the network, of each score.
Labels = Sequence[str]
#: A score an image, None or NaN where there is none.
Column = Sequence[float | None] | NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """Summary of the scores of one method.

    Attributes:
        mean: Mean; NaN without scores.
        median: Median.
        low: Lower end of the 95 % interval of the mean or median, as ``summary`` says; NaN for fewer than two scores.
        high: Upper end.
        n: Number of finite scores.
        half_iqr: (Q3 - Q1) / 2; NaN for fewer than two scores.
        summary: "mean" or "median".
    """

    mean: float
    median: float
    low: float
    high: float
    n: int
    half_iqr: float = math.nan
    summary: Aggregate = "mean"

    @property
    def value(self) -> float:
        """The mean or the median, as ``summary`` says."""
        return self.mean if self.summary == "mean" else self.median

    @property
    def half(self) -> float:
        """What stands behind the ±: half the width of a mean's interval, or a median's half-IQR; NaN for neither."""
        return self.half_iqr if self.summary == "median" else (self.high - self.low) / 2


def estimate(
    scores: Column,
    seed: int = 0,
    summary: Aggregate = "mean",
    *,
    clusters: Labels | None = None,
    networks: Labels | None = None,
) -> Estimate:
    """Estimate the mean or median with a 95 % percentile bootstrap interval (Efron 1979; 1000 resamples).

    The resamples depend only on ``seed`` and the number of finite scores. So methods with the same number of scores
    have the same resamples. The interval of equal scores has no width.

    Args:
        scores: Scores (n,), None or not finite where there is none.
        seed: Keys the resamples.
        summary: What the interval is of.
        clusters: Names (n,) of clusters; scores of one are drawn together, as they share pixels.
        networks: Names (n,) of networks. Several networks are drawn, too, and a score counts as often as its cluster
            times its network are drawn: the interval then includes the effect of another training.

    Returns:
        The estimate over the finite scores.

    Raises:
        InputError: For another ``summary`` or shape.
    """
    return estimate_all([(scores, summary, clusters)], seed, networks=networks)[0]


def estimate_all(
    columns: Sequence[tuple[Column, Aggregate, Labels | None]], seed: int = 0, *, networks: Labels | None = None
) -> list[Estimate]:
    """:func:`estimate` of each ``(scores, summary, clusters)``, sooner, as many scores are resampled together."""
    every = [_as_column("scores", scores) for scores, _, _ in columns]
    known = [np.isfinite(one) for one in every]
    summaries = list[Aggregate](summary for _, summary, _ in columns)
    finite = [values if one.all() else values[one] for values, one in zip(every, known, strict=True)]
    groups = [_groups(one, clusters, networks) for one, (_, _, clusters) in zip(known, columns, strict=True)]
    ends = intervals(finite, summaries, seed, groups)
    # quartiles lie linearly between the sorted scores (the paper does not say how)
    quartiles = [np.quantile(one, [0.25, 0.75]) if one.size > 1 else (math.nan, math.nan) for one in finite]
    return [
        Estimate(aggregate(one, "mean"), aggregate(one, "median"), *end, int(one.size), float(q3 - q1) / 2, summary)
        for one, summary, end, (q1, q3) in zip(finite, summaries, ends, quartiles, strict=True)
    ]


def _as_column(name: str, scores: Column) -> NDArray[np.float64]:
    """``scores`` (n,) as numbers, NaN for None. Raises InputError, naming the argument, for another shape."""
    values = np.asarray(scores, dtype=np.float64)
    require(values.ndim == 1, name, values.shape, "one number an image")
    return values


def aggregate(finite: NDArray[np.float64], summary: Aggregate) -> float:
    """The mean or the median of finite numbers, NaN of none; of equal ones the number itself, which their rounded mean
    may miss."""
    if finite.size == 0:
        return math.nan
    if finite.min() == finite.max():
        return float(finite[0])
    return float(np.mean(finite) if summary == "mean" else np.median(finite))


@dataclass(frozen=True)
class Difference:
    """Difference between two methods on the same images.

    Attributes:
        value: Mean or median of a - b over the images where both have a score; NaN without such images.
        low: Lower end of its 95 % interval; NaN for fewer than two images.
        high: Upper end.
        p: Two-sided p of no difference.
        n: Number of images.
    """

    value: float
    low: float
    high: float
    p: float
    n: int


def _groups(known: NDArray[np.bool_], clusters: Labels | None, networks: Labels | None) -> Groups | None:
    """Cluster and network of the known scores as numbers; None where all scores are independent."""
    if clusters is None and networks is None:
        return None
    numbers: list[NDArray[np.int64]] = []
    for name, labels in (("clusters", clusters), ("networks", networks)):
        labels = labels or (range(len(known)) if name == "clusters" else [""] * len(known))
        require(len(labels) == len(known), name, f"{len(labels)} names", f"{len(known)}, one for each score")
        numbers.append(np.unique(np.asarray(labels)[known], return_inverse=True)[1].astype(np.int64))
    return numbers[0], numbers[1]


def paired(
    a: Column,
    b: Column,
    *,
    seed: int = 0,
    summary: Aggregate = "mean",
    clusters: Labels | None = None,
    networks: Labels | None = None,
) -> Difference:
    """Compare two methods image by image.

    With ``summary`` "mean" the value is the mean of the differences, which is the difference of the means. With
    "median" it is the median of the differences (the typical image), not the difference of the medians, which may
    belong to two different images. The interval is that of :func:`estimate`. ``p`` is the two-sided sign-flip
    permutation test of the mean difference, with both summaries: the share of sign assignments whose mean is at least
    as far from zero. These are all 2^n if they are at most 99,999, else the observed one and 99,999 random ones (from
    10,000 differences on, 2^17 of a random group).

    Args:
        a: Scores (n,) of one method, None or not finite where there is none.
        b: Scores (n,) of the other on the same images.
        seed: Keys the resamples and random signs.
        summary: "mean" or "median" of the differences.
        clusters: As for :func:`estimate`; the signs of a cluster are flipped together.
        networks: As for :func:`estimate`.

    Returns:
        The difference a - b.

    Raises:
        InputError: If the columns have different lengths.
    """
    return paired_all([(a, b, summary)], seed, clusters=clusters, networks=networks)[0]


def paired_all(
    pairs: Sequence[tuple[Column, Column, Aggregate]],
    seed: int = 0,
    *,
    clusters: Labels | None = None,
    networks: Labels | None = None,
) -> list[Difference]:
    """Compare many pairs of methods image by image: :func:`paired` of each ``(a, b, summary)``, sooner, as random signs
    are drawn once for all. A pair of fewer images than there are names has the first of them."""
    differences, groups = list[NDArray[np.float64]](), list[Groups | None]()
    for a, b, _ in pairs:
        first, second = _as_column("a", a), _as_column("b", b)
        require(len(first) == len(second), "b", f"{len(second)} scores", f"{len(first)}, one for each of a")
        both = np.isfinite(first) & np.isfinite(second)
        differences.append(first[both] - second[both])
        groups.append(_groups(both, clusters and clusters[: len(both)], networks and networks[: len(both)]))
    sums = [  # by cluster: a cluster has one sign
        d if g is None else np.bincount(g[0], weights=d).astype(np.float64)
        for d, g in zip(differences, groups, strict=True)
    ]
    p_values = sign_flip_ps(sums, seed)
    ends = intervals(differences, [summary for _, _, summary in pairs], seed, groups)
    return [
        Difference(aggregate(d, summary), *end, p, int(d.size))
        for d, p, end, (_, _, summary) in zip(differences, p_values, ends, pairs, strict=True)
    ]


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p values for their number (Holm 1979), so that a level limits the chance of any false alarm among all.

    Step-down: the k-th smallest of m times m - k + 1, at least the adjusted value before it, and at most 1.

    Args:
        p_values: Probabilities; NaN stays NaN and does not count.

    Returns:
        The adjusted values, in the order given.

    Raises:
        InputError: For a value that is not a probability.
    """
    adjusted = np.array(p_values, dtype=np.float64)
    known = np.flatnonzero(~np.isnan(adjusted))
    require(bool(((adjusted[known] >= 0) & (adjusted[known] <= 1)).all()), "p_values", p_values, "numbers from 0 to 1")
    order = known[np.argsort(adjusted[known], kind="stable")]
    steps = adjusted[order] * np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return adjusted.tolist()


def significance_stars(adjusted: float) -> str:
    """``***`` for an adjusted p below .001, ``**`` below .01, ``*`` below .05, nothing for others and NaN."""
    return "*" * sum(adjusted < level for level in (0.05, 0.01, 0.001))


def near_ties(estimates: Mapping[str, Estimate], direction: Direction) -> tuple[str | None, set[str]]:
    """Find the label of the best estimate, and those whose interval overlaps its interval; None and nothing if no
    direction is better, or there is no score. Raises InputError for means among medians.

    A description, not a test: intervals of two methods may overlap where their paired difference is significant (see
    :func:`paired`). The interval of a mean is the bootstrap's; of a median it is median +- half-IQR, as in the paper's
    table of max sensitivity (appendices Additional Quantitative Results and Robustness under small input
    perturbations). The first of equals is the best; an estimate without an interval ties with none.
    """
    kinds = sorted({item.summary for item in estimates.values()})
    require(len(kinds) < 2, "estimates", " and ".join(kinds), "one summary for all")
    known = {label: item for label, item in estimates.items() if math.isfinite(item.value)}
    if direction == "none" or not known:
        return None, set()
    choose = max if direction == "higher" else min
    best = choose(known, key=lambda label: known[label].value)
    spans = {
        label: (one.median - one.half_iqr, one.median + one.half_iqr)
        if one.summary == "median"
        else (one.low, one.high)
        for label, one in known.items()
    }
    low, high = spans.pop(best)
    return best, {label for label, span in spans.items() if span[0] <= high and span[1] >= low}


#: The metrics that an example of strength has to win.
MAS = ("mas_insertion", "mas_deletion")
WEIGHTS: Mapping[str, float] = {"mas_insertion": 2.0, "mas_deletion": 2.0, "insertion": 1.0, "deletion": 1.0}

#: ``scores[metric][method]`` (n,): a score an image, not finite where there is none.
Columns = Mapping[str, Mapping[str, NDArray[np.float64]]]


@dataclass(frozen=True)
class Dominance:
    """How far the reference method is ahead on n images: the mean improvement (n,) in units of the metrics, NaN where
    it or all other methods have no score; and whether the image is an example of strength (n,)."""

    score: NDArray[np.float64]
    eligible: NDArray[np.bool_]


@dataclass(frozen=True)
class Examples:
    """Positions of images among the n; none is picked twice."""

    strong: tuple[int, ...]
    typical: tuple[int, ...]
    failures: tuple[int, ...]


def dominance(scores: Columns, reference: str, directions: Mapping[str, Direction]) -> Dominance:
    """How far ``reference`` is ahead on each image, over the metrics of :data:`WEIGHTS` that have ``scores``.

    .. math:: D = \\frac{\\sum_m w_m \\overline{\\Delta}_m}{\\sum_m w_m}

    where ``Delta_m`` is the improvement over another method under metric m, positive where the reference method is
    better, and the bar its mean over the other methods; one without a score on an image is left out of that image's
    mean. Eligible are images where the reference method beats more than half of the others on both MAS metrics; a
    method without a score is not beaten.

    The paper (appendix Additional Qualitative Results) ranks images by its four metrics, MAS with greater weight, and
    keeps those where FRInGe "outperforms most competing methods" on both MAS metrics. It prints no formula; this is
    ours. Raises InputError without both MAS metrics, and without another method.
    """
    for metric in MAS:
        if metric not in scores:
            raise InputError(f"scores: {metric} is missing; images are chosen by both MAS metrics")
        if len(scores[metric]) < 2:
            raise InputError(f"scores: only {reference} has {metric}; it needs another method")
    gaps, weighted = dict[str, NDArray[np.float64]](), list[NDArray[np.float64]]()
    for metric, columns in scores.items():
        known = {label: np.where(np.isfinite(column), column, np.nan) for label, column in columns.items()}
        best, sign = known.pop(reference), 1.0 if directions[metric] == "higher" else -1.0
        gaps[metric] = gap = np.array([sign * (best - other) for other in known.values()])  # (rivals, n)
        count = (is_known := np.isfinite(gap)).sum(0)
        mean = np.where(count > 0, np.where(is_known, gap, 0.0).sum(0) / np.maximum(count, 1), np.nan)
        weighted.append(WEIGHTS[metric] * mean)
    score = np.sum(weighted, axis=0) / sum(WEIGHTS[metric] for metric in gaps)
    wins = [(gaps[metric] > 0).sum(0) > len(gaps[metric]) / 2 for metric in MAS]
    return Dominance(score, np.isfinite(score) & wins[0] & wins[1])


def pick(dominance: Dominance, each: int = 3) -> Examples:
    """At most ``each`` images of a kind: ``strong`` the highest scores among the eligible; ``failures`` the lowest of
    all that are left; ``typical``, of what is left then, the nearest to the median of all scores. The first of equals
    goes first, and images without a score are never picked."""
    score = dominance.score
    left = [int(i) for i in np.flatnonzero(np.isfinite(score))]
    middle = float(np.median(score[left])) if left else 0.0

    best = sorted((i for i in left if dominance.eligible[i]), key=lambda i: -score[i])[:each]
    left = [i for i in left if i not in best]
    worst = sorted(left, key=lambda i: score[i])[:each]
    left = [i for i in left if i not in worst]
    usual = sorted(left, key=lambda i: abs(score[i] - middle))[:each]
    return Examples(tuple(best), tuple(usual), tuple(worst))


# -- tests against controls -------------------------------------------------------------------------------------------


#: Marks scores of methods that were not shown to be better than those of every control.
NOT_BETTER = "‡"
#: What the mark means, on screens.
NOT_BETTER_MEANS = (
    f"{NOT_BETTER}: not shown to be better than every control: blind maps, and the method's own map made sharper "
    "(power) or moved to the centre (centre_prior)"
)
#: Level of the tests.
BELOW = 0.05
#: Scores that differ by less are the same.
SAME = 1e-6


def is_rival(method: str, control: str, scores: NDArray[np.float64], other: NDArray[np.float64]) -> bool:
    """Whether the scores (n,) of a control are to be beaten by those of a method.

    A control that is made of the map of a method, ``MODIFIER:LABEL``, concerns the method with this label alone, and
    only under a metric that it moves on most images: a score of the ranking is that of the sharper map, too.
    """
    owner = control.partition(":")[2]
    if not owner:
        return True
    moved = np.abs(finite_of(scores - other))
    return owner == method and bool(moved.size) and float(np.median(moved)) > SAME


@dataclass(frozen=True)
class ControlTest:
    """A method under one metric against the ``control`` with the greatest p, of several the one with the best score.
    ``difference`` is the method less the control, image by image. ``p`` is 1 if the control is ahead. The greatest p
    need not be adjusted for the number of controls (intersection-union test, Berger 1982); ``adjusted`` is adjusted for
    the ``count`` of methods and metrics."""

    control: str
    difference: Difference
    p: float
    adjusted: float = math.nan
    count: int = 1

    @property
    def better(self) -> bool | None:
        """Whether the method is better than every control; None if there are too few images for any test to show it."""
        return self.adjusted < BELOW if self.difference.n >= least_images(self.count) else None


def least_images(count: int) -> int:
    """Return the fewest images at which one of ``count`` scores can be better than the controls: n images have 2^n
    signs, so that no p of a two-sided test is below 2 / 2^n, and the least of them is multiplied by ``count``."""
    return math.floor(math.log2(2 * count / BELOW)) + 1


def too_few(images: int, count: int) -> list[str]:
    """Say, in a sentence or none, that so few images cannot show that one of ``count`` scores is better."""
    if not images or not count or images >= least_images(count):
        return []
    what = f"{counted(images, 'image')} cannot show that one of {counted(count, 'score')} is better than every control"
    return [f"not tested: {what}; take at least {least_images(count)}"]


def compare_with_controls(
    scores: Mapping[str, NDArray[np.float64]],
    controls: Collection[str],
    direction: Direction,
    summary: Aggregate,
    seed: int,
    *,
    clusters: Labels | None = None,
    networks: Labels | None = None,
) -> dict[str, ControlTest]:
    """Test each method against every control under one metric.

    A control that is made of a method's map counts where :func:`is_rival` says so.

    Args:
        scores: Scores (n,) by method and control, NaN where there is none.
        controls: Which of them are controls.
        direction: Which scores are better.
        summary: What the differences show.
        seed: Keys the random signs of the tests.
        clusters: Names (n,) of groups of images that share pixels.
        networks: Names (n,) of the networks that were explained.

    Returns:
        The tests by method, not yet adjusted. A method that has no image in common with any control has none, and there
        is none under a metric without a direction.
    """
    if direction == "none":
        return {}
    sign = 1 if direction == "higher" else -1
    pairs: list[tuple[str, str]] = []
    for method in [label for label in scores if label not in controls]:
        rivals = [control for control in controls if is_rival(method, control, scores[method], scores[control])]
        known = {control: values for control in rivals if (values := finite_of(scores[method] - scores[control])).size}
        ahead = {control: sign * float(np.mean(values)) for control, values in known.items()}
        behind = [control for control in ahead if ahead[control] <= 0]  # then no other control decides
        pairs += [(method, control) for control in ([min(behind, key=ahead.__getitem__)] if behind else ahead)]
    columns: list[tuple[Column, Column, Aggregate]] = [(scores[a], scores[b], summary) for a, b in pairs]
    differences = paired_all(columns, seed, clusters=clusters, networks=networks)
    tests: dict[str, ControlTest] = {}
    for (method, control), difference in zip(pairs, differences, strict=True):
        is_ahead, other = sign * difference.value > 0, tests.get(method)
        one = ControlTest(control, difference, difference.p if is_ahead else 1.0)
        if other is None or (one.p, -sign * difference.value) > (other.p, -sign * other.difference.value):
            tests[method] = one
    return tests


def finite_of(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The finite ones of some numbers."""
    return values[np.isfinite(values)]


def control_tests(
    scores: Mapping[tuple[str, str], Column],
    controls: Collection[str],
    metrics: Mapping[str, tuple[Direction, Aggregate]],
    seed: int,
    groups: Mapping[str, Mapping[str, Labels | None]] | None = None,
) -> dict[tuple[str, str], ControlTest]:
    """:func:`compare_with_controls` under every metric, with p that are adjusted for their number (:func:`holm`).
    ``scores`` and tests are by method and metric, ``groups`` are the clusters and networks by metric."""
    tests: dict[tuple[str, str], ControlTest] = {}
    for label, words in metrics.items():
        columns = {method: _as_column(method, column) for (method, of), column in scores.items() if of == label}
        compared = compare_with_controls(columns, controls, *words, seed, **(groups or {}).get(label, {}))
        tests |= {(method, label): test for method, test in compared.items()}
    adjusted = holm([test.p for test in tests.values()])
    return {
        key: replace(test, adjusted=p, count=len(tests)) for (key, test), p in zip(tests.items(), adjusted, strict=True)
    }
