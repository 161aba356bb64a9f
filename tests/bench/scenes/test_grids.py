"""Grids of digits: which images take part, what is explained, and the theorem of path methods."""

from dataclasses import replace

import pytest
import torch
from PIL import Image
from torch import nn

from fringe import METHODS, InputError
from fringe.baselines import InputSpace
from fringe.bench.scenes import get_scene
from fringe.bench.scenes._base import Example
from fringe.bench.scenes._grids import DiFull, GridPG, OneCell, RegionSum, SumOfCells, cell_of
from fringe.classifier import Classifier
from fringe.data import find_inputs
from fringe.metrics import EvaluationContext, evaluate
from fringe.models import load_model
from fringe.paths import Problem
from fringe.testing._checks import ToyProblems

IMAGES = tuple(find_inputs(["embedded:digits"]))
MODEL = load_model("embedded:digits")


def drawn(name, count=8, seed=0, networks=None, images=IMAGES):
    scene = get_scene(name)
    network = scene.network(0, MODEL, images)
    return scene, network, scene.examples(networks or [network], images, count, seed)


@pytest.mark.parametrize("name", ["gridpg", "gridpg:nine", "difull", "difull:last", "region", "two_objects"])
def test_images_of_a_grid(name):
    """Classes differ, but for the pair of the scenes that repeat one; the network is sure of each image."""
    scene, _, examples = drawn(name)
    cells, labels = scene.cells**2, {ref.source: ref.label for ref in IMAGES}
    grids = {example.cluster: example.images for example in examples}
    sources = [source for grid in grids.values() for source in grid]
    assert len(set(sources)) == len(sources)
    for grid in grids.values():
        classes = [labels[source] for source in grid]
        assert len(classes) == cells
        if name.startswith("gridpg"):
            assert len(set(classes)) == cells
        else:
            assert classes[0] == classes[-1]
            assert len(set(classes)) == cells - 1
            assert {example.target for example in examples if example.images == grid} == {classes[0]}
    x = torch.stack([MODEL.prepare([ref.open(channels=1).image])[0] for ref in IMAGES if ref.source in sources])
    assert MODEL.module(x).softmax(1).amax(1).min() >= 0.99


def test_every_class_of_a_grid_is_explained_and_its_cell_is_the_truth():
    scene, network, examples = drawn("gridpg")
    assert [example.cluster for example in examples] == ["grid-0000"] * 4 + ["grid-0001"] * 4
    assert network.module is MODEL.module
    for cell, example in enumerate(examples[:4]):
        x, truth = scene.make(example, network)
        part = x[:, *cell_of(x, 2, cell)]
        assert truth[cell_of(x, 2, cell)].all()
        assert truth.sum() * 4 == truth.numel()
        assert int(network.module(part[None]).argmax()) == example.target


def test_two_objects_are_numbered_and_weighed_against_each_other():
    scene, network, examples = drawn("two_objects", 2)
    assert network.module is MODEL.module
    x, truth = map(torch.stack, zip(*(scene.make(example, network) for example in examples), strict=True))
    assert truth.unique().tolist() == [0, 1, 2]
    first, last = truth[0, *cell_of(x, 2, 0)], truth[0, *cell_of(x, 2, 3)]
    assert bool((first == 1).all() & (last == 2).all())
    problem = Problem.of(Classifier(MODEL.module), x, target=[example.target for example in examples])
    context = EvaluationContext(problem, truth)
    maps = torch.zeros_like(x)
    maps[:, :, 0, 0], maps[0, :, -1, -1], maps[1, :, -1, -1], maps[:, :, 0, -1] = 2.0, 0.5, -3.0, 7.0
    scored = evaluate(context, maps, ["object_balance", "mass_inside"])
    assert scored["object_balance"].values.tolist() == [0.25, 0.0]
    torch.testing.assert_close(scored["mass_inside"].values, torch.tensor([2.5 / 9.5, 2 / 9]).double())
    single = EvaluationContext(problem, truth == 1)
    assert bool(evaluate(single, maps, ["object_balance"])["object_balance"].values.isnan().all())


@pytest.mark.parametrize(
    ("scene", "read"),
    [
        (DiFull(), [0]),
        (DiFull(cell="last"), [3]),
        (DiFull(cells=3, cell="last"), [8]),
        (RegionSum(), [0, 3]),
        (RegionSum(cells=3), [0, 8]),
    ],
)
def test_the_truth_is_what_the_network_reads(scene, read):
    network = scene.network(0, MODEL, IMAGES)
    x, truth = scene.make(scene.examples([network], IMAGES, 1, 0)[0], network)
    others = x[None].where(truth, 7.0).requires_grad_()
    logits = network.module(others)
    assert torch.equal(logits, network.module(x[None]))
    (gradient,) = torch.autograd.grad(logits[0, 3], others)
    cells = [cell_of(x, scene.cells, cell) for cell in range(scene.cells**2)]
    assert [number for number, cell in enumerate(cells) if truth[cell].all()] == read
    assert [number for number, cell in enumerate(cells) if gradient[0, 0][cell].any()] == read
    assert truth.sum() * len(cells) == len(read) * truth.numel()


def test_scaled_logits_have_the_same_grids_and_the_gradient_scaled():
    scene = GridPG(scale=16.0)
    network = scene.network(0, MODEL, IMAGES)
    examples = scene.examples([network], IMAGES, 4, 0)
    assert examples == GridPG().examples([MODEL], IMAGES, 4, 0)
    assert network.digest != MODEL.digest
    scales = (1.0, 4.0, 16.0, 16.000001)  # what is stored of one must not be read for another
    assert len({str(GridPG(scale=s).network(0, MODEL, IMAGES).module) for s in scales}) == len(scales)
    x = scene.make(examples[0], network)[0][None].requires_grad_()
    (grown,) = torch.autograd.grad(network.module(x)[0, 3], x)
    (plain,) = torch.autograd.grad(MODEL.module(x)[0, 3], x)
    assert torch.allclose(grown, 16 * plain, rtol=1e-5, atol=1e-7)
    assert scene.gates(network, MODEL, IMAGES) == GridPG().gates(MODEL, MODEL, IMAGES)


class Returns(nn.Module):
    """The network of digits, whose output has another form."""

    def __init__(self, form):
        super().__init__()
        self.module, self.form = MODEL.module, form

    def forward(self, x):
        return self.form(self.module(x))


@pytest.mark.parametrize("scene", [GridPG(), GridPG(scale=4.0), get_scene("difull"), get_scene("region")])
@pytest.mark.parametrize(
    ("output", "form"),
    [("auto", lambda z: {"logits": z, "all": [z]}), ("probabilities", lambda z: torch.softmax(z.double(), 1))],
)
def test_any_output_that_is_read_as_logits_makes_the_same_grids_and_prediction(scene, output, form):
    """log softmax z is z but for a constant, which gradients of probabilities and sums of cells must respect."""
    other = scene.network(0, replace(MODEL, module=Returns(form).eval(), output=output, digest="form"), IMAGES)
    plain = scene.network(0, MODEL, IMAGES)
    examples = scene.examples([other], IMAGES, 4, 0)
    assert examples == scene.examples([plain], IMAGES, 4, 0)
    x = torch.stack([scene.make(example, other)[0] for example in examples])
    logits = [Classifier(network.module, output=network.output).logits(x).double() for network in (other, plain)]
    assert torch.allclose(logits[0].softmax(1), logits[1].softmax(1), rtol=1e-4, atol=1e-6)
    assert scene.gates(other, MODEL, IMAGES) == scene.gates(plain, MODEL, IMAGES)


def test_some_classes_of_a_grid_visit_every_cell_as_often():
    scene, images = GridPG(classes=1), IMAGES
    examples = scene.examples([MODEL], images, 8, 0)
    assert [example.cluster for example in examples] == [f"grid-{number:04d}" for number in range(8)]
    assert sorted(example.values["cell"] for example in examples) == sorted([0, 1, 2, 3] * 2)
    every = {example.id: example for example in get_scene("gridpg").examples([MODEL], images, 32, 0)}
    assert all(example == every[example.id] for example in examples)


def test_more_examples_begin_with_the_same_ones_and_a_seed_draws_others():
    few, many, other = (drawn("gridpg", n, seed)[2] for n, seed in ((6, 0), (12, 0), (6, 1)))
    assert many[:6] == few
    assert {example.images for example in few}.isdisjoint({example.images for example in other})


def test_an_image_that_one_network_gets_wrong_takes_no_part():
    """A second network that calls every 3 an 8 leaves no grid with a 3."""

    class Confused(nn.Module):
        def forward(self, x):
            logits = MODEL.module(x)
            return logits.index_add(1, torch.tensor([8]), 1e3 * torch.relu(logits[:, 3:4] - logits[:, 8:9]))

    other = replace(MODEL, module=Confused().eval(), digest="confused")
    threes = {ref.source for ref in IMAGES if ref.label == 3}
    assert threes & {source for example in drawn("gridpg", 40)[2] for source in example.images}
    examples = drawn("gridpg", 40, networks=[MODEL, other])[2]
    assert not threes & {source for example in examples for source in example.images}
    assert 3 not in {example.target for example in examples}


def test_too_few_images_are_said():
    with pytest.raises(InputError, match="1 grids of 2 by 2 images can be made, expected 2") as error:
        drawn("gridpg", 8, images=IMAGES[:8])
    assert "those by class" in error.value.hint


def test_images_of_two_sizes_make_no_grid(tmp_path):
    for number in range(4):
        Image.new("L", (8, 9 if number == 3 else 8)).save(tmp_path / f"{number}.png")
    example = Example("grid", 0, "grid", tuple(ref.source for ref in find_inputs([str(tmp_path)])), {"cell": 0})
    kept = replace(MODEL, preprocessing=replace(MODEL.preprocessing, resize=None, crop=None))
    with pytest.raises(InputError, match=r"its images come out at sizes \[\(1, 8, 8\), \(1, 9, 8\)\], expected one"):
        GridPG().make(example, kept)


def test_gates_count_the_pool():
    (gate,) = get_scene("gridpg").gates(MODEL, MODEL, IMAGES)
    x = torch.stack([MODEL.prepare([ref.open(channels=1).image])[0] for ref in IMAGES])
    p, number = MODEL.module(x).softmax(1).max(1)
    labels = torch.tensor([ref.label for ref in IMAGES])
    assert gate.value == int(((p >= 0.99) & (number == labels)).sum())
    assert (gate.least, gate.most, gate.holds) == (4.0, None, True)  # one grid
    assert get_scene("gridpg:nine").gates(MODEL, MODEL, IMAGES)[0].least == 9.0


class Pooled(nn.Module):
    """A small network of images (2, H, W) of any size."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.Softplus(), nn.Conv2d(4, 3, 3))
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
        self.double().eval()

    def forward(self, x):
        return self.layers(x).mean((2, 3))


def on_grid(module, truth):
    toys = ToyProblems()
    x = toys.images(3, (2, 12, 12))
    space = InputSpace(-3.0, 3.0, toys.images(5, (2, 12, 12), "references"))
    return EvaluationContext(Problem.of(Classifier(module), x, domain=space), truth.expand(3, -1, -1))


def test_a_map_lies_in_the_cell_that_is_read_and_a_filter_of_it_leaks():
    """The contract of methods says the first of each; smoothing moves evidence to cells that nothing reads."""
    truth = torch.zeros(12, 12, dtype=torch.bool)
    truth[cell_of(truth, 2, 3)] = True
    context = on_grid(OneCell(Pooled(), 2, 3), truth)
    with context.problem.model.session(truth.device):
        maps = METHODS["ig"]().attribute(context.problem)
        scores = evaluate(context, maps, ["mass_inside:max_abs", "mass_inside:smooth"])
    assert scores["mass_inside:max_abs"].values.tolist() == [1.0] * 3
    assert scores["mass_inside:smooth"].values.max() < 0.99


def test_the_sum_of_cells_is_what_it_says():
    base, x = Pooled(), ToyProblems().images(3, (2, 12, 12))
    network = SumOfCells(base, 2, (1.0, 0.25))
    torch.testing.assert_close(network(x), base(x[:, :, :6, :6]) + 0.25 * base(x[:, :, 6:, 6:]))
    regions, terms = network.parts(x)
    assert regions.flatten(1).sum(1).tolist() == [36, 36]
    torch.testing.assert_close(terms[1], 0.25 * base(x[:, :, 6:, 6:]))


@pytest.mark.parametrize("name", ["ig", "fringe"])
def test_a_focus_of_a_layer_that_sees_one_cell_is_refused(name):
    """Its positions are those of the cell, and not of the image."""
    truth = torch.zeros(12, 12, dtype=torch.bool)
    truth[cell_of(truth, 2, 3)] = True
    context = on_grid(OneCell(Pooled(), 2, 3), truth)
    with context.problem.model.session(truth.device), pytest.raises(InputError, match=r"sees the image .*cropped"):
        METHODS[name](focus="cam").attribute(context.problem)


@pytest.mark.parametrize(("name", "settings"), [("ig", {}), ("fringe", {})])
def test_path_methods_are_complete_on_each_region(name, settings):
    scene, network, examples = drawn("region", 3)
    x, truth = map(torch.stack, zip(*(scene.make(example, network) for example in examples), strict=True))
    targets = torch.tensor([example.target for example in examples])
    low, high = network.preprocessing.bounds()
    problem = Problem.of(Classifier(network.module), x, target=targets, domain=InputSpace(low, high))
    method = METHODS[name](**settings)
    with problem.model.session(x.device):
        maps = method.attribute(problem)
        scored = evaluate(EvaluationContext(problem, truth), maps, ["region_completeness"], method.attribute)
    assert scored["region_completeness"].values.max() < 0.05
    assert not scored["region_completeness"].flags["no_identity"].any()
