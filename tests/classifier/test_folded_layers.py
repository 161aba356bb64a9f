"""Normalisations that are computed within the layers before them: the same function, and when they are not."""

import copy
import dataclasses

import pytest
import torch
import torch.nn.functional as F
from classifier_toys import normal
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

import fringe
from fringe import Classifier
from fringe._network.linear_layers import Fold


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.deep, self.norm2 = nn.Conv2d(4, 4, 3, padding=1, groups=4), nn.BatchNorm2d(4, eps=1e-2)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        y = F.relu(self.norm(self.first(x)), inplace=True)
        return self.head(F.silu(y + self.norm2(self.deep(y))).mean((2, 3)))


class Undecided(Residual):
    """Goes another way once it is told to."""

    way = "plain"

    def forward(self, x):
        y = self.first(x)
        if self.way == "elsewhere":
            y = y.exp()
        elif self.way == "nowhere":
            return y.mean((2, 3))
        elif self.way == "other":
            return self.head(self.norm2(y).mean((2, 3)))
        elif self.way == "training":
            return self.head(F.batch_norm(y, None, None, training=True).mean((2, 3)))
        return self.head(F.relu(self.norm(y)).mean((2, 3)))


class Twice(Residual):
    def forward(self, x):
        y = self.first(x)
        return self.head((self.norm(y) * y).mean((2, 3)))


class Listed(Residual):
    def forward(self, x):
        y = self.first(x)
        return self.head(torch.cat([self.norm(y), y[:, :0]], 1).mean((2, 3)))


class Shared(Residual):
    def forward(self, x):
        return self.head((self.norm(self.first(x)) + self.norm2(self.first(x))).mean((2, 3)))


class Checkpointed(Residual):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False)


def flat(*layers):
    return nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(3))


IMAGE, SERIES, VOLUME, ROW = (3, 6, 5), (3, 9), (2, 4, 4, 3), (6,)
FOLDED = {
    "residual": (Residual, IMAGE, 2),
    "padding": (lambda: flat(nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), nn.BatchNorm2d(4)), IMAGE, 1),
    "same": (lambda: flat(nn.Conv2d(3, 4, 3, padding="same"), nn.BatchNorm2d(4, affine=False), nn.GELU()), IMAGE, 1),
    "series": (lambda: flat(nn.Conv1d(3, 4, 3, stride=2), nn.BatchNorm1d(4), nn.Tanh()), SERIES, 1),
    "volume": (lambda: flat(nn.Conv3d(2, 3, 2), nn.BatchNorm3d(3), nn.Softplus()), VOLUME, 1),
    "rows": (lambda: flat(nn.Linear(6, 5, bias=False), nn.BatchNorm1d(5), nn.Tanh()), ROW, 1),
    "shared weights, two norms": (Shared, IMAGE, 0),
    "used twice": (Twice, IMAGE, 0),
    "used in a list": (Listed, IMAGE, 0),
    "norm after another layer": (lambda: flat(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.BatchNorm2d(4)), IMAGE, 0),
    "linear layer over an axis": (lambda: flat(nn.Linear(9, 4), nn.BatchNorm1d(3)), SERIES, 0),
    "no running statistics": (lambda: flat(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False)), IMAGE, 0),
    "no norm": (lambda: flat(nn.Conv2d(3, 4, 3), nn.Tanh()), IMAGE, 0),
}


def made(name, dtype=torch.float64):
    torch.manual_seed(0)
    build, shape, count = FOLDED[name]
    x, model = normal(3, *shape, dtype=dtype), build().to(dtype)
    with torch.no_grad():
        model(x)  # sizes the lazy layers
        for i, m in enumerate(model.modules()):
            if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.running_mean is not None:
                m.running_mean.copy_(normal(*m.running_mean.shape, seed=i))
                m.running_var.copy_(0.1 + normal(*m.running_mean.shape, seed=i + 50).square())
                for one in (m.weight, m.bias) if m.affine else ():
                    one.copy_(normal(*one.shape, seed=i + 90))
    return model.eval(), x, count


class Norms(TorchFunctionMode):
    """Counts normalisations that are computed."""

    count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.count += func is F.batch_norm
        return func(*args, **(kwargs or {}))


def folding(model, **options):
    return Classifier(model, fold_batch_norm=True, **options)


def products(classifier, x):
    """Logits, J'u and J v at ``x``."""
    with classifier.session(x.device):
        point = classifier.linearise(x)
        u, v = normal(*point.value.shape, seed=8), normal(*x.shape, seed=9)
        return point.value, point.vjp(u.to(x)), point.jvp(v.to(x))


@pytest.mark.parametrize("name", FOLDED)
def test_logits_and_products_are_those_of_the_network(name):
    model, x, count = made(name)
    plain, folded = Classifier(model), folding(model)
    assert torch.allclose(folded.logits(x), plain.logits(x), rtol=1e-12, atol=1e-12)
    assert len(folded.folds) == count
    assert not plain.folds
    for found, expected in zip(products(folded, x), products(plain, x), strict=True):
        assert torch.allclose(found, expected, rtol=1e-11, atol=1e-11)
    with Norms() as all_norms:
        plain.logits(x)
    with Norms() as norms:
        folded.logits(x)
    assert all_norms.count - norms.count == count


@pytest.mark.parametrize("name", ["residual", "rows"])
def test_the_first_image_is_evaluated_once_more_and_not_again(name):
    model, x, _ = made(name)
    plain, folded = Classifier(model), folding(model)
    for more in (1, 0):
        passes = [fringe.attribute(c, x, method="ig").passes for c in (plain, folded)]
        assert dataclasses.replace(passes[0], forward=passes[0].forward + more) == passes[1]
    fresh = folding(model)
    fresh.logits(x)
    assert fresh.passes.forward == len(x) + 1
    fresh.logits(x)
    assert fresh.passes.forward == 2 * len(x) + 1


@pytest.mark.parametrize("method", ["fringe", "ig"])
def test_maps_are_the_same_to_rounding_and_at_every_call(method):
    model, x, _ = made("residual")
    plain, folded = Classifier(model), folding(model)
    maps = [fringe.attribute(c, x, method=method).values for c in (plain, folded, folded)]
    assert torch.allclose(maps[1], maps[0], rtol=1e-8, atol=1e-10)
    assert torch.equal(maps[1], maps[2])


@pytest.mark.parametrize("way", ["elsewhere", "nowhere", "other", "training"])
def test_a_network_that_goes_another_way_is_computed_as_it_is(way):
    model, x = Undecided().double().eval(), normal(2, *IMAGE)
    classifier = folding(model)
    classifier.logits(x)
    assert len(classifier.folds) == 1
    model.way = way
    with torch.no_grad():
        torch.testing.assert_close(classifier.logits(x), model(x), rtol=1e-12, atol=1e-12)
    assert not classifier.folds


def test_weights_and_statistics_that_change_are_folded_anew():
    model, x, _ = made("residual")
    classifier = folding(model)
    classifier.logits(x)
    changes = (
        lambda: model.first.weight.mul_(1.1),
        lambda: model.norm.running_var.mul_(2.0),
        lambda: model.norm2.bias.add_(0.3),
        lambda: model.deep.weight.data.mul_(0.7),  # which PyTorch counts as no change
        lambda: model.norm.running_mean.data.add_(0.3),
    )
    for change in changes:
        with torch.no_grad():
            change()
            expected = model(x)
        assert torch.allclose(classifier.logits(x), expected, rtol=1e-12, atol=1e-12)
        assert len(classifier.folds) == 2
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.norm.bias.add_(1.0)
        assert torch.allclose(classifier.with_model(other).logits(x), other(x), rtol=1e-12, atol=1e-12)


def test_wrong_logits_are_noticed(monkeypatch):
    model, x, _ = made("residual", torch.float32)
    of = Fold.of

    def wrong(*arguments):
        fold = of(*arguments)
        fold.folded[1].add_(0.1)
        return fold

    monkeypatch.setattr(Fold, "of", wrong)
    classifier = folding(model)
    torch.testing.assert_close(classifier.logits(x), Classifier(model).logits(x), rtol=1e-5, atol=1e-5)
    assert not classifier.folds


@pytest.mark.parametrize("kind", ["forward_hook", "forward_pre_hook", "full_backward_hook"])
def test_hooks_see_the_network_as_it_is_written(kind):
    model, x, _ = made("residual")
    classifier = folding(model)
    classifier.logits(x)
    seen = []
    hook = lambda module, *found: seen.append(found[-1])  # noqa: E731
    hooked = {"forward_hook": model.first, "forward_pre_hook": model.norm, "full_backward_hook": model.norm2}[kind]
    handle = getattr(hooked, f"register_{kind}")(hook)
    with Norms() as norms:
        classifier.score_gradient(x, torch.zeros(3, dtype=torch.long))
    handle.remove()
    assert seen
    assert norms.count == 2
    if kind != "full_backward_hook":
        found = seen[0] if kind == "forward_hook" else seen[0][0]
        assert torch.allclose(found.detach(), model.first(x).detach(), rtol=1e-12, atol=1e-12)


def test_statistics_of_the_batch_are_not_folded():
    model, x, _ = made("residual")
    classifier = folding(model.train(), mode="keep")
    classifier.logits(x)
    assert not classifier.folds


def test_checkpoints_are_computed_as_they_are_written():
    model, x = Checkpointed().double().eval(), normal(2, *IMAGE)
    plain = Residual().double().eval()
    plain.load_state_dict(model.state_dict())
    maps = [fringe.attribute(one, x, method="ig").values for one in (folding(model), plain)]
    assert torch.allclose(*maps, rtol=1e-10, atol=1e-12)


def test_the_module_is_given_back_as_it_was():
    model, x, _ = made("residual")
    before = copy.deepcopy(model.state_dict())
    fringe.attribute(folding(model), x, method="ig")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
