"""Every registered method keeps the public contract."""

import importlib.util

import pytest
import torch
from torch import nn

import fringe
from fringe import METHODS
from fringe.attribution import Attributor
from fringe.data import digits_samples
from fringe.models import load_model
from fringe.testing import ATTRIBUTOR_CHECKS, check_attributor
from toys import ToyProblems, cheap, smooth_cnn

# The first row of a method follows from its class. These have another one: what makes them cheap is no whole number.
FIRST_ROW = {
    "fringe": fringe.FRInGe(tau=0.1),
    "fringe_b": METHODS["fringe_b"](tau=0.1),
    "paper": METHODS["paper"](tau=0.1),
    "released": METHODS["released"](tau=0.1, cg_iterations=2),
    "straight": fringe.Straight(fringe.FRInGe(tau=0.1), steps=6),
}
# Further rows, for each mode that computes something else.
MORE_ROWS = {
    "agi": [fringe.AGI(steps=3, classes=2), fringe.AGI(steps=3, classes=1, mode="official")],
    "blur_ig": [fringe.BlurIG(steps=6, mode="derivative")],
    "fringe": [fringe.FRInGe(tau=3e-2, focus="cam")],
    "idg": [fringe.IntegratedDecisionGradients(steps=5, mode="official")],
    "ig": [fringe.IntegratedGradients(steps=8, focus="cam")],
    "smooth": [fringe.Smooth(fringe.SmoothGrad(samples=3))],
    "straight": [fringe.Straight(fringe.GuidedIG(steps=5), steps=6)],
    "paper": [METHODS["paper"](tau=0.1, cg_iterations=2)],
    "power": [fringe.Power(fringe.SmoothGrad(samples=3))],
    "captum": [
        fringe.CaptumMethod(name, **({"samples": 8} if name in ("gradient_shap", "kernel_shap") else {}))
        for name in ("gradient_shap", "deep_lift", "guided_backprop", "input_x_gradient")
    ]
    + [fringe.CaptumMethod("kernel_shap", samples=30, segments=9, superpixels="grid")],
    "zennit": [fringe.ZennitMethod("epsilon_gamma_box")],
}
#: They are for transformers, which the toys are not: tests/attribution/test_lrp.py and test_attention.py.
ELSEWHERE = {"lxt", "legrad", "rollout"}

#: What activations of a layer cannot show: the toys of rows and of constants have none in space.
CAM = {
    "constant_model": "a network without a layer in space is refused",
    "unread_inputs": "the map is one for all channels",
    "affine_score": "a network without a layer in space is refused",
}
OF_STEPS = {"refinement": "steps are the most that a path may take; epsilon refines it"}
EXPECTED = {
    fringe.FRInGe(tau=3e-2, focus="cam"): {
        "explained_class": "of two classes at once the larger of their maps is the focus"
    },
    **dict.fromkeys((fringe.GradCAM(), fringe.LayerCAM(), fringe.HiResCAM()), CAM),
    **dict.fromkeys((cheap(fringe.AGI), fringe.AGI(steps=3, classes=2)), OF_STEPS),
    fringe.BlurIG(steps=6, mode="derivative"): {"affine_score": "the path's derivative is a forward difference"},
    cheap(fringe.RISE): {
        "constant_model": "the map of a constant score is the mean of the masks",
        "unread_inputs": "a mask is one for all channels",
    },
    cheap(fringe.Smooth): {
        "unread_inputs": "the map is smoothed over the border of what is read",
        "affine_score": "the map w (x - x') is smoothed as well",
    },
    fringe.Smooth(fringe.SmoothGrad(samples=3)): {
        "unread_inputs": "the map is smoothed over the border of what is read"
    },
    fringe.CaptumMethod("occlusion"): {"unread_inputs": "a window covers all channels"},
    fringe.CaptumMethod("deep_lift"): {"batch_size": "an input goes through the network together with its baseline"},
    fringe.CaptumMethod("kernel_shap", samples=30, segments=9, superpixels="grid"): {
        "unread_inputs": "a superpixel covers all channels"
    },
    fringe.ZennitMethod("epsilon_plus_flat"): {"affine_score": "the bias takes up relevance"},
    fringe.ZennitMethod("epsilon_gamma_box"): {
        "affine_score": "the bias takes up relevance",
        "unread_inputs": "the bounds are those of the image, and the first convolution reads one of two channels",
    },
}
"""What a setting is known to fail, and why."""

OF_CLASS = {name: FIRST_ROW.get(name) or cheap(kind) for name, kind in METHODS.items() if name not in ELSEWHERE}
ROWS = [
    (f"{name}-{number}", name, method)
    for name, first in OF_CLASS.items()
    for number, method in enumerate([first, *MORE_ROWS.get(name, [])])
    if method.package is None or importlib.util.find_spec(method.package) is not None
]
LABELS = [label for label, _, _ in ROWS]
ROWS = [row[1:] for row in ROWS]


def test_every_method_is_tried():
    assert OF_CLASS.keys() >= FIRST_ROW.keys() | MORE_ROWS.keys()
    assert all(method.name == name for name, method in ROWS)


MODES = [
    pytest.param(name, method, id=label, marks=[pytest.mark.thorough] if method != OF_CLASS[name] else [])
    for (name, method), label in zip(ROWS, LABELS, strict=True)
]
"""The rows; after every edit, the first of each method."""
FIRST = [row for row in MODES if not row.marks]
"""The first of each method, for what the code around a method does, whatever its settings."""


@pytest.mark.parametrize(("name", "method"), MODES)
def test_it_keeps_the_contract(name, method):
    results = check_attributor(method, expected_failures=EXPECTED.get(method, {}))
    assert [result.name for result in results] == list(ATTRIBUTOR_CHECKS)
    assert all(result.detail for result in results)
    if method.is_complete and method.package is None:  # without a gap it would pass by not being checked
        assert {result.name: result.detail for result in results}["completeness"].startswith("gap ")


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(("name", "method"), ROWS, ids=LABELS)
def test_it_keeps_the_contract_on_a_gpu(name, method):
    check_attributor(method, device="cuda", expected_failures=EXPECTED.get(method, {}))


#: Methods whose number of passes follows from their settings alone.
KNOWN = {"ig", "blur_ig", "spectral_ig", "smoothgrad", "smooth", "expected_gradients", "guided_ig", "rise", "idg"}


@pytest.mark.parametrize(("name", "method"), MODES)
def test_its_settings_tell_the_order_of_its_passes(name, method):
    """What a command asks its user about before it starts; counted passes are the measure."""
    model = load_model("embedded:digits")
    x = model.prepare([sample.image for sample in digits_samples("test")[:17]])
    space = fringe.InputSpace(*model.preprocessing.bounds(), x[1:])
    spent = fringe.attribute(model.module, x[:1], method=method, space=space).passes
    counted = spent.forward + spent.jvp + spent.vjp
    once = 3 * len(x) if method.uses_references else 8  # a call looks at the model and at the references once
    has_sum = method.is_complete or method.innermost.is_complete
    checked = 6 if method.uses_gradients and not has_sum else 0  # of the gradient over a long step
    assert method.planned_passes / 10 < counted < 3 * method.planned_passes + once + checked
    if (
        name in KNOWN
    ):  # a call takes up to nine passes of its own: what is predicted, at the input and at the path's end
        assert checked <= counted - method.planned_passes <= 9 + checked


def test_a_method_of_somebody_else_need_not_tell():
    assert Attributor.planned_passes.fget(fringe.IntegratedGradients()) is None


# -- laws that need no network of the kit's own ------------------------------------------------------------------------


def no_more_than_two(module, inputs):
    if len(inputs[0]) > 2:
        raise torch.OutOfMemoryError("simulated")


def explained(method, *, model=None, dtype=torch.float64, **given):
    toys = ToyProblems(dtype)
    model = model or toys.build(smooth_cnn)
    return fringe.attribute(model, toys.images(3), method=method, space=toys.space(), ids="abc", **given)


@pytest.mark.parametrize(("name", "method"), FIRST)
def test_a_device_without_memory_costs_only_time(name, method):
    expected = explained(method, batch_size=16)
    model = ToyProblems().build(smooth_cnn)
    model.register_forward_pre_hook(no_more_than_two)  # and no wrapper, as some methods read the layers
    found = explained(method, model=model, batch_size=16)
    torch.testing.assert_close(found.values, expected.values, rtol=1e-8, atol=1e-10)
    assert found.verdict == expected.verdict


@pytest.mark.parametrize(("name", "method"), FIRST)
def test_single_precision_loses_single_precision_only(name, method):
    single, double = (explained(method, dtype=dtype).values for dtype in (torch.float32, torch.float64))
    assert single.dtype == torch.float32
    assert (single.double() - double).abs().max() < 1e-3 * double.abs().max()


@pytest.mark.parametrize(("name", "method"), FIRST)
def test_progress_ends_with_the_whole_and_the_record_with_the_map(name, method):
    heard = []
    found = explained(method, telemetry=True, batch_size=2, progress=lambda *now: heard.append(now))
    assert heard[-1][0] == heard[-1][1]
    for path, values in zip(found.trajectory or (), found.values, strict=bool(found.trajectory)):
        if path is not None and name not in ("agi", "ig2"):  # whose record is of the first of several paths
            torch.testing.assert_close(path.cumulative[-1].to(values), values, rtol=1e-6, atol=1e-9)


FROM_BASELINES = [
    (name, method) for name, method in ROWS if method.accepts_baseline and method.is_complete and method.package is None
]


@pytest.mark.parametrize(("name", "method"), FROM_BASELINES)
def test_from_an_image_to_itself_there_is_nothing_to_explain(name, method):
    x = ToyProblems().images(3)
    found = explained(method, baseline=torch.cat([x[:1], 0 * x[1:2], x[2:]]))
    assert found.verdict[::2] == ("at_reference",) * 2
    assert found.verdict[1] != "at_reference"
    assert not found.values[::2].any()
    assert not found.completeness_residual[::2].any()


class RoundsByBatch(nn.Module):
    """A network whose numbers differ by a few ulps in batches of other sizes, as on processors that sum these in
    another order."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x):
        logits = self.network(x)
        return logits * (1 + (len(x) % 4) * torch.finfo(logits.dtype).eps)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("name", "method"), FROM_BASELINES)
def test_where_nothing_is_to_be_explained_a_score_may_round(name, method, dtype):
    toys = ToyProblems(dtype)
    model, x = RoundsByBatch(toys.build(smooth_cnn)).eval(), toys.images(3)
    baseline = torch.cat([x[:1], 0 * x[1:2], x[2:]])
    found = explained(method, model=model, dtype=dtype, baseline=baseline, batch_size=2)
    assert found.verdict[::2] == ("at_reference",) * 2
    assert not found.values[::2].any()
    assert not found.completeness_residual[::2].any()


@pytest.mark.filterwarnings("ignore:the model is in training mode")
@pytest.mark.parametrize(("name", "method"), FIRST)
def test_a_network_inside_a_function_is_given_back_as_it_was(name, method):
    """And explained as in evaluation mode; whoever needs its layers refuses the function."""
    model = ToyProblems().build(smooth_cnn).train()
    model.requires_grad_(True)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    try:
        found = explained(method, model=lambda x: model(x)).values
    except fringe.InputError:
        found = None
    after = model.state_dict()
    assert all(torch.equal(after[key], value) for key, value in before.items())
    assert all(module.training for module in model.modules())
    assert all(parameter.requires_grad for parameter in model.parameters())
    if found is not None:
        model.eval()
        expected = explained(method, model=lambda x: model(x)).values
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


# -- a score of the caller's own ---------------------------------------------------------------------------------------


class Quantities(nn.Module):
    """A network without classes: seven numbers of each image, in float64."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.conv, self.last = nn.Conv2d(2, 3, 3, padding=1), nn.Linear(3 * 6 * 6, 7)
        self.relu = nn.ReLU()
        self.double().eval()

    def forward(self, x):
        return {"out": self.last(self.relu(self.conv(x)).flatten(1))}


class Twin(nn.Module):
    """The same score as the logit of the first of two classes."""

    def __init__(self, network, score):
        super().__init__()
        self.network, self.score = network, score
        self.eval()

    def forward(self, x):
        score = self.score(self.network(x))
        return torch.stack([score, torch.zeros_like(score)], 1)


def product(output):
    return output["out"][:, 2] * output["out"][:, 4].tanh() + output["out"][:, 0]


@pytest.mark.parametrize(("name", "method"), MODES)
def test_a_function_is_explained_as_the_logit_of_a_class_is(name, method):
    draw = torch.Generator().manual_seed(1)
    x, others = (torch.randn(n, 2, 6, 6, dtype=torch.float64, generator=draw) for n in (2, 3))
    space, network = fringe.InputSpace(references=others), Quantities()
    if method.needs_classes or method.innermost.needs_classes:
        with pytest.raises(fringe.InputError, match=f"score: the method '{name}' needs the logits of all classes"):
            fringe.attribute(network, x, method=method, score=product, space=space)
        return
    score = product if name != "rise" else lambda output: product(output).sigmoid()  # it explains the probability
    result = fringe.attribute(network, x, method=method, score=score, space=space, telemetry=True)
    twin = fringe.attribute(Twin(network, product), x, method=method, target=0, space=space)
    torch.testing.assert_close(result.score, score(network(x)).detach(), rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(result.values, twin.values, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(result.endpoint_score, twin.endpoint_score, rtol=1e-9, atol=1e-12, equal_nan=True)
    assert result.verdict == twin.verdict
    assert "entropy" not in result.diagnostics


@pytest.mark.parametrize(
    "method", [fringe.FRInGe(quadrature_rtol=1e-3), fringe.Smooth(fringe.FRInGe())], ids=["fringe", "smooth:fringe"]
)
def test_a_map_does_not_depend_on_the_other_classes(method):
    """Of several classes at once each map is that of a call for it alone, in any order, in batches of any size."""
    assert method.many_targets
    loaded = load_model("embedded:digits")
    pixels = torch.stack([loaded.preprocessing.pixels(sample.image) for sample in digits_samples()[:2]])
    model, x = loaded.module.double(), loaded.preprocessing.normalise(pixels).double()
    target = model(x).topk(3).indices
    found = fringe.attribute(model, x, method=method, target=target)
    turned = fringe.attribute(model, x, method=method, target=target.flip(1), batch_size=3)
    torch.testing.assert_close(turned.values.flip(1), found.values, rtol=1e-9, atol=1e-12)
    assert turned.verdict == found.verdict
    for k in range(3):
        alone, one = fringe.attribute(model, x, method=method, target=target[:, k]), found.of_class(k)
        torch.testing.assert_close(one.values, alone.values, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(one.completeness_gap, alone.completeness_gap, rtol=0, atol=1e-9)
        assert one.verdict == alone.verdict
