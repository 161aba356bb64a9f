"""Intervals by resampling, and p-values by flipping signs, for many columns of scores over the same images."""

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from fringe.errors import require_choice
from fringe.metrics import Aggregate

LEVEL = 0.95
RESAMPLES = 1000
#: Numbers that are resampled in one go; memory grows with them, results do not depend on them.
_RESAMPLED_AT_ONCE = 2_500_000
#: Long columns that are resampled, or get their signs, at once; memory grows with them, results do not depend on them.
_TOGETHER = 24
#: Scores from which on the means of several columns are resampled together: the same numbers but for rounding, sooner.
#: From as many differences on, the signs are those of a group.
MANY = 10_000


#: The number, from 0 on, of the cluster and of the network of each score.
Groups = tuple[NDArray[np.int64], NDArray[np.int64]]


def interval(
    finite: NDArray[np.float64], summary: Aggregate, seed: int, groups: Groups | None = None
) -> tuple[float, float]:
    """The percentile bootstrap interval of the ``summary`` of finite numbers, NaN of fewer than two of them or of their
    clusters.

    That of ``scipy.stats.bootstrap``, by how often each number is drawn: the draws are the same for all columns of one
    length, and made once. Scores with ``groups`` are not independent: those of one cluster share pixels, those of one
    network its training. Whole clusters are drawn, and where there are several networks these, too; a score counts as
    often as its cluster times its network are drawn (Owen 2007).
    """
    require_choice("summary", summary, get_args(Aggregate))
    count = finite.size if groups is None or not finite.size else int(groups[0].max()) + 1
    if count < 2:
        return math.nan, math.nan
    if finite.min() == finite.max():
        return float(finite[0]), float(finite[0])
    order, parts, drawn = np.argsort(finite, kind="stable"), list[NDArray[np.float64]](), _counts(count, seed)
    if groups is None:
        parts = [_summaries(counts, np.full(len(counts), count), finite, order, summary) for counts in drawn]
    else:
        clusters, networks = groups
        of_clusters, several = np.concatenate(drawn), int(networks.max()) + 1
        models = np.concatenate(_counts(several, seed + 1)) if several > 1 else np.ones((RESAMPLES, 1), np.uint8)
        rows = max(1, _RESAMPLED_AT_ONCE // finite.size)
        for part in (slice(start, start + rows) for start in range(0, RESAMPLES, rows)):
            weights = of_clusters[part][:, clusters].astype(np.int64) * models[part][:, networks]
            total = weights.sum(1)
            weights, total = weights[total > 0], total[total > 0]  # no score of a drawn network is in a drawn cluster
            parts.append(_summaries(weights, total, finite, order, summary))
    low, high = np.percentile(np.concatenate(parts), [50 * (1 - LEVEL), 50 * (1 + LEVEL)])
    return float(low), float(high)


def intervals(
    columns: Sequence[NDArray[np.float64]],
    summaries: Sequence[Aggregate],
    seed: int,
    groups: Sequence[Groups | None],
) -> list[tuple[float, float]]:
    """:func:`interval` of each of several columns: the means of many numbers are resampled together, which is sooner,
    and the same but for rounding."""
    result, by_size = list[tuple[float, float]](), dict[int, list[int]]()
    for index, (column, summary, group) in enumerate(zip(columns, summaries, groups, strict=True)):
        together = group is None and summary == "mean" and column.size >= MANY and column.min() < column.max()
        result.append((math.nan, math.nan) if together else interval(column, summary, seed, group))
        if together:
            by_size.setdefault(column.size, []).append(index)
    for n, indices in by_size.items():
        chunks = [indices[start : start + _TOGETHER] for start in range(0, len(indices), _TOGETHER)]
        means = np.empty((RESAMPLES, len(indices)))
        row = 0
        for counts in _drawn(n, seed):
            weights, rows = counts.astype(np.float64), slice(row, row + len(counts))
            parts = [weights @ np.stack([columns[index] for index in chunk], axis=1) for chunk in chunks]
            means[rows], row = np.concatenate(parts, axis=1) / n, row + len(counts)
        lows, highs = np.percentile(means, [50 * (1 - LEVEL), 50 * (1 + LEVEL)], axis=0)
        for index, low, high in zip(indices, lows, highs, strict=True):
            result[index] = float(low), float(high)
    return result


def _summaries(
    weights: NDArray[Any], total: NDArray[Any], finite: NDArray[np.float64], order: NDArray[Any], summary: Aggregate
) -> NDArray[np.float64]:
    """The mean or median (R,) of numbers (n,) in each of R resamples, by how often each is drawn (R, n), in all
    ``total`` (R,) times; ``order`` sorts the numbers."""
    if summary == "mean":
        return weights.astype(np.float64) @ finite / total
    below = np.cumsum(weights[:, order], axis=1, dtype=np.int64)
    ranks = ((total - 1) // 2)[:, None], (total // 2)[:, None]
    low, high = (finite[order][(below > rank).argmax(axis=1)] for rank in ranks)
    return (low + high) / 2


@lru_cache(maxsize=2)
def _counts(n: int, seed: int) -> tuple[NDArray[np.uint8], ...]:
    """:func:`_drawn`, in memory for the next column."""
    return tuple(_drawn(n, seed))


def _drawn(n: int, seed: int) -> Iterator[NDArray[np.uint8]]:
    """How often each of n numbers is in each of RESAMPLES resamples, (rows, n) at a time: one byte a number."""
    rng, rows = np.random.default_rng(seed), max(1, _RESAMPLED_AT_ONCE // n)
    for start in range(0, RESAMPLES, rows):
        drawn = rng.integers(0, n, (min(rows, RESAMPLES - start), n))
        yield np.stack([np.bincount(row, minlength=n).astype(np.uint8) for row in drawn])


#: Random assignments of signs; where there are no more than that at all, each is taken once. No p is smaller than
#: 1e-5 with random ones, so that a hundred comparisons adjusted by :func:`holm` can still come below .001.
FLIPS = 99_999
#: Sign assignments of at least :data:`MANY` differences, a power of two.
GROUP = 2**17
#: Of the sum of sizes: two sums of the same differences that lie nearer than that are equal but for rounding.
_ROUNDING = 1e-12
#: Signs in memory at once, and of one assignment; results do not depend on them.
_SIGNS_AT_ONCE, _SIGNS_OF_ONE = 2_000_000, 4096


def sign_flip_ps(columns: Sequence[NDArray[np.float64]], seed: int = 0) -> list[float]:
    """The two-sided p of each of several columns of finite differences (n,): the share of sign assignments whose mean
    is at least as far from zero (Fisher 1935, section 21). The signs are drawn once for all columns of one length.

    All 2^n assignments where these are at most :data:`FLIPS`; else as many random ones and the observed one, so that p
    is never below 1 / (FLIPS + 1) (Phipson and Smyth 2010); of at least :data:`MANY` differences those of a random
    group (see :func:`_group_sums`). Random signs follow from ``seed`` and n alone. NaN without differences.
    ``scipy.stats.permutation_test`` with ``permutation_type="samples"`` does the same, too slowly for a table of many
    comparisons; of random assignments it doubles the smaller tail, which is noisier.
    """
    result = [math.nan] * len(columns)
    for n in {column.size for column in columns if column.size}:
        indices = [index for index, column in enumerate(columns) if column.size == n]
        at_once = _TOGETHER if n >= MANY else len(indices)
        for start in range(0, len(indices), at_once):
            chosen = indices[start : start + at_once]
            p_values = _sign_flip_p(np.stack([columns[index] for index in chosen], axis=1), seed)
            for index, p in zip(chosen, p_values, strict=True):
                result[index] = p
    return result


def _sign_flip_p(differences: NDArray[np.float64], seed: int) -> list[float]:
    """The p (K,) of differences (n, K)."""
    n = len(differences)
    if n >= MANY:
        sums, slack = _group_sums(differences, seed), _ROUNDING * np.abs(differences).sum(0)
        return np.mean(np.abs(sums) >= np.abs(sums[0]) - slack, axis=0).tolist()
    exact = 2**n <= FLIPS
    total = 2**n if exact else FLIPS
    rng = np.random.default_rng(seed)
    size, rows = np.abs(differences).sum(0), _SIGNS_AT_ONCE // min(n, _SIGNS_OF_ONE)
    threshold = abs(differences.sum(0)) - _ROUNDING * size
    extreme = np.zeros(differences.shape[1], np.int64)
    for start in range(0, total, rows):
        count = min(rows, total - start)
        if exact:  # the binary digits of ``start`` and the numbers after it
            bits = (np.arange(start, start + count)[:, None] >> np.arange(n)) & 1
            part = bits.astype(np.float64) @ differences
        else:
            part = _random_sums(rng, count, differences)
        # The signed sum is that of the kept differences less that of the flipped ones.
        sums = 2.0 * part - differences.sum(0)
        extreme += np.count_nonzero(np.abs(sums) >= threshold, axis=0)
    return [float(count / total if exact else (count + 1) / (total + 1)) for count in extreme]


def _group_sums(differences: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    """Sums (GROUP, K) of the differences (n, K) under the sign assignments of a random group, the observed first.

    Each difference draws a number c, and assignment j flips it where j and c have an odd number of ones in common. Two
    flips in turn are a third: the assignments are a group, so that the share of those that are as extreme is an exact p
    (Hemerik and Goeman 2018, theorem 1). Any two of them but the first are independent, so that p differs from that of
    all 2^n assignments as it does with as many independent ones. All sums together are a Walsh-Hadamard transform.
    """
    drawn = np.random.default_rng(seed).integers(0, GROUP, len(differences))
    columns = [np.bincount(drawn, column, GROUP) for column in differences.T]
    sums = np.stack(columns, axis=1).astype(np.float64, copy=False)
    half = 1
    while half < GROUP:
        pairs = sums.reshape(GROUP // (2 * half), 2, -1)
        less = pairs[:, 0] - pairs[:, 1]
        pairs[:, 0] += pairs[:, 1]
        pairs[:, 1] = less
        half *= 2
    return sums


def _random_sums(rng: np.random.Generator, count: int, differences: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sums (count, K) of the differences (n, K) that fair bits keep; a row takes whole words of 64 bits, so that it
    does not depend on how many are drawn at once."""
    n = len(differences)
    words = rng.integers(0, 2**64, (count, -(-n // 64)), dtype=np.uint64).view(np.uint8)
    sums = np.zeros((count, differences.shape[1]))
    for start in range(0, n, _SIGNS_OF_ONE):
        part = differences[start : start + _SIGNS_OF_ONE]
        drawn = words[:, start // 8 : (start + _SIGNS_OF_ONE) // 8]
        sums += np.unpackbits(drawn, axis=1, count=len(part)).astype(np.float64) @ part
    return sums
