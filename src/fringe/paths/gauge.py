"""Where a prediction stands against the geodesic to the reference: the paper's path diagnostics, for any path."""

import math

import torch
from torch import Tensor

from fringe.geometry import dist, entropy, geodesic, geometry_dtype, kl, sqrt_chart


class GeodesicDiagnostics:
    """Measures predictions of B images against the geodesics from ``log_p0`` (B, C) to ``log_q`` (B, C).

    A path need not follow these geodesics: the same numbers, for every method, are what makes paths comparable.
    """

    def __init__(self, log_p0: Tensor, log_q: Tensor):
        self.log_p0, self.log_q = log_p0, log_q
        self.s0, self.s1 = sqrt_chart(log_p0), sqrt_chart(log_q)

    def distance(self) -> Tensor:
        """Fisher-Rao distance (B,) from each image's own prediction to the reference (radians)."""
        return dist(self.s0, self.s1)

    def waypoint(self, rows: Tensor, alpha: Tensor) -> Tensor:
        """The point s (L, C) of the geodesics of images ``rows`` (L,) at fractions ``alpha`` (L,) of their length."""
        return geodesic(self.s0[rows], self.s1[rows], alpha.to(self.s0))

    def point(self, rows: Tensor, log_p: Tensor, alpha: Tensor) -> dict[str, Tensor]:
        """What is measured at points with predictions ``log_p`` (L, C), due at fractions ``alpha`` (nats, radians)."""
        s, waypoint = sqrt_chart(log_p), self.waypoint(rows, alpha)
        return {
            "entropy": entropy(log_p),
            "reference_kl": kl(log_p, self.log_q[rows]),
            "waypoint_kl": kl(log_p, 2.0 * waypoint.log()),
            "tracking_error": dist(s, waypoint),
            "reference_distance": dist(s, self.s1[rows]),
        }


def uniform_log_probs(logits: Tensor) -> Tensor:
    """Log-probabilities (B, C) of the uniform distribution, in the dtype of the geometry."""
    classes = logits.shape[-1]
    return torch.full(logits.shape, -math.log(classes), dtype=geometry_dtype(logits.device), device=logits.device)


def fisher_rao_step(before: Tensor, after: Tensor) -> Tensor:
    """Fisher-Rao distance between predictions given as log-probabilities (L, C): (L,) radians."""
    return dist(sqrt_chart(before), sqrt_chart(after))
