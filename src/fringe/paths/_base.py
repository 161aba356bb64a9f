"""What a path is: pure functions over its state; its segments; the geodesic, and what is measured along a path."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self, cast

import torch
from torch import Tensor

from fringe.geometry import angle, dist, entropy, geodesic, kl, log_probabilities, sqrt_chart
from fringe.linalg import batch_view
from fringe.paths._problem import Problem

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


@dataclass(frozen=True)
class Segment(Rows):
    """One straight piece of each of L paths, oriented from baseline to input.

    Attributes:
        path: Paths (L,) that the pieces belong to.
        step: Number of each piece (L,), from 1 on, counted from the end at which the path begins.
        start: End towards the baseline.
        stop: End towards the input.
        stats: Measurements (L, N) of :attr:`Path.measures`, along the piece and at ``start``.
        counts: Which of the pieces (L,) there are: one that leads to a point that is not finite has no length instead.
    """

    path: Tensor
    step: Tensor
    start: Point
    stop: Point
    stats: Tensor
    counts: Tensor


@dataclass(frozen=True)
class Geodesic(Rows):
    """The Fisher-Rao geodesics of L paths, from the predictions at the inputs to their references.

    A path need not follow them: the same numbers for every method make paths comparable.

    Attributes:
        log_p: Log-probabilities (L, C) at the inputs.
        log_q: Log-probabilities (L, C) of the references.
        s0: Predictions (L, C) at the inputs in the square-root chart, at the temperatures.
        s1: References (L, C) in the square-root chart, at the temperatures.
        theta: Angles (L,) between them.
        temperature: What logits are divided by (L,); None: 1.
    """

    log_p: Tensor
    log_q: Tensor
    s0: Tensor
    s1: Tensor
    theta: Tensor
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
        return cls(log_p, log_q, s0, s1, angle(s0, s1), temperature)

    @property
    def length(self) -> Tensor:
        """Fisher-Rao distance (L,) from each prediction to its reference, in radians."""
        return 2.0 * self.theta

    def at(self, share: Tensor) -> Tensor:
        """Return the points (L, C) at these shares (L,) of the lengths, in the square-root chart; the end beyond 1."""
        return geodesic(self.s0, self.s1, share.to(self.s0).clamp_max(1.0), self.theta)

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


@dataclass(frozen=True, kw_only=True)
class State(Rows):
    """Where L paths are, and what does not change along each.

    Attributes:
        path: Numbers (L,) of the paths.
        image: Images (L,) of the problem that they belong to.
        step: Steps (L,) taken.
        total: Steps (L,) planned; 0 for a path without any.
        limit: The most steps (L,).
        goal: What tells a path that it has arrived (L, ...), if anything does.
        geodesic: The geodesics of their predictions.
        scale: What a step in other coordinates is multiplied by (L, *S); None: 1.
        x: The current points (L, *S); None before the first step, which begins at the image or its baseline.
        past: What the last step left; None before the first one.
    """

    path: Tensor
    image: Tensor
    step: Tensor
    total: Tensor
    limit: Tensor
    goal: Tensor | None
    geodesic: Geodesic
    scale: Tensor | None = None
    x: Tensor | None = None
    past: Any = None


@dataclass(frozen=True)
class Here:
    """The network at the current points of L paths.

    Attributes:
        point: The points.
        log_p: Predictions (L, C) there, as log-probabilities.
        soft: The same at the temperatures of the geodesics.
        waypoint: Where the latter should be (L, C), in the square-root chart.
        finite: Which logits and gradients (L,) are finite.
        goes_on: Which paths (L,) take another step.
        last_next: Which of these (L,) end after the next step.
    """

    point: Point
    log_p: Tensor
    soft: Tensor
    waypoint: Tensor
    finite: Tensor
    goes_on: Tensor
    last_next: Tensor


class Path(ABC):
    """A way from a baseline to an input, as functions of its state: nothing is stored, and a step that ran out of
    memory can be repeated. No function waits for the device.

    Attributes:
        begins: End of the path at which the first segment lies. A path that begins at the baseline arrives at the input
            with its last planned step, or diverges.
        open_ended: Whether paths end on arrival alone, however many steps were planned.
        recorded_as: Equal for paths whose steps may share CUDA graphs: they begin at the inputs, and read no more of a
            problem than the classes of its images. None: those of no other path.
        measures: What is measured along a segment and at its end, the columns of :attr:`Segment.stats`.
    """

    begins: ClassVar[Orientation] = "input"
    measures: ClassVar[tuple[str, ...]] = ("euclidean_step", "fisher_rao_step", *AT_POINTS)
    open_ended: bool = False
    recorded_as: object = None

    @abstractmethod
    def init(self, problem: Problem) -> State:
        """Return all paths before their first step. Paths of one image are next to each other.

        Args:
            problem: The problem. The caller holds ``problem.model.session`` open until the last segment.

        Returns:
            The state of R paths.
        """

    @abstractmethod
    def look(self, problem: Problem, state: State, closing: bool = False) -> tuple[Here, Any]:
        """Evaluate the network at the current points.

        Args:
            problem: The problem.
            state: Where L paths are.
            closing: Whether all are at their last points, from where no step departs.

        Returns:
            What was found, and what :meth:`move` needs beside it, such as the Jacobian.
        """

    @abstractmethod
    def move(self, problem: Problem, state: State, here: Here, more: Any) -> State:
        """Take another step.

        Args:
            problem: The problem.
            state: Where L paths are.
            here: What was found there.
            more: What :meth:`look` returned beside it.

        Returns:
            Where they are then; what it says of a path that ends here is not used.
        """

    @abstractmethod
    def segment(self, state: State, here: Here) -> Segment | None:
        """Describe the segments that end at the current points.

        Args:
            state: Where L paths are.
            here: What was found there.

        Returns:
            The segments; None before the first step.
        """


def ends(new: Point, old: Point, finite: Tensor) -> Point:
    """Return the ``new`` points of L paths, or the ``old`` ones where those are not ``finite`` (L,): gradients as they
    are, since those of K classes are large."""
    x, score = (torch.where(batch_view(finite, a), a, b) for a, b in ((new.x, old.x), (new.score, old.score)))
    return Point(x, score, new.gradient)


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
