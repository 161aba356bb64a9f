"""Smooth slopes of rectifiers: exact elsewhere, those of softplus where they are asked for, and nothing left behind."""

import io
import math

import pytest
import torch
import torch.nn.functional as F
from classifier_toys import normal
from torch import nn
from torch.overrides import _len_torch_function_stack
from torch.utils.checkpoint import checkpoint

import fringe
from fringe import Classifier
from fringe._network import rectifiers
from fringe._network.rectifiers import SHARPNESS, Rectifiers, smooth_slopes

ZERO_SIX = (0.0, 6.0)
#: Each rectifier and the interval in which its slope is one.
FUNCTIONS = {
    "relu": (torch.relu, (0, math.inf)),
    "method": (lambda x: x.relu(), (0, math.inf)),
    "in place": (lambda x: (x + 0).relu_(), (0, math.inf)),
    "F.relu": (lambda x: F.relu(x + 0, True), (0, math.inf)),
    "module": (nn.ReLU(), (0, math.inf)),
    "module in place": (lambda x: nn.ReLU(inplace=True)(x + 0), (0, math.inf)),
    "aten": (lambda x: torch.ops.aten.relu.default(x), (0, math.inf)),
    "relu6": (nn.ReLU6(), ZERO_SIX),
    "aten relu6": (lambda x: torch.ops.aten.relu6.default(x), ZERO_SIX),
    "relu6 in place": (lambda x: F.relu6(x + 0, inplace=True), ZERO_SIX),
    "hardtanh": (nn.Hardtanh(), (-1, 1)),
    "hardtanh to six": (lambda x: F.hardtanh(x, 0.0, 6.0), ZERO_SIX),
    "clamp": (lambda x: torch.clamp(x, min=0), (0, math.inf)),
    "clamp of both sides": (lambda x: x.clamp(0, 6), ZERO_SIX),
    "clamp from above": (lambda x: x.clip(max=0), (-math.inf, 0)),
    "clamp_min": (lambda x: x.clamp_min(0.0), (0, math.inf)),
    "clamp_": (lambda x: (x + 0).clamp_(min=0), (0, math.inf)),
}


def values():
    """Numbers at, near and far from the kinks: (2, 40)."""
    edges = torch.tensor([-1.0, 0.0, 1.0, 6.0, -1e-3, 1e-3, 5.999, 6.001], dtype=torch.float64)
    return torch.cat([edges, 4 * normal(72)]).view(2, 40)


def products(function, x):
    """Value, J'u and J v, from one graph."""
    x = x.clone().requires_grad_(True)
    y = function(x * 1.5)
    u, v = normal(*y.shape, seed=8).to(x).requires_grad_(True), normal(*x.shape, seed=9).to(x)
    (back,) = torch.autograd.grad(y, x, u, create_graph=True)
    (ahead,) = torch.autograd.grad(back, u, v)
    return y.detach(), back.detach(), ahead


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_values_and_products_are_those_of_pytorch(name, dtype):
    function, x = FUNCTIONS[name][0], values().to(dtype) / 1.5
    plain = products(function, x)
    with Rectifiers():
        found = products(function, x)
    assert all(map(torch.equal, found, plain))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_smooth_slope_is_that_of_softplus(name):
    """In the direction alone: the gradient before and after it is exact."""
    function, (low, high) = FUNCTIONS[name]
    x, u = values().requires_grad_(True), normal(2, 40, seed=8)
    with Rectifiers():
        y = function(x)
    exact = torch.autograd.grad(y, x, u, retain_graph=True)[0]
    with smooth_slopes():
        smooth = torch.autograd.grad(y, x, u, retain_graph=True)[0]
    again = torch.autograd.grad(y, x, u)[0]
    twin = torch.zeros_like(x)
    for bound, sign in ((low, 1.0), (high, -1.0)):
        if abs(bound) < math.inf:
            twin = twin + sign * F.softplus(x - bound, beta=SHARPNESS, threshold=1e3)
    twin = twin + (x if low == -math.inf else 0.0)
    expected = torch.autograd.grad(twin, x, u)[0]
    far = math.exp(-SHARPNESS * (high - low) / 2)  # what the other kink adds in the middle
    torch.testing.assert_close(smooth, expected, rtol=1e-9 + 2 * far, atol=1e-12 + 2 * far)
    assert not torch.allclose(smooth, exact)
    assert torch.equal(again, exact)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.clamp(min=1e-6),
        lambda x: x.clamp(min=torch.zeros(())),
        F.gelu,
        F.softplus,
        F.leaky_relu,
        F.silu,
        lambda x: (x + 0).view(-1)[:4].relu_(),
    ],
)
def test_other_functions_are_left_alone(function):
    x = values().requires_grad_(True)
    with Rectifiers():
        y = function(x)
    with smooth_slopes():
        found = torch.autograd.grad(y.sum(), x)[0]
    assert torch.equal(found, torch.autograd.grad(function(x).sum(), x)[0])


# -- in a network ------------------------------------------------------------------------------------------------------


class Small(nn.Module):
    def __init__(self, activation=None):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.conv, self.head = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(4 * 36, 5)
        self.activation = activation or nn.ReLU()
        for parameter in self.parameters():
            parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator)
        self.double().eval().requires_grad_(False)

    def forward(self, x):
        return self.head(self.activation(self.conv(x)).flatten(1))


def images(count=2):
    return normal(count, 1, 6, 6, seed=4)


def smooth_product(model, x, u):
    classifier = Classifier(model)
    with classifier.session(x.device):
        point = classifier.linearise(x, smooth=True)
        before = point.vjp(u)
        with smooth_slopes():
            found = point.vjp(u)
        return before, found, point


def test_of_one_hidden_layer_the_product_is_a_finite_difference_of_softplus():
    x, u, h = images(), normal(2, 5, seed=5), 1e-5
    _, found, _ = smooth_product(Small(), x, u)
    twin = Small(lambda z: F.softplus(z, beta=SHARPNESS, threshold=1e3))
    for pixel in (0, 7, 20, 35):
        step = torch.zeros(36, dtype=torch.float64).index_fill(0, torch.tensor([pixel]), h).view(1, 1, 6, 6)
        difference = ((twin(x + step) - twin(x - step)) / (2 * h) * u).sum(1)
        torch.testing.assert_close(found.flatten(1)[:, pixel], difference, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("activation", [nn.Softplus(), nn.GELU(), nn.SiLU()])
def test_a_map_of_a_smooth_network_is_bit_for_bit_what_it_is_without(activation, monkeypatch):
    model, x = Small(activation), images()
    found = fringe.attribute(model, x)
    monkeypatch.setattr(rectifiers, "_RECTIFIERS", {})
    assert torch.equal(found.values, fringe.attribute(model, x).values)


def test_a_map_of_rectifiers_is_not(monkeypatch):
    model, x = Small(), images()
    found = fringe.attribute(model, x)
    assert found.diagnostics["smooth_slopes"].tolist() == [1.0, 1.0]
    monkeypatch.setattr(rectifiers, "_RECTIFIERS", {})
    assert not torch.allclose(found.values, fringe.attribute(model, x).values)


def test_after_an_error_in_forward_nothing_is_left():
    def fails(x):
        raise ValueError("here")

    for error, model in (
        (ValueError, Small(fails)),
        (KeyboardInterrupt, Small(lambda x: (_ for _ in ()).throw(KeyboardInterrupt))),
    ):
        with pytest.raises(error):
            Classifier(model).linearise(images(), smooth=True)
        assert _len_torch_function_stack() == 0
    with pytest.raises(ZeroDivisionError), smooth_slopes():
        raise ZeroDivisionError
    assert rectifiers._is_smooth is False


class Checkpointed(Small):
    def __init__(self, use_reentrant):
        super().__init__()
        self.use_reentrant = use_reentrant

    def forward(self, x):
        hidden = checkpoint(lambda z: torch.relu(self.conv(z)), x, use_reentrant=self.use_reentrant)
        return self.head(hidden.flatten(1))


class Vmapped(Small):
    def forward(self, x):
        return self.head(torch.vmap(lambda z: torch.relu(z))(self.conv(x)).flatten(1))


class Hooked(Small):
    def __init__(self):
        super().__init__()
        self.seen = 0
        self.activation.register_full_backward_hook(self.count)

    def count(self, module, ingoing, outgoing):
        self.seen += 1


@pytest.mark.parametrize(
    "make",
    [lambda: Checkpointed(True), lambda: Checkpointed(False), Vmapped, Hooked],
    ids=["reentrant", "checkpoint", "vmap", "hook"],
)
def test_where_they_cannot_be_had_products_stay_right(make):
    x, u = images(), normal(2, 5, seed=5)
    model = make()
    before, found, _ = smooth_product(model, x, u)
    leaf = x.clone().requires_grad_(True)
    exact = torch.autograd.grad(Small()(leaf), leaf, u)[0]
    torch.testing.assert_close(before, exact, rtol=1e-10, atol=1e-12)
    if isinstance(model, Hooked):
        assert model.seen == 2
        assert not torch.allclose(found, exact)


def test_of_a_script_the_path_has_the_mean_alone_and_the_record_says_so():
    x, buffer = images(), io.BytesIO()
    torch.jit.save(torch.jit.trace(Small(), x), buffer)
    buffer.seek(0)
    found = fringe.attribute(torch.jit.load(buffer), x)
    assert found.diagnostics["smooth_slopes"].tolist() == [0.0, 0.0]
    assert set(found.verdict) <= {"ok", "short", "coarse", "stalled"}


def test_an_exported_program_has_them():
    x = images()
    program = torch.export.export(Small(), (x,)).module()
    u = normal(2, 5, seed=5)
    found = smooth_product(program, x, u)[1]
    torch.testing.assert_close(found, smooth_product(Small(), x, u)[1], rtol=1e-10, atol=1e-12)


def test_in_half_precision_they_are_close():
    x, u = images().float(), normal(2, 5, seed=5).float()

    class Autocast(Small):
        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16):
                return super().forward(x).float()

    found = smooth_product(Autocast().float(), x, u)[1]
    expected = smooth_product(Small().float(), x, u)[1]
    assert (found - expected).norm() < 0.03 * expected.norm()
