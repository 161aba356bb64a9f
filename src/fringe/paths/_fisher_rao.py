"""The Fisher-Rao tracking path: follow the geodesic of predictions from an input towards a reference distribution.

Source: FRInGe (arXiv 2605.06404), section "Method" and the appendix "FRInGe Implementation Details".
"""

import math
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from typing import Any, Literal, Self

import torch
from torch import Tensor

from fringe.errors import InputError
from fringe.geometry import (
    Jacobian,
    ScaledJacobian,
    SoftenedJacobian,
    TargetRestJacobian,
    fisher_norm_squared,
    kl,
    log_probabilities,
    softening_temperature,
    sqrt_chart,
    target_rest_logits,
)
from fringe.linalg import batch_view, inner_product
from fringe.paths._base import (
    AT_POINTS,
    Geodesic,
    Here,
    Path,
    Point,
    Rows,
    Segment,
    State,
    all_finite,
    ends,
    fisher_rao_step,
    softened,
    uniform_log_probs,
)
from fringe.paths._natural_gradient import Direction, NaturalStep, StepSolver
from fringe.paths._problem import Problem

#: The paper's epsilon. ``|v|_G^2`` is near tau/8 > 1e-5 while tracking, so this has no effect except at v = 0.
EPSILON = 1e-12
#: Relative errors of a step's linearisation above which the bound on the logits shrinks, and below which it grows.
TOO_CURVED, LINEAR_ENOUGH = 0.5, 0.25
#: The smallest bound on the logits, as a share of ``delta_logit``.
SHORTEST_RADIUS = 0.1


class Bound(IntEnum):
    """Which of the bounds set the step."""

    ETA_MAX = 0
    KL = 1
    EUCLIDEAN = 2
    LOGIT = 3


@dataclass(frozen=True)
class TrustRegion:
    """``eta = min(eta_max, sqrt(2 tau / (|v|_G^2 + eps)), delta_euc / (|v|_2 + eps))`` (FRInGe, eqs. eta_KL, eta_Euc).

    Attributes:
        eta_max: Largest step size.
        tau: KL budget of a step in nats; None drops this bound.
        delta_euc: Longest step in input units; None drops this bound.
        delta_logit: Bound (ours) on how far a step moves two logits apart, to first order, in nats: eta <= delta_logit
            / (max Jv - min Jv). For steps within d nats, KL(p(x + dx) || p(x)) is at most 2 (1 + (d - 1) e^d) / d^2
            times its quadratic estimate (2 times at d = 1). For a saturated prediction the estimate is near zero, so
            without this bound a step may be far too long. If the network is not linear within the bound, it shrinks,
            see :meth:`next_radius`.
    """

    eta_max: float
    tau: float | None
    delta_euc: float | None
    delta_logit: float | None = None

    def step(
        self,
        fisher_norm_squared: Tensor,
        norm: Tensor,
        logit_range: Tensor | None = None,
        radius: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Compute the step sizes.

        Args:
            fisher_norm_squared: ``v^T G v`` (B,).
            norm: ``|v|_2`` (B,).
            logit_range: Largest minus smallest entry of J v (B,).
            radius: Bounds (B,) of this step in place of ``delta_logit``.

        Returns:
            Step sizes (B,) and the active :class:`Bound` (B,).
        """
        bounds = {Bound.ETA_MAX: torch.full_like(norm, self.eta_max)}
        if self.tau is not None:
            bounds[Bound.KL] = (2.0 * self.tau / (fisher_norm_squared + EPSILON)).sqrt()
        if self.delta_euc is not None:
            bounds[Bound.EUCLIDEAN] = self.delta_euc / (norm + EPSILON)
        if self.delta_logit is not None and logit_range is not None:
            bounds[Bound.LOGIT] = (self.delta_logit if radius is None else radius) / (logit_range + EPSILON)
        none = torch.full_like(norm, torch.inf)
        eta, active = torch.stack([bounds.get(bound, none) for bound in Bound]).min(0)
        return eta, active

    def next_radius(self, radius: Tensor, predicted: Tensor, actual: Tensor) -> Tensor:
        """Adapt the bound on the logits to how linear the network was along the last step.

        The error is the range of ``actual - predicted`` over that of ``predicted``; a constant that is added to all
        logits does not count. If the error is above 1/2, the next bound is half of the planned change; if it is below
        1/4, the bound doubles.

        Args:
            radius: The bounds (B,) of the last step in nats.
            predicted: Changes (B, C) of the logits along it, to first order.
            actual: The changes (B, C) that were measured, of the logits or of the log-probabilities.

        Returns:
            The bounds (B,) of the next step, between a tenth of ``delta_logit`` and ``delta_logit``: at a kink, of
            a ReLU for example, the error is as large for the shortest step.
        """
        largest = self.delta_logit or torch.inf
        planned = spread(predicted)
        error = spread(actual - predicted) / (planned + EPSILON)
        shrunk = torch.where(
            error > TOO_CURVED, 0.5 * planned, torch.where(error < LINEAR_ENOUGH, 2.0 * radius, radius)
        )
        return shrunk.clamp(SHORTEST_RADIUS * largest, largest)


def spread(values: Tensor) -> Tensor:
    """Return the largest minus the smallest entry of each row: (B, C) -> (B,)."""
    return values.amax(-1) - values.amin(-1)


# -- the path ---------------------------------------------------------------------------------------------------------


#: Fisher-Rao distance (radians) to the reference that counts as none: float32 logits resolve no less.
AT_REFERENCE_BELOW = 1e-6

Until = Literal["budget", "half", "arrival"]

#: until="half" goes on until this share of the KL divergence to the reference is gone; the verdict ``ok`` needs the
#: same share.
ENOUGH = 0.5
#: Most steps of until="half", in units of T. docs/results has the measurements.
HALF_LIMIT = 5
#: From step T on, until="half" also stops where the divergence, at the path's temperature, fell by less than this share
#: within the last ``GAIN_WITHIN * T`` steps.
LEAST_GAIN = 0.05
GAIN_WITHIN = 0.5
#: Share of the largest entropy, log C, that temperature="auto" gives the prediction at the input. docs/results.md has
#: the measurements.
AUTO_ENTROPY = 0.5


@dataclass(frozen=True, kw_only=True)
class FisherRaoTracking(NaturalStep):
    """At step k, descend ``1 - <sqrt p(x), s>`` from x_k, with s on the geodesic from p(x) to the reference.

    Attributes:
        trust: The bounds on the length of a step.
        tau: KL budget of a step in nats: the number of steps is ``T = ceil(d_FR / sqrt(2 tau))``.
        steps: Number of steps, instead of T.
        until: ``"budget"`` stops after T steps. The others continue towards the last waypoint: ``"half"`` until half of
            KL(p || reference) at the input is gone, or no more of it goes, for 5 T steps at most; ``"arrival"`` stops,
            perhaps before step T, when half of it is gone and no more than ``arrival_kl`` is left.
        arrival_kl: In nats.
        max_steps: Maximum number of steps of ``"arrival"``.
        reference: A distribution (C,), or one for each image (B, C); uniform when None.
        feedback: For solve="geodesic": estimate the Fisher norm of a direction instead of computing it by a JVP at
            every step. The estimate is ``rho (m^T v)^2``. At the first step rho is computed (1 for a model without
            JVPs). After each step it is multiplied by ``clip(d_FR^2 / (rho (m^T v)^2 eta^2), 1/4, 4) ** feedback``:
            the squared distance made over the squared distance expected.
        temperature: Divide the logits by this number for directions, step lengths and waypoints (the reference too).
            ``"auto"``: for each image the lowest number from 1 on at which the prediction at the input has half of the
            largest entropy. Why: where one class has almost all probability, the metric is zero to rounding and gives
            no direction. The goal of ``until`` is measured without the temperature.
        binary: Two classes, the target and the others together (FRInGe-B), take the place of all C.
    """

    trust: TrustRegion
    tau: float
    steps: int | None = None
    until: Until = "budget"
    arrival_kl: float = 0.05
    max_steps: int = 1000
    reference: tuple[float, ...] | tuple[tuple[float, ...], ...] | None = None
    feedback: float | None = None
    temperature: float | Literal["auto"] = 1.0
    binary: bool = False

    @property
    def exact_norm(self) -> bool:
        """Whether ``(m^T v)^2`` is the whole Fisher norm: that of two classes."""
        return self.binary and self.solve == "geodesic"

    @property
    def needs_jvp(self) -> bool:
        """Whether the length of a step depends on a JVP."""
        return self.trust.tau is not None and not (self.exact_norm and self.trust.delta_logit is None)

    @property
    def estimates_norm(self) -> bool:
        """Whether Fisher norms come from ``feedback``, so that no step depends on a JVP."""
        bounds = self.trust.tau is not None and self.trust.delta_logit is None  # the latter asks for the JVP anyway
        feedback = self.feedback is not None and not self.binary
        return feedback and bounds and self.solve == "geodesic"

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

    def schedule(self, distance: Tensor) -> Tensor:
        """Steps T (B,) of images whose predictions are ``distance`` (B,) radians from the reference; 0 where they are
        at it."""
        steps = torch.ceil(distance / math.sqrt(2.0 * self.tau))
        if self.steps is not None:
            steps = torch.full_like(distance, self.steps)
        return torch.where(distance <= AT_REFERENCE_BELOW, 0.0, steps)

    def limit(self, steps: float) -> float:
        """The most steps that a path of ``T = steps`` may take."""
        return self.max_steps if self.until == "arrival" else steps * (HALF_LIMIT if self.until == "half" else 1)


@dataclass(frozen=True)
class Past(Rows):
    """What a step leaves for the next one.

    Attributes:
        point: The points that it left.
        log_p: Predictions (L, C) there.
        soft: The same at the temperature.
        waypoint: Where predictions should be now (L, C).
        stats: What was measured of the step (L, 3), or (L, 4) in coordinates y.
        y: The coordinates (L, *S) of the points that the step led to; None: they are x.
        rho: The ratio of Fisher norms (L,) that ``feedback`` learns.
        expected: The squared distance (L,) that the step is to make.
        radius: The bound on the logits (L,).
        planned: The change of the logits (L, C) that is to come.
        level: The divergence (L,) from the reference, at the temperature, at the last step that reduced it by
            ``LEAST_GAIN``.
        gained: The number (L,) of that step.
    """

    point: Point
    log_p: Tensor
    soft: Tensor
    waypoint: Tensor
    stats: Tensor
    y: Tensor | None
    rho: Tensor | None
    expected: Tensor | None
    radius: Tensor | None
    planned: Tensor | None
    level: Tensor
    gained: Tensor


@dataclass(frozen=True)
class FisherRaoPath(Path):
    """Algorithm 1 of the paper: the path with these settings over the images of a problem.

    Lines 1-4 are ``init``; 5 is the loop of the quadrature; 6 is ``look``; 7-9 are the ``solver``; 10-12 are ``move``;
    13 is ``segment``, whose integral the quadrature adds.

    With a ``scale`` s it is the path of the network ``g(y) = F(x_0 + s (y - x_0))``, seen in x: an entry with a small s
    is dear to move, and one with s = 0 stays. Points, segments, lengths and the bound ``delta_euc`` are those of x, and
    the prior smooths y. The measure ``focused_step`` is then the length of each step in y.

    Attributes:
        settings: The settings.
        solver: The solver of a step.
        has_jvp: Whether JVPs can be used: the model has them, or the settings need them.
        scale: s, which broadcasts to (B, *S); None: 1.
    """

    settings: FisherRaoTracking
    solver: StepSolver
    has_jvp: bool
    scale: Tensor | None = None

    @classmethod
    def on(cls, settings: FisherRaoTracking, problem: Problem, scale: Tensor | None = None) -> Self:
        """Build the operators for inputs of this shape."""
        has_jvp = problem.model.jvp_mode != "none" or not settings.estimates_norm
        return cls(settings, settings.solver(problem.inputs[0]), has_jvp, scale)

    @property
    def measures(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride] - depends on the scale
        step = ("euclidean_step", "step_size", "active_bound")
        return (*step, *(() if self.scale is None else ("focused_step",)), "fisher_rao_step", *AT_POINTS)

    @property
    def open_ended(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride] - depends on a setting
        return self.settings.until == "arrival"

    @cached_property
    def recorded_as(self) -> object:  # pyright: ignore[reportIncompatibleVariableOverride] - depends on the settings
        return replace(self.settings, reference=None), self.has_jvp

    def init(self, problem: Problem) -> State:
        """Lines 1-4: T, the waypoints s_k, x_0 = x."""
        settings, rows, temperature = self.settings, problem.every_row, None
        logits, log_q = problem.logits, settings.log_reference(problem)
        if settings.binary:
            logits, log_q = (target_rest_logits(z, problem.target) for z in (logits, log_q))
        log_p = log_probabilities(logits)
        if settings.temperature == "auto":
            temperature = softening_temperature(logits, AUTO_ENTROPY)
        elif settings.temperature != 1.0:
            temperature = torch.full_like(logits[:, 0], settings.temperature, dtype=torch.float64)
        geodesic = Geodesic.between(log_p, log_q, temperature)
        total = settings.schedule(geodesic.length)
        goal = (1.0 - ENOUGH) * kl(log_p, geodesic.log_q)
        return State(
            path=rows,
            image=rows,
            step=torch.zeros_like(rows),
            total=total,
            limit=settings.limit(1.0) * (torch.ones_like(total) if self.open_ended else total),
            goal=goal.clamp_max(settings.arrival_kl) if self.open_ended else goal,
            geodesic=geodesic,
            scale=None if self.scale is None else self.scale.expand_as(problem.inputs),
        )

    def look(self, problem: Problem, state: State, closing: bool = False) -> tuple[Here, Jacobian]:
        """Line 6: p_k = softmax F(x_k), with the gradient of F^t."""
        settings, past, image = self.settings, state.past, state.image
        x = problem.inputs[image] if state.x is None else state.x
        estimated = settings.estimates_norm and past is not None
        tangents = settings.needs_jvp and self.has_jvp and not (estimated or closing)
        jacobian: Any = problem.linearise(x, image, tangents=tangents)
        logits = jacobian.value
        point = Point(x, problem.score(logits, image), problem.score_gradient(jacobian, logits, image))
        finite = all_finite(point.gradient, logits)
        if settings.binary:
            jacobian = TargetRestJacobian(jacobian, logits, problem.target[image])
            logits = target_rest_logits(logits, problem.target[image])
        log_p = log_probabilities(logits)
        soft = softened(log_p, state.geodesic.temperature)
        # s_0 is what this pass says: from another pass, its rounding alone would give a direction
        waypoint = sqrt_chart(soft) if past is None else past.waypoint
        goes_on = finite & ~self._arrived(state, log_p, soft) & (state.step < state.limit)
        here = Here(point, log_p, soft, waypoint, finite, goes_on, state.step + 1 >= state.limit)
        temperature = state.geodesic.temperature
        jacobian = jacobian if temperature is None else SoftenedJacobian(jacobian, temperature)
        return here, jacobian if state.scale is None else ScaledJacobian(jacobian, state.scale)

    def _arrived(self, state: State, log_p: Tensor, soft: Tensor) -> Tensor:
        """Whether paths may stop before their limit: near their goals, or at rest."""
        if self.settings.until == "budget":
            return torch.zeros_like(state.step, dtype=torch.bool)
        assert state.goal is not None
        near = kl(log_p, state.geodesic.log_q) <= state.goal
        if not self.open_ended:
            if self.settings.solve != "diffusion":  # a control, which does not aim at the reference
                near = near | (state.step - self._gain(state, soft)[1] >= GAIN_WITHIN * state.total)
            near = near & (state.step >= state.total)
        if state.past is not None:  # from step T on the waypoint stays: after a step of length zero all later are zero
            moved = state.past.stats[:, self.measures.index("euclidean_step")]
            near = near | ((moved == 0) & (state.step > state.total))
        return near

    def _gain(self, state: State, soft: Tensor) -> tuple[Tensor, Tensor]:
        """The divergence when it last fell by ``LEAST_GAIN``, and the step after which it did: (L,) each."""
        left = kl(soft, 2.0 * state.geodesic.s1.log())
        if state.past is None:
            return left, state.step
        falls = left <= (1.0 - LEAST_GAIN) * state.past.level
        return torch.where(falls, left, state.past.level), torch.where(falls, state.step, state.past.gained)

    def move(self, problem: Problem, state: State, here: Here, more: Jacobian) -> State:
        """Lines 7-12: the direction v_k, its length eta_k, x_{k+1}. A path that ends has v = 0."""
        settings, past, x, continues = self.settings, state.past, here.point.x, here.goes_on
        log_p = torch.where(continues[:, None], here.soft, uniform_log_probs(here.soft))
        ahead = state.geodesic.at((state.step + 1) / state.total)
        s = torch.where(continues[:, None], ahead, sqrt_chart(log_p))
        y = x if past is None or past.y is None else past.y

        # 7-9: L_k = 1 - <sqrt p_k, s>, g_k its gradient, (G + lambda I + gamma_step L'L) v = g_k + gamma_prior L'L x
        solved = self.solver.direction(more, log_p, s, torch.where(batch_view(continues, y), y, 0.0))
        v = solved.v

        # 10: n_k^2 = v^T G v
        n2, u, rho = self._fisher_norm(past, here.soft, more, log_p, solved)

        # 11-12: eta_k = min(eta_max, sqrt(2 tau / n^2), delta / |s v|), x_{k+1} = x_k - eta_k s v_k
        dx = v if state.scale is None else state.scale * v
        norm, radius = inner_product(dx, dx).sqrt(), None
        if settings.trust.delta_logit is not None:
            radius = torch.full_like(n2, settings.trust.delta_logit)
            if past is not None and past.radius is not None:
                radius = settings.trust.next_radius(past.radius, past.planned, here.soft - past.soft)
        level, gained = self._gain(state, here.soft)
        eta, bound = settings.trust.step(n2, norm, None if u is None else spread(u), radius)
        size = batch_view(eta.to(x.dtype), x)
        stats = [torch.stack([eta * norm, eta, bound.to(eta.dtype)], 1)]
        if state.scale is not None:
            stats.append((eta * inner_product(v, v).sqrt())[:, None])
        left = Past(
            point=here.point,
            log_p=here.log_p,
            soft=here.soft,
            waypoint=ahead,
            stats=torch.cat(stats, 1),
            y=None if state.scale is None else y - size * v,
            rho=rho,
            expected=None if rho is None else n2 * eta.square(),
            radius=None if u is None else radius,
            planned=None if u is None or radius is None else -eta[:, None] * u,
            level=level,
            gained=gained,
        )
        return replace(state, step=state.step + 1, x=x - size * dx, past=left)

    def _fisher_norm(
        self, past: Past | None, soft: Tensor, jacobian: Jacobian, log_p: Tensor, solved: Direction
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Line 10: n_k^2 by a JVP, or learnt: rho (m^T v)^2. With it J v and rho, where they are known."""
        settings, part, u = self.settings, solved.geodesic_norm_squared, None
        n2 = part if settings.exact_norm and part is not None else torch.zeros_like(log_p[:, 0])
        if settings.needs_jvp and self.has_jvp and not (settings.estimates_norm and past is not None):
            # v^T (b - R v) would cost no JVP, but where R dominates it is a difference of large numbers
            u = jacobian.jvp(solved.v).to(log_p.dtype)
            n2 = fisher_norm_squared(log_p.exp(), u)
        if not settings.estimates_norm or part is None:
            return n2, u, None
        if u is not None:  # rho is at least 1, because m m^T <= G; 1 where (m^T v)^2 is zero
            return n2, u, torch.where(part > 0, n2 / part, 1.0)
        rho = torch.ones_like(part) if past is None else self._learnt(past, soft)
        return rho * part, u, rho

    def _learnt(self, past: Past, soft: Tensor) -> Tensor:
        """rho = v^T G v / (m^T v)^2, from what the last step was to do and what it did, in radians squared."""
        assert past.rho is not None
        assert past.expected is not None
        known, distance = past.expected > 0, fisher_rao_step(past.soft, soft)
        quotient = (distance.square() / torch.where(known, past.expected, 1.0)).clamp(0.25, 4.0)
        return torch.where(known, past.rho * quotient ** (self.settings.feedback or 0.0), past.rho)

    def segment(self, state: State, here: Here) -> Segment | None:
        """Line 13: the segment x_{k-1} x_k, whose ends the quadrature needs."""
        past: Past | None = state.past
        if past is None:
            return None
        measured = state.geodesic.measured(here.log_p, here.waypoint, here.soft)
        stats = torch.cat([past.stats, fisher_rao_step(past.log_p, here.log_p)[:, None], measured], 1)
        start = ends(here.point, past.point, here.finite)
        return Segment(state.path, state.step, start, past.point, stats, here.finite)
