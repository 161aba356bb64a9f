"""The title of a method names its setting, however that was given."""

import json
from dataclasses import replace

import pytest
import torch

import fringe
from fringe import FRInGe, IntegratedGradients
from fringe.attribution import PaperFRInGe, get_method, paper_settings, setting_title
from fringe.attribution._fringe import FRInGeBinary
from fringe.attribution._modifiers import Smooth
from fringe.attribution._preset_files import read_preset, write_preset

VERSION = ".".join(fringe.__version__.split(".")[:2])


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("fringe", f"FRInGe, default of {VERSION}"),
        ("fringe:fast", f"FRInGe, preset fast of {VERSION}"),
        ("fringe:focused", f"FRInGe, preset focused of {VERSION}"),
        ("paper:resnet50", "FRInGe, paper's text, ResNet-50"),
        ("paper:inception_v3", "FRInGe, paper's text, Inception-v3"),
        ("paper", "FRInGe, paper's text, any network"),
        ("released:vgg19", "FRInGe, released code, VGG-19"),
        ("released", "FRInGe, released code, any network"),
        ("fringe_b", f"FRInGe-B, default of {VERSION}"),
        ("fringe_b:resnet18", "FRInGe-B, released code, ResNet-18"),
        ("ig", "Integrated Gradients"),
        ("ig:released", "Integrated Gradients (released)"),
        ("captum:occlusion", "Occlusion"),
        ("smooth(3):paper", "Smoothed (3 px): FRInGe, paper's text, any network"),
    ],
)
def test_a_preset_is_named(name, title):
    assert setting_title(get_method(name).record()) == title
    assert setting_title(json.loads(json.dumps(get_method(name).record()))) == title


def test_equal_settings_say_the_same_however_they_were_given(tmp_path):
    about = {"architecture": "x", "weights": "", "objective": 0.0, "images": [], "trials": 1, "seed": 0, "version": "0"}
    write_preset(tmp_path / "own.json", PaperFRInGe.preset("resnet50"), about)
    from_file, _ = read_preset(tmp_path / "own.json")
    ways = (PaperFRInGe.preset("resnet50"), PaperFRInGe(**paper_settings("resnet50", "fringe")), from_file)
    assert {setting_title(method.record()) for method in ways} == {"FRInGe, paper's text, ResNet-50"}
    assert setting_title(FRInGe(tau=0.04).record()) == f"FRInGe, default of {VERSION}"


@pytest.mark.parametrize(
    ("method", "title"),
    [
        (FRInGe(tau=0.01), "FRInGe, own settings"),
        (FRInGe(focus="contrast"), "FRInGe, own settings"),
        (replace(PaperFRInGe.preset("resnet50"), cg_iterations=19), "FRInGe, paper's text, own settings"),
        (FRInGeBinary(tau=0.01), "FRInGe-B, own settings"),
        (IntegratedGradients(steps=7), "Integrated Gradients"),
        (Smooth(FRInGe(tau=0.01)), "Smoothed (3 px): FRInGe, own settings"),
    ],
)
def test_no_other_setting_has_the_name_of_one(method, title):
    assert setting_title(method.record()) == title


def test_a_result_has_the_title_of_what_was_asked():
    """Its record holds the structure that was used in place of "auto"."""
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))
    result = fringe.attribute(model, torch.rand(1, 1, 8, 8), method="fringe:fast")
    assert result.settings["structure"] == "image"
    assert setting_title(result.settings) == f"FRInGe, preset fast of {VERSION}"


def test_what_is_not_registered_keeps_its_name():
    assert setting_title({"method": "mine", "steps": 3}) == "mine"
