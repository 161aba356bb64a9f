"""ROAD (Rong et al. 2022): removal of pixels that are imputed from their neighbours, so that no mask shows."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from fringe.errors import InputError
from fringe.linalg import CGStatus, batch_view, conjugate_gradient
from fringe.metrics import _perturbation as perturb
from fringe.metrics._base import EvaluatedMaps, EvaluationContext, Metric, Scores, space_only
from fringe.settings import Doc, NotNegative, Positive, checked_by

#: Most iterations of a solve: a hole of 224 pixels takes about 250.
MOST_ITERATIONS = 1000


def _require_shares(value: Sequence[float]) -> None:
    if not value or any(not 0 < share < 1 for share in value):
        raise InputError(f"got {value!r}, expected numbers between 0 and 1", argument="shares")


@dataclass(frozen=True)
class ROAD(Metric):
    """The ROAD gap: the prediction without the least important pixels, minus the prediction without the most important
    ones.

    .. math:: \\mathrm{score} = \\frac1n \\sum_p \\bigl(y(x^{LeRF}_p) - y(x^{MoRF}_p)\\bigr)

    A share p of the pixels is removed, the most relevant first (MoRF) or the least relevant first (LeRF), and imputed:
    each missing pixel is the weighted mean of its neighbours plus noise. The weights are 1 / d^2 at the distance of d
    pixels: 2 : 1 for the sides and corners of a pixel, 6 : 3 : 2 for the sides, edges and corners of a voxel, 1 : 1 for
    the two neighbours in a series. This is one linear system for each image and share. So the shape of the mask does
    not reveal the class. y is the target's probability, or whether it is predicted (preset ``accuracy``).

    Large smooth regions are imputed well, so smooth maps are underestimated: compare with single deletion. The
    systems are solved together on the model's device, in single precision. The noise belongs to the image and is the
    same for all methods. Costs two forward passes for each share.

    Flags: ``not_converged`` (an imputation missed its tolerance), ``zero_map``, ``constant_map``. Details: the gap of
    both measures. Curves: ``morf``, ``lerf``, of the chosen measure over the shares.
    """

    name = "road"
    title = "ROAD gap"
    direction = "higher"
    space = "the target's probability over the share of imputed pixels"
    source = "Rong, Leemann et al. 2022 (ROAD, ICML); the gap is their LeRF minus MoRF"
    by_default = False
    presets: ClassVar = {"paper": {}, "accuracy": {"measure": "accuracy"}}

    shares: Annotated[tuple[float, ...], checked_by(_require_shares), Doc("shares of removed pixels")] = (
        *(0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9),
    )
    measure: Annotated[Literal["probability", "accuracy"], Doc("quantity that is measured")] = "probability"
    noise: Annotated[NotNegative, Doc("standard deviation of the noise", unit="share of the valid range")] = 0.01
    tolerance: Annotated[Positive, Doc("relative residual of an imputation")] = 1e-3
    reduction: perturb.Importance = "max"

    @property
    def planned_passes(self) -> float:
        return 2 * len(self.shares)

    def refusal(self, shape: Sequence[int]) -> str:
        return space_only(shape, "imputation")

    def score(self, maps: EvaluatedMaps) -> Scores:
        context, problem = maps.context, maps.context.problem
        x = problem.inputs
        ranking = perturb.ranking_of(maps, self.reduction)
        noise = context.cached((self.name, self.noise), lambda: self._noise(context))
        counts = torch.tensor([round(share * ranking.pixels) for share in self.shares], device=x.device)
        rank = perturb.per_channel(ranking.rank, x)
        converged = torch.ones(len(x), dtype=torch.bool, device=x.device)
        share_count = len(self.shares)

        def removed(rows: Tensor, numbers: Tensor) -> Tensor:
            count, is_most = (batch_view(one, x) for one in (counts[numbers % share_count], numbers < share_count))
            missing = torch.where(is_most, rank[rows] < count, rank[rows] >= ranking.pixels - count)
            imputed, solved = impute(x[rows], missing, self.tolerance)
            converged.index_put_((rows[~solved],), converged.new_zeros(()))
            return torch.where(missing, imputed + noise[rows], x[rows])

        left = perturb.respond(context, 2 * share_count, removed, perturb.prediction(problem))
        morf, lerf = left[:, :share_count], left[:, share_count:]
        gaps = (lerf - morf).mean(1)
        chosen = perturb.PREDICTION.index(self.measure)
        return Scores(
            gaps[:, chosen],
            flags={"not_converged": ~converged, **ranking.flags()},
            details={**dict(zip(perturb.PREDICTION, gaps.T, strict=True)), "ties": ranking.ties()},
            curves={"morf": morf[..., chosen], "lerf": lerf[..., chosen]},
        )

    def _noise(self, context: EvaluationContext) -> Tensor:
        problem = context.problem
        low, high = problem.domain.bounds(problem.inputs)
        named = zip(problem.keys, problem.inputs, strict=True)
        return self.noise * (high - low) * torch.stack([problem.rng.normal(f"{self.name} {k}", x) for k, x in named])


@dataclass(frozen=True)
class _Neighbourhood:
    """The symmetric system of the missing pixels: each one's weight minus that of its missing neighbours."""

    missing: Tensor  # (L, 1, *space), of zeros and ones
    weight: Tensor  # (1, 1, *space), the weights of the neighbours inside the image

    def matvec(self, v: Tensor) -> Tensor:
        return self.missing * (self.weight * v - neighbour_sum(self.missing * v))


def impute(x: Tensor, missing: Tensor, tolerance: float) -> tuple[Tensor, Tensor]:
    """Replace the ``missing`` pixels (L, 1, *space) of images (L, C, *space) by the weighted mean of their neighbours,
    all at once; and return whether each system (L,) was solved. The ``tolerance`` is the relative residual of each, of
    which the right-hand side is centred on the image's known mean."""
    wide, m, space = x.to(torch.float32), missing.to(torch.float32), tuple(range(2, x.dim()))
    weight = neighbour_sum(torch.ones_like(wide[:1, :1]))
    count = (1.0 - m).sum(space, keepdim=True).clamp_min(1.0)
    mean = ((1.0 - m) * wide).sum(space, keepdim=True, dtype=torch.float64).to(wide) / count
    known = (1.0 - m) * (wide - mean)
    right = m * neighbour_sum(known)
    system = _Neighbourhood(m, weight)
    # A residual bounds the error only up to the conditioning of the system, which grows with the area of a hole.
    solution = conjugate_gradient(
        system, right, rtol=0.1 * tolerance, max_iterations=MOST_ITERATIONS, reorthogonalise=False
    )
    filled = torch.where(missing, solution.x + mean, wide)
    return filled.to(x), solution.status == int(CGStatus.CONVERGED)


def neighbour_sum(values: Tensor) -> Tensor:
    """Weighted sum over the neighbours inside the image, (L, C, *space): 1 / (6 d^2) at the distance of d pixels.

    Sums of shifted images, which are equal in every batch: convolutions round by the size of theirs.
    """
    sizes = values.shape[2:]
    padded = pad(values, (1, 1) * len(sizes))
    total = torch.zeros_like(values)
    for offset in itertools.product((-1, 0, 1), repeat=len(sizes)):
        if any(offset):
            at = [slice(1 + step, 1 + step + size) for step, size in zip(offset, sizes, strict=True)]
            total = total + 1 / (6 * sum(map(abs, offset))) * padded[(..., *at)]
    return total
