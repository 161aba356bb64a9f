"""Attribution methods, and the parts that a method is made of."""

from fringe.attribution._attribute import METHODS, attribute
from fringe.attribution._attribute import explain_problem as explain_problem
from fringe.attribution._attribute import get_method as get_method
from fringe.attribution._base import Attribution, Attributor, Baseline, Trajectory
from fringe.attribution._base import Progress as Progress
from fringe.attribution._base import ProgressCounter as ProgressCounter
from fringe.attribution._base import reference_images as reference_images
from fringe.attribution._context import Context
from fringe.attribution._context import InputKind as InputKind
from fringe.attribution._diagnostics import PathAttributor, gradient_attribution, path_attribution
from fringe.attribution._expected_gradients import ExpectedGradients
from fringe.attribution._fringe import FRInGe
from fringe.attribution._fringe import Variant as Variant
from fringe.attribution._fringe import paper_settings as paper_settings
from fringe.attribution._fringe import preset_names as preset_names
from fringe.attribution._fringe import table as table
from fringe.attribution._geodesic_ig import GeoIGKNN, GeoIGSVI
from fringe.attribution._ggig import GGIG
from fringe.attribution._idg import IntegratedDecisionGradients
from fringe.attribution._ig import BlurIG, GuidedIG, IntegratedGradients
from fringe.attribution._integrate import integrate
from fringe.attribution._load import load
from fringe.attribution._multi_path import AGI, IG2
from fringe.attribution._pieces import NodePieces, SegmentPieces
from fringe.attribution._quadrature import Quadrature, quadrature_nodes
from fringe.attribution._smoothgrad import SmoothGrad
from fringe.attribution._views import SENTENCES as SENTENCES

__all__ = [
    "AGI",
    "GGIG",
    "IG2",
    "METHODS",
    "Attribution",
    "Attributor",
    "Baseline",
    "BlurIG",
    "Context",
    "ExpectedGradients",
    "FRInGe",
    "GeoIGKNN",
    "GeoIGSVI",
    "GuidedIG",
    "IntegratedDecisionGradients",
    "IntegratedGradients",
    "NodePieces",
    "PathAttributor",
    "Quadrature",
    "SegmentPieces",
    "SmoothGrad",
    "Trajectory",
    "attribute",
    "gradient_attribution",
    "integrate",
    "load",
    "path_attribution",
    "quadrature_nodes",
]
