"""``captum:NAME``: the maps are Captum's, and Captum's are what their definitions say."""

import dataclasses
import json

import pytest
import torch
from attribution_toys import ConvNet, filled
from torch import nn

import fringe
from fringe import CaptumMethod, InputError
from fringe.attribution import get_method, method_of_record
from toys import normal

attr = pytest.importorskip("captum.attr")


@pytest.fixture
def net():
    return filled(ConvNet())


X, TARGET = normal(3, 2, 8, 8, seed=7), torch.tensor([2, 0, 1])


def explained(model, name, **more):
    given = {"target": TARGET, "ids": ["a", "b", "c"], **more}
    return fringe.attribute(model, X, method=name, **given)


def test_the_maps_are_captums(net):
    baseline = normal(3, 2, 8, 8, seed=8)
    x = X.clone().requires_grad_(True)
    shapes = {"sliding_window_shapes": (2, 3, 3), "strides": (2, 2, 2)}
    expected = {
        "deep_lift": attr.DeepLift(net).attribute(x, baseline, target=TARGET),
        "guided_backprop": attr.GuidedBackprop(net).attribute(x, target=TARGET),
        "input_x_gradient": attr.InputXGradient(net).attribute(x, target=TARGET),
        "occlusion": attr.Occlusion(net).attribute(X, baselines=baseline, target=TARGET, **shapes),
    }
    for name, maps in expected.items():
        method = CaptumMethod(name, **({"window": 3, "stride": 2} if name == "occlusion" else {}))
        given = {"baseline": baseline} if method.accepts_baseline else {}
        result = explained(net, method, **given)
        exact = {"rtol": 1e-9, "atol": 1e-12} if name != "occlusion" else {"rtol": 1e-5, "atol": 1e-6}  # in float32
        torch.testing.assert_close(result.values, maps.detach().double(), **exact)
        assert result.verdict == ("coarse" if name == "deep_lift" else "unchecked",) * 3  # it has no rule for the gate
        assert result.passes.forward > 0


class Functional(nn.Module):
    """A network of ReLU, as modules or as functions."""

    def __init__(self, relu):
        super().__init__()
        self.first, self.last, self.relu = nn.Linear(128, 20).double(), nn.Linear(20, 3).double(), relu
        for i, parameter in enumerate(self.parameters()):
            parameter.data = 0.3 * normal(*parameter.shape, seed=20 + i)
        self.eval()

    def forward(self, x):
        return self.last(self.relu(self.first(x.flatten(1))))


def test_the_sum_of_deep_lift_is_checked():
    """With modules it is the change of the score; a nonlinearity that is a function is passed by unnoticed."""
    baseline = normal(3, 2, 8, 8, seed=8)
    found, wrong = (explained(Functional(f), "captum:deep_lift", baseline=baseline) for f in (nn.ReLU(), torch.relu))
    rows = torch.arange(3)
    change = Functional(torch.relu)(X)[rows, TARGET] - Functional(torch.relu)(baseline)[rows, TARGET]
    torch.testing.assert_close(found.values.flatten(1).sum(1), change.detach(), rtol=1e-9, atol=1e-9)
    assert found.verdict == ("ok",) * 3
    assert found.completeness_residual.max() < 1e-9
    assert wrong.verdict == ("coarse",) * 3
    gap = wrong.values.flatten(1).sum(1) - change.detach()
    torch.testing.assert_close(wrong.completeness_gap, gap, rtol=1e-9, atol=1e-9)
    assert "%: it follows modules alone: make each nonlinearity a torch.nn module that runs once" in wrong.advice[0]
    assert CaptumMethod("deep_lift").is_complete > CaptumMethod("occlusion").is_complete


def test_deep_lift_keeps_an_input_and_its_baseline_within_the_batch_size(net):
    sizes = []
    handle = net.register_forward_pre_hook(lambda module, inputs: sizes.append(len(inputs[0])))
    explained(net, "captum:deep_lift", batch_size=4)
    handle.remove()
    assert max(sizes) == 4


def additive(x):
    """A score that is a sum over pixels, and another one."""
    return torch.stack([(x**3).sum((1, 2, 3)), x.sum((1, 2, 3))], 1)


def test_kernel_shap_of_an_additive_score_is_the_change_of_each_superpixel():
    method = CaptumMethod("kernel_shap", samples=200, segments=9, superpixels="grid")
    result = fringe.attribute(additive, X, method=method, target=0, baseline=0.5)
    change = (X**3 - 0.5**3).sum(1)
    cell = torch.arange(8) * 3 // 8
    for i in range(3):
        for j in range(3):
            rows, columns = (cell == i).nonzero().flatten(), (cell == j).nonzero().flatten()
            block = result.values[:, :, rows[:, None], columns]
            expected = change[:, rows[:, None], columns].sum((1, 2))
            torch.testing.assert_close(block, expected.view(3, 1, 1, 1).expand_as(block), rtol=1e-4, atol=1e-3)


def test_kernel_shap_of_a_single_superpixel_is_the_whole_change():
    model, x = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(6, 3)).eval(), torch.ones(2, 1, 2, 3)
    method = CaptumMethod("kernel_shap", samples=20, segments=1, superpixels="grid")
    change = (model(x) - model(torch.zeros_like(x)))[:, 1].detach()
    values = fringe.attribute(model, x, method=method, target=1).values
    torch.testing.assert_close(values, change.view(2, 1, 1, 1).expand_as(x))


def test_kernel_shap_takes_superpixels_of_slic_where_scikit_image_is_and_says_so(monkeypatch):
    pytest.importorskip("skimage")
    x = torch.zeros(1, 1, 12, 12, dtype=torch.float64)
    x[:, :, :, 5:] = 1.0
    method = CaptumMethod("kernel_shap", samples=60, segments=4)
    assert method.record()["superpixels"] == "slic"
    result = fringe.attribute(lambda z: additive(z + 1), x, method=method, target=0)
    assert len(result.values.unique()) <= 6
    assert (result.values[..., :5].abs().max() < 1e-3) & (result.values[..., 5:].min() > 1)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    grid = CaptumMethod("kernel_shap", samples=60, segments=4)
    assert grid.record()["superpixels"] == "grid"
    assert method_of_record(json.loads(json.dumps(method.record()))) == method  # a record does not depend on this


def test_gradient_shap_of_an_affine_score_is_exact_for_one_reference(net):
    reference = normal(1, 2, 8, 8, seed=9)
    weight = normal(3, 128)
    space = fringe.InputSpace(references=reference)
    result = explained(lambda x: x.flatten(1) @ weight.T, CaptumMethod("gradient_shap", samples=3), space=space)
    torch.testing.assert_close(result.values, (X - reference) * weight[TARGET].view(3, 2, 8, 8))
    torch.set_default_dtype(torch.float64)  # in which captum draws: a network in float32 gets float32 all the same
    try:
        space = fringe.InputSpace(references=reference.float())
        model = nn.Sequential(nn.Flatten(), nn.Linear(128, 3, bias=False).float()).eval()
        model[1].weight.data = weight.float()
        again = fringe.attribute(model, X.float(), target=TARGET, method="captum:gradient_shap", space=space)
    finally:
        torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(again.values, result.values.float())
    with pytest.raises(InputError, match="captum:gradient_shap averages over images of the data; pass some"):
        explained(net, "captum:gradient_shap")


def test_further_arguments_are_those_of_the_call(net):
    scale = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    for name in ("deep_lift", "guided_backprop", "input_x_gradient", "occlusion"):
        plain = explained(net, f"captum:{name}")
        scaled = explained(net, f"captum:{name}", forward_args=(scale,))
        torch.testing.assert_close(scaled.values, scale.view(3, 1, 1, 1) * plain.values, rtol=1e-5, atol=1e-6)


class TestRefusals:
    def test_deep_lift_names_a_module_that_runs_twice_and_leaves_nothing_in_it(self):
        relu = nn.ReLU()
        model = nn.Sequential(nn.Flatten(), nn.Linear(128, 8), relu, nn.Linear(8, 3), relu).double()
        before = [set(vars(module)) for module in model.modules()]
        with pytest.raises(InputError, match="a nonlinearity of it runs more than once, which captum:deep_lift cannot"):
            explained(model, "captum:deep_lift")
        assert [set(vars(module)) for module in model.modules()] == before

    def test_a_setting_of_another_algorithm(self):
        with pytest.raises(InputError, match="captum:occlusion has no setting 'samples'; its settings: window"):
            CaptumMethod("occlusion", samples=3)
        with pytest.raises(InputError, match="captum:guided_backprop has no setting 'samples'; it has no settings"):
            get_method("captum:guided_backprop").with_text({"samples": "3"})
        expected = {"method": "captum", "algorithm": "gradient_shap", "samples": 200}
        assert get_method("captum:gradient_shap").record() == expected

    def test_an_unknown_algorithm(self):
        with pytest.raises(InputError, match="captum has no 'deeplift'; did you mean 'deep_lift'"):
            get_method("captum:deeplift")
        with pytest.raises(InputError, match="method: Grad-CAM needs no captum: it is the method gradcam"):
            get_method("captum:grad_cam")

    def test_a_window_larger_than_the_image(self, net):
        with pytest.raises(InputError, match="window: got 9 for a side of 8"):
            explained(net, CaptumMethod("occlusion", window=9))

    @pytest.mark.parametrize(("name", "extra"), [("captum", "captum"), ("zennit", "zennit"), ("lxt", "lxt")])
    def test_an_absent_package_is_named_with_its_extra(self, monkeypatch, net, name, extra):
        monkeypatch.setattr("importlib.util.find_spec", lambda package: None)
        with pytest.raises(
            InputError,
            match=rf'needs {name}, which is not installed; run pip install -c constraints.txt -e "\.\[{extra}\]"',
        ):
            explained(net, name)


def test_every_algorithm_has_a_preset_of_its_name():
    for name in CaptumMethod.presets:
        method = get_method(f"captum:{name}")
        assert (method.label, method.algorithm) == (f"captum:{name}", name)
        assert method_of_record(method.record()) == method
        assert dataclasses.replace(method) == method


# -- features and windows of the caller --------------------------------------------------------------------------------


def test_features_are_replaced_together_as_by_captum(net):
    mask = (torch.arange(64) // 16).view(1, 1, 8, 8) * 5 - 3  # with gaps, and below zero
    mask = torch.cat([mask, mask.flip(-2), mask]).expand(3, 2, 8, 8)
    baseline = normal(3, 2, 8, 8, seed=8)
    result = explained(net, "captum:occlusion", baseline=baseline, feature_mask=mask)
    maps = [
        attr.FeatureAblation(net).attribute(
            X[[i]], baselines=baseline[[i]], target=TARGET[[i]], feature_mask=mask[[i]] + 3
        )
        for i in range(3)
    ]
    torch.testing.assert_close(result.values, torch.cat(maps).double(), rtol=1e-5, atol=1e-6)
    same = explained(net, "captum:occlusion", baseline=baseline, feature_mask=mask.double())
    assert torch.equal(same.values, result.values)


def test_kernel_shap_takes_the_features_of_the_caller():
    """Of an additive score, each gets its change."""
    weight, mask = normal(128, 3, seed=4), (torch.arange(8) // 3).expand(8, 8)
    result = explained(lambda x: x.flatten(1) @ weight, "captum:kernel_shap", feature_mask=mask)
    change = (X.flatten(1) * weight.T[TARGET]).view(X.shape)
    for number in range(3):
        expected = (change * (mask == number)).flatten(1).sum(1)[:, None].expand(3, int((mask == number).sum()) * 2)
        found = result.values[:, :, mask == number].flatten(1)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)  # its regression is in float32


class Pair(nn.Module):
    """A network of an image and a row."""

    def forward(self, image, row):
        weight = normal(24, 3, seed=30), normal(5, 3, seed=31)
        first = torch.tanh(image.flatten(1) @ weight[0].to(image))
        return first * (row @ weight[1].to(row)).sigmoid()


PAIR = normal(2, 1, 4, 6, seed=32), normal(2, 5, seed=33)
BOTH = {"target": torch.tensor([1, 2])}


def test_windows_are_those_of_each_tensor():
    shapes, strides = ((1, 2, 3), (2,)), ((1, 1, 3), (1,))
    expected = attr.Occlusion(Pair()).attribute(PAIR, shapes, strides, **BOTH)
    found = fringe.attribute(Pair(), PAIR, method=CaptumMethod("occlusion", window=shapes, stride=strides), **BOTH)
    for ours, theirs in zip(found.maps, expected, strict=True):
        torch.testing.assert_close(ours, theirs.double(), rtol=1e-5, atol=1e-6)
    assert method_of_record(json.loads(json.dumps(found.settings))) == CaptumMethod(
        "occlusion", window=shapes, stride=strides
    )


def test_features_may_span_tensors():
    mask = (torch.arange(24).view(1, 1, 4, 6) // 6, torch.tensor([[0, 0, 3, 7, 7]]))
    expected = attr.FeatureAblation(Pair()).attribute(PAIR, feature_mask=mask, **BOTH)
    found = fringe.attribute(Pair(), PAIR, method="captum:occlusion", feature_mask=mask, **BOTH)
    for ours, theirs in zip(found.maps, expected, strict=True):
        torch.testing.assert_close(ours, theirs.double(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("method", "mask", "message"),
    [
        ("ig", torch.zeros(8, 8), "feature_mask: the method ig replaces no features"),
        ("captum:occlusion", torch.zeros(8, 7), "feature_mask: got .* expected one that broadcasts to the inputs"),
        ("captum:occlusion", torch.full((8, 8), torch.nan), "feature_mask: it holds NaN"),
        ("captum:occlusion", torch.rand(8, 8), "feature_mask: got 'fractions', expected whole numbers"),
        (CaptumMethod("occlusion", window=((2, 3),)), None, "window: got .* expected a number for each axis"),
        (CaptumMethod("occlusion", window=((2, 3, 9),)), None, "window: got 9 for a side of 8"),
        (CaptumMethod("occlusion", window=2, stride=3), None, "stride: got 3 for a side of 2"),
    ],
)
def test_features_and_windows_that_do_not_fit_are_refused(net, method, mask, message):
    with pytest.raises(InputError, match=message):
        explained(net, method, feature_mask=mask)
