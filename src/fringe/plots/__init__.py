"""Figures: arrays in, a matplotlib Figure out. Nothing here computes a score or knows a model.

Images are (H, W), (H, W, 1) or (H, W, 3) in [0, 1]; attributions are (C, H, W) or (H, W), with any sign and scale.
"""

from matplotlib.figure import Figure

from fringe.plots._agreement import plot_agreement
from fringe.plots._curves import CurvePanel, MeanCurve, plot_curves
from fringe.plots._features import feature_bars, series_line
from fringe.plots._forest import Contrast, ForestPanel, plot_forest
from fringe.plots._grid import (
    Annotation,
    GridCell,
    GridRow,
    MetricLabel,
    Prediction,
    captions,
    comparison_grid,
    labels,
)
from fringe.plots._maps import blend, overlay, region_outline, signed_map
from fringe.plots._profiles import PathRecord, geometric_profile, plot_profiles
from fringe.plots._sheets import SheetItem, class_maps, contact_sheet
from fringe.plots._style import MAX_SERIES, class_title, heading, method_title, png_of
from fringe.plots._sweep import SweepCurve, SweepPanel, plot_sensitivity
from fringe.plots._tokens import token_html, token_map, token_text
from fringe.plots._trajectory import plot_variants, trajectory

__all__ = [
    "Annotation",
    "CurvePanel",
    "GridCell",
    "GridRow",
    "class_maps",
    "comparison_grid",
    "geometric_profile",
    "overlay",
    "plot_curves",
    "signed_map",
    "trajectory",
]
