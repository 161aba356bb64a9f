"""Paths through input space as a stream of segments, and what is measured along every path."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Literal, Self, cast

import torch
from torch import Tensor

from fringe.geometry import angle, dist, entropy, geodesic, kl, log_probabilities, sqrt_chart
from fringe.paths._problem import Problem

#: The end of a path at which its first segment lies.
Orientation = Literal["input", "baseline"]


class Rows:
    """Base class of dataclasses of tensors, and of other such dataclasses, with one row for each of L paths."""

    def __getitem__(self, rows: Tensor | slice) -> Self:
        return replace(cast(Any, self), **{name: value[rows] for name, value in vars(self).items()})

    @classmethod
    def concat(cls, parts: Sequence[Self]) -> Self:
        """Join rows, one part after the other."""
        columns = zip(*(vars(part).values() for part in parts), strict=True)
        return cls(*(c[0].concat(c) if isinstance(c[0], Rows) else torch.cat(c) for c in columns))


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


@dataclass(frozen=True)
class Segment:
    """One straight piece of each of L paths, oriented from baseline to input.

    Attributes:
        rows: Images (L,) of the problem that the pieces belong to, on the device of the inputs.
        step: Number of each piece (L,), from 1 on, counted from the end at which the path begins.
        start: End towards the baseline.
        stop: End towards the input.
        stats: Measurements of the path along the piece and at ``start``: a tensor (L,) per name.
    """

    rows: Tensor
    step: Tensor
    start: Point
    stop: Point
    stats: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])


class PathStatus(IntEnum):
    """How the path of one image ended.

    ``COMPLETE``: after its planned steps or on arrival. ``AT_REFERENCE``: the input is the end point already, so the
    path has no steps. ``DIVERGED``: at the last point before logits or gradients were not finite.
    """

    COMPLETE = 0
    AT_REFERENCE = 1
    DIVERGED = 2


class GeodesicDiagnostics:
    """Compares predictions along the paths of B images with Fisher-Rao geodesics.

    A path need not follow these geodesics: the same numbers for every method make paths comparable.

    Args:
        log_p0: Log-probabilities (B, C) at the inputs, where the geodesics start.
        log_q: Log-probabilities (B, C) of the references, where they end; None: of the uniform distribution.
        temperature: Temperatures (B,) of the predictions that the geodesics join; None: 1.
    """

    def __init__(self, log_p0: Tensor, log_q: Tensor | None = None, temperature: Tensor | None = None):
        self.log_p0, self.log_q = log_p0, uniform_log_probs(log_p0) if log_q is None else log_q
        self.temperature = temperature
        self.s0, self.s1 = (sqrt_chart(self.soften(log_p)) for log_p in (self.log_p0, self.log_q))
        self._theta = angle(self.s0, self.s1)

    def soften(self, log_p: Tensor, rows: Tensor | None = None) -> Tensor:
        """Divide logits by the temperatures.

        Args:
            log_p: Log-probabilities (L, C).
            rows: Images (L,) that they belong to; None: all B.

        Returns:
            Log-probabilities (L, C) at these temperatures.
        """
        if self.temperature is None:
            return log_p
        temperature = self.temperature if rows is None else self.temperature[rows]
        return log_probabilities(log_p / temperature[:, None])

    def distance(self) -> Tensor:
        """Measure the geodesics.

        Returns:
            Fisher-Rao distance (B,) from each image's prediction to its reference, in radians.
        """
        return 2.0 * self._theta

    def waypoint(self, rows: Tensor, alpha: Tensor) -> Tensor:
        """Return points of the geodesics in the square-root chart.

        Args:
            rows: Images (L,).
            alpha: Fractions (L,) of the length of their geodesics.

        Returns:
            Points (L, C).
        """
        return geodesic(self.s0[rows], self.s1[rows], alpha.to(self.s0), self._theta[rows])

    def point(self, rows: Tensor, log_p: Tensor, waypoint: Tensor) -> dict[str, Tensor]:
        """Compare predictions with points of the geodesic and with the reference.

        Args:
            rows: Images (L,).
            log_p: Log-probabilities (L, C) predicted at points of their paths.
            waypoint: Points (L, C) of the geodesics, in the square-root chart, where these predictions should be.

        Returns:
            By name (L,): entropies and divergences in nats, distances in radians. Those to the waypoint are of the
            softened predictions.
        """
        softened, log_q = self.soften(log_p, rows), self.log_q[rows]
        both = torch.stack([log_p, softened])
        kls = kl(both, torch.stack([log_q, 2.0 * waypoint.log()]))
        distances = dist(sqrt_chart(both), torch.stack([sqrt_chart(log_q), waypoint]))
        return {
            "entropy": entropy(log_p),
            "reference_kl": kls[0],
            "waypoint_kl": kls[1],
            "tracking_error": distances[1],
            "reference_distance": distances[0],
        }


class PathRun(ABC):
    """One run of a path over the images of a problem; memory does not grow with the number of steps.

    Attributes:
        begins: End of the path at which the first segment lies. A run that begins at the baseline arrives at the input
            with its last planned step, or diverges.
        diagnostics: Compares predictions along the path with geodesics.
        planned: Number of steps of each image, known before the run; 0 for an image without a path.
        steps_taken: Number of steps of each image, updated with every segment.
        outcomes: How the path of each image ended, final after the last segment.
        open_ended: Whether paths end on arrival alone, however many steps were planned.
    """

    begins: Orientation = "input"
    open_ended: bool = False
    diagnostics: GeodesicDiagnostics
    planned: list[int]
    steps_taken: list[int]
    outcomes: list[PathStatus]

    def arrived(self, rows: Tensor, step: Tensor, reference_kl: Tensor) -> Tensor | None:
        """Tell which paths may end where they are.

        Args:
            rows: Images (L,).
            step: Steps (L,) that they have taken.
            reference_kl: KL (L,) of their predictions to the reference in nats.

        Returns:
            Truth values (L,); None if every path takes its planned steps.
        """
        return None

    @abstractmethod
    def segments(self) -> Iterator[Segment]:
        """Run the paths.

        Yields:
            Every segment of every image once. The segments of one image are in order; images are interleaved.
        """


class Path(ABC):
    """A way from a baseline to an input, as a description without tensors."""

    @abstractmethod
    def run(self, problem: Problem) -> PathRun:
        """Begin a run over the images of a problem.

        Args:
            problem: The problem. The caller holds ``problem.model.session`` open until the last segment.

        Returns:
            The run, before its first step.
        """


def uniform_log_probs(logits: Tensor) -> Tensor:
    """Return the log-probabilities (B, C) of the uniform distribution, in float64."""
    return torch.full(logits.shape, -math.log(logits.shape[-1]), dtype=torch.float64, device=logits.device)


def fisher_rao_step(before: Tensor, after: Tensor) -> Tensor:
    """Return the Fisher-Rao distance (L,) in radians between predictions, given as log-probabilities (L, C)."""
    return dist(sqrt_chart(before), sqrt_chart(after))
