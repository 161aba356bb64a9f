"""Where a prediction stands against the geodesic to the reference: the paper's path diagnostics, for any path."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal

import torch
from torch import Tensor

from fringe.geometry import dist, entropy, geodesic, geometry_dtype, kl, sqrt_chart
from fringe.paths._problem import Problem


class GeodesicDiagnostics:
    """Measures predictions of B images against the geodesics from ``log_p0`` (B, C) to ``log_q`` (B, C).

    A path need not follow these geodesics: the same numbers, for every method, are what makes paths comparable.
    """

    def __init__(self, log_p0: Tensor, log_q: Tensor):
        self.log_p0, self.log_q = log_p0, log_q
        self.s0, self.s1 = sqrt_chart(log_p0), sqrt_chart(log_q)

    def distance(self) -> Tensor:
        """Fisher-Rao distance (B,) from each image's own prediction to the reference (radians)."""
        return dist(self.s0, self.s1)

    def waypoint(self, rows: Tensor, alpha: Tensor) -> Tensor:
        """The point s (L, C) of the geodesics of images ``rows`` (L,) at fractions ``alpha`` (L,) of their length."""
        return geodesic(self.s0[rows], self.s1[rows], alpha.to(self.s0))

    def point(self, rows: Tensor, log_p: Tensor, alpha: Tensor) -> dict[str, Tensor]:
        """What is measured at points with predictions ``log_p`` (L, C), due at fractions ``alpha`` (nats, radians)."""
        s, waypoint = sqrt_chart(log_p), self.waypoint(rows, alpha)
        return {
            "entropy": entropy(log_p),
            "reference_kl": kl(log_p, self.log_q[rows]),
            "waypoint_kl": kl(log_p, 2.0 * waypoint.log()),
            "tracking_error": dist(s, waypoint),
            "reference_distance": dist(s, self.s1[rows]),
        }


def uniform_log_probs(logits: Tensor) -> Tensor:
    """Log-probabilities (B, C) of the uniform distribution, in the dtype of the geometry."""
    classes = logits.shape[-1]
    return torch.full(logits.shape, -math.log(classes), dtype=geometry_dtype(logits.device), device=logits.device)


def fisher_rao_step(before: Tensor, after: Tensor) -> Tensor:
    """Fisher-Rao distance between predictions given as log-probabilities (L, C): (L,) radians."""
    return dist(sqrt_chart(before), sqrt_chart(after))


@dataclass(frozen=True)
class Point:
    """Points of L paths: ``x`` (L, *S), the explained ``score`` there (L,), and its ``gradient`` (L, *S)."""

    x: Tensor
    score: Tensor
    gradient: Tensor


@dataclass(frozen=True)
class Segment:
    """One straight piece of each of L paths, oriented baseline -> input: from ``start`` to ``stop``.

    ``rows`` (L,) are the images of the problem that the pieces belong to, ``step`` (L,) the step that each is, counted
    from the end where the path was begun; both on the device of the inputs. ``stats`` holds what the path measured
    along the piece and at ``start``, its end far from the input, one (L,) tensor per name.
    """

    rows: Tensor
    step: Tensor
    start: Point
    stop: Point
    stats: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])


class PathStatus(IntEnum):
    """How the path of one image ended."""

    COMPLETE = 0
    AT_REFERENCE = 1
    DIVERGED = 2


Orientation = Literal["input", "baseline"]
"""The end of a path at which its walk begins."""


class PathRun(ABC):
    """One run of a path over a problem. ``planned`` steps an image are known before it begins; ``outcomes`` and
    ``taken`` (steps) are filled while the segments stream by. No list of points is held: memory does not grow with
    steps. ``gauge`` is what predictions on the way are measured against. ``begins`` says at which end of the path the
    first segment lies; a walk that begins at the baseline arrives at the input with its last planned step, or
    diverges."""

    begins: Orientation = "input"
    gauge: GeodesicDiagnostics
    planned: list[int]
    taken: list[int]
    outcomes: list[PathStatus]

    @abstractmethod
    def segments(self) -> Iterator[Segment]:
        """Each segment of each image once; those of one image in order, images interleaved."""


class Path(ABC):
    """How to go from a baseline to an input; a description, without tensors."""

    @abstractmethod
    def walk(self, problem: Problem) -> PathRun:
        """Begin a run. The caller holds ``problem.model.session`` open while it lasts."""
