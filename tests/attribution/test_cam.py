"""Class activation maps: layers, grids, gradients and methods, against their definitions and other libraries."""

import importlib.util

import pytest
import torch
from attribution_toys import ConvNet, filled
from torch import nn
from torch.nn import functional

import fringe
from fringe import Classifier, GradCAM, HiResCAM, InputError, LayerCAM
from fringe.attribution._cam import activations_and_gradients, cam_weights, find_cam_layer, upsample
from fringe.models import import_torchvision
from fringe.paths import Problem
from toys import normal

X, TARGET = normal(3, 2, 8, 8, seed=7), torch.tensor([2, 0, 1])


def problem_of(model, x=X, **more):
    return Problem.of(Classifier(model, **{k: more.pop(k) for k in ("batch_size",) if k in more}), x, **more)


def found(model, x):
    problem = problem_of(model, x)
    with problem.model.session(x.device):
        layer = find_cam_layer(problem)
        return problem, layer, None if layer is None else activations_and_gradients(problem, layer)


def imported(name):
    """A package that imports torchvision, wherever that can be imported."""
    if importlib.util.find_spec("torchvision") is not None:
        import_torchvision("this test")
    return pytest.importorskip(name)


def oracle(net, target=TARGET):
    """Activations and gradients at the second part, by autograd alone."""
    z = net.second(net.first(X)).detach().clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(net.rest(z.clone()).gather(1, target[:, None]).sum(), z)
    return z.detach(), gradient


@pytest.mark.parametrize("inplace", [False, True])
def test_the_methods_are_their_definitions_at_the_last_layer_in_space(inplace):
    net = filled(ConvNet(inplace))
    z, g = oracle(net)
    expected = {
        GradCAM: (g.mean((2, 3), keepdim=True) * z).sum(1, keepdim=True),
        LayerCAM: (g.relu() * z).sum(1, keepdim=True),
        HiResCAM: (g * z).sum(1, keepdim=True),
    }
    for kind, cam in expected.items():
        result = fringe.attribute(net, X, method=kind(), target=TARGET)
        large = functional.interpolate(cam.relu(), (8, 8), mode="bilinear")
        torch.testing.assert_close(result.values.sum(1, keepdim=True), large, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(result.values[:, 0], result.values[:, 1], rtol=0, atol=0)
        is_zero = (large == 0).flatten(1).all(1).tolist()
        assert result.verdict == tuple("stalled" if zero else "unchecked" for zero in is_zero)
        assert is_zero == [False, kind is GradCAM, False]
        named = fringe.attribute(net, X, method=kind(layer="second.2"), target=TARGET)
        found = fringe.attribute(net, X, method=kind(), target=TARGET)
        torch.testing.assert_close(named.values, found.values, rtol=0, atol=0)
        other = fringe.attribute(net, X, method=kind(layer="first.1"), target=TARGET)
        assert (other.values - found.values).norm() > 0.1 * found.values.norm()
    assert all(module.inplace is inplace for module in net.modules() if isinstance(module, nn.ReLU))
    assert not any(module._forward_hooks for module in net.modules())


def test_passes_are_counted_and_stay_within_the_batch_size():
    net, sizes = filled(ConvNet()), []
    targets = torch.tensor([[2, 1], [0, 2], [1, 0]])
    problem = problem_of(net, target=targets, batch_size=2)
    model = problem.model
    net.register_forward_pre_hook(lambda module, inputs: sizes.append(len(inputs[0])))
    with model.session(X.device):
        before = model.passes.forward, model.passes.vjp
        layer = find_cam_layer(problem)
        assert (model.passes.forward - before[0], model.passes.vjp - before[1]) == (1, 1)
        a, g = activations_and_gradients(problem, layer)
        assert (model.passes.forward - before[0], model.passes.vjp - before[1]) == (1 + 3, 1 + 3 * 2)
        before = model.passes.forward, model.passes.vjp
        assert find_cam_layer(problem, "second") is net.second
        assert (model.passes.forward, model.passes.vjp) == before  # a named layer is not looked for
    assert layer is net.second
    assert sizes == [1, 2, 1]
    assert (a.shape, g.shape) == ((3, 4, 4, 4), (3, 2, 4, 4, 4))
    for k in range(2):
        z, gradient = oracle(net, targets[:, k])
        torch.testing.assert_close(a, z, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(g[:, k], gradient, rtol=1e-9, atol=1e-12)
    weights = cam_weights(a, g).relu()
    torch.testing.assert_close(weights, torch.einsum("bkcyx,bcij->bkij", g / 16, a).relu(), rtol=1e-12, atol=1e-12)


def test_the_score_and_the_arguments_of_the_call_count():
    """The gradient is that of the explained score, a difference of classes of a scaled network here."""
    net, scale = filled(ConvNet()), torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    contrast = torch.tensor([0, 1, 2])
    result = fringe.attribute(
        net, X, method=HiResCAM(), target=TARGET, contrast=contrast, forward_kwargs={"scale": scale}
    )
    (z, g), (_, other) = oracle(net), oracle(net, contrast)
    weights = ((g - other) * z).sum(1, keepdim=True) * scale.view(3, 1, 1, 1)
    cam = functional.interpolate(weights.relu(), (8, 8), mode="bilinear")
    torch.testing.assert_close(result.values.sum(1, keepdim=True), cam, rtol=1e-9, atol=1e-12)


def test_upsample_is_linear_along_each_axis_and_keeps_a_map_of_zeros():
    for sides, grid, mode in (
        ((6,), (3,), "linear"),
        ((6, 4), (3, 2), "bilinear"),
        ((6, 4, 4), (3, 2, 2), "trilinear"),
    ):
        weights = normal(2, 3, *grid, seed=5).abs()
        weights[1, 2] = 0
        large = upsample(weights, sides)
        assert large.shape == (2, 3, 1, *sides)
        assert bool((large[1, 2] == 0).all())
        plain = functional.interpolate(weights, sides, mode=mode)
        top = plain.flatten(2).amax(2).clamp_min(1e-300).view(2, 3, *[1] * len(sides))
        torch.testing.assert_close(large[:, :, 0], plain / top, rtol=1e-12, atol=0)
        assert large.flatten(2).amax(2)[0].tolist() == [1, 1, 1]


class Tokens(nn.Module):
    """Patches of 4 x 4 pixels as tokens, after ``extra`` others; the score is read from the first, or from the mean."""

    def __init__(self, extra, mean=False):
        super().__init__()
        self.patch, self.extra, self.mean = nn.Conv2d(2, 6, 2, 2), nn.Parameter(torch.zeros(1, extra, 6)), mean
        layer = nn.TransformerEncoderLayer(6, 2, 12, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(6), nn.Linear(6, 3)

    def forward(self, x):
        tokens = self.patch(x).flatten(2).movedim(1, 2)
        z = self.norm(self.blocks(torch.cat([self.extra.expand(len(x), -1, -1), tokens], 1)))
        return self.head(z.mean(1) if self.mean else z[:, 0])


@pytest.mark.parametrize("extra", [1, 2, 5])
def test_tokens_lie_on_the_grid_of_their_patches(extra):
    x = normal(2, 2, 8, 12, seed=3)
    model = filled(Tokens(extra))
    _, layer, (a, g) = found(model, x)
    assert layer is model.blocks.layers[1].norm1  # behind it, the class token alone reaches the score
    assert (a.shape, g.shape) == ((2, 6, 4, 6), (2, 1, 6, 4, 6))
    z = []
    handle = layer.register_forward_hook(lambda module, inputs, output: z.append(output))
    model(x)
    handle.remove()
    for row in range(4):
        for column in range(6):
            torch.testing.assert_close(a[:, :, row, column], z[0][:, extra + 6 * row + column].detach())
    assert bool((g != 0).flatten(1).any(1).all())
    mean = filled(Tokens(extra, mean=True))
    assert found(mean, x)[1] is mean.norm
    result = fringe.attribute(model, x, method="gradcam")
    assert result.values.shape == x.shape
    assert result.verdict == ("unchecked",) * 2


def test_a_network_of_channels_last_has_its_grid():
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.patch, self.norm, self.head = nn.Conv2d(2, 5, 2, 2), nn.LayerNorm(5), nn.Linear(5, 3)

        def forward(self, x):
            return self.head(self.norm(self.patch(x).movedim(1, -1)).square().mean((1, 2)))

    model = filled(Last())
    _, layer, (a, _) = found(model, X)
    assert layer is model.norm
    torch.testing.assert_close(a, model.norm(model.patch(X).movedim(1, -1)).movedim(-1, 1).detach())


def test_series_and_volumes_have_maps():
    for convolution, x in ((nn.Conv1d, normal(2, 2, 8, seed=1)), (nn.Conv3d, normal(2, 2, 4, 6, 4, seed=1))):
        size = 3 * x[0, 0].numel() // 2 ** (x.dim() - 2)
        model = filled(nn.Sequential(convolution(2, 3, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(size, 3)))
        _, layer, (a, g) = found(model, x)
        assert layer is model[1]
        cam = cam_weights(a, g).relu()
        mode = "linear" if x.dim() == 3 else "trilinear"
        result = fringe.attribute(model, x, method="gradcam")
        torch.testing.assert_close(result.values.sum(1), functional.interpolate(cam, x.shape[2:], mode=mode)[:, 0])


def test_vision_transformers_of_torchvision():
    torchvision = imported("torchvision")
    x = normal(2, 3, 32, 32, seed=2).float()
    torch.manual_seed(0)
    vit = torchvision.models.VisionTransformer(32, 8, 2, 2, 16, 32, num_classes=3)
    nn.init.normal_(vit.heads[0].weight)  # zeros at first
    _, layer, (a, _) = found(vit.eval(), x)
    assert layer is vit.encoder.layers[1].ln_1
    assert a.shape == (2, 16, 4, 4)
    swin = torchvision.models.swin_transformer.SwinTransformer([4, 4], 8, [1, 1], [2, 2], [2, 2], num_classes=3).eval()
    _, layer, (a, _) = found(swin, x)
    assert a.shape == (2, 16, 4, 4)
    assert layer is swin.permute  # the norm with its channels first


def test_vision_transformers_of_transformers():
    transformers = imported("transformers")
    x = normal(2, 3, 32, 32, seed=2).float()
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    images = {"image_size": 32, "patch_size": 8, "num_labels": 3}
    for name in ("ViT", "DeiT", "Dinov2"):
        config = getattr(transformers, f"{name}Config")(**sizes, **images)
        model = getattr(transformers, f"{name}ForImageClassification")(config).eval()
        _, layer, (a, g) = found(model, x)
        assert (type(layer), a.shape) == (nn.LayerNorm, (2, 16, 4, 4)), name
        assert bool((g != 0).flatten(1).any(1).all())
    config = transformers.SwinConfig(
        image_size=32, patch_size=4, embed_dim=8, depths=[1, 1], num_heads=[2, 2], window_size=2, num_labels=3
    )
    model = transformers.SwinForImageClassification(config).eval()
    _, layer, (a, _) = found(model, x)
    assert a.shape == (2, 16, 4, 4)


def test_vision_transformers_of_timm():
    timm = imported("timm")
    x = normal(2, 3, 32, 32, seed=2).float()
    model = timm.models.VisionTransformer(32, 8, num_classes=3, embed_dim=16, depth=2, num_heads=2).eval()
    _, layer, (a, _) = found(model, x)
    assert layer is model.blocks[1].norm1
    assert a.shape == (2, 16, 4, 4)


def test_a_layer_that_runs_twice_is_not_found():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.relu, self.head = nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Linear(3, 3)

        def forward(self, x):
            return self.head(self.relu(self.relu(self.conv(x)) - 0.1).mean((2, 3)))

    model = filled(Twice())
    assert found(model, X)[1] is model.conv
    named = fringe.attribute(model, X, method=GradCAM(layer="relu"), target=TARGET)  # its last run
    assert (named.values - fringe.attribute(model, X, method="gradcam", target=TARGET).values).abs().max() > 1e-6


def test_a_convolution_of_parts_of_an_image_is_not_found():
    class Parts(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.part, self.head = nn.Conv2d(2, 4, 3), nn.Conv2d(2, 2, 3), nn.Linear(4, 3)

        def forward(self, x):
            heads = self.part(self.conv(x).unflatten(1, (2, 2)).flatten(0, 1))
            return self.head(heads.mean((2, 3)).view(len(x), 4))

    model = filled(Parts())
    assert found(model, X)[1] is model.conv


@pytest.mark.parametrize("method", ["gradcam", "layercam", "hirescam"])
def test_what_has_no_layer_in_space_is_refused(method):
    flat = filled(nn.Sequential(nn.Flatten(), nn.Linear(128, 3)))
    assert found(flat, X)[1] is None
    with pytest.raises(InputError, match=r"no layer with activations in space for inputs of shape \(2, 8, 8\)"):
        fringe.attribute(flat, X, method=method)
    rows = filled(nn.Linear(4, 3))
    assert found(rows, normal(2, 4))[1] is None


def test_a_named_layer_must_exist_run_and_lie_in_space():
    net = filled(ConvNet())
    net.unused = nn.Conv2d(2, 2, 1).double().eval()
    for name, message in (
        ("second.9", "the model has no module 'second.9'; did you mean 'second."),
        ("zzz", r"the model has no module 'zzz'; its named_modules\(\) lists the names"),
        ("head", r"the layer 'head' gives activations of shape \(3, 3\), expected activations in space"),
        ("unused", "the layer 'unused' does not run"),
    ):
        with pytest.raises(InputError, match=message):
            fringe.attribute(net, X, method=GradCAM(layer=name))


def test_the_maps_are_captums():
    attr = pytest.importorskip("captum.attr")
    net = filled(ConvNet())
    coarse = attr.LayerGradCam(net, net.second).attribute(X, target=TARGET, relu_attributions=True)
    large = attr.LayerAttribution.interpolate(coarse.detach(), (8, 8), "bilinear")
    ours = fringe.attribute(net, X, method="gradcam", target=TARGET)
    torch.testing.assert_close(ours.values.sum(1, keepdim=True), large, rtol=1e-9, atol=1e-12)
    guided = attr.GuidedGradCam(net, net.second).attribute(X, target=TARGET, interpolate_mode="bilinear")
    backward = attr.GuidedBackprop(net).attribute(X, target=TARGET)
    torch.testing.assert_close(2 * ours.values * backward, guided.double(), rtol=1e-9, atol=1e-12)
