"""Focused paths: dense algebra, laws, the ladder of floors, and where the weights come from."""

import dataclasses
import json
import re
import warnings

import pytest
import torch
from attribution_oracles import DenseFRInGe, relative
from attribution_toys import Linear, Smooth, inputs, problem_of
from torch import nn

import fringe
from fringe.attribution import Diffusion, _fisher_rao, _focus, get_method
from fringe.attribution._cam import cam_maps, find_cam_layer, upsample
from fringe.attribution._focus import FocusedPaths
from fringe.data import digits_samples
from fringe.geometry import ScaledJacobian
from fringe.models import load_model
from toys import normal

GEODESIC = fringe.FRInGe(tau=8e-3, delta_euc=0.7, damping=1e-3, halvings=0)
WEIGHTS = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
WEIGHTS[:, :, :3, 2:6] = 0.0


def digits(count, dtype=torch.float64):
    loaded = load_model("embedded:digits")
    pixels = torch.stack([loaded.preprocessing.pixels(sample.image) for sample in digits_samples()[:count]])
    return loaded.module.to(dtype), loaded.preprocessing.normalise(pixels).to(dtype)


def scale_of(found, weights):
    """s (B, 1, *space), at the floors that were used."""
    return 1 - (1 - found.diagnostics["focus_floor"].view(-1, 1, 1, 1)) * (1 - weights)


# -- the step ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "floor", "rank"),
    [
        (GEODESIC, 0.3, 1),
        (dataclasses.replace(GEODESIC, gamma_prior=3e-3), 0.0, 3),
        (GEODESIC, 0.0, 1),
        (Diffusion.of(GEODESIC), 0.0, 1),
    ],
    ids=["floor", "rank3", "closed", "diffusion"],
)
def test_a_focused_path_equals_dense_algebra_in_its_coordinates(method, floor, rank, monkeypatch):
    """The path of g(y) = F(x_0 + s (y - x_0)) by explicit matrices, where the cap bounds |s dy|."""
    monkeypatch.setitem(_fisher_rao.RANK, "image", rank)
    model, x = Smooth(), inputs(2)
    found = fringe.attribute(
        model, x, method=dataclasses.replace(method, focus=WEIGHTS[:2], focus_floor=floor), telemetry=True
    )
    s = scale_of(found, WEIGHTS[:2]).expand_as(x)
    assert (s < 1).flatten(1).any(1).all()
    for i, target in enumerate(found.target.tolist()):
        focused = lambda y, i=i: model(x[i] + s[i] * (y - x[i]))  # noqa: E731
        values, end = DenseFRInGe(focused, method, s[i].flatten(), rank).explain(x[i], target)
        assert relative(found.values[i], values) < 1e-8
        assert relative(found.trajectory[i].snapshots[-1], x[i] + s[i] * (end - x[i])) < 1e-8


def test_the_map_is_that_of_the_network_in_the_focused_coordinates():
    """Without a cap on the step."""
    model, x = Smooth(), inputs(3)

    class Wrapped(nn.Module):
        def forward(self, y, x0, s):
            return model(x0 + s * (y - x0))

    for method in (fringe.FRInGe(delta_euc=None), dataclasses.replace(GEODESIC, delta_euc=None, until="budget")):
        found = fringe.attribute(model, x, method=dataclasses.replace(method, focus=WEIGHTS))
        s = scale_of(found, WEIGHTS).expand_as(x)
        arguments = {"x0": x, "s": s}
        wrapped = fringe.attribute(Wrapped().eval(), x, method=method, forward_kwargs=arguments)
        assert max(map(relative, found.values, wrapped.values)) < 1e-10
        torch.testing.assert_close(found.score, wrapped.score)
        torch.testing.assert_close(found.endpoint_score, wrapped.endpoint_score, rtol=1e-10, atol=1e-10)
        ratio = wrapped.diagnostics["path_length"] / found.diagnostics["path_length"]
        torch.testing.assert_close(found.diagnostics["focus_length_ratio"], ratio, rtol=1e-9, atol=0)


@pytest.mark.parametrize(
    ("method", "dtype"),
    [
        ("fringe", torch.float32),
        ("ig", torch.float64),
    ],
)
def test_weights_of_one_give_the_unfocused_map_bit_for_bit(method, dtype):
    model, x = digits(3, dtype)
    plain = get_method(method)
    focused = dataclasses.replace(plain, focus=torch.ones(3, 1, 32, 32))
    one, two = (fringe.attribute(model, x, method=which, target="top2") for which in (plain, focused))
    first = (two.diagnostics["focus_floor"].view(3, -1) == 0.2).all(1)  # a short path is walked again by itself
    assert first.sum() >= 2
    assert torch.equal(one.values[first], two.values[first])
    assert one.verdict == two.verdict
    assert one.passes == two.passes or not first.all()
    assert (two.diagnostics["focus_length_ratio"] - 1).abs().max() < 1e-6


def test_the_adjoint_of_the_scaled_jacobian():
    classifier, x, s = fringe.Classifier(Smooth()), inputs(3), WEIGHTS
    with classifier.session(x.device):
        scaled = ScaledJacobian(classifier.linearise(x), s)
        v, u = normal(3, 2, 8, 8, seed=2), normal(3, 5, seed=3)
        forward, back = (scaled.jvp(v) * u).sum(1), (scaled.vjp(u) * v).flatten(1).sum(1)
    torch.testing.assert_close(forward, back, rtol=1e-12, atol=1e-14)


# -- laws --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fringe", "ig"])
def test_a_focused_map_is_complete_and_leaves_entries_of_weight_zero_alone(name):
    model, x = digits(4)
    weights = torch.zeros(4, 1, 32, 32)
    weights[:, :, 4:28, 6:26] = 1.0
    method = dataclasses.replace(get_method(name), focus=weights, focus_floor=0.0)
    found = fringe.attribute(model, x, method=method, target="top2", telemetry=True)
    gap = found.values.flatten(2).sum(2) - (found.score - found.endpoint_score)
    assert (gap.abs() / (found.score - found.endpoint_score).abs()).max() < 0.05
    kept = (found.diagnostics["focus_floor"].view(4, -1)[:, 0] == 0).tolist()
    assert any(kept)
    for i in range(4):
        if kept[i]:
            outside = ~weights[i].bool().expand(2, 1, -1, -1)
            assert not found.values[i][outside].any()
            assert torch.equal(found.trajectory[i].snapshots[-1][outside[0]], x[i][outside[0]])


def test_the_end_of_a_focused_straight_line_keeps_what_is_outside():
    model, x = Smooth(), inputs(3)
    found = fringe.attribute(model, x, method=fringe.IntegratedGradients(focus=WEIGHTS, baseline="mean"))
    s = scale_of(found, WEIGHTS)
    ends = (1 - s) * x + s * x.mean((2, 3), keepdim=True)
    plain = fringe.attribute(model, x, method="ig", baseline=ends)
    torch.testing.assert_close(found.values, plain.values, rtol=1e-10, atol=1e-12)
    length = (x - x.mean((2, 3), keepdim=True)).flatten(1).norm(dim=1)
    torch.testing.assert_close(
        found.diagnostics["focus_length_ratio"], length / (x - ends).flatten(1).norm(dim=1), rtol=1e-9, atol=0
    )
    straight = fringe.attribute(model, x, method=fringe.Straight(fringe.IntegratedGradients(focus=WEIGHTS)))
    torch.testing.assert_close(
        straight.endpoint_score, model((1 - s) * x).gather(1, found.target[:, None])[:, 0], rtol=1e-6, atol=1e-9
    )


def test_of_several_classes_the_weight_is_the_largest_of_theirs():
    model, x = digits(4)
    target = model(x).topk(3).indices
    method = fringe.FRInGe(focus="cam")
    found = fringe.attribute(model, x, method=method, target=target)
    classifier = fringe.Classifier(model)
    with classifier.session(x.device):
        each = [FocusedPaths("cam", 0.2).weights(problem_of(model, x, target[:, k])) for k in range(3)]
    weights = torch.stack(each).amax(0)
    given = fringe.attribute(model, x, method=fringe.FRInGe(focus=weights), target=target)
    torch.testing.assert_close(found.values, given.values, rtol=1e-9, atol=1e-12)
    alone = fringe.attribute(model, x, method=fringe.FRInGe(focus=weights), target=target[:, 1])
    same = found.diagnostics["focus_floor"] == alone.diagnostics["focus_floor"]
    assert same.any()
    torch.testing.assert_close(found.values[same, 1], alone.values[same], rtol=1e-9, atol=1e-12)


# -- the ladder --------------------------------------------------------------------------------------------------------


class LeftHalf(nn.Module):
    """Two classes by the left half of an image (1, 4, 8) alone."""

    def forward(self, x):
        left = 0.1 * x[:, 0, :, :4].sum((1, 2))
        return torch.stack([left, -left], 1)


def test_the_floor_rises_for_those_images_alone_until_the_path_has_done_its_work():
    """A path that moves the half that is read f times as freely needs more than its ten steps, if f is small."""
    x = torch.ones(3, 1, 4, 8, dtype=torch.float64) + 0.01 * normal(3, 1, 4, 8)
    weights = torch.zeros(3, 1, 4, 8)
    weights[:, :, 0, 7] = weights[1, :, :, :4] = 1.0
    settings = {"steps": 10, "until": "budget", "eta_max": 2.0, "tau": 1e9, "delta_euc": None}
    settings |= {"temperature": 1.0, "gamma_prior": 0.0}
    common = {"gamma_step": 0.0, "damping": 1e-2, **settings}
    needs = fringe.FRInGe(focus=weights, focus_floor=0.01, **common)
    heard = []
    found = fringe.attribute(
        LeftHalf().eval(), x, method=needs, telemetry=True, progress=lambda *now: heard.append(now)
    )
    floors = found.diagnostics["focus_floor"].tolist()
    assert floors[1] == 0.01
    assert floors[0] == floors[2] == 0.3
    assert found.verdict == ("ok",) * 3
    assert heard[-1][0] == heard[-1][1]
    for i, floor in enumerate(floors):
        one = dataclasses.replace(needs, focus=weights[i : i + 1], focus_floor=floor)
        alone = fringe.attribute(LeftHalf().eval(), x[i : i + 1], method=one, telemetry=True)
        assert alone.diagnostics["focus_floor"].item() == floor
        torch.testing.assert_close(found.values[i], alone.values[0], rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(found.trajectory[i].cumulative[-1], found.values[i], rtol=1e-9, atol=1e-12)
        before = [f for f in (0.01, *_focus.LADDER) if f < floor]
        for lower in before:  # at each lower floor the path had not done it
            region, part = (
                FocusedPaths(weights[i : i + 1].tolist(), lower),
                problem_of(LeftHalf().eval(), x[i : i + 1]),
            )
            with part.model.session(x.device):
                tried = one._walk(part, 1 - (1 - lower) * (1 - region.weights(part)))
            assert tried.verdict[0] != "ok"


def test_the_control_that_diffuses_the_image_keeps_its_floor_though_it_comes_no_nearer():
    model, x = digits(3)
    method = Diffusion(focus="cam")
    found = fringe.attribute(model, x, method=method)
    assert set(found.verdict) & {"short", "stalled"}
    assert found.diagnostics["focus_floor"].tolist() == [0.2] * 3


def test_the_advice_says_how_far_a_path_is_outside_of_its_region(recwarn):
    """How long it is tells the size of a region, and not whether it is right: nothing is said of that."""
    model, x = digits(3)
    weights = torch.zeros(3, 1, 32, 32)
    weights[0, :, :4, :4] = weights[1] = weights[2] = 1.0
    found = fringe.attribute(model, x, method=fringe.FRInGe(focus=weights))
    assert not recwarn.list
    assert re.search(r"; focused with floor 0.2, [2-5]\.\d\d times as long as in the input$", found.advice[0])
    assert found.advice[1].endswith("; focused with floor 0.2, 1.00 times as long as in the input")
    assert found.to_dataframe()["focus_floor"].tolist() == found.diagnostics["focus_floor"].tolist()


# -- the weights -------------------------------------------------------------------------------------------------------


def test_the_class_activation_map_is_that_of_the_layer():
    model, x = digits(3)
    problem = problem_of(model, x)
    with problem.model.session(x.device):
        layer = find_cam_layer(problem)
        expected = upsample(cam_maps(problem, layer)[0].relu(), (32, 32))[:, 0]
        assert torch.equal(FocusedPaths("cam", 0.2).weights(problem), expected)


def test_contrast_is_the_class_less_the_largest_of_the_four_most_probable_others():
    model, x = digits(3)
    order = model(x).argsort(1, descending=True)
    target = order[:, 1]  # not the predicted one, which is then among the others
    problem = problem_of(model, x, target)
    with problem.model.session(x.device):
        layer = find_cam_layer(problem)

        def cam(classes):
            return cam_maps(problem_of(model, x, classes), layer)[0].relu()[:, 0]

        others = torch.stack([cam(order[:, k]) for k in (0, 2, 3, 4)]).amax(0)
        expected = upsample((cam(target) - others).relu()[:, None], (32, 32))[:, 0]
        torch.testing.assert_close(FocusedPaths("contrast", 0.2).weights(problem), expected, rtol=1e-9, atol=1e-12)
    several = problem_of(model, x, order[:, :2])
    with several.model.session(x.device):
        both = FocusedPaths("contrast", 0.2).weights(several)
    assert (both >= expected - 1e-9).all()


@pytest.mark.parametrize("method", [fringe.FRInGe(), fringe.IntegratedGradients(steps=5)])
def test_a_network_without_a_layer_in_space_is_explained_without_a_focus(method):
    model, x = Linear(), inputs(3)
    plain = fringe.attribute(model, x, method=method)
    with pytest.warns(UserWarning, match=r"images \[0, 1, 2\] are not focused: the model has no layer"):
        found = fringe.attribute(model, x, method=dataclasses.replace(method, focus="cam"))
    assert torch.equal(found.values, plain.values)
    assert found.diagnostics["focus_floor"].tolist() == [1.0] * 3
    assert found.diagnostics["focus_found"].tolist() == [0.0] * 3
    assert all(advice.endswith("; unfocused: there is no region") for advice in found.advice)


def test_an_image_whose_map_is_zero_is_explained_without_a_focus():
    model, x = digits(3)
    weights = torch.ones(3, 1, 32, 32)
    weights[1] = 0.0
    with pytest.warns(UserWarning, match=r"images \[1\] are not focused: the weights are zero"):
        found = fringe.attribute(model, x, method=fringe.FRInGe(focus=weights))
    assert found.diagnostics["focus_found"].tolist() == [1.0, 0.0, 1.0]
    torch.testing.assert_close(found.values[1], fringe.attribute(model, x[1:2]).values[0], rtol=1e-9, atol=1e-12)

    class Negative(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU()).double()

        def forward(self, x):
            size = self.layers(x).mean((1, 2, 3))
            return torch.stack([size, -size], 1)

    with pytest.warns(UserWarning, match=r"images \[0, 1\] are not focused: the class activation map is zero"):
        fringe.attribute(Negative().eval(), inputs(2), method=fringe.FRInGe(focus="cam"), target=1)


def test_weights_follow_the_images_that_are_left_and_series_without_padding():
    model, x = digits(3)
    weights = torch.rand(3, 1, 32, 32, generator=torch.Generator().manual_seed(1))
    bad = x.clone()
    bad[0, 0, 0, 0] = torch.nan
    method = fringe.FRInGe(focus=weights)
    found = fringe.attribute(model, bad, method=method, bad_images="mark")
    torch.testing.assert_close(found.values[1:], fringe.attribute(model, x, method=method).values[1:])
    each = fringe.attribute(model, x, method=fringe.IntegratedGradients(steps=4, focus=weights), target="top2")
    one = fringe.attribute(model, x, method=fringe.IntegratedGradients(steps=4, focus=weights))
    torch.testing.assert_close(each.values[:, 0], one.values)

    series = nn.Sequential(nn.Conv1d(2, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 12, 3)).double().eval()
    z, lengths = normal(3, 2, 12), [12, 7, 12]
    weights = torch.rand(3, 1, 12, generator=torch.Generator().manual_seed(1))
    for focus in (weights, "cam"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            together = fringe.attribute(series, z, method=fringe.FRInGe(focus=focus), lengths=lengths)
            focus = focus if isinstance(focus, str) else focus[1:2]
            alone = fringe.attribute(series, z[1:2], method=fringe.FRInGe(focus=focus), lengths=[7])
        torch.testing.assert_close(together.values[1], alone.values[0], rtol=1e-9, atol=1e-12)
        assert not together.values[1, :, 7:].any()


# -- the settings ------------------------------------------------------------------------------------------------------


def test_weights_and_names_are_settings_like_others():
    weights = torch.rand(2, 1, 2, 3)
    method = fringe.FRInGe(focus=weights, focus_floor=0)
    copy = fringe.FRInGe.from_record(json.loads(json.dumps(method.record())))
    assert copy == method
    assert torch.equal(torch.tensor(copy.focus), weights)
    assert fringe.FRInGe().with_text({"focus": "cam", "focus_floor": "0.05"}) == fringe.FRInGe(
        focus="cam", focus_floor=0.05
    )
    assert fringe.IntegratedGradients().with_text({"focus": "[[[0, 1]]]"}).focus == (((0.0, 1.0),),)
    assert get_method("fringe").focus == "none"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("gradcam", "focus: got 'gradcam'"),
        (torch.tensor([[0.5, 1.5]]), "focus: got weights from 0.5 to 1.5, expected 0 to 1"),
        (torch.tensor([[0.5, torch.nan]]), "focus: got weights from nan to nan"),
        ([1.0], r"focus: got shape \(1,\), expected weights \(B, 1, \*space\)"),
        (object(), "focus: got <object"),
    ],
)
def test_what_is_no_focus_is_refused(value, message):
    with pytest.raises(fringe.InputError, match=message):
        fringe.FRInGe(focus=value)


def test_weights_of_another_shape_are_named():
    model, x = digits(2)
    with pytest.raises(
        fringe.InputError, match=r"focus: got weights of shape \(3, 1, 32, 32\), expected \(2, 1, 32, 32\)"
    ):
        fringe.attribute(model, x, method=fringe.FRInGe(focus=torch.ones(3, 1, 32, 32)))
    one = fringe.attribute(model, x, method=fringe.FRInGe(focus=torch.ones(1, 1, 32, 32)))
    assert one.diagnostics["focus_found"].all()


# -- the region of a result --------------------------------------------------------------------------------------------


def test_a_result_holds_the_weights_of_its_focus_and_none_where_a_path_is_unfocused(tmp_path):
    x = torch.ones(2, 1, 4, 8, dtype=torch.float64) + 0.01 * normal(2, 1, 4, 8)
    weights = torch.zeros(2, 1, 4, 8)
    weights[0, :, :, :4], weights[1, :, 0, 7] = 0.75, 1.0  # the second half is not read: its path is not focused
    short = {"steps": 3, "until": "budget", "eta_max": 1.0, "tau": 1e9, "delta_euc": None, "gamma_prior": 0.0}
    method = fringe.FRInGe(focus=weights, focus_floor=0.5, gamma_step=0.0, temperature=1.0, **short)
    found = fringe.attribute(LeftHalf().eval(), x, method=method)
    assert found.diagnostics["focus_floor"].tolist() == [0.5, 1.0]
    torch.testing.assert_close(found.region, torch.stack([weights[0], 0 * weights[1]]).double())
    assert (found.focus_weights(0) == weights[0, 0].numpy()).all()
    assert found.focus_weights(1) is None
    assert fringe.attribute(LeftHalf().eval(), x, method="ig").focus_weights(0) is None
    found.save(tmp_path / "a.safetensors")
    assert torch.equal(fringe.load(tmp_path / "a.safetensors")[::-1].region, found.region.flip(0))


@pytest.mark.filterwarnings("ignore:the paths of images")
def test_classes_share_the_region_of_one_path_and_have_their_own_where_each_has_a_path():
    model, x = digits(2)
    focused = {"focus": "cam", "focus_floor": 0.2}
    shared, own = (
        fringe.attribute(model, x, method=method, target="top2")
        for method in (fringe.FRInGe(**focused), fringe.IntegratedGradients(steps=8, **focused))
    )
    assert shared.region.shape == (2, 1, 32, 32)
    assert own.region.shape == (2, 2, 1, 32, 32)
    for k in range(2):
        alone = fringe.attribute(
            model, x, method=fringe.IntegratedGradients(steps=8, **focused), target=own.target[:, k]
        )
        torch.testing.assert_close(own.of_class(k).region, alone.region)
        assert (own.focus_weights(1, k) == alone.focus_weights(1)).all()
        assert torch.equal(shared.of_class(k).region, shared.region)
