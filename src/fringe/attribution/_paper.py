r"""FRInGe as it is printed: Algorithm 1 of arXiv 2605.06404, line by line, with its table and its ablations.

Nothing of the walk is shared with the default method :class:`FRInGe`: whoever doubts a number of the paper reads this
file beside it. For L images, points are ``(L, *S)``, predictions ``(L, C)``; numbers of an image are ``(L,)``.
"""

import csv
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from itertools import chain
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, get_args

import torch
from torch import Tensor

from fringe.attribution._base import Attribution, Attributor
from fringe.attribution._diagnostics import path_attribution
from fringe.attribution._fisher_rao import ENOUGH
from fringe.attribution._integrate import PathIntegral, Sums
from fringe.errors import InputError, require_choice
from fringe.geometry import Jacobian, dist, fisher_norm_squared, geodesic, log_probabilities, sqrt_chart, to_tangent
from fringe.paths import AT_POINTS, Geodesic, JVPUse, Problem, fisher_rao_step
from fringe.settings import Doc, NotNegative, Positive, PositiveInt, Search

Product = Callable[[Tensor], Tensor]

#: The paper's epsilon of the bounds on a step, for which it gives no number.
EPSILON = 1e-12
#: Distance (radians) of the prediction to the uniform distribution that counts as none: float32 resolves no less.
AT_REFERENCE_BELOW = 1e-6

Variant = Literal[
    "fringe", "fisher_rao_unregularized", "euclidean", "gamma_step_only", "gamma_prior_only", "non_geometric"
]
_UNSMOOTHED = {"gamma_step": 0.0, "gamma_prior": 0.0}
#: What the paper's ablations change.
VARIANTS: Mapping[Variant, Mapping[str, Any]] = {
    "fringe": {},
    "fisher_rao_unregularized": _UNSMOOTHED,
    "euclidean": {"direction": "gradient", "kl_bound": False, "delta_euc": None, **_UNSMOOTHED},
    "gamma_step_only": {"gamma_prior": 0.0},
    "gamma_prior_only": {"gamma_step": 0.0},
    "non_geometric": {"direction": "gradient", "gamma_step": 0.0},
}


@cache
def table() -> dict[tuple[str, str], dict[str, str]]:
    """The paper's table of hyper-parameters by (network, variant); a dash of the paper is an empty string."""
    text = resources.files("fringe.attribution").joinpath("presets.csv").read_text(encoding="utf-8")
    return {(row["model"], row["variant"]): row for row in csv.DictReader(text.splitlines())}


def preset_names() -> tuple[str, ...]:
    """The networks that the paper tuned."""
    return tuple(dict.fromkeys(model for model, _ in table()))


def paper_settings(model: str, variant: str) -> dict[str, Any]:
    """Settings of a row of the table.

    Where it has a dash: no smoothing is gamma = 0, no bound is None. The Euclidean variant names only eta_max; its
    number of steps is that of the network's full setting, and no other bound applies.
    """
    row = dict(table()[model, variant])
    iterations = row.pop("cg_iterations")
    settings: dict[str, Any] = {"delta_euc": None} | {name: float(row[name]) for name in list(row)[2:] if row[name]}
    if iterations:
        settings["cg_iterations"] = int(iterations)
    if variant != "fringe":
        settings |= _UNSMOOTHED
    if variant == "euclidean":
        settings |= {**VARIANTS["euclidean"], "tau": float(table()[model, "fringe"]["tau"])}
    return settings


def new_spelling(preset: str) -> str | None:
    """What a preset that ``fringe`` once had is called now; None for any other name."""
    method, _, network = preset.partition("_") if preset.startswith("released_") else ("paper", "", preset)
    if network in (*preset_names(), "auto"):
        return f"{method}:{network}"
    return {"paper": "paper", "released": "released", "full_metric": "paper"}.get(preset)


# -- Algorithm 1 ------------------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """A step of L images, from x_k to x_{k+1}.

    Attributes:
        moves: Which images (L,) have not taken their T steps yet; the others rest.
        x: The points x_{k+1} (L, *S).
        logits: F (L, C) there.
        integral: The integral along the step (L, *S), from x_{k+1} to x_k.
        s: The waypoints (L, C).
        eta: The step sizes (L,).
        bound: Which of the three bounds (L,) set it.
        length: ``|x_{k+1} - x_k|`` (L,).
    """

    moves: Tensor
    x: Tensor
    logits: Tensor
    integral: Tensor
    s: Tensor
    eta: Tensor
    bound: Tensor
    length: Tensor


@dataclass(frozen=True)
class PaperFRInGe(Attributor):
    """Integrate gradients along a path to the uniform prediction by the algorithm that the paper prints.

    The defaults are the paper's numbers for ResNet-50, with a longest step that grows with the size of the input; the
    presets are its six networks. It takes images. What the paper leaves open: docs/paper.md.
    """

    name = "paper"
    title = "FRInGe, paper's text"
    source = "arXiv 2605.06404"
    needs_classes = True
    presets: ClassVar = {name: paper_settings(name, "fringe") for name in preset_names()}
    step_margin: ClassVar[float] = 1.0

    tau: Annotated[Positive, Search(3e-4, 5e-2, log=True), Doc("KL budget of a step (tau)", unit="nats")] = 2.7031e-3
    eta_max: Annotated[Positive, Search(1.0, 30.0, log=True), Doc("largest factor (eta_max)")] = 1.179
    delta_euc: Annotated[
        Positive | Literal["auto"] | None,
        Search(0.3, 40.0, log=True),
        Doc("longest step (delta_euc); auto: 0.01 sqrt(n) for n entries; none: no limit", unit="input units"),
    ] = "auto"
    damping: Annotated[Positive, Search(1e-12, 1e-1, log=True), Doc("Tikhonov damping (lambda)")] = 2.5802e-4
    gamma_step: Annotated[NotNegative, Search(1e-4, 1e-2, log=True), Doc("smooths v (gamma_step)")] = 9.943e-3
    gamma_prior: Annotated[NotNegative, Search(1e-5, 1e-2, log=True), Doc("smooths x (gamma_prior)")] = 9.4855e-4
    cg_iterations: Annotated[PositiveInt, Search(3, 40), Doc("largest number of CG iterations per step (K)")] = 20
    cg_rtol: Annotated[Positive, Doc("relative residual at which CG stops")] = 1e-3
    direction: Annotated[Literal["natural", "gradient"], Doc("gradient: the paper's Euclidean ablations")] = "natural"
    kl_bound: Annotated[bool, Doc("limit a step's KL to tau; tau sets T")] = True

    @classmethod
    def preset(cls, name: str, /, variant: Variant = "fringe") -> Self:
        """Return the settings of a network, or of one of its ablations.

        Args:
            name: One of the paper's six networks.
            variant: Parts of the method that are removed, see :meth:`variant`. Those of the paper's table have their
                own numbers.

        Returns:
            The configured method.

        Raises:
            InputError: If there is no such preset or variant.
        """
        if variant != "fringe" and (name, variant) in table():
            return cls(**paper_settings(name, variant))
        return super().preset(name).variant(variant)

    def variant(self, variant: Variant) -> Self:
        """Remove parts of the method, as in the paper's ablations.

        Args:
            variant: ``fringe`` nothing; ``fisher_rao_unregularized`` no smoothing; ``euclidean`` v = g with constant
                step eta_max; ``gamma_step_only``; ``gamma_prior_only``; ``non_geometric`` v = g + gamma_prior L'L x.

        Returns:
            These settings without the parts.

        Raises:
            InputError: If there is no such variant.
        """
        require_choice("variant", variant, get_args(Variant))
        return replace(self, **VARIANTS[variant])

    def walk(self, problem: Problem, x: Tensor, image: Tensor) -> Iterator[Step]:
        """Take the steps of L images at once: the lines of Algorithm 1.

        Args:
            problem: What is explained.
            x: The images (L, *S).
            image: Their numbers (L,) in the problem.

        Yields:
            Each step, until all images have taken theirs.
        """
        # 1-4: T, p_0, q*, the waypoints, x_0 = x
        here = self._at(problem, x, image)
        s0, s1, length, steps = self.schedule(problem.logits[image])
        cap = 0.01 * math.sqrt(x[0].numel()) if self.delta_euc == "auto" else self.delta_euc
        grad, v = problem.score_gradient(here, here.value, image), None

        for k in range(int(steps.max()) if len(x) else 0):  # 5
            moves = k < steps
            s = geodesic(s0, s1, ((k + 1) / steps).clamp_max(1.0), length)  # the text's s_{k+1}: s_0 has no loss
            # 6-9: p_k, L_k = 1 - <sqrt p_k, s>, g_k, (G_k + lambda I + gamma_step L'L) v_k = g_k + gamma_prior L'L x_k
            p = log_probabilities(here.value).exp()
            b = here.vjp(self._loss_gradient(p, s).to(x.dtype)) + self.gamma_prior * self._bending(x)
            v = b if self.direction == "gradient" else self._solve(here, p, b, v)
            # 10-11: n_k^2 = v' G v, eta_k
            n2 = fisher_norm_squared(p, here.jvp(v).double()) if self.kl_bound else torch.zeros_like(length)
            norm, none = dot(v, v).sqrt(), torch.full_like(length, torch.inf)
            bounds = torch.full_like(length, self.eta_max), none, none
            if self.kl_bound:
                bounds = bounds[0], (2.0 * self.tau / (n2 + EPSILON)).sqrt(), none
            if cap is not None:
                bounds = *bounds[:2], cap / (norm + EPSILON)
            eta, bound = torch.stack(bounds).min(0)
            # 12-13: x_{k+1}, and the trapezoid; the paper adds it times x_{k+1} - x_k, and returns minus the sum
            before, before_grad = x, grad
            x = torch.where(rows(moves, x), x - rows(eta, x).to(x.dtype) * v, x)
            here = self._at(problem, x, image)
            grad = problem.score_gradient(here, here.value, image)
            integral = 0.5 * (before_grad + grad) * (before - x)
            yield Step(moves, x, here.value, integral, s, eta, bound, eta * norm)

    def schedule(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Lines 1-3: where the geodesics begin and end (L, C), their lengths and steps T (L,); 0 at the reference."""
        s0 = self._start(log_probabilities(logits))
        s1 = torch.full_like(s0, s0.shape[-1] ** -0.5)
        length = dist(s0, s1)
        steps = torch.ceil(self.step_margin * length / math.sqrt(2.0 * self.tau))
        return s0, s1, length, torch.where(length <= AT_REFERENCE_BELOW, 0.0, steps)

    def _at(self, problem: Problem, x: Tensor, image: Tensor) -> Any:
        """The network at x: F as ``value``, ``J v`` and ``J' u``."""
        few = self._is_explicit(problem.logits.shape[1])
        here = problem.linearise(x, image, tangents=not few and self.jvp_use(problem) == "required")
        return Explicit(here.value, here, x) if few else here

    def _is_explicit(self, classes: int) -> bool:
        return self.direction == "natural" and classes <= self.cg_iterations

    def _start(self, log_p: Tensor) -> Tensor:
        """sqrt p_0."""
        return sqrt_chart(log_p)

    def _loss_gradient(self, p: Tensor, s: Tensor) -> Tensor:
        """The gradient of the loss 1 - <sqrt p, s> in the logits."""
        root = p.sqrt()
        return -0.5 * root * to_tangent(s - root, root)  # the chord: at s itself it is exactly zero

    def _bending(self, x: Tensor) -> Tensor:
        """``L'L x``."""
        return self._laplacian(self._laplacian(x))

    def _solve(self, here: Jacobian, p: Tensor, b: Tensor, last: Tensor | None) -> Tensor:
        """Line 9: v, by at most K preconditioned conjugate gradients, from the ``last`` direction on."""

        def system(v: Tensor) -> Tensor:  # G = J' (diag p - p p') J
            u = here.jvp(v).double()
            metric = here.vjp((p * (u - (p * u).sum(-1, keepdim=True))).to(v.dtype))
            return metric + self.damping * v + self.gamma_step * self._bending(v)

        def precondition(r: Tensor) -> Tensor:
            return (self._blur(r) if self.gamma_step > 0 else r) / self.damping

        return self._conjugate_gradients(system, b, precondition, last)

    def _conjugate_gradients(self, system: Product, b: Tensor, precondition: Product, x: Tensor | None) -> Tensor:
        return conjugate_gradients(system, b, precondition, x, self.cg_rtol, self.cg_iterations)

    def _laplacian(self, x: Tensor) -> Tensor:
        return laplacian(x)

    def _blur(self, x: Tensor) -> Tensor:
        return blur(x)

    # -- the map, and what is measured on the way ---------------------------------------------------------------------

    def jvp_use(self, problem: Problem) -> JVPUse:
        needed = self.direction == "natural" or self.kl_bound
        return "required" if needed and not self._is_explicit(problem.logits.shape[1]) else "none"

    @property
    def planned_passes(self) -> float:
        # no two distributions are farther apart than pi; a pass, the gradients of score and loss, the length, CG
        steps = self.step_margin * math.pi / math.sqrt(2 * self.tau)
        return steps * (4 + (2 * self.cg_iterations + 2 if self.direction == "natural" else 0))

    def attribute(self, problem: Problem) -> Attribution:
        unmoved = "the prediction already is the uniform distribution: there is nothing to explain"
        hint = f"use tau={self.tau / 4:.2g}: smaller steps help on some networks"
        if problem.inputs.dim() < 4 or problem.token_length is not None:
            message = f"{self.label} smooths images (B, C, H, W), got inputs of shape {tuple(problem.inputs.shape)}"
            raise InputError(message, argument="inputs", hint="use method='fringe'")
        result = path_attribution(self, self._integral(problem), problem, hint, unmoved)
        at_input = math.log(problem.logits.shape[1]) - result.diagnostics["entropy"]  # the divergence from uniform
        lost = (1.0 - result.diagnostics["endpoint_kl"] / at_input).tolist()
        short = [verdict == "ok" and share < ENOUGH for verdict, share in zip(result.verdict, lost, strict=True)]
        advice = "the prediction lost only {:.0%} of its divergence from the uniform one (ok needs {:.0%})"
        return replace(
            result,
            verdict=tuple("short" if s else v for s, v in zip(short, result.verdict, strict=True)),
            advice=tuple(
                advice.format(max(share, 0.0), ENOUGH) if s else text
                for s, share, text in zip(short, lost, result.advice, strict=True)
            ),
        )

    def _integral(self, problem: Problem) -> PathIntegral:
        """The sums along the paths of all images, a batch at a time."""
        every, device, done = Geodesic.between(log_probabilities(problem.logits)), problem.inputs.device, 0
        planned: list[int] = self.schedule(problem.logits)[-1].int().tolist()
        measures = ("euclidean_step", "step_size", "active_bound", "fisher_rao_step", *AT_POINTS)
        sums = Sums(problem, planned, every, measures)
        sums.taken = planned
        while done < len(planned):
            image = problem.every_row[done : done + problem.model.batch_size.on(device)]
            walk = self.walk(problem, problem.inputs[image], image)
            try:
                first = next(walk, None)
            except (RuntimeError, MemoryError) as error:
                problem.model.batch_size.halve(device, error)
                continue
            done += len(image)
            geodesic, steps = every[image], walk if first is None else chain([first], walk)
            before = geodesic.log_p
            for k, step in enumerate(steps, 1):
                after, number = log_probabilities(step.logits), torch.full_like(image, k)
                score = problem.score(step.logits, image)
                along = torch.stack([step.length, step.eta, step.bound.double(), fisher_rao_step(before, after)], 1)
                stats = torch.cat([along, geodesic.measured(after, step.s)], 1)
                sums.see(image, number, step.x, stats, {"score": score}, step.moves)
                sums.add(image, number, torch.where(rows(step.moves, step.x), step.integral, 0.0))
                sums.endpoint_score[image] = score
                sums.counter.tick(int(step.moves.sum()))
                before = after
        return sums.result()


# -- what Algorithm 1 takes for granted -------------------------------------------------------------------------------


class Explicit:
    """J itself (L, C, n), by C products: fewer than conjugate gradients take where C is at most K."""

    def __init__(self, value: Tensor, jacobian: Jacobian, x: Tensor):
        unit = torch.eye(value.shape[1], dtype=x.dtype, device=x.device)
        self.value, self.shape = value, x.shape
        self.matrix = torch.stack([jacobian.vjp(e.expand(len(x), -1)).flatten(1) for e in unit], 1)

    def jvp(self, v: Tensor) -> Tensor:
        return (self.matrix @ v.flatten(1)[..., None])[..., 0]

    def vjp(self, u: Tensor) -> Tensor:
        return (u[:, None] @ self.matrix)[:, 0].view(self.shape)


def rows(values: Tensor, like: Tensor) -> Tensor:
    """Reshape (L, ...) to broadcast against ``like`` (L, *S)."""
    return values.view(*values.shape, *[1] * (like.dim() - values.dim()))


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Inner products (L,), in double precision."""
    return (a.double() * b.double()).flatten(1).sum(1)


def laplacian(x: Tensor) -> Tensor:
    """The negative five-point Laplacian over the last two axes; an edge pixel has itself for a neighbour."""
    return 4.0 * x - sum(shifted(x, axis, by) for axis in (-2, -1) for by in (-1, 1))


def blur(x: Tensor) -> Tensor:
    """The Gaussian of the paper's preconditioner: sigma 1, 7 taps, mirrored at the edges."""
    weights = {by: math.exp(-0.5 * by * by) for by in range(-3, 4)}
    for axis in (-2, -1):
        parts = [w / sum(weights.values()) * shifted(x, axis, by) for by, w in weights.items()]
        x = sum(parts[1:], parts[0])
    return x


def shifted(x: Tensor, axis: int, by: int) -> Tensor:
    """The pixels ``by`` places further along an axis, mirrored at its ends with their edge."""
    n = x.shape[axis]
    at = (torch.arange(n, device=x.device) + by) % (2 * n)
    return x.index_select(axis, torch.minimum(at, 2 * n - 1 - at))


def conjugate_gradients(
    system: Product, b: Tensor, precondition: Product, x: Tensor | None, rtol: float, most: int
) -> Tensor:
    """Solve ``system(x) = b`` for each image, from ``x`` on, until ``|b - system(x)| <= rtol |b|``.

    Residuals are made orthogonal to the earlier ones, as they are without rounding: a solve that is cut off after K
    iterations would else return its rounding errors.
    """
    r = b if x is None else b - system(x)
    x = torch.zeros_like(b) if x is None else x
    z = d = precondition(r)
    rz, tolerance, earlier = dot(r, z), rtol * dot(b, b).sqrt(), list[tuple[Tensor, Tensor]]()
    active = dot(r, r).sqrt() > tolerance
    for _ in range(most):
        if not bool(active.any()):
            break
        product = system(d)
        curvature = dot(d, product)
        active = active & (curvature > 0)
        norm = rows(torch.where(active, rz, 1.0).sqrt(), b).to(b.dtype)
        earlier.append((torch.where(rows(active, b), r, 0.0) / norm, torch.where(rows(active, b), z, 0.0) / norm))
        alpha = rows(torch.where(active, rz / curvature, 0.0), b).to(b.dtype)
        x, new = x + alpha * d, r - alpha * product
        q, w = (torch.stack(column, 1).flatten(2) for column in zip(*earlier, strict=True))
        for _ in range(2):  # twice is enough (Giraud et al. 2005)
            new = new - (new.flatten(1)[:, None] @ w.mT @ q).view_as(new)
        r = torch.where(rows(active, b), new, r)
        active = active & (dot(r, r).sqrt() > tolerance)
        z, before = precondition(r), rz
        rz = dot(r, z)
        d = z + rows(torch.where(active, rz / before, 0.0), b).to(b.dtype) * d
    return x
