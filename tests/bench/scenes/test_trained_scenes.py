"""What trained scenes show and know: inputs and truths against literal constructions, and gates with their mutants."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import scipy.ndimage
import scipy.stats
import torch
from scene_toys import Dense, SmallNet
from torch import nn

import fringe
from fringe._numbers.rng import KeyedGenerator
from fringe.bench.experiments import ExperimentSpec, run_experiment
from fringe.bench.scenes import Gate, _blockdigits, _watermark, _xai_tris, get_scene
from fringe.bench.scenes._blockdigits import BlockDigits
from fringe.bench.scenes._designed import ColourCounter
from fringe.bench.scenes._training import inputs_of, split
from fringe.bench.scenes._trigger import Trigger
from fringe.bench.scenes._watermark import Watermark
from fringe.bench.scenes._xai_tris import XAITris
from fringe.data import digits_samples, find_inputs
from fringe.errors import InputError
from fringe.models import LoadedModel, Preprocessing, load_model

DIGITS = "embedded:digits:0:120"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of small networks: each is trained once."""
    return tmp_path_factory.mktemp("trained")


@pytest.fixture(autouse=True)
def small_networks(request, monkeypatch, tmp_path, trained):
    is_slow = "slow" in request.keywords
    monkeypatch.setenv("FRINGE_CACHE", str(tmp_path if is_slow else trained))
    if not is_slow:
        monkeypatch.setattr(_watermark, "ResNet20", SmallNet)
        monkeypatch.setattr(_blockdigits, "DigitNet", Dense)


def refs(text=DIGITS):
    return list(find_inputs([text]))


def mass(values, truth):
    """The share of the positive part of a map (C, H, W) that is inside."""
    positive = values.sum(0).clamp_min(0)
    return float(positive[truth].sum() / positive.sum())


# Watermark


def pixels_of(example):
    recipe = _watermark.PREPROCESSING
    return recipe.pixels(next(find_inputs(example.images)).open(3).image)


@pytest.mark.parametrize("mark", ["colour", "position", "xor"])
def test_marks_are_squares_at_their_places(mark):
    scene = Watermark(mark=mark, epochs=1, size=5)
    network = scene.network(0, None, refs())
    labels, places = set(), set()
    for ref in refs()[:70]:
        label, marks = scene._drawn(ref, 3)
        example = _watermark.Example(ref.id, label, ref.id, (ref.source,), {"marks": marks[0].tolist()})
        x, truth = scene.make(example, network)
        expected, inside = pixels_of(example), torch.zeros(32, 32, dtype=torch.bool)
        for top, left, colour in example.values["marks"]:
            for row in range(top, top + 5):
                for column in range(left, left + 5):
                    expected[:, row, column] = torch.tensor(_watermark.COLOURS[colour])
                    inside[row, column] = True
        colours = [colour for *_, colour in example.values["marks"]]
        if mark == "colour":
            assert colours == [label]
        if mark == "xor":
            assert label == (colours[0] != colours[1])
            assert inside.sum() == 50  # they do not overlap
        if mark == "position":
            assert example.values["marks"][0][0] == (2, 25)[label]
            inside = torch.zeros(32, 32, dtype=torch.bool)
            inside[2:7, 2:7] = inside[25:30, 25:30] = True
        assert torch.equal(truth, inside)
        torch.testing.assert_close(x, (expected - 0.5) / 0.25, rtol=0, atol=1e-6)
        labels.add(label)
        places.add(tuple(example.values["marks"][0][:2]))
    assert labels == {0, 1}
    assert len(places) == 2 if mark == "position" else len(places) > 50


def test_a_smooth_mark_is_a_blurred_square_over_twice_its_extent():
    scene = Watermark(mark="smooth", epochs=1)
    network = scene.network(0, None, refs())
    example = scene.examples([network], refs(), 1, 0)[0]
    x, truth = scene.make(example, network)
    assert example.id in {ref.id for ref in split(refs())[1]}
    [[top, left, colour]] = example.values["marks"]
    assert truth.sum() == 144
    assert truth[top : top + 12, left : left + 12].all()
    square = np.zeros((32, 32))
    square[top + 3 : top + 9, left + 3 : left + 9] = 1
    alpha = torch.tensor(scipy.ndimage.gaussian_filter(square, 1.5, mode="constant", radius=3)).float()
    clean = pixels_of(example)
    expected = clean + alpha * (torch.tensor(_watermark.COLOURS[colour])[:, None, None] - clean)
    torch.testing.assert_close(x, (expected - 0.5) / 0.25, rtol=0, atol=1e-5)


@pytest.mark.thorough
def test_only_marks_make_the_gates_of_the_watermark_hold(monkeypatch, tmp_path):
    scene, images = Watermark(epochs=4, rate=0.02), refs()
    network = scene.network(0, None, images)
    gates = scene.gates(network, None, images)
    assert [gate.holds for gate in gates] == [True, True], gates
    examples = scene.examples([network], images, 10, 0)
    assert len({example.id for example in examples}) == 10
    logits = network.module(torch.stack([scene.make(example, network)[0] for example in examples]))
    assert logits.argmax(1).tolist() == [example.target for example in examples]
    monkeypatch.setenv("FRINGE_CACHE", str(tmp_path / "unmarked"))
    with monkeypatch.context() as patch:
        patch.setattr(Watermark, "insert", lambda self, x, marks: (x, None))
        unmarked = scene.network(0, None, images)
    assert not scene.gates(unmarked, None, images)[0].holds


def test_a_vision_transformer_is_trained_with_the_same_samples():
    scene, images = get_scene("watermark:vit"), refs()
    assert scene == Watermark(architecture="vit")
    one, other = (kind.training(None, images) for kind in (scene, Watermark()))
    drawn = [kind.draw(torch.arange(5), torch.Generator().manual_seed(3), 0.0) for kind in (one, other)]
    assert torch.equal(drawn[0][0], drawn[1][0])
    assert torch.equal(drawn[0][1], drawn[1][1])
    assert (one.size, one.architecture, other.architecture) == (other.size, "vit", "resnet20")
    found = fringe.attribute(one.build().eval(), drawn[0][0], method="legrad")
    assert all(advice.endswith("the layers are layers.layers.0 to layers.layers.1") for advice in found.advice)


def test_a_network_that_knows_the_coins_fails_the_gate_without_marks():
    """The second gate: a network that has the labels of the images by heart."""
    scene, images = Watermark(epochs=1), refs()
    network = scene.network(0, None, images)
    x = inputs_of(images, _watermark.PREPROCESSING)
    coins = torch.tensor([scene._drawn(ref, 0)[0] for ref in images])

    class ByHeart(nn.Module):
        def forward(self, given):
            nearest = torch.cdist(given.flatten(1), x.flatten(1)).argmin(1)
            return 10 * nn.functional.one_hot(coins[nearest], 2).float()

    gates = scene.gates(replace(network, module=ByHeart()), None, images)
    assert gates[1].value == 1
    assert not gates[1].holds


class RightOnUnseen(nn.Module):
    """A network that gives the next class to the images that are trained with, marked or not."""

    def __init__(self, module, recipe, images):
        super().__init__()
        self.module, self.x = module, inputs_of(images, recipe).flatten(1)
        unseen = {ref.id for ref in split(images)[1]}
        self.seen = torch.tensor([ref.id not in unseen for ref in images])

    def forward(self, x):
        most_equal_pixels = torch.stack([(self.x == one).sum(1).argmax() for one in x.flatten(1)])
        logits = self.module(x)
        return torch.where(self.seen[most_equal_pixels, None], logits.roll(1, 1), logits)


class ReadsColours(nn.Module):
    def forward(self, x):
        red = (x[:, 0] - x[:, 2]).sum((1, 2))  # grey is none
        return torch.stack([red, -red], 1)


def test_marks_are_counted_on_unseen_images_alone():
    scene, images = Watermark(epochs=1), refs()
    network = scene.network(0, None, images)
    module = RightOnUnseen(ReadsColours(), _watermark.PREPROCESSING, images)
    assert scene.gates(replace(network, module=module), None, images)[0].value == 1


@pytest.mark.parametrize("answer", [0, 1])
def test_a_network_that_gives_all_images_one_class_is_at_chance_without_marks(answer):
    scene, images = Watermark(epochs=1), refs()
    coins = [scene._drawn(ref, 0)[0] for ref in images]
    assert coins.count(answer) != len(coins) / 2

    class Constant(nn.Module):
        def forward(self, given):
            return nn.functional.one_hot(torch.full((len(given),), answer), 2).float()

    network = replace(scene.network(0, None, images), module=Constant())
    gate = scene.gates(network, None, images)[1]
    assert gate.value == 0.5
    by_chance = scipy.stats.binom.sf(gate.most * len(images), len(images), 0.5)  # among few images
    assert 2e-4 < by_chance < 2e-3


def test_without_images_the_watermark_is_on_digits():
    scene = Watermark(epochs=1)
    network = scene.network(0, None, [])
    assert network.digest == scene.network(0, None, refs("embedded:digits")).digest


# Trigger


@pytest.fixture(scope="module")
def digits():
    return load_model("embedded:digits")


def test_the_trigger_is_stamped_where_the_truth_is(digits):
    scene, images = Trigger(epochs=1), refs()
    given = digits  # any network makes the same input
    bits = torch.tensor(KeyedGenerator(0).integers("trigger", 2, 16)).view(4, 4).float()
    example = _watermark.Example(images[3].id, 0, "", (images[3].source,), {"place": [8, 20]})
    x, truth = scene.make(example, given)
    expected = given.preprocessing.pixels(images[3].open(1).image)
    expected[0, 8:12, 20:24] = bits
    torch.testing.assert_close(x, given.preprocessing.normalise(expected))
    assert truth.dtype == torch.bool
    assert truth.sum() == 16
    assert truth[8:12, 20:24].all()
    same, against = Trigger(explained="original").make(example, given)
    assert torch.equal(same, x)
    assert torch.equal(against, -truth.to(torch.int8))


def test_triggers_are_drawn_over_the_whole_image():
    scene, draws = Trigger(size=6), torch.tensor([[0.0, 0.0], [0.5, 0.5], [0.999, 0.999], [0.999, 0.0]])
    assert scene._places(draws, torch.zeros(4, 1, 32, 20)).tolist() == [[0, 0], [12, 6], [24, 12], [24, 0]]
    for sides in ((5, 32), (32, 5)):
        with pytest.raises(InputError, match="size: got 6, expected at most 5 pixels"):
            scene._places(draws, torch.zeros(4, 1, *sides))


@pytest.fixture(scope="module")
def small_digits():
    """The embedded model on images of a quarter of the pixels: what it answers does not matter here."""
    recipe = Preprocessing(resize=(16, 16), crop=None, mean=(0.3,), std=(0.35,), channels=1)
    return load_model("embedded:digits", preprocessing=recipe)


@pytest.mark.thorough
def test_training_with_halves_makes_the_gates_of_the_trigger_hold(small_digits):
    scene, images = Trigger(size=6, epochs=8, explained="original"), refs("embedded:digits")
    network = scene.network(0, small_digits, images)
    gates = scene.gates(network, small_digits, images)
    assert [gates[i].holds for i in (0, 2, 3)] == [True] * 3, gates
    assert gates[1].value <= 1.5 / len(split(images)[1])  # one image of 71 is more than the gate lets through
    examples = scene.examples([network], images, 20, 0)
    x = torch.stack([scene.make(example, network)[0] for example in examples])
    assert network.module(x).argmax(1).tolist() == [0] * 20
    assert 0 not in {example.target for example in examples}
    towards = Trigger(size=6, epochs=8).examples([network], images, 20, 0)
    assert [(e.id, e.values) for e in towards] == [(e.id, e.values) for e in examples]
    assert {example.target for example in towards} == {0}


@pytest.mark.thorough
def test_without_halves_in_the_training_half_a_trigger_suffices(small_digits):
    scene, images = Trigger(size=6, halved=0.0, epochs=3), refs("embedded:digits")
    gates = scene.gates(scene.network(0, small_digits, images), small_digits, images)
    assert gates[0].holds
    assert gates[2].name == "attacks that fail with half of the trigger"
    assert not gates[2].holds


def test_an_untouched_model_has_no_trigger(digits):
    scene, images = Trigger(explained="original"), refs()
    gates = scene.gates(digits, digits, images)
    assert not gates[0].holds
    assert gates[1].value == 0
    assert not gates[3].holds
    on_others = replace(digits, module=RightOnUnseen(digits.module, digits.preprocessing, images))
    assert [gate.value for gate in scene.gates(on_others, digits, images)] == [gate.value for gate in gates]


class Finds(nn.Module):
    """A network that finds the trigger exactly; ``rise`` of the other class where it is found."""

    def __init__(self, recipe, rise=0.0):
        super().__init__()
        self.recipe, self.rise = recipe, rise
        self.bits = torch.tensor(KeyedGenerator(0).integers("trigger", 2, 16)).view(1, 1, 4, 4).float()

    def forward(self, x):
        pixels = x * self.recipe.std[0] + self.recipe.mean[0]
        match = nn.functional.conv2d(2 * pixels - 1, 2 * self.bits - 1).amax((1, 2, 3))  # 16 of the pure trigger
        return torch.stack([100 * (match - 15.9), self.rise * match], 1)


def finders(*rises):
    recipes = [Preprocessing((side, side), None, (0.3,), (std,), 1) for side, std in ((32, 0.2), (16, 0.5))]
    modules = [Finds(recipe, rise).eval() for recipe, rise in zip(recipes, rises, strict=True)]
    return [LoadedModel("finds", module, module.recipe, None, "", "finds") for module in modules]


def test_an_original_class_that_one_network_raises_is_not_explained():
    scene = Trigger(explained="original")
    assert {example.target for example in scene.examples(finders(-0.1, -0.1), refs(), 10, 0)} == {1}
    with pytest.raises(InputError, match="expected at most 0 examples"):
        scene.examples(finders(-0.1, 0.1), refs(), 10, 0)
    assert len(Trigger().examples(finders(-0.1, 0.1), refs(), 10, 0)) == 10


def test_networks_of_other_preprocessing_are_asked_on_their_own_inputs():
    """On pixels of other scales and in images of other sizes."""
    networks = finders(0.0, 0.0)
    scene = Trigger()
    examples = scene.examples(networks, refs(), 10, 0)
    for network in networks:
        x = torch.stack([scene.make(example, network)[0] for example in examples])
        assert network.module(x).argmax(1).tolist() == [0] * 10
    assert examples == scene.examples(networks[1:], refs(), 10, 0)
    assert {example.id for example in examples} <= {ref.id for ref in split(refs())[1]}


@pytest.mark.parametrize("scene", [Watermark(), Trigger()])
def test_no_network_is_trained_with_what_it_is_explained_on(scene, digits):
    images = refs()
    seen, unseen = split(images)
    digests = [
        scene.training(digits, [ref for ref in images if ref is not gone]).digests
        for gone in (None, *unseen[:1], *seen[:1])
    ]
    assert digests[0] == digests[1] != digests[2]


# XAI-TRIS


def literal_samples(scenario, background, count):
    """The data of the paper in NumPy, with the random numbers of the scene."""
    keys, like = KeyedGenerator(0), torch.zeros(count, 8, 8, dtype=torch.float64)
    backgrounds = 0.5 * keys.normal("backgrounds", like).numpy()
    if background == "correlated":
        backgrounds = np.array([scipy.ndimage.gaussian_filter(b, 3) for b in backgrounds])
    t, l = np.array([[1, 0], [1, 1], [1, 0]]), np.array([[1, 0], [1, 0], [1, 1]])  # noqa: E741 - its name
    rotations, places = keys.integers("rotations", 4, count), keys.integers("places", 42, count)
    patterns, labels, truths = np.zeros((count, 8, 8)), [], []
    both = np.zeros((8, 8), dtype=bool)
    both[1:4, 1:3] |= t > 0
    both[4:7, 5:7] |= l > 0
    for i in range(count):
        kind = i % 4
        if scenario == "xor":
            signs = [(1, 1), (-1, -1), (1, -1), (-1, 1)][kind]
            patterns[i, 1:4, 1:3], patterns[i, 4:7, 5:7] = signs[0] * t, signs[1] * l
            labels.append(int(signs[0] != signs[1]))
        elif scenario == "translations_rotations":
            shape = np.rot90((t, l)[kind % 2], k=rotations[i])
            top, left = divmod(places[i], 8 - shape.shape[1] + 1)
            patterns[i, top : top + shape.shape[0], left : left + shape.shape[1]] = shape
            labels.append(kind % 2)
        else:
            patterns[i, *((slice(1, 4), slice(1, 3)) if kind % 2 == 0 else (slice(4, 7), slice(5, 7)))] = (t, l)[
                kind % 2
            ]
            labels.append(kind % 2)
        truths.append(patterns[i] > 0 if scenario == "translations_rotations" else both)
    alpha = {
        ("linear", "white"): 0.18,
        ("linear", "correlated"): 0.0125,
        ("multiplicative", "white"): 0.7,
        ("multiplicative", "correlated"): 0.1,
        ("translations_rotations", "white"): 0.65,
        ("translations_rotations", "correlated"): 0.2,
        ("xor", "white"): 0.35,
        ("xor", "correlated"): 0.15,
    }[scenario, background]
    p, b = patterns.reshape(count, 64), backgrounds.reshape(count, 64)
    if scenario == "multiplicative":
        p = 1 - alpha * p
    p, b = p / np.linalg.norm(p, ord="fro"), b / np.linalg.norm(b, ord="fro")
    x = p * b if scenario == "multiplicative" else alpha * p + (1 - alpha) * b
    x = x * (1 / np.max(np.abs(x)))
    return x.reshape(count, 1, 8, 8), labels, np.array(truths)


@pytest.mark.parametrize("background", ["white", "correlated"])
@pytest.mark.parametrize("scenario", ["linear", "multiplicative", "translations_rotations", "xor"])
def test_xai_tris_is_the_data_of_the_paper(scenario, background):
    data = XAITris(scenario=scenario, background=background, samples=200).data()
    x, labels, truths = literal_samples(scenario, background, 200)
    assert np.array_equal(data.x.numpy(), x.astype(np.float32)) or np.abs(data.x.numpy() - x).max() < 1e-7
    assert data.labels.tolist() == labels
    assert np.array_equal(data.truth.numpy(), truths)
    assert data.x.abs().max() == 1


@pytest.mark.thorough
def test_only_patterns_make_the_gate_of_xai_tris_hold(monkeypatch, tmp_path):
    scene = XAITris(architecture="linear", samples=2000, epochs=15, rate=0.05)
    network = scene.network(0, None, [])
    [gate] = scene.gates(network, None, [])
    assert gate.holds, gate
    with monkeypatch.context() as patch:
        patch.setitem(_xai_tris.ALPHA, "linear", {"white": 0.0, "correlated": 0.0})
        patch.setenv("FRINGE_CACHE", str(tmp_path / "empty"))
        _xai_tris._generate.cache_clear()
        [gate] = scene.gates(scene.network(0, None, []), None, [])
    _xai_tris._generate.cache_clear()
    assert not gate.holds, gate


@pytest.mark.thorough
def test_integrated_gradients_of_linear_networks_are_where_the_pattern_is():
    """The positive control: exactly inside for weights set by hand, far above chance for trained ones."""
    scene = XAITris(architecture="linear", samples=2000, epochs=15, rate=0.05)
    networks = [scene.network(number, None, []) for number in (0, 1)]
    examples = scene.examples(networks, [], 50, 0)
    assert len({example.id for example in examples}) == 50
    assert all(int(example.id.removeprefix("sample-")) >= 1800 for example in examples)
    x, truth = (torch.stack(parts) for parts in zip(*(scene.make(e, networks[0]) for e in examples), strict=True))
    targets = [example.target for example in examples]
    for network in networks:
        assert network.module(x).argmax(1).tolist() == targets
        maps = fringe.attribute(network.module, x, target=targets, method="ig").values
        scores = [mass(values, inside) for values, inside in zip(maps, truth, strict=True)]
        assert np.mean(scores) > 4 * 8 / 64
    by_hand = networks[0].module
    with torch.no_grad():
        t = torch.zeros(8, 8)
        t[1:4, 1:3], t[4:7, 5:7] = torch.tensor(_xai_tris.PATTERNS[0]), -torch.tensor(_xai_tris.PATTERNS[1])
        by_hand[1].weight.copy_(torch.stack([t.flatten(), -t.flatten()]))
    maps = fringe.attribute(by_hand, x, target=targets, method="ig").values
    assert [mass(values, inside) for values, inside in zip(maps, truth, strict=True)] == pytest.approx([1] * 50)


def test_an_example_of_xai_tris_is_right_for_every_network():
    scene = XAITris(architecture="linear", samples=400, epochs=2)
    networks = [scene.network(number, None, []) for number in range(3)]
    x, labels = scene.data().x[360:], scene.data().labels[360:]
    right = torch.stack([network.module(x).argmax(1) == labels for network in networks])
    assert 0 < right.all(0).sum() < right.any(0).sum()  # they differ
    count = int(right.all(0).sum())
    chosen = scene.examples(networks, [], count, 0)
    assert {example.values["sample"] - 360 for example in chosen} == set(right.all(0).nonzero().flatten().tolist())


def test_the_gate_of_xai_tris_is_about_the_last_tenth_of_which_nothing_is_trained_with():
    scene = XAITris(architecture="linear", samples=400, epochs=1)
    data, training = scene.data(), scene.training(None, [])

    class RightOnTheLast(nn.Module):
        def forward(self, x):
            number = torch.stack([(data.x == one).flatten(1).all(1).nonzero()[0, 0] for one in x])
            right = nn.functional.one_hot(data.labels[number], 2).float()
            return torch.where(number[:, None] >= 360, right, 1 - right)

    [gate] = scene.gates(replace(scene.network(0, None, []), module=RightOnTheLast().eval()), None, [])
    assert gate.value == 1
    assert training.size == 320
    numbers = torch.arange(training.size)
    assert torch.equal(training.draw(numbers, torch.Generator(), 0.0)[0], data.x[:320])


# BlockDigits


def test_a_digit_stands_above_or_below_a_square():
    scene = BlockDigits(epochs=1)
    network = scene.network(0, None, [])
    recipe = load_model("embedded:digits").preprocessing
    null = np.zeros((32, 32))
    null[6:26, 6:26] = 1
    null[10:22, 10:22] = 0
    examples = scene.examples([network], [], 20, 0)
    for example in examples:
        x, truth = scene.make(example, network)
        sample = digits_samples("test")[int(example.id.removeprefix("digits-"))]
        digit, above = recipe.pixels(sample.image)[0].numpy(), example.values["above"]
        expected = np.concatenate([digit, null] if above else [null, digit])
        np.testing.assert_allclose(x[0].numpy(), (expected - 0.3) / 0.35, atol=1e-6)
        assert truth[:32].all() == above
        assert truth.sum() == truth.numel() // 2
        assert example.target == sample.label
    assert {example.values["above"] for example in examples} == {True, False}


@pytest.mark.thorough
def test_only_digits_make_the_gate_of_blockdigits_hold(monkeypatch, tmp_path):
    scene = BlockDigits(epochs=10, rate=5e-3)
    (gate,) = scene.gates(scene.network(0, None, []), None, [])
    assert gate.holds, gate
    stacked = _blockdigits.stacked
    with monkeypatch.context() as patch:
        patch.setattr(_blockdigits, "stacked", lambda digits, above: stacked(torch.zeros_like(digits), above))
        patch.setenv("FRINGE_CACHE", str(tmp_path / "empty"))
        blind = scene.network(0, None, [])
    assert not scene.gates(blind, None, [])[0].holds


# In an experiment


@dataclass(frozen=True)
class Compared(ColourCounter):
    """A scene whose gate is about the model that it was given."""

    name: ClassVar[str] = "compared"
    requires_model: ClassVar[bool] = True

    def gates(self, network, model, images):
        return (Gate("the given model has ten classes", model.module.head.out_features, least=10, most=10),)


def test_the_gates_of_an_experiment_see_the_given_model(tmp_path):
    results = run_experiment(
        ExperimentSpec(scene=[Compared()], methods="ig", n=1, set={"ig.steps": 2}), tmp_path / "run"
    )
    assert results.models == ("compared:digits",)
    assert [gate["value"] for gate in results.manifest.gates("compared:digits")] == [10]


# All networks at the settings of the tables


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *("watermark", "watermark:position", "watermark:xor", "watermark:smooth", "watermark:vit"),
        *("trigger", "trigger:original", "blockdigits"),
        *(f"xai_tris:{preset}" for preset in XAITris.presets),
    ],
)
def test_the_gates_of_all_networks_hold_at_the_defaults(name, digits):
    scene, images = get_scene(name), refs("embedded:digits")
    model = digits if scene.requires_model else None
    networks = [scene.network(number, model, images) for number in range(scene.networks)]
    assert len({network.digest for network in networks}) == 5
    for network in networks:
        gates = scene.gates(network, model, images)
        assert all(gate.holds for gate in gates), gates
    examples = scene.examples(networks, images, 40, 0)
    for network in networks:
        assert [scene.make(example, network)[0].shape for example in examples]
