"""Attribution methods, and the parts that a method is made of."""

from fringe.attribution._attribute import METHODS, attribute
from fringe.attribution._attribute import explain_problem as explain_problem
from fringe.attribution._base import SEVERITY as SEVERITY
from fringe.attribution._base import Attribution, Attributor, Baseline, Trajectory
from fringe.attribution._base import Progress as Progress
from fringe.attribution._captum import CaptumMethod
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
from fringe.attribution._ig import BlurIG, GuidedIG, IntegratedGradients, SpectralIG
from fringe.attribution._integrate import integrate
from fringe.attribution._load import load
from fringe.attribution._lrp import AttnLRP, ZennitMethod
from fringe.attribution._modifiers import Smooth, Straight
from fringe.attribution._multi_path import AGI, IG2
from fringe.attribution._names import method_label as method_label
from fringe.attribution._names import preset_label as preset_label
from fringe.attribution._pieces import NodePieces, SegmentPieces
from fringe.attribution._quadrature import Quadrature, quadrature_nodes
from fringe.attribution._registry import get_method as get_method
from fringe.attribution._registry import method_of_record as method_of_record
from fringe.attribution._registry import require_package as require_package
from fringe.attribution._registry import split_name as split_name
from fringe.attribution._rise import RISE
from fringe.attribution._smoothgrad import SmoothGrad
from fringe.attribution._views import SENTENCES as SENTENCES
from fringe.attribution._views import tone_of as tone_of

__all__ = [
    "AGI",
    "GGIG",
    "IG2",
    "METHODS",
    "RISE",
    "AttnLRP",
    "Attribution",
    "Attributor",
    "Baseline",
    "BlurIG",
    "CaptumMethod",
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
    "Smooth",
    "SmoothGrad",
    "SpectralIG",
    "Straight",
    "Trajectory",
    "ZennitMethod",
    "attribute",
    "gradient_attribution",
    "integrate",
    "load",
    "path_attribution",
    "quadrature_nodes",
]
