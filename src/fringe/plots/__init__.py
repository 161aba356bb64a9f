"""Figures: arrays in, a matplotlib Figure out. Nothing here computes a score or knows a model.

Images are (H, W), (H, W, 1) or (H, W, 3) in [0, 1]; attributions are (C, H, W) or (H, W), with any sign and scale.
"""

from matplotlib.figure import Figure as Figure

from fringe.plots._agreement import plot_agreement as plot_agreement
from fringe.plots._curves import CurvePanel, plot_curves
from fringe.plots._curves import MeanCurve as MeanCurve
from fringe.plots._curves import mean_and_error as mean_and_error
from fringe.plots._features import feature_bars as feature_bars
from fringe.plots._features import series_line as series_line
from fringe.plots._forest import Contrast as Contrast
from fringe.plots._forest import ForestPanel as ForestPanel
from fringe.plots._forest import plot_forest as plot_forest
from fringe.plots._grid import Annotation, GridCell, GridRow, comparison_grid
from fringe.plots._grid import MetricLabel as MetricLabel
from fringe.plots._grid import captions as captions
from fringe.plots._grid import labels as labels
from fringe.plots._layout import Prediction as Prediction
from fringe.plots._maps import blend as blend
from fringe.plots._maps import overlay, signed_map
from fringe.plots._profiles import PathRecord as PathRecord
from fringe.plots._profiles import geometric_profile
from fringe.plots._profiles import plot_profiles as plot_profiles
from fringe.plots._reliability import plot_reliability as plot_reliability
from fringe.plots._sheets import SheetItem as SheetItem
from fringe.plots._sheets import class_maps
from fringe.plots._sheets import contact_sheet as contact_sheet
from fringe.plots._style import MAX_SERIES as MAX_SERIES
from fringe.plots._style import class_title as class_title
from fringe.plots._style import heading as heading
from fringe.plots._style import method_title as method_title
from fringe.plots._style import png_of as png_of
from fringe.plots._sweep import SweepCurve as SweepCurve
from fringe.plots._sweep import SweepPanel as SweepPanel
from fringe.plots._sweep import plot_sensitivity as plot_sensitivity
from fringe.plots._tokens import token_html as token_html
from fringe.plots._tokens import token_map as token_map
from fringe.plots._tokens import token_text as token_text
from fringe.plots._trajectory import plot_variants as plot_variants
from fringe.plots._trajectory import trajectory

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
