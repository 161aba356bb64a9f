"""Rows of paths: points, and the geodesics of predictions, with what is measured along a path."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, cast

import torch
from torch import Tensor

from fringe.geometry import dist, entropy, geodesic, kl, log_probabilities, sqrt_chart

#: The end of a path at which its first segment lies.
Orientation = Literal["input", "baseline"]

#: What :meth:`Geodesic.measured` measures at a point, in the order of its columns.
AT_POINTS = ("entropy", "reference_kl", "waypoint_kl", "tracking_error", "reference_distance")


class Rows:
    """Base class of dataclasses of tensors, of other such dataclasses, and of None, with a row for each of L paths."""

    def __len__(self) -> int:
        return len(next(iter(vars(self).values())))

    def __getitem__(self, rows: Tensor | slice) -> Self:
        columns = {name: None if value is None else value[rows] for name, value in vars(self).items()}
        return replace(cast(Any, self), **columns)

    @classmethod
    def concat(cls, parts: Sequence[Self]) -> Self:
        """Join rows, one part after the other."""

        def joined(column: tuple[Any, ...]) -> Any:
            if column[0] is None:
                return None
            return column[0].concat(column) if isinstance(column[0], Rows) else torch.cat(column)

        names, columns = vars(parts[0]), zip(*(vars(part).values() for part in parts), strict=True)
        return replace(cast(Any, parts[0]), **dict(zip(names, map(joined, columns), strict=True)))


@dataclass(frozen=True)
class Point(Rows):
    """One point on each of L paths.

    Attributes:
        x: The points (L, *S).
        score: The explained score (L,), or (L, K) of K classes.
        gradient: Gradient of the score (L, *S), or (L, K, *S).
    """

    x: Tensor
    score: Tensor
    gradient: Tensor

    def of_classes(self) -> Sequence["Point"]:
        """Return these points with one class after the other.

        Returns:
            One or K sets of the same points, each with the score (L,) and the gradient (L, *S) of a class.
        """
        if self.score.dim() == 1:
            return [self]
        each = zip(self.score.unbind(1), self.gradient.unbind(1), strict=True)
        return [Point(self.x, score, gradient) for score, gradient in each]


@dataclass(frozen=True)
class Geodesic(Rows):
    """The Fisher-Rao geodesics of L paths, from the predictions at the inputs to their references.

    A path need not follow them: the same numbers for every method make paths comparable.

    Attributes:
        log_p: Log-probabilities (L, C) at the inputs.
        log_q: Log-probabilities (L, C) of the references.
        s0: Predictions (L, C) at the inputs in the square-root chart, at the temperatures.
        s1: References (L, C) in the square-root chart, at the temperatures.
        length: Fisher-Rao distance (L,) from each prediction to its reference, in radians.
        temperature: What logits are divided by (L,); None: 1.
    """

    log_p: Tensor
    log_q: Tensor
    s0: Tensor
    s1: Tensor
    length: Tensor
    temperature: Tensor | None = None

    @classmethod
    def between(cls, log_p: Tensor, log_q: Tensor | None = None, temperature: Tensor | None = None) -> Self:
        """Join predictions with their references.

        Args:
            log_p: Log-probabilities (L, C) at the inputs.
            log_q: Log-probabilities (L, C) of the references; None: of the uniform distribution.
            temperature: Temperatures (L,) of the predictions that the geodesics join; None: 1.

        Returns:
            The geodesics.
        """
        log_q = uniform_log_probs(log_p) if log_q is None else log_q
        s0, s1 = (sqrt_chart(softened(log, temperature)) for log in (log_p, log_q))
        return cls(log_p, log_q, s0, s1, dist(s0, s1), temperature)

    def at(self, share: Tensor, rows: Tensor | slice = slice(None)) -> Tensor:
        """Return the points (L, C) at these shares (L,) of the lengths of the paths ``rows``, in the square-root chart;
        the end beyond 1."""
        return geodesic(self.s0[rows], self.s1[rows], share.to(self.s0).clamp_max(1.0), self.length[rows])

    def measured(self, log_p: Tensor, waypoint: Tensor, soft: Tensor | None = None) -> Tensor:
        """Compare predictions with points of the geodesics and with the references.

        Args:
            log_p: Log-probabilities (L, C) predicted at points of the paths.
            waypoint: Where these predictions should be: points (L, C) in the square-root chart.
            soft: The same predictions at the temperatures, if they are known.

        Returns:
            ``AT_POINTS`` (L, 5): entropies and divergences in nats, distances in radians. Those to the waypoint are of
            the softened predictions.
        """
        both = torch.stack([log_p, softened(log_p, self.temperature) if soft is None else soft])
        kls = kl(both, torch.stack([self.log_q, 2.0 * waypoint.log()]))
        far = dist(sqrt_chart(both), torch.stack([sqrt_chart(self.log_q), waypoint]))
        return torch.stack([entropy(log_p), kls[0], kls[1], far[1], far[0]], 1)


def softened(log_p: Tensor, temperature: Tensor | None) -> Tensor:
    """Return log-probabilities (L, C) of the logits divided by temperatures (L,)."""
    return log_p if temperature is None else log_probabilities(log_p / temperature[:, None])


def uniform_log_probs(logits: Tensor) -> Tensor:
    """Return the log-probabilities (B, C) of the uniform distribution, in float64."""
    return torch.full(logits.shape, -math.log(logits.shape[-1]), dtype=torch.float64, device=logits.device)


def fisher_rao_step(before: Tensor, after: Tensor) -> Tensor:
    """Return the Fisher-Rao distance (L,) in radians between predictions, given as log-probabilities (L, C)."""
    return dist(sqrt_chart(before), sqrt_chart(after))


def all_finite(*values: Tensor) -> Tensor:
    """Return which rows (L,) of all ``values`` (L, ...) are finite."""
    # an extreme is NaN if any entry is: a fraction of the time of testing each, and no copy
    extremes = [extreme for value in values for extreme in value.flatten(1).aminmax(dim=1)]
    return torch.stack([extreme.abs() < torch.inf for extreme in extremes]).all(0)
