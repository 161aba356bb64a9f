"""Pictures: arrays in, a matplotlib Figure out. Nothing here computes a score or knows a model.

Images are (H, W), (H, W, 1) or (H, W, 3) in [0, 1]; attributions are (C, H, W) or (H, W), with any sign and scale.
"""

from fringe.plots._grid import Strip, Tile, Word, comparison_grid
from fringe.plots._contact import Cell, contact_sheet
from fringe.plots._overlay import overlay
from fringe.plots._profile import geometric_profile
from fringe.plots._signed import signed_map
from fringe.plots._trajectory import trajectory

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
from fringe.plots._curves import CurvePanel as CurvePanel
from fringe.plots._curves import draw_curves as draw_curves
from fringe.plots._forest import Contrast as Contrast
from fringe.plots._forest import ForestPanel as ForestPanel
from fringe.plots._forest import draw_forest as draw_forest
from fringe.plots._profiles import Column as Column
from fringe.plots._profiles import draw_profiles as draw_profiles
from fringe.plots._style import MOST_SERIES as MOST_SERIES
from fringe.plots._sweep import SweepCurve as SweepCurve
from fringe.plots._sweep import SweepPanel as SweepPanel
from fringe.plots._sweep import sensitivity as sensitivity
from fringe.plots._telemetry import Gauge as Gauge
from fringe.plots._telemetry import caption as caption
from fringe.plots._telemetry import telemetry as telemetry
from fringe.plots._variants import Band as Band
from fringe.plots._variants import draw_variants as draw_variants
