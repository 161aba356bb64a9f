"""Insertion and deletion (Petsiuk et al. 2018): the area under the perturbation curve."""

from dataclasses import dataclass, fields
from typing import Annotated, ClassVar

from fringe.metrics import _perturbation as perturb
from fringe.metrics._base import EvaluatedMaps, Scores
from fringe.settings import Doc


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
        curves = {"raw": curve.values, "normalised": normalised}
        if self.monotone:
            curves = {name: perturb.running_extremum(values, self.mode) for name, values in curves.items()}
        areas = {name: perturb.auc(values) for name, values in curves.items()}
        values = areas["normalised" if self.normalise else "raw"]
        return Scores(values, flags=curve.flags(), details={**areas, **curve.details()}, curves=curves)


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
    channels. Equal ones are in row-major order. The map's scale and sign do not matter. With ``normalise=False`` the
    score is the area under c itself.

    The reference is the input, blurred by a ``box``, a ``gaussian`` in a window of ``size`` pixels, or a Gaussian whose
    tails are folded back into its window (``folded``, as in RISE). Or it is ``zeros``, in the model's coordinates, or
    the ``mean`` of each channel. ``size`` is max(3, floor(min(H, W) / 10)) by default, plus 1 if this is even. A
    padding of ``reflect`` does not repeat the edge, and ``exclude`` averages over the pixels inside the image.

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
        "paper": {},
        "released": {"steps": 100},
        "raw": {"normalise": False},
        **perturb.SHARED_PRESETS,
        "rise": {"reference": "folded", "size": 11, "sigma": 5.0, "normalise": False, "reduction": "abs_sum"},
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
    presets: ClassVar = {
        "paper": {},
        "released": {"steps": 100},
        "raw": {"normalise": False},
        **perturb.SHARED_PRESETS,
        "rise": {"reference": "zeros", "normalise": False, "reduction": "abs_sum"},
    }


@dataclass(frozen=True)
class SymmetricRelevanceGain(perturb.ExchangeMetric):
    r"""The area under the deletion curve, the least important pixels first, minus that with the most important first.

    .. math:: \mathrm{SRG} = \mathrm{AUC}(\text{least first}) - \mathrm{AUC}(\text{most first})

    The first curve is that of :class:`Insertion`, read backwards: the score is the difference of the areas of
    ``insertion:raw`` and ``deletion:raw``, and costs nothing beside them. What any change of the image does to the
    model counts in both areas, so it cancels; a random map scores 0. Alone it costs 2 (N - 1) forward passes per map,
    and one per reference. Flags and details are those of :class:`Insertion`. Curves: ``least_first``, ``most_first``.
    """

    name = "srg"
    title = "Symmetric relevance gain"
    direction = "higher"
    space = "the target's probability over the share of exchanged pixels"
    source = "Bluecher et al. 2024 (Decoupling pixel flipping and occlusion strategy, TMLR)"
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
            areas["least_first"] - areas["most_first"],
            flags=inserted.ranking.flags(),
            details={**areas, **inserted.details()},
            curves={"least_first": inserted.values.flip(1), "most_first": deleted.values},
        )
