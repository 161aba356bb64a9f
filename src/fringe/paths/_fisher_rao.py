"""The Fisher-Rao tracking path: follow the geodesic of predictions from an input towards a reference distribution.

Source: FRInGe (arXiv 2605.06404), section "Method" and the appendix "FRInGe Implementation Details".
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from fringe.errors import InputError
from fringe.geometry import ExplicitJacobian, Jacobian, geometry_dtype, kl, log_probabilities, sqrt_chart
from fringe.linalg import inner_product
from fringe.paths._base import (
    GeodesicDiagnostics,
    Path,
    PathRun,
    PathStatus,
    Point,
    Segment,
    fisher_rao_step,
    uniform_log_probs,
)
from fringe.paths._natural_gradient import Direction, NaturalStep, StepSolver, TrustRegion
from fringe.paths._problem import Problem

AT_REFERENCE_BELOW = 1e-6
"""Fisher-Rao distance (radians) to the reference that counts as none: float32 logits resolve no less."""

STATISTIC = "statistic: "
"""Marks, in the state of a slot, what was measured along its last step."""

Waypoint = Literal["next", "current"]
Until = Literal["budget", "arrival"]


@dataclass(frozen=True)
class FisherRaoTracking(Path):
    """At step k, descend ``1 - <sqrt p(x), s>`` from x_k, with s on the geodesic from p(x) to the reference.

    ``waypoint="next"`` aims at s_{k+1}, ``"current"`` at s_k as the printed algorithm does. The number of steps is
    ``T = ceil(d_FR / sqrt(2 tau))`` (``steps`` overrides it). ``until="arrival"`` stops when KL(p || reference) falls
    under ``arrival_kl`` (nats) and goes on towards the last waypoint until then, for at most ``max_steps``.
    ``reference`` is a distribution (C,) or one for each image (B, C); uniform when None.

    ``feedback`` (for solve="geodesic") saves the JVP of every step but the first: the Fisher norm of a direction is
    then ``rho (m^T v)^2``, where rho is exact at the first step and afterwards multiplied by
    ``clip(d_FR^2 / (rho (m^T v)^2 eta^2), 1/4, 4) ** feedback``, the square of the distance that the step before made
    over the square of the one that it should have made. With ``waypoint="current"`` the first step has no part along
    the geodesic, so nothing is learnt and every step costs its JVP.
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
    feedback: float | None = None

    def walk(self, problem: Problem) -> "FisherRaoWalk":
        return FisherRaoWalk(self, problem)

    def log_reference(self, problem: Problem) -> Tensor:
        """Log-probabilities (B, C) of the reference of each image."""
        logits, shape, classes = problem.logits, tuple(problem.logits.shape), problem.logits.shape[1]
        if self.reference is None:
            return uniform_log_probs(logits)
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


@dataclass(frozen=True)
class _Slots:
    """Images on their way, one per slot: image ``rows`` (L), steps ``taken`` (L), and tensors (L, ...) by name:
    ``index`` and ``step``, the same two on the device, ``x`` (L, *S), where they are, and what the last step left."""

    rows: list[int]
    taken: list[int]
    state: Mapping[str, Tensor]

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, slots: Sequence[int]) -> "_Slots":
        """These slots in memory of their own: a slot that waits must not keep alive the batch it was computed in."""
        if not slots:
            return _Slots([], [], {})
        index = torch.tensor(list(slots), device=self.state["x"].device)
        state = {name: value.index_select(0, index) for name, value in self.state.items()}
        return _Slots([self.rows[i] for i in slots], [self.taken[i] for i in slots], state)

    def split(self, size: int) -> tuple["_Slots", "_Slots"]:
        """The first ``size`` slots, and the others."""
        if size >= len(self):
            return self, self.select([])
        return self.select(range(size)), self.select(range(size, len(self)))

    def joined(self, other: "_Slots") -> "_Slots":
        """These slots, then those of ``other``."""
        if not len(self) or not len(other):
            return self if len(self) else other
        state = {name: torch.cat([value, other.state[name]]) for name, value in self.state.items()}
        return _Slots(self.rows + other.rows, self.taken + other.taken, state)


class FisherRaoWalk(PathRun):
    """Images walk in slots: when one arrives, a waiting image takes its slot, so a large batch stays full.

    Three kinds of batches, so that nothing is computed in vain: first steps, further steps, and end points, where only
    the score's gradient is wanted. Nothing is shared between slots, so an image's path does not depend on its
    neighbours; when memory runs out the batch is repeated with half the slots and nothing is lost. A step reads one
    small tensor back from the device: which slots are finite, and which have arrived.
    """

    def __init__(self, path: FisherRaoTracking, problem: Problem):
        self.path, self.problem = path, problem
        self.gauge = GeodesicDiagnostics(log_probabilities(problem.logits), path.log_reference(problem))
        self.planned = path.schedule(self.gauge.distance())
        self._total = torch.tensor(self.planned, device=self.gauge.s0.device).to(self.gauge.s0.dtype)
        self.taken = [0] * len(self.planned)
        self.outcomes = [PathStatus.AT_REFERENCE if t == 0 else PathStatus.COMPLETE for t in self.planned]
        self.solver: StepSolver = path.step.on(problem.inputs[0])
        self.fisher_norm = path.trust.tau is not None
        self.learns = path.feedback is not None and self.fisher_norm and path.step.solve == "geodesic"
        self.learns &= path.trust.delta_logit is None  # which asks for the JVP of every step anyway
        self.learns &= path.waypoint == "next"  # the printed waypoints give the first step nothing to learn from

    def segments(self) -> Iterator[Segment]:
        waiting = [i for i, steps in enumerate(self.planned) if steps > 0]
        walking = closing = _Slots([], [], {})
        while waiting or len(walking) or len(closing):
            size = self.problem.model.batch_size.on(self.problem.inputs.device)
            last = len(closing) >= size or not (waiting or len(walking))
            first = not last and len(walking) < size and bool(waiting)
            source = self._enter(waiting[:size]) if first else closing if last else walking
            batch, rest = source.split(size)
            try:
                segment, onward = self._visit(batch, last)
            except torch.OutOfMemoryError as error:
                self.problem.model.batch_size.halve(self.problem.inputs.device, error)
                continue
            if first:
                waiting = waiting[size:]
            elif last:
                closing = rest
            else:
                walking = rest
            walking, arriving = self._sort(onward, walking)
            closing = closing.joined(arriving)
            if segment is not None:
                yield segment

    def _enter(self, rows: list[int]) -> _Slots:
        index = self._index(rows)
        state = {"index": index, "step": torch.zeros_like(index), "x": self.problem.inputs[index]}
        return _Slots(rows, [0] * len(rows), state)

    def _sort(self, moved: _Slots, walking: _Slots) -> tuple[_Slots, _Slots]:
        """The slots that walk on, in turns, and those that have taken their last step."""
        limits = [self.planned[row] if self.path.until == "budget" else self.path.max_steps for row in moved.rows]
        ended = [i for i, limit in enumerate(limits) if moved.taken[i] >= limit]
        if ended:
            arriving = moved.select(ended)
            moved = moved.select([i for i, limit in enumerate(limits) if moved.taken[i] < limit])
            return walking.joined(moved), arriving
        return walking.joined(moved), moved.select([])

    def _visit(self, slots: _Slots, last: bool) -> tuple[Segment | None, _Slots]:
        """Evaluate the points where ``slots`` stand, finish the segments that led there, and step on unless ``last``.

        Slots whose logits or gradient are not finite end at the point before.
        """
        x, index = slots.state["x"], slots.state["index"]
        moved = slots.taken[0] > 0
        learnt = self.learns and moved
        explicit = not (last or learnt) and self.path.step.explicit(self.problem.logits.shape[1])
        tangents = (self.fisher_norm and not learnt) or self.path.step.solve == "natural"
        point = self.problem.linearise(x, index, tangents=tangents and not (last or explicit))
        jacobian = ExplicitJacobian.of(point, x, point.value.shape[1]) if explicit else point
        gradient = self.problem.score_gradient(jacobian, point.value, index)
        here, log_p = Point(x, self.problem.score(point.value, index), gradient), log_probabilities(point.value)
        finite, arrived = self._status(index, here, point.value, log_p)
        for slot, row in enumerate(slots.rows):
            if not finite[slot]:
                self.outcomes[row], self.taken[row] = PathStatus.DIVERGED, max(slots.taken[slot] - 1, 0)
        segment = self._segment(slots, finite, here, log_p) if moved else None
        going = [slot for slot in range(len(slots)) if finite[slot] and not arrived[slot]]
        if last or not going:
            return segment, slots.select([])
        onward = self._step(slots, going, jacobian, here, log_p)
        return segment, onward if len(going) == len(slots) else onward.select(going)

    def _status(self, index: Tensor, here: Point, logits: Tensor, log_p: Tensor) -> tuple[list[bool], list[bool]]:
        """Which slots are finite, and which have arrived: the step's one transfer from the device."""
        finite = torch.isfinite(logits).all(-1) & torch.isfinite(here.gradient).flatten(1).all(1)
        if self.path.until == "budget":
            return finite.tolist(), [False] * len(finite)
        arrived = kl(log_p, self.gauge.log_q[index]) <= self.path.arrival_kl
        both = torch.stack([finite, arrived]).tolist()
        return both[0], both[1]

    def _step(self, slots: _Slots, going: list[int], jacobian: Jacobian, here: Point, log_p: Tensor) -> _Slots:
        """All slots one step further. Those not among ``going`` do not move and cost no iteration of the solver."""
        x, state = here.x, slots.state
        waypoint = self.gauge.waypoint(state["index"], self._fraction(slots, int(self.path.waypoint == "next")))
        safe_log_p = log_p
        if len(going) < len(slots):
            mask = torch.zeros(len(slots), dtype=torch.bool)
            mask[going] = True
            mask = mask.to(x.device)
            safe_log_p = torch.where(mask[:, None], log_p, uniform_log_probs(log_p))
            waypoint = torch.where(mask[:, None], waypoint, sqrt_chart(safe_log_p))
            x = torch.where(mask.view(-1, *[1] * (x.dim() - 1)), x, 0.0)
        ratio = self._ratio(state, log_p) if self.learns and "ratio" in state else None
        found = self.solver.direction(
            jacobian,
            safe_log_p,
            waypoint,
            x,
            state.get("direction"),
            fisher_norm=self.fisher_norm and ratio is None,
        )
        if ratio is not None and found.geodesic_norm_squared is not None:
            found = replace(found, fisher_norm_squared=ratio * found.geodesic_norm_squared)
        moved, stats = self._move(here.x, found)
        left = {"index": state["index"], "step": state["step"] + 1, "x": moved}
        left |= {"before": here.x, "score": here.score, "gradient": here.gradient, "log_p": log_p}
        if self.path.step.warm_start and self.path.step.solve == "natural":
            left["direction"] = found.v
        if self.learns and found.geodesic_norm_squared is not None:
            part = found.geodesic_norm_squared
            # m m^T <= G, so the ratio is at least 1: what is assumed where a dead gradient leaves it unmeasured
            left["ratio"] = torch.where(part > 0, found.fisher_norm_squared / part, 1.0) if ratio is None else ratio
            left["expected"] = found.fisher_norm_squared * stats["step_size"].square()
        left |= {STATISTIC + name: value for name, value in stats.items()}
        return _Slots(slots.rows, [steps + 1 for steps in slots.taken], left)

    def _ratio(self, state: Mapping[str, Tensor], log_p: Tensor) -> Tensor:
        """``v^T G v / (m^T v)^2`` (L,) as the steps made so far tell it."""
        ratio, expected = state["ratio"], state["expected"]
        made = fisher_rao_step(state["log_p"], log_p).square()
        quotient = (made / torch.where(expected > 0, expected, 1.0)).clamp(0.25, 4.0)
        return torch.where(expected > 0, ratio * quotient ** (self.path.feedback or 0.0), ratio)

    def _move(self, x: Tensor, found: Direction) -> tuple[Tensor, dict[str, Tensor]]:
        norm = inner_product(found.v, found.v).sqrt()
        eta, bound = self.path.trust.step(found.fisher_norm_squared, norm, found.logit_range)
        moved = x - eta.to(x.dtype).view(-1, *[1] * (x.dim() - 1)) * found.v
        return moved, {**found.stats, "euclidean_step": eta * norm, "step_size": eta, "active_bound": bound}

    def _segment(self, slots: _Slots, finite: list[bool], here: Point, log_p: Tensor) -> Segment | None:
        """The pieces that end at ``here``, with what was measured along them; None where no slot is finite."""
        if not all(finite):
            rows = [slot for slot, fine in enumerate(finite) if fine]
            if not rows:
                return None
            index = torch.tensor(rows, device=log_p.device)
            slots, log_p = slots.select(rows), log_p[index]
            here = Point(here.x[index], here.score[index], here.gradient[index])
        for row, steps in zip(slots.rows, slots.taken, strict=True):
            self.taken[row] = steps
        state = slots.state
        stats = {name.removeprefix(STATISTIC): state[name] for name in state if name.startswith(STATISTIC)}
        stats |= self.gauge.point(state["index"], log_p, self._fraction(slots, 0))
        stats["fisher_rao_step"] = fisher_rao_step(state["log_p"], log_p)
        stop = Point(state["before"], state["score"], state["gradient"])
        return Segment(state["index"], state["step"], here, stop, stats)

    def _fraction(self, slots: _Slots, ahead: int) -> Tensor:
        """How far along their geodesic the slots are due ``ahead`` steps from now: (L,); 1 from step T on."""
        return ((slots.state["step"] + ahead) / self._total[slots.state["index"]]).clamp_max(1.0)

    def _index(self, rows: list[int]) -> Tensor:
        return torch.tensor(rows, dtype=torch.int64, device=self.problem.inputs.device)
