"""Curves over removed or inserted inputs other than insertion and deletion: DiffID, CPD, CPP and signed insertion."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from fringe.geometry import log_probabilities
from fringe.metrics import _perturbation as perturb
from fringe.metrics._base import EvaluatedMaps, Metric, Scores, is_zero
from fringe.settings import Doc, PositiveFraction, PositiveInt

#: Shares of the entries that DiffID removes.
RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
#: Added to a probability or to a number of entries that is divided by.
EPSILON = 1e-8


@dataclass(frozen=True)
class DiffID(Metric):
    """The prediction that the most important entries keep, minus the prediction without them.

    .. math:: \\mathrm{score} = \\frac19 \\sum_{r=0.1}^{0.9} (I_r - D_r), \\qquad
        y = \\mathrm{clip}\\Bigl(\\frac{p_t(\\cdot)}{p_t(x)}, 0, 1\\Bigr)

    ``int(r n)`` of all n = C H W entries (not pixels) are replaced by the mean of the other entries: the least
    important entries for I, the most important for D. There is no blur that could favour paths of blurred images.
    Preset ``accuracy`` counts correct predictions instead of y. Costs 18 forward passes per map. Flags: ``zero_map``,
    ``constant_map``. Details: ``insertion``, ``deletion``. Curves: the same over r.
    """

    name = "diffid"
    title = "DiffID"
    direction = "higher"
    space = "the share of the target's probability that is left, over removed entries"
    source = "Kim et al. 2026 (Spectral Integrated Gradients, KDD), code of DiffID"
    by_default = False
    presets: ClassVar = {
        "paper": {},
        "2026": {"soft": True},
        "accuracy": {"soft": False},
    }

    soft: Annotated[bool, Doc("use the probability that is left, not whether the target is predicted")] = True

    @property
    def planned_passes(self) -> float:
        return 2 * len(RATIOS)

    def score(self, maps: EvaluatedMaps) -> Scores:
        context, problem = maps.context, maps.context.problem
        x = problem.inputs
        entries = maps.values.double().abs().flatten(1)  # each channel of a pixel is one of its own
        ranking = maps.cached("ranking of entries", lambda: perturb.rank_pixels(entries))
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
            probability, predicted = perturb.prediction(problem)(logits, rows).unbind(1)
            return (probability / (before[rows] + EPSILON)).clamp(0.0, 1.0) if self.soft else predicted

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
    """The changes of all probabilities, added up while pixels are removed step by step."""

    direction = "higher"
    space = "changes of all probabilities, step by step"
    source = "Jang et al. 2025 (TIMING, ICML), code"
    by_default = False
    presets: ClassVar = {"paper": {}, "half": {"share": 0.5, "steps": 50}}
    first: ClassVar[bool]

    reference: perturb.Reference = "zeros"
    share: Annotated[PositiveFraction, Doc("share of the pixels that is removed")] = 0.2
    steps: Annotated[PositiveInt, Doc("number of steps N, at most one for each pixel")] = 20
    reduction: perturb.Importance = "max"

    @property
    def planned_passes(self) -> float:
        return self.steps

    def refusal(self, shape: Sequence[int]) -> str:
        return perturb.blur_refusal(self.reference, shape)

    def score(self, maps: EvaluatedMaps) -> Scores:
        context, problem = maps.context, maps.context.problem
        x = problem.inputs
        ranking = perturb.ranking_of(maps, self.reduction)
        total = max(1, round(self.share * ranking.pixels))
        count = min(self.steps, total)
        changed = torch.tensor([round((s + 1) * total / count) for s in range(count)], device=x.device)
        rank = ranking.rank if self.first else ranking.pixels - 1 - ranking.rank
        replaced = perturb.Infill(self.reference, None, 3.0, "reflect").make(context)

        def probabilities(logits: Tensor, rows: Tensor) -> Tensor:
            return log_probabilities(logits).exp()

        after = perturb.respond(context, count, perturb.exchange(rank, x, replaced, changed), probabilities)
        points = torch.cat([probabilities(problem.logits, problem.every_row)[:, None], after], 1)
        cumulative = points.diff(dim=1).abs().sum(2).cumsum(1)
        return Scores(cumulative[:, -1], flags=ranking.flags(), curves={"cumulative": cumulative})


@dataclass(frozen=True)
class CumulativePredictionDifference(CumulativeChange):
    r"""Sum of the changes of all probabilities while the most important pixels are removed (CPD).

    .. math:: \mathrm{score} = \sum_{s=1}^{N} \sum_c |p_c(x_{s-1}) - p_c(x_s)|

    After step s ``round(s K / N)`` pixels are removed, with K = ``round(share P)`` of all P pixels. Importance and
    reference are those of :class:`Insertion` (padding ``reflect``). Every change counts, so effects of opposite sign do
    not cancel as they do at the end of a curve. Costs N forward passes per map. Flags: ``zero_map``, ``constant_map``.
    Curve: ``cumulative``.
    """

    name = "cpd"
    title = "CPD"
    first = True


@dataclass(frozen=True)
class CumulativePredictionPreservation(CumulativeChange):
    """Sum of the changes of all probabilities while the least important pixels are removed (CPP).

    Everything else is as for :class:`CumulativePredictionDifference`.
    """

    name = "cpp"
    title = "CPP"
    direction = "lower"
    first = False


@dataclass(frozen=True)
class SignedInsertion(perturb.ExchangeMetric):
    """Does evidence for the class raise its logit, and evidence against it lower it? The gap of two insertions.

    .. math:: \\mathrm{score} = \\frac1N \\sum_{s<N} \\tfrac12 (g_s + g_{s+1}), \\qquad g_s = F_t(x^+_s) - F_t(x^-_s)

    Pixels of the input are inserted into the reference by their signed evidence: the most positive first in x+, the
    most negative first in x-. Steps and reference are those of :class:`Insertion`. Both curves have the same ends. The
    logit is used, because a probability near 1 hardly changes. A random map scores 0; an inverted map has the negative
    score. Insertion, deletion and MAS ignore the sign. Costs 2 (N - 1) forward passes per map, and one per reference.
    Details: both areas, and the logit's ``change`` from the reference to the input. Curves: ``positive_first``,
    ``negative_first``.
    """

    name = "signed_insertion"
    title = "Signed insertion"
    direction = "higher"
    unit = "logit"
    space = "the target's logit over the share of inserted pixels"
    source = "after Petsiuk et al. 2018 (RISE), with signs"
    by_default = False
    presets: ClassVar = {"paper": {}, **perturb.SHARED_PRESETS}

    @property
    def planned_passes(self) -> float:
        return 2 * super().planned_passes

    def score(self, maps: EvaluatedMaps) -> Scores:
        context, signed = maps.context, perturb.signed_map(maps.values)
        first, second = (
            self.exchanged(context, perturb.rank_pixels(sign * signed), "insertion", "logit") for sign in (1.0, -1.0)
        )
        curves = {"positive_first": first.values, "negative_first": second.values}
        areas = {name: perturb.auc(values) for name, values in curves.items()}
        flat = signed.flatten(1)
        return Scores(
            areas["positive_first"] - areas["negative_first"],
            flags={"zero_map": is_zero(signed), "constant_map": flat.amin(1) == flat.amax(1)},
            details={**areas, "change": first.at_input - first.at_reference},
            curves=curves,
        )
