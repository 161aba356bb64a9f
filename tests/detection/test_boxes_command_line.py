"""Boxes on the command line: ``explain``, ``compare`` and ``benchmark`` of a detector in a file of the user."""

import csv
import json

import numpy as np
import pytest
import torch
from PIL import Image

import fringe
from command_line import run
from fringe import ExperimentSpec, InputError, run_experiment
from fringe.bench.experiments import Store, read_results
from fringe.evaluation import BOX_CONTROLS
from fringe.metrics import Sparseness
from fringe.models import load_model

pytestmark = pytest.mark.usefixtures("small_figures")

#: A place for each square of 8 pixels, of which some of noise are likely, and black ones are not; ``blind`` has none.
CODE = """
import torch
import fringe

class Squares(torch.nn.Module):
    preprocessing = "resize=32x48,mean=0,std=1"

    def __init__(self, places):
        super().__init__()
        self.layer, self.places = torch.nn.Conv2d(3, 2, 8, 8), places
        generator = torch.Generator().manual_seed(3)
        self.layer.weight.data = torch.randn(2, 3, 8, 8, generator=generator) / 2
        self.layer.bias.data.fill_(-1.0)

    def forward(self, x):
        return self.layer(x)

def read(output):
    rows, columns = (8.0 * torch.arange(size) for size in output.shape[-2:])
    corners = torch.stack(torch.meshgrid(columns, rows, indexing="xy"), -1).reshape(1, -1, 2)
    corners = corners.expand(len(output), -1, -1)
    return torch.cat([corners, corners + 8], -1), output.flatten(2).transpose(1, 2)

def make(count=None):
    net = Squares(count)
    detector = fringe.Detector(net, read=lambda y: tuple(part[:, :count] for part in read(y))).eval()
    detector.preprocessing = net.preprocessing
    return detector

def blind():
    return make(0)
"""
GIVEN = ("--trust-code", "--methods", "ig", "--set", "ig.steps=4", "--metrics", "sparseness", "--yes")


@pytest.fixture(autouse=True)
def photographs(tmp_path, monkeypatch):
    """Two photographs of noise, and a grey one in which nothing is likely."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "boxes.py").write_text(CODE)
    generator = np.random.default_rng(0)
    for name in ("a", "b"):
        Image.fromarray(generator.integers(0, 256, (64, 96, 3)).astype(np.uint8)).save(f"{name}.png")
    Image.new("RGB", (96, 64), (0, 0, 0)).save("grey.png")


def compare(*words, model="boxes.py:make"):
    return run("compare", *words, "--model", model, *GIVEN)


def read(folder):
    return json.loads(open(f"{folder}/summary.json", encoding="utf-8").read())


def test_compare_scores_each_box_as_the_library_does():
    result = compare("a.png", "b.png", "--boxes", "2", "--out", "out")
    assert result.exit_code == 0, result.output
    assert "interval over photographs" in result.output
    document = read("out")
    assert [image["id"] for image in document["images"]] == ["a-1", "a-2", "b-1", "b-2"]
    loaded = load_model("boxes.py:make", trust_code=True)
    images = [Image.open(f"{name}.png") for name in "ab"]
    methods = [("ig", fringe.IntegratedGradients(steps=4))]
    own = fringe.compare(loaded, images, methods, [Sparseness()], boxes=2)
    with open("out/scores.csv", encoding="utf-8") as file:
        scores = [row for row in csv.DictReader(file) if row["method"] in ("ig", *BOX_CONTROLS)]
    expected = [row for row in fringe.evaluation.tidy(own) if row["method"] in ("ig", *BOX_CONTROLS)]
    assert [row["method"] for row in scores] == [row["method"] for row in expected]
    np.testing.assert_allclose([float(row["score"]) for row in scores], [row["score"] for row in expected], rtol=1e-5)
    summaries = own.tidy_scores.entries()
    assert {one["clusters"] for one in document["table"]} == {one["clusters"] for one in summaries} == {2}


def test_the_picture_shows_the_box(monkeypatch, small_figures):
    from fringe.plots import _maps

    small_figures.undo()
    drawn = list[object]()
    monkeypatch.setattr(_maps, "draw_box", lambda axes, box: drawn.append(box))
    assert compare("a.png", "--boxes", "16,16,32,32", "--out", "out").exit_code == 0
    assert len(drawn) == 3  # on the image, the map, and that of a control
    assert {tuple(box) for box in drawn} == {(8.0, 8.0, 16.0, 16.0)}


def test_a_run_goes_on_and_other_boxes_are_added(monkeypatch):
    made, attribute = list[int](), fringe.IntegratedGradients.attribute

    def counted(self, problem):
        made.append(len(problem.inputs))
        return attribute(self, problem)

    monkeypatch.setattr(fringe.IntegratedGradients, "attribute", counted)
    for boxes, expected in ((1, [1]), (1, [1]), (2, [1, 1])):
        assert compare("a.png", "--boxes", boxes, "--out", "out").exit_code == 0
        assert made == expected
    assert [image["id"] for image in read("out")["images"]] == ["a-1", "a-2"]


@pytest.mark.parametrize("command", ["compare", "explain"])
def test_a_photograph_without_a_box_is_said_beside_the_others(command):
    words = GIVEN if command == "compare" else ("--trust-code", "--method", "ig", "--yes")
    alone = run(command, "grey.png", "--model", "boxes.py:make", "--out", "alone", *words)
    assert "no predicted box has a probability of 0.5 or more" in alone.output
    assert alone.exit_code == 1, alone.output
    result = run(command, "a.png", "grey.png", "--model", "boxes.py:make", "--out", "out", *words)
    assert "grey.png" in result.output
    assert result.exit_code == 3, result.output


@pytest.mark.parametrize("command", ["compare", "explain"])
def test_a_detector_that_predicts_no_box_at_all_is_said(command):
    words = GIVEN if command == "compare" else ("--trust-code", "--method", "ig", "--yes")
    result = run(command, "a.png", "--model", "boxes.py:blind", "--out", "out", *words)
    assert "the detector predicts no box at all" in result.output
    assert result.exit_code == 1


def test_no_box_at_all_is_said_by_the_calls():
    loaded = load_model("boxes.py:blind", trust_code=True)
    for call in (fringe.explain, lambda *given: fringe.compare(*given, [("ig", fringe.IntegratedGradients(steps=4))])):
        with pytest.raises(InputError, match="boxes: the detector predicts no box at all; give another image"):
            call(loaded, Image.open("a.png"))


@pytest.mark.parametrize(
    ("boxes", "words"),
    [
        ("0", "got 0"),
        ("4,4,4,9", "no area"),
        ("900,900,910,910", "no prediction overlaps with given box 1 by 10%"),
        ("all", "got 'all'"),
        ("1,2,3", "got '1,2,3'"),
    ],
)
def test_boxes_that_cannot_be_explained_are_refused(boxes, words):
    result = compare("a.png", "--boxes", boxes, "--out", "out")
    assert words in result.output
    assert result.exit_code in (1, 2)
    assert "Traceback" not in result.output


def test_a_classifier_has_no_boxes():
    result = run("compare", "embedded:digits:0:2", "--boxes", "2", "--out", "out", *GIVEN)
    assert result.exit_code == 2
    assert "no detector of a known kind" in result.output


# -- the benchmark ----------------------------------------------------------------------------------------------------


def benchmark(**options):
    given = {"data": ["a.png", "b.png"], "n": 2, "methods": "ig", "metrics": "sparseness", "trust_code": True}
    return ExperimentSpec(model="boxes.py:make", set={"ig": {"steps": "4"}}, **{**given, **options})


def test_the_images_of_a_benchmark_are_the_boxes_of_its_photographs(tmp_path):
    result = run_experiment(benchmark(boxes="2"), tmp_path / "run")
    (model,) = result.models
    assert sorted(result.clusters(model)) == ["a", "a", "b", "b"]
    assert {*BOX_CONTROLS} <= {*result.methods(model)}
    loaded, expected = load_model("boxes.py:make", trust_code=True), dict[str, float]()
    for name in "ab":
        methods = [("ig", fringe.IntegratedGradients(steps=4))]
        own = fringe.compare(loaded, Image.open(f"{name}.png"), methods, [Sparseness()], boxes=2)
        expected |= {f"{name}-{k}": float(v) for k, v in enumerate(own.rows[0].scores["sparseness"].values, 1)}
    ids = [image["id"] for image in result.manifest.images]
    np.testing.assert_allclose(result.scores(model, "ig", "sparseness"), [expected[one] for one in ids], rtol=1e-5)
    targets = [image["target"] for image in result.manifest.images]
    assert set(result.map_frame(model, "ig")["target"].to_list()) <= set(targets) <= {0, 1}
    stored = read_results(Store(tmp_path / "run", create=False))
    assert stored.clusters(model) == result.clusters(model)
    torch.testing.assert_close(stored.scores(model, "ig", "sparseness"), result.scores(model, "ig", "sparseness"))


def test_a_benchmark_says_which_photographs_have_no_box(tmp_path):
    result = run_experiment(benchmark(data=["a.png", "grey.png"]), tmp_path / "run")
    assert {image["cluster"] for image in result.manifest.images} == {"a"}
    assert any("grey.png" in reason and "no predicted box" in reason for reason in result.manifest.missing)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"boxes": "8,8,16,16"}, "got boxes for 2 images"),
        ({"boxes": "some"}, "got 'some'"),
        (
            {"model": {"one": "boxes.py:make", "two": "boxes.py:make"}},
            "the boxes of one model are not those of another",
        ),
        ({"model": "embedded:digits", "data": "embedded:digits", "boxes": "2"}, "no detector of a known kind"),
        ({"scene": "shapes", "boxes": "2"}, "which chooses its own"),
        ({"scene": "gridpg"}, "gridpg is made of a classifier"),
    ],
)
def test_a_benchmark_of_boxes_that_makes_no_sense_is_refused(options, words):
    given = {"data": ["a.png", "b.png"], "n": 2, "trust_code": True, "methods": "ig", "model": "boxes.py:make"}
    spec = ExperimentSpec(**{**given, **({} if "scene" in options else {"metrics": "sparseness"}), **options})
    with pytest.raises(InputError, match=words):
        run_experiment(spec)
