"""``zennit:NAME`` against zennit and closed forms, and ``lxt:attnlrp`` against its rules; where they are installed."""

import importlib.util
import subprocess
import sys

import pytest
import torch
from attribution_toys import filled
from torch import nn

import fringe
from fringe import AttnLRP, InputError, ZennitMethod
from fringe.models import import_torchvision, import_transformers
from toys import normal


def convolutions():
    return filled(
        nn.Sequential(
            nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 4, 3), nn.ReLU(),
            nn.Flatten(), nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, 3),
        )
    )  # fmt: skip


X, TARGET = normal(3, 2, 8, 8, seed=7), torch.tensor([2, 0, 1])


class TestZennit:
    @pytest.fixture(autouse=True)
    def zennit(self):
        if importlib.util.find_spec("zennit") is None:
            pytest.skip("zennit is not installed")
        import_torchvision()  # zennit imports it, and it may be of another build than torch
        self.attribution = pytest.importorskip("zennit.attribution")
        self.composites = pytest.importorskip("zennit.composites")
        self.canonizers = pytest.importorskip("zennit.canonizers")

    @pytest.mark.parametrize("name", [name for name in ZennitMethod.presets if name != "epsilon_gamma_box"])
    def test_is_zennits(self, name):
        model = convolutions()
        composite = self.composites.COMPOSITES[name](canonizers=[self.canonizers.SequentialMergeBatchNorm()])
        start = torch.zeros(3, 3, dtype=torch.float64)
        start[torch.arange(3), TARGET] = model(X).detach()[torch.arange(3), TARGET]
        with self.attribution.Gradient(model, composite) as attributor:
            _, expected = attributor(X.clone(), start)
        result = fringe.attribute(model, X, method=f"zennit:{name}", target=TARGET, batch_size=2)
        torch.testing.assert_close(result.values, expected, rtol=1e-9, atol=1e-12)
        zero = (expected == 0).flatten(1).all(1).tolist()
        relevance = start.sum(1)
        gap = expected.flatten(1).sum(1) - relevance
        torch.testing.assert_close(result.completeness_gap, gap, rtol=1e-6, atol=1e-9)
        coarse = (gap.abs() > 0.05 * relevance.abs()).tolist()
        kinds = ["stalled" if z else "coarse" if c else "ok" for z, c in zip(zero, coarse, strict=True)]
        assert result.verdict == tuple(kinds)

    def test_needs_no_import_before_it(self):
        code = (
            "import fringe, torch; x = torch.randn(2, 6); "
            "fringe.attribute(torch.nn.Linear(6, 3).eval(), x, method='zennit:epsilon_plus')"
        )
        subprocess.run([sys.executable, "-c", code], check=True, timeout=120)

    def test_the_box_rule_takes_the_bounds_of_the_input_space(self):
        model, space = convolutions(), fringe.InputSpace(-4.0, 4.0)
        low, high = torch.full_like(X, -4), torch.full_like(X, 4)
        merge = [self.canonizers.SequentialMergeBatchNorm()]
        composite = self.composites.EpsilonGammaBox(low, high, canonizers=merge)
        start = nn.functional.one_hot(TARGET, 3) * model(X).detach()
        with self.attribution.Gradient(model, composite) as attributor:
            _, expected = attributor(X.clone(), start)
        given = {"method": "zennit:epsilon_gamma_box", "target": TARGET}
        result = fringe.attribute(model, X, space=space, **given)
        torch.testing.assert_close(result.values, expected, rtol=1e-9, atol=1e-12)
        assert (fringe.attribute(model, X, **given).values - expected).norm() > 1e-3 * expected.norm()

    def test_the_epsilon_rule_of_a_linear_network_is_the_input_times_the_weight(self):
        model = filled(nn.Sequential(nn.Flatten(), nn.Linear(128, 3)))
        result = fringe.attribute(model, X, method="zennit:epsilon_plus", target=TARGET)
        torch.testing.assert_close(result.values.flatten(1), X.flatten(1) * model[1].weight[TARGET], rtol=1e-5, atol=0)
        missed = (model[1].bias[TARGET] / model(X)[torch.arange(3), TARGET]).abs().detach()
        torch.testing.assert_close(result.completeness_residual, missed, rtol=1e-4, atol=1e-5)
        model[1].bias.data.zero_()
        kept = fringe.attribute(model, X, method="zennit:epsilon_plus", target=TARGET)
        assert kept.verdict == ("ok",) * 3  # without a bias the sum is the logit

    def test_a_merge_that_fails_leaves_the_weights_as_they_are(self):
        """As in a DenseNet: the second normalisation is of other channels than the layer that is defined before it."""
        model = filled(Dense())
        before, expected = {name: value.clone() for name, value in model.state_dict().items()}, model(X)
        with pytest.raises(InputError, match="model: zennit cannot merge a batch normalisation into the layer that is"):
            fringe.attribute(model, X, method="zennit:epsilon_plus")
        assert list(model.state_dict()) == list(before)
        assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())
        assert torch.equal(model(X), expected)

    def test_a_network_that_a_merge_changes_is_refused(self):
        """The normalisation follows its layer in the definition, but not alone: a sum reads that layer, too."""
        model = filled(PreActivation())
        with pytest.raises(InputError, match=r"model: with the rules its logits change by \d+\.\d%, so the map"):
            fringe.attribute(model, X, method="zennit:epsilon_plus")
        model.norm = nn.Identity().eval()
        assert fringe.attribute(model, X, method="zennit:epsilon_plus").values.isfinite().all()

    def test_a_network_without_a_layer_that_has_a_rule_is_refused(self):
        """Its map would be the gradient times the logit."""
        bare = nn.Module()
        bare.weight, bare.forward = nn.Parameter(normal(128, 3)), lambda x: x.flatten(1) @ bare.weight
        with pytest.raises(InputError, match=r"model: zennit has no rules for its layers; it knows torch\.nn\.Linear"):
            fringe.attribute(bare.eval(), X, method="zennit:epsilon_plus")
        with pytest.raises(InputError, match=r"model: zennit has no rule for torch\.nn\.MultiheadAttention; choose"):
            fringe.attribute(filled(Reader()), X, method="zennit:epsilon_plus")

    def test_needs_a_module(self):
        model = convolutions()
        with pytest.raises(InputError, match=r"zennit:epsilon_plus reads the layers of a torch\.nn\.Module"):
            fringe.attribute(lambda x: model(x), X, method="zennit:epsilon_plus")


class Dense(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second = nn.Conv2d(2, 3, 3, bias=False), nn.BatchNorm2d(3), nn.Conv2d(3, 4, 1)
        self.last, self.head = nn.BatchNorm2d(7), nn.Linear(7, 3)

    def forward(self, x):
        x = self.norm(self.first(x))
        return self.head(self.last(torch.cat([x, self.second(x)], 1)).relu().mean((2, 3)))


class PreActivation(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second = nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Conv2d(3, 3, 1)
        self.head = nn.Linear(3, 3)

    def forward(self, x):
        x = self.first(x)
        return self.head((x + self.second(self.norm(x).relu())).mean((2, 3)))


class Reader(nn.Module):
    """One block of a transformer over the rows of an image."""

    def __init__(self):
        super().__init__()
        self.norm, self.gelu = nn.LayerNorm(8), nn.GELU()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        z = self.norm(x.flatten(1, 2))
        return self.head(self.gelu(z + self.attention(z, z, z)[0]).mean(1))


def literal(model, x, target):
    """The input times the gradient of the network with queries, keys, deviations and the share of GELU held fixed."""
    x = x.clone().requires_grad_(True)
    z = x.flatten(1, 2)
    centred = z - z.mean(-1, keepdim=True)
    deviation = (centred.square().mean(-1, keepdim=True) + model.norm.eps).sqrt()
    z = centred / deviation.detach() * model.norm.weight + model.norm.bias
    z = z + model.attention(z.detach(), z.detach(), z)[0]
    z = z * (nn.functional.gelu(z) / (z + 1e-10)).detach()
    score = model.head(z.mean(1)).gather(1, target[:, None]).sum()
    return x.detach() * torch.autograd.grad(score, x)[0]


class TestAttnLRP:
    @pytest.fixture(autouse=True)
    def lxt(self):
        if importlib.util.find_spec("lxt") is None:
            pytest.skip("lxt is not installed")
        import_transformers()
        pytest.importorskip("lxt.efficient.models", exc_type=ImportError)

    def test_is_the_input_times_the_gradient_with_its_rules(self):
        model = filled(Reader())
        result = fringe.attribute(model, X, method="lxt:attnlrp", target=TARGET, batch_size=2)
        torch.testing.assert_close(result.values, literal(model, X, TARGET), rtol=1e-8, atol=1e-10)
        gradient = fringe.attribute(model, X, method="captum:input_x_gradient", target=TARGET)
        assert (result.values - gradient.values).norm() > 0.1 * gradient.values.norm()

    def test_the_classes_of_torch_are_given_back(self):
        kinds = (nn.LayerNorm, nn.GELU, nn.MultiheadAttention)
        before = [dict(vars(kind)) for kind in kinds]
        model = filled(Reader())
        fringe.attribute(model, X, method=AttnLRP())
        assert [dict(vars(kind)) for kind in kinds] == before

    def test_a_network_without_attention_is_refused(self):
        with pytest.raises(InputError, match="lxt has no rules for its layers; it knows"):
            fringe.attribute(convolutions(), X, method="lxt:attnlrp")
