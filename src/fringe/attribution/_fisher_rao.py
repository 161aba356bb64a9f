r"""FRInGe's path and the integral along it: Algorithm 1 of arXiv 2605.06404 with another metric, on any kind of input.

From x_0 = x, step k descends the spherical loss :math:`L_k(x) = 1 - \langle \sqrt{p(x)}, s_{k+1} \rangle`, with s_k on
the geodesic from the prediction at the input to the reference q. With :math:`R = \lambda I + \gamma_{step} L^\top L`:

.. math:: (W W^\top + R)\, v_k = \nabla L_k + \gamma_{prior} L^\top L x_k, \qquad x_{k+1} = x_k - \eta_k v_k

The first column of W is the metric along the geodesic; images have no other. Lines of the algorithm: 1-4 ``start``, 5
``_walk.py``, 6 ``look``, 7-9 ``direction``, 10-12 ``move``, 13 ``segment``. As printed, with the whole
metric, it is in ``_paper.py``. Of L paths, points are (L, *S), predictions (L, C), scores of K classes (L, K).
"""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Literal, NamedTuple, Self

import torch
from torch import Tensor

from fringe._network.rectifiers import smooth_slopes
from fringe.attribution._coordinates import Coordinates
from fringe.attribution._integrate import completeness_gap
from fringe.errors import InputError
from fringe.geometry import (
    Jacobian,
    ScaledJacobian,
    SoftenedJacobian,
    TargetRestJacobian,
    balanced,
    fisher_norm_squared,
    kl,
    log_probabilities,
    more_directions,
    softening_temperature,
    sqrt_chart,
    target_rest_logits,
    to_tangent,
)
from fringe.linalg import SPATIAL_AXES, SpectralOperator, Structure, batch_view, inner_product, laplacian
from fringe.paths import (
    Geodesic,
    Point,
    Problem,
    Rows,
    all_finite,
    fisher_rao_step,
    softened,
    uniform_log_probs,
)

Until = Literal["budget", "half", "arrival"]

#: The paper's epsilon. ``|v|_G^2`` is near tau/8 > 1e-5 while tracking, so this has no effect except at v = 0.
EPSILON = 1e-12
#: Fisher-Rao distance (radians) to the reference that counts as none: float32 logits resolve no less.
AT_REFERENCE_BELOW = 1e-6
#: Most nats to the reference at the end of until="arrival".
ARRIVED_BELOW = 0.05
#: Share of the KL to the reference that is gone at the end of until="half" and "arrival"; the verdict ``ok`` needs the
#: same share.
ENOUGH = 0.5
#: Most steps of until="half", in units of T. docs/results has the measurements.
HALF_LIMIT = 5
#: From step T on, until="half" also stops where the divergence, at the path's temperature, fell by less than this share
#: within the last ``GAIN_WITHIN * T`` steps, and at least that many.
LEAST_GAIN, GAIN_WITHIN, LEAST_WITHIN = 0.05, 0.5, 4
#: Share of the largest entropy, log C, that temperature="auto" gives the prediction at the input. docs/results.md has
#: the measurements.
AUTO_ENTROPY = 0.5
#: Columns of W. Of a few classes 16 are the full metric. With one, a path of small networks comes to rest where two
#: classes share the prediction and the others have none: leaving takes a step that keeps the two equal.
RANK: dict[Structure, int] = {"image": 1, "sequence": 16, "none": 16}
#: Images: the weight of the earlier steps in the direction of the next one.
MEMORY = 0.7
#: Tables and series: the share of |m|^2 that is the unit of R and of gamma_prior, for m the first column of W.
RELATIVE_UNIT = 1e-2
#: Tables and series: nats by which a step may move two logits apart, to first order; and the least share of it.
LOGIT_BOUND, SHORTEST = 1.0, 0.1
#: Relative errors of a step's linearisation above which the bound on the logits shrinks, and below which it grows.
TOO_CURVED, LINEAR_ENOUGH = 0.5, 0.25
#: Share of the change of the score between an input and the uniform prediction that counts as covered from the first
#: step on. Else a score that hardly moves at first would be summed to within nothing.
LEAST_CHANGE = 0.1


class Bound(IntEnum):
    """Which of the bounds set the step."""

    ETA_MAX = 0
    KL = 1
    EUCLIDEAN = 2
    LOGIT = 3


@dataclass(frozen=True)
class State(Rows):
    """Where L paths are, and what they remember. What follows ``x`` is None before the first step.

    Attributes:
        image: Their images (L,).
        step: Steps taken (L,).
        total: T (L,); 0 for a path without steps.
        limit: The most steps (L,).
        goal: The KL (L,) to the reference at which the path may end.
        geodesic: From the predictions at the inputs to the references.
        first: Scores (L, K) at the inputs.
        least: What of their change counts as covered from the start (L, K).
        missed: The errors (L, K) of the sums so far.
        coordinates: Those in which steps are taken; None: those of the input.
        x: The points (L, *S); None for the inputs.
        point: The points before the last step.
        log_p: Predictions (L, C) there, as log-probabilities.
        soft: The same at the temperatures.
        waypoint: Where these should be now (L, C), in the square-root chart.
        stats: What was measured of the last step (L, 3), or (L, 4) in coordinates y.
        level: The divergence (L,) at the temperature when it last fell by ``LEAST_GAIN``.
        gained: The number (L,) of the step when it did.
        rho: The ratio v^T G v / (m^T v)^2 (L,), learnt.
        expected: The squared length in radians (L,) that the last step should have.
        radius: The bound (L,) of the last step on the logits.
        planned: The change of the logits (L, C) by it, to first order.
        mean: The mean of m over the steps (L, *S), in the eigenbasis of L.
    """

    image: Tensor
    step: Tensor
    total: Tensor
    limit: Tensor
    goal: Tensor
    geodesic: Geodesic
    first: Tensor
    least: Tensor
    missed: Tensor
    coordinates: Coordinates | None
    x: Tensor | None = None
    point: Point | None = None
    log_p: Tensor | None = None
    soft: Tensor | None = None
    waypoint: Tensor | None = None
    stats: Tensor | None = None
    level: Tensor | None = None
    gained: Tensor | None = None
    rho: Tensor | None = None
    expected: Tensor | None = None
    radius: Tensor | None = None
    planned: Tensor | None = None
    mean: Tensor | None = None


class Here(NamedTuple):
    """The network at the current points of L paths: points, predictions (L, C) as log-probabilities and at the
    temperatures, which of them are finite (L,), the Jacobian of the latter's logits, and whether the length of the next
    step takes a product J v with it."""

    point: Point
    log_p: Tensor
    soft: Tensor
    finite: Tensor
    jacobian: Jacobian
    takes_jvp: bool


@dataclass(frozen=True)
class Segment:
    """The pieces that L paths walked last, oriented from the end of the path to the input.

    Attributes:
        start, stop: Their ends.
        stats: What was measured of each and at its start (L, N).
        chosen: Which are to be halved (L, K).
        bounds: (L, K, 3): the errors before each on its path, the limit of their sum, and of that of a piece.
    """

    start: Point
    stop: Point
    stats: Tensor
    chosen: Tensor
    bounds: Tensor


@dataclass(frozen=True, kw_only=True)
class FisherRaoPath:
    """The path for inputs of one kind: pure functions of its state. Nothing here waits for the device.

    Fields not listed are those of :class:`fringe.FRInGe`.

    Attributes:
        cap: The longest step in input units; None: no limit.
        rtol: The setting ``quadrature_rtol``.
        binary: Two classes, the target and the others together, take the place of all C.
        line: Whether the map is the integral along the straight line to the end, so that the path needs no gradients.
        is_mask: Whether steps are taken in a mask: see :class:`Coordinates`.
        smooths: Whether the path smooths the image and does not look where the network leads: the control `diffusion`.
        has_jvp: Whether the network has Jacobian-vector products.
        modes: The eigenbasis of L, with the symbol of L^T L.
        inverse: The symbol of R^-1 in it.
    """

    tau: float
    eta_max: float
    cap: float | None
    damping: float
    gamma_step: float
    gamma_prior: float
    structure: Structure
    rtol: float
    halvings: int
    steps: int | None
    until: Until
    max_steps: int
    reference: tuple[float, ...] | tuple[tuple[float, ...], ...] | None
    temperature: float | Literal["auto"]
    binary: bool
    smooths: bool
    line: bool
    is_mask: bool
    has_jvp: bool = True
    modes: SpectralOperator = field(compare=False, repr=False, default=SpectralOperator((), torch.zeros(())))
    inverse: Tensor = field(compare=False, repr=False, default=torch.zeros(()))

    def on(self, like: Tensor, *, has_jvp: bool = True) -> Self:
        """Return the path with the operators for inputs shaped like ``like`` (*S), on its device."""
        axes, shape = SPATIAL_AXES[self.structure], tuple(like.shape)
        if axes > len(shape):
            raise InputError(
                f"{self.structure!r} needs inputs with at least {axes} axes, got shape {shape}",
                argument="structure",
                hint="choose structure='none' for tabular data",
            )
        biharmonic = laplacian(shape[len(shape) - axes :]).square()
        modes = SpectralOperator.of(biharmonic, like)
        inverse = (1.0 / (self.damping + self.gamma_step * biharmonic)).to(modes.symbol)
        return replace(self, has_jvp=has_jvp, modes=modes, inverse=inverse)

    @property
    def jvp_use(self) -> Literal["none", "optional", "required"]:
        """``"required"``: the length of each step takes J v; ``"optional"``: that of the first one, and the others
        learn from it; ``"none"``: of two classes the metric has rank one, so that its closed form is exact."""
        if self.smooths or self.structure != "image":
            return "required"
        return "none" if self.binary else "optional"

    @property
    def smooth_slopes(self) -> bool:
        """Whether directions take smooth slopes of rectifiers."""
        return self.structure == "image" and not self.smooths

    # -- where the path begins, how many steps it has, and where it ends: lines 1 to 5 --------------------------------

    def start(self, problem: Problem, scale: Tensor | None = None) -> State:
        """Return all paths before their first step: T, the geodesic, x_0 = x."""
        logits, rows = problem.logits, problem.every_row
        log_q = uniform_log_probs(logits) if self.reference is None else self.log_reference(problem)
        if self.binary:
            logits, log_q = (target_rest_logits(z, problem.target) for z in (logits, log_q))
        log_p, temperature = log_probabilities(logits), None
        if self.temperature == "auto":
            temperature = softening_temperature(logits, AUTO_ENTROPY)
        elif self.temperature != 1.0:
            temperature = torch.full_like(logits[:, 0], self.temperature, dtype=torch.float64)
        geodesic = Geodesic.between(log_p, log_q, temperature)
        total = self.schedule(geodesic.length)
        goal = (1.0 - ENOUGH) * kl(log_p, geodesic.log_q)
        uniform = problem.logits.mean(1, keepdim=True).expand_as(problem.logits)
        first, centre = (problem.score(z).view(len(rows), -1) for z in (problem.logits, uniform))
        least = LEAST_CHANGE * (first - centre).double().abs()
        return State(
            image=rows,
            step=torch.zeros_like(rows),
            total=total,
            limit=torch.full_like(total, self.max_steps) if self.until == "arrival" else total * self.limit(1.0),
            goal=goal.clamp_max(ARRIVED_BELOW) if self.until == "arrival" else goal,
            geodesic=geodesic,
            first=first,
            least=least,
            missed=torch.zeros_like(least),
            coordinates=Coordinates.of(problem, scale, mask=self.is_mask),
        )

    def log_reference(self, problem: Problem) -> Tensor:
        """Return the log-probabilities (B, C) of the caller's reference of each image."""
        shape, classes = tuple(problem.logits.shape), problem.logits.shape[1]
        q = torch.tensor(self.reference, dtype=torch.float64, device=problem.logits.device)
        per_image = (problem.total or shape[0], classes)
        if tuple(q.shape) not in ((classes,), per_image):
            message = f"got shape {tuple(q.shape)}, expected ({classes},) or {per_image}"
            raise InputError(message, argument="reference")
        if q.dim() == 2 and problem.rows is not None:
            q = q[list(problem.rows)]
        return q.log().expand(shape)

    def schedule(self, distance: Tensor) -> Tensor:
        """Return T (B,) for predictions at this ``distance`` (B,) in radians from the reference; 0 at the reference."""
        steps = torch.ceil(distance / math.sqrt(2.0 * self.tau))
        if self.steps is not None:
            steps = torch.full_like(distance, self.steps)
        return torch.where(distance <= AT_REFERENCE_BELOW, 0.0, steps)

    def limit(self, steps: float) -> float:
        """Return the most steps that a path of ``T = steps`` may take."""
        return self.max_steps if self.until == "arrival" else steps * (HALF_LIMIT if self.until == "half" else 1)

    def onward(self, state: State, here: Here) -> tuple[Tensor, Tensor, Tensor]:
        """Tell which paths (L,) take another step; with the divergence when it last fell by ``LEAST_GAIN``, and the
        step (L,) when it did."""
        level = left = kl(here.soft, 2.0 * state.geodesic.s1.log())
        gained, ends = state.step, torch.zeros_like(here.finite)
        if state.level is not None and state.gained is not None:
            falls = left <= (1.0 - LEAST_GAIN) * state.level
            level, gained = torch.where(falls, left, state.level), torch.where(falls, state.step, state.gained)
        if self.until != "budget":
            ends = kl(here.log_p, state.geodesic.log_q) <= state.goal
            if self.until == "half" or self.is_mask:
                if not self.smooths:  # a control, which does not aim at the reference
                    ends = ends | (state.step - gained >= (GAIN_WITHIN * state.total).clamp_min(LEAST_WITHIN))
                ends = ends & (state.step >= state.total)
            if state.stats is not None:  # from step T on the waypoint stays: after a step of length 0 all are
                ends = ends | ((state.stats[:, 0] == 0) & (state.step > state.total))
        return here.finite & ~ends & (state.step < state.limit), level, gained

    # -- a step: lines 6 to 12 ----------------------------------------------------------------------------------------

    def look(self, problem: Problem, state: State, *, closing: bool) -> Here:
        """Line 6: p_k = softmax F(x_k), with the gradients of the scores; ``closing``: no step departs from here."""
        assert state.x is not None
        image, geodesic = state.image, state.geodesic
        takes_jvp = self.jvp_use == "required" or (self.jvp_use == "optional" and self.has_jvp and state.point is None)
        tangents = takes_jvp and not closing
        jacobian: Any = problem.linearise(state.x, image, tangents=tangents, smooth=self.smooth_slopes)
        logits, score = jacobian.value, problem.score(jacobian.value, image)
        shape = (*score.shape, *state.x.shape[1:])
        none = state.x.new_zeros(()).expand(shape) if self.line else None
        point = Point(state.x, score, problem.score_gradient(jacobian, logits, image) if none is None else none)
        finite = all_finite(point.gradient, logits)
        if self.binary:
            jacobian = TargetRestJacobian(jacobian, logits, problem.target[image])
            logits = target_rest_logits(logits, problem.target[image])
        if geodesic.temperature is not None:
            jacobian = SoftenedJacobian(jacobian, geodesic.temperature)
        if state.coordinates is not None:
            jacobian = ScaledJacobian(jacobian, state.coordinates.slope())
        log_p = log_probabilities(logits)
        return Here(point, log_p, softened(log_p, geodesic.temperature), finite, jacobian, tangents)

    def direction(
        self,
        jacobian: Jacobian,
        log_p: Tensor,
        waypoint: Tensor,
        x: Tensor,
        earlier: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        r"""Lines 7-9: the direction v (L, *S) at ``x`` towards ``waypoint`` (L, C), (m^T v)^2 (L,), and for images the
        mean of m over the steps (L, *S), from that of ``earlier`` ones and the weight (L,) of this one.

        With :math:`s = \sqrt p`, the tangent t = s' - s <s, s'> to the waypoint s' and b_p the prior's part, the
        columns of W are :math:`J^\top (s \circ q)` for orthonormal q, the first of them t / |t|: then :math:`\nabla L =
        -|t| m / 2`, and by the identity of Woodbury

        .. math:: v = R^{-1} b_p - R^{-1} W (I + W^\top R^{-1} W)^{-1} (|t| e_1 / 2 + W^\top R^{-1} b_p)

        Nothing large cancels, however small R is, where the columns are independent. Of tables and series |m|^2 / 100
        times R and b_p stand in their place: a saturated softmax, whose metric is almost zero, is damped no more than
        another. This factor, like the size of each column, meets the rest in the r x r system alone.
        """
        is_image = self.structure == "image"
        # in the eigenbasis of L, where R^-1 is a factor: a transform of each column and of x, and one back
        to_modes, prior = self.modes.to_modes, self.gamma_prior * self.modes.symbol * self.inverse
        v = prior * to_modes(x)
        if self.smooths:
            return self.modes.from_modes(v), None, None
        s = sqrt_chart(log_p)
        tangent = to_tangent(waypoint - s, s)
        length = tangent.norm(dim=-1, keepdim=True)
        unit = tangent / torch.where(length > 0, length, 1.0)
        rank = RANK[self.structure]
        chart = (unit, *(more_directions(s, unit, rank - 1) if rank > 1 else ()))
        cotangents = torch.stack([balanced(s * q, s) for q in chart], 1)
        sizes, identity = torch.ones_like(cotangents[..., 0]), torch.ones_like(cotangents[..., 0])
        if not is_image:  # float32 holds no gradient of a probability that underflows: sizes stay outside
            sizes = cotangents.abs().amax(-1).clamp_min(torch.finfo(s.dtype).tiny)
            cotangents = cotangents / sizes[..., None]
        with smooth_slopes() if is_image else contextlib.nullcontext():
            columns = [to_modes(jacobian.vjp(c.to(x.dtype))) for c in cotangents.unbind(1)]
        m = columns[0]
        if is_image and earlier is not None:  # m jumps between the linear pieces of a network, and its mean less
            before, weight = earlier
            columns[0] = before + batch_view(weight.to(before), before) * (columns[0] - before)
        # of dependent columns, as of few features, large weights cancel: products in float32 may turn v round
        wide = x.dtype if is_image else torch.float64
        if not is_image:
            norm = inner_product(columns[0], columns[0])[:, None]
            identity = RELATIVE_UNIT * norm * (sizes[:, :1] / sizes).square().clamp_max(1e200)
            identity = torch.where(norm > 0, identity, 1.0)
        right = -torch.stack([inner_product(w, v) for w in columns], -1)
        right[:, 0] -= 0.5 * length[:, 0] / sizes[:, 0]
        products = [[inner_product(w, self.inverse * z.to(wide)) for w in columns] for z in columns]
        gram = torch.stack([torch.stack(row, -1) for row in products], -1)
        gram = 0.5 * (gram + gram.mT) + torch.diag_embed(identity)
        weights = right / gram[:, 0] if len(columns) == 1 else torch.linalg.solve_ex(gram, right)[0]
        for weight, w in zip(weights.unbind(-1), columns, strict=True):
            v = v + batch_view(weight.to(wide), v) * (self.inverse * w.to(wide))
        if not is_image:  # float32 overflows where the metric is almost zero; the step is bounded anyway
            largest = v.abs().flatten(1).amax(1).clamp_min(torch.finfo(v.dtype).tiny)
            v = v * batch_view((1e6 / largest).clamp_max(1.0), v)
        v = v.to(x.dtype)
        along = inner_product(m if self.binary else columns[0], v)  # of two classes (m^T v)^2 is the whole norm
        along = (along * sizes[:, 0]).square().to(log_p.dtype)
        return self.modes.from_modes(v), along, columns[0] if is_image else None

    def move(self, problem: Problem, state: State, here: Here, level: Tensor, gained: Tensor) -> State:
        """Lines 7-12: the direction v_k, its length eta_k, and x_{k+1} = x_k - eta_k v_k."""
        x, soft, u = here.point.x, here.soft, None
        moves = state.coordinates
        y = x if moves is None or moves.y is None else moves.y
        waypoint = state.geodesic.at((state.step + 1) / state.total)
        weight = (1.0 - MEMORY) / (1.0 - MEMORY ** (state.step + 1).double())
        earlier = None if state.mean is None else (state.mean, weight)
        v, along, mean = self.direction(here.jacobian, soft, waypoint, y, earlier)

        # 10: n_k^2 = v^T G v by a JVP, or learnt: rho (m^T v)^2. (v^T (b - R v) would cost no JVP, but where R
        # dominates it is a difference of large numbers.)
        rho = expected = None
        if here.takes_jvp:
            u = here.jacobian.jvp(v).to(soft.dtype)
            n2 = fisher_norm_squared(soft.exp(), u)
        else:
            assert along is not None
            n2 = along
        if self.jvp_use == "optional" and along is not None:
            if state.point is None:  # rho is at least 1, because m m^T <= G; 1 where (m^T v)^2 is zero
                rho = torch.ones_like(along) if u is None else torch.where(along > 0, n2 / along, 1.0)
            else:
                rho = self.learnt(state, soft)
                n2 = rho * along

        # 11: eta_k is the least of four bounds
        dx = v if moves is None else moves.slope() * v
        length = inner_product(dx, dx).sqrt()
        capped = inner_product(v, v).sqrt() if self.is_mask else length
        radius = None if self.structure == "image" else self.radius(state, soft)
        eta, bound = self.eta(n2, capped, None if u is None or radius is None else spread(u), radius)
        if rho is not None:
            expected = n2 * eta.square()

        # 12: x_{k+1} = x_k - eta_k s v_k
        size = batch_view(eta.to(x.dtype), x)
        after, moved = (x - size * dx, None) if moves is None else moves.move(x, v, dx, size)
        made = (after - x).flatten(1).norm(dim=1).to(eta) if self.is_mask else eta * length
        stats = [made, eta, bound.to(eta.dtype)]
        if moves is not None:
            stats.append(eta * inner_product(v, v).sqrt())
        return replace(
            state,
            step=state.step + 1,
            x=after,
            point=here.point,
            log_p=here.log_p,
            soft=soft,
            waypoint=waypoint,
            stats=torch.stack(stats, 1),
            level=level,
            gained=gained,
            coordinates=moved,
            rho=rho,
            expected=expected,
            radius=radius,
            planned=None if u is None or radius is None else -eta[:, None] * u,
            mean=mean,
        )

    def learnt(self, state: State, soft: Tensor) -> Tensor:
        """Return rho (L,): the last one times the squared distance made over the squared distance expected, from 1/4 to
        4, now that predictions are ``soft`` (L, C)."""
        assert state.rho is not None
        assert state.expected is not None
        assert state.soft is not None
        known, made = state.expected > 0, fisher_rao_step(state.soft, soft).square()
        quotient = (made / torch.where(known, state.expected, 1.0)).clamp(0.25, 4.0)
        return torch.where(known, state.rho * quotient, state.rho)

    def radius(self, state: State, soft: Tensor) -> Tensor:
        """Return the bound (L,) in nats on how far the next step moves two logits apart, to first order.

        For steps within d nats, KL(p(x + dx) || p(x)) is at most 2 (1 + (d - 1) e^d) / d^2 times its quadratic estimate
        (2 times at d = 1). For a saturated prediction the estimate is near zero, so without this bound a step may be
        far too long. It adapts to how linear the network was along the last step: the error is the range of ``actual -
        planned`` change over that of ``planned``; a constant that is added to all logits does not count. Above 1/2 the
        bound becomes half of the planned change; below 1/4 it doubles. It stays between a tenth of a nat and one: at a
        kink, of a ReLU for example, the error is as large for the shortest step.
        """
        if state.radius is None or state.planned is None or state.soft is None:
            return torch.full_like(soft[:, 0], LOGIT_BOUND)
        planned = spread(state.planned)
        error = spread((soft - state.soft) - state.planned) / (planned + EPSILON)
        doubled = torch.where(error < LINEAR_ENOUGH, 2.0 * state.radius, state.radius)
        return torch.where(error > TOO_CURVED, 0.5 * planned, doubled).clamp(SHORTEST * LOGIT_BOUND, LOGIT_BOUND)

    def eta(
        self, n2: Tensor, length: Tensor, logit_range: Tensor | None = None, radius: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the step sizes (L,) and the active :class:`Bound` (L,):
        ``eta = min(eta_max, sqrt(2 tau / (|v|_G^2 + eps)), delta_euc / (|v|_2 + eps))`` (eqs. eta_KL, eta_Euc), and the
        bound on the logits."""
        none = torch.full_like(length, torch.inf)
        bounds = {
            Bound.ETA_MAX: torch.full_like(length, self.eta_max),
            Bound.KL: (2.0 * self.tau / (n2 + EPSILON)).sqrt(),
            Bound.EUCLIDEAN: none if self.cap is None else self.cap / (length + EPSILON),
            Bound.LOGIT: none if logit_range is None or radius is None else radius / (logit_range + EPSILON),
        }
        return torch.stack([bounds[bound] for bound in Bound]).min(0)

    # -- the integral: line 13, and more points where the sum is off --------------------------------------------------

    def segment(self, state: State, here: Here) -> tuple[Segment, Tensor]:
        """Return the segments that end here, and the errors (L, K) of the sums with them.

        The error of a piece is known, since the score is known at both ends. It is tolerated while the errors so far,
        taken together, are within ``rtol`` times the change of the score so far; and that of a piece, within ``rtol``
        times its own share. A halving is taken to leave a quarter of the error, so that no path waits for the halves,
        and what is halved does not depend on the batch.
        """
        stop, stats = state.point, state.stats
        assert stop is not None
        assert stats is not None
        assert state.waypoint is not None
        assert state.log_p is not None
        measured = state.geodesic.measured(here.log_p, state.waypoint, here.soft)
        stats = torch.cat([stats, fisher_rao_step(state.log_p, here.log_p)[:, None], measured], 1)
        # one that leads to a point that is not finite has no length
        finite = here.finite
        ends = (here.point.x, stop.x), (here.point.score, stop.score)
        x, score = (torch.where(batch_view(finite, a), a, b) for a, b in ends)
        start = Point(x, score, here.point.gradient)
        pieces = zip(start.of_classes(), stop.of_classes(), strict=True)
        error = torch.stack([piece_error(trapezoid(a, b), a, b) for a, b in pieces], 1)
        error = torch.where(finite[:, None], error, 0.0)
        near, far = (end.score.view_as(error) for end in (stop, start))
        change = torch.maximum((state.first - far).double().abs(), state.least)
        share = torch.maximum((near - far).double().abs(), change / state.total[:, None])
        limit, allowed, before = self.rtol * change, self.rtol * share, state.missed
        chosen = ((before + error).abs() > limit) & (error.abs() > allowed) & (self.halvings > 0)
        for _ in range(self.halvings):
            error = torch.where(chosen & ((before + error).abs() > limit), 0.25 * error, error)
        return Segment(start, stop, stats, chosen, torch.stack([before, limit, allowed], 2)), before + error

    def parts(self, problem: Problem, image: Tensor, state: State, *, closing: bool) -> Iterator[Any]:
        """Yield what a step of L paths of ``image`` (L,) finds, with flags (L, 3 + K) for the host: finite, goes on, to
        its last point, and which classes are halved; then, unless it is ``closing``, the state after the step."""
        state = replace(state, image=image)
        here = self.look(problem, state, closing=closing)
        goes_on, level, gained = self.onward(state, here)
        flags, segment = torch.stack([here.finite, goes_on, state.step + 1 >= state.limit], 1), None
        if state.point is not None:
            segment, missed = self.segment(state, here)
            state, flags = replace(state, missed=missed), torch.cat([flags, segment.chosen], 1)
        yield flags, segment
        if not closing:
            yield self.move(problem, state, here, level, gained)


def spread(values: Tensor) -> Tensor:
    """Return the largest minus the smallest entry of each row: (L, C) -> (L,)."""
    return values.amax(-1) - values.amin(-1)


def trapezoid(start: Point, stop: Point) -> Tensor:
    """``(g_0 + g_1) / 2 * (x_1 - x_0)``: (L, *S)."""
    return 0.5 * (start.gradient + stop.gradient) * (stop.x - start.x)


def piece_error(values: Tensor, start: Point, stop: Point) -> Tensor:
    """What ``values`` (L, *S) of pieces have too much (L,): known, since the score is known at both ends."""
    return completeness_gap(values, stop.score.double() - start.score.double())
