"""What MAS insertion and deletion have in common: a response curve, less what it misses of the map's mass."""

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch

from fringe._checks import require_choice
from fringe._filters import Padding
from fringe._tunable import tunable
from fringe.metrics.base import EvaluatedMaps, Metric, Scores
from fringe.metrics.curves import Mode, Scale, area, envelope, scaled, stretched
from fringe.metrics.perturbation import Perturbation
from fringe.metrics.ranking import REDUCTIONS, Reduction
from fringe.metrics.references import KINDS, PADDINGS, Reference, ReferenceKind

Average = Literal["trapezoid", "mean"]
"""Over the N + 1 steps: the trapezoid rule, or the plain mean."""

SCALES: tuple[Scale, ...] = get_args(Scale)
AVERAGES: tuple[Average, ...] = get_args(Average)


@dataclass(frozen=True)
class MagnitudeAlignment(Metric):
    """Magnitude Aligned Scoring: the model's response, with its distance from the map's own claim counted against it.

    At step s the model response MR is the target's probability on [0, 1] (``scale``), made ``monotone``; the density
    response DR is the share of the map's mass on the inserted pixels, or on those not yet deleted:

    .. math:: AP_s = |DR_s - MR_s|, \\qquad \\mathrm{MAS}_s = MR_s - AP_s \\ (\\text{insertion}),
        \\quad MR_s + AP_s \\ (\\text{deletion})

    The aligned curve is clipped to [0, 1] (``clip``), stretched between its own extremes (``rescale``) and averaged.
    These steps are the authors' code; the default differs from it in the reference, a Gaussian blur for both, and in
    max |A_c| for a pixel's importance. Preset ``walker2024`` is the code, ``text`` the formula as the FRInGe paper
    prints it, of plain means (over N + 1 terms; it prints 1/N).

    A curve that is not defined scores 0.5, a straight line's area, and is flagged ``undefined``: that of a zero map, of
    equal probabilities at the ends, of no response. Where the model's own output is NaN, so is the score. Other flags
    and extras as :class:`PerturbationArea`. Curves: ``model_response``, ``density_response``, ``alignment_penalty``,
    ``aligned``. Costs N - 1 forward passes an image, none where an insertion or deletion of the same reference was
    scored beside it, and one a reference.
    """

    space: ClassVar[str] = "the target's probability against the map's mass, over the share of exchanged pixels"
    source: ClassVar[str] = "Walker et al. 2024 (Magnitude Aligned Scoring); FRInGe, appendix Metric definitions"

    reference: ReferenceKind = tunable("gaussian", choices=KINDS, help="what stands for a removed pixel")
    size: int | None = tunable(15, unit="pixels", help="width of the blur (odd); none: to 4 sigma each way")
    sigma: float = tunable(3.0, unit="pixels", help="standard deviation of a Gaussian blur")
    padding: Padding = tunable("reflect", choices=PADDINGS, help="what the blur sees beyond the edge")
    scale: Scale = tunable("ends", choices=SCALES, help="unit of the response: the two ends, guarded, or its extremes")
    monotone: bool = tunable(True, help="replace the response by its running maximum (insertion) or minimum (deletion)")
    clip: bool = tunable(True, help="clip response and penalty together to [0, 1] at each step")
    rescale: bool = tunable(True, help="stretch the clipped curve between its own extremes")
    average: Average = tunable("trapezoid", choices=AVERAGES, help="over the N + 1 steps")
    steps: int | None = tunable(None, help="steps N; none: the height of the image, a row's width of pixels each")
    reduction: Reduction = tunable("max", choices=REDUCTIONS, help="importance of a pixel from its channels")

    def __post_init__(self) -> None:
        self.perturbation()
        require_choice("scale", self.scale, SCALES)
        require_choice("average", self.average, AVERAGES)

    def perturbation(self) -> Perturbation:
        """How pixels are exchanged. Raises InputError for a setting that makes no sense."""
        return Perturbation(Reference(self.reference, self.size, self.sigma, self.padding), self.reduction, self.steps)

    def aligned(self, explained: EvaluatedMaps, mode: Mode) -> Scores:
        """The score of exchanging pixels in this ``mode``."""
        walk = self.perturbation().walk(explained, mode)
        response = scaled(walk.curve, walk.p_input, walk.p_reference, self.scale)
        response = envelope(response, mode) if self.monotone else response
        density = walk.ranking.density(walk.changed)
        density = density if mode == "insertion" else 1.0 - density
        penalty = (density - response).abs()
        curve = response - penalty if mode == "insertion" else response + penalty
        curve = curve.clamp(0.0, 1.0) if self.clip else curve
        curve = stretched(curve) if self.rescale else curve
        undefined = torch.isnan(curve).any(1)
        values = area(curve) if self.average == "trapezoid" else curve.mean(1)
        straight = undefined & torch.isfinite(walk.curve).all(1)
        return Scores(
            values.masked_fill(straight, 0.5),
            flags={**walk.flags(), "undefined": undefined},
            extras={**walk.extras(), "response": area(response), "penalty": area(penalty)},
            curves={
                "model_response": response,
                "density_response": density,
                "alignment_penalty": penalty,
                "aligned": curve,
            },
        )
