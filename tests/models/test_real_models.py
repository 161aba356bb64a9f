"""Trained networks through the whole of loading and preprocessing: their accuracy shows that both are right."""

import os
from pathlib import Path

import pytest
import torch

from fringe.data import find_inputs
from fringe.models import Preprocessing, load_model

SHARED = Path(os.environ.get("FRINGE_SHARED", Path(__file__).parents[2].parent / "shared"))
ZOO = SHARED / "models" / "zoo.py"

pytestmark = [
    pytest.mark.shared,
    pytest.mark.thorough,
    pytest.mark.skipif(not ZOO.is_file(), reason="no trained models at FRINGE_SHARED"),
]


def accuracy(function, recipe, folder, count):
    """Top-1 over ``count`` images spread evenly over a folder."""
    torch.set_num_threads(1)
    model = load_model(f"{ZOO}:{function}", trust_code=True, preprocessing=Preprocessing.parse(recipe))
    refs = list(find_inputs([str(SHARED / "images" / folder)]))
    right = 0
    for ref in refs[:: len(refs) // count][:count]:
        x = model.preprocessing.normalise(model.preprocessing.pixels(ref.open().image))
        with torch.no_grad():
            right += int(model.module(x[None]).argmax().item() == ref.label)
    return right / count


def test_mobilenet_on_imagenet():
    # 27 of these 32 are right; chance is 0.1 %
    assert accuracy("mobilenet_v2", "resize=256,crop=224,mean=0.5,std=0.5", "imagenet", 32) >= 0.75


def test_cifar_resnet_on_cifar10():
    # 107 of these 128 are right, and 817 of all 1000; normalised by 0.5 / 0.5 it would be 63 %
    recipe = "mean=0.485/0.456/0.406,std=0.229/0.224/0.225"
    assert accuracy("cifar_resnet20", recipe, "cifar10", 128) >= 0.8
