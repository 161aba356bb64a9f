"""A mean or a median over images, and how far other images of the same kind would have moved it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from fringe._checks import require, require_choice
from fringe.metrics import Aggregate

Column = Sequence[float | None] | NDArray[np.float64]
"""A score an image, None or NaN where there is none."""

LEVEL = 0.95
RESAMPLES = 1000
_AT_ONCE = 10_000_000
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
        batch=max(1, _AT_ONCE // kept.size),
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
