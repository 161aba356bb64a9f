"""The Fisher-Rao tracking path: follow the geodesic of predictions from an input towards a reference distribution.

Source: FRInGe (arXiv 2605.06404), section "Method" and the appendix "FRInGe Implementation Details".
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from fringe._errors import InputError
from fringe.geometry import ExplicitJacobian, Jacobian, geometry_dtype, kl, log_probabilities, spherical_loss_gradient
from fringe.linalg import inner_product
from fringe.paths.base import Outcome, Path, Point, Problem, Segment, Walk
from fringe.paths.direction import Direction, NaturalStep, StepSolver
from fringe.paths.gauge import GeodesicGauge, fisher_rao_step, log_uniform
from fringe.paths.trust_region import TrustRegion

AT_REFERENCE_BELOW = 1e-6
"""Fisher-Rao distance (radians) to the reference that counts as none: float32 logits resolve no less."""

Waypoint = Literal["next", "current"]
Until = Literal["budget", "arrival"]


@dataclass(frozen=True)
class FisherRaoTracking(Path):
    """At step k, descend ``1 - <sqrt p(x), s>`` from x_k, with s on the geodesic from p(x) to the reference.

    ``waypoint="next"`` aims at s_{k+1}, ``"current"`` at s_k as the printed algorithm does. The number of steps is
    ``T = ceil(d_FR / sqrt(2 tau))`` (``steps`` overrides it). ``until="arrival"`` stops when KL(p || reference) falls
    under ``arrival_kl`` (nats) and goes on towards the last waypoint until then, for at most ``max_steps``.
    ``reference`` is a distribution (C,) or one an image (B, C); uniform when None.
    """

    step: NaturalStep
    trust: TrustRegion
    tau: float
    waypoint: Waypoint = "next"
    steps: int | None = None
    until: Until = "budget"
    arrival_kl: float = 0.05
    max_steps: int = 1000
    reference: tuple[float, ...] | tuple[tuple[float, ...], ...] | None = None

    def walk(self, problem: Problem) -> "FisherRaoWalk":
        return FisherRaoWalk(self, problem)

    def log_reference(self, problem: Problem) -> Tensor:
        """Log-probabilities (B, C) of the reference of each image."""
        logits, shape, classes = problem.logits, tuple(problem.logits.shape), problem.logits.shape[1]
        if self.reference is None:
            return log_uniform(logits)
        q = torch.tensor(self.reference, dtype=geometry_dtype(logits.device), device=logits.device)
        whole = (problem.total or shape[0], classes)
        if tuple(q.shape) not in ((classes,), whole):
            raise InputError(f"reference: got shape {tuple(q.shape)}, expected ({classes},) or {whole}")
        if q.dim() == 2 and problem.rows is not None:
            q = q[list(problem.rows)]
        return q.log().expand(shape)

    def schedule(self, distance: Tensor) -> list[int]:
        """Steps T of images whose prediction is ``distance`` (B,) radians from the reference; 0 where it is there."""
        steps = torch.ceil(distance / math.sqrt(2.0 * self.tau))
        if self.steps is not None:
            steps = torch.full_like(distance, self.steps)
        steps = torch.where(distance <= AT_REFERENCE_BELOW, 0.0, steps)
        return [int(t) for t in steps.tolist()]


@dataclass
class _Lane:
    """One image on its way: where it is, how it came there, and what its next step starts from."""

    index: int
    x: Tensor
    taken: int = 0
    direction: Tensor | None = None
    previous: Point | None = None
    log_p: Tensor | None = None
    stats: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])

    def parked(self) -> "_Lane":
        """This lane in memory of its own: a waiting row must not keep alive the batch that it was computed in."""
        before = self.previous and Point(
            *(t.clone() for t in (self.previous.x, self.previous.score, self.previous.gradient))
        )
        return replace(self, x=self.x.clone(), direction=None, previous=before)


class FisherRaoWalk(Walk):
    """Images walk in lanes: when one arrives, the next waiting image takes its lane, so a large batch stays full.

    Nothing is shared between lanes, so an image's path does not depend on its neighbours; when memory runs out the
    step is repeated with half the lanes and nothing is lost.
    """

    def __init__(self, path: FisherRaoTracking, problem: Problem):
        self.path, self.problem = path, problem
        self.gauge = GeodesicGauge(log_probabilities(problem.logits), path.log_reference(problem))
        self.planned = path.schedule(self.gauge.distance())
        self.taken = [0] * len(self.planned)
        self.outcomes = [Outcome.AT_REFERENCE if t == 0 else Outcome.COMPLETE for t in self.planned]
        self.solver: StepSolver = path.step.on(problem.inputs[0], fisher_norm=path.trust.tau is not None)

    def segments(self) -> Iterator[Segment]:
        waiting = [_Lane(i, x) for i, x in enumerate(self.problem.inputs) if self.planned[i] > 0]
        closing: list[_Lane] = []
        device = self.problem.inputs.device
        while waiting or closing:
            size = self.problem.model.batch_size.on(device)
            last = len(closing) >= size or not waiting
            lanes = (closing if last else waiting)[:size]
            try:
                segment, onward = self._visit(lanes, last)
            except torch.OutOfMemoryError as error:
                self.problem.model.batch_size.halve(device, error)
                continue
            if last:
                closing = closing[len(lanes) :]
            else:
                going = [lane for lane in onward if lane.taken < self._limit(lane)]
                waiting = going + waiting[len(lanes) :]
                closing += [lane.parked() for lane in onward if lane.taken >= self._limit(lane)]
            if segment is not None:
                yield segment

    def _limit(self, lane: _Lane) -> int:
        return self.planned[lane.index] if self.path.until == "budget" else self.path.max_steps

    def _visit(self, lanes: list[_Lane], last: bool) -> tuple[Segment | None, list[_Lane]]:
        """Evaluate the points where ``lanes`` stand, finish the segments that led there, and step on unless ``last``.

        Lanes whose logits or gradient are not finite end at the point before.
        """
        x = torch.stack([lane.x for lane in lanes])
        explicit = not last and self.path.step.explicit(self.problem.logits.shape[1])
        rows = self._rows(lanes)
        point = self.problem.linearise(x, rows, tangents=not (last or explicit))
        jacobian = ExplicitJacobian.of(point, x, point.value.shape[1]) if explicit else point
        gradient = jacobian.vjp(self.problem.score_cotangent(point.value, rows))
        sound = (torch.isfinite(point.value).all(-1) & torch.isfinite(gradient).flatten(1).all(1)).tolist()
        here = Point(x, self.problem.score(point.value, rows), gradient)
        log_p = log_probabilities(point.value)
        for lane, fine in zip(lanes, sound, strict=True):
            if not fine:
                self.outcomes[lane.index] = Outcome.DIVERGED
                self.taken[lane.index] = max(lane.taken - 1, 0)
        segment = self._segment(lanes, sound, here, log_p)
        going = [fine and not arrived for fine, arrived in zip(sound, self._arrived(lanes, log_p), strict=True)]
        if last or not any(going):
            return segment, []
        return segment, self._step(lanes, going, jacobian, here, log_p)

    def _arrived(self, lanes: list[_Lane], log_p: Tensor) -> list[bool]:
        if self.path.until == "budget":
            return [False] * len(lanes)
        return (kl(log_p, self.gauge.log_q[self._rows(lanes)]) <= self.path.arrival_kl).tolist()

    def _step(
        self, lanes: list[_Lane], going: list[bool], jacobian: Jacobian, here: Point, log_p: Tensor
    ) -> list[_Lane]:
        """The lanes one step further. Lanes that do not go on have a zero right-hand side and cost no iteration."""
        x = here.x
        mask = torch.tensor(going, device=x.device)
        waypoint = self.gauge.waypoint(self._rows(lanes), self._fraction(lanes, int(self.path.waypoint == "next")))
        cotangent = spherical_loss_gradient(log_p, waypoint)
        cotangent = torch.where(mask[:, None], cotangent, 0.0)
        x_going = torch.where(mask.view(-1, *[1] * (x.dim() - 1)), x, 0.0)
        zero = torch.zeros_like(lanes[0].x)
        previous = None
        if any(lane.direction is not None for lane in lanes):
            previous = torch.stack([zero if lane.direction is None else lane.direction for lane in lanes])
        found = self.solver.direction(jacobian, log_p.exp(), cotangent, x_going, previous)
        moved, stats = self._move(x, found)
        return [
            _Lane(
                lane.index,
                moved[i],
                lane.taken + 1,
                found.v[i],
                Point(x[i], here.score[i], here.gradient[i]),
                log_p[i],
                {name: value[i] for name, value in stats.items()},
            )
            for i, lane in enumerate(lanes)
            if going[i]
        ]

    def _move(self, x: Tensor, found: Direction) -> tuple[Tensor, dict[str, Tensor]]:
        norm = inner_product(found.v, found.v).sqrt()
        eta, bound = self.path.trust.step(found.fisher_norm_squared, norm)
        moved = x - eta.to(x.dtype).view(-1, *[1] * (x.dim() - 1)) * found.v
        return moved, {**found.stats, "euclidean_step": eta * norm, "step_size": eta, "active_bound": bound}

    def _segment(self, lanes: list[_Lane], sound: list[bool], here: Point, log_p: Tensor) -> Segment | None:
        """The pieces that end at ``here``, with what was measured along them; None when no lane has moved yet."""
        rows = [i for i, lane in enumerate(lanes) if sound[i] and lane.previous is not None]
        if not rows:
            return None
        moved = [lanes[i] for i in rows]
        before = [lane.previous for lane in moved if lane.previous is not None]
        stop = Point(
            torch.stack([p.x for p in before]),
            torch.stack([p.score for p in before]),
            torch.stack([p.gradient for p in before]),
        )
        start = Point(here.x[rows], here.score[rows], here.gradient[rows])
        stats = {name: torch.stack([lane.stats[name] for lane in moved]) for name in moved[0].stats}
        stats |= self._measure(moved, log_p[rows])
        for lane in moved:
            self.taken[lane.index] = lane.taken
        return Segment([lane.index for lane in moved], [lane.taken for lane in moved], start, stop, stats)

    def _measure(self, lanes: list[_Lane], log_p: Tensor) -> dict[str, Tensor]:
        """At the end of a step: where the prediction is, and how far from where it should be (nats, radians)."""
        before = torch.stack([lane.log_p for lane in lanes if lane.log_p is not None])
        due = self.gauge.point(self._rows(lanes), log_p, self._fraction(lanes, 0))
        return {**due, "fisher_rao_step": fisher_rao_step(before, log_p)}

    def _fraction(self, lanes: list[_Lane], ahead: int) -> Tensor:
        """How far along their geodesic the lanes are due ``ahead`` steps from now: (L,); 1 from step T on."""
        alpha = [min((lane.taken + ahead) / self.planned[lane.index], 1.0) for lane in lanes]
        return torch.tensor(alpha, dtype=self.gauge.s0.dtype, device=self.gauge.s0.device)

    def _rows(self, lanes: list[_Lane]) -> Tensor:
        return torch.tensor([lane.index for lane in lanes], device=self.problem.inputs.device)
