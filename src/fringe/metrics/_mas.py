"""Magnitude Aligned Scoring (Walker et al. 2024): a response curve, minus its distance from the map's mass."""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch

from fringe.metrics import _perturbation as perturb
from fringe.metrics._base import EvaluatedMaps, Scores
from fringe.settings import Doc, PositiveOddInt

#: Over the N + 1 steps: the trapezoid rule, or the plain mean.
Average = Literal["trapezoid", "mean"]


@dataclass(frozen=True)
class MagnitudeAlignedScore(perturb.PerturbationMetric):
    """What MAS insertion and MAS deletion share: the aligned curve, and its average."""

    space = "the target's probability against the map's mass, over the share of exchanged pixels"
    source = "Walker et al. 2024 (Magnitude Aligned Scoring); FRInGe, appendix Metric definitions"

    reference: perturb.Reference = "gaussian"
    size: Annotated[PositiveOddInt | None, Doc("width of the blur (odd); none: to 4 sigma each way", unit="pixels")] = (
        15
    )
    padding: perturb.Edge = "reflect"
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
            curves={**curves, "aligned": aligned},
        )


_RELEASED = {"padding": "zeros", "rescale": False, "drop_confident": True}
_TEXT = {"scale": "guarded", "monotone": False, "clip": False, "rescale": False, "average": "mean"}


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
    importance of a pixel. Preset ``walker2024`` is the code, ``released`` that of the FRInGe authors (zeros beyond the
    edge of the blur, not rescaled, images without a score where the reference has at least the input's probability),
    ``text`` the formula as the FRInGe paper prints it, of plain means (over N + 1 terms; it prints 1/N).

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
        "paper": {},
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
        "paper": {},
        "released": _RELEASED,
        "walker2024": {"reference": "zeros", "reduction": "abs_sum"},
        "text": _TEXT,
        **perturb.SHARED_PRESETS,
    }
