"""A mean over images, and how far other images of the same kind would have moved it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEVEL = 0.95
RESAMPLES = 1000


@dataclass(frozen=True)
class Estimate:
    """``mean`` and ``median`` of ``n`` scores, and the interval ``low`` to ``high`` of the mean. NaN where there is no
    score, or no interval because there are fewer than two."""

    mean: float
    median: float
    low: float
    high: float
    n: int


def estimate(scores: Sequence[float | None], seed: int = 0) -> Estimate:
    """The finite ``scores`` with a 95 % percentile bootstrap interval of their mean (Efron 1979; 1000 resamples).

    The resamples follow from ``seed`` and the number of finite scores alone, so that methods with as many scores are
    resampled alike, and their intervals move together.
    """
    kept = np.array([s for s in scores if s is not None and math.isfinite(s)], dtype=np.float64)
    if kept.size == 0:
        return Estimate(math.nan, math.nan, math.nan, math.nan, 0)
    low, high = _interval(kept, seed) if kept.size > 1 else (math.nan, math.nan)
    return Estimate(float(kept.mean()), float(np.median(kept)), low, high, int(kept.size))


def _interval(kept: "np.ndarray[tuple[int], np.dtype[np.float64]]", seed: int) -> tuple[float, float]:
    from scipy.stats import bootstrap  # takes a second or more to load, and a comparison without it is none

    found = bootstrap(
        (kept,),
        np.mean,
        n_resamples=RESAMPLES,
        confidence_level=LEVEL,
        method="percentile",
        rng=np.random.default_rng(seed),
    )
    return float(found.confidence_interval.low), float(found.confidence_interval.high)
