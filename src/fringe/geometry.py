"""Fisher-Rao geometry of categorical distributions, in the square-root chart.

A distribution p over C classes is the unit vector ``s = sqrt(p)`` of the positive orthant; Fisher-Rao geodesics are
great circles, and the Fisher-Rao distance is twice the angle (FRInGe, eqs. for ``p(alpha)`` and ``d_FR``; S. Amari
and H. Nagaoka, "Methods of Information Geometry", 2000). Tensors are ``(..., C)``; distances are in radians of the
radius-2 sphere, entropies and divergences in nats.

Two rules keep the numbers accurate. Distributions enter as *log*-probabilities, so that ``sqrt(p) = exp(log p / 2)``
has a finite value and gradient where p underflows; and angles come from chords by ``atan2``, because ``arccos`` loses
half of the digits near equal points and returns NaN when a cosine rounds above one.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fringe._numbers.float64 import float64_on


def log_probabilities(logits: Tensor) -> Tensor:
    """Return ``log softmax(logits)`` in float64: (..., C) -> (..., C), nats.

    C numbers per image cost nothing beside the network, and ``1 - p`` near a vertex needs the digits.
    """
    with float64_on(logits.device):
        return logits.double().log_softmax(-1)


def target_rest_logits(logits: Tensor, target: Tensor) -> Tensor:
    """Return the logits (..., 2) of the class ``target`` (...) and of all others together, in float64:
    ``(F_t, log sum_{c != t} exp F_c)``. Their softmax is ``(p_t, 1 - p_t)``."""
    with float64_on(logits.device):
        at, wide = target[..., None], logits.double()
        return torch.cat([wide.gather(-1, at), wide.scatter(-1, at, -torch.inf).logsumexp(-1, keepdim=True)], -1)


#: Most logits whose temperature is found on the host.
HOST_NUMBERS = 2**13


def softening_temperature(logits: Tensor, share: float) -> Tensor:
    """Return the lowest temperature T >= 1 at which ``softmax(logits / T)`` has at least this share of the largest
    entropy, log C: (..., C) -> (...), in float64.

    The entropy grows with T (its derivative is the variance of the logits over T^3), so bisection finds T. It is at
    least ``log C - (max - min)^2 / (8 T^2)`` (Hoeffding's lemma), which bounds T from above.
    """
    with float64_on(logits.device):
        # 500 launches on a GPU take longer than so few numbers do on the host
        z = logits.to(device="cpu" if logits.numel() <= HOST_NUMBERS else logits.device, dtype=torch.float64)
        largest = math.log(logits.shape[-1])
        bound = (z.amax(-1) - z.amin(-1)) / math.sqrt(8.0 * (1.0 - share) * largest)
        low, high = torch.zeros_like(bound), bound.clamp_min(1.0).log()
        for _ in range(50):
            middle = 0.5 * (low + high)
            enough = entropy(log_probabilities(z / middle.exp()[..., None])) >= share * largest
            low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
        return torch.where(entropy(log_probabilities(z)) >= share * largest, 1.0, high.exp()).to(logits.device)


def sqrt_chart(log_p: Tensor) -> Tensor:
    """Return ``s = sqrt(p)``, a unit vector, from log-probabilities (..., C)."""
    return torch.exp(0.5 * log_p)


def dist(s0: Tensor, s1: Tensor) -> Tensor:
    """Return the Fisher-Rao distance ``2 arccos <s0, s1>``, twice the angle, between chart points (..., C) -> (...):
    ``4 atan2(|s0 - s1|, |s0 + s1|)``."""
    return 4.0 * torch.atan2((s0 - s1).norm(dim=-1), (s0 + s1).norm(dim=-1))


def geodesic(s0: Tensor, s1: Tensor, alpha: Tensor | float, length: Tensor | None = None) -> Tensor:
    """Return the chart point at fraction ``alpha`` (broadcast against ``(...,)``) of the great circle from s0 to s1;
    ``length`` is their :func:`dist`, where it is known."""
    theta = 0.5 * (dist(s0, s1) if length is None else length)
    part, norm = theta / torch.pi, torch.sinc(theta / torch.pi)
    w0, w1 = (a * torch.sinc(a * part) / norm for a in (1.0 - alpha, alpha))  # sin(a theta) / sin(theta), also at 0
    return w0[..., None] * s0 + w1[..., None] * s1


def to_tangent(vector: Tensor, base_point: Tensor) -> Tensor:
    """Project ``vector`` (..., C) orthogonally on the tangent space of the sphere at ``base_point``."""
    return vector - base_point * (vector * base_point).sum(-1, keepdim=True)


def entropy(log_p: Tensor) -> Tensor:
    """Return the Shannon entropy in nats: (..., C) -> (...). ``log_p`` may hold -inf."""
    return torch.special.entr(torch.exp(log_p)).sum(-1)


def kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return ``KL(p || q)`` in nats, never negative: (..., C) -> (...); inf where q is zero and p is not."""
    p = torch.exp(log_p)
    return torch.where(p > 0, p * (log_p - log_q), 0.0).sum(-1).clamp_min(0.0)


def fisher_norm_squared(p: Tensor, u: Tensor) -> Tensor:
    """Return ``u^T S(p) u``, the variance of ``u`` under p, never negative: (..., C) -> (...).

    The deviations are taken from the entry of the most probable class. Near a vertex the mean is that entry to
    rounding, and what is left of ``u - <p, u>`` there would be larger than the variance itself.
    """
    deviation = u - u.gather(-1, p.argmax(-1, keepdim=True))
    return (p * (deviation - (p * deviation).sum(-1, keepdim=True)).square()).sum(-1)


def balanced(cotangent: Tensor, s: Tensor) -> Tensor:
    """``cotangent`` (L, C) = s o q for q orthogonal to s, with the entry of the most probable class replaced by minus
    the sum of the others, which it equals: near a vertex, rounding of q leaves no digit of it."""
    top = s.argmax(1, keepdim=True)
    others = cotangent.scatter(1, top, 0.0)
    return others.scatter(1, top, -others.sum(1, keepdim=True))


def more_directions(s: Tensor, unit: Tensor, most: int) -> list[Tensor]:
    """Return at most ``most`` orthonormal directions (L, C) orthogonal to ``s`` and ``unit``, of which C - 2 exist,
    spanning the most probable classes first.

    Pivoted Gram-Schmidt on the axes of the most probable classes. One pass is enough: of r + 1 axes, r - 1 - j in
    all lie outside of s, unit and the j directions so far, so the longest remainder is at least 1 / sqrt(r + 1).
    """
    classes = s.shape[1]
    count = min(most, classes - 2)
    if count < 1:
        return []
    top = s.topk(count + 2, dim=1).indices  # s and unit may take up two of these axes
    rest = torch.zeros(len(s), count + 2, classes, dtype=s.dtype, device=s.device).scatter_(2, top[..., None], 1.0)
    images, basis = torch.arange(len(s), device=s.device), [s, unit]
    rest = rest - (rest @ s[:, :, None]) * s[:, None, :]
    for _ in range(count):
        rest = rest - (rest @ basis[-1][:, :, None]) * basis[-1][:, None, :]
        longest = rest[images, rest.norm(dim=-1).argmax(1)]
        basis.append(longest / longest.norm(dim=-1, keepdim=True))
    return basis[2:]


class Jacobian(Protocol):
    """Products with the Jacobians J (C x n) of B items."""

    def jvp(self, tangent: Tensor) -> Tensor:
        """``J v``: (B, *S) -> (B, C)."""
        ...

    def vjp(self, cotangent: Tensor) -> Tensor:
        """``J^T u``: (B, C) -> (B, *S)."""
        ...


@dataclass(frozen=True)
class SoftenedJacobian:
    """The Jacobians of logits divided by temperatures (B,), from those of the logits."""

    jacobian: Jacobian
    temperature: Tensor

    def jvp(self, tangent: Tensor) -> Tensor:
        u = self.jacobian.jvp(tangent)
        return (u / self.temperature[:, None]).to(u.dtype)

    def vjp(self, cotangent: Tensor) -> Tensor:
        return self.jacobian.vjp((cotangent / self.temperature[:, None]).to(cotangent.dtype))


@dataclass(frozen=True)
class TargetRestJacobian:
    """The Jacobians (2 x n) of :func:`target_rest_logits` for ``target`` (B,), from those of ``logits`` (B, C)."""

    jacobian: Jacobian
    logits: Tensor
    target: Tensor

    def _rows(self) -> Tensor:
        """The gradients (B, 2, C) of the two logits in the C."""
        at = self.target[:, None]
        rest = self.logits.scatter(1, at, -torch.inf).softmax(1)
        return torch.stack([torch.zeros_like(rest).scatter(1, at, 1.0), rest], 1)

    def jvp(self, tangent: Tensor) -> Tensor:
        u = self.jacobian.jvp(tangent)
        return torch.bmm(self._rows().to(u), u[:, :, None])[:, :, 0]

    def vjp(self, cotangent: Tensor) -> Tensor:
        rows = self._rows().to(cotangent)
        return self.jacobian.vjp(torch.bmm(cotangent[:, None], rows)[:, 0].to(self.logits.dtype))


@dataclass(frozen=True)
class ScaledJacobian:
    """``J diag(s)``: the Jacobians in coordinates y with ``dx = s dy``, from those in x.

    Attributes:
        jacobian: J at B points.
        scale: s (B, *S).
    """

    jacobian: Jacobian
    scale: Tensor

    def jvp(self, tangent: Tensor) -> Tensor:
        return self.jacobian.jvp(self.scale * tangent)

    def vjp(self, cotangent: Tensor) -> Tensor:
        return self.scale * self.jacobian.vjp(cotangent)
