"""Pictures: arrays in, a matplotlib Figure out. Nothing here computes a score or knows a model.

Images are (H, W), (H, W, 1) or (H, W, 3) in [0, 1]; attributions are (C, H, W) or (H, W), with any sign and scale.
"""

from fringe.plots.compare import Strip, Tile, Word, comparison_grid
from fringe.plots.contact import Cell, contact_sheet
from fringe.plots.overlay import overlay
from fringe.plots.profile import geometric_profile
from fringe.plots.signed import signed_map
from fringe.plots.trajectory import trajectory

__all__ = [
    "Cell",
    "Strip",
    "Tile",
    "Word",
    "comparison_grid",
    "contact_sheet",
    "geometric_profile",
    "overlay",
    "signed_map",
    "trajectory",
]
from fringe.plots.curves import CurvePanel as CurvePanel
from fringe.plots.curves import draw_curves as draw_curves
from fringe.plots.forest import Contrast as Contrast
from fringe.plots.forest import ForestPanel as ForestPanel
from fringe.plots.forest import draw_forest as draw_forest
from fringe.plots.profiles import Column as Column
from fringe.plots.profiles import draw_profiles as draw_profiles
from fringe.plots.style import MOST_SERIES as MOST_SERIES
from fringe.plots.sweep import SweepCurve as SweepCurve
from fringe.plots.sweep import SweepPanel as SweepPanel
from fringe.plots.sweep import sensitivity as sensitivity
from fringe.plots.telemetry import Gauge as Gauge
from fringe.plots.telemetry import caption as caption
from fringe.plots.telemetry import telemetry as telemetry
from fringe.plots.variants import Band as Band
from fringe.plots.variants import draw_variants as draw_variants
