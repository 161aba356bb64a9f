"""Scenes of detectors: what is drawn, what is true of it, and what runs make of it."""

from dataclasses import replace

import pytest
import torch

from fringe.bench.experiments import ExperimentSpec, build_plan
from fringe.bench.scenes import get_scene
from fringe.bench.scenes._boxes import GROUND, LAMP, RED, Context, Drawn, OneStage, Shapes, _loss, _read
from fringe.detection import Detector, overlap
from fringe.evaluation import BOX_CONTROLS


@pytest.fixture(scope="module")
def drawn():
    return Drawn.of(64, torch.Generator().manual_seed(0), coloured=True)


def test_objects_fill_their_boxes_and_nothing_else(drawn):
    objects = drawn.objects()
    assert {*drawn.kinds.flatten().tolist()} == {0, 1, 2, 3}
    for row in range(64):
        for which in (0, 1):
            rows, columns = objects[row, which].nonzero().T
            seen = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
            left, top, right, bottom = drawn.boxes[row, which].tolist()
            assert right - left == bottom - top
            assert 12 <= right - left <= 20
            for side, expected in zip(seen, (left, top, right, bottom), strict=True):
                assert abs(int(side) - expected) <= 1
            share = objects[row, which].sum() / (right - left) ** 2
            areas = (0.785, 1.0, 0.5, 1 - 0.66**2)  # of circle, square, triangle and cross
            assert float(share) == pytest.approx(areas[drawn.kinds[row, which]], abs=0.12)


def test_objects_and_the_lamp_do_not_touch(drawn):
    around = torch.cat([drawn.lamps - 2, drawn.lamps + LAMP + 2], -1)
    assert (overlap(drawn.boxes[:, 0], drawn.boxes[:, 1]) == 0).all()
    for which in (0, 1):
        assert (overlap(drawn.boxes[:, which], around) == 0).all()
    assert (drawn.lamp() & drawn.objects().any(1)).sum() == 0
    assert (drawn.lamp().flatten(1).sum(1) == LAMP**2).all()


def test_only_what_is_said_changes_in_the_photograph(drawn):
    lit, dark = drawn.image(lit=True), drawn.image(lit=False)
    assert ((lit != dark).any(1) <= drawn.lamp()).all()
    without = drawn.image(lit=False, without=1)
    assert ((without != dark).any(1) <= drawn.objects()[:, 1]).all()
    ground = ~drawn.objects().any(1)
    assert float(dark.mean(1)[ground].mean()) == pytest.approx(GROUND, abs=0.01)
    seen = lit.movedim(1, -1)[drawn.lamp()].view(64, LAMP**2, 3)[drawn.on].mean((0, 1))
    torch.testing.assert_close(seen, RED, rtol=0, atol=0.02)
    assert torch.equal(lit[~drawn.on], dark[~drawn.on])


def test_the_lamp_says_the_class_and_the_objects_say_nothing(drawn):
    scene = Context()
    assert torch.equal(scene._labels(drawn) == 0, drawn.on[:, None].expand(-1, 2))
    assert torch.equal(scene._truth(drawn, 1), drawn.lamp())
    assert ((scene._changed(drawn, 0) != drawn.image(lit=True)).any(1) <= drawn.lamp()).all()
    assert torch.equal(Shapes()._truth(drawn, 1), drawn.objects()[:, 1])


def test_the_loss_of_a_perfect_network_is_least(drawn):
    """The output that gives each place its nearest object, exactly and for certain, has no loss but the rounding."""
    label = drawn.kinds
    target = torch.cat([drawn.boxes, label[..., None].float()], -1)
    along = (torch.arange(8) + 0.5) * 8
    centres = torch.stack(torch.meshgrid(along, along, indexing="xy"), -1).reshape(-1, 2)
    middle, half = (drawn.boxes[..., :2] + drawn.boxes[..., 2:]) / 2, (drawn.boxes[..., 2:] - drawn.boxes[..., :2]) / 2
    near = ((centres[None, :, None] - middle[:, None]).abs() <= (half[:, None] / 2).clamp_min(4.01)).all(-1)
    output = torch.zeros(64, 64, 9)
    output[..., 8] = 50.0
    for which in (1, 0):
        at = near[..., which]
        output[at, :2] = middle[:, None, which].expand(-1, 64, -1)[at]
        output[at, 2:4] = 2 * half[:, None, which].expand(-1, 64, -1)[at]
        output[at, 4:] = 50.0 * torch.nn.functional.one_hot(label[:, which], 5)[:, None].expand(-1, 64, -1)[at].float()
    assert float(_loss(output, target)) < 1e-4
    assert near.any(1).all()  # each object is seen by some place
    boxes, logits = _read(output)
    assert (overlap(boxes, drawn.boxes[:, None, 0])[near[..., 0]] > 0.999).all()
    worse = output.clone()
    worse[..., 0] += 1.0
    assert float(_loss(worse, target)) > 0.1
    assert float(_loss(torch.cat([output[..., :4], -output[..., 4:]], -1), target)) > 10
    assert logits.shape[-1] == 5


@pytest.mark.parametrize("controls", [True, False, ("edge",)])
def test_a_share_in_a_box_is_never_scored_without_that_of_the_box(controls):
    spec = ExperimentSpec(scene="context", methods="ig", n=2, controls=controls is True)
    plan = build_plan(spec)
    plan = plan if isinstance(controls, bool) else type(plan)(**{**vars(plan), "controls": controls})
    labels = [one.label for one in plan.candidates(plan.models[0])]
    assert {*BOX_CONTROLS} <= {*labels}
    assert ("zero" in labels) == (controls is True)


class Lamp(torch.nn.Module):
    """A detector set by hand: every place is a grey object, and the lamp is its class."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))

    def forward(self, x):
        red = torch.nn.functional.avg_pool2d(x[:, 0] - x[:, 2], 7, 1).amax((1, 2))
        logits = 20 * self.weight * torch.stack([red - 0.4, 0.4 - red, torch.full_like(red, -1.0)], -1)
        return torch.cat([self.boxes.expand(len(x), -1, -1), logits[:, None].expand(-1, 64, -1)], -1)


def test_a_run_passes_each_example_its_place_and_takes_photographs_as_clusters(tmp_path, monkeypatch):
    """With a network that sees the lamp alone, IG has all of its map there; the box has nothing."""
    from fringe.bench.experiments import run_experiment
    from fringe.bench.scenes import _boxes

    def network(self, number, model, images):
        from fringe.models import LoadedModel, Preprocessing

        module = Lamp().eval()
        module.boxes = torch.cat([_boxes._centres(), torch.full((64, 2), 16.0)], -1)
        detector = Detector(module, read=_read, background=2)
        return LoadedModel("lamp", detector, Preprocessing.parse("unit"), None, "0" * 64, "lamp", "logits")

    monkeypatch.setattr(_boxes.Context, "network", network)
    monkeypatch.setattr(_boxes, "FOUND", 0.25)
    found = run_experiment(
        ExperimentSpec(scene="context", methods="ig", metrics="mass_inside,expected_hit", n=6), tmp_path / "run"
    )
    (model,) = found.models
    assert found.scores(model, "box", "mass_inside").max() == 0
    assert found.scores(model, "ig", "expected_hit").min() == 1
    assert found.scores(model, "ig", "mass_inside").min() > 0.9
    clusters = found.clusters(model)
    assert len(clusters) == 6
    assert len({*clusters}) < 6
    assert [gate["holds"] for gate in found.manifest.gates(model)][1:] == [True, True]


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        pytest.param("shapes", {}, marks=pytest.mark.thorough),
        pytest.param("context", {"epochs": 4}, marks=pytest.mark.thorough),  # which suffice
        pytest.param("context", {}, marks=pytest.mark.slow),
    ],
    ids=["shapes", "context in half of the epochs", "context"],
)
def test_a_network_that_is_trained_passes_its_gates(name, changed, tmp_path, monkeypatch):
    monkeypatch.setenv("FRINGE_CACHE", str(tmp_path))
    scene = replace(get_scene(name), **changed)
    network = scene.network(0, None, [])
    gates = scene.gates(network, None, [])
    assert all(gate.holds for gate in gates), [str(gate) for gate in gates]
    examples = scene.examples([network], [], 4, 0)
    assert all(example.values["place"] < 64 for example in examples)
    again = scene.network(0, None, [])
    assert again.digest == network.digest


def test_the_network_maps_an_image_to_boxes_and_logits():
    output = OneStage(2, True)(torch.zeros(3, 3, 64, 64))
    assert output.shape == (3, 64, 7)
