"""Inputs that are prepared, or not, and objects that prepare them: each is used, or the message says what to pass."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import fringe

NETWORK = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 3)).eval()
X = torch.linspace(0, 1, 3 * 8 * 8).reshape(1, 3, 8, 8)


def test_a_tensor_far_outside_of_what_the_preprocessing_makes_is_told(recwarn):
    fringe.explain(NETWORK, X * 2, method="ig", preprocessing="imagenet")
    assert not [w for w in recwarn if "prepared pixels" in str(w.message)]
    with pytest.warns(UserWarning, match=r"has values up to 255, and prepared pixels end at 2\.64"):
        fringe.explain(NETWORK, X * 255, method="ig", preprocessing="imagenet")


def test_a_transform_is_no_preprocessing_and_its_tensor_is_an_input():
    with pytest.raises(fringe.InputError, match="for a transform of torchvision pass the tensors that it makes"):
        fringe.explain(NETWORK, X, preprocessing=lambda image: image)


def test_batches_of_a_loader_are_explained_one_by_one():
    loader = DataLoader([(x, 0) for x in X.expand(4, -1, -1, -1)], batch_size=2)
    with pytest.raises(fringe.InputError, match=r"got DataLoader; pass the inputs of one batch after the other"):
        fringe.attribute(NETWORK, loader)
    assert len(fringe.attribute(NETWORK, next(iter(loader))[0], method="ig")) == 2
