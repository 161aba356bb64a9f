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
