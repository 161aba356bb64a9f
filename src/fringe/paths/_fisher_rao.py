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
from fringe.geometry import (
    ExplicitJacobian,
    Jacobian,
    SoftenedJacobian,
    kl,
    log_probabilities,
    softening_temperature,
    sqrt_chart,
)
from fringe.linalg import batch_view, inner_product
from fringe.paths._base import (
    GeodesicDiagnostics,
    Path,
    PathRun,
    PathStatus,
    Point,
    Rows,
    Segment,
    fisher_rao_step,
    uniform_log_probs,
)
from fringe.paths._natural_gradient import Direction, NaturalStep, StepSolver
from fringe.paths._problem import Problem
from fringe.paths._trust_region import TrustRegion, spread

#: Fisher-Rao distance (radians) to the reference that counts as none: float32 logits resolve no less.
AT_REFERENCE_BELOW = 1e-6
#: Marks, in the state of a slot, what was measured along its last step.
STATISTIC = "statistic: "

Waypoint = Literal["next", "current"]
Until = Literal["budget", "half", "arrival"]

#: Share of the KL divergence to the reference that until="half" goes on to remove, and that a map needs to be ``ok``.
ENOUGH = 0.5
#: Most steps of until="half", in units of T.
HALF_LIMIT = 5
#: Share of the largest entropy, log C, that temperature="auto" gives the prediction at the input. docs/results.md has
#: the measurements.
AUTO_ENTROPY = 0.5


@dataclass(frozen=True)
class FisherRaoTracking(Path):
    """At step k, descend ``1 - <sqrt p(x), s>`` from x_k, with s on the geodesic from p(x) to the reference.

    Attributes:
        step: The linear system of a step.
        trust: The bounds on its length.
        tau: KL budget of a step in nats: the number of steps is ``T = ceil(d_FR / sqrt(2 tau))``.
        waypoint: ``"next"`` aims at s_{k+1}, ``"current"`` at s_k as the printed algorithm does.
        steps: Number of steps, instead of T.
        until: ``"budget"`` stops after T steps. The others continue towards the last waypoint: ``"half"`` until half of
            KL(p || reference) at the input is gone, for 5 T steps at most; ``"arrival"`` stops, perhaps before step T,
            when it falls below ``arrival_kl``.
        arrival_kl: In nats.
        max_steps: Maximum number of steps of ``"arrival"``.
        reference: A distribution (C,), or one for each image (B, C); uniform when None.
        feedback: For solve="geodesic": saves the JVP of every step but the first. The Fisher norm of a direction is
            then ``rho (m^T v)^2``, where rho is exact at the first step (1, its least value, for a model without JVPs)
            and afterwards multiplied by
            ``clip(d_FR^2 / (rho (m^T v)^2 eta^2), 1/4, 4) ** feedback``: the square of the distance that the last step
            made over the square of the predicted one. With ``waypoint="current"`` the first step has no part along the
            geodesic, so there is nothing to estimate rho from and every step costs its JVP.
        temperature: Directions, step lengths and waypoints are those of a model with the logits over this number (and
            of the reference at this temperature). ``"auto"``: the lowest from 1 on, of each image, at which the
            prediction at the input has half of the largest entropy. The metric of a saturated softmax is zero to
            rounding: softened, it says where to go, and a factor of all logits does not change the way. How far the
            path goes (``until``) is measured by the prediction itself. The uniform distribution is the same at every
            temperature.
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
    temperature: float | Literal["auto"] = 1.0

    @property
    def estimates_norm(self) -> bool:
        """Whether Fisher norms come from ``feedback``, so that no step depends on a JVP."""
        bounds = self.trust.tau is not None and self.trust.delta_logit is None  # the latter asks for the JVP anyway
        return self.feedback is not None and bounds and self.step.solve == "geodesic" and self.waypoint == "next"

    def run(self, problem: Problem) -> "FisherRaoRun":
        return FisherRaoRun(self, problem)

    def log_reference(self, problem: Problem) -> Tensor:
        """Log-probabilities (B, C) of the reference of each image."""
        logits, shape, classes = problem.logits, tuple(problem.logits.shape), problem.logits.shape[1]
        if self.reference is None:
            return uniform_log_probs(logits)
        q = torch.tensor(self.reference, dtype=torch.float64, device=logits.device)
        per_image = (problem.total or shape[0], classes)
        if tuple(q.shape) not in ((classes,), per_image):
            message = f"got shape {tuple(q.shape)}, expected ({classes},) or {per_image}"
            raise InputError(message, argument="reference")
        if q.dim() == 2 and problem.rows is not None:
            q = q[list(problem.rows)]
        return q.log().expand(shape)

    def geodesics(self, problem: Problem) -> GeodesicDiagnostics:
        """The geodesics from the prediction of each image to its reference, at its temperature."""
        temperature = None
        if self.temperature == "auto":
            temperature = softening_temperature(problem.logits, AUTO_ENTROPY)
        elif self.temperature != 1.0:
            temperature = torch.full_like(problem.logits[:, 0], self.temperature, dtype=torch.float64)
        return GeodesicDiagnostics(log_probabilities(problem.logits), self.log_reference(problem), temperature)

    def schedule(self, distance: Tensor) -> list[int]:
        """Steps T of images whose predictions are ``distance`` (B,) radians from the reference; 0 at the reference."""
        steps = torch.ceil(distance / math.sqrt(2.0 * self.tau))
        if self.steps is not None:
            steps = torch.full_like(distance, self.steps)
        return [int(t) for t in torch.where(distance <= AT_REFERENCE_BELOW, 0.0, steps).tolist()]

    def limit(self, steps: float) -> float:
        """The most steps that a path of ``T = steps`` may take."""
        return self.max_steps if self.until == "arrival" else steps * (HALF_LIMIT if self.until == "half" else 1)


@dataclass(frozen=True)
class _Slots:
    """Images under way, one per slot: image ``rows`` (L), ``steps_taken`` (L), and tensors (L, ...) by name: ``index``
    and ``step``, the same two on the device, ``x`` (L, *S), the current points, and what the last step computed."""

    rows: list[int]
    steps_taken: list[int]
    state: Mapping[str, Tensor]

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, slots: Sequence[int]) -> "_Slots":
        """These slots in memory of their own: a slot that waits must not keep alive the batch it was computed in."""
        if not slots:
            return _Slots([], [], {})
        index = torch.tensor(list(slots), device=self.state["x"].device)
        state = {name: value.index_select(0, index) for name, value in self.state.items()}
        return _Slots([self.rows[i] for i in slots], [self.steps_taken[i] for i in slots], state)

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
        return _Slots(self.rows + other.rows, self.steps_taken + other.steps_taken, state)


@dataclass(frozen=True)
class _Reached(Rows):
    """The current points of L slots: what the model predicts there and the same at the path's temperature, both as
    log-probabilities (L, C), the points of the geodesics (L, C) where the latter should be, and how far (L,) the last
    step moved each of the two, in radians."""

    point: Point
    predicted: Tensor
    log_p: Tensor
    waypoint: Tensor
    moved: Tensor
    distance: Tensor


class FisherRaoRun(PathRun):
    """One run of tracking paths, in slots: when an image arrives, a waiting one takes its slot, so batches stay full.

    There are three kinds of batches, which need different products: first steps, further steps, and end points,
    which need only the score's gradient. Nothing is shared between slots, so an image's path does not depend on the
    others; when memory runs out the batch is repeated with half the slots and nothing is lost. A step reads one small
    tensor back from the device: which slots are finite, and which have arrived.
    """

    def __init__(self, path: FisherRaoTracking, problem: Problem):
        self.path, self.problem = path, problem
        self.diagnostics = path.geodesics(problem)
        self.planned = path.schedule(self.diagnostics.distance())
        self._total = torch.tensor(self.planned).to(self.diagnostics.s0)
        start_kl = kl(self.diagnostics.log_p0, self.diagnostics.log_q)
        self._goal = (1.0 - ENOUGH) * start_kl if path.until == "half" else torch.full_like(start_kl, path.arrival_kl)
        self.open_ended = path.until == "arrival"
        self._limits = [path.limit(steps) for steps in self.planned]
        self.steps_taken = [0] * len(self.planned)
        self.outcomes = [PathStatus.AT_REFERENCE if t == 0 else PathStatus.COMPLETE for t in self.planned]
        self.solver: StepSolver = path.step.on(problem.inputs[0])
        self.fisher_norm = path.trust.tau is not None
        self.estimates_norm = path.estimates_norm
        self._has_jvp = problem.model.jvp_mode != "none" or not self.estimates_norm

    def segments(self) -> Iterator[Segment]:
        waiting = [i for i, steps in enumerate(self.planned) if steps > 0]
        active = ending = _Slots([], [], {})
        while waiting or len(active) or len(ending):
            size = self.problem.model.batch_size.on(self.problem.inputs.device)
            last = len(ending) >= size or not (waiting or len(active))
            first = not last and len(active) < size and bool(waiting)
            source = self._enter(waiting[:size]) if first else ending if last else active
            batch, rest = source.split(size)
            try:
                segment, advanced = self._process(batch, last)
            except (RuntimeError, MemoryError) as error:
                self.problem.model.batch_size.halve(self.problem.inputs.device, error)
                continue
            if first:
                waiting = waiting[size:]
            elif last:
                ending = rest
            else:
                active = rest
            continuing, ended = self._divide(advanced)
            active, ending = active.joined(continuing), ending.joined(ended)
            if segment is not None:
                yield segment

    def arrived(self, rows: Tensor, step: Tensor, reference_kl: Tensor) -> Tensor | None:
        return None if self.path.until == "budget" else self._arrived(rows, step, reference_kl)

    def _arrived(self, rows: Tensor, step: Tensor, reference_kl: Tensor) -> Tensor:
        near = reference_kl <= self._goal[rows]
        return near if self.open_ended else near & (step >= self._total[rows])

    def _enter(self, rows: list[int]) -> _Slots:
        index = torch.tensor(rows, dtype=torch.int64, device=self.problem.inputs.device)
        state = {"index": index, "step": torch.zeros_like(index), "x": self.problem.inputs[index]}
        return _Slots(rows, [0] * len(rows), state)

    def _divide(self, slots: _Slots) -> tuple[_Slots, _Slots]:
        """The slots that take another step, and those that have taken their last one."""
        ended = [steps >= self._limits[row] for steps, row in zip(slots.steps_taken, slots.rows, strict=True)]
        if not any(ended):
            return slots, slots.select([])
        continuing = slots.select([slot for slot, end in enumerate(ended) if not end])
        return continuing, slots.select([slot for slot, end in enumerate(ended) if end])

    def _process(self, slots: _Slots, last: bool) -> tuple[Segment | None, _Slots]:
        """Evaluate the current points of ``slots``, finish the segments that end at them, and step on unless ``last``.

        Slots whose logits or gradient are not finite end at the point before.
        """
        state, moved = slots.state, slots.steps_taken[0] > 0
        x, index = state["x"], state["index"]
        estimated = self.estimates_norm and moved
        explicit = not (last or estimated) and self.path.step.explicit(self.problem.logits.shape[1])
        tangents = (self.fisher_norm and self._has_jvp and not estimated) or self.path.step.solve == "natural"
        point = self.problem.linearise(x, index, tangents=tangents and not (last or explicit))
        jacobian = ExplicitJacobian.of(point, x, point.value.shape[1]) if explicit else point
        gradient = self.problem.score_gradient(jacobian, point.value, index)
        current, predicted = Point(x, self.problem.score(point.value, index), gradient), log_probabilities(point.value)
        log_p = self.diagnostics.soften(predicted, index)
        finite, arrived = self._status(state, current, point.value, predicted)
        for slot, row in enumerate(slots.rows):
            if not finite[slot]:
                self.outcomes[row], self.steps_taken[row] = PathStatus.DIVERGED, max(slots.steps_taken[slot] - 1, 0)
        if moved:  # a step that aims at the next waypoint leaves it in the state
            waypoint = state["waypoint"] if "waypoint" in state else self._waypoint(state, 0)
            distance = moved_by = fisher_rao_step(state["log_p"], log_p)
            if self.diagnostics.temperature is not None:
                moved_by = fisher_rao_step(state["predicted"], predicted)
            reached = _Reached(current, predicted, log_p, waypoint, moved_by, distance)
        else:  # s_0 is what this pass says: from another pass, its rounding alone would give a direction
            reached = _Reached(current, predicted, log_p, sqrt_chart(log_p), *(torch.zeros_like(log_p[:, 0]),) * 2)
        segment = self._segment(slots, finite, reached) if moved else None
        continuing = [slot for slot in range(len(slots)) if finite[slot] and not arrived[slot]]
        if last or not continuing:
            return segment, slots.select([])
        if self.diagnostics.temperature is not None:
            jacobian = SoftenedJacobian(jacobian, self.diagnostics.temperature[index])
        advanced = self._step(slots, continuing, jacobian, reached)
        return segment, advanced if len(continuing) == len(slots) else advanced.select(continuing)

    def _status(
        self, state: Mapping[str, Tensor], current: Point, logits: Tensor, predicted: Tensor
    ) -> tuple[list[bool], list[bool]]:
        """Which slots are finite, and which have arrived or rest: the step's one transfer from the device."""
        # the largest entry is NaN if any is: a fraction of the time of testing each
        largest = torch.maximum(current.gradient.abs().flatten(1).amax(1), logits.abs().amax(-1))
        finite = largest < torch.inf
        if self.path.until == "budget":
            return finite.tolist(), [False] * len(finite)
        index, length = state["index"], state.get(STATISTIC + "euclidean_step")
        arrived = self._arrived(index, state["step"], kl(predicted, self.diagnostics.log_q[index]))
        if length is not None:  # from step T on the waypoint is the last one: a step of zero is followed by the same
            arrived |= (length == 0) & (state["step"] > self._total[index])
        both = torch.stack([finite, arrived]).tolist()
        return both[0], both[1]

    def _step(self, slots: _Slots, continuing: list[int], jacobian: Jacobian, reached: _Reached) -> _Slots:
        """All slots one step further. Those not ``continuing`` do not move and cost no iteration of the solver."""
        x, state, log_p, waypoint = reached.point.x, slots.state, reached.log_p, reached.waypoint
        after = {"index": state["index"], "step": state["step"] + 1, "before": x, "log_p": log_p}
        after |= {"score": reached.point.score, "gradient": reached.point.gradient}
        if self.diagnostics.temperature is not None:
            after["predicted"] = reached.predicted
        if self.path.waypoint == "next":
            after["waypoint"] = waypoint = self._waypoint(state, 1)
        safe_log_p = log_p
        if len(continuing) < len(slots):
            mask = torch.zeros(len(slots), dtype=torch.bool)
            mask[continuing] = True
            mask = mask.to(x.device)
            safe_log_p = torch.where(mask[:, None], log_p, uniform_log_probs(log_p))
            waypoint = torch.where(mask[:, None], waypoint, sqrt_chart(safe_log_p))
            x = torch.where(batch_view(mask, x), x, 0.0)
        ratio = self._ratio(state, reached.distance) if self.estimates_norm and "ratio" in state else None
        measure = self.fisher_norm and self._has_jvp and ratio is None
        previous = state.get("direction")
        direction = self.solver.direction(jacobian, safe_log_p, waypoint, x, previous, fisher_norm=measure)
        part = direction.geodesic_norm_squared
        if self.estimates_norm and part is not None:
            if measure:  # m m^T <= G, so the ratio is at least 1: what is assumed where nothing measures it
                ratio = torch.where(part > 0, direction.fisher_norm_squared / part, 1.0)
            else:
                ratio = torch.ones_like(part) if ratio is None else ratio
                direction = replace(direction, fisher_norm_squared=ratio * part)
        radius = self._radius(state, log_p)
        after["x"], stats = self._move(reached.point.x, direction, radius)
        if radius is not None and direction.logits is not None:
            after |= {"radius": radius, "planned": -stats["step_size"][:, None] * direction.logits}
        if self.path.step.warm_start and self.path.step.solve == "natural":
            after["direction"] = direction.v
        if ratio is not None:
            after["ratio"] = ratio
            after["expected"] = direction.fisher_norm_squared * stats["step_size"].square()
        after |= {STATISTIC + name: value for name, value in stats.items()}
        return _Slots(slots.rows, [steps + 1 for steps in slots.steps_taken], after)

    def _ratio(self, state: Mapping[str, Tensor], distance: Tensor) -> Tensor:
        """``v^T G v / (m^T v)^2`` (L,), estimated from the steps so far, of which the last was as long as ``distance``
        (L,)."""
        ratio, expected = state["ratio"], state["expected"]
        quotient = (distance.square() / torch.where(expected > 0, expected, 1.0)).clamp(0.25, 4.0)
        return torch.where(expected > 0, ratio * quotient ** (self.path.feedback or 0.0), ratio)

    def _radius(self, state: Mapping[str, Tensor], log_p: Tensor) -> Tensor | None:
        """The bound (L,) in nats on how far this step moves two logits apart."""
        trust = self.path.trust
        if trust.delta_logit is None or "radius" not in state:
            return None if trust.delta_logit is None else torch.full_like(log_p[:, 0], trust.delta_logit)
        return trust.next_radius(state["radius"], state["planned"], log_p - state["log_p"])

    def _move(self, x: Tensor, direction: Direction, radius: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        norm = inner_product(direction.v, direction.v).sqrt()
        logit_range = None if direction.logits is None else spread(direction.logits)
        eta, bound = self.path.trust.step(direction.fisher_norm_squared, norm, logit_range, radius)
        x_next = x - batch_view(eta.to(x.dtype), x) * direction.v
        return x_next, {**direction.stats, "euclidean_step": eta * norm, "step_size": eta, "active_bound": bound}

    def _segment(self, slots: _Slots, finite: list[bool], reached: _Reached) -> Segment | None:
        """The pieces that end at the current points, with what was measured along them; None if no slot is finite."""
        if not all(finite):
            selected = [slot for slot, is_finite in enumerate(finite) if is_finite]
            if not selected:
                return None
            slots, reached = slots.select(selected), reached[torch.tensor(selected, device=reached.log_p.device)]
        for row, steps in zip(slots.rows, slots.steps_taken, strict=True):
            self.steps_taken[row] = steps
        state = slots.state
        stats = {name.removeprefix(STATISTIC): state[name] for name in state if name.startswith(STATISTIC)}
        stats |= self.diagnostics.point(state["index"], reached.predicted, reached.waypoint)
        stats["fisher_rao_step"] = reached.moved
        stop = Point(state["before"], state["score"], state["gradient"])
        return Segment(state["index"], state["step"], reached.point, stop, stats)

    def _waypoint(self, state: Mapping[str, Tensor], ahead: int) -> Tensor:
        """Points (L, C) of their geodesics where the slots are due ``ahead`` steps from now; the end from step T on."""
        index = state["index"]
        return self.diagnostics.waypoint(index, ((state["step"] + ahead) / self._total[index]).clamp_max(1.0))
