"""The embedded classifier: its accuracy on the shipped test split, and that it is what the package says."""

import hashlib

import pytest
import torch

from fringe.data import digits_samples
from fringe.models import load_model


@pytest.fixture(scope="module")
def model():
    return load_model("embedded:digits")


@pytest.fixture(scope="module")
def logits_and_labels(model):
    torch.set_num_threads(1)
    samples = digits_samples("test")
    pixels = torch.stack([model.preprocessing.pixels(s.image) for s in samples])
    with torch.no_grad():
        return model.module(model.preprocessing.normalise(pixels)), torch.tensor([s.label for s in samples])


def test_accuracy_through_the_real_preprocessing(logits_and_labels):
    logits, labels = logits_and_labels
    assert logits.shape == (360, 10)
    assert (logits.argmax(1) == labels).double().mean().item() >= 0.97


def test_it_is_confident_but_not_saturated(logits_and_labels):
    # A saturated softmax has no Fisher information left to follow.
    top = logits_and_labels[0].softmax(1).amax(1)
    assert 0.8 < top.median().item() < 0.9999


def test_module_is_frozen_and_in_evaluation_mode(model):
    assert not model.module.training
    assert not any(p.requires_grad for p in model.module.parameters())
    assert model.class_names == tuple("0123456789")
    assert model.architecture == "digits"


def test_digest_is_sha256_over_names_types_shapes_and_bytes(model):
    total = hashlib.sha256()
    for name, value in sorted(model.module.state_dict().items()):
        total.update(f"{name}\0{value.dtype}\0{tuple(value.shape)}\0".encode() + value.numpy().tobytes())
    assert model.digest == total.hexdigest()


def test_digest_reads_bfloat16_and_empty_and_scalar_entries():
    from fringe.models._base import state_digest

    module = torch.nn.Module()
    module.register_buffer("brain", torch.ones(3, dtype=torch.bfloat16))
    module.register_buffer("none", torch.ones(0, 2))
    module.register_buffer("step", torch.tensor(3))
    expected = hashlib.sha256(
        b"brain\0torch.bfloat16\0(3,)\0" + b"\x80\x3f" * 3 + b"none\0torch.float32\0(0, 2)\0"
        b"step\0torch.int64\0()\0" + (3).to_bytes(8, "little")
    )
    assert state_digest(module) == expected.hexdigest()
