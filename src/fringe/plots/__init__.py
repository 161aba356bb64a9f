"""Figures: arrays in, a matplotlib Figure out. Nothing here computes a score or knows a model.

Images are (H, W), (H, W, 1) or (H, W, 3) in [0, 1]; attributions are (C, H, W) or (H, W), with any sign and scale.
"""

from matplotlib.figure import Figure

from fringe.plots._curves import (
    Contrast,
    CurvePanel,
    ForestPanel,
    MeanCurve,
    SweepCurve,
    SweepPanel,
    plot_agreement,
    plot_curves,
    plot_forest,
    plot_sensitivity,
)
from fringe.plots._features import (
    feature_bars,
    feature_swarm,
    feature_waterfall,
    series_line,
    token_html,
    token_map,
    token_text,
)
from fringe.plots._grid import (
    Annotation,
    GridCell,
    GridRow,
    MetricLabel,
    Prediction,
    SheetItem,
    captions,
    class_maps,
    comparison_grid,
    contact_sheet,
    labels,
)
from fringe.plots._maps import blend, overlay, plot_variants, region_outline, signed_map, trajectory
from fringe.plots._profiles import PathRecord, geometric_profile, plot_profiles
from fringe.plots._style import MAX_SERIES, class_title, heading, open_panel, png_of, root

__all__ = [
    "Annotation",
    "CurvePanel",
    "GridCell",
    "GridRow",
    "class_maps",
    "comparison_grid",
    "feature_bars",
    "feature_swarm",
    "feature_waterfall",
    "geometric_profile",
    "overlay",
    "plot_curves",
    "signed_map",
    "trajectory",
]
