"""The methods of ``experiments/controls.py``, against their definitions, the contract, and as a plan names them."""

from pathlib import Path

import pytest
import torch
from torch import nn

import fringe
from fringe import InputError, IntegratedGradients
from fringe.attribution import read_target
from fringe.bench.experiments import ExperimentSpec, build_plan, run_experiment
from fringe.models import run_file
from fringe.testing import check_attributor
from toys import build, images

FILE = Path(__file__).parents[1] / "experiments" / "controls.py"
CONTROLS = run_file(FILE)
Located, OtherCAM, Competing = CONTROLS.Located, CONTROLS.OtherCAM, CONTROLS.Competing
MODEL, X = build(), images(4)
IG = IntegratedGradients(steps=6)


def explained(method, x=X, **more):
    return fringe.attribute(MODEL, x, method=method, **more)


def region(x=X):
    """Grad-CAM over its maximum."""
    cam = explained("gradcam", x).values.sum(1, keepdim=True)
    return cam / cam.flatten(1).amax(1).view(-1, 1, 1, 1).clamp_min(1e-300)


def test_a_located_map_is_the_map_times_the_activation_map():
    plain, result = explained(IG), explained(Located(IG))
    torch.testing.assert_close(result.values, region() * plain.values, rtol=1e-9, atol=1e-12)
    left, total = (maps.sum(1).abs().flatten(1).sum(1) for maps in (result.values, plain.values))
    lost = 1 - left / total
    torch.testing.assert_close(result.diagnostics["hidden_share"], lost, rtol=1e-9, atol=1e-12)
    assert bool((lost > 0.05).all())
    torch.testing.assert_close(result.region, region(), rtol=1e-9, atol=1e-12)  # of which pages draw the outline
    assert plain.region is None
    # one image more to find the layer and one to check it, with three gradients, then one pass each
    spent = result.passes.forward - plain.passes.forward, result.passes.vjp - plain.passes.vjp
    assert spent == (4 + 2, 4 + 1 + 3)
    assert all("; the layer is " in advice for advice in result.advice)


def test_another_images_region_is_that_of_the_next_name():
    ids, regions = ["c", "a", "d", "b"], region()
    result = explained(OtherCAM(IG), ids=ids)
    following = [2, 3, 1, 0]  # c: d, a: b, d: a, b: c
    torch.testing.assert_close(result.values, regions[following] * explained(IG).values, rtol=1e-9, atol=1e-12)
    alone = explained(OtherCAM(IG), X[:1])
    expected = region(X[:1]).flip(2, 3) * explained(IG, X[:1]).values
    torch.testing.assert_close(alone.values, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("inner", [IG, fringe.FRInGe(tau=3e-2)])
def test_a_competing_map_is_the_classs_map_less_the_largest_of_the_others(inner):
    logits = MODEL(X).detach()
    target, order = logits.argmin(1), logits.argsort(1, descending=True)  # the class itself need not be probable
    rivals = order[:, :2]
    every = [explained(inner, target=classes) for classes in (target, rivals[:, 0], rivals[:, 1])]
    result = explained(Competing(inner, classes=3), target=target)
    other = torch.maximum(every[1].values, every[2].values)
    torch.testing.assert_close(result.values, every[0].values - other, rtol=1e-6, atol=1e-9)
    left = (every[0].values - other.relu()).relu().flatten(1).sum(1)
    total = every[0].values.relu().flatten(1).sum(1)
    torch.testing.assert_close(result.diagnostics["hidden_share"], 1 - left / total, rtol=1e-6, atol=1e-9)
    if isinstance(inner, fringe.FRInGe):  # one path for all classes
        assert result.passes.forward == every[0].passes.forward
        assert result.passes.vjp > every[0].passes.vjp
    assert result.target.tolist() == target.tolist()


@pytest.mark.parametrize("kind", [Located, OtherCAM, Competing])
def test_such_a_map_says_that_it_is_not_complete_and_what_it_hides(kind):
    result = explained(kind(IG))
    assert not kind(IG).is_complete
    assert result.settings["complete"] is False
    assert result.settings["hides"] == kind.hides
    assert bool(result.completeness_gap.isnan().all())
    assert result.verdict == ("unchecked",) * 4
    assert all(f"it hides {kind.hides}" in advice for advice in result.advice)
    assert "hidden_share" in result.diagnostics
    assert kind.from_record(result.settings) == kind(IG)


def test_what_cannot_be_made_is_refused():
    with pytest.raises(InputError, match="competing:ig compares the class with the other probable ones already"):
        explained(Competing(IG), contrast=0, target=1)
    with pytest.raises(InputError, match="classes: got 1, expected a whole number of at least 2"):
        Competing(IG, classes=1)
    flat = nn.Sequential(nn.Flatten(), nn.Linear(128, 3)).double().eval()
    with pytest.raises(InputError, match=r"no layer with activations in space for inputs of shape \(2, 8, 8\)"):
        fringe.attribute(flat, X, method=Located(IG))


NO_LAYER = dict.fromkeys(
    ("constant_model", "affine_score", "zero_displacement"), "a network without a layer is refused"
)
KNOWN = {
    Located: NO_LAYER,
    OtherCAM: NO_LAYER | {"batch_of_one": "the region is that of another image of the batch"},
    Competing: {
        "unread_inputs": "another class reads what this one does not",
        "explained_class": "it compares classes itself, and takes no contrast",
    },
}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KNOWN)
def test_it_keeps_the_contract(kind):
    check_attributor(kind(IG), expected_failures=KNOWN[kind])


def test_a_specification_names_them_beside_itself(tmp_path):
    """Without a label they have that of their method, with which settings name them; and they need trust."""
    (tmp_path / "controls.py").write_text(FILE.read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "plan.toml").write_text(
        'model = "embedded:digits"\nmethods = ["ig", "controls.py:located", "mine=controls.py:competing"]\n'
        'metrics = ["sparseness"]\nn = 1\ncontrols = false\n[set]\n"located:fringe.of.tau" = 0.02\n"ig.steps" = 3\n'
        '"mine.classes" = 2\n"mine.of.tau" = 0.02\n'
    )
    spec = ExperimentSpec.from_file(tmp_path / "plan.toml")
    with pytest.raises(InputError, match=r"methods: '.*controls.py:located' runs the Python code in "):
        build_plan(spec)
    trusted = spec.model_copy(update={"trust_code": True})
    methods = build_plan(trusted).models[0].methods
    assert list(methods) == ["ig", "located:fringe", "mine"]
    assert methods["located:fringe"].of == fringe.FRInGe(tau=0.02)
    assert methods["mine"].classes == 2
    frame = run_experiment(trusted, tmp_path / "run").frame
    assert (frame["status"] == "ok").all()
    assert set(frame["method"]) == {"ig", "located:fringe", "mine"}


def test_each_name_of_an_experiment_is_in_the_file():
    experiments = sorted(FILE.parent.glob("*.toml"))
    named = {
        name: path.name
        for path in experiments
        for name in ExperimentSpec.from_file(path).methods.values()
        if isinstance(name, str) and ".py:" in name
    }
    assert {name.rpartition(":")[2] for name in named} == {"located", "other_cam", "competing"}
    assert all(read_target(name, trust_code=True).label.endswith(":fringe") for name in named)
