"""Differences between two methods on the same images: how large, how sure, and how many were asked about at once."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fringe._checks import require
from fringe.experiments.intervals import Column, column, interval, middle
from fringe.metrics import Aggregate

FLIPS = 99_999
"""Random assignments of signs; where there are no more than that at all, each is taken once. No p is smaller than
1e-5 with random ones, so that a hundred comparisons adjusted by :func:`holm` can still come below .001."""
_ROUNDING = 1e-12
"""Of the sum of sizes: two sums of the same differences that lie nearer than that are equal but for rounding."""
_AT_ONCE = 2_000_000
"""Signs in memory at once; results do not depend on them."""


@dataclass(frozen=True)
class Difference:
    """``value`` = mine - theirs over the ``n`` images where both have a score, its interval ``low`` to ``high``, and
    the two-sided ``p`` of no difference. NaN where there is no image; the interval also where there is only one."""

    value: float
    low: float
    high: float
    p: float
    n: int


def paired(mine: Column, theirs: Column, *, seed: int = 0, summary: Aggregate = "mean") -> Difference:
    """Compare two methods image by image: scores (n,) each, None or not finite where there is none.

    With ``summary`` "mean" the value is the mean of the differences, which is the difference of the means; with
    "median" the median of the differences, what happens on the typical image, and not the difference of the medians,
    which may stand for two different images. The interval is the 95 % percentile bootstrap over images of
    :func:`fringe.experiments.estimate`. ``p`` is the sign-flip permutation test of the mean difference with either
    summary (see :func:`sign_flip_p`).

    Raises InputError for columns of different lengths.
    """
    ours, others = column("mine", mine), column("theirs", theirs)
    require(len(ours) == len(others), "theirs", f"{len(others)} scores", f"{len(ours)}, one for each of mine")
    both = np.isfinite(ours) & np.isfinite(others)
    differences = ours[both] - others[both]
    low, high = interval(differences, summary, seed)
    return Difference(middle(differences, summary), low, high, sign_flip_p(differences, seed), int(differences.size))


def sign_flip_p(differences: NDArray[np.float64], seed: int = 0) -> float:
    """The two-sided p of finite ``differences`` (n,): the share of sign assignments whose mean is at least as far from
    zero (Fisher 1935, section 21).

    All 2^n assignments where these are at most :data:`FLIPS`; else as many random ones and the observed one, so that p
    is never below 1 / (FLIPS + 1) (Phipson and Smyth 2010). Random signs follow from ``seed`` and n alone. NaN without
    differences. ``scipy.stats.permutation_test`` with ``permutation_type="samples"`` does the same, too slowly for a
    table of many comparisons; of random assignments it doubles the smaller tail, which is noisier.
    """
    n = differences.size
    if n == 0:
        return math.nan
    exact = 2**n <= FLIPS
    total = 2**n if exact else FLIPS
    rng = np.random.default_rng(seed)
    size, rows = np.abs(differences).sum(), max(1, _AT_ONCE // n)
    threshold = abs(differences.sum()) - _ROUNDING * size
    extreme = 0
    for start in range(0, total, rows):
        count = min(rows, total - start)
        kept = _all_bits(start, count, n) if exact else _random_bits(rng, count, n)
        # The signed sum is that of the kept differences less that of the flipped ones.
        sums = 2.0 * (kept @ differences) - differences.sum()
        extreme += int(np.count_nonzero(np.abs(sums) >= threshold))
    return extreme / total if exact else (extreme + 1) / (total + 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """``p_values`` adjusted for their number: below a level, the chance of one false alarm among all is below it too.

    Step-down: the k-th smallest of m times m - k + 1, never below a smaller one's, at most 1 (Holm 1979). NaN stays NaN
    and does not count. Raises InputError for what is no probability.
    """
    adjusted = np.array(p_values, dtype=np.float64)
    known = np.flatnonzero(~np.isnan(adjusted))
    require(bool(((adjusted[known] >= 0) & (adjusted[known] <= 1)).all()), "p_values", p_values, "numbers from 0 to 1")
    order = known[np.argsort(adjusted[known], kind="stable")]
    steps = adjusted[order] * np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return adjusted.tolist()


def mark(adjusted: float) -> str:
    """``***`` for an adjusted p below .001, ``**`` below .01, ``*`` below .05, nothing for others and NaN."""
    return "*" * sum(adjusted < level for level in (0.05, 0.01, 0.001))


def _all_bits(start: int, count: int, n: int) -> NDArray[np.float64]:
    """The binary digits (count, n) of ``start`` and the numbers after it."""
    numbers = np.arange(start, start + count)[:, None]
    return ((numbers >> np.arange(n)) & 1).astype(np.float64)


def _random_bits(rng: np.random.Generator, count: int, n: int) -> NDArray[np.float64]:
    """Fair bits (count, n); a row takes whole words of 64, so that it does not depend on how many are drawn at once."""
    words = rng.integers(0, 2**64, (count, -(-n // 64)), dtype=np.uint64)
    return np.unpackbits(words.view(np.uint8), axis=1, count=n).astype(np.float64)
