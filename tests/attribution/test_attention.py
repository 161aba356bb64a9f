"""Maps of attention: LeGrad and attention rollout, against closed forms and literal transcriptions in float64."""

import importlib.util

import pytest
import torch
from attribution_toys import filled
from torch import nn
from torch.nn import functional

import fringe
from fringe import AttentionRollout, InputError, LeGrad
from fringe.models import import_torchvision
from fringe.testing import _checks, check_attributor
from toys import normal

X, TARGET = normal(3, 2, 8, 12, seed=3), torch.tensor([2, 0, 1])
BOTH = (LeGrad(), AttentionRollout())


class Vision(nn.Module):
    """A vision transformer for images (N, 2, H, W): patches of 2 x 2 pixels after ``extra`` other tokens; the score is
    read from the first token, or from the mean of all."""

    def __init__(self, extra=1, mean=False, layers=2, heads=2):
        super().__init__()
        self.patch, self.extra, self.mean = nn.Conv2d(2, 6, 2, 2), nn.Parameter(torch.zeros(1, extra, 6)), mean
        layer = nn.TransformerEncoderLayer(6, heads, 12, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(6), nn.Linear(6, 3)

    def tokens(self, x):
        return torch.cat([self.extra.expand(len(x), -1, -1), self.patch(x).flatten(2).mT], 1)

    def read(self, z):
        return self.head(self.norm(z).mean(1) if self.mean else self.norm(z)[:, 0])

    def forward(self, x):
        return self.read(self.blocks(self.tokens(x)))


def attended(layer, z, attention=None):
    """A layer of this network, written out, and its attention (heads, N, N); of one image, tokens z (N, C)."""
    own, heads = layer.self_attn, layer.self_attn.num_heads
    q, k, v = (
        part.unflatten(1, (heads, -1)).movedim(1, 0)
        for part in (layer.norm1(z) @ own.in_proj_weight.T + own.in_proj_bias).chunk(3, 1)
    )
    if attention is None:
        scores = q @ k.mT / q.shape[2] ** 0.5
        attention = (scores.exp() / scores.exp().sum(2, keepdim=True)).detach().requires_grad_(True)
    z = z + own.out_proj((attention @ v).movedim(0, 1).flatten(1))
    return z + layer.linear2(layer.linear1(layer.norm2(z)).relu()), attention


def layers_of(model, x):
    """For one image, the tokens (N, C) and the attention (heads, N, N) of every layer."""
    z, found = model.tokens(x[None])[0], []
    for layer in model.blocks.layers:
        z, attention = attended(layer, z)
        found.append((z, attention))
    return found


def on_pixels(tokens, extra, grid, sides):
    """Relevance (N,) of tokens on the grid of patches, scaled up: a map of two channels that share it."""
    large = functional.interpolate(tokens[extra:].view(1, 1, *grid), sides, mode="bilinear")[0]
    return large.expand(2, -1, -1) / 2


CASES = [(extra, mean, layers) for extra, mean in ((1, False), (5, False), (0, True), (1, True)) for layers in (1, 3)]


@pytest.mark.parametrize(("extra", "mean", "layers"), CASES)
def test_legrad_is_its_definition(extra, mean, layers):
    model = filled(Vision(extra, mean, layers))
    expected = []
    for x, target in zip(X, TARGET, strict=True):
        relevance = 0
        for z, attention in layers_of(model, x):
            score = model.read(z[None])[0, target]
            (gradient,) = torch.autograd.grad(score, attention, retain_graph=True)
            relevance = relevance + gradient.clamp(min=0).sum((0, 1)) / (gradient.shape[0] * gradient.shape[1])
        expected.append(on_pixels(relevance / layers, extra, (4, 6), (8, 12)))
    found = fringe.attribute(model, X, method="legrad", target=TARGET, batch_size=2)
    torch.testing.assert_close(found.values, torch.stack(expected), rtol=1e-9, atol=1e-14)
    assert found.values.flatten(1).norm(dim=1).min() > 1e-4
    names = "blocks" if layers == 1 else "blocks.layers.0 to blocks.layers.2"
    assert all(advice.endswith(f"; the layers are {names}") for advice in found.advice)


@pytest.mark.parametrize(("extra", "mean", "layers"), CASES)
def test_rollout_is_a_product_of_matrices(extra, mean, layers):
    model, expected = filled(Vision(extra, mean, layers)), []
    for x in X:
        product = torch.eye(24 + extra, dtype=x.dtype)
        for _, attention in layers_of(model, x):
            product = (0.5 * attention.mean(0) + 0.5 * torch.eye(24 + extra)).detach() @ product
        torch.testing.assert_close(product.sum(1), torch.ones(24 + extra, dtype=x.dtype))
        expected.append(on_pixels(product.mean(0) if mean else product[0], extra, (4, 6), (8, 12)))
    found = fringe.attribute(model, X, method="rollout", target=TARGET, batch_size=2)
    torch.testing.assert_close(found.values, torch.stack(expected), rtol=1e-9, atol=1e-14)


class OneHead(nn.Module):
    """One layer of one head without a feed-forward network, with its softmax written by hand."""

    def __init__(self):
        super().__init__()
        self.first = nn.Parameter(torch.zeros(1, 1, 4))
        self.layer, self.head = OneHeadLayer(), nn.Linear(4, 3)

    def forward(self, x):
        patches = x.unflatten(2, (2, 4)).unflatten(4, (3, 4)).mean((3, 5)).flatten(2).mT  # (B, 6, 2)
        z = torch.cat([self.first.expand(len(x), -1, -1), torch.cat([patches, patches.square()], 2)], 1)
        return self.head(self.layer(z)[:, 0])


class OneHeadLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, z):
        return z + torch.softmax(self.q(z) @ self.k(z).mT, -1) @ self.v(z)


def test_one_head_has_a_closed_form():
    """Score w (z_0 + sum_j A_0j v_j) has the slope w v_j in A_0j, and zeros in the other rows."""
    model = filled(OneHead())
    z = []
    with model.layer.register_forward_hook(lambda module, inputs, output: z.append(inputs[0])):
        model(X)
    slope = (model.layer.v(z[0]) * model.head.weight[TARGET][:, None]).sum(2).detach()  # (B, 7)
    expected = torch.stack([on_pixels(row.relu() / 7, 1, (2, 3), (8, 12)) for row in slope])
    found = fringe.attribute(model, X, method="legrad", target=TARGET).values
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-14)
    assert (slope[:, 1:] > 0).any()
    assert (slope[:, 1:] < 0).any()
    attention = torch.softmax(model.layer.q(z[0]) @ model.layer.k(z[0]).mT, -1)[:, 0].detach()
    expected = torch.stack([on_pixels(row / 2, 1, (2, 3), (8, 12)) for row in attention])
    found = fringe.attribute(model, X, method="rollout", target=TARGET).values
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-14)


def test_rollout_is_the_same_for_all_classes_and_legrad_is_not():
    model = filled(Vision())
    for method, same in zip(BOTH, (False, True), strict=True):
        one, other = (fringe.attribute(model, X, method=method, target=k).values for k in (0, 1))
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-14) == same


def test_the_score_of_the_call_counts():
    """The gradient of a difference of logits is the difference of theirs before the negative part is cut off."""
    model = filled(Vision(layers=1))
    pair = fringe.attribute(model, X, method="legrad", target=0, contrast=1).values
    head, difference = model.head, nn.Linear(6, 2).double()
    difference.weight.data = torch.stack([head.weight[0] - head.weight[1], head.weight[2]]).detach()
    model.head = difference.eval()
    torch.testing.assert_close(fringe.attribute(model, X, method="legrad", target=0).values, pair)


def test_passes_are_those_of_the_layers():
    model, calls = filled(Vision(layers=3)), []
    with model.blocks.layers[0].linear1.register_forward_hook(lambda *_: calls.append(1)):
        counts = [fringe.attribute(model, X, method=method, target=TARGET).passes for method in BOTH]
    # one image finds the layers; then a pass, the answer of the last layer as a check, and the head after each layer
    legrad, rollout = ((one.forward, one.vjp) for one in counts)
    assert legrad[0] - rollout[0] == legrad[1] - rollout[1] == 3 * (3 - 1)
    assert len(calls) > 0


class Other(Vision):
    """The same network whose layers are defined in another order, and which adds a number to the tokens of an image."""

    def forward(self, x, shift=0.0):
        z = self.tokens(x) + shift
        for layer in reversed(self.blocks.layers):
            z = layer(z)
        return self.read(z)


@pytest.mark.parametrize("method", BOTH, ids=["legrad", "rollout"])
def test_layers_have_the_order_in_which_they_run_and_each_image_its_arguments(method):
    model, other = filled(Vision()), filled(Other())
    shift = torch.tensor([0.5, -1.0, 0.25]).double().view(3, 1, 1)
    result = fringe.attribute(other, X, method=method, target=TARGET, forward_args=(shift,), batch_size=2)
    found = result.values
    assert result.advice[0].endswith("the layers are blocks.layers.1 to blocks.layers.0")
    model.load_state_dict(other.state_dict())
    model.blocks.layers = nn.ModuleList(reversed(model.blocks.layers))
    for row in range(3):
        model.extra.data, model.patch.bias.data = (v + shift[row, 0, 0] for v in (other.extra, other.patch.bias))
        expected = fringe.attribute(model, X[row : row + 1], method=method, target=TARGET[row : row + 1]).values
        torch.testing.assert_close(found[row : row + 1], expected, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("method", BOTH, ids=["legrad", "rollout"])
def test_a_score_that_reads_no_token_has_a_map_of_zeros(method):
    model = filled(Vision())
    model.head.weight.data[1] = 0
    assert (fringe.attribute(model, X, method=method, target=1).values == 0).all()


def images_of(name):
    if importlib.util.find_spec("torchvision") is not None:
        import_torchvision("this test")
    return pytest.importorskip(name), normal(2, 3, 32, 32, seed=2).float()


def reference(model, x, target, modules, read):
    """LeGrad with the attention of a network's own modules, told apart by hooks: ``modules`` give the layers, and
    ``read`` the logits of tokens."""
    outputs, maps = [], []
    hooks = [
        m.register_forward_hook(lambda m, i, o: outputs.append(o[0] if isinstance(o, tuple) else o)) for m in modules
    ]
    real = torch.softmax

    def softmax(scores, dim=-1, **more):
        maps.append(real(scores, dim).requires_grad_(True))
        return maps[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(functional, "softmax", softmax)
        patch.setattr(
            functional,
            "scaled_dot_product_attention",
            lambda q, k, v, *_, **__: softmax(q @ k.mT / q.shape[-1] ** 0.5) @ v,
        )
        model(x.requires_grad_(True))
    for hook in hooks:
        hook.remove()
    relevance = 0
    for z, attention in zip(outputs, maps, strict=True):
        (g,) = torch.autograd.grad(read(z).gather(1, target[:, None]).sum(), attention, retain_graph=True)
        relevance = relevance + g.relu().mean((1, 2)) / len(maps)
    return torch.stack(
        [functional.interpolate(r[1:].view(1, 1, 4, 4), (32, 32), mode="bilinear")[0] for r in relevance]
    )


def test_vision_transformers_of_torchvision():
    torchvision, x = images_of("torchvision")
    torch.manual_seed(0)
    model = torchvision.models.VisionTransformer(32, 8, 2, 2, 16, 32, num_classes=3).eval()
    nn.init.normal_(model.heads[0].weight)  # zeros at first
    target = torch.tensor([1, 2])
    found = fringe.attribute(model, x, method="legrad", target=target).values
    expected = reference(model, x, target, model.encoder.layers, lambda z: model.heads(model.encoder.ln(z)[:, 0]))
    torch.testing.assert_close(found.sum(1, keepdim=True), expected, rtol=1e-4, atol=1e-7)
    swin = torchvision.models.swin_transformer.SwinTransformer([4, 4], 8, [1, 1], [2, 2], [2, 2], num_classes=3).eval()
    with pytest.raises(InputError, match="no layer with attention among the patches"):  # it is within windows
        fringe.attribute(swin, x, method="legrad")


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["ViT", "DeiT", "Dinov2"])
def test_vision_transformers_of_transformers(name, attention):
    transformers, x = images_of("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    images = {"image_size": 32, "patch_size": 8, "num_labels": 3, "attn_implementation": attention}
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**sizes, **images)
    model = getattr(transformers, f"{name}ForImageClassification")(config).eval()
    target, maps = torch.tensor([1, 2]), {}
    for method in ("legrad", "rollout"):
        found = fringe.attribute(model, x, method=method, target=target)
        assert found.advice[0].endswith("1")
        assert "0 to " in found.advice[0]
        maps[method] = found.values
    model.set_attn_implementation("sdpa" if attention == "eager" else "eager")  # the same network
    for method, values in maps.items():
        again = fringe.attribute(model, x, method=method, target=target).values
        torch.testing.assert_close(again, values, rtol=1e-3, atol=1e-7)
    if name == "ViT":
        layers = next(m for m in model.modules() if isinstance(m, nn.ModuleList))
        model.set_attn_implementation("eager")
        expected = reference(model, x, target, layers, lambda z: model.classifier(model.vit.layernorm(z)[:, 0]))
        torch.testing.assert_close(maps["legrad"].sum(1, keepdim=True), expected, rtol=1e-3, atol=1e-7)


class Bare(Vision):
    """A network of two layers whose sums around attention are in no module of a layer."""

    def forward(self, x):
        z = self.tokens(x)
        for layer in self.blocks.layers:
            z = z + layer.self_attn(z, z, z, need_weights=False)[0]
        return self.read(z)


class Twice(Vision):
    """A network that runs one layer twice."""

    def forward(self, x):
        return self.read(self.blocks.layers[0](self.blocks.layers[0](self.tokens(x))))


class Before(Vision):
    """A network whose first attention is in no module."""

    def forward(self, x):
        z = self.tokens(x)
        return self.read(self.blocks(z + torch.softmax(z @ z.mT, -1) @ z))


@pytest.mark.parametrize("method", BOTH, ids=["legrad", "rollout"])
def test_a_network_without_such_layers_is_refused(method):
    message = f"model: it has no layer with attention among the patches .* {method.label} is for vision transformers"
    convolution = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(180, 3))
    with pytest.raises(InputError, match=message):
        fringe.attribute(filled(convolution), X, method=method)
    layer = nn.TransformerEncoderLayer(12, 2, 12, dropout=0.0, batch_first=True)
    series = filled(nn.Sequential(layer, nn.Flatten(), nn.Linear(72, 3)))
    with pytest.raises(InputError, match=message):  # it is not known which axis is that of tokens
        fringe.attribute(series, normal(2, 6, 12), method=method)
    with pytest.raises(InputError, match="the 2 modules with its attention are not all that turns patches into"):
        fringe.attribute(filled(Bare()), X, method=method)
    with pytest.raises(InputError, match="modules with its attention are not all that turns patches into"):
        fringe.attribute(filled(Before()), X, method=method)
    with pytest.raises(InputError, match=message):
        fringe.attribute(filled(Twice()), X, method=method)
    model = filled(Vision())
    with pytest.raises(InputError, match=f"{method.label} reads the layers of a torch.nn.Module"):
        fringe.attribute(lambda x: model(x), X, method=method)


def test_the_network_is_given_back_as_it_was():
    for model, fails in ((filled(Vision()), False), (filled(Bare()), True)):
        before = [set(vars(module)) for module in model.modules()]
        for method in BOTH:
            try:
                fringe.attribute(model, X, method=method)
            except InputError:
                assert fails
        assert [set(vars(module)) for module in model.modules()] == before
        assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("method", BOTH, ids=["legrad", "rollout"])
def test_it_keeps_the_contract(method, monkeypatch):
    """With a transformer in place of the networks of images."""
    for name in ("smooth_cnn", "relu_cnn"):
        monkeypatch.setattr(_checks, name, Vision)
    class_alone = (
        {"explained_class": "the map is the same for all classes"} if isinstance(method, AttentionRollout) else {}
    )
    refused = dict.fromkeys(
        ("constant_model", "unread_inputs", "affine_score"), "a network without attention is refused"
    )
    results = check_attributor(method, expected_failures={**refused, **class_alone})
    assert all(result.detail for result in results)
