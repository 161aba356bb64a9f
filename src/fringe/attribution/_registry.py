"""The methods by name: a class in this list is in ``METHODS``, in the package's face, in listings, pages and tests."""

from fringe.attribution._attention import AttentionRollout, LeGrad
from fringe.attribution._base import METHODS
from fringe.attribution._cam import GradCAM, HiResCAM, LayerCAM
from fringe.attribution._fringe import Diffusion, FRInGe, FRInGeBinary
from fringe.attribution._ig import GGIG, BlurIG, GuidedIG, IntegratedDecisionGradients, IntegratedGradients, SpectralIG
from fringe.attribution._modifiers import CentrePrior, Libra, Power, Smooth, Straight
from fringe.attribution._paper import PaperFRInGe
from fringe.attribution._plugins import AttnLRP, CaptumMethod, ZennitMethod
from fringe.attribution._released import ReleasedFRInGe
from fringe.attribution._sampling import RISE, ExpectedGradients, SmoothGrad
from fringe.attribution._shaped_paths import AGI, IG2, GeoIGKNN, GeoIGSVI

METHODS.update(
    (kind.name, kind)
    for kind in (
        *(AGI, BlurIG, Diffusion, ExpectedGradients, FRInGe, FRInGeBinary, GeoIGKNN, GeoIGSVI, GGIG, GuidedIG, IG2),
        *(IntegratedDecisionGradients, IntegratedGradients, RISE, SmoothGrad, SpectralIG),
        *(GradCAM, HiResCAM, LayerCAM, AttentionRollout, LeGrad),
        *(CentrePrior, Libra, Power, Smooth, Straight),
        *(PaperFRInGe, ReleasedFRInGe, AttnLRP, CaptumMethod, ZennitMethod),
    )
)
