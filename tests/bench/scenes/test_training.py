"""The cache of trained networks: the same recipe gives the same weights, in any process and after any damage."""

import hashlib
import inspect
import json
import logging
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from fringe._files.disk import sha256_of
from fringe._strings.progress import NOTE
from fringe.bench.scenes import _training, get_scene
from fringe.bench.scenes._training import TrainedScene
from fringe.bench.scenes._trigger import Trigger
from fringe.bench.scenes._watermark import Watermark
from fringe.bench.scenes._xai_tris import XAITris
from fringe.data import find_inputs
from fringe.errors import InputError
from fringe.models import load_model

SMALL = {"architecture": "linear", "samples": 400, "epochs": 2}
CONVOLUTIONS = {**SMALL, "architecture": "cnn"}

#: Trains a network in a process of its own, with its own number of threads, and prints what came of it.
PROGRAM = """
import hashlib, json, sys, torch
from fringe.bench.scenes import get_scene
from fringe.bench.scenes._base import Example
from fringe.bench.scenes._xai_tris import XAITris
torch.set_num_threads(2)
torch.randn(3)
scene = XAITris(**json.loads(sys.argv[1]))
network = scene.network(0, None, [])
example = Example(**json.loads(sys.argv[2]))
x, truth = scene.make(example, network)
print(network.digest, hashlib.sha256(x.numpy().tobytes() + truth.numpy().tobytes()).hexdigest())
"""


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("FRINGE_CACHE", str(folder))
    return folder


def stored(cache):
    return sorted(cache.iterdir())


@pytest.mark.thorough
def test_another_process_trains_the_same_network(cache, tmp_path):
    scene = XAITris(**CONVOLUTIONS)
    network = scene.network(0, None, [])
    record = {"id": "sample-390", "target": 0, "cluster": "sample-390", "values": {"sample": 390}}
    environment = {**os.environ, "FRINGE_CACHE": str(tmp_path / "theirs")}
    command = [sys.executable, "-c", PROGRAM, json.dumps(CONVOLUTIONS), json.dumps(record)]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    x, truth = scene.data().x[390], scene.data().truth[390]
    bytes_digest = hashlib.sha256(x.numpy().tobytes() + truth.numpy().tobytes()).hexdigest()
    assert ended.stdout.split() == [network.digest, bytes_digest]
    mine, theirs = stored(cache), stored(tmp_path / "theirs")
    assert [path.name for path in mine] == [path.name for path in theirs]
    assert mine[0].read_bytes() == theirs[0].read_bytes()


def test_a_stored_network_is_read_and_not_trained(cache, caplog):
    caplog.set_level(logging.INFO, "fringe")
    first = XAITris(**SMALL).network(1, None, [])
    said = f"scene:xai_tris:1 is trained once, for 2 epochs on cpu, and kept in {cache}"
    assert [one.message for one in caplog.records if one.levelno == NOTE] == [said]
    assert "epoch 2 of 2" in caplog.text
    caplog.clear()
    second = XAITris(**SMALL, networks=3).network(1, None, [])
    assert caplog.text == ""
    assert first.digest == second.digest
    assert first.spec == second.spec == "scene:xai_tris:1"
    assert len(stored(cache)) == 1
    assert not second.module.training
    assert not any(parameter.requires_grad for parameter in second.module.parameters())


def test_whatever_changes_the_weights_changes_the_file(cache, monkeypatch):
    scene = XAITris(**SMALL)
    digests = {scene.network(number, None, []).digest for number in (0, 1)}
    assert len(digests) == 2
    XAITris(**{**SMALL, "epochs": 1}).network(0, None, [])
    XAITris(**SMALL, background="correlated").network(0, None, [])
    monkeypatch.setattr(torch, "__version__", "99.0")
    scene.network(0, None, [])
    assert len(stored(cache)) == 5


@pytest.mark.parametrize("name", ["copying", "window", "xai_tris", "watermark", "trigger"])
def test_each_file_that_makes_a_network_changes_the_file(monkeypatch, name):
    """The files of the scene, of its kind, of the training, and of the network that it builds."""
    scene, model = get_scene(name), load_model("embedded:digits")
    training = scene.training(model, list(find_inputs(["embedded:digits:0:30"])))
    kinds = [kind for kind in type(scene).__mro__ if issubclass(kind, TrainedScene)]
    kinds += [type(module) for module in training.build().modules()]
    files = {inspect.getfile(kind) for kind in kinds if kind.__module__.startswith("fringe.bench.scenes")}
    assert len(files) > 1
    before = scene._digest(0, training)
    for changed in files:
        with monkeypatch.context() as patch:
            patch.setattr(_training, "sha256_of", lambda path, one=changed: path == one or sha256_of(path))
            assert scene._digest(0, training) != before, changed
    assert scene._digest(0, training) == before


def test_images_and_the_given_model_are_part_of_the_recipe(cache):
    refs = list(find_inputs(["embedded:digits:0:30"]))
    model = load_model("embedded:digits")
    scene = Trigger(epochs=1)
    scene.network(0, model, refs)
    scene.network(0, model, refs[:-8])
    other = load_model("embedded:digits")
    with torch.no_grad():
        other.module.head.bias += 0.1
    scene.network(0, replace(other, digest="another"), refs)
    Trigger(epochs=1, explained="original").network(0, model, refs)  # explains the same network
    assert len(stored(cache)) == 3


@pytest.mark.parametrize("damage", ["cut", "flipped", "garbage", "empty", "another"])
def test_a_damaged_file_is_replaced(cache, caplog, damage):
    scene = XAITris(**SMALL)
    network = scene.network(0, None, [])
    [path] = stored(cache)
    content = path.read_bytes()
    flipped = content[:-3] + bytes([content[-3] ^ 16]) + content[-2:]
    broken = {"cut": content[:-100], "flipped": flipped, "garbage": b"\x80\x02" + content, "empty": b""}
    if damage == "another":
        scene.network(1, None, [])  # of the same shape
        broken["another"] = next(other for other in stored(cache) if other != path).read_bytes()
    path.write_bytes(broken[damage])
    caplog.clear()
    assert scene.network(0, None, []).digest == network.digest
    assert str(path) in caplog.text
    assert path.read_bytes() == content


def test_a_folder_that_cannot_be_written_loses_no_network(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    expected = XAITris(**SMALL).network(0, None, []).digest
    monkeypatch.setenv("FRINGE_CACHE", str(tmp_path / "file" / "folder"))
    assert XAITris(**SMALL).network(0, None, []).digest == expected
    assert "FRINGE_CACHE" in caplog.text


def test_training_leaves_the_caller_alone():
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    with torch.no_grad():
        XAITris(**SMALL).network(0, None, [])
        assert not torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    model = load_model("embedded:digits")
    before = {name: value.clone() for name, value in model.module.state_dict().items()}
    Trigger(epochs=1).network(0, model, list(find_inputs(["embedded:digits:0:30"])))
    assert all(torch.equal(before[name], value) for name, value in model.module.state_dict().items())


def test_what_cannot_be_made_is_refused():
    refs = list(find_inputs(["embedded:digits:0:30"]))
    with pytest.raises(InputError, match="got 2, expected 0 to 1"):
        XAITris(**SMALL, networks=2).network(2, None, [])
    with pytest.raises(InputError, match="got 3 images, expected at least 20"):
        Watermark().network(0, None, refs[:3])
    with pytest.raises(InputError, match="none was given"):
        Trigger().network(0, None, refs)
    with pytest.raises(InputError, match="target_class: got 12, expected 0 to 9"):
        Trigger(target_class=12).network(0, load_model("embedded:digits"), refs)
    with pytest.raises(InputError, match="size: got 40, expected at most 32"):
        Trigger(size=40).network(0, load_model("embedded:digits"), refs)
    scene = XAITris(**SMALL)
    with pytest.raises(InputError, match="count: got 41, expected at most"):
        scene.examples([scene.network(0, None, [])], [], 41, 0)


def test_scenes_are_found_by_name():
    assert [get_scene(name).name for name in ("blockdigits", "XAI-TRIS", "watermark:xor", "trigger:original")] == [
        "blockdigits",
        "xai_tris",
        "watermark",
        "trigger",
    ]
    scene = get_scene("xai_tris:xor_correlated")
    assert (scene.scenario, scene.background) == ("xor", "correlated")
    assert type(scene).from_record(json.loads(json.dumps(scene.record()))) == scene
