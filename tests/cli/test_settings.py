"""Texts become settings, or a message that helps."""

from typing import get_args

import pytest

from fringe import InputError
from fringe._strings.class_names import class_names
from fringe.attribution import PaperFRInGe, ReleasedFRInGe
from fringe.classifier import SCORES
from fringe.explanations import ExplainSpec
from fringe.explanations._base import configured_method


def configured(*settings, **more):
    return configured_method(ExplainSpec(set=settings, **more))


def test_presets_and_variants():
    paper = {"method": "paper", "preset": "vgg19"}
    assert configured(**paper, variant="euclidean") == PaperFRInGe.preset("vgg19", "euclidean")
    assert configured(**paper, variant="gamma_step_only") == PaperFRInGe.preset("vgg19").variant("gamma_step_only")
    assert configured(method="released", variant="non_geometric") == ReleasedFRInGe().variant("non_geometric")
    assert configured("tau=0.5", **paper).tau == 0.5
    with pytest.raises(InputError, match="did you mean 'resnet50'"):
        configured(method="paper", preset="resnet5")
    with pytest.raises(InputError, match="variant: got 'flat'"):
        configured(method="paper", variant="flat")
    with pytest.raises(InputError, match="variant: 'diffusion' is a method of its own; write method='diffusion'"):
        configured(variant="diffusion")
    with pytest.raises(InputError, match="variant: belongs to the methods paper and released, not to 'fringe'"):
        configured(variant="euclidean")


def test_class_names(tmp_path):
    file = tmp_path / "names.txt"
    file.write_text("tench\ngoldfish\n\n")
    assert class_names(file) == ("tench", "goldfish")
    file.write_text("0000 n01440764 tench\n0001 n01443537 great white\n")
    assert class_names(file) == ("tench", "great white")
    file.write_text("0\n1\n2\n")
    assert class_names(file) == ("0", "1", "2")
    for content in ("", "\n\n"):
        file.write_text(content)
        with pytest.raises(InputError, match="names no class"):
            class_names(file)
    with pytest.raises(InputError, match="cannot read"):
        class_names(tmp_path / "absent.txt")


def test_the_command_line_knows_what_the_library_knows():
    assert get_args(ExplainSpec.model_fields["score"].annotation) == SCORES
