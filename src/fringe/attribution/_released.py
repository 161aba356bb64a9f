"""FRInGe as its authors released it (github.com/GabMartino/FRInGe), where that differs from the paper's text.

Textbook conjugate gradients, which also stop at an absolute residual and take an indefinite preconditioner; images
mirrored without their edge; a blur of sigma 2 in 5 taps; a tenth more steps; clamped probabilities.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fringe.attribution._paper import PaperFRInGe, Product, rows
from fringe.geometry import Jacobian

#: Smallest probability at the input, and on the way.
LEAST_START, LEAST = 1e-8, 1e-10


@dataclass(frozen=True)
class ReleasedFRInGe(PaperFRInGe):
    """The same with the choices of the release; its maps change by a tenth with the rounding of the processor."""

    name = "released"
    title = "FRInGe, released code"
    source = "github.com/GabMartino/FRInGe"
    step_margin = 1.1
    cg_atol: ClassVar[float] = 1e-5

    def _start(self, log_p: Tensor) -> Tensor:
        return super()._start(log_p.clamp_min(math.log(LEAST_START)).log_softmax(-1))

    def _laplacian(self, x: Tensor) -> Tensor:
        return 4.0 * x - sum(mirrored(x, axis, d) for axis in (-2, -1) for d in (-1, 1))

    def _blur(self, x: Tensor) -> Tensor:
        weights = {d: math.exp(-0.125 * d * d) for d in range(-2, 3)}
        for axis in (-2, -1):
            parts = [w / sum(weights.values()) * mirrored(x, axis, d) for d, w in weights.items()]
            x = sum(parts[1:], parts[0])
        return x

    def _loss_gradient(self, p: Tensor, s: Tensor) -> Tensor:
        return super()._loss_gradient(p, torch.where(p >= LEAST, s, 0.0))

    def _solve(self, here: Jacobian, p: Tensor, b: Tensor, last: Tensor | None) -> Tensor:
        return super()._solve(here, p.clamp_min(LEAST), b, last)

    def _conjugate_gradients(self, system: Product, b: Tensor, precondition: Product, x: Tensor | None) -> Tensor:
        r = b if x is None else b - system(x)
        x = torch.zeros_like(b) if x is None else x
        z = d = precondition(r)
        rz, tolerance = plain_dot(r, z), (self.cg_rtol * plain_dot(b, b).sqrt()).clamp_min(self.cg_atol)
        active = plain_dot(r, r).sqrt() > tolerance
        for _ in range(self.cg_iterations):
            if not bool(active.any()):
                break
            product = system(d)
            curvature = plain_dot(d, product)
            active = active & (curvature > 1e-8)
            alpha = rows(torch.where(active, rz / curvature, 0.0), b)
            x, r = x + alpha * d, r - alpha * product
            active = active & (plain_dot(r, r).sqrt() > tolerance)
            z, before = precondition(r), rz
            rz = plain_dot(r, z)
            beta = torch.where(active, rz / torch.where(before.abs() > 1e-8, before, 1.0), 0.0)
            d = z + rows(beta, b) * d
        return x


def plain_dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).flatten(1).sum(1)


def mirrored(x: Tensor, axis: int, by: int) -> Tensor:
    """The pixels ``by`` places further along an axis; the edges, once, are the mirrors."""
    n = x.shape[axis]
    at = (torch.arange(n, device=x.device) + by) % (2 * n - 2)
    return x.index_select(axis, torch.minimum(at, 2 * n - 2 - at))
