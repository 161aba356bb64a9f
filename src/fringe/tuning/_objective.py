"""The objective of a search, from the paper's appendix "Hyperparameter Selection Protocol"."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from fringe.errors import InputError, require, require_positive

Array = NDArray[np.float64]

#: The metrics of the objective.
SCORES = ("insertion", "deletion", "infidelity")


@dataclass(frozen=True)
class Weights:
    """Weights of the parts of the objective; the defaults are the paper's.

    Attributes:
        insertion: Weight of Ins.
        deletion: Weight of 1 - Del.
        fidelity: Weight of Fid.

    Raises:
        InputError: If a weight is negative or not finite, or all are zero.
    """

    insertion: float = 1.0
    deletion: float = 1.0
    fidelity: float = 0.5

    def __post_init__(self) -> None:
        for field in fields(self):
            weight: object = getattr(self, field.name)
            require(
                isinstance(weight, (int, float)) and 0 <= weight < math.inf,
                field.name,
                weight,
                "a number not below zero",
            )
        require(any((self.insertion, self.deletion, self.fidelity)), "weights", self, "one above zero")


PAPER_WEIGHTS = Weights()


def objective(
    insertion: Sequence[float],
    deletion: Sequence[float],
    infidelity: Sequence[float],
    *,
    weights: Weights = PAPER_WEIGHTS,
    k: float = 2.0,
    epsilon: float = 1e-6,
) -> float:
    """Compute the weighted harmonic mean of Ins, 1 - Del and Fid = exp(-k Inf), from the means over N images.

    Higher is better. A part below zero counts as zero, because the formula has poles there.

    Args:
        insertion: Area under the insertion curve of each image (N,), with blurred pixels.
        deletion: Area under the deletion curve of the same images (N,).
        infidelity: Infidelity of the same images (N,).
        weights: Weights of the parts.
        k: Rate at which Fid falls with the infidelity.
        epsilon: Added to each part before the division.

    Returns:
        The objective; NaN if a score is not finite.

    Raises:
        InputError: If the metrics have not one score for each of the same images, or the mean infidelity is negative.
    """
    require_positive("k", k)
    require_positive("epsilon", epsilon)
    scores = score_matrix({"insertion": insertion, "deletion": deletion, "infidelity": infidelity})
    if not np.isfinite(scores).all():
        return float("nan")
    return float(objective_of_means(scores.mean(1), weights, k, epsilon))


def score_matrix(scores: "dict[str, Sequence[float]]") -> Array:
    """Stack the scores of M metrics, (N,) each of the same N images, to (M, N)."""
    rows = {name: np.asarray(values, dtype=np.float64) for name, values in scores.items()}
    shapes = {name: row.shape for name, row in rows.items()}
    if any(len(shape) != 1 for shape in shapes.values()) or len(set(shapes.values())) != 1 or (0,) in shapes.values():
        shapes_text = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise InputError(f"expected one number per image of the same images, got {shapes_text}", argument="scores")
    return np.stack(list(rows.values()))


def objective_of_means(means: Array, weights: Weights = PAPER_WEIGHTS, k: float = 2.0, epsilon: float = 1e-6) -> Array:
    """Compute the objective (...) of mean insertion, deletion and infidelity (3, ...)."""
    if bool((means[2] < 0).any()):
        raise InputError(f"got a mean of {means[2].min():.6g}, expected none below zero", argument="infidelity")
    parts = (means[0], 1.0 - means[1], np.exp(-k * means[2]))
    shares = (weights.insertion, weights.deletion, weights.fidelity)
    total = sum(share / (np.maximum(part, 0.0) + epsilon) for share, part in zip(shares, parts, strict=True))
    return np.asarray(sum(shares) / total)
