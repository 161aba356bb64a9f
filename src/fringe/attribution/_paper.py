"""FRInGe as it is printed: Algorithm 1 of arXiv 2605.06404, line by line, and its table of hyper-parameters.

Nothing here is shared with the default method :class:`FRInGe`: whoever doubts a number of the paper reads this file
beside it. For B images, points are ``(B, *S)``, predictions ``(B, C)``; numbers of an image are ``(B,)``.
"""

import csv
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional

from fringe.attribution._base import Attribution, Attributor
from fringe.attribution._diagnostics import sum_attribution
from fringe.geometry import Jacobian, entropy, kl, log_probabilities
from fringe.paths import Problem
from fringe.settings import Doc, NotNegative, Positive, PositiveInt, Search

Product = Callable[[Tensor], Tensor]
_FIELDS = ("tau", "eta_max", "delta_euc", "damping", "gamma_step", "gamma_prior", "cg_iterations")


@cache
def table() -> dict[tuple[str, str], dict[str, str]]:
    """The table's rows by (model, variant); a dash of the paper is an empty string."""
    text = resources.files("fringe.attribution").joinpath("presets.csv").read_text(encoding="utf-8")
    return {(row["model"], row["variant"]): row for row in csv.DictReader(text.splitlines())}


def preset_names() -> tuple[str, ...]:
    """The networks that the paper tuned."""
    return tuple(dict.fromkeys(model for model, _ in table()))


def paper_settings(model: str, variant: str) -> dict[str, Any]:
    """Fields for a row of the table: a dash is no smoothing, and no Euclidean cap. The Euclidean variant names only
    eta_max; its number of steps is that of the network's full setting, and no other bound applies."""
    row = table()[model, variant]
    given = {name: float(row[name]) for name in _FIELDS[:-1] if row[name]}
    settings = {"delta_euc": None, **given, **({} if variant == "fringe" else VARIANTS["fisher_rao_unregularized"])}
    if variant == "euclidean":
        settings |= {"tau": float(table()[model, "fringe"]["tau"]), "direction": "gradient", "kl_bound": False}
    return settings


#: The paper's ablations.
VARIANTS: dict[str, dict[str, Any]] = {
    "fringe": {},
    "fisher_rao_unregularized": {"gamma_step": 0.0, "gamma_prior": 0.0},
    "euclidean": {"direction": "gradient", "kl_bound": False, "delta_euc": None, "gamma_step": 0.0, "gamma_prior": 0.0},
    "gamma_step_only": {"gamma_prior": 0.0},
    "gamma_prior_only": {"gamma_step": 0.0},
    "non_geometric": {"direction": "gradient", "gamma_step": 0.0},
}


@dataclass(frozen=True)
class PaperFRInGe(Attributor):
    """Fisher-Rao Integrated Gradients as printed, with the numbers for ResNet-50."""

    name = "paper_fringe"
    title = "FRInGe as printed: Algorithm 1"
    source = "arXiv 2605.06404"
    needs_classes = True
    presets: ClassVar = {name: paper_settings(name, "fringe") for name in preset_names()}
    step_margin: ClassVar[float] = 1.0

    tau: Annotated[Positive, Search(3e-4, 5e-2, log=True), Doc("KL budget of a step", unit="nats")] = 2.7031e-3
    eta_max: Annotated[Positive, Search(1.0, 30.0, log=True), Doc("largest factor")] = 1.179
    delta_euc: Annotated[
        Positive | Literal["auto"] | None,
        Search(0.3, 40.0, log=True),
        Doc("longest step; auto: 0.01 sqrt(n), which is near the table's and scales with the input; none: no bound"),
    ] = "auto"
    damping: Annotated[Positive, Search(1e-12, 1e-1, log=True), Doc("Tikhonov damping (lambda)")] = 2.5802e-4
    gamma_step: Annotated[NotNegative, Search(1e-4, 1e-2, log=True), Doc("smooths the direction")] = 9.943e-3
    gamma_prior: Annotated[NotNegative, Search(1e-5, 1e-2, log=True), Doc("smooths the image")] = 9.4855e-4
    cg_iterations: Annotated[PositiveInt, Search(3, 40), Doc("largest number of CG iterations per step (K)")] = 20
    cg_rtol: Annotated[Positive, Doc("relative residual at which CG stops")] = 1e-3
    direction: Annotated[Literal["natural", "gradient"], Doc("gradient: the paper's Euclidean ablations")] = "natural"
    kl_bound: Annotated[bool, Doc("limit a step's KL to tau")] = True

    def variant(self, name: str) -> "PaperFRInGe":
        """Return these settings without parts of the method, as in the paper's ablations."""
        return replace(self, **VARIANTS[name])

    def jvp_use(self, problem: Problem) -> Literal["none", "required"]:
        return (
            "none"
            if self._few(problem.logits.shape[1]) or not (self.kl_bound or self.direction == "natural")
            else "required"
        )

    def attribute(self, problem: Problem) -> Attribution:
        def walk(x: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
            return self.walk(problem, x, rows)

        maps, _, logits, steps = problem.model.batch_size.map(walk, problem.inputs, problem.every_row)
        hint = "smaller steps help on some networks (lower tau or delta_euc)"
        log_p, log_q = log_probabilities(logits), torch.full_like(logits, -math.log(logits.shape[1])).double()
        measured = {"steps": steps, "endpoint_kl": kl(log_p, log_q), "endpoint_entropy": entropy(log_p)}
        return replace(sum_attribution(self, maps, problem, problem.score(logits), hint), diagnostics=measured)

    def walk(self, problem: Problem, x: Tensor, image: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the maps (L, *S) of images x, where their paths end, the logits (L, C) there, and the steps (L,)."""
        # 1-4: p_0, the distance to the uniform distribution, the number of steps T, x_0
        here, cap = self._at(problem, x, image), self.delta_euc
        cap = 0.01 * math.sqrt(x[0].numel()) if cap == "auto" else cap
        s0 = self._start(log_probabilities(here.value))
        s1 = torch.full_like(s0, s0.shape[-1] ** -0.5)
        theta = 2.0 * torch.atan2((s0 - s1).norm(dim=-1), (s0 + s1).norm(dim=-1))
        steps = torch.ceil(self.step_margin * 2.0 * theta / math.sqrt(2.0 * self.tau))
        g, v, total = problem.score_gradient(here, here.value, image), None, torch.zeros_like(x, dtype=torch.float64)

        for k in range(int(steps.max())):  # 5
            s = geodesic(s0, s1, theta, ((k + 1) / steps).clamp_max(1.0))
            # 6-9: p_k, the gradient of the spherical loss 1 - <sqrt p, s_{k+1}>, and the direction
            root = log_probabilities(here.value).exp().sqrt()
            b = here.vjp(self._cotangent(root, s).to(x.dtype)) + self.gamma_prior * self._bending(x)
            v = b if self.direction == "gradient" else self._solve(here, root.square(), b, v)
            # 10-11: n^2 = v^T G v; the trust region
            eta = torch.full_like(theta, self.eta_max)
            if self.kl_bound:
                u = here.jvp(v).double()
                p = root.square()
                variance = (p * (u - (p * u).sum(-1, keepdim=True)).square()).sum(-1)
                eta = torch.minimum(eta, (2.0 * self.tau / (variance + 1e-12)).sqrt())
            if cap is not None:
                eta = torch.minimum(eta, cap / (dot(v, v).sqrt() + 1e-12))
            eta = torch.where(k < steps, eta, 0.0)  # an image that took its T steps rests
            # 12-13: the step, and the trapezoid of its segment (the paper integrates backwards and flips the sign)
            before, x = x, x - rows(eta, x).to(x.dtype) * v
            here, g_before = self._at(problem, x, image), g
            g = problem.score_gradient(here, here.value, image)
            total += 0.5 * (g_before + g) * (before - x)
        return total.to(x.dtype), x, here.value, steps

    def _few(self, classes: int) -> bool:
        return self.direction == "natural" and classes <= self.cg_iterations

    def _at(self, problem: Problem, x: Tensor, image: Tensor) -> Any:
        few = self._few(problem.logits.shape[1])
        here = problem.linearise(x, image, tangents=not few and (self.kl_bound or self.direction == "natural"))
        return Explicit(here.value, here, x) if few else here

    def _start(self, log_p: Tensor) -> Tensor:
        """sqrt p_0."""
        return (0.5 * log_p).exp()

    def _cotangent(self, root: Tensor, s: Tensor) -> Tensor:
        """The gradient of the spherical loss in the logits."""
        return -0.5 * root * (s - root - root * (root * (s - root)).sum(-1, keepdim=True))

    def _bending(self, x: Tensor) -> Tensor:
        """``L^T L x``."""
        return self._laplacian(self._laplacian(x))

    def _solve(self, here: Jacobian, p: Tensor, b: Tensor, x0: Tensor | None) -> Tensor:
        """``(G + lambda I + gamma_step L^T L) v = b`` by K conjugate gradients from the last direction."""

        def system(v: Tensor) -> Tensor:
            u = here.jvp(v).double()
            metric = here.vjp((p * (u - (p * u).sum(-1, keepdim=True))).to(v.dtype))
            return metric + self.damping * v + self.gamma_step * self._bending(v)

        def precondition(r: Tensor) -> Tensor:
            return (self._blur(r) if self.gamma_step > 0 else r) / self.damping

        return self._cg(system, b, precondition, x0)

    def _cg(self, system: Product, b: Tensor, precondition: Product, x: Tensor | None) -> Tensor:
        return conjugate_gradients(system, b, precondition, x, self.cg_rtol, self.cg_iterations)

    def _laplacian(self, x: Tensor) -> Tensor:
        return laplacian(x)

    def _blur(self, x: Tensor) -> Tensor:
        return blur(x)


# -- what Algorithm 1 takes for granted -------------------------------------------------------------------------------


class Explicit:
    """J itself (B, C, n), by C products: fewer than conjugate gradients take where C is at most K."""

    def __init__(self, value: Tensor, jacobian: Jacobian, x: Tensor):
        unit = torch.eye(value.shape[1], dtype=x.dtype, device=x.device)
        self.value, self.shape = value, x.shape
        self.matrix = torch.stack([jacobian.vjp(e.expand(len(x), -1)).flatten(1) for e in unit], 1)

    def jvp(self, v: Tensor) -> Tensor:
        return (self.matrix @ v.flatten(1)[..., None])[..., 0]

    def vjp(self, u: Tensor) -> Tensor:
        return (u[:, None] @ self.matrix)[:, 0].view(self.shape)


def rows(values: Tensor, like: Tensor) -> Tensor:
    """Reshape (B,) to broadcast against (B, *S)."""
    return values.view(-1, *[1] * (like.dim() - 1))


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Inner products (B,), in double precision."""
    return (a.double() * b.double()).flatten(1).sum(1)


def geodesic(s0: Tensor, s1: Tensor, theta: Tensor, alpha: Tensor) -> Tensor:
    """The points of the great circles at the shares ``alpha`` (B,) of their lengths."""
    w0, w1 = (torch.sin(a * theta) / torch.sin(theta) for a in (1.0 - alpha, alpha))
    return w0[:, None] * s0 + w1[:, None] * s1


def laplacian(x: Tensor) -> Tensor:
    """The negative five-point Laplacian of each channel; an edge pixel has itself for a neighbour."""
    p = functional.pad(x, (1, 1, 1, 1), mode="replicate")
    return 4.0 * x - p[..., :-2, 1:-1] - p[..., 2:, 1:-1] - p[..., 1:-1, :-2] - p[..., 1:-1, 2:]


def blur(x: Tensor) -> Tensor:
    """The Gaussian of the paper's preconditioner: sigma 1, 7 taps, mirrored at the edges."""
    weights = [math.exp(-0.5 * d * d) for d in range(-3, 4)]
    for axis in (-2, -1):
        x = sum(w / sum(weights) * shifted(x, axis, d) for w, d in zip(weights, range(-3, 4), strict=True))
    return x


def shifted(x: Tensor, axis: int, by: int) -> Tensor:
    """The pixels ``by`` places further along an axis, mirrored at its ends."""
    n = x.shape[axis]
    at = (torch.arange(n, device=x.device) + by) % (2 * n)
    return x.index_select(axis, torch.minimum(at, 2 * n - 1 - at))


def conjugate_gradients(
    system: Product, b: Tensor, precondition: Product, x: Tensor | None, rtol: float, most: int
) -> Tensor:
    """Solve ``system(x) = b`` for each image. Residuals are made orthogonal to the earlier ones, as they are without
    rounding: a solve that is cut off after K iterations would else return its rounding errors."""
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
