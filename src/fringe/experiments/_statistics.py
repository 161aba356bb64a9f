"""A mean or a median over images, and how far other images of the same kind would have moved it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from fringe._checks import require, require_choice
from fringe.metrics import Aggregate, Direction

Column = Sequence[float | None] | NDArray[np.float64]
"""A score an image, None or NaN where there is none."""

LEVEL = 0.95
RESAMPLES = 1000
_RESAMPLED_AT_ONCE = 10_000_000
"""Numbers that are resampled in one go; memory grows with them, results do not depend on them."""


@dataclass(frozen=True)
class Estimate:
    """Of ``n`` scores the ``mean``, the ``median``, ``half_iqr`` = (Q3 - Q1) / 2, and the interval ``low`` to ``high``
    of what ``summary`` names. NaN where there is no score; spread and interval also where there is only one."""

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


def estimate(scores: Column, seed: int = 0, summary: Aggregate = "mean") -> Estimate:
    """The finite ``scores`` with a 95 % percentile bootstrap interval of their ``summary`` (Efron 1979; 1000
    resamples). Equal scores have an interval of no width.

    The resamples follow from ``seed`` and the number of finite scores alone, so that methods with as many scores are
    resampled alike, and their intervals move together. Raises InputError for another ``summary``.
    """
    kept = column("scores", scores)
    kept = kept[np.isfinite(kept)]
    low, high = interval(kept, summary, seed)
    return Estimate(
        mean=middle(kept, "mean"),
        median=middle(kept, "median"),
        low=low,
        high=high,
        n=int(kept.size),
        half_iqr=_half_iqr(kept),
        summary=summary,
    )


def column(name: str, scores: Column) -> NDArray[np.float64]:
    """``scores`` (n,) as numbers, NaN for None. Raises InputError, naming the argument, for another shape."""
    values = np.asarray(scores, dtype=np.float64)
    require(values.ndim == 1, name, values.shape, "one number an image")
    return values


def middle(kept: NDArray[np.float64], summary: Aggregate) -> float:
    """The mean or the median of finite numbers, NaN of none; of equal ones the number itself, which their rounded mean
    may miss."""
    if kept.size == 0:
        return math.nan
    if kept.min() == kept.max():
        return float(kept[0])
    return float(np.mean(kept) if summary == "mean" else np.median(kept))


def interval(kept: NDArray[np.float64], summary: Aggregate, seed: int) -> tuple[float, float]:
    """The percentile bootstrap interval of the ``summary`` of finite numbers, NaN of fewer than two."""
    require_choice("summary", summary, get_args(Aggregate))
    if kept.size < 2:
        return math.nan, math.nan
    if kept.min() == kept.max():
        return float(kept[0]), float(kept[0])
    from scipy.stats import bootstrap  # takes a second or more to load, and a comparison without it is none

    found = bootstrap(
        (kept,),
        np.mean if summary == "mean" else np.median,
        n_resamples=RESAMPLES,
        batch=max(1, _RESAMPLED_AT_ONCE // kept.size),
        confidence_level=LEVEL,
        method="percentile",
        rng=np.random.default_rng(seed),
    )
    return float(found.confidence_interval.low), float(found.confidence_interval.high)


def _half_iqr(kept: NDArray[np.float64]) -> float:
    """Quartiles lie linearly between the sorted scores (the paper does not say how)."""
    if kept.size < 2:
        return math.nan
    first, third = np.quantile(kept, [0.25, 0.75])
    return float(third - first) / 2


FLIPS = 99_999
"""Random assignments of signs; where there are no more than that at all, each is taken once. No p is smaller than
1e-5 with random ones, so that a hundred comparisons adjusted by :func:`holm` can still come below .001."""
_ROUNDING = 1e-12
"""Of the sum of sizes: two sums of the same differences that lie nearer than that are equal but for rounding."""
_SIGNS_AT_ONCE = 2_000_000
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
    size, rows = np.abs(differences).sum(), max(1, _SIGNS_AT_ONCE // n)
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


def near_ties(estimates: Mapping[str, Estimate], direction: Direction) -> tuple[str | None, set[str]]:
    """The label of the best estimate, and the others whose interval overlaps its own.

    A description, not a test: intervals of two methods may overlap where their paired difference is sure (see
    :func:`paired`). The interval of a mean is the bootstrap's; of a median it is median +-
    half-IQR, as in the paper's table of max sensitivity (appendices Additional Quantitative Results and Robustness
    under small input perturbations). The first of equals is the best. None and nobody where no way is better or nobody
    has a score; an estimate without an interval ties with nobody. Raises InputError for means among medians.
    """
    kinds = sorted({found.summary for found in estimates.values()})
    require(len(kinds) < 2, "estimates", " and ".join(kinds), "one summary for all")
    known = {label: found for label, found in estimates.items() if math.isfinite(found.value)}
    if direction == "none" or not known:
        return None, set()
    choose = max if direction == "higher" else min
    best = choose(known, key=lambda label: known[label].value)
    low, high = _span(known[best])
    spans = {label: _span(found) for label, found in known.items() if label != best}
    return best, {label for label, span in spans.items() if span[0] <= high and span[1] >= low}


def _span(found: Estimate) -> tuple[float, float]:
    if found.summary == "median":
        return found.median - found.half_iqr, found.median + found.half_iqr
    return found.low, found.high
