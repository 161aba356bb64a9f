"""What insertion and deletion have in common: the area under the curve of the target's probability."""

from dataclasses import dataclass
from typing import ClassVar

from fringe._filters import Padding
from fringe._tunable import tunable
from fringe.metrics.base import EvaluatedMaps, Metric, Scores
from fringe.metrics.curves import Mode, area, envelope, scaled
from fringe.metrics.perturbation import Perturbation
from fringe.metrics.ranking import REDUCTIONS, Reduction
from fringe.metrics.references import KINDS, PADDINGS, Reference, ReferenceKind


@dataclass(frozen=True)
class PerturbationArea(Metric):
    """The area under ``c_s = softmax(F(x_s))_t``, s = 0 ... N, where x_s has s N-ths of its pixels exchanged, in the
    order of the map.

    .. math:: \\tilde c_s = \\mathrm{clip}\\Bigl(\\frac{c_s - p_{ref}}{\\max(p_{in} - p_{ref}, \\epsilon)}, 0, 1\\Bigr),
        \\qquad \\mathrm{score} = \\frac1N \\sum_{s<N} \\tfrac12 (\\tilde c_s + \\tilde c_{s+1})

    With ``normalise=False`` the score is the area under c itself. Flags: ``blur_more_confident`` (the reference has at
    least the input's probability: the normalised score says nothing), ``zero_map``, ``constant_map``. Extras: both
    areas as ``raw`` and ``normalised``, the probabilities at the ends, and the share of ``ties``. Curves: ``raw``,
    ``normalised``. The map's scale and sign do not matter. Costs N - 1 forward passes an image, and one a reference.
    """

    space: ClassVar[str] = "the target's probability over the share of exchanged pixels"
    source: ClassVar[str] = "Petsiuk et al. 2018 (RISE); FRInGe, appendix Metric definitions"

    reference: ReferenceKind = tunable("box", choices=KINDS, help="what stands for a removed pixel")
    size: int | None = tunable(None, unit="pixels", help="width of the blur (odd); none: a tenth of the shorter side")
    sigma: float = tunable(3.0, unit="pixels", help="standard deviation of a Gaussian blur")
    padding: Padding = tunable("zeros", choices=PADDINGS, help="what the blur sees beyond the edge")
    normalise: bool = tunable(True, help="measure from the reference's probability, in shares of the input's lead")
    monotone: bool = tunable(False, help="replace the curve by its running maximum (insertion) or minimum (deletion)")
    steps: int | None = tunable(None, help="steps N; none: the height of the image, a row's width of pixels each")
    reduction: Reduction = tunable("max", choices=REDUCTIONS, help="importance of a pixel from its channels")

    def __post_init__(self) -> None:
        self.perturbation()

    def perturbation(self) -> Perturbation:
        """How pixels are exchanged. Raises InputError for a setting that makes no sense."""
        return Perturbation(Reference(self.reference, self.size, self.sigma, self.padding), self.reduction, self.steps)

    def area_under(self, explained: EvaluatedMaps, mode: Mode) -> Scores:
        """The score of exchanging pixels in this ``mode``."""
        walk = self.perturbation().walk(explained, mode)
        normalised = scaled(walk.curve, walk.p_input, walk.p_reference, "guarded")
        curves = {"raw": walk.curve, "normalised": normalised}
        if self.monotone:
            curves = {name: envelope(curve, mode) for name, curve in curves.items()}
        areas = {name: area(curve) for name, curve in curves.items()}
        values = areas["normalised" if self.normalise else "raw"]
        return Scores(values, flags=walk.flags(), extras={**areas, **walk.extras()}, curves=curves)
