"""The methods there are: one line each. A new method is a file of this room and a line here."""

from fringe.attribution.agi import AGI as AGI
from fringe.attribution.blur_ig import BlurIG as BlurIG
from fringe.attribution.expected_gradients import ExpectedGradients as ExpectedGradients
from fringe.attribution.fringe import FRInGe as FRInGe
from fringe.attribution.geoig_knn import GeoIGKNN as GeoIGKNN
from fringe.attribution.geoig_svi import GeoIGSVI as GeoIGSVI
from fringe.attribution.ggig import GGIG as GGIG
from fringe.attribution.guided_ig import GuidedIG as GuidedIG
from fringe.attribution.idg import IntegratedDecisionGradients as IntegratedDecisionGradients
from fringe.attribution.ig2 import IG2 as IG2
from fringe.attribution.integrated_gradients import IntegratedGradients as IntegratedGradients
from fringe.attribution.smoothgrad import SmoothGrad as SmoothGrad
