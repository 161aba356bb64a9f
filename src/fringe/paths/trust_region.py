"""How far to go along a direction."""

from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

EPSILON = 1e-12
"""The paper's epsilon. ``|v|_G^2`` is near tau/8 > 1e-5 while tracking, so this is inert except at v = 0."""


class Bound(IntEnum):
    """Which of the three bounds set the step."""

    ETA_MAX = 0
    KL = 1
    EUCLIDEAN = 2


@dataclass(frozen=True)
class TrustRegion:
    """``eta = min(eta_max, sqrt(2 tau / (|v|_G^2 + eps)), delta_euc / (|v|_2 + eps))`` (FRInGe, eqs. eta_KL, eta_Euc).

    ``tau`` is the KL budget of a step in nats, ``delta_euc`` the longest step in input units; ``None`` drops a bound.
    """

    eta_max: float
    tau: float | None
    delta_euc: float | None

    def step(self, fisher_norm_squared: Tensor, norm: Tensor) -> tuple[Tensor, Tensor]:
        """Step sizes (B,) and active :class:`Bound` (B,) from ``v^T G v`` (B,) and ``|v|_2`` (B,)."""
        infinite = torch.full_like(norm, torch.inf)
        bounds = torch.stack(
            [
                torch.full_like(norm, self.eta_max),
                infinite if self.tau is None else (2.0 * self.tau / (fisher_norm_squared + EPSILON)).sqrt(),
                infinite if self.delta_euc is None else self.delta_euc / (norm + EPSILON),
            ]
        )
        eta, active = bounds.min(0)
        return eta, active
