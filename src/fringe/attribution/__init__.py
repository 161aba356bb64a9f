"""Attribution methods, and the parts that a method is made of."""

from fringe.attribution._attribute import attribute, explain_problem
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
from fringe.attribution._diagnostics import PathAttributor, gradient_attribution, path_attribution
from fringe.attribution._drawing import to_input as to_input
from fringe.attribution._drawing import to_photograph as to_photograph
from fringe.attribution._functions import CallableMethod as CallableMethod
from fringe.attribution._functions import read_target as read_target
from fringe.attribution._integrate import integrate, integrate_steps, quadrature_nodes
from fringe.attribution._modifiers import Incomplete as Incomplete
from fringe.attribution._modifiers import Reweighted as Reweighted
from fringe.attribution._paper import Variant, paper_settings, preset_names, table
from fringe.attribution._preset_files import PRESET_FORMAT, PresetMetadata, check_preset, read_preset, write_preset
from fringe.attribution._registry import *  # METHODS, and the class of each method
from fringe.attribution._registry import METHODS, FRInGe, IntegratedGradients
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
    "PathAttributor",
    "Trajectory",
    "attribute",
    "gradient_attribution",
    "integrate",
    "integrate_steps",
    "load",
    "path_attribution",
    "quadrature_nodes",
]
