"""FRInGe's configuration: presets, variants, and what it refuses."""

import csv
import dataclasses
import math
from pathlib import Path

import pytest
import torch

import fringe
from conftest import SHARED
from fringe.attribution.presets import table

TABLE = SHARED / "paper" / "hyperparameters.csv"


def test_presets_hold_the_paper_s_numbers():
    m = fringe.FRInGe.preset("resnet18")
    assert (m.tau, m.eta_max, m.delta_euc) == (3.0339e-4, 13.56315, 0.61337)
    assert (m.damping, m.gamma_step, m.gamma_prior, m.cg_iterations) == (4.7707e-11, 9.9739e-3, 9.7495e-4, 20)
    assert m.preconditioner == "blur"
    u = fringe.FRInGe.preset("inception_v3", "fisher_rao_unregularized")
    assert (u.tau, u.delta_euc, u.damping, u.gamma_step, u.gamma_prior) == (1.9717e-3, 3.27511, 9.7873e-3, 0.0, 0.0)
    e = fringe.FRInGe.preset("vgg19", "euclidean")
    assert (e.eta_max, e.solve, e.kl_bound, e.delta_euc, e.tau) == (0.01817, "gradient", False, None, 3.0449e-4)


@pytest.mark.shared
def test_the_shipped_table_is_the_paper_s():
    with Path(TABLE).open() as file:
        assert list(table().values()) == list(csv.DictReader(file))
    assert len(table()) == 18


def test_every_row_of_the_table_makes_a_method():
    for model, variant in table():
        assert fringe.FRInGe.preset(model, variant).steps is None


def test_unknown_preset_names_the_near_match():
    with pytest.raises(fringe.InputError, match="did you mean 'resnet18'"):
        fringe.FRInGe.preset("resnet-18")


def test_variants_take_parts_out():
    m = fringe.FRInGe.preset("resnet50")
    changed = {
        "fringe": {},
        "fisher_rao_unregularized": {"gamma_step": 0.0, "gamma_prior": 0.0},
        "euclidean": {"solve": "gradient", "gamma_step": 0.0, "gamma_prior": 0.0, "kl_bound": False, "delta_euc": None},
        "gamma_step_only": {"gamma_prior": 0.0},
        "gamma_prior_only": {"gamma_step": 0.0},
        "non_geometric": {"solve": "gradient", "gamma_step": 0.0},
    }
    for name, changes in changed.items():
        assert m.variant(name) == dataclasses.replace(m, **changes)
    with pytest.raises(fringe.InputError, match="variant: got 'nothing'"):
        m.variant("nothing")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tau": 0.0}, "tau: got 0.0, expected a positive number"),
        ({"damping": -1.0}, "damping: got -1.0"),
        ({"gamma_prior": -1e-3}, "gamma_prior: got -0.001, expected a number of at least 0"),
        ({"cg_iterations": 0}, "cg_iterations: got 0, expected a positive whole number"),
        ({"delta_euc": 0.0}, "delta_euc: got 0.0"),
        ({"tau": math.nan}, "tau: got nan"),
        ({"tau": math.inf}, "tau: got inf"),
        ({"tau": "small"}, "tau: got 'small'"),
        ({"delta_euc": "wide"}, "delta_euc: got 'wide'"),
        ({"cg_iterations": 2.5}, "cg_iterations: got 2.5, expected a positive whole number"),
        ({"steps": 2.5}, "steps: got 2.5"),
        ({"blur_size": 4}, "blur_size: got 4, expected a positive odd whole number"),
        ({"waypoint": "previous"}, "waypoint: got 'previous', expected one of"),
        ({"preconditioner": "ilu"}, "preconditioner: got 'ilu'"),
        ({"reference": (0.5, 0.6)}, "reference: each distribution must sum to 1"),
        ({"reference": (1.5, -0.5)}, "reference: expected non-negative"),
    ],
)
def test_bad_settings_are_named(changes, message):
    with pytest.raises(fringe.InputError, match=message):
        fringe.FRInGe(**changes)


def test_a_reference_of_another_size_is_named():
    with pytest.raises(fringe.InputError, match=r"reference: got shape \(3,\), expected \(10,\) or \(1, 10\)"):
        fringe.attribute(torch.nn.Flatten(), torch.randn(1, 1, 2, 5), method=fringe.FRInGe(reference=(0.2, 0.3, 0.5)))


def test_settings_are_plain_data():
    record = fringe.FRInGe(reference=torch.tensor([0.25, 0.75])).record()
    assert record["method"] == "fringe"
    assert record["reference"] == (0.25, 0.75)
    assert hash(fringe.FRInGe()) == hash(fringe.FRInGe())


def test_inputs_at_the_door():
    model = torch.nn.Flatten()
    for bad, message in (
        (torch.randn(4), "add a batch axis"),
        (torch.zeros(0, 3, 4, 4), "at least one image"),
        (torch.zeros(1, 3, 4, 4, dtype=torch.uint8), "expected floating point"),
        ([1.0], "expected a torch.Tensor"),
    ):
        with pytest.raises(fringe.InputError, match=message):
            fringe.attribute(model, bad)
    with pytest.raises(fringe.InputError, match=r"got torch.float64 on cpu, but the model's weights are torch.float32"):
        fringe.attribute(torch.nn.Linear(4, 3), torch.randn(1, 4, dtype=torch.float64))
    with pytest.raises(fringe.InputError, match="expected a name or a configured method"):
        fringe.attribute(model, torch.randn(1, 1, 2, 2), method=fringe.FRInGe)
    with pytest.raises(fringe.InputError, match="bad_images: got 'skip'"):
        fringe.attribute(model, torch.randn(1, 1, 2, 2), bad_images="skip")
    with pytest.raises(fringe.InputError, match="did you mean 'fringe'"):
        fringe.attribute(model, torch.randn(1, 1, 2, 2), method="frnge")


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("integrated_gradients", "ig"),
        ("Integrated Gradients", "ig"),
        ("IntegratedGradients", "ig"),
        ("IG", "ig"),
        ("FRInGe", "fringe"),
        ("Fisher-Rao Integrated Gradients", "fringe"),
        ("smooth grad", "smoothgrad"),
        ("guided-ig", "guided_ig"),
        ("Guided Integrated Gradients", "guided_ig"),
        ("ExpectedGradients", "expected_gradients"),
        ("IG²", "ig2"),
    ],
)
def test_a_method_by_its_title_or_class_is_answered_with_its_name(asked, meant):
    from typer.testing import CliRunner

    from fringe.cli.app import app

    with pytest.raises(fringe.InputError, match=f"got {asked!r}; did you mean {meant!r}"):
        fringe.attribute(torch.nn.Flatten(), torch.randn(1, 1, 2, 2), method=asked)
    result = CliRunner().invoke(app, ["explain", "embedded:digits:0", "--out", "never", "--method", asked])
    assert result.exit_code == 2
    assert f"did you mean {meant!r}" in result.stderr


def conv_net(*last):
    return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), *last).requires_grad_(False)


class Mean(torch.nn.Module):
    def forward(self, x):
        return x.mean((-2, -1))


@pytest.mark.parametrize(
    "model",
    [
        conv_net(torch.nn.BatchNorm2d(4), Mean()),
        conv_net(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(4, 5)),
        conv_net(Mean(), torch.nn.Linear(4, 5)),
    ],
    ids=["batch norm", "flatten", "one row"],
)
@pytest.mark.parametrize("ask", ["attribute", "compare"])
def test_an_image_without_a_batch_axis_is_told_where_to_add_it(model, ask):
    image, more = torch.randn(3, 8, 8), {"compare": (["ig"], ["sparseness"]), "attribute": ()}[ask]
    with pytest.raises(fringe.InputError, match=r"inputs: got shape \(3, 8, 8\), .* inputs\[None\]"):
        getattr(fringe, ask)(model, image, *more)


def test_a_model_that_fails_either_way_speaks_for_itself():
    def broken(x):
        raise RuntimeError("a layer of the model's own")

    for shape in ((3, 8, 8), (2, 3, 8, 8)):
        with pytest.raises(RuntimeError, match="a layer of the model's own"):
            fringe.attribute(broken, torch.randn(shape))


def test_sequences_have_three_axes():
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 5)).requires_grad_(False)
    assert fringe.attribute(model, torch.randn(2, 3, 4), method="ig").values.shape == (2, 3, 4)


def test_a_baseline_for_a_method_without_one_is_refused():
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3)).requires_grad_(False)
    with pytest.raises(fringe.InputError, match="baseline: the method 'fringe' does not begin at one"):
        fringe.attribute(model, torch.ones(1, 1, 2, 2), baseline=0.0)
