r"""How often a map is right, given what its method reports of it: a logistic model, judged on scenes it has not seen.

On images with a known truth it is known whether a map is right. The model

.. math:: P(\text{right}) = \sigma(w_0 + \textstyle\sum_j w_j z_j)

is fitted to standardised reports z of the method: its verdict, completeness residual, end-point KL, tracking error and
stability. It is used only if its probabilities hold on scenes that it was not fitted on (:attr:`Reliability.holds`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fringe.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Column = NDArray[np.float64]

#: Weight of the penalty on w: that of as many maps, half of them right. Without it, reports that separate right from
#: wrong maps without a mistake would have infinite weights.
PENALTY = 1.0
#: Draws of the bootstrap over clusters.
DRAWS = 2000
#: A bin of the diagram is in order if the mean prediction is at most this far outside of the interval of its frequency.
MARGIN = 0.05
#: Fewest scenes that must have been left out: with two, a model of one scene is tried on one other.
LEAST_SCENES = 3


@dataclass(frozen=True)
class ReliabilityModel:
    """Probability that a map is right, by J reports: their means ``centre``, their standard deviations ``scale``, the
    ``weights`` w_1 ... w_J and the ``bias`` w_0."""

    names: tuple[str, ...]
    centre: tuple[float, ...]
    scale: tuple[float, ...]
    weights: tuple[float, ...]
    bias: float

    def probability(self, reports: Mapping[str, Column]) -> Column:
        """Predict the probability (n,) that each map is right; NaN where a report is missing."""
        columns = np.stack([np.asarray(reports[name], dtype=float) for name in self.names], 1)
        z = (columns - np.array(self.centre)) / np.array(self.scale)
        return 1.0 / (1.0 + np.exp(-np.clip(z @ np.array(self.weights) + self.bias, -500, 500)))


def fit_reliability(reports: Mapping[str, Column], right: NDArray[np.bool_]) -> ReliabilityModel:
    """Fit the logistic model with the largest penalised likelihood by Newton's method, to reports (n,) by name and
    whether each map (n,) is right; maps with a NaN are left out. Raises InputError if there are no maps, or they are
    all right or all wrong."""
    columns = np.stack([np.asarray(column, dtype=float) for column in reports.values()], 1)
    known = np.isfinite(columns).all(1)
    columns, y = columns[known], np.asarray(right, dtype=float)[known]
    if not len(y) or y.min() == y.max():
        message = f"got {int(y.sum())} right maps of {len(y)}, expected right ones and wrong ones"
        raise InputError(message, argument="right")
    centre, scale = columns.mean(0), columns.std(0)
    scale = np.where(scale > 0, scale, 1.0)
    z = np.concatenate([np.ones((len(y), 1)), (columns - centre) / scale], 1)
    penalty = np.diag([0.0] + [PENALTY] * columns.shape[1])
    w = np.zeros(z.shape[1])
    for _ in range(100):  # the function is strictly convex in w_1 ... w_J; each step is halved until it descends
        p = 1.0 / (1.0 + np.exp(-z @ w))
        gradient = z.T @ (p - y) + penalty @ w
        step = np.linalg.solve((z * (p * (1 - p))[:, None]).T @ z + penalty + 1e-12 * np.eye(len(w)), gradient)
        while _loss(z, y, penalty, w - step) > _loss(z, y, penalty, w) and np.abs(step).max() > 1e-12:
            step = step / 2
        w = w - step
        if np.abs(step).max() < 1e-10:
            break
    names = tuple(reports)
    return ReliabilityModel(names, tuple(centre), tuple(scale), tuple(w[1:]), float(w[0]))


def _loss(z: Column, y: Column, penalty: Column, w: Column) -> float:
    score = z @ w
    return float(np.logaddexp(0.0, score).sum() - y @ score + 0.5 * w @ penalty @ w)


@dataclass(frozen=True)
class ReliabilityBin:
    """Maps of similar predicted probability.

    Attributes:
        predicted: Mean of the predicted probabilities.
        observed: Share of right maps.
        low, high: Interval of that share (95 %, clusters resampled).
        maps: Number of maps.
    """

    predicted: float
    observed: float
    low: float
    high: float
    maps: int

    @property
    def holds(self) -> bool:
        """Whether the prediction is in the interval, or next to it."""
        return self.low - MARGIN <= self.predicted <= self.high + MARGIN

    @property
    def point(self) -> tuple[float, float, float, float, int, bool]:
        """All of it, for a figure."""
        return self.predicted, self.observed, self.low, self.high, self.maps, self.holds


@dataclass(frozen=True)
class Reliability:
    """A reliability diagram: what was predicted for maps of scenes that the model was not fitted on.

    Attributes:
        bins: The diagram.
        scenes: The same by the scene that was left out: too high in one and too low in another is no calibration.
        skill: Brier score of the share of right maps in the other scenes, minus that of the model: above 0 if the
            reports tell something.
        skill_low, skill_high: Its interval (95 %, clusters resampled).
        maps: Number of maps.
    """

    bins: tuple[ReliabilityBin, ...]
    scenes: Mapping[str, ReliabilityBin]
    skill: float
    skill_low: float
    skill_high: float
    maps: int

    @property
    def holds(self) -> bool:
        """Whether the probabilities may be shown: every bin and every scene holds, and the skill is above 0."""
        return not self.faults

    @property
    def faults(self) -> tuple[str, ...]:
        """Why the probabilities may not be shown, in words."""
        scenes = [name for name, one in self.scenes.items() if not one.holds]
        bins = [f"{one.predicted:.2f}" for one in self.bins if not one.holds]
        words = {
            f"{len(self.scenes)} scenes were left out, at least {LEAST_SCENES} are needed": len(self.scenes)
            < LEAST_SCENES,
            f"it is wrong on {', '.join(scenes)}": bool(scenes),
            f"it is wrong where it predicts {', '.join(bins)}": bool(bins),
            "it predicts no better than the share of right maps in the other scenes": not self.skill_low > 0,
        }
        return tuple(text for text, is_fault in words.items() if is_fault)

    def plot(self, title: str = "") -> "Figure":
        """Draw the diagram."""
        from fringe.plots import plot_reliability

        scenes = [(name, one.point) for name, one in self.scenes.items()]
        return plot_reliability([one.point for one in self.bins], scenes, title=title)


def judge_reliability(
    reports: Mapping[str, Column],
    right: NDArray[np.bool_],
    scenes: Sequence[str],
    clusters: Sequence[str],
    networks: Sequence[str] | None = None,
    *,
    bins: int = 5,
    seed: int = 0,
) -> Reliability:
    """Predict the maps of each scene by a model of all other scenes, and compare with the truth.

    Each of n maps has reports by name, a scene, a cluster (unique over scenes: maps that share pixels) and a network:
    those of one scene are resampled, too; None is one for each scene. Maps of which a report is missing are left out.
    The ``bins`` have equally many maps each.

    Raises InputError if there are fewer than two scenes, no map has all reports, or without some scene the maps are all
    right or all wrong.
    """
    names, y = np.asarray(scenes), np.asarray(right, dtype=float)
    if len(set(scenes)) < 2:
        raise InputError(f"got {len(set(scenes))} scene, expected at least 2: one is left out", argument="scenes")
    predicted, base = np.full(len(y), np.nan), np.full(len(y), np.nan)
    for scene in dict.fromkeys(scenes):
        inside = names == scene
        model = fit_reliability({name: column[~inside] for name, column in reports.items()}, y[~inside] > 0)
        predicted[inside] = model.probability({name: column[inside] for name, column in reports.items()})
        base[inside] = y[~inside].mean()
    known = np.flatnonzero(np.isfinite(predicted))
    if not len(known):
        raise InputError("no map has all of them", argument="reports")
    predicted, base, y, names = predicted[known], base[known], y[known], names[known]
    drawn = resampled_weights(names, np.asarray(clusters)[known], np.asarray(networks or scenes)[known], seed)
    gain = (base - y) ** 2 - (predicted - y) ** 2

    def compare(part: NDArray[np.intp]) -> ReliabilityBin:
        ends = weighted_interval(y[part], drawn[:, part])
        return ReliabilityBin(float(predicted[part].mean()), float(y[part].mean()), *ends, len(part))

    parts = [part for part in np.array_split(np.argsort(predicted, kind="stable"), bins) if len(part)]
    of_scene = {scene: compare(np.flatnonzero(names == scene)) for scene in dict.fromkeys(names.tolist())}
    ends = weighted_interval(gain, drawn)
    return Reliability(tuple(map(compare, parts)), of_scene, float(gain.mean()), *ends, len(known))


def resampled_weights(
    scenes: NDArray[np.str_], clusters: NDArray[np.str_], networks: NDArray[np.str_], seed: int
) -> Column:
    """How often each map (n,) is in each draw (DRAWS, n): clusters are drawn with replacement, and so are the networks
    of each scene; a map counts as often as its cluster times its network."""
    rng = np.random.default_rng(seed)
    weights = _drawn(rng, clusters)
    for scene in np.unique(scenes):
        inside = np.flatnonzero(scenes == scene)
        weights[:, inside] *= _drawn(rng, networks[inside])
    return weights


def _drawn(rng: np.random.Generator, names: NDArray[np.str_]) -> Column:
    numbers = np.unique(names, return_inverse=True)[1]
    count = int(numbers.max()) + 1
    return rng.multinomial(count, np.full(count, 1 / count), size=DRAWS)[:, numbers].astype(float)


def weighted_interval(values: Column, weights: Column) -> tuple[float, float]:
    total = weights.sum(1)
    means = (weights @ values)[total > 0] / total[total > 0]
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)
