"""Scenes: networks and inputs of which it is known what the network uses."""

from fringe.scenes._base import Example as Example
from fringe.scenes._base import Gate as Gate
from fringe.scenes._base import Scene as Scene
from fringe.scenes._registry import SCENES as SCENES
from fringe.scenes._registry import get_scene as get_scene

__all__ = ["SCENES", "Example", "Gate", "Scene", "get_scene"]
