"""Figures: arrays in, a matplotlib Figure out. Nothing here computes a score or knows a model.

Images are (H, W), (H, W, 1) or (H, W, 3) in [0, 1]; attributions are (C, H, W) or (H, W), with any sign and scale.
"""

from fringe.plots._curves import CurvePanel, plot_curves
from fringe.plots._forest import Contrast, ForestPanel, plot_forest
from fringe.plots._grid import Annotation, GridCell, GridRow, comparison_grid
from fringe.plots._grid import MetricLabel as MetricLabel
from fringe.plots._grid import captions as captions
from fringe.plots._grid import labels as labels
from fringe.plots._maps import SheetItem, contact_sheet, overlay, signed_map
from fringe.plots._profiles import PathRecord, geometric_profile, plot_profiles
from fringe.plots._style import MAX_SERIES as MAX_SERIES
from fringe.plots._sweep import SweepCurve, SweepPanel, plot_sensitivity
from fringe.plots._trajectory import plot_variants, trajectory

__all__ = [
    "Annotation",
    "Contrast",
    "CurvePanel",
    "ForestPanel",
    "GridCell",
    "GridRow",
    "PathRecord",
    "SheetItem",
    "SweepCurve",
    "SweepPanel",
    "comparison_grid",
    "contact_sheet",
    "geometric_profile",
    "overlay",
    "plot_curves",
    "plot_forest",
    "plot_profiles",
    "plot_sensitivity",
    "plot_variants",
    "signed_map",
    "trajectory",
]
