"""Metrics over curves of removed or inserted pixels: insertion, deletion, MAS, DiffID, CPD, CPP, signed insertion."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from fringe.geometry import log_probabilities
from fringe.metrics import _perturbation as perturb
from fringe.metrics._base import EvaluatedMaps, Scores, is_zero
from fringe.settings import Doc, PositiveFraction, PositiveInt


@dataclass(frozen=True)
class PerturbationAUC(perturb.PerturbationMetric):
    """The area under the curve of an insertion or a deletion."""

    space = "the target's probability over the share of exchanged pixels"
    source = "Petsiuk et al. 2018 (RISE); FRInGe, appendix Metric definitions"

    normalise: Annotated[bool, Doc("rescale from the reference's probability (0) to the input's (1)")] = True
    monotone: Annotated[bool, Doc("replace the curve by its running maximum (insertion) or minimum (deletion)")] = False
    reduction: perturb.Importance = "max"

    def score(self, maps: EvaluatedMaps) -> Scores:
        curve = self.curve(maps)
        normalised = perturb.to_response(curve.values, curve.at_input, curve.at_reference, "guarded")
        curves = {"normalised": normalised, "raw": curve.values}
        if self.monotone:
            curves = {name: perturb.running_extremum(values, self.mode) for name, values in curves.items()}
        areas = {name: perturb.auc(values) for name, values in curves.items()}
        used = "normalised" if self.normalise else "raw"
        shown = {used: curves[used], **curves}
        return Scores(areas[used], flags=curve.flags(), details={**areas, **curve.details()}, curves=shown)


_PAPER = {"reference": "box", "padding": "zeros"}
_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "paper": _PAPER,
    "released": {**_PAPER, "steps": 100},
    "raw": {"normalise": False},
    **perturb.SHARED_PRESETS,
}


@dataclass(frozen=True)
class Insertion(PerturbationAUC):
    r"""Area under the target's probability while pixels of the input are inserted into the reference, the important
    ones first.

    .. math:: c_s = \mathrm{softmax}(F(x_s))_t, \qquad
        \tilde c_s = \mathrm{clip}\Bigl(\frac{c_s - p_{ref}}{\max(p_{in} - p_{ref}, 10^{-8})}, 0, 1\Bigr), \qquad
        \mathrm{score} = \frac1N \sum_{s<N} \tfrac12 (\tilde c_s + \tilde c_{s+1})

    x_s has ``round(s P / N)`` of P pixels of the input, each with all its channels. Without ``steps`` N is the length
    of the first axis of space, for images the number of rows; N is at most P. The pixels are in descending order of
    importance: max |A_c|, |sum A_c| (``abs_sum``), sum |A_c| (``sum_abs``) or the Euclidean norm (``l2``) of the
    channels. Equal ones are in a random order of the image, by its key and the seed. The map's scale and sign do not
    matter. With ``normalise=False`` the score is the area under c itself.

    The reference is the input, blurred by a ``gaussian``, a ``box``, or a Gaussian whose tails are folded back into its
    window of ``size`` pixels (``folded``, as in RISE). Or it is ``zeros``, in the model's coordinates, or the ``mean``
    of each channel. Without ``sigma`` it is a fifth of min(H, W), after which networks answer as to the mean colour.
    Without ``size`` a Gaussian reaches to 4 sigma each way; for others it is max(3, floor(min(H, W) / 10)), plus 1 if
    this is even: the paper's box. A padding of ``reflect`` does not repeat the edge, and ``exclude`` averages over the
    pixels inside the image.

    Costs N - 1 forward passes per image, and one per reference. Flags: ``blur_more_confident`` (the reference has at
    least the input's probability: the normalised score is meaningless), ``zero_map``, ``constant_map``. Details: both
    areas as ``raw`` and ``normalised``, the probabilities at the ends, and the share of ``ties``. Curves: ``raw``,
    ``normalised``.
    """

    mode = "insertion"
    name = "insertion"
    title = "Insertion AUC"
    direction = "higher"
    presets: ClassVar = {
        **_PRESETS,
        "rise": {
            **{"reference": "folded", "size": 11, "sigma": 5.0, "padding": "zeros"},
            **{"normalise": False, "reduction": "abs_sum"},
        },
    }


@dataclass(frozen=True)
class Deletion(PerturbationAUC):
    """Area under the target's probability while pixels of the input are replaced by the reference, the important
    ones first.

    Everything else is as for :class:`Insertion`.
    """

    mode = "deletion"
    name = "deletion"
    title = "Deletion AUC"
    direction = "lower"
    presets: ClassVar = {**_PRESETS, "rise": {"reference": "zeros", "normalise": False, "reduction": "abs_sum"}}


@dataclass(frozen=True)
class SymmetricRelevanceGain(perturb.ExchangeMetric):
    r"""The area under the deletion curve, the least important pixels first, minus that with the most important first.

    .. math:: \mathrm{SRG} = \mathrm{AUC}(\text{least first}) - \mathrm{AUC}(\text{most first})

    The first curve is that of :class:`Insertion`, read backwards: the score is the difference of the areas of
    ``insertion:raw`` and ``deletion:raw``, and costs nothing beside them. What any change of the image does to the
    model counts in both areas, so it cancels: a random map scores 0 on average, and a constant map exactly. It is also
    the quality gap (QGE) of deletion: the score of a map against that of its inverse, whose order is reversed. Alone it
    costs 2 (N - 1) forward passes per map, and one per reference. Flags and details are those of :class:`Insertion`.
    Curves: ``least_first``, ``most_first``.
    """

    name = "srg"
    title = "Symmetric relevance gain"
    direction = "higher"
    space = "the target's probability over the share of exchanged pixels"
    source = "Bluecher et al. 2024 (SRG, TMLR); Eiras-Franco et al. 2025 (QGE, AAAI) of deletion"
    by_default = False
    presets: ClassVar = {"paper": {}, **perturb.SHARED_PRESETS}

    reduction: perturb.Importance = "max"

    @property
    def planned_passes(self) -> float:
        return 2 * super().planned_passes

    def score(self, maps: EvaluatedMaps) -> Scores:
        settings = {field.name: getattr(self, field.name) for field in fields(self)}
        inserted, deleted = (kind(**settings).curve(maps) for kind in (Insertion, Deletion))
        areas = {"least_first": perturb.auc(inserted.values), "most_first": perturb.auc(deleted.values)}
        return Scores(
            inserted.ranking.gap(areas["least_first"], areas["most_first"]),
            flags=inserted.ranking.flags(),
            details={**areas, **inserted.details()},
            curves={"least_first": inserted.values.flip(1), "most_first": deleted.values},
        )


#: Over the N + 1 steps: the trapezoid rule, or the plain mean.
Average = Literal["trapezoid", "mean"]


@dataclass(frozen=True)
class MagnitudeAlignedScore(perturb.PerturbationMetric):
    """What MAS insertion and MAS deletion share: the aligned curve, and its average."""

    space = "the target's probability against the map's mass, over the share of exchanged pixels"
    source = "Walker et al. 2024 (Magnitude Aligned Scoring); FRInGe, appendix Metric definitions"

    scale: Annotated[perturb.Scale, Doc("unit of the response: the two ends, guarded, or its extremes")] = "ends"
    monotone: Annotated[bool, Doc("replace the response by its running maximum (insertion) or minimum (deletion)")] = (
        True
    )
    clip: Annotated[bool, Doc("clip response and penalty together to [0, 1] at each step")] = True
    rescale: Annotated[bool, Doc("rescale the clipped curve to its minimum and maximum")] = True
    average: Annotated[Average, Doc("how the N + 1 steps are averaged")] = "trapezoid"
    drop_confident: Annotated[bool, Doc("no score where the reference has at least the input's probability")] = False
    reduction: perturb.Importance = "max"

    def score(self, maps: EvaluatedMaps) -> Scores:
        curve = self.curve(maps)
        insertion = self.mode == "insertion"
        response = perturb.to_response(curve.values, curve.at_input, curve.at_reference, self.scale)
        response = perturb.running_extremum(response, self.mode) if self.monotone else response
        density = curve.ranking.density(curve.changed)
        density = density if insertion else 1.0 - density
        penalty = (density - response).abs()
        aligned = response - penalty if insertion else response + penalty
        aligned = aligned.clamp(0.0, 1.0) if self.clip else aligned
        aligned = perturb.min_max_normalise(aligned) if self.rescale else aligned
        undefined = torch.isnan(aligned).any(1)
        values = perturb.auc(aligned) if self.average == "trapezoid" else aligned.mean(1)
        undefined_score = 0.5
        if self.drop_confident:
            undefined = undefined | (curve.at_input <= curve.at_reference)
            undefined_score = math.nan
        curves = {"model_response": response, "density_response": density, "alignment_penalty": penalty}
        return Scores(
            values.masked_fill(undefined & torch.isfinite(curve.values).all(1), undefined_score),
            flags={**curve.flags(), "undefined": undefined},
            details={**curve.details(), "response": perturb.auc(response), "penalty": perturb.auc(penalty)},
            curves={"aligned": aligned, **curves},
        )


_WINDOW = {"size": 15, "sigma": 3.0}
_RELEASED = {**_WINDOW, "padding": "zeros", "rescale": False, "drop_confident": True}
_TEXT = {**_WINDOW, "scale": "guarded", "monotone": False, "clip": False, "rescale": False, "average": "mean"}


@dataclass(frozen=True)
class MASInsertion(MagnitudeAlignedScore):
    r"""Magnitude Aligned Scoring while pixels of the input are inserted into the reference, the important ones first.

    Steps, importance and reference are those of :class:`Insertion`. The model response MR is the target's probability,
    rescaled and clipped to [0, 1], and made ``monotone``. The ``scale`` ``ends`` is 0 at the reference and 1 at the
    input, ``guarded`` is that of :class:`Insertion`, ``extremes`` takes the curve's minimum and maximum. The density
    response DR is the share of the importance of all pixels on the inserted ones, or on those not yet deleted:

    .. math:: AP_s = |DR_s - MR_s|, \qquad \mathrm{MAS}_s = MR_s - AP_s \ (\text{insertion}),
        \quad MR_s + AP_s \ (\text{deletion})

    The aligned curve is clipped to [0, 1] (``clip``), min-max normalised (``rescale``) and averaged. These steps are
    the authors' code; the default differs from it in the reference, a Gaussian blur for both, and in max |A_c| for the
    importance of a pixel. Preset ``walker2024`` is the code, ``paper`` has the FRInGe paper's blur (15 pixels, sigma
    3), ``released`` is the code of its authors (zeros beyond the edge of the blur, not rescaled, images without a score
    where the reference has at least the input's probability), ``text`` the formula as the paper prints it, of plain
    means (over N + 1 terms; it prints 1/N).

    A curve that is not defined scores 0.5, a straight line's area, and is flagged ``undefined``: that of a zero map, of
    equal probabilities at the ends, of no response. If the model's own output is NaN, so is the score. Other flags and
    details as :class:`Insertion`. Curves: ``model_response``, ``density_response``, ``alignment_penalty``, ``aligned``.
    Costs N - 1 forward passes per image, none if an insertion or deletion with the same reference is scored with it,
    and one per reference.
    """

    mode = "insertion"
    name = "mas_insertion"
    title = "MAS insertion"
    direction = "higher"
    presets: ClassVar = {
        "paper": _WINDOW,
        "released": _RELEASED,
        "walker2024": {"reference": "folded", "size": 11, "sigma": 11.0, "padding": "zeros", "reduction": "abs_sum"},
        "text": _TEXT,
        **perturb.SHARED_PRESETS,
    }


@dataclass(frozen=True)
class MASDeletion(MagnitudeAlignedScore):
    """Magnitude Aligned Scoring while pixels of the input are replaced by the reference, the important ones first.

    Everything else is as for :class:`MASInsertion`.
    """

    mode = "deletion"
    name = "mas_deletion"
    title = "MAS deletion"
    direction = "lower"
    presets: ClassVar = {
        "paper": _WINDOW,
        "released": _RELEASED,
        "walker2024": {"reference": "zeros", "reduction": "abs_sum"},
        "text": _TEXT,
        **perturb.SHARED_PRESETS,
    }


#: Shares of the entries that DiffID removes.
RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
#: Added to a probability or to a number of entries that is divided by.
EPSILON = 1e-8


@dataclass(frozen=True)
class DiffID(perturb.RankingMetric):
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
        ranking = maps.cached("ranking of entries", lambda: perturb.rank_pixels(entries, context))
        size = ranking.pixels
        counts = torch.tensor([int(size * ratio) for ratio in RATIOS], device=x.device)
        before = problem.probability(problem.logits)

        def removed(rows: Tensor, numbers: Tensor) -> Tensor:
            count = counts[numbers % len(RATIOS)][:, None]
            is_least = (numbers < len(RATIOS))[:, None]
            gone = torch.where(is_least, ranking.least_first[rows], ranking.most_first[rows]) < count
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
            ranking.gap(inserted, deleted).mean(1),
            flags=ranking.flags(),
            details={"insertion": inserted.mean(1), "deletion": deleted.mean(1)},
            curves={"insertion": inserted, "deletion": deleted},
        )


@dataclass(frozen=True)
class CumulativeChange(perturb.RankingMetric):
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
        rank = ranking.most_first if self.first else ranking.least_first
        replaced = perturb.Infill(self.reference, None, None, "reflect").make(context)

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
        rankings = [perturb.rank_pixels(sign * signed, context) for sign in (1.0, -1.0)]
        first, second = (self.exchanged(context, ranking, "insertion", "logit") for ranking in rankings)
        curves = {"positive_first": first.values, "negative_first": second.values}
        areas = {name: perturb.auc(values) for name, values in curves.items()}
        return Scores(
            first.ranking.gap(areas["positive_first"], areas["negative_first"]),
            flags={**first.ranking.flags(), "zero_map": is_zero(signed)},
            details={**areas, "change": first.at_input - first.at_reference},
            curves=curves,
        )
