"""Attribution methods, and the parts that a method is made of."""

from fringe.attribution._attribute import METHODS, attribute, explain_problem
from fringe.attribution._base import (
    SEVERITY,
    Attribution,
    Attributor,
    Baseline,
    Progress,
    Trajectory,
    get_method,
    innermost_reference,
    load,
    method_of_record,
    require_package,
)
from fringe.attribution._cam import GradCAM, HiResCAM, LayerCAM
from fringe.attribution._captum import CaptumMethod
from fringe.attribution._context import Context, InputKind
from fringe.attribution._diagnostics import PathAttributor, gradient_attribution, path_attribution
from fringe.attribution._expected_gradients import ExpectedGradients
from fringe.attribution._fringe import FRInGe, FRInGeBinary, Variant, paper_settings, preset_names, table
from fringe.attribution._geodesic_ig import GeoIGKNN, GeoIGSVI
from fringe.attribution._ggig import GGIG
from fringe.attribution._idg import IntegratedDecisionGradients
from fringe.attribution._ig import BlurIG, GuidedIG, IntegratedGradients, SpectralIG
from fringe.attribution._integrate import integrate
from fringe.attribution._lrp import AttnLRP, ZennitMethod
from fringe.attribution._modifiers import Smooth, Straight
from fringe.attribution._multi_path import AGI, IG2
from fringe.attribution._preset_files import PRESET_FORMAT, PresetMetadata, check_preset, read_preset, write_preset
from fringe.attribution._quadrature import Quadrature, quadrature_nodes
from fringe.attribution._reweighted import CentrePrior, Competing, Located, OtherCAM, Power
from fringe.attribution._reweighted import Incomplete as Incomplete
from fringe.attribution._reweighted import Reweighted as Reweighted
from fringe.attribution._rise import RISE
from fringe.attribution._segments import SegmentTerms
from fringe.attribution._smoothgrad import SmoothGrad
from fringe.attribution._terms import NodeTerms
from fringe.attribution._views import SENTENCES, Tone, method_label, preset_label, setting_title, tone_of

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
    "CentrePrior",
    "Competing",
    "Context",
    "ExpectedGradients",
    "FRInGe",
    "FRInGeBinary",
    "GeoIGKNN",
    "GeoIGSVI",
    "GradCAM",
    "GuidedIG",
    "HiResCAM",
    "IntegratedDecisionGradients",
    "IntegratedGradients",
    "LayerCAM",
    "Located",
    "NodeTerms",
    "OtherCAM",
    "PathAttributor",
    "Power",
    "Quadrature",
    "SegmentTerms",
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
