"""Which images to show: where one method is furthest ahead of the others, the usual ones, and its failures."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fringe.errors import InputError, require_integer, require_positive
from fringe.metrics import Direction

#: The metrics that an example of strength has to win.
MAS = ("mas_insertion", "mas_deletion")
WEIGHTS: Mapping[str, float] = {"mas_insertion": 2.0, "mas_deletion": 2.0, "insertion": 1.0, "deletion": 1.0}

#: ``scores[metric][method]`` (n,): a score an image, not finite where there is none.
Scores = Mapping[str, Mapping[str, NDArray[np.float64]]]


@dataclass(frozen=True)
class Dominance:
    """How far the reference method is ahead on n images.

    Attributes:
        score: Mean improvement (n,) in units of the metrics, NaN where it or all other methods have no score.
        eligible: Whether the image is an example of strength (n,).
    """

    score: NDArray[np.float64]
    eligible: NDArray[np.bool_]


@dataclass(frozen=True)
class Examples:
    """Places of images among the n; none is picked twice."""

    strong: tuple[int, ...]
    typical: tuple[int, ...]
    failures: tuple[int, ...]


def dominance(
    scores: Scores, reference: str, directions: Mapping[str, Direction], weights: Mapping[str, float] = WEIGHTS
) -> Dominance:
    """How far ``reference`` is ahead on each image, over the metrics that have ``weights``, the MAS metrics among them.

    .. math:: D = \\frac{\\sum_m w_m \\overline{\\Delta}_m}{\\sum_m w_m}

    where ``Delta_m`` is the improvement over another method under metric m, positive where the reference method is
    better, and the bar its mean over the other methods; one without a score on an image is left out of that image's
    mean. Eligible are images where the reference method beats more than half of the others on both MAS metrics; a
    method without a score is not beaten.

    The paper (appendix Additional Qualitative Results) ranks images by its four metrics, MAS with greater weight, and
    keeps those where FRInGe "outperforms most competing methods" on both MAS metrics. It prints no formula; this is
    ours. Raises InputError for what is missing among the arguments, and for columns of different lengths.
    """
    _check(scores, reference, directions, weights)
    gaps = {metric: _improvements(scores[metric], reference, directions[metric]) for metric in weights}
    weighted = [weight * _mean_of_known(gaps[metric]) for metric, weight in weights.items()]
    score = np.sum(weighted, axis=0) / sum(weights.values())
    wins = [(gaps[metric] > 0).sum(0) > len(gaps[metric]) / 2 for metric in MAS]
    return Dominance(score, np.isfinite(score) & wins[0] & wins[1])


def pick(dominance: Dominance, strong: int = 3, typical: int = 3, failures: int = 3) -> Examples:
    """Of each kind at most as many images as asked for: ``strong`` the highest scores among the eligible; ``failures``
    the lowest of all that are left; ``typical`` the nearest to the median score of what is left then. The first of
    equals goes first, and images without a score are never picked."""
    for name, count in (("strong", strong), ("typical", typical), ("failures", failures)):
        require_integer(name, count, least=0)
    score = dominance.score
    left = [int(i) for i in np.flatnonzero(np.isfinite(score))]
    middle = float(np.median(score[left])) if left else 0.0

    best = sorted((i for i in left if dominance.eligible[i]), key=lambda i: -score[i])[:strong]
    left = [i for i in left if i not in best]
    worst = sorted(left, key=lambda i: score[i])[:failures]
    left = [i for i in left if i not in worst]
    usual = sorted(left, key=lambda i: abs(score[i] - middle))[:typical]
    return Examples(tuple(best), tuple(usual), tuple(worst))


def _improvements(
    columns: Mapping[str, NDArray[np.float64]], reference: str, direction: Direction
) -> NDArray[np.float64]:
    """By how much the reference method is better than each rival, (rivals, n); NaN where either has no score."""
    sign = 1.0 if direction == "higher" else -1.0
    known = {label: np.where(np.isfinite(column), column, np.nan) for label, column in columns.items()}
    reference_scores = known.pop(reference)
    return np.array([sign * (reference_scores - other) for other in known.values()])


def _mean_of_known(gaps: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean (n,) over the rivals whose gap is known, NaN where none is."""
    known = np.isfinite(gaps)
    count = known.sum(0)
    return np.where(count > 0, np.where(known, gaps, 0.0).sum(0) / np.maximum(count, 1), np.nan)


def _check(scores: Scores, reference: str, directions: Mapping[str, Direction], weights: Mapping[str, float]) -> None:
    for metric in MAS:
        if metric not in weights:
            raise InputError(f"weights: {metric} is missing; images are chosen by both MAS metrics")
    for metric, weight in weights.items():
        require_positive(f"weights[{metric!r}]", weight)
        if metric not in scores:
            raise InputError(f"scores: {metric} is missing, which has a weight; there are {', '.join(scores)}")
        if directions.get(metric, "none") == "none":
            raise InputError(f"directions: {metric} needs 'higher' or 'lower', got {directions.get(metric)!r}")
        if reference not in scores[metric]:
            raise InputError(f"reference: got {reference!r}, which has no {metric}; known: {', '.join(scores[metric])}")
        if len(scores[metric]) < 2:
            raise InputError(f"scores: only {reference} has {metric}; it needs another method")
    shapes = sorted({column.shape for metric in weights for column in scores[metric].values()})
    if len(shapes) > 1 or len(shapes[0]) != 1:
        raise InputError(f"scores: got columns of shapes {', '.join(map(str, shapes))}, expected one number an image")
