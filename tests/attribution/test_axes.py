"""Axes that are not (C, *space): maps are those of the transposed problem, and a warning says where to name them."""

import importlib.util
import warnings

import pytest
import torch
from attribution_toys import filled
from torch import nn

import fringe
from fringe import InputError, attribute
from toys import normal

IMAGES = {"x": normal(3, 3, 8, 6, seed=1), "axes": "HWC", "order": (0, 2, 3, 1)}
VOLUMES = {"x": normal(2, 2, 4, 5, 6, seed=2), "axes": "DHWC", "order": (0, 2, 3, 4, 1)}
SERIES = {"x": normal(3, 4, 16, seed=3), "axes": "LC", "order": (0, 2, 1)}


class First(nn.Module):
    """A network of inputs with channels first."""

    def __init__(self, x):
        super().__init__()
        convolution = {3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}[x.dim()]
        self.conv, self.act = convolution(x.shape[1], 4, 3, padding=1), nn.Tanh()
        self.head = nn.Linear(4 * x[0, 0].numel(), 3)

    def forward(self, x):
        return self.head(self.act(self.conv(x)).flatten(1))


class Last(nn.Module):
    """The same network for inputs whose axes are in another order."""

    def __init__(self, network, order):
        super().__init__()
        self.network, self.order = network, [order.index(k) for k in range(len(order))]

    def forward(self, x):
        return self.network(x.permute(self.order))


def both(kind):
    network = filled(First(kind["x"]))
    return network, Last(network, kind["order"]).eval(), kind["x"].permute(kind["order"])


METHODS = {
    "ig": "ig",
    "blurred ig": fringe.IntegratedGradients(baseline="blur"),
    "fringe": fringe.FRInGe(tau=1e-2),
    "gradcam": "gradcam",
    "blur_ig": fringe.BlurIG(steps=5),
    "smooth": "smooth(2):ig",
    "centre_prior": "centre_prior:ig",
    "smoothgrad": fringe.SmoothGrad(samples=3),
    "guided_ig": "guided_ig",
    "expected_gradients": fringe.ExpectedGradients(samples=5),
    "rise": fringe.RISE(masks=8, cells=3),
}
if importlib.util.find_spec("captum") is not None:
    METHODS["occlusion"] = fringe.CaptumMethod("occlusion", window=3)


@pytest.mark.parametrize("method", METHODS)
def test_maps_of_images_are_those_of_the_transposed_problem(method):
    first, last, moved = both(IMAGES)
    x, order = IMAGES["x"], IMAGES["order"]
    references = normal(4, 3, 8, 6, seed=8)
    space = fringe.InputSpace(torch.full((3, 1, 1), -3.0), 3.0, references)
    turned = fringe.InputSpace(torch.full((1, 1, 3), -3.0), 3.0, references.permute(order))
    plain = attribute(first, x, method=METHODS[method], telemetry=3, space=space)
    found = attribute(last, moved, method=METHODS[method], telemetry=3, space=turned, axes="HWC")
    assert found.values.shape == moved.shape
    torch.testing.assert_close(found.values, plain.values.permute(order), rtol=1e-9, atol=1e-12)
    assert found.verdict == plain.verdict
    torch.testing.assert_close(found.completeness_gap, plain.completeness_gap, equal_nan=True)
    for here, there in zip(found.trajectory or (), plain.trajectory or (), strict=True):
        if here is not None:
            torch.testing.assert_close(here.snapshots, there.snapshots.permute(order), rtol=1e-9, atol=1e-12)
            torch.testing.assert_close(here.cumulative, there.cumulative.permute(order), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", [VOLUMES, SERIES, {**SERIES, "axes": "tc"}], ids=["volumes", "series", "lower case"])
@pytest.mark.parametrize("method", ["ig", fringe.FRInGe(tau=1e-2), "gradcam", "centre_prior:ig"])
def test_maps_of_volumes_and_series_are_too(kind, method):
    first, last, moved = both(kind)
    plain = attribute(first, kind["x"], method=method, target="top2")
    found = attribute(last, moved, method=method, target="top2", axes=kind["axes"])
    back = [0, 1, *(axis + 1 for axis in kind["order"][1:])]
    torch.testing.assert_close(found.values, plain.values.permute(back), rtol=1e-9, atol=1e-12)


def test_arguments_follow_the_axes():
    first, last, moved = both(IMAGES)
    x, order = IMAGES["x"], IMAGES["order"]
    start = normal(3, 8, 6, seed=5)
    plain = attribute(first, x, method="ig", baseline=start)
    found = attribute(last, moved, method="ig", baseline=start.permute(1, 2, 0), axes="HWC", batch_size=2)
    torch.testing.assert_close(found.values, plain.values.permute(order), rtol=1e-9, atol=1e-12)
    broken = torch.cat([moved[:1], moved[1:2] * torch.nan, moved[2:]])
    marked = attribute(last, broken, method="ig", baseline=start.permute(1, 2, 0), axes="HWC", bad_images="mark")
    assert marked.verdict[1] == "nan_input"
    torch.testing.assert_close(marked.values[::2], found.values[::2], rtol=1e-9, atol=1e-12)
    named = attribute(last, {"x": moved}, method="ig", baseline=start.permute(1, 2, 0), axes="HWC")
    torch.testing.assert_close(named.values, found.values, rtol=1e-9, atol=1e-12)
    focused = attribute(last, moved, method=fringe.IntegratedGradients(focus="cam"), axes="HWC")
    same = attribute(first, x, method=fringe.IntegratedGradients(focus="cam"))
    torch.testing.assert_close(focused.region, same.region)


@pytest.mark.parametrize("method", ["ig", fringe.FRInGe(tau=1e-2), fringe.SmoothGrad(samples=3)])
def test_lengths_follow_the_axes(method):
    first, last, moved = both(SERIES)
    x, lengths = SERIES["x"], [16, 9, 12]
    plain = attribute(first, x, method=method, lengths=lengths)
    found = attribute(last, moved, method=method, lengths=lengths, axes="LC")
    torch.testing.assert_close(found.values, plain.values.mT, rtol=1e-9, atol=1e-12)
    assert found.values[1, 9:].abs().max() == 0 < found.values[1, :9].abs().max()


class Points(nn.Module):
    """The largest features of points, whatever their order."""

    def __init__(self):
        super().__init__()
        self.each, self.head = nn.Linear(3, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.each(x).tanh().logsumexp(1))


@pytest.mark.parametrize(
    "method", ["ig", fringe.FRInGe(tau=1e-2), fringe.IntegratedGradients(baseline="mean"), "guided_ig"]
)
def test_points_without_an_order_are_rows_of_numbers(method):
    net, x = filled(Points()), normal(2, 7, 3, seed=6)
    rows = x.mT.flatten(1)
    plain = attribute(lambda z: net(z.unflatten(1, (3, 7)).mT), rows, method=method)
    found = attribute(net, x, method=method, axes="NC", telemetry=3)
    torch.testing.assert_close(found.values, plain.values.unflatten(1, (3, 7)).mT, rtol=1e-9, atol=1e-12)
    order = torch.randperm(7, generator=torch.Generator().manual_seed(0))
    shuffled = attribute(net, x[:, order], method=method, axes="NC")
    torch.testing.assert_close(shuffled.values, found.values[:, order], rtol=1e-6, atol=1e-9)
    with pytest.raises(InputError, match=r"no layer with activations in space for inputs of shape \(21,\)"):
        attribute(net, x, method="gradcam", axes="NC")


def recurrent():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.head = nn.GRU(4, 8, batch_first=True), nn.Linear(8, 3)

        def forward(self, x):
            return self.head(self.rnn(x)[0][:, -1])

    return filled(Recurrent())


LAST = {
    "a convolution": (lambda: both(IMAGES)[1], both(IMAGES)[2], r"takes 3, .*pass axes='HWC', or axes='CHW'", "HWC"),
    "a shape": (lambda: (lambda net: lambda z: net(z))(both(IMAGES)[1]), both(IMAGES)[2], r"pass axes='HWC'", "HWC"),
    "a volume": (lambda: both(VOLUMES)[1], both(VOLUMES)[2], r"takes 2, .*pass axes='DHWC', or axes='CDHW'", "DHWC"),
    "a recurrent layer": (
        recurrent,
        normal(2, 9, 4),
        r"first layer, GRU, takes 4, .*axes='LC' for series",
        "LC",
    ),
    "a linear layer": (
        lambda: filled(Points()),
        normal(2, 7, 3),
        r"layer, Linear, takes 3.* or 'NC' for p",
        "NC",
    ),
}


@pytest.mark.parametrize("name", LAST)
def test_a_warning_says_where_channels_are_last(name):
    make, x, message, axes = LAST[name]
    model = make()
    with pytest.warns(UserWarning, match=rf"^inputs \({len(x)}, .* their channels were the last axis.*{message}"):
        attribute(model, x, method="ig")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attribute(model, x, method="ig", axes=axes)
        attribute(model, x, method="ig", axes={3: "CL", 4: "CHW", 5: "CDHW"}[x.dim()])  # who says that they are not


@pytest.mark.filterwarnings("error")
def test_channels_that_are_first_are_not_warned_of():
    for kind in (IMAGES, VOLUMES, SERIES):
        attribute(both(kind)[0], kind["x"], method="ig")
    narrow = normal(2, 6, 8, 3, seed=4)  # an image of three columns, of whose channels the layer knows
    attribute(filled(First(narrow)), narrow, method="ig")
    attribute(lambda z: z.flatten(2).mean(2)[:, :3], normal(2, 8, 4, 4), method="ig")  # small activations
    tokens = filled(nn.Sequential(nn.Flatten(), nn.Linear(12, 3)))
    attribute(tokens, normal(2, 12), method="ig")


def test_what_are_no_axes_is_refused():
    _, last, moved = both(IMAGES)
    for axes in ("HW", "HWCC", "LC", "XYC", "", "HHC", 3):
        with pytest.raises(InputError, match=r"^axes: got .* for an input \(8, 6, 3\), expected one letter for"):
            attribute(last, moved, method="ig", axes=axes)
    with pytest.raises(InputError, match=r"^axes: got axes for several tensors"):
        attribute(lambda a, b: a.flatten(1) + b.flatten(1), (moved, moved), method="ig", axes="HWC")


def test_explain_takes_the_axes_of_the_model():
    first, last, moved = both(IMAGES)
    x = IMAGES["x"]
    plain = fringe.explain(first, x, method="ig")
    for inputs in (moved, moved[0]):
        found = fringe.explain(last, inputs, method="ig", axes="HWC")
        torch.testing.assert_close(found.values, plain.values[: len(found)], rtol=1e-9, atol=1e-12)
        assert torch.equal(found.context.inputs, x[: len(found)])
    series, turned, values = both(SERIES)
    found = fringe.explain(turned, values.numpy(), kind="series", method="ig", axes="LC", lengths=[16, 9, 12])
    expected = fringe.explain(series, SERIES["x"], kind="series", method="ig", lengths=[16, 9, 12])
    torch.testing.assert_close(found.values, expected.values, rtol=1e-9, atol=1e-12)
