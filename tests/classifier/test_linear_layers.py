"""The replaced layers against the plain ones: values, first and second derivatives, and when they step aside."""

import contextlib
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from classifier_toys import normal
from torch import nn
from torch.utils.checkpoint import checkpoint

from fringe import Classifier
from fringe._network.linear_layers import BackwardLayouts, GradientLayouts, LinearLayers, keep_gradient_layouts

CONVOLUTIONS = {
    "plain": ((2, 4, 9, 8), (6, 4, 3, 3), {}),
    "stride": ((2, 4, 9, 8), (6, 4, 3, 3), {"stride": 2}),
    "padding": ((2, 4, 9, 8), (6, 4, 3, 3), {"padding": (1, 2)}),
    "one for all axes": ((2, 4, 9, 8), (6, 4, 3, 3), {"stride": (2,), "padding": [1], "dilation": (1,)}),
    "dilation": ((2, 4, 9, 8), (6, 4, 3, 2), {"dilation": (2, 3)}),
    "groups": ((2, 4, 9, 8), (6, 2, 3, 3), {"groups": 2}),
    "depthwise": ((2, 4, 9, 8), (4, 1, 3, 3), {"groups": 4, "padding": 1}),
    "all of them": ((2, 4, 9, 8), (6, 2, 3, 3), {"stride": (2, 1), "padding": 1, "dilation": 2, "groups": 2}),
    "one pixel": ((2, 4, 9, 8), (6, 4, 1, 1), {}),
    "same": ((2, 4, 9, 8), (6, 4, 3, 3), {"padding": "same", "dilation": 2}),
    "valid": ((2, 4, 9, 8), (6, 4, 3, 3), {"padding": "valid"}),
    "1d": ((2, 4, 9), (6, 4, 3), {"stride": 2, "padding": 1}),
    "3d": ((2, 4, 5, 4, 3), (6, 4, 2, 2, 2), {"stride": (2, 1, 1), "padding": 1}),
    "no batch axis": ((4, 9, 8), (6, 4, 3, 3), {"padding": 1}),
}


def convolution(weight):
    return {3: torch.conv1d, 4: torch.conv2d, 5: torch.conv3d}[weight.dim()]


def products(function, x):
    """Value, J'u, and J v as the derivative of J'u in u."""
    x = x.clone().requires_grad_(True)
    y = function(x)
    u, v = normal(*y.shape, seed=8).to(x).requires_grad_(True), normal(*x.shape, seed=9).to(x)
    (back,) = torch.autograd.grad(y, x, u, create_graph=True)
    (ahead,) = torch.autograd.grad(back, u, v)
    return y.detach(), back.detach(), ahead


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("with_bias", [True, False])
class TestConvolutions:
    def case(self, name, with_bias):
        x_shape, w_shape, options = CONVOLUTIONS[name]
        return normal(*x_shape), normal(*w_shape, seed=1), normal(w_shape[0], seed=2) if with_bias else None, options

    def test_products_are_the_plain_ones(self, name, with_bias):
        x, weight, bias, options = self.case(name, with_bias)
        plain = products(lambda z: convolution(weight)(z, weight, bias, **options), x)
        with LinearLayers():
            found = products(lambda z: convolution(weight)(z, weight, bias, **options), x)
            named = convolution(weight)(input=x, weight=weight, bias=bias, **options)
        assert torch.equal(named, found[0])
        assert with_bias or torch.equal(found[0], plain[0])  # a bias is added after the sum and not within it
        for ours, theirs in zip(found, plain, strict=True):
            assert torch.allclose(ours, theirs, rtol=1e-12, atol=1e-13)

    def test_what_is_learnt_still_gets_its_gradient(self, name, with_bias):
        x, weight, bias, options = self.case(name, with_bias)
        learnt = [part.requires_grad_(True) for part in (weight, bias) if part is not None]
        plain = torch.autograd.grad(convolution(weight)(x, weight, bias, **options).square().sum(), learnt)
        with LinearLayers():
            y = convolution(weight)(x, weight, bias, **options)
        for found, expected in zip(torch.autograd.grad(y.square().sum(), learnt), plain, strict=True):
            assert torch.allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_biased_convolutions_have_the_same_bits():
    x, weight, bias = normal(2, 4, 9, 11), normal(7, 4, 3, 3, seed=1), normal(7, seed=2)
    with LinearLayers():
        found = torch.conv2d(x, weight, bias, padding=1)
    assert torch.equal(found, torch.conv2d(x, weight, bias, padding=1))


def test_a_weight_made_from_the_input_keeps_that_path():
    def dynamic(x):
        return torch.conv2d(x, x[:1, :, :3, :3].sin())

    x = normal(2, 4, 6, 6)
    plain = products(dynamic, x)
    with LinearLayers():
        found = products(dynamic, x)
    for ours, theirs in zip(found, plain, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", [(6, 4), (3, 4, 7), (2, 4, 5, 6), (2, 4, 3, 3, 3)])
class TestBatchNormalisation:
    def statistics(self, affine, dtype):
        mean, variance = normal(4, seed=1, dtype=dtype), 0.3 + normal(4, seed=2, dtype=dtype).square()
        weight, bias = normal(4, seed=3, dtype=dtype), normal(4, seed=4, dtype=dtype)
        return (mean, variance, weight, bias) if affine else (mean, variance)

    def test_is_the_plain_one(self, affine, shape):
        statistics, x = self.statistics(affine, torch.float64), normal(*shape)
        plain = products(lambda z: F.batch_norm(z, *statistics), x)
        with LinearLayers():
            found = products(lambda z: F.batch_norm(z, *statistics), x)
        for ours, theirs in zip(found, plain, strict=True):
            assert torch.allclose(ours, theirs, rtol=1e-12, atol=1e-13)

    def test_of_the_batch_itself_is_left_to_torch(self, affine, shape):
        statistics, x = self.statistics(affine, torch.float64), normal(*shape)
        expected_mean = 0.9 * statistics[0] + 0.1 * x.transpose(0, 1).flatten(1).mean(1)
        plain = F.batch_norm(x, None, None, training=True)
        with LinearLayers():
            found = F.batch_norm(x, statistics[0], statistics[1], training=True)
        assert torch.equal(found, plain)
        assert torch.allclose(statistics[0], expected_mean, rtol=1e-12)


def test_inside_the_block_alone_layers_are_replaced():
    x, layer = normal(1, 4, 6, 6).requires_grad_(True), nn.Conv2d(4, 3, 3, bias=False).double().requires_grad_(False)
    plain = type(layer(x).grad_fn)
    with LinearLayers():
        replaced = type(layer(x).grad_fn)
    assert plain is type(layer(x).grad_fn)
    assert replaced is not plain


def test_a_normalisation_is_one_multiplication_and_addition():
    x, mean, variance = normal(2, 4, 5, 6).requires_grad_(True), normal(4, seed=1), normal(4, seed=2).square()
    with LinearLayers():
        y = F.batch_norm(x, mean, variance)
    assert type(y.grad_fn).__name__ == "AddcmulBackward0"


def test_the_derivative_of_a_product_computes_no_weight_gradient():
    x, weight = normal(1, 4, 6, 6), normal(3, 4, 3, 3, seed=1)
    with LinearLayers(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        products(lambda z: torch.conv2d(z, weight), x)
    counts = {event.key: event.count for event in profile.key_averages()}
    assert counts["aten::convolution_backward"] == 1  # the transpose; its derivative is a convolution again
    assert counts["aten::convolution"] == 2


def laid_out(x, layout):
    """The same numbers in another order in memory."""
    if layout == "tokens":  # strides of one image that fit channels first and last, as after transpose(1, 2).reshape
        return x.movedim(1, -1).movedim(0, -2).contiguous().movedim(-2, 0).movedim(-1, 1)
    formats = {"first": torch.contiguous_format, "last": (torch.channels_last, torch.channels_last_3d)[x.dim() - 4]}
    return torch.cat([x, x], 1)[:, : x.shape[1]] if layout == "slice" else x.contiguous(memory_format=formats[layout])


@pytest.mark.parametrize("back", ["first", "last", "tokens", "slice"])
@pytest.mark.parametrize("layout", ["first", "last", "tokens", "slice"])
@pytest.mark.parametrize("shape", [(1, 4, 5, 6), (2, 4, 5, 6), (1, 4, 3, 3, 3)])
class TestGradientsOfNormalisations:
    """Without a block, 28 of those of either fail, with relative errors above 1."""

    @pytest.mark.parametrize("block", [GradientLayouts, BackwardLayouts, contextlib.nullcontext])
    @pytest.mark.parametrize("kind", ["batch", "instance"])
    def test_do_not_depend_on_the_layout(self, shape, layout, back, kind, block):
        mean, variance, weight = normal(4, seed=1), 0.3 + normal(4, seed=2).square(), normal(4, seed=3)
        u, x = laid_out(normal(*shape, seed=4), back), laid_out(normal(*shape), layout).requires_grad_(True)
        with block():
            if kind == "batch":
                y = F.batch_norm(x, mean, variance, weight)
            else:
                statistics = {"running_mean": mean, "running_var": variance, "use_input_stats": False}
                y = F.instance_norm(input=x, weight=weight, **statistics)
            if block is contextlib.nullcontext:
                keep_gradient_layouts(y)
            (gradient,) = torch.autograd.grad(y, x, u)
        factor = (weight / (variance + 1e-5).sqrt()).view(-1, *[1] * (len(shape) - 2))
        assert torch.allclose(gradient, u * factor, rtol=1e-10, atol=1e-12)


class Tokens(nn.Module):
    """A normalised volume, read as a sequence."""

    def __init__(self, norm):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv3d(1, 4, 3, stride=2), norm, nn.Flatten(2))
        self.mix, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.mix(self.stem(x).transpose(1, 2))).mean(1))


def programs(module, x):
    """The same network in the forms in which its normalisations are called in other ways."""
    exported = torch.export.export(module, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    return {
        "module": module,
        "exported": exported.module(),
        "decomposed": exported.run_decompositions().module(),
        "scripted": torch.jit.script(module),
        "traced": torch.jit.trace(module, x),
        "traced function": torch.jit.trace(lambda x: module(x), x),
        "part": nn.Sequential(torch.jit.script(module)).eval(),
        "checkpointed": lambda x: checkpoint(module, x, use_reentrant=False),
        "re-entrant": lambda x: checkpoint(module, x, use_reentrant=True),
    }


@pytest.mark.parametrize("norm", [nn.BatchNorm3d, partial(nn.InstanceNorm3d, affine=True)])
def test_one_volume_has_the_gradient_that_it_has_beside_another(norm):
    torch.manual_seed(0)
    model, x = Tokens(norm(4)).double().eval().requires_grad_(False), normal(2, 1, 7, 8, 9)
    target = torch.tensor([0, 1])
    exact = torch.func.jacfwd(model)(x)  # without a backward pass
    exact = torch.stack([exact[row, target[row], row] for row in range(2)])
    for name, program in programs(model, x).items():
        for batch_size in (1, 2):
            for _ in range(3):  # a script is optimised at its second call
                found = Classifier(program, batch_size=batch_size).score_gradient(x, target)[1]
                assert torch.allclose(found, exact, rtol=1e-9, atol=1e-14), (name, batch_size)
        found = Classifier(program).linearise(x[:1]).vjp(torch.eye(3, dtype=x.dtype)[:1])  # with its graph
        assert torch.allclose(found, exact[:1], rtol=1e-9, atol=1e-14), name


def test_a_normalised_input_that_lies_over_itself_has_its_gradient():
    mean, variance, x = normal(4, seed=1), 0.3 + normal(4, seed=2).square(), normal(1, 4, 5, 6).requires_grad_(True)
    y = F.batch_norm(x[..., :1].expand(-1, -1, -1, 6), mean, variance)
    keep_gradient_layouts(y)
    u = normal(1, 4, 5, 6, seed=3)
    (gradient,) = torch.autograd.grad(y, x, u)
    expected = u.sum(-1) / (variance + 1e-5).sqrt()[:, None]
    assert torch.allclose(gradient[..., 0], expected, rtol=1e-10)


class OwnBatchNorm(torch.autograd.Function):
    """A function of the model's author, whose node has none of the fields of PyTorch's."""

    @staticmethod
    def forward(context, x):
        return 2 * x

    @staticmethod
    def backward(context, gradient):
        return 2 * gradient


def test_a_function_of_the_author_by_a_like_name_has_its_gradient():
    x = normal(2, 3).requires_grad_(True)
    y = OwnBatchNorm.apply(x)
    keep_gradient_layouts(y)
    assert torch.autograd.grad(y.sum(), x)[0].unique().tolist() == [2.0]


def test_a_checkpoint_runs_its_part_once_more_and_not_again():
    calls = []
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    model[0].register_forward_hook(lambda *_: calls.append(1))
    classifier = Classifier(lambda x: checkpoint(model, x, use_reentrant=False))
    x = normal(1, 3, 8, 8).float()
    with classifier.session(x.device):
        for _ in range(2):
            calls.clear()
            point = classifier.linearise(x, tangents=False)
            assert len(calls) == 1
            point.vjp(torch.ones_like(point.value))
            assert len(calls) == 2
    assert not classifier.readable_graph
