"""Networks that a function holds are explained in evaluation mode, and given back bit for bit."""

import copy
import functools
import gc
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import fringe
from fringe._network.isolation import reached_modules, refusing_training


def network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(108, 3)]
        return nn.Sequential(*layers).double()


GLOBAL = network()
PLACES = SimpleNamespace(net=GLOBAL)


class Held:
    """A callable object, whose network stands in a list."""

    __slots__ = ("nets",)

    def __init__(self, net):
        self.nets = [{"net": net}]

    def __call__(self, x):
        return self.nets[0]["net"](x)

    def method(self, x):
        return self(x)


class Unregistered(nn.Module):
    """A module in evaluation mode that keeps another one where ``eval`` does not find it."""

    def __init__(self, net):
        super().__init__()
        self.parts = (net,)
        self.eval()

    def forward(self, x):
        return self.parts[0](x)


def decorated(net):
    @functools.wraps(net.forward)
    def inner(x, scale=net):
        return scale(x)

    return inner


def by_name(x):
    return (lambda z: PLACES.net(z))(x)


WAYS = {
    "closure": lambda net: lambda x: net(x),
    "through a function": lambda net: (lambda run: lambda x: run(x))(lambda x: net(x)),
    "list in a closure": lambda net: (lambda nets: lambda x: nets[0](x))([net]),
    "bound method": lambda net: net.forward,
    "method of an object": lambda net: Held(net).method,
    "partial": lambda net: functools.partial(lambda one, x: one(x), net),
    "partial by name": lambda net: functools.partial(lambda x, one: one(x), one=net),
    "default": decorated,
    "object": Held,
    "module that does not register it": Unregistered,
    "global": lambda net: by_name,
}


def state(net):
    tensors = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    flags = [(m.training, dict(m._forward_hooks), dict(m._forward_pre_hooks)) for m in net.modules()]
    return {name: t.detach().clone() for name, t in tensors.items()}, flags, [p.requires_grad for p in net.parameters()]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("method", ["ig", "fringe"])
def test_a_network_in_a_function_is_explained_as_it_is_alone(way, method):
    net = GLOBAL if way == "global" else network()
    net.train()
    net[0].weight.requires_grad_(False)
    x = torch.randn(3, 2, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected = fringe.attribute(copy.deepcopy(net).eval(), x, method=method, telemetry=False).values
    before = state(net)
    with pytest.warns(UserWarning, match="the model is in training mode; it is explained in evaluation mode"):
        found = fringe.attribute(WAYS[way](net), x, method=method, telemetry=False).values
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    after = state(net)
    assert after[1:] == before[1:]
    assert all(torch.equal(after[0][name], tensor) for name, tensor in before[0].items())


def test_one_that_is_hidden_too_well_is_refused_before_it_runs():
    """Its address is in a number."""
    net = network()
    number = id(net)

    def hidden(x):
        return next(each for each in gc.get_objects() if id(each) == number)(x)

    before = state(net)[0]
    x = torch.zeros(2, 2, 8, 8, dtype=torch.float64)
    with pytest.raises(fringe.InputError, match=r"hidden runs a BatchNorm2d in training mode"):
        fringe.attribute(hidden, x, method="ig")
    assert all(torch.equal(state(net)[0][name], tensor) for name, tensor in before.items())
    net.eval()
    assert fringe.attribute(hidden, x, method="ig").values.shape == x.shape


class Drops(nn.Module):
    def forward(self, x):
        return nn.functional.dropout(x, training=self.training)


@pytest.mark.parametrize("module", [Drops(), nn.LSTM(3, 4, 2, dropout=0.5)])
def test_a_hidden_module_whose_code_reads_the_flag_is_refused_in_training_mode(module):
    x = torch.zeros(2, 5, 3)
    with refusing_training(module.forward):
        nn.LSTM(3, 4)(x)  # without dropout it computes the same in both modes
        with pytest.raises(fringe.InputError, match=f"runs a {type(module).__name__} in training mode"):
            module(x)
        module.eval()(x)


def test_a_network_that_the_score_holds_is_in_evaluation_mode():
    judge = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1)).double()
    before = state(judge)
    x = torch.randn(3, 2, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    with pytest.warns(UserWarning, match="training mode"):
        fringe.attribute(network().eval(), x, method="ig", score=lambda out: judge(out)[:, 0])
    assert state(judge)[1:] == before[1:]
    assert all(torch.equal(state(judge)[0][name], tensor) for name, tensor in before[0].items())


def test_each_network_is_found_once_and_none_of_a_library():
    one, other = network(), network()
    both = {"one": one, "layer": one[0], "again": [one, other]}
    assert reached_modules(lambda x: torch.relu(both["one"](x))) == [one, other]
    assert reached_modules(torch.nn.functional.softmax, len, None) == []
