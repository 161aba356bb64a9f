"""The length of a step of a path: the smallest of several bounds, one of which adapts to how linear the network is."""

from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

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
            / (max Jv - min Jv). Within d nats KL(p(x + dx) || p(x)) is at most 2 (1 + (d - 1) e^d) / d^2 times its
            quadratic form (2 at d = 1). The form of a saturated prediction is flat: without this bound a step may be
            far too long. If the network is not linear within the bound, it shrinks, see :meth:`next_radius`.
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
        logits does not count. Above one half, the bound becomes half of what the step was to do; below a quarter, it
        doubles.

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
