"""Networks set by hand: their logits, the exact maps, and what insertion and deletion make of them."""

import pytest
import torch

from fringe import FRInGe, InputError, attribute
from fringe.attribution import get_method
from fringe.attribution._focus import FocusedPaths
from fringe.baselines import InputSpace
from fringe.bench.scenes import SCENES, get_scene
from fringe.classifier import Classifier
from fringe.metrics import EvaluationContext, evaluate
from fringe.paths import Problem

NAMES = ("colour_counter", "patch_and", "fooled_cam")


def prepared(name, count=6, seed=0):
    scene = get_scene(name)
    network = scene.network(0, None, ())
    examples = scene.examples([network], (), count, seed)
    x, truth = map(torch.stack, zip(*(scene.make(example, network) for example in examples), strict=True))
    low, high = network.preprocessing.bounds()
    problem = Problem.of(Classifier(network.module), x, target=1, domain=InputSpace(low, high))
    return network, EvaluationContext(problem, truth)


def maps_of(context, method):
    with context.problem.model.session(torch.device("cpu")):
        return get_method(method).attribute(context.problem).values


@pytest.mark.parametrize("name", NAMES)
def test_the_truth_and_nothing_else_makes_the_logit(name):
    network, context = prepared(name)
    x, truth = context.problem.inputs, context.truth
    torch.testing.assert_close(network.module(x), torch.tensor([[0.0, 6.0]]).expand(6, 2))
    without = torch.where(truth[:, None], torch.zeros_like(x), x)
    alone = torch.where(truth[:, None], x, torch.rand(1, generator=torch.Generator().manual_seed(1)))
    assert network.module(without).abs().max() == 0
    torch.testing.assert_close(network.module(alone), network.module(x))


def test_every_red_pixel_counts_the_same():
    _, context = prepared("colour_counter")
    values = maps_of(context, "ig").sum(1)
    torch.testing.assert_close(values[context.truth], torch.full((72,), 0.5), rtol=0.05, atol=0)
    assert values[~context.truth].abs().max() == 0


@pytest.mark.parametrize("name", NAMES)
def test_integrated_gradients_finds_the_truth_exactly(name):
    _, context = prepared(name)
    scores = evaluate(context, maps_of(context, "ig"), ["mass_inside", "rank_accuracy", "expected_hit"])
    for scored in scores.values():
        torch.testing.assert_close(scored.values, torch.ones(6).double())


def test_the_texture_draws_the_class_activation_map_and_the_mark_decides():
    """Grad-CAM lies on the texture; HiResCAM and the gradient lie on the mark, exactly."""
    _, context = prepared("fooled_cam")
    texture = context.problem.inputs[:, 2] == 1
    assert (texture.flatten(1).sum(1) >= 140).all()
    assert not bool((texture & context.truth).any())

    def shares(method, pixels):
        values = maps_of(context, method).sum(1).clamp_min(0)
        return (values * pixels).flatten(1).sum(1) / values.flatten(1).sum(1)

    assert shares("gradcam", texture).min() > 0.98
    assert shares("hirescam", context.truth).min() == 1
    assert shares("ig", context.truth).min() > 0.99


def test_a_weak_texture_adds_its_share_past_the_last_layer():
    """The closed form of each pixel: 6 / 4 on the mark, 2.25 / 144 on the texture, which the mark may cover."""
    network, context = prepared("fooled_cam:weak_texture")
    x, truth = context.problem.inputs, context.truth
    exact = 1.5 * truth + 2.25 / 144 * (x[:, 2] == 1)
    torch.testing.assert_close(network.module(x)[:, 1], exact.sum((1, 2)))
    torch.testing.assert_close(maps_of(context, "ig").sum(1), exact, rtol=0.05, atol=1e-6)
    assert network.module(torch.where(exact[:, None] > 0, torch.zeros_like(x), x)).abs().max() == 0
    layer = network.module.last.register_forward_hook(lambda _, __, seen: torch.zeros_like(seen))
    torch.testing.assert_close(network.module(x)[:, 1], (exact - 1.5 * truth).sum((1, 2)))
    layer.remove()


def test_the_rising_floor_keeps_the_mark_that_a_fixed_floor_hides():
    """Shares of the mark: .92 to .95 without a focus, .18 to .33 with the floor at zero, over .8 with the ladder."""
    network, context = prepared("fooled_cam:weak_texture")
    module, x = network.module, context.problem.inputs
    method = FRInGe(focus="cam", focus_floor=0.0)

    def on_the_mark(values):
        size = values.sum(1).abs()
        return (size * context.truth).flatten(1).sum(1) / size.flatten(1).sum(1)

    plain, rising = (attribute(module, x, method=which, target=1) for which in (FRInGe(), method))
    problem = Problem.of(Classifier(module), x, target=1)
    with problem.model.session(x.device):
        weights = FocusedPaths("cam", 0.0).weights(problem)
        fixed = method._walk(problem, weights)  # with the floor zero alone
    assert on_the_mark(plain.values).min() > 0.9
    assert on_the_mark(fixed.values).max() < 0.35
    assert set(fixed.verdict) <= {"short", "stalled"}
    assert on_the_mark(rising.values).min() > 0.8
    assert rising.verdict == ("ok",) * 6
    assert rising.diagnostics["focus_floor"].tolist() == [0.2] * 6


def test_the_and_needs_both_patches():
    network, context = prepared("patch_and")
    red = context.truth & (context.problem.inputs[:, 0] == 1)
    assert red.flatten(1).sum(1).tolist() == [9] * 6
    for patch in (red, context.truth & ~red):
        x = torch.where(patch[:, None], torch.zeros(()), context.problem.inputs)
        assert network.module(x).abs().max() == 0


def test_deletion_cannot_tell_half_of_the_truth_from_all_of_it():
    """Known trap: without one patch the logit is zero already, so that a map of one patch has the deletion score of
    both; and what the removed pixels become, which the network never saw, decides on the order of the two."""
    _, context = prepared("patch_and")
    every = context.truth[:, None].float().expand_as(context.problem.inputs).contiguous()
    half = every * (context.problem.inputs[:, :1] == 1)
    metrics = ["rank_accuracy", "deletion:zero", "deletion:paper"]
    (full, one) = (evaluate(context, maps, metrics) for maps in (every, half))
    assert full["rank_accuracy"].values.min() == 1
    assert one["rank_accuracy"].values.max() < 0.6
    torch.testing.assert_close(one["deletion:zero"].values, full["deletion:zero"].values)
    assert one["deletion:paper"].values.mean() > 2 * full["deletion:paper"].values.mean()


def test_examples_are_made_again_from_plain_data():
    scene = get_scene("patch_and")
    network = scene.network(0, None, ())
    first, second = (scene.examples([network], (), 3, 4) for _ in range(2))
    assert first == second
    for one, other in zip(first, second, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(scene.make(one, network), scene.make(other, network), strict=True))
    assert network.digest == scene.network(0, None, ()).digest


@pytest.mark.parametrize(
    ("name", "mark"),
    [("colour_counter", {"pixels": 1}), ("patch_and", {"side": 1}), ("fooled_cam", {"side": 1, "texture": 2})],
)
def test_marks_are_drawn_over_the_whole_image(name, mark):
    """Each colour at every pixel; of two patches one in each half."""
    scene = SCENES[name](size=8, **mark)
    network = scene.network(0, None, ())
    examples = scene.examples([network], (), 600, 0)
    x, truth = map(torch.stack, zip(*(scene.make(example, network) for example in examples), strict=True))
    colours = (0, 2) if name == "patch_and" else (0,)
    assert all((truth & (x[:, colour] == 1)).any(0).all() for colour in colours)
    if len(colours) == 2:
        assert (truth.unflatten(2, (2, 4)).sum((1, 3)) == 1).all()


def test_settings_are_checked():
    assert SCENES["patch_and"](side=8).side == 8  # half of 16
    with pytest.raises(InputError, match="pixels: got 300, expected at most 256"):
        SCENES["colour_counter"](pixels=300)
    with pytest.raises(InputError, match="side: got 9"):
        SCENES["patch_and"](side=9)
    with pytest.raises(InputError, match="texture: got 17, expected at most 16"):
        SCENES["fooled_cam"](texture=17)
    with pytest.raises(InputError, match="gridpgg"):
        get_scene("gridpgg")
    assert get_scene("gridpg:nine").cells == 3
