"""Texts become settings, or a message that helps."""

from typing import get_args

import pytest

from fringe import FRInGe, InputError
from fringe._class_names import read_class_names
from fringe.classifier import SCORES
from fringe.cli._listing import EXAMPLES
from fringe.explanations import ExplainSpec
from fringe.explanations._base import configured_method
from fringe.models import LOADERS


def configured(*settings, **more):
    return configured_method(ExplainSpec(set=settings, **more))


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("tau=1e-2", "tau", 0.01),
        ("cg_iterations=7", "cg_iterations", 7),
        ("delta_euc=none", "delta_euc", None),
        ("delta_euc=2", "delta_euc", 2.0),
        ("warm_start=false", "warm_start", False),
        ("solve=gradient", "solve", "gradient"),
        ("structure=none", "structure", "none"),
        ("steps=12", "steps", 12),
        ("reference=0.25,0.75", "reference", (0.25, 0.75)),
        ("reference=[[0.25, 0.75], [0.5, 0.5]]", "reference", ((0.25, 0.75), (0.5, 0.5))),
        (" tau = 0.5 ", "tau", 0.5),
    ],
)
def test_a_value_has_the_type_of_its_field(text, field, value):
    found = getattr(configured(text), field)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("taau=1", r"no setting 'taau'; did you mean 'tau'\? Its settings: tau, eta_max"),
        ("tau=small", r"set: tau: got 'small', expected a positive number \(usually 0.0003 to 0.05 nats\)"),
        ("tau=nan", r"set: tau: got 'nan', expected a positive number"),
        ("tau=-1", r"set: tau: got '-1', expected a positive number"),
        ("cg_iterations=2.5", r"set: cg_iterations: got '2.5', expected a positive whole number \(usually 3 to 40\)"),
        ("solve=newton", r"set: solve: got 'newton', expected one of geodesic, natural, diffusion, gradient"),
        ("warm_start=maybe", r"expected true or false"),
        ("delta_euc=far", r"expected a positive number, one of auto, long or none"),
        ("reference=[0.5", r"set: reference: got"),
        ("tau", r"expected KEY=VALUE"),
    ],
)
def test_what_cannot_be_meant_is_explained(text, message):
    with pytest.raises(InputError, match=message):
        configured(text)


def test_presets_and_variants():
    assert configured(preset="vgg19") == FRInGe.preset("vgg19")
    assert configured(preset="vgg19", variant="euclidean") == FRInGe.preset("vgg19", "euclidean")
    assert configured(preset="vgg19", variant="gamma_step_only") == FRInGe.preset("vgg19").variant("gamma_step_only")
    assert configured(variant="non_geometric") == FRInGe().variant("non_geometric")
    assert configured("tau=0.5", preset="vgg19").tau == 0.5
    with pytest.raises(InputError, match="did you mean 'resnet50'"):
        configured(preset="resnet5")
    with pytest.raises(InputError, match="variant: got 'flat'"):
        configured(variant="flat")
    with pytest.raises(InputError, match="did you mean 'fringe'"):
        configured(method="fringes")


def test_small_values():
    assert [ExplainSpec(target=text).target for text in ("predicted", "7", "cat")] == ["predicted", 7, "cat"]
    assert [ExplainSpec(batch_size=text).batch_size for text in ("auto", "8")] == ["auto", 8]
    for field, text in (("batch_size", "0"), ("batch_size", "many")):
        with pytest.raises(InputError, match=f"{field}: got '{text}'"):
            ExplainSpec(**{field: text})


def test_class_names(tmp_path):
    file = tmp_path / "names.txt"
    file.write_text("tench\ngoldfish\n\n")
    assert read_class_names(file) == ("tench", "goldfish")
    file.write_text("0000 n01440764 tench\n0001 n01443537 great white\n")
    assert read_class_names(file) == ("tench", "great white")
    file.write_text("0\n1\n2\n")
    assert read_class_names(file) == ("0", "1", "2")
    for content in ("", "\n\n"):
        file.write_text(content)
        with pytest.raises(InputError, match="names no class"):
            read_class_names(file)
    with pytest.raises(InputError, match="cannot read"):
        read_class_names(tmp_path / "absent.txt")


def test_the_command_line_knows_what_the_library_knows():
    assert get_args(ExplainSpec.model_fields["score"].annotation) == SCORES
    assert list(EXAMPLES) == list(LOADERS)
