"""Real networks and images for tests marked ``shared``."""

import sys
from functools import cache
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import shared_models


@cache
def _model(name: str, dtype: torch.dtype):
    return shared_models.model(name).to(dtype)


def real(name: str, count: int, dtype: torch.dtype):
    """A shared network and ``count`` of its images, in ``dtype``."""
    return _model(name, dtype), shared_models.images(name, count).to(dtype)
