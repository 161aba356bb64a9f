"""Curves over removed or inserted inputs other than insertion and deletion: DiffID, CPD, CPP and signed insertion."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from fringe._direction import Direction
from fringe._filters import Padding
from fringe.geometry import log_probabilities
from fringe.metrics import _perturbation as perturb
from fringe.metrics._base import EvaluatedMaps, Metric, Scores
from fringe.settings import Doc, Positive, PositiveFraction, PositiveInt, PositiveOddInt

#: Shares of the entries that DiffID removes.
RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
#: Added to a probability or to a number of entries that is divided by.
EPSILON = 1e-8


@dataclass(frozen=True)
class DiffID(Metric):
    """What the most important entries keep of the prediction, minus what is left without them.

    .. math:: \\mathrm{score} = \\frac19 \\sum_{r=0.1}^{0.9} (I_r - D_r), \\qquad
        y = \\mathrm{clip}\\Bigl(\\frac{p_t(\\cdot)}{p_t(x)}, 0, 1\\Bigr)

    Of all C H W entries, not pixels, a share r is replaced by the mean of the others: the least important for I, the
    most important for D. There is no blur that could favour paths of blurred images. Preset ``accuracy`` counts correct
    predictions instead of y. Costs 18 forward passes per map. Flags: ``zero_map``, ``constant_map``. Details:
    ``insertion``, ``deletion``. Curves: the same over r.
    """

    name: ClassVar[str] = "diffid"
    title: ClassVar[str] = "DiffID"
    direction: ClassVar[Direction] = "higher"
    space: ClassVar[str] = "the share of the target's probability that is left, over removed entries"
    source: ClassVar[str] = "Kim et al. 2026 (Spectral Integrated Gradients, KDD), code of DiffID"
    by_default: ClassVar[bool] = False
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "2026": {"soft": True},
        "accuracy": {"soft": False},
    }

    soft: Annotated[bool, Doc("use the probability that is left, not whether the target is predicted")] = True

    @property
    def planned_passes(self) -> float:
        return 2 * len(RATIOS)

    def score(self, maps: EvaluatedMaps) -> Scores:
        """Score each map; see :meth:`Metric.score`."""
        context, problem = maps.context, maps.context.problem
        x = problem.inputs
        ranking = maps.cached("ranking of entries", lambda: _rank_entries(maps.values))
        rank, size = ranking.rank, ranking.pixels
        counts = torch.tensor([int(size * ratio) for ratio in RATIOS], device=x.device)
        before = problem.probability(problem.logits)

        def removed(rows: Tensor, numbers: Tensor) -> Tensor:
            count = counts[numbers % len(RATIOS)][:, None]
            of_rows = rank[rows]
            gone = torch.where((numbers < len(RATIOS))[:, None], of_rows >= size - count, of_rows < count)
            flat = x[rows].flatten(1)
            remaining = (~gone).to(flat)
            mean = (flat * remaining).sum(1, keepdim=True) / (remaining.sum(1, keepdim=True) + EPSILON)
            return torch.where(gone, mean, flat).view_as(x[rows])

        def left(logits: Tensor, rows: Tensor) -> Tensor:
            if not self.soft:
                return perturb.is_target(problem)(logits, rows)
            return (problem.probability(logits, rows) / (before[rows] + EPSILON)).clamp(0.0, 1.0)

        both = perturb.respond(context, 2 * len(RATIOS), removed, left)
        inserted, deleted = both.tensor_split(2, 1)
        return Scores(
            (inserted - deleted).mean(1),
            flags=ranking.flags(),
            details={"insertion": inserted.mean(1), "deletion": deleted.mean(1)},
            curves={"insertion": inserted, "deletion": deleted},
        )


@dataclass(frozen=True)
class CumulativeChange(Metric):
    """Sum of the changes of all probabilities while pixels are removed step by step.

    .. math:: \\mathrm{score} = \\sum_{s=1}^{N} \\sum_c |p_c(x_{s-1}) - p_c(x_s)|

    Pixels are removed in the order of |A|, a share of them in N steps. Every change counts, so effects of opposite sign
    do not cancel as they do at the end of a curve. Costs N forward passes per map. Flags: ``zero_map``,
    ``constant_map``. Curve: ``cumulative``.
    """

    direction: ClassVar[Direction] = "higher"
    space: ClassVar[str] = "changes of all probabilities, step by step"
    source: ClassVar[str] = "Jang et al. 2025 (TIMING, ICML), code"
    by_default: ClassVar[bool] = False
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {}, "half": {"share": 0.5, "steps": 50}}
    first: ClassVar[bool]

    reference: perturb.Reference = "zeros"
    share: Annotated[PositiveFraction, Doc("share of the pixels that is removed")] = 0.2
    steps: Annotated[PositiveInt, Doc("number of steps N, at most one for each pixel")] = 20
    reduction: perturb.Importance = "max"

    @property
    def planned_passes(self) -> float:
        return self.steps

    def score(self, maps: EvaluatedMaps) -> Scores:
        """Score each map; see :meth:`Metric.score`."""
        context, problem = maps.context, maps.context.problem
        x, reduction = problem.inputs, self.reduction
        ranking = maps.cached(
            ("ranking", reduction), lambda: perturb.rank_pixels(perturb.spatial_map(maps.values, reduction))
        )
        total = max(1, round(self.share * ranking.pixels))
        count = min(self.steps, total)
        changed = torch.tensor([round((s + 1) * total / count) for s in range(count)], device=x.device)
        rank = ranking.rank if self.first else ranking.pixels - 1 - ranking.rank
        replaced = perturb.Infill(self.reference, None, 3.0, "reflect").resolve(x).make(context)

        def probabilities(logits: Tensor, rows: Tensor) -> Tensor:
            return log_probabilities(logits).exp()

        after = perturb.respond(context, count, perturb.exchange(rank, x, replaced, changed), probabilities)
        points = torch.cat([probabilities(problem.logits, problem.every_row)[:, None], after], 1)
        cumulative = points.diff(dim=1).abs().sum(2).cumsum(1)
        return Scores(cumulative[:, -1], flags=ranking.flags(), curves={"cumulative": cumulative})


@dataclass(frozen=True)
class CumulativePredictionDifference(CumulativeChange):
    """Sum of the changes of all probabilities while the most important pixels are removed (CPD)."""

    name: ClassVar[str] = "cpd"
    title: ClassVar[str] = "CPD"
    first: ClassVar[bool] = True


@dataclass(frozen=True)
class CumulativePredictionPreservation(CumulativeChange):
    """Sum of the changes of all probabilities while the least important pixels are removed (CPP)."""

    name: ClassVar[str] = "cpp"
    title: ClassVar[str] = "CPP"
    direction: ClassVar[Direction] = "lower"
    first: ClassVar[bool] = False


@dataclass(frozen=True)
class SignedInsertion(Metric):
    """Does evidence for the class raise its logit, and evidence against it lower it? The gap of two insertions.

    .. math:: \\mathrm{score} = \\frac1N \\sum_{s<N} \\tfrac12 (g_s + g_{s+1}), \\qquad g_s = F_t(x^+_s) - F_t(x^-_s)

    Pixels of the input are inserted into the reference by their signed evidence: the most positive first in x+, the
    most negative first in x-. Both ends are equal. The logit is used, because a probability near 1 hides what raises
    it. 0 for a random map; an inverted map has the negative score. Insertion, deletion and MAS do not see the sign.
    Costs 2 (N - 1) forward passes per map, and one per infill. Details: both areas, and the logit's ``change`` from the
    reference to the input. Curves: ``positive_first``, ``negative_first``.
    """

    name: ClassVar[str] = "signed_insertion"
    title: ClassVar[str] = "Signed insertion"
    direction: ClassVar[Direction] = "higher"
    unit: ClassVar[str] = "logit"
    space: ClassVar[str] = "the target's logit over the share of inserted pixels"
    source: ClassVar[str] = "after Petsiuk et al. 2018 (RISE), with signs"
    by_default: ClassVar[bool] = False
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {}, **perturb.SHARED_PRESETS}

    reference: Annotated[perturb.InfillKind, Doc("what replaces a removed pixel")] = "box"
    size: Annotated[
        PositiveOddInt | None, Doc("width of the blur (odd); none: a tenth of the shorter side", unit="pixels")
    ] = None
    sigma: Annotated[Positive, Doc("standard deviation of a Gaussian blur", unit="pixels")] = 3.0
    padding: Annotated[Padding, Doc("what the blur reads beyond the edge")] = "zeros"
    steps: Annotated[PositiveInt | None, Doc("number of steps N; none: the height of the image")] = None

    @property
    def planned_passes(self) -> float:
        return 2 * (self.steps or 100)

    def score(self, maps: EvaluatedMaps) -> Scores:
        """Score each map; see :meth:`Metric.score`."""
        context, problem = maps.context, maps.context.problem
        x, measure = problem.inputs, perturb.logits_score(problem)
        signed = perturb.signed_map(maps.values)
        ranks = [perturb.rank_pixels(sign * signed).rank for sign in (1.0, -1.0)]
        pixels = signed[0].numel()
        count = min(self.steps or signed.shape[1], pixels)
        changed = torch.tensor([round(s * pixels / count) for s in range(1, count)], device=x.device)
        infill = perturb.Infill(self.reference, self.size, self.sigma, self.padding).resolve(x)
        replaced, every = infill.make(context), problem.every_row
        low = context.cached(("logit", infill), lambda: measure(problem.forward(replaced, every), every))
        ends = low[:, None], measure(problem.logits, every)[:, None]
        first, second = (
            torch.cat(
                [
                    ends[0],
                    perturb.respond(context, count - 1, perturb.exchange(r, replaced, x, changed), measure),
                    ends[1],
                ],
                1,
            )
            for r in ranks
        )
        areas = {"positive_first": perturb.auc(first), "negative_first": perturb.auc(second)}
        flat = signed.flatten(1)
        return Scores(
            areas["positive_first"] - areas["negative_first"],
            flags={"zero_map": (flat == 0).all(1), "constant_map": flat.amin(1) == flat.amax(1)},
            details={**areas, "change": (ends[1] - ends[0])[:, 0]},
            curves={"positive_first": first, "negative_first": second},
        )


def _rank_entries(values: Tensor) -> perturb.Ranking:
    """Rank all entries of maps (B, *S) by their size: each channel of a pixel is one of its own."""
    return perturb.rank_pixels(values.double().abs().flatten(1))
