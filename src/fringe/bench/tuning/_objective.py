"""The objective of a search, from the paper's appendix "Hyperparameter Selection Protocol"."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fringe.errors import InputError

Array = NDArray[np.float64]

#: The metrics of the objective.
SCORES = ("insertion", "deletion", "infidelity")


#: Weights of Ins, 1 - Del and Fid.
WEIGHTS = {"insertion": 1.0, "deletion": 1.0, "fidelity": 0.5}
#: k, the rate at which Fid falls with the infidelity; and what is added to each part before the division.
RATE, EPSILON = 2.0, 1e-6


def objective(insertion: Sequence[float], deletion: Sequence[float], infidelity: Sequence[float]) -> float:
    """Compute the weighted harmonic mean of Ins, 1 - Del and Fid = exp(-k Inf), from the means over N images, (N,)
    scores each; the insertion and deletion are those with blurred pixels. NaN if a score is not finite.

    Higher is better. A part below zero counts as zero, because the formula has poles there. Raises InputError if the
    metrics have not one score for each of the same images, or the mean infidelity is negative.
    """
    scores = score_matrix({"insertion": insertion, "deletion": deletion, "infidelity": infidelity})
    if not np.isfinite(scores).all():
        return float("nan")
    return float(objective_of_means(scores.mean(1)))


def score_matrix(scores: "dict[str, Sequence[float]]") -> Array:
    """Stack the scores of M metrics, (N,) each of the same N images, to (M, N)."""
    rows = {name: np.asarray(values, dtype=np.float64) for name, values in scores.items()}
    shapes = {name: row.shape for name, row in rows.items()}
    if any(len(shape) != 1 for shape in shapes.values()) or len(set(shapes.values())) != 1 or (0,) in shapes.values():
        shapes_text = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise InputError(f"expected one number per image of the same images, got {shapes_text}", argument="scores")
    return np.stack(list(rows.values()))


def objective_of_means(means: Array) -> Array:
    """Compute the objective (...) of mean insertion, deletion and infidelity (3, ...)."""
    if bool((means[2] < 0).any()):
        raise InputError(f"got a mean of {means[2].min():.6g}, expected none below zero", argument="infidelity")
    parts, weights = (means[0], 1.0 - means[1], np.exp(-RATE * means[2])), WEIGHTS.values()
    total = sum(weight / (np.maximum(part, 0.0) + EPSILON) for weight, part in zip(weights, parts, strict=True))
    return np.asarray(sum(weights) / total)
