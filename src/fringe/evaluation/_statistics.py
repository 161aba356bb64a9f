"""Statistics of scores over images: estimates with intervals by resampling, paired differences with p-values by
flipping signs, and tests against controls."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from fringe._strings.formats import counted
from fringe.errors import require, require_choice
from fringe.metrics import Aggregate, Direction

LEVEL = 0.95
RESAMPLES = 1000
#: Numbers that are resampled in one go; memory grows with them, results do not depend on them.
_RESAMPLED_AT_ONCE = 2_500_000


#: The number, from 0 on, of the cluster and of the network of each score.
Groups = tuple[NDArray[np.int64], NDArray[np.int64]]


def intervals(
    columns: Sequence[NDArray[np.float64]],
    summaries: Sequence[Aggregate],
    seed: int,
    groups: Sequence[Groups | None],
) -> list[tuple[float, float]]:
    """The percentile bootstrap interval of the summary of the finite numbers of each column, NaN of fewer than two of
    them or of their clusters.

    That of ``scipy.stats.bootstrap``, by how often each image is drawn, with or without a score: the draws are the same
    for all columns of one length, and made once. Scores with ``groups`` are not independent: those of one cluster share
    pixels, those of one network its training. Whole clusters are drawn, and where there are several networks these,
    too; a score counts as often as its cluster times its network are drawn (Owen 2007).
    """
    for summary in set(summaries):
        require_choice("summary", summary, get_args(Aggregate))
    result, alike = [(math.nan, math.nan)] * len(columns), dict[tuple[int, int], list[int]]()
    for index, (column, group) in enumerate(zip(columns, groups, strict=True)):
        known = np.isfinite(column)
        finite = column[known]
        if (finite.size if group is None else np.unique(group[0][known]).size) < 2:
            continue
        if finite.min() == finite.max():
            result[index] = float(finite[0]), float(finite[0])
        else:  # columns of one length are resampled together
            alike.setdefault((len(column), -1 if group is None else index), []).append(index)
    for (n, _), indices in alike.items():
        group, values = groups[indices[0]], np.stack([columns[index] for index in indices], axis=1)
        counts = _counts(n, seed) if group is None else _grouped_counts(group, seed)
        drawn = _summaries(counts, values, [summaries[index] for index in indices])
        for index, column in zip(indices, drawn.T, strict=True):
            low, high = np.percentile(finite_of(column), [50 * (1 - LEVEL), 50 * (1 + LEVEL)])
            result[index] = float(low), float(high)
    return result


def _grouped_counts(groups: Groups, seed: int) -> Iterator[NDArray[np.int64]]:
    """How often each score is in each resample of clusters and networks, some resamples (R, n) at a time."""
    clusters, networks = groups
    of_clusters, several = np.concatenate(_counts(int(clusters.max()) + 1, seed)), int(networks.max()) + 1
    models = np.concatenate(_counts(several, seed + 1)) if several > 1 else np.ones((RESAMPLES, 1), np.uint8)
    rows = max(1, _RESAMPLED_AT_ONCE // clusters.size)
    for part in (slice(start, start + rows) for start in range(0, RESAMPLES, rows)):
        yield of_clusters[part][:, clusters].astype(np.int64) * models[part][:, networks]


def _summaries(
    counts: Iterable[NDArray[Any]], values: NDArray[np.float64], kinds: Sequence[Aggregate]
) -> NDArray[np.float64]:
    """The mean or median (R, K) of the finite ones of numbers (n, K) in each of R resamples, by how often each is drawn
    (R, n), some resamples at a time; NaN where none is."""
    known = np.isfinite(values)
    numbers, seen = np.where(known, values, 0), dict[bytes, int]()
    of_pattern = [seen.setdefault(column.tobytes(), len(seen)) for column in known.T]  # many lack the same images
    patterns = np.stack([np.frombuffer(pattern, np.bool_) for pattern in seen], axis=1)
    medians = {}
    for column in (k for k, kind in enumerate(kinds) if kind == "median"):
        order = np.argsort(values[:, column], kind="stable")[: known[:, column].sum()]  # NaN stands last
        medians[column] = order, values[order, column]
    parts = list[NDArray[np.float64]]()
    for weights in counts:
        drawn = weights.astype(np.float64)
        with np.errstate(invalid="ignore"):  # no score is drawn: NaN
            result = drawn @ numbers / (drawn @ patterns)[:, of_pattern]
        for column, (order, ordered) in medians.items():
            below = np.cumsum(weights[:, order], axis=1, dtype=np.int64)
            ranks = (below[:, -1:] - 1) // 2, below[:, -1:] // 2
            low, high = (ordered[(below > rank).argmax(axis=1)] for rank in ranks)
            result[:, column] = np.where(below[:, -1] > 0, (low + high) / 2, np.nan)
        parts.append(result)
    return np.concatenate(parts)


@lru_cache(maxsize=2)
def _counts(n: int, seed: int) -> tuple[NDArray[np.uint8], ...]:
    """How often each of n numbers is in each resample, (rows, n) at a time: one byte a number, kept for the next."""
    rng, rows = np.random.default_rng(seed), max(1, _RESAMPLED_AT_ONCE // n)
    parts = list[NDArray[np.uint8]]()
    for start in range(0, RESAMPLES, rows):
        drawn = rng.integers(0, n, (min(rows, RESAMPLES - start), n))
        parts.append(np.stack([np.bincount(row, minlength=n).astype(np.uint8) for row in drawn]))
    return tuple(parts)


# -- p-values by flipping signs ---------------------------------------------------------------------------------------


#: The most sign assignments of a column, a power of two.
GROUP = 2**17
#: Of the sum of sizes: two sums of the same differences that lie nearer than that are equal but for rounding.
_ROUNDING = 1e-12


def sign_flip_p(differences: NDArray[np.float64], seed: int = 0) -> float:
    """The two-sided p of differences (n,), NaN where there is none: the share of sign assignments whose mean is at
    least as far from zero (Fisher 1935, section 21). NaN without differences.

    All 2^n assignments of n differences where these are fewer than :data:`GROUP`, else those of a random group, the
    observed one among them (see :func:`_sums`), so that p is never below 1 / GROUP. The group follows from ``seed`` and
    the length alone: columns of one length have the same.
    """
    known = finite_of(differences)
    if not known.size:
        return math.nan
    if 2**known.size >= GROUP:  # a difference of 0 changes no sum
        known = np.where(np.isfinite(differences), differences, 0)
    sums, slack = _sums(known, seed), _ROUNDING * np.abs(known).sum()
    return float(np.mean(np.abs(sums) >= np.abs(sums[0]) - slack))


def _sums(differences: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    """Sums (G,) of the differences (n,) under the G sign assignments of a group, the observed first.

    Each difference has a number c, and assignment j flips it where j and c have an odd number of ones in common. Where
    the numbers are the powers of two, these are all assignments. Of more differences the numbers are random: two flips
    in turn are a third, so that the share of those that are as extreme is an exact p (Hemerik and Goeman 2018, theorem
    1). Any two of them but the first are independent, so that p differs from that of all 2^n assignments as it does
    with as many independent ones. All sums together are a Walsh-Hadamard transform.
    """
    n = len(differences)
    size = min(GROUP, 2**n)
    numbers = 2 ** np.arange(n) if size < GROUP else _numbers(n, size, seed)
    sums: NDArray[Any] = np.bincount(numbers, differences, size).reshape(-1, 1 << ((size.bit_length() - 1) // 2))
    for _ in range(2):  # the lower half of the digits of c, then the upper one: long rows are added quickly
        sums = np.ascontiguousarray(sums.T, np.float64)
        half = 1
        while half < len(sums):
            pairs = sums.reshape(len(sums) // (2 * half), 2, -1)
            less = pairs[:, 0] - pairs[:, 1]
            pairs[:, 0] += pairs[:, 1]
            pairs[:, 1] = less
            half *= 2
    return sums.ravel()


@lru_cache(maxsize=2)
def _numbers(n: int, size: int, seed: int) -> NDArray[np.int64]:
    """Random numbers (n,) below a size, kept for the next differences."""
    return np.random.default_rng(seed).integers(0, size, n)


# -- estimates and differences ----------------------------------------------------------------------------------------


#: The name of the cluster, or of the network, of each score.
Labels = Sequence[str] | NDArray[Any]
#: A score an image, None or NaN where there is none.
Column = Sequence[float | None] | NDArray[np.float64]
#: The names of the ``clusters`` and ``networks`` of scores, as for :func:`estimate`.
Names = Mapping[str, Labels | None]


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
        """Half the width of the interval; NaN without one."""
        return (self.high - self.low) / 2


def estimate(
    scores: Column,
    seed: int = 0,
    summary: Aggregate = "mean",
    *,
    clusters: Labels | None = None,
    networks: Labels | None = None,
) -> Estimate:
    """Estimate the mean or median with a 95 % percentile bootstrap interval (Efron 1979; 1000 resamples).

    The resamples depend only on ``seed`` and n: all methods have the same, whether or not each image has a score. The
    interval of equal scores has no width.

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
    return estimate_all([(scores, summary, {"clusters": clusters, "networks": networks})], seed)[0]


def estimate_all(columns: Sequence[tuple[Column, Aggregate, Names]], seed: int = 0) -> list[Estimate]:
    """:func:`estimate` of each ``(scores, summary, names)``, sooner, as many scores are resampled together."""
    every = [as_column("scores", scores) for scores, _, _ in columns]
    summaries = list[Aggregate](summary for _, summary, _ in columns)
    groups = [_groups(len(one), names) for one, (_, _, names) in zip(every, columns, strict=True)]
    ends, result = intervals(every, summaries, seed, groups), list[Estimate]()
    for one, summary, end in zip(map(finite_of, every), summaries, ends, strict=True):
        # quartiles lie linearly between the sorted scores (the paper does not say how)
        q1, q3 = np.quantile(one, [0.25, 0.75]) if one.size > 1 else (math.nan, math.nan)
        means = aggregate(one, "mean"), aggregate(one, "median")
        result.append(Estimate(*means, *end, int(one.size), float(q3 - q1) / 2, summary))
    return result


def as_column(name: str, scores: Column) -> NDArray[np.float64]:
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
        signs: Number of signs that are flipped: of clusters, or of images where these are independent.
    """

    value: float
    low: float
    high: float
    p: float
    n: int
    signs: int


def _groups(count: int, names: Names) -> Groups | None:
    """Cluster and network of scores as numbers; None where all scores are independent."""
    if names.get("clusters") is None and names.get("networks") is None:
        return None
    numbers: list[NDArray[np.int64]] = []
    for name in ("clusters", "networks"):
        labels = names.get(name)
        if labels is None or not len(labels):
            labels = range(count) if name == "clusters" else [""] * count
        require(len(labels) == count, name, f"{len(labels)} names", f"{count}, one for each score")
        numbers.append(np.unique(np.asarray(labels), return_inverse=True)[1].astype(np.int64))
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
    as far from zero. These are all 2^n of fewer than 17 differences, else 2^17 of a random group with the observed
    one.

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
    return paired_all([(a, b, summary, {"clusters": clusters, "networks": networks})], seed)[0]


def paired_all(pairs: Sequence[tuple[Column, Column, Aggregate, Names]], seed: int = 0) -> list[Difference]:
    """Compare many pairs of methods image by image: :func:`paired` of each ``(a, b, summary, names)``, sooner, as many
    differences are resampled together. A pair of fewer images than there are names has the first of them."""
    differences = [_differences(as_column("a", a), as_column("b", b), names) for a, b, _, names in pairs]
    columns, groups = [column for column, _ in differences], [group for _, group in differences]
    ends = intervals(columns, [summary for _, _, summary, _ in pairs], seed, groups)
    result = list[Difference]()
    for column, group, (_, _, summary, _), end in zip(columns, groups, pairs, ends, strict=True):
        finite, signed = finite_of(column), _by_cluster(column, group)
        signs = int(np.isfinite(signed).sum())
        result.append(Difference(aggregate(finite, summary), *end, sign_flip_p(signed, seed), int(finite.size), signs))
    return result


def _differences(
    a: NDArray[np.float64], b: NDArray[np.float64], names: Names
) -> tuple[NDArray[np.float64], Groups | None]:
    """The differences (n,) of two columns, NaN where one of them has no score, with their groups."""
    require(len(a) == len(b), "b", f"{len(b)} scores", f"{len(a)}, one for each of a")
    both = np.isfinite(a) & np.isfinite(b)
    column = np.subtract(a, b, out=np.full(len(a), np.nan), where=both)
    return column, _groups(len(a), {name: None if one is None else one[: len(a)] for name, one in names.items()})


def _by_cluster(differences: NDArray[np.float64], groups: Groups | None) -> NDArray[np.float64]:
    """The sum of the differences of each cluster, which has one sign; NaN of one without a difference."""
    if groups is None:
        return differences
    known = np.isfinite(differences)
    counts = np.bincount(groups[0], weights=known)
    sums = np.bincount(groups[0], weights=np.where(known, differences, 0))
    return np.where(counts > 0, sums, np.nan)


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


# -- tests against controls -------------------------------------------------------------------------------------------


#: Marks scores of methods that were not shown to be better than those of every control.
NOT_BETTER = "‡"
#: What the mark means, on screens.
NOT_BETTER_MEANS = (
    f"{NOT_BETTER}: not shown to be better than every control: blind maps, diffusion, and the method's own map made "
    "sharper (power) or moved to the centre (centre_prior)"
)
#: Level of the tests.
BELOW = 0.05
#: Scores that differ by less are the same.
SAME = 1e-6


def is_of_another(control: str, method: str) -> bool:
    """Whether a control is made of the map of another method than this one."""
    return control.partition(":")[2] not in ("", method)


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
        """Whether the method is better than every control; None if there are too few images, or clusters, for any test
        to show it."""
        return self.adjusted < BELOW if self.difference.signs >= least_images(self.count) else None


def least_images(count: int) -> int:
    """Return the fewest images, or clusters, at which one of ``count`` scores can be better than the controls: n have
    2^n signs, so that no p of a two-sided test is below 2 / 2^n, and the least p is multiplied by ``count``."""
    return math.floor(math.log2(2 * count / BELOW)) + 1


def too_few(images: int, count: int, noun: str = "image") -> list[str]:
    """Say, in a sentence or none, that so few images, or clusters, cannot show that one of ``count`` scores is
    better."""
    if not images or not count or images >= least_images(count):
        return []
    what = f"{counted(images, noun)} cannot show that one of {counted(count, 'score')} is better than every control"
    return [f"not tested: {what}; take at least {least_images(count)}"]


def compare_with_controls(
    scores: Mapping[str, NDArray[np.float64]],
    controls: Collection[str],
    direction: Direction,
    summary: Aggregate,
    seed: int,
    **names: Labels | None,
) -> dict[str, ControlTest]:
    """Test each method against every control under one metric.

    A control that is made of a method's map counts where :func:`is_rival` says so.

    Args:
        scores: Scores (n,) by method and control, NaN where there is none.
        controls: Which of them are controls.
        direction: Which scores are better.
        summary: What the differences show.
        seed: Keys the random signs of the tests.
        **names: ``clusters`` and ``networks`` as for :func:`estimate`.

    Returns:
        The tests by method, not yet adjusted. A method that has no image in common with any control has none, and there
        is none under a metric without a direction.
    """
    if direction == "none":
        return {}
    sign, chosen = 1 if direction == "higher" else -1, dict[str, tuple[str, float]]()
    for method in (label for label in scores if label not in controls):
        rivals = [one for one in controls if one in scores and is_rival(method, one, scores[method], scores[one])]
        gaps = {one: _differences(scores[method], scores[one], names) for one in rivals}
        ahead = {one: sign * aggregate(finite_of(gap), "mean") for one, (gap, _) in gaps.items()}
        behind = [one for one in ahead if ahead[one] <= 0]  # then no other control decides
        tried = list[tuple[float, float, str]]()
        for control in [min(behind, key=ahead.__getitem__)] if behind else (one for one in ahead if ahead[one] > 0):
            gap, group = gaps[control]
            value = sign * aggregate(finite_of(gap), summary)
            tried.append((sign_flip_p(_by_cluster(gap, group), seed) if value > 0 else 1.0, -value, control))
        if tried:
            p, _, control = max(tried, key=lambda one: one[:2])
            chosen[method] = control, p
    pairs: list[tuple[Column, Column, Aggregate, Names]] = [
        (scores[method], scores[control], summary, names) for method, (control, _) in chosen.items()
    ]
    differences = paired_all(pairs, seed)
    return {
        method: ControlTest(control, difference, p)
        for (method, (control, p)), difference in zip(chosen.items(), differences, strict=True)
    }


def finite_of(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The finite ones of some numbers."""
    known = np.isfinite(values)
    return values if values.ndim == 1 and known.all() else values[known]


def resampled(values: NDArray[np.float64], kind: Aggregate, seed: int) -> NDArray[np.float64]:
    """The mean or median (R, K) of the finite ones of numbers (n, K) of images, in each resample that :func:`estimate`
    makes of these; NaN where none is drawn."""
    return _summaries(_counts(len(values), seed), values, (kind,) * values.shape[1])
