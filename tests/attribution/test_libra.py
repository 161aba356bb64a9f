"""LibraGrad: balanced gradients are complete, those of its formulas, and of the call alone."""

import pytest
import torch
from attribution_toys import filled
from torch import nn
from torch.nn import functional

import fringe
from fringe import InputError, IntegratedGradients, Libra
from fringe._network.balanced_gradients import balance_gradients
from fringe.models import import_transformers
from toys import normal

X, TARGET = normal(3, 2, 4, 6, seed=3), torch.tensor([2, 0, 1])
GATES = {"gelu": nn.GELU(), "tanh": nn.GELU("tanh"), "silu": nn.SiLU(), "relu": nn.ReLU()}


class Vision(nn.Module):
    """A vision transformer of patches of 2 x 2 pixels with two layers and this activation, read from their mean."""

    def __init__(self, activation):
        super().__init__()
        self.patch = nn.Conv2d(2, 6, 2, 2)
        layer = nn.TransformerEncoderLayer(6, 2, 12, 0.0, activation, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(6), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.patch(x).flatten(2).mT)).mean(1))


def balanced(model, x):
    """The same network with its gates as constants, written out."""

    def norm(z, layer):
        centred = z - z.mean(2, keepdim=True)
        return (
            centred / (centred.square().mean(2, keepdim=True) + layer.eps).sqrt().detach() * layer.weight + layer.bias
        )

    z = model.patch(x).flatten(2).mT
    for layer in model.blocks.layers:
        own = layer.self_attn
        inputs = functional.linear(norm(z, layer.norm1), own.in_proj_weight, own.in_proj_bias)
        q, k, v = (part.unflatten(2, (2, 3)).transpose(1, 2) for part in inputs.chunk(3, 2))
        attention = (q @ k.mT / 3**0.5).softmax(3).detach()
        z = z + own.out_proj((attention @ v).transpose(1, 2).flatten(2))
        u = layer.linear1(norm(z, layer.norm2))
        z = z + layer.linear2(u * (layer.activation(u) / u).detach())
    return model.head(norm(z, model.norm).mean(1))


@pytest.mark.parametrize("kind", GATES)
def test_input_and_biases_times_gradients_sum_to_the_output(kind):
    model = filled(Vision(GATES[kind])).eval().requires_grad_(True)
    biases = [value for name, value in model.named_parameters() if name.endswith("bias")]
    for balance in (True, False):
        x = X[:1].clone().requires_grad_(True)
        with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
            score = model(x)[0, 2]
        if balance:  # two of attention, five normalisations, and two activations, of which a rectifier is none
            assert balance_gradients(score) == (7 if kind == "relu" else 9)
        gradients = torch.autograd.grad(score, [x, *biases])
        total = sum((g * value).sum() for g, value in zip(gradients, [x, *biases], strict=True))
        assert torch.isclose(total, score, rtol=1e-9, atol=1e-12) == balance


@pytest.mark.parametrize("kind", GATES)
def test_its_gradients_are_those_of_constant_gates(kind):
    model = filled(Vision(GATES[kind])).eval()
    expected = 0
    for k in range(4):
        x = (X * (k + 0.5) / 4).requires_grad_(True)
        score = balanced(model, x).gather(1, TARGET[:, None]).sum()
        expected = expected + torch.autograd.grad(score, x)[0] * X / 4
    ig = IntegratedGradients(rule="midpoint", steps=4)
    before = fringe.attribute(model, X, method=ig, target=TARGET, baseline=0.0)
    found = fringe.attribute(model, X, method=Libra(ig), target=TARGET, baseline=0.0, batch_size=2)
    torch.testing.assert_close(found.values, expected, rtol=1e-9, atol=1e-12)
    assert (found.values - before.values).norm() > 0.01 * before.values.norm()
    assert set(found.verdict) == {"unchecked"}
    assert all(advice.endswith("; its gradients are balanced") for advice in found.advice)
    again = fringe.attribute(model, X, method=ig, target=TARGET, baseline=0.0)  # the change is that of the call
    torch.testing.assert_close(again.values, before.values, rtol=0, atol=0)


class Gated(nn.Module):
    """Tokens as in Llama: root-mean-square normalisation, written out or PyTorch's own, and a gated linear unit."""

    def __init__(self, activation, own):
        super().__init__()
        self.norm = nn.RMSNorm(6) if own else lambda z: z * (z.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
        self.gate, self.up, self.down = nn.Linear(6, 8), nn.Linear(6, 8, bias=False), nn.Linear(8, 6)
        self.activation, self.head = activation, nn.Linear(6, 3, bias=False)

    def forward(self, x):
        z = self.norm(x)
        return self.head(self.norm(x + self.down(self.activation(self.gate(z)) * self.up(z))).sum(1))


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("kind", GATES)
def test_gated_units_and_root_mean_squares_are_complete(kind, own):
    model = filled(Gated(GATES[kind], own)).eval().requires_grad_(True)
    x = normal(1, 4, 6, seed=1).requires_grad_(True)
    score = model(x)[0, 2]
    assert balance_gradients(score) == 3 + (kind != "relu")  # two normalisations, the product, and the activation
    inputs = [x, model.gate.bias, model.down.bias]
    gradients = torch.autograd.grad(score, inputs)
    total = sum((g * value).sum() for g, value in zip(gradients, inputs, strict=True))
    torch.testing.assert_close(total, score, rtol=1e-9, atol=1e-12)


def test_a_product_with_a_parameter_is_not_gated():
    """Also where the parameter takes gradients, as in a function that fringe does not freeze."""
    layer, scale = filled(nn.Linear(6, 4)), nn.Parameter(normal(4, seed=5))
    x = normal(1, 6, seed=4)
    maps = []
    for is_balanced in (False, True):
        score = (layer(x.requires_grad_(True)).relu() * scale).sum()
        assert not is_balanced or balance_gradients(score) == 0
        maps.append(torch.autograd.grad(score, x)[0])
    torch.testing.assert_close(maps[1], maps[0], rtol=0, atol=0)


def test_a_llama_is_complete():
    pytest.importorskip("transformers")
    transformers = import_transformers()
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.LlamaConfig(vocab_size=11, initializer_range=0.5, attn_implementation="eager", **sizes)
    model = transformers.LlamaForCausalLM(config).double().eval()
    x = normal(1, 5, 8, seed=2).requires_grad_(True)
    score = model(inputs_embeds=x).logits[0, -1, 3]
    assert balance_gradients(score) == 2 * 5 + 1  # of a layer: two normalisations, attention, activation, product
    (gradient,) = torch.autograd.grad(score, x)
    # but for the constant in the normalisations, and the softmax, that transformers computes in single precision
    torch.testing.assert_close((gradient * x).sum(), score, rtol=1e-5, atol=1e-6)


def test_normalisations_of_several_axes_without_weights_and_activations_at_zero_are_complete():
    norm, x = nn.LayerNorm((2, 4), elementwise_affine=False), normal(3, 2, 4, seed=1)
    x[:, 0] = 0
    for layer, inputs in ((norm, x), (nn.Sequential(norm, nn.GELU()), x), (nn.GELU(), x), (nn.SiLU(), x)):
        inputs = inputs.clone().requires_grad_(True)
        output = layer(inputs)
        assert balance_gradients(output) > 0
        (gradient,) = torch.autograd.grad(output.sum(), inputs)
        assert gradient.isfinite().all()
        torch.testing.assert_close((gradient * inputs).sum(), output.sum(), rtol=1e-9, atol=1e-12)
        if layer is not norm and not isinstance(layer, nn.Sequential):
            assert (gradient[:, 0] == 0.5).all()  # the gate of zero


def test_a_gate_without_a_gradient_is_left_alone():
    """A layer normalisation whose input needs no gradient, and one that the score does not read."""
    norm = filled(nn.LayerNorm(4)).requires_grad_(True)
    output = norm(normal(3, 4, seed=1)).sum()
    balance_gradients(output)
    (bias,) = torch.autograd.grad(output, norm.bias)
    assert torch.equal(bias, torch.full((4,), 3.0, dtype=torch.float64))


class Softmax(torch.autograd.Function):
    """A function of the model's author, which saved nothing under the names of PyTorch."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


def test_functions_of_the_author_are_left_alone():
    assert balance_gradients(Softmax.apply(X.clone().requires_grad_(True))) == 0


def test_a_softmax_of_classes_is_no_gate():
    model = nn.Sequential(nn.Flatten(), filled(nn.Linear(48, 3)), nn.Softmax(1))
    assert balance_gradients(model(X.clone().requires_grad_(True))) == 0
    net = filled(nn.Sequential(nn.Flatten(), nn.Linear(48, 3)))
    found = fringe.attribute(net, X, method="libra:ig")
    torch.testing.assert_close(found.values, fringe.attribute(net, X, method="ig").values)
    assert all(advice.endswith("; the network has nothing that libra balances") for advice in found.advice)


@pytest.mark.parametrize(("name", "message"), [("rise", "takes no gradients"), ("diffusion", "Jacobian-vector")])
def test_a_method_of_more_or_less_than_gradients_is_refused(name, message):
    with pytest.raises(InputError, match=f"method: {name} .*{message}.* as in libra:ig"):
        fringe.attribute(filled(Vision(nn.ReLU())), X, method=f"libra:{name}")
