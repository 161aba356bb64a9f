"""How alike metrics rank methods."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fringe.evaluation._resampling import LEVEL, RESAMPLES
from fringe.metrics import Metric

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[np.float64]
#: Scores (n,) by metric and method, NaN where there is none.
Table = Mapping[tuple[str, str], Array]
#: Bootstrap draws are made in parts of so many numbers.
_AT_ONCE = 5_000_000


@dataclass(frozen=True)
class RankAgreement:
    """How alike metrics rank the methods: Kendall's tau-b of the mean or median scores, 1 for the same order.

    Attributes:
        metrics: Labels of M metrics with a direction.
        tau: Agreement (M, M); NaN where a metric gives all methods the same score.
        low: Lower ends of the 95 % bootstrap intervals over images.
        high: Upper ends.
        methods: The methods that are ranked, without controls.
    """

    metrics: tuple[str, ...]
    tau: tuple[tuple[float, ...], ...]
    low: tuple[tuple[float, ...], ...]
    high: tuple[tuple[float, ...], ...]
    methods: tuple[str, ...]

    def plot(self, title: str = "") -> "Figure":
        """Draw the matrix."""
        from fringe.plots import plot_agreement

        return plot_agreement(self.metrics, self.tau, self.low, self.high, title=title)


def rank_agreement(
    table: Table, metrics: Mapping[str, Metric], methods: Sequence[str], seed: int
) -> RankAgreement | None:
    """Compare the orders of methods by a table of scores, with percentiles over resampled images, the same ones for all
    metrics. None for fewer than three methods, or fewer than two metrics that rank all of them."""
    chosen = {label: metric for label, metric in metrics.items() if metric.direction != "none"}
    chosen = {k: m for k, m in chosen.items() if all(np.isfinite(table.get((k, name), ())).any() for name in methods)}
    if len(methods) < 3 or len(chosen) < 2:
        return None
    n = len(next(iter(table.values())))
    draws = np.random.default_rng(seed).integers(0, n, (RESAMPLES, n))
    observed = [_signs(_summaries(table, k, m, methods, np.arange(n)[None])) for k, m in chosen.items()]
    resampled = [_signs(_summaries(table, k, m, methods, draws)) for k, m in chosen.items()]
    tau = np.array([[_tau(a, b)[0] for b in observed] for a in observed])
    ends = [50 * (1 - LEVEL), 50 * (1 + LEVEL)]
    spread = np.array([[_percentiles(_tau(a, b), ends) for b in resampled] for a in resampled])
    low, high = (tuple(tuple(map(float, row)) for row in spread[..., end]) for end in range(2))
    return RankAgreement(tuple(chosen), tuple(tuple(map(float, row)) for row in tau), low, high, tuple(methods))


def _summaries(table: Table, label: str, metric: Metric, methods: Sequence[str], draws: NDArray[np.int64]) -> Array:
    """How good each method is in each resample (R, K): the mean or median of the scores that are known."""
    columns = np.array([table[label, name] for name in methods])
    sign = 1.0 if metric.direction == "higher" else -1.0
    middle = np.nanmean if metric.aggregate == "mean" else np.nanmedian
    rows = max(1, _AT_ONCE // columns.size)
    with np.errstate(invalid="ignore"):
        parts = [_quiet(middle, columns[:, draws[i : i + rows]]) for i in range(0, len(draws), rows)]
    return sign * np.concatenate(parts, axis=1).T


def _quiet(middle: Any, values: Array) -> Array:
    """The mean or median over the last axis, NaN without a warning where nothing is known."""
    known: NDArray[np.bool_] = np.asarray(np.isfinite(values).any(-1))
    result: Array = np.where(known, middle(np.where(known[..., None], values, 0.0), axis=-1), np.nan)
    return result


def _signs(values: Array) -> Array:
    """For each pair of methods which one is better (R, pairs): 1, -1, 0 for equal ones; NaN where one has no score."""
    first, second = np.triu_indices(values.shape[1], 1)
    differences = values[:, first] - values[:, second]
    rounding = 1e-12 * np.abs(values).max(1, keepdims=True)  # equal means may differ by the order of a sum
    return np.where(np.abs(differences) <= rounding, 0.0, np.sign(differences))


def _tau(a: Array, b: Array) -> Array:
    """Kendall's tau-b (R,) of two orders, each as signs (R, pairs)."""
    size = np.sqrt((a != 0).sum(1) * (b != 0).sum(1))
    unknown = np.isnan(a + b).any(1)
    total = np.where(np.isnan(a + b), 0.0, a * b).sum(1)
    return np.divide(total, size, out=np.full(len(a), np.nan), where=(size > 0) & ~unknown)


def _percentiles(values: Array, ends: Sequence[float]) -> Array:
    finite = values[np.isfinite(values)]
    return np.percentile(finite, ends) if finite.size else np.full(len(ends), np.nan)
