"""Features that a network reads by steps have no gradient: no map of a gradient is called right about them."""

import warnings

import pytest
import torch
from torch import nn

import fringe
from toys import normal

STEPS = "the map gives nothing to {}, but changing it moves the score: the model reads it by steps"


class Table(nn.Module):
    """Reads feature 0 by ``step``, features 1 to 3 smoothly, and feature 4 not at all."""

    def __init__(self, step):
        super().__init__()
        self.step, self.weight, self.codes = step, nn.Parameter(normal(3, 3)), nn.Parameter(2 * normal(5, 3, seed=2))
        self.eval()

    def forward(self, x):
        return torch.tanh(x[:, 1:4]) @ self.weight + self.step(x[:, 0], self.codes)


LOOKUP = lambda x, codes: codes[x.long()]  # noqa: E731
BREAKS = {
    "lookup": LOOKUP,
    "round": lambda x, codes: x.round()[:, None] * codes[0],
    "mask": lambda x, codes: (x > 0.5).to(x)[:, None] * codes[1],
    "argmax": lambda x, codes: codes[torch.stack([x, 2 - x], 1).argmax(1)],
    "quantiser": lambda x, codes: (torch.floor(4 * x) / 4)[:, None] * codes[2],
}
CODES = torch.tensor([3.0, 0.0, 2.0, 1.0, 4.0, 2.0], dtype=torch.float64)
X = torch.cat([CODES[:, None], normal(6, 4, seed=5)], 1)


ROWS = {"many": slice(None), "code 0": slice(1, 2), "code 3": slice(0, 1)}


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("lookup", "many"),
        *((name, rows) for name in BREAKS for rows in ("code 0", "code 3") if (name, rows) != ("argmax", "code 0")),
    ],
)
def test_a_feature_read_by_steps_is_named_and_no_verdict_is_ok(name, rows):
    with pytest.warns(UserWarning, match=STEPS.format("feature 0")):
        found = fringe.attribute(Table(BREAKS[name]), X[ROWS[rows]], method=fringe.FRInGe(max_steps=60))
    assert set(found.verdict) == {"stalled"}
    assert all(advice.startswith(STEPS.format("feature 0")) for advice in found.advice)


@pytest.mark.parametrize("method", ["smoothgrad", "ig", "straight:fringe", "captum:input_x_gradient"])
def test_so_it_is_with_other_methods_several_classes_and_names(method):
    with pytest.warns(UserWarning, match=STEPS.format("colour")):
        found = fringe.explain(
            Table(LOOKUP), X, kind="tabular", features=["colour", "a", "b", "c", "d"], method=method, target="top2"
        )
    assert set(found.verdict) == {"stalled"} == {verdict for row in found.class_verdicts for verdict, _ in row}


@pytest.mark.parametrize(("names", "called"), [(("a", "b"), "b"), ((), r"inputs\[1\]")])
def test_a_feature_of_several_tensors_is_counted_in_its_own(names, called):
    table, parts = Table(LOOKUP), (X[:, 1:], X[:, :1])
    given = dict(zip(names, parts, strict=True)) if names else parts
    with pytest.warns(UserWarning, match=STEPS.format(f"feature 0 of {called}")):
        found = fringe.attribute(lambda a, b: table(torch.cat([b, a], 1)), given, method="ig")
    assert set(found.verdict) == {"stalled"}


def test_a_method_that_asks_for_differences_sees_the_code():
    found = fringe.attribute(Table(LOOKUP), X, method=fringe.CaptumMethod("kernel_shap", samples=60))
    assert found.values[CODES != 0, 0].abs().min() > 0.01  # the code 0 is the baseline
    assert set(found.verdict) == {"unchecked"}


KINKS = {
    "unused": lambda x, codes: 0.0,
    "hinge": lambda x, codes: torch.relu(x - 3.5)[:, None] * codes[0],
    "clamp": lambda x, codes: x.clamp(1.9, 2.1)[:, None] * codes[1],
    "smooth": lambda x, codes: torch.sin(x)[:, None] * codes[1],
}


@pytest.mark.parametrize("name", KINKS)
def test_what_is_unused_or_has_a_kink_is_not_named(name):
    rows = [1, 3, 5] if name == "hinge" else [0, 1, 4] if name == "clamp" else range(6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = fringe.attribute(Table(KINKS[name]), X[list(rows)], method=fringe.FRInGe(steps=6))
    assert not any(advice.startswith("the map gives nothing") for advice in found.advice)


class Smooth(nn.Module):
    """Reads everything."""

    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(normal(size, 3) / size**0.5)
        self.eval()

    def forward(self, x):
        return torch.tanh(x.flatten(1)) @ self.weight


class Channels(nn.Module):
    """Reads channel 1 of two by rounding, or not at all."""

    def __init__(self, rounds, size, last=False):
        super().__init__()
        self.rounds, self.weight, self.last = rounds, nn.Parameter(normal(size, 3) / size**0.5), last
        self.eval()

    def forward(self, x):
        smooth, broken = x.unbind(-1 if self.last else 1)
        return torch.tanh(smooth.flatten(1)) @ self.weight + self.rounds * broken.round().flatten(1) @ self.weight


@pytest.mark.parametrize(
    ("shape", "last", "name"),
    [((3, 2, 4, 4), False, "channel 1"), ((3, 2, 9), False, "channel 1"), ((3, 9, 2), True, "feature 1")],
)
def test_the_unit_is_a_channel(shape, last, name):
    x = 2 * normal(*shape)
    size = x[0].numel() // 2
    with pytest.warns(UserWarning, match=STEPS.format(name)):
        fringe.attribute(Channels(1.0, size, last), x, method=fringe.FRInGe(steps=6))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read, all_read = (
            fringe.attribute(model, z, method="ig")
            for model, z in ((Channels(0.0, size, last), x), (Smooth(2 * size), x))
        )
    assert read.passes.forward - all_read.passes.forward == 9  # three images: again, and with two other values


def test_single_entries_without_a_gradient_cost_nothing():
    """Half of the units of this network are dead for each input, and some entries of each map are zero."""
    x = normal(3, 1, 6, 6)
    dead = lambda z: torch.relu(z.flatten(1)) @ normal(36, 3)  # noqa: E731
    alive = lambda z: torch.tanh(z.flatten(1)) @ normal(36, 3)  # noqa: E731
    zero, full = (
        fringe.attribute(model, x, method=fringe.SmoothGrad(samples=1, sigma=1e-9)) for model in (dead, alive)
    )
    assert (zero.values == 0).any()
    assert (full.values != 0).all()
    assert zero.passes == full.passes


def test_steps_are_found_among_many_features_that_have_no_effect():
    """Forty columns that the network reads not at all come before the code, and forty zeros that it reads smoothly."""
    table = Table(LOOKUP)
    x = torch.cat([normal(6, 40, seed=7), torch.zeros(6, 40, dtype=torch.float64), X], 1)
    model = lambda z: table(z[:, 80:]) + z[:, 40:80].sum(1, keepdim=True) * table.weight[0]  # noqa: E731
    with pytest.warns(UserWarning, match=STEPS.format("feature 80")):
        found = fringe.attribute(model, x, method="ig")
    assert set(found.verdict) == {"stalled"}


def test_a_column_beside_a_picture_is_looked_at():
    table, pictures = Table(LOOKUP), normal(6, 1, 4, 4)
    model = lambda p, z: table(z) + torch.tanh(p.flatten(1)[:, :3])  # noqa: E731
    with pytest.warns(UserWarning, match=STEPS.format(r"feature 0 of inputs\[1\]")):
        found = fringe.attribute(model, (pictures, X), method="ig")
    assert set(found.verdict) == {"stalled"}


def test_samples_of_a_series_of_one_channel_are_looked_at():
    model = lambda z: torch.tanh(z[:, 0, :5]) @ normal(5, 3) + z[:, 0, 5:].round() @ normal(5, 3, seed=4)  # noqa: E731
    with pytest.warns(UserWarning, match=STEPS.format("feature 5, feature 6, feature 7, feature 8, feature 9")):
        found = fringe.attribute(model, 3 * normal(4, 1, 10), method="ig")
    assert set(found.verdict) == {"stalled"}
