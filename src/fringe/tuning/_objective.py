"""What a search maximises: the paper's objective (its appendix "Hyperparameter Selection Protocol")."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from fringe._checks import require, require_not_negative, require_positive
from fringe.errors import InputError

Array = NDArray[np.float64]

SCORES = ("insertion", "deletion", "infidelity")
"""The metrics that the objective is made of."""


@dataclass(frozen=True)
class Weights:
    """How much each part of the objective counts; the defaults are the paper's."""

    insertion: float = 1.0
    deletion: float = 1.0
    fidelity: float = 0.5

    def __post_init__(self) -> None:
        for field in fields(self):
            require_not_negative(field.name, getattr(self, field.name))
        require(any((self.insertion, self.deletion, self.fidelity)), "weights", self, "one above zero")


PAPER = Weights()


def objective(
    insertion: Sequence[float],
    deletion: Sequence[float],
    infidelity: Sequence[float],
    *,
    weights: Weights = PAPER,
    k: float = 2.0,
    epsilon: float = 1e-6,
) -> float:
    """The weighted harmonic mean of Ins, 1 - Del and Fid = exp(-k Inf), each of the mean over N images; higher is
    better. Blur-based insertion and deletion areas and infidelities come in, (N,) each, of the same images.

    NaN where a score is not finite. A part below zero counts as zero: the formula has poles there. Raises InputError on
    unequal numbers of images, none, or a negative mean infidelity.
    """
    require_positive("k", k)
    require_positive("epsilon", epsilon)
    scores = per_image({"insertion": insertion, "deletion": deletion, "infidelity": infidelity})
    if not np.isfinite(scores).all():
        return float("nan")
    return float(of_means(scores.mean(1), weights, k, epsilon))


def per_image(scores: "dict[str, Sequence[float]]") -> Array:
    """(M, N) of M metrics and N images, where every metric has the same images."""
    rows = {name: np.asarray(values, dtype=np.float64) for name, values in scores.items()}
    shapes = {name: row.shape for name, row in rows.items()}
    if any(len(shape) != 1 for shape in shapes.values()) or len(set(shapes.values())) != 1 or (0,) in shapes.values():
        found = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise InputError(f"scores: expected one number an image of the same images, got {found}")
    return np.stack(list(rows.values()))


def of_means(means: Array, weights: Weights = PAPER, k: float = 2.0, epsilon: float = 1e-6) -> Array:
    """The objective (...) of mean insertion, deletion and infidelity (3, ...)."""
    if bool((means[2] < 0).any()):
        raise InputError(f"infidelity: got a mean of {means[2].min():.6g}, expected none below zero")
    parts = (means[0], 1.0 - means[1], np.exp(-k * means[2]))
    shares = (weights.insertion, weights.deletion, weights.fidelity)
    total = sum(share / (np.maximum(part, 0.0) + epsilon) for share, part in zip(shares, parts, strict=True))
    return np.asarray(sum(shares) / total)
