"""Class activation maps: layers, grids, gradients and methods, against their definitions and other libraries."""

import importlib.util

import pytest
import torch
from attribution_toys import ConvNet, filled
from torch import nn
from torch.nn import functional

import fringe
from fringe import Classifier, GradCAM, HiResCAM, InputError, LayerCAM
from fringe.attribution._cam import cam_maps, cam_weights, find_cam_layer, upsample
from fringe.models import import_torchvision
from fringe.paths import Problem
from toys import normal

X, TARGET = normal(3, 2, 8, 8, seed=7), torch.tensor([2, 0, 1])


def problem_of(model, x=X, **more):
    return Problem.of(Classifier(model, **{k: more.pop(k) for k in ("batch_size",) if k in more}), x, **more)


def at_layer(problem, layer):
    """Activations (B, C, *grid) and gradients (B, K, C, *grid) that are weighed."""
    parts = []
    maps, _ = cam_maps(problem, layer, lambda a, g: (parts.append((a, g)), cam_weights(a, g))[1])
    a, g = (torch.cat(column) for column in zip(*parts, strict=True))
    torch.testing.assert_close(maps, cam_weights(a, g))
    return a, g


def found(model, x):
    problem = problem_of(model, x)
    with problem.model.session(x.device):
        layer = find_cam_layer(problem)
        return problem, layer, None if layer is None else at_layer(problem, layer)


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
        a, g = at_layer(problem, layer)
        frame = (1, 3)  # of one image: all positions, and half of them along each axis
        assert (model.passes.forward - before[0] - frame[0], model.passes.vjp - before[1] - frame[1]) == (4, 7)
        before = model.passes.forward, model.passes.vjp
        assert find_cam_layer(problem, "second") is net.second
        assert (model.passes.forward, model.passes.vjp) == before  # a named layer is not looked for
    assert layer is net.second
    assert sizes == [1, 1, 2, 1]
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


def test_a_layer_that_runs_once_is_found_before_one_that_runs_twice():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.relu, self.head = nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Linear(3, 3)

        def forward(self, x):
            return self.head(self.relu(self.relu(self.conv(x)) - 0.1).mean((2, 3)))

    model = filled(Twice())
    assert found(model, X)[1] is model.conv
    named = fringe.attribute(model, X, method=GradCAM(layer="relu"), target=TARGET)  # its last run has the evidence
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


# -- layers that see only a part of the evidence, or run several times ------------------------------------------------


class Shared(nn.Module):
    """One backbone for both channels of an image; ``view`` changes what it gets of the second."""

    def __init__(self, view=lambda x: x):
        super().__init__()
        layers = (nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(4, 5, 3, padding=1))
        self.backbone, self.head, self.view = nn.Sequential(*layers), nn.Linear(10, 3), view

    def forward(self, x):
        one, two = (self.backbone(z).square().mean((2, 3)) for z in (x[:, :1], self.view(x[:, 1:])))
        return self.head(torch.cat([one, two], 1))


def test_all_runs_of_a_layer_count():
    net, x = filled(Shared()), normal(3, 2, 16, 16, seed=7)
    one, two = (net.backbone(z).detach().requires_grad_(True) for z in (x[:, :1], x[:, 1:]))
    logits = net.head(torch.cat([one.square().mean((2, 3)), two.square().mean((2, 3))], 1))
    g = torch.autograd.grad(logits.gather(1, TARGET[:, None]).sum(), (one, two))
    each = [
        (gradient.mean((2, 3), keepdim=True) * z).sum(1, keepdim=True)
        for gradient, z in zip(g, (one, two), strict=True)
    ]
    assert all(cam.norm() > 0.1 * sum(each).norm() for cam in each)
    for layer in ("auto", "backbone", "backbone.3"):
        result = fringe.attribute(net, x, method=GradCAM(layer=layer), target=TARGET, batch_size=2)
        expected = functional.interpolate(sum(each).relu(), (16, 16), mode="bilinear")
        torch.testing.assert_close(result.values.sum(1, keepdim=True), expected.detach(), rtol=1e-9, atol=1e-12)
        name = "backbone" if layer == "auto" else layer
        assert result.settings["layer"] == name
        assert all(advice.endswith(f"; the layer is {name}") for advice in result.advice)


VIEWS = {
    "flipped": lambda x: x.flip(-1),
    "upside down": lambda x: x.flip(-2),
    "turned": lambda x: x.rot90(1, (2, 3)),
    "transposed": lambda x: x.mT,
    "cropped": lambda x: functional.interpolate(x[..., 4:12, 4:12], scale_factor=2),
    "a corner": lambda x: functional.interpolate(x[..., :9, :9], size=(16, 16), mode="bilinear"),
}


@pytest.mark.parametrize("method", ["gradcam", fringe.IntegratedGradients(focus="cam")])
@pytest.mark.parametrize("view", VIEWS)
def test_a_layer_that_sees_another_view_of_the_image_is_refused(view, method):
    x, message = normal(3, 2, 16, 16, seed=7), "'backbone' sees the image flipped, turned, cropped or enlarged"
    with pytest.raises(InputError, match=rf"layer: the layer {message} in one of its 2 runs; .* explain one view"):
        fringe.attribute(filled(Shared(VIEWS[view])), x, method=method)
    once = nn.Sequential(View(VIEWS[view]), nn.Conv2d(2, 4, 3, padding=1), nn.Flatten(), nn.Linear(4 * 16 * 16, 3))
    with pytest.raises(InputError, match="layer: the layer '1' sees the image flipped, turned, cropped or enlarged;"):
        fringe.attribute(filled(once), x, method=method)


class View(nn.Module):
    def __init__(self, view):
        super().__init__()
        self.forward = view


def test_the_image_as_it_is_is_no_other_view():
    """Positions that each see the whole image, dead layers, images of one colour, crops below a position."""
    x = normal(2, 2, 16, 16, seed=7)
    mixed = (nn.Conv2d(2, 6, 4, 4), nn.Flatten(2), nn.Linear(16, 16), nn.Unflatten(2, (4, 4)))
    dead = nn.Conv2d(2, 4, 3, padding=1)
    nets = (
        nn.Sequential(*mixed, nn.Flatten(), nn.Linear(6 * 16, 3)),
        nn.Sequential(dead, nn.ReLU(), nn.Flatten(), nn.Linear(4 * 256, 3)),
        nn.Sequential(View(lambda x: x[..., 1:-1, 1:-1]), nn.Conv2d(2, 4, 2, 2), nn.Flatten(), nn.Linear(4 * 49, 3)),
        nn.Sequential(View(lambda x: x.roll(2, -1)), nn.Conv2d(2, 4, 4, 4), nn.Flatten(), nn.Linear(4 * 16, 3)),
    )
    for net in nets:
        for image in (x, 0 * x + 3.0):
            fringe.attribute(filled(net), image, method="hirescam")
    with torch.no_grad():
        dead.bias.fill_(-100.0)
    fringe.attribute(nets[1], x, method=HiResCAM(layer="1"))


def test_a_layer_on_several_grids_is_refused():
    class Pyramid(Shared):
        def forward(self, x):
            one, two = (self.backbone(z[:, :1]).mean((2, 3)) for z in (x, x[..., ::2, ::2]))
            return self.head(torch.cat([one, two], 1))

    message = r"'backbone' gives activations of shape \(2, 5, 8, 8\) and \(2, 5, 4, 4\), expected .* on one grid"
    with pytest.raises(InputError, match=f"^layer: the layer {message}"):
        fringe.attribute(filled(Pyramid()), normal(2, 2, 16, 16), method="gradcam")


class Streams(nn.Module):
    """Two linear streams of which the last one has this weight."""

    def __init__(self, weight):
        super().__init__()
        self.one, self.two, self.weight = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(2, 3, 3, padding=1), weight

    def forward(self, x):
        return self.one(x).mean((2, 3)) + self.weight * self.two(x).mean((2, 3))


@pytest.mark.filterwarnings("error:.*does not pass through", "ignore:.*more than 2.25 times")
@pytest.mark.parametrize("method", ["gradcam", fringe.IntegratedGradients(focus="cam")])
def test_the_evidence_past_a_layer_is_measured(method):
    x, net = normal(2, 2, 8, 8, seed=5), filled(Streams(0.1))
    g = [
        torch.autograd.grad(s(z).mean((2, 3))[:, 1].sum(), z)[0]
        for s, z in ((s, x.clone().requires_grad_(True)) for s in (net.one, net.two))
    ]
    share = float(g[0][0].norm() / (g[0][0].norm() + 0.1 * g[1][0].norm()))
    assert share > 0.8
    with pytest.warns(UserWarning, match=rf"does not pass through the layer 'two' \({share:.0%} for image 0, ") as seen:
        result = fringe.attribute(net, x, method=method, target=1)
    assert {warning.filename for warning in seen} == {__file__}
    note = f"the layer is two, and {share:.0%} of the gradient of the score in the input does not pass through it"
    assert all(note in advice for advice in result.advice)
    weak = fringe.attribute(filled(Streams(10.0)), x, method=method, target=1)
    assert all("the layer is two" in advice and "does not pass" not in advice for advice in weak.advice)


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
