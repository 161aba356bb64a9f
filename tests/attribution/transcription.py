"""The printed algorithm of FRInGe, transcribed line by line: the oracle of the engine.

One image at a time; autograd through everything; a fresh ``torch.func.jvp`` and ``vjp`` for every product; spatial
operators by explicit convolution. Nothing is imported from the package. Choices that the paper leaves open are those of
the package's defaults: next waypoint, half-sample symmetric boundary, 7-tap Gaussian with sigma 1, CG stops at
|r| <= 1e-3 |b|.

"CG with at most K iterations" has two transcriptions. ``solver="textbook"`` is the recurrence as printed in textbooks;
its late iterates are mostly rounding error. ``solver="krylov"`` is what those iterates are in exact arithmetic: the
minimiser of the energy over the Krylov space of k products, from an explicit orthonormal basis and a dense k x k
solve. It shares no formula with the recurrence.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Settings:
    tau: float
    eta_max: float
    delta_euc: float
    damping: float
    gamma_step: float
    gamma_prior: float
    cg_iterations: int = 20
    waypoint: str = "next"
    warm_start: bool = True
    solver: str = "krylov"


def _extend(x: Tensor, width: int) -> Tensor:
    """Half-sample symmetric extension of the last two axes: … x1 x0 | x0 x1 …"""
    for axis in (-2, -1):
        n = x.shape[axis]
        head, tail = x.narrow(axis, 0, width).flip(axis), x.narrow(axis, n - width, width).flip(axis)
        x = torch.cat([head, x, tail], dim=axis)
    return x


def _convolve(x: Tensor, kernel: Tensor) -> Tensor:
    channels, width = x.shape[1], kernel.shape[-1] // 2
    weight = kernel.to(x.dtype).expand(channels, 1, *kernel.shape)
    return torch.nn.functional.conv2d(_extend(x, width), weight, groups=channels)


def laplacian(x: Tensor) -> Tensor:
    return _convolve(x, torch.tensor([[0.0, -1.0, 0.0], [-1.0, 4.0, -1.0], [0.0, -1.0, 0.0]]))


def blur(x: Tensor) -> Tensor:
    taps = torch.exp(-0.5 * torch.arange(-3, 4, dtype=torch.float64) ** 2)
    taps = taps / taps.sum()
    return _convolve(x, taps[:, None] * taps[None, :])


def waypoints(model, x: Tensor, tau: float) -> list[Tensor]:
    """s_0 … s_T from the prediction at ``x`` (1, C, H, W) to the uniform distribution."""
    p0 = model(x).softmax(-1).detach()
    q_star = torch.full_like(p0, 1.0 / p0.shape[1])
    theta = torch.arccos((p0.sqrt() * q_star.sqrt()).sum())
    steps = math.ceil(2.0 * theta.item() / math.sqrt(2.0 * tau))
    return [
        torch.sin((1 - k / steps) * theta) / torch.sin(theta) * p0.sqrt()
        + torch.sin(k / steps * theta) / torch.sin(theta) * q_star.sqrt()
        for k in range(steps + 1)
    ]


def step(model, x: Tensor, s_k: Tensor, v: Tensor | None, s: Settings) -> tuple[Tensor, float]:
    """Direction v_k and step size eta_k at ``x`` towards the waypoint ``s_k``; ``v`` is the warm start."""
    z = x.detach().requires_grad_(True)
    loss = 1.0 - (model(z).softmax(-1).sqrt() * s_k).sum()
    g = torch.autograd.grad(loss, z)[0]
    p = model(x).softmax(-1).detach()

    def fisher(u: Tensor) -> Tensor:
        column = torch.func.jvp(model, (x,), (u,))[1]
        metric = p * column - p * (p * column).sum(-1, keepdim=True)
        return torch.func.vjp(model, x)[1](metric)[0]

    def system(u: Tensor) -> Tensor:
        return fisher(u) + s.damping * u + s.gamma_step * laplacian(laplacian(u))

    b = g + s.gamma_prior * laplacian(laplacian(x))
    solve = _textbook if s.solver == "textbook" else _krylov
    v = solve(system, b, v if s.warm_start else None, s).detach()
    norm_g = (v * fisher(v)).sum().item()
    eta = min(s.eta_max, math.sqrt(2 * s.tau / (norm_g + 1e-12)), s.delta_euc / (v.norm().item() + 1e-12))
    return v, eta


def explain(model, x: Tensor, target: int, s: Settings) -> tuple[Tensor, Tensor]:
    """Attribution and endpoint of one image ``x`` (1, C, H, W); parameters must not require gradients."""

    def score_gradient(z: Tensor) -> Tensor:
        z = z.detach().requires_grad_(True)
        return torch.autograd.grad(model(z)[0, target], z)[0]

    s_all = waypoints(model, x, s.tau)
    path_integral, v = torch.zeros_like(x), None
    for k in range(len(s_all) - 1):
        v, eta = step(model, x, s_all[k + 1 if s.waypoint == "next" else k], v, s)
        x_next = x - eta * v
        path_integral = path_integral + 0.5 * (score_gradient(x) + score_gradient(x_next)) * (x_next - x)
        x = x_next
    return -path_integral, x


def _inverse(r: Tensor, s: Settings) -> Tensor:
    return (blur(r) if s.gamma_step > 0 else r) / s.damping


def _textbook(system, b: Tensor, x0: Tensor | None, s: Settings) -> Tensor:
    x = torch.zeros_like(b) if x0 is None else x0
    r = b if x0 is None else b - system(x)
    z = _inverse(r, s)
    d, rz = z, (r * z).sum()
    for _ in range(s.cg_iterations):
        if r.norm() <= 1e-3 * b.norm():
            break
        product = system(d)
        alpha = rz / (d * product).sum()
        x, r = x + alpha * d, r - alpha * product
        z = _inverse(r, s)
        rz_next = (r * z).sum()
        d, rz = z + rz_next / rz * d, rz_next
    return x


def _krylov(system, b: Tensor, x0: Tensor | None, s: Settings) -> Tensor:
    """argmin of the energy over x0 + span{M^-1 r0, M^-1 A M^-1 r0, …}, of the least dimension that meets rtol."""
    start = torch.zeros_like(b) if x0 is None else x0
    r0 = b if x0 is None else b - system(start)
    x, residual, basis, images = start, r0, [], []
    for _ in range(s.cg_iterations):
        if residual.norm() <= 1e-3 * b.norm():
            break
        q = _inverse(images[-1] if images else r0, s)
        for _ in range(2):
            for past in basis:
                q = q - (past * q).sum() * past
        basis.append(q / q.norm())
        images.append(system(basis[-1]))
        span, image = torch.stack(basis).flatten(1), torch.stack(images).flatten(1)
        weights = torch.linalg.solve(span @ image.T, span @ r0.flatten())
        x = start + (weights @ span).view_as(b)
        residual = r0 - (weights @ image).view_as(b)
    return x
