"""How far to go along a direction."""

from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

EPSILON = 1e-12
"""The paper's epsilon. ``|v|_G^2`` is near tau/8 > 1e-5 while tracking, so this is inert except at v = 0."""


class Bound(IntEnum):
    """Which of the bounds set the step."""

    ETA_MAX = 0
    KL = 1
    EUCLIDEAN = 2
    LOGIT = 3


@dataclass(frozen=True)
class TrustRegion:
    """``eta = min(eta_max, sqrt(2 tau / (|v|_G^2 + eps)), delta_euc / (|v|_2 + eps))`` (FRInGe, eqs. eta_KL, eta_Euc).

    ``tau`` is the KL budget of a step in nats, ``delta_euc`` the longest step in input units; ``None`` drops a bound.
    ``delta_logit`` (ours) bounds how far a step moves two logits apart, to first order, in nats: eta <= delta_logit /
    (max Jv - min Jv). Within d nats the KL of a step is at most 2 (e^d - 1 - d) / d^2 times what its quadratic form
    says (1.44 at d = 1); without such a bound a step from a saturated prediction, where the form is flat, may go
    anywhere.
    """

    eta_max: float
    tau: float | None
    delta_euc: float | None
    delta_logit: float | None = None

    def step(
        self, fisher_norm_squared: Tensor, norm: Tensor, logit_range: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Step sizes (B,) and active :class:`Bound` (B,) from ``v^T G v``, ``|v|_2`` and the range of ``J v``, (B,)
        each."""
        infinite = torch.full_like(norm, torch.inf)
        bounds = torch.stack(
            [
                torch.full_like(norm, self.eta_max),
                infinite if self.tau is None else (2.0 * self.tau / (fisher_norm_squared + EPSILON)).sqrt(),
                infinite if self.delta_euc is None else self.delta_euc / (norm + EPSILON),
                infinite
                if self.delta_logit is None or logit_range is None
                else self.delta_logit / (logit_range + EPSILON),
            ]
        )
        eta, active = bounds.min(0)
        return eta, active
