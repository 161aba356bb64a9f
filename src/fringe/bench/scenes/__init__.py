"""Scenes: networks and inputs of which it is known what the network uses."""

from fringe.bench.scenes._base import Example, Gate, Scene
from fringe.bench.scenes._blockdigits import BlockDigits
from fringe.bench.scenes._boxes import Context, Shapes
from fringe.bench.scenes._designed import ColourCounter, FooledCAM, PatchAnd
from fringe.bench.scenes._grids import DiFull, GridPG, RegionSum, TwoObjects
from fringe.bench.scenes._kinds import Keyword, SignGate, Window
from fringe.bench.scenes._prompts import Copying, Counting, Lookup, Negation
from fringe.bench.scenes._trigger import Trigger
from fringe.bench.scenes._watermark import Watermark
from fringe.bench.scenes._xai_tris import XAITris
from fringe.settings import configured

__all__ = ["SCENES", "Example", "Gate", "Scene", "get_scene"]


#: The scenes by name.
SCENES: dict[str, type[Scene]] = {
    kind.name: kind
    for kind in (
        *(GridPG, TwoObjects, DiFull, RegionSum, ColourCounter, PatchAnd, FooledCAM),
        *(Watermark, Trigger, XAITris, BlockDigits, Shapes, Context, Window, SignGate, Keyword),
        *(Copying, Lookup, Counting, Negation),
    )
}


def get_scene(scene: str | Scene) -> Scene:
    """Return a configured scene.

    Args:
        scene: The name of a registered scene, ``"gridpg"`` or with a preset ``"gridpg:nine"``; or a configured scene,
            which is returned as it is.

    Returns:
        The configured scene.

    Raises:
        InputError: If no scene or no preset has this name.
    """
    return configured(scene, Scene, SCENES, "GridPG()")
