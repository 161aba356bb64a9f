"""Networks that end oddly, change their mind, or take something else than is given: words in place of tracebacks."""

import functools
import itertools

import numpy as np
import pytest
import torch
from classifier_toys import normal
from torch import nn

import fringe
from fringe import BinaryClassifier, Classifier, InputError, ModelOutputError, attribute
from fringe.errors import ModelError, NotDifferentiableError

X = normal(3, 4)


class Calling(nn.Module):
    """A linear network whose logits go through a function of the number of the call and the logits."""

    def __init__(self, function, first=1):
        super().__init__()
        self.linear, self.function, self.calls = nn.Linear(4, 3).double(), function, itertools.count(1)
        self.first = first
        self.eval()

    def forward(self, x):
        y, call = self.linear(x), next(self.calls)
        return self.function(call, y) if call >= self.first else y


def stop(call, y):
    raise StopIteration


def recurse(call, y):
    return recurse(call, y)


@pytest.mark.parametrize(("function", "name"), [(stop, "StopIteration"), (recurse, "RecursionError")])
@pytest.mark.parametrize("first", [1, 3])
def test_a_network_that_ends_oddly_is_named_with_its_line(function, name, first):
    message = rf"^model: it ends in {name}, in line \d+ of test_odd_networks.py; call it with one input"
    with pytest.raises(ModelError, match=message):
        attribute(Calling(function, first), X, method="ig")
    with pytest.raises(ModelError, match=message):  # and not the end of somebody's generator
        next(attribute(Calling(function, first), x, method="ig") for x in (X, X))


def test_an_interrupt_is_handed_on():
    def interrupt(call, y):
        raise KeyboardInterrupt

    net = Calling(interrupt)
    with pytest.raises(KeyboardInterrupt):
        attribute(net, X, method="ig")
    assert all(p.requires_grad for p in net.parameters())


@pytest.mark.parametrize("method", ["ig", "rise"])
def test_a_number_of_classes_that_varies_is_refused(method):
    net = Calling(lambda call, y: torch.cat([y, y], 1), first=2)
    net.linear = nn.Sequential(nn.Flatten(), nn.Linear(2 * 16, 3)).double().eval()
    with pytest.raises(
        ModelOutputError, match=r"^model: its output has 6 classes, and had 3 in an earlier pass; return"
    ):
        attribute(net, normal(3, 2, 4, 4), method=method)
    assert Classifier(net).logits(normal(1, 2, 4, 4)).shape == (1, 6)  # which a later session may have


@pytest.mark.parametrize("method", ["ig", "rise", "fringe"])
@pytest.mark.parametrize("count", [1, 3])
def test_noise_is_refused_and_a_seed_helps(method, count):
    linear, x = nn.Sequential(nn.Flatten(), nn.Linear(32, 3)).double().eval(), normal(count, 2, 4, 4)

    def noisy(z):
        return linear(z) * (1 + 0.1 * torch.randn(3, dtype=z.dtype))

    def seeded(z):
        torch.manual_seed(0)
        return noisy(z)

    method = {"rise": fringe.RISE(masks=50)}.get(method, method)
    with pytest.raises(ModelOutputError, match=r"differ by .*the model is random.*torch.manual_seed\(0\)"):
        attribute(noisy, x, method=method)
    first, second = (attribute(seeded, x, method=method, batch_size=1).values for _ in range(2))
    assert torch.equal(first, second)


# -- a score that uses the input ---------------------------------------------------------------------------------------


class Held:
    def __init__(self, x):
        self.x = x

    def __call__(self, y):
        return error_of(y, torch.as_tensor(self.x))

    def method(self, y):
        return error_of(y, self.x)


def error_of(y, x):
    return (y - x).square().flatten(1).mean(1)


def holding(x):
    table = {"target": [x.clone()]}
    inner = lambda y: error_of(y, x)  # noqa: E731
    return {
        "closure": lambda y: error_of(y, x),
        "default": lambda y, reference=x: error_of(y, reference),
        "keyword": functools.partial(lambda y, reference: error_of(y, reference), reference=x),
        "partial": functools.partial(lambda reference, y: error_of(y, reference), x),
        "object": Held(x),
        "array": Held(x.numpy()),
        "method": Held(x).method,
        "container": lambda y: error_of(y, table["target"][0]),
        "function": lambda y: inner(y),
        "row": (lambda row: lambda y: error_of(y, row))(x[0]),
    }


@pytest.mark.parametrize("name", holding(X))
@pytest.mark.parametrize("count", [1, 3])
def test_a_score_that_holds_the_explained_input_is_refused(name, count):
    """The map would miss the derivative of the score in the input itself: with B = 1 nothing else shows it."""
    x, net = normal(count, 4), nn.Linear(4, 4).double().eval()
    message = (
        r"^score: it uses the explained input itself \(.*return from a function as the model: attribute\(lambda x: "
    )
    with pytest.raises(InputError, match=message):
        attribute(net, x, method="ig", score=holding(x)[name])
    right = attribute(lambda z: (net(z), z), x, method="ig", score=lambda y: error_of(*y), baseline=0.0)
    z = x.clone().requires_grad_(True)
    wrong = attribute(net, x, method="ig", score=holding(x + 1e-9)[name]) if count == 1 else None
    assert right.verdict == ("ok",) * count
    assert wrong is None or (wrong.values - right.values).norm() > 0.1 * right.values.norm()
    torch.testing.assert_close(right.score, error_of(net(z), z).detach())


def test_a_score_may_hold_anything_else():
    x, net, reference = normal(3, 4), nn.Linear(4, 4).double().eval(), normal(4, seed=9)
    held = {
        "weights": reference,
        "net": net,
        "table": [reference.numpy(), None, "x", np.ones(3), np.array(["a", "b"])],
        "self": Held(reference),
    }
    result = attribute(net, x, method="ig", score=lambda y: error_of(y, held["weights"]) + 0.0 * len(held))
    assert result.verdict == ("ok", "ok", "ok")


def test_a_score_of_other_rows_says_so():
    x, net, others = normal(3, 4), nn.Linear(4, 4).double().eval(), normal(3, 4, seed=5)
    for score, message in (
        (lambda y: error_of(y, others), r"it returned tensor \(3,\) torch.float64 for 1 inputs, .*in any order"),
        (lambda y: (y - others[: len(y)]).square().mean(1), r"images \[1\] of 3 have other scores .*in any order"),
        (lambda y: (y - y.mean(0)).square().mean(1), r"images \[0\] of 3 have other scores .*in any order"),
        (lambda y: (y + others.view(2, 6)).mean(1), r"it fails on what the model returns for 3 inputs \(The size of"),
    ):
        with pytest.raises((InputError, ModelOutputError), match=f"^score: {message}"):
            attribute(net, x, method="ig", score=score)


# -- refusals that mislead ---------------------------------------------------------------------------------------------


def test_a_module_with_a_network_and_a_task_is_no_pipeline():
    class Lightning(nn.Module):
        task = "binary"

        def __init__(self):
            super().__init__()
            self.model = nn.Linear(4, 3).double()

        def forward(self, x):
            return self.model(x)

    assert attribute(Lightning().eval(), X, method="ig").verdict == ("ok",) * 3

    class Pipeline:
        task, model = "text-classification", nn.Linear(4, 3)

    with pytest.raises(InputError, match="got a pipeline of transformers"):
        Classifier(Pipeline())


@pytest.mark.parametrize(
    "form", [lambda z: type("Output", (), {"logits": z})(), lambda z: {"logits": z}, lambda z: (z,)]
)
def test_one_logit_in_another_form_has_two_classes(form):
    head = nn.Linear(4, 1).double().eval()
    found = attribute(BinaryClassifier(lambda x: form(head(x))), X, method="ig", target=1)
    torch.testing.assert_close(found.values, 0.5 * head.weight.detach() * X)


def test_what_a_tensor_lacks_is_named():
    net = nn.Linear(4, 3)
    x = X.float()
    nested = torch.nested.nested_tensor([x[:2], x], layout=torch.jagged)
    for inputs, message in (
        (torch.complex(x, x), r"got dtype torch.complex64, .*pass torch.view_as_real\(x\)"),
        (x > 0, r"got dtype torch.bool, .*pass x.float\(\)"),
        (nested, r"got a nested tensor.*to_padded_tensor\(x, 0.0\), for series .* lengths="),
        (x.to_sparse(), r"got a tensor of torch.sparse_coo.*pass x.to_dense\(\)"),
        ({"x": x.to_sparse()}, r"got a tensor of torch.sparse_coo"),
        (x.to("meta"), r"got a tensor of device meta"),
    ):
        with pytest.raises(InputError, match=rf"^inputs(\['x'\])?: {message}"):
            attribute(net, inputs, method="ig")


def test_errors_of_gradients_are_not_those_of_batches():
    class Cached(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.cache = nn.Linear(4, 3).double(), None

        def forward(self, x):
            if self.cache is None:
                with torch.inference_mode():
                    self.cache = torch.full((4,), 2.0, dtype=x.dtype)
            return self.linear(x * self.cache)

    for count in (1, 3):
        with pytest.raises(
            NotDifferentiableError, match=r"no gradient \(Inference tensors.*outside of .*inference mode"
        ):
            attribute(Cached().eval(), X[:count], method="ig")


def test_advice_on_rows_that_belong_together_works():
    linear = nn.Linear(4, 3).double().eval()
    fixed = lambda x: linear(x.view(3, 4))  # noqa: E731
    with pytest.raises(ModelOutputError, match="batches of N images alone, by a function that fills them up"):
        attribute(fixed, X, method="ig")
    filled = lambda x: fixed(torch.cat([x, x[:1].expand(3 - len(x), -1)]))[: len(x)]  # noqa: E731
    found = attribute(filled, X, method="ig", target=0, batch_size=3)
    torch.testing.assert_close(found.values, linear.weight[0].detach() * X)
    edges = normal(3, 3, seed=8).softmax(1)
    graph = lambda x: linear(edges @ x)  # noqa: E731
    with pytest.raises(
        ModelOutputError, match=r"nodes of one graph, as one input: attribute\(lambda x: model\(x\[0\]\)"
    ):
        attribute(graph, X, method="ig")
    node = attribute(lambda x: graph(x[0])[1][None], X[None], method="ig", target=2, batch_size=1)
    expected = edges[1][:, None] * linear.weight[2].detach() * X
    torch.testing.assert_close(node.values[0], expected)


@pytest.mark.parametrize("length", [5, 3])
def test_a_network_that_reads_sequences_first_is_told_so(length):
    """Inputs (B, L, F), also with as many of them as samples, where only the rows tell it."""

    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.head = nn.GRU(4, 8), nn.Linear(8, 3)
            self.double().eval()

        def forward(self, x):
            return self.head(self.rnn(x)[0][-1])

    x, net = normal(3, length, 4), Last()
    with pytest.raises(ModelOutputError, match=r"batch_first=False.*lambda x: model\(x.transpose\(0, 1\)\)"):
        attribute(net, x, method="ig")
    assert fringe.attribute(lambda z: net(z.transpose(0, 1)), x, method="ig").values.shape == x.shape
