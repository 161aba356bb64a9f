"""The real models and images that benchmarks and tests run on: the folder named by FRINGE_SHARED."""

import importlib.util
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fringe.data import find_inputs
from fringe.models import Preprocessing

SHARED = Path(os.environ.get("FRINGE_SHARED", Path(__file__).parents[2] / "shared"))

PREPROCESSING = {
    "cifar": Preprocessing.parse("resize=32,mean=0.485/0.456/0.406,std=0.229/0.224/0.225"),
    "mobilenet_v2": Preprocessing.parse("resize=256,crop=224,mean=0.5/0.5/0.5,std=0.5/0.5/0.5"),
    "mobilenet_v1_025": Preprocessing.parse("resize=146,crop=128,mean=0.5/0.5/0.5,std=0.5/0.5/0.5"),
}


def model(name: str) -> nn.Module:
    """A network of the shared zoo, frozen."""
    spec = importlib.util.spec_from_file_location("zoo", SHARED / "models" / "zoo.py")
    assert spec is not None
    assert spec.loader is not None
    zoo: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(zoo)
    return getattr(zoo, name)().requires_grad_(False)


def images(name: str, count: int, offset: int = 0) -> Tensor:
    """``count`` images spread evenly over the model's image folder, or all if there are fewer, normalised: (count, 3,
    H, W)."""
    preprocessing = PREPROCESSING["cifar" if name.startswith("cifar") else name]
    folder = SHARED / "images" / ("cifar10" if name.startswith("cifar") else "imagenet")
    references = list(find_inputs([str(folder)]))
    chosen = references[offset :: max(1, len(references) // count)][:count]
    return torch.stack(
        [preprocessing.normalise(preprocessing.pixels(ref.open(channels=3, exif="ignore").image)) for ref in chosen]
    )
