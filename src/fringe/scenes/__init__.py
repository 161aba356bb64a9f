"""Scenes: networks and inputs of which it is known what the network uses."""

from fringe.scenes._base import Example, Gate, Scene

__all__ = ["Example", "Gate", "Scene"]
