"""What a metric is worth: tried on maps that are made worse step by step, and against controls; and how alike metrics
rank methods."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fringe._numbers.rng import KeyedGenerator
from fringe._strings.progress import Report
from fringe._strings.tables import Cell, Table
from fringe.errors import InputError
from fringe.evaluation._comparison import Comparison, tidy
from fringe.evaluation._evaluator import DIFFUSION
from fringe.evaluation._statistics import LEVEL, Estimate, aggregate, estimate, finite_of, resampled
from fringe.metrics import Direction, Metric, PlainMaps, evaluate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[np.float64]
#: Scores (n,) by metric and method, NaN where there is none.
Columns = Mapping[tuple[str, str], Array]


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
    table: Columns, metrics: Mapping[str, Metric], methods: Sequence[str], seed: int
) -> RankAgreement | None:
    """Compare the orders of methods by a table of scores, with percentiles over resampled images, the same ones for all
    metrics. None for fewer than three methods, or fewer than two metrics that rank all of them."""
    chosen = {label: metric for label, metric in metrics.items() if metric.direction != "none"}
    chosen = {k: m for k, m in chosen.items() if all(np.isfinite(table.get((k, name), ())).any() for name in methods)}
    if len(methods) < 3 or len(chosen) < 2:
        return None
    orders = list[Array]()
    for label, metric in chosen.items():
        scores = np.stack([table[label, name] for name in methods], axis=1)
        whole = [aggregate(finite_of(column), metric.aggregate) for column in scores.T]
        drawn = resampled(scores, metric.aggregate, seed)
        orders.append(_signs(np.vstack([whole, drawn]) * (1 if metric.direction == "higher" else -1)))
    taus = np.array([[_tau(a, b) for b in orders] for a in orders])  # of all images, and of each resample
    ends, nothing = [50 * (1 - LEVEL), 50 * (1 + LEVEL)], np.full(2, np.nan)
    spread = np.array(
        [
            [np.percentile(known, ends) if (known := finite_of(drawn)).size else nothing for drawn in row]
            for row in taus[..., 1:]
        ]
    )
    tau, low, high = (tuple(map(tuple, part.tolist())) for part in (taus[..., 0], spread[..., 0], spread[..., 1]))
    return RankAgreement(tuple(chosen), tau, low, high, tuple(methods))


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


# -- what a metric is worth -------------------------------------------------------------------------------------------


Verdict = Literal["passes", "does not pass", "not judged"]

#: Shares of pixels that change places, from the map itself to no order at all.
SHARES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
#: The share whose distance to the map itself is the power.
_POWER = 2
#: What a metric has to reach: see :class:`MetricValidity`.
LEAST: Mapping[str, float] = {"validity": 0.5, "power": 0.5, "gap": 0.2}
#: Bound on an effect size: differences that are all equal have no standard deviation.
_LARGEST = 1000.0


@dataclass(frozen=True)
class MetricValidity:
    """How one metric did. A higher number is better, whatever the direction of the metric.

    Attributes:
        metric: Label of the metric.
        direction: Whether higher or lower scores are better.
        verdict: ``"passes"`` if every number that is known reaches :data:`LEAST`.
        reason: What it does not reach, or why it was not judged.
        n: Images on which degraded maps have all their scores.
        levels: Mean score of maps of which a share of 0, .2, .4, .6, .8 and 1 of the pixels changed places.
        validity: Mean over images of the Spearman correlation of how little is changed with how good the score is: 1 if
            the metric orders the degraded maps of every image, 0 if it does not see them.
        power: Mean over images of the difference between the shares 0 and .4, over its standard deviation, at most
            1000; the median over the methods.
        gap: Likewise of the difference between the best method and the best map that knows nothing of the model,
            which ``diffusion`` does not count among: it runs the network. This one has no median.
        best: That method.
        control: That map.
    """

    metric: str
    direction: Direction
    verdict: Verdict
    reason: str
    n: int
    levels: tuple[float, ...]
    validity: Estimate
    power: float
    gap: float
    best: str | None = None
    control: str | None = None


@dataclass(frozen=True, repr=False)
class Validity:
    """What is known of the metrics of a comparison on one model.

    Attributes:
        metrics: One result for each metric, in their order.
        agreement: How alike they rank the methods; None for fewer than three methods or two metrics.
    """

    metrics: tuple[MetricValidity, ...]
    agreement: RankAgreement | None

    def record(self) -> dict[str, Any]:
        """Return all of it as plain data, with the thresholds."""
        agreement = None if self.agreement is None else asdict(self.agreement)
        return {"least": dict(LEAST), "metrics": [asdict(one) for one in self.metrics], "agreement": agreement}

    def __repr__(self) -> str:
        return str(validity_table(self.record()["metrics"]))


def validity_table(metrics: Sequence[Mapping[str, Any]], title: str = "") -> Table:
    """Make a table of how each metric did, from the records of :class:`MetricValidity`."""
    rows = [
        (
            *(one["metric"], Cell(one["validity"]["mean"], 2, ends=(one["validity"]["low"], one["validity"]["high"]))),
            *(Cell(one["power"], 2), Cell(one["gap"], 2), one["n"]),
            Cell(
                one["verdict"] + (f": {one['reason']}" if one["reason"] else ""),
                style="bad" if one["verdict"] == "does not pass" else "",
            ),
        )
        for one in metrics
    ]
    notes = (
        "validity: rank correlation of how little of a map is shuffled with how good its score is, from −1 to 1; power "
        "and gap: effect sizes, of shuffling 40% of the pixels and of the best method over the best control",
    )
    return Table(("metric", "validity", "power", "gap", "images", "verdict"), rows, title, notes=notes)


def validate_metrics(comparison: Comparison, seed: int = 0) -> Validity:
    """Judge the metrics of a comparison: no new maps are made.

    Each map is degraded: a share of its pixels change places with each other, all channels together, and the same
    pixels for every method. A metric that reads maps should give worse and worse scores. Metrics that need further maps
    of a method are judged by their control gap alone.

    Args:
        comparison: The result of :func:`compare` with ``keep_maps=True`` and controls.
        seed: Keys the resamples.

    Returns:
        The verdicts, and how similarly the metrics rank the methods.

    Raises:
        InputError: If the comparison holds no maps.
    """
    comparison = replace(comparison, images=tuple(map(str, range(len(comparison)))))  # two may have one name
    return judge_metrics(tidy(comparison), degraded_scores(comparison), comparison.metrics, seed)


def degrade(values: Tensor, share: float, rng: KeyedGenerator, keys: Sequence[str]) -> Tensor:
    """Let a share of the pixels of each map (B, C, *spatial) or (B, n) change places, by random numbers of the ``keys``
    (B) of the images. The pixels of a smaller share are among those of a larger one."""
    flat = values.flatten(2) if values.dim() > 2 else values[:, None]
    result = flat.clone()
    count = flat.shape[2]
    for image, key in enumerate(keys):
        chosen = torch.tensor(rng.permutation(f"degraded pixels {key}", count), dtype=torch.int64)
        chosen = chosen[: round(share * count)]
        order = torch.tensor(rng.permutation(f"degraded places {key} {share:g}", len(chosen)), dtype=torch.int64)
        moved = chosen[order]
        result[image, :, chosen.to(flat.device)] = flat[image][:, moved.to(flat.device)]
    return result.view_as(values)


def degraded_passes(metrics: Iterable[Metric]) -> float:
    """Return the passes of the network that scores of one map take when it is degraded, with all shares."""
    return (len(SHARES) - 1) * sum(metric.planned_passes for metric in metrics if _reads_maps(metric))


def degraded_scores(comparison: Comparison, report: Report | None = None) -> list[dict[str, Any]]:
    """Score degraded maps of the methods of a comparison: one plain dict a method, metric, image and ``share``.

    Args:
        comparison: With its maps.
        report: Called with the numbers of degraded maps done and planned, and the name of those in work.

    Raises:
        InputError: For a comparison without maps.
    """
    context = comparison.evaluation
    if context is None:
        hint = "compare with keep_maps=True"
        raise InputError("the maps of the comparison were not stored", argument="comparison", hint=hint)
    metrics = {label: metric for label, metric in comparison.metrics.items() if _reads_maps(metric)}
    rows: list[dict[str, Any]] = []
    made, planned = 0, (len(SHARES) - 1) * len(comparison) * sum(not row.control for row in comparison.rows)
    for result in comparison.rows:
        valid = [i for i, fault in enumerate(result.faults) if not fault]
        if result.control or result.maps is None or not valid or not metrics:
            continue
        part = context if len(valid) == len(result.faults) else context.select(valid)
        maps, problem = result.maps[valid].to(part.problem.inputs.device), part.problem
        diagnostics = {} if result.attribution is None else result.attribution.diagnostics
        columns = {name: column[valid] for name, column in diagnostics.items()}
        for share in SHARES[1:]:
            if report is not None:
                report(made, planned, f"{result.label} with {share:.0%} of its pixels moved")
            made += len(valid)
            worse = PlainMaps(degrade(maps, share, problem.rng, problem.keys), columns)
            asked = {label: one for label, one in metrics.items() if not any(result.scores[label].refusals)}
            for label, scores in evaluate(part, worse, asked).items():
                names = {"method": result.label, "metric": label, "share": share}
                values = scores.values.tolist()
                rows += [
                    {**names, "image": comparison.images[i], "score": value if math.isfinite(value) else None}
                    for i, value in zip(valid, values, strict=True)
                ]
    return rows


def judge_metrics(
    scores: Sequence[Mapping[str, Any]],
    degraded: Sequence[Mapping[str, Any]],
    metrics: Mapping[str, Metric],
    seed: int = 0,
) -> Validity:
    """Judge metrics by the tidy rows of a comparison and those of :func:`degraded_scores`."""
    images = {name: i for i, name in enumerate(dict.fromkeys(row["image"] for row in scores))}
    methods = list(dict.fromkeys(row["method"] for row in scores if not row["control"]))
    controls = list(dict.fromkeys(row["method"] for row in scores if row["control"]))
    controls = [name for name in controls if name != DIFFUSION and ":" not in name]  # blind ones
    table = _table(scores, images)
    levels = [table, *(_table([row for row in degraded if row["share"] == share], images) for share in SHARES[1:])]
    results = [
        _judge(label, metric, levels, (methods, controls), len(images), seed) for label, metric in metrics.items()
    ]
    return Validity(tuple(results), rank_agreement(table, metrics, methods, seed))


def _table(rows: Sequence[Mapping[str, Any]], images: Mapping[str, int]) -> dict[tuple[str, str], Array]:
    """Scores (n,) by metric and method, NaN where there is none."""
    table: dict[tuple[str, str], Array] = {}
    for row in rows:
        column = table.setdefault((row["metric"], row["method"]), np.full(len(images), np.nan))
        column[images[row["image"]]] = np.nan if row["score"] is None else row["score"]
    return table


def _reads_maps(metric: Metric) -> bool:
    return metric.direction != "none" and not metric.requires_explainer


def _judge(
    label: str,
    metric: Metric,
    levels: Sequence[Columns],
    labels: tuple[list[str], list[str]],
    images: int,
    seed: int,
) -> MetricValidity:
    (methods, controls), table = labels, levels[0]
    sign = {"higher": 1.0, "lower": -1.0, "none": math.nan}[metric.direction]
    absent = np.full(images, np.nan)
    stacked = np.array([[level.get((label, m), absent) for level in levels] for m in methods])  # (methods, shares, n)
    known: NDArray[np.bool_] = np.asarray(np.isfinite(stacked).all(1))
    stacked = np.where(known[:, None], stacked, np.nan)
    means = tuple(aggregate(finite_of(stacked[:, level]), "mean") for level in range(len(SHARES)))
    orders = np.full(known.shape, np.nan)
    orders[known] = _order(sign * stacked.transpose(0, 2, 1)[known])
    per_image, n = np.nanmean(orders[:, known.any(0)], axis=0), int(known.any(0).sum())  # over methods
    # a mean over methods before this would have less noise, and so more power, the more methods there are
    effects = finite_of(np.array([_effect(row) for row in sign * (stacked[:, 0] - stacked[:, _POWER])]))
    power = float(np.median(effects)) if effects.size else math.nan
    best = _best(label, metric, table, methods)
    control = _best(label, metric, table, controls)
    gap = math.nan if best is None or control is None else _effect(sign * (table[label, best] - table[label, control]))
    moved = not np.allclose(stacked[:, :1], stacked, rtol=1e-9, atol=0.0, equal_nan=True)
    validity = estimate(per_image if moved else [], seed)
    power = power if moved else math.nan
    verdict, reason = _verdict(metric, moved, n, {"validity": validity.mean, "power": power, "gap": gap})
    return MetricValidity(label, metric.direction, verdict, reason, n, means, validity, power, gap, best, control)


def _verdict(metric: Metric, moved: bool, n: int, numbers: Mapping[str, float]) -> tuple[Verdict, str]:
    if metric.direction == "none":
        return "not judged", "neither end is better"
    if _reads_maps(metric) and n and not moved:
        return "not judged", "it does not depend on the order of the pixels"
    if _reads_maps(metric) and n < 2:
        return "not judged", "fewer than two images have all scores"
    known = {name: value for name, value in numbers.items() if math.isfinite(value)}
    if not known:
        return "not judged", "there is nothing to compare with"
    low = [
        f"{name} {value:{'.2f' if round(value, 2) < least else '.6g'}} is below {least:g}"
        for name, value in known.items()
        if value < (least := LEAST[name])
    ]
    if low:
        return "does not pass", ", ".join(low)
    return "passes", "" if _reads_maps(metric) else "by its control gap alone"


def _order(goodness: Array) -> Array:
    """Spearman's correlation (N,) of each row of ``goodness`` (N, shares) with how little is changed; 0 for equal
    scores."""
    from scipy.stats import rankdata

    ranks = rankdata(goodness, axis=1)
    ranks -= ranks.mean(1, keepdims=True)
    order = np.arange(len(SHARES), 0, -1, dtype=np.float64) - (len(SHARES) + 1) / 2
    size = np.linalg.norm(ranks, axis=1) * np.linalg.norm(order)
    return np.divide(ranks @ order, size, out=np.zeros(len(ranks)), where=size > 0)


def _effect(differences: Array) -> float:
    """Mean over standard deviation of the finite ``differences`` (n,); NaN of fewer than two."""
    finite = finite_of(differences)
    if finite.size < 2:
        return math.nan
    mean, deviation = float(finite.mean()), float(finite.std(ddof=1))
    if deviation <= 1e-12 * abs(mean):
        return 0.0 if mean == 0 else math.copysign(_LARGEST, mean)
    return max(-_LARGEST, min(_LARGEST, mean / deviation))


def _best(label: str, metric: Metric, table: Columns, names: Sequence[str]) -> str | None:
    """The name with the best mean or median score."""
    if metric.direction == "none":
        return None
    columns = {name: finite_of(table[label, name]) for name in names if (label, name) in table}
    known = {name: aggregate(column, metric.aggregate) for name, column in columns.items() if column.size}
    choose = max if metric.direction == "higher" else min
    return choose(known, key=lambda name: known[name]) if known else None
