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
from fringe.attribution._diagnostics import PathAttributor, gradient_attribution, path_attribution
from fringe.attribution._drawing import to_input as to_input
from fringe.attribution._drawing import to_photograph as to_photograph
from fringe.attribution._fringe import FRInGe, FRInGeBinary
from fringe.attribution._ig import GGIG, BlurIG, GuidedIG, IntegratedDecisionGradients, IntegratedGradients, SpectralIG
from fringe.attribution._integrate import NodeTerms, integrate
from fringe.attribution._modifiers import CentrePrior, Competing, Located, OtherCAM, Power, Smooth, Straight
from fringe.attribution._modifiers import Incomplete as Incomplete
from fringe.attribution._modifiers import Reweighted as Reweighted
from fringe.attribution._paper import PaperFRInGe, Variant, paper_settings, preset_names, table
from fringe.attribution._plugins import AttnLRP, CaptumMethod, ZennitMethod
from fringe.attribution._preset_files import PRESET_FORMAT, PresetMetadata, check_preset, read_preset, write_preset
from fringe.attribution._quadrature import Quadrature, SegmentTerms, quadrature_nodes
from fringe.attribution._released import ReleasedFRInGe
from fringe.attribution._sampling import RISE, ExpectedGradients, SmoothGrad
from fringe.attribution._shaped_paths import AGI, IG2, GeoIGKNN, GeoIGSVI
from fringe.attribution._views import (
    SENTENCES,
    Context,
    InputKind,
    Tone,
    method_label,
    preset_label,
    setting_title,
    tone_of,
)

__all__ = [
    "METHODS",
    "Attribution",
    "Attributor",
    "Baseline",
    "Context",
    "FRInGe",
    "IntegratedGradients",
    "NodeTerms",
    "PathAttributor",
    "Quadrature",
    "SegmentTerms",
    "Trajectory",
    "attribute",
    "gradient_attribution",
    "integrate",
    "load",
    "path_attribution",
    "quadrature_nodes",
]
