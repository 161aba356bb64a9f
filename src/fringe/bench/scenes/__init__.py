"""Scenes: networks and inputs of which it is known what the network uses."""

from fringe.bench.scenes._base import Example, Gate, Scene
from fringe.bench.scenes._registry import SCENES, get_scene

__all__ = ["SCENES", "Example", "Gate", "Scene", "get_scene"]
