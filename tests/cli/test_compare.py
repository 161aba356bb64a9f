"""``fringe compare`` from the outside: exit codes, files, and numbers equal to the library's."""

import base64
import csv
import html
import io
import json
import os
import re
import signal
from types import SimpleNamespace

import pytest
from PIL import Image

from command_line import picture, run
from fringe import FRInGe, InputError, InputSpace, IntegratedGradients, SmoothGrad
from fringe.attribution import IG2
from fringe.bench import comparison
from fringe.bench.comparison import ImageComparison
from fringe.bench.experiments import Store
from fringe.data import find_inputs
from fringe.evaluation import CONTROLS, compare, estimate, validate_metrics
from fringe.explanations import CompareSpec
from fringe.metrics import Sparseness
from fringe.models import load_model

pytestmark = pytest.mark.usefixtures("small_figures")

DIGITS = ("--model", "embedded:digits")
QUICK = ("--set", "fringe.tau=0.1", "--set", "ig.steps=10")


def quick(out, *arguments, metrics="sparseness"):
    return run("compare", *arguments, "--out", out, "--metrics", metrics)


def read(folder):
    return json.loads((folder / "summary.json").read_text(encoding="utf-8"))


def lines(folder):
    return list(csv.DictReader(io.StringIO((folder / "scores.csv").read_text(encoding="utf-8"))))


def digits(selection):
    loaded = load_model("embedded:digits")
    refs = list(find_inputs([selection]))
    return loaded, loaded.prepare([ref.open(channels=1).image for ref in refs]), [ref.id for ref in refs]


def test_a_run_writes_what_the_library_computes(tmp_path, small_figures):
    small_figures.undo()
    metrics = ["mas_insertion", "mas_deletion", "infidelity"]
    out = tmp_path / "out"
    result = quick(out, "embedded:digits:3:6", *QUICK, "--json", "--seed", "4", metrics=",".join(metrics))
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document == read(out)
    beside = {"maps", *(file.name for file in out.glob("*.db"))}
    assert {file.name for file in out.iterdir()} - beside == {"compare.png", "index.html", "scores.csv", "summary.json"}
    with Image.open(out / "compare.png") as drawn:
        assert min(drawn.size) > 400

    loaded, x, ids = digits("embedded:digits:3:6")
    methods = [FRInGe(tau=0.1), IntegratedGradients(steps=10)]
    found = compare(loaded.module, x, methods, metrics, ids=ids, seed=4)
    rows = lines(out)
    expected = [
        (row.label, metric, image, float(row.scores[metric].values[i]))
        for row in found.rows
        for metric in metrics
        for i, image in enumerate(ids)
    ]
    assert [(r["method"], r["metric"], r["image"], float(r["score"])) for r in rows] == expected
    controls = [*CONTROLS, "diffusion", "power(1.5):fringe", "centre_prior:fringe"]
    assert {r["method"] for r in rows if r["control"] == "true"} == set(controls)

    entry = next(e for e in document["table"] if (e["method"], e["metric"]) == ("ig", "mas_deletion"))
    interval = estimate([s for m, k, _, s in expected if (m, k) == ("ig", "mas_deletion")], seed=4)
    assert (entry["mean"], entry["low"], entry["high"]) == (interval.mean, interval.low, interval.high)
    assert (entry["n"], entry["images"]) == (3, 3)
    assert [m["label"] for m in document["methods"]] == ["fringe", "ig", *controls]
    assert [m["title"] for m in document["methods"]][:3] == ["FRInGe, own settings", "Integrated Gradients", "zero"]
    assert document["methods"][1]["settings"]["steps"] == 10
    assert document["methods"][1]["passes"] == {"forward": 33, "jvp": 0, "vjp": 30}
    directions = dict(zip(metrics, ("higher", "lower", "lower"), strict=True))
    assert {m["label"]: m["direction"] for m in document["metrics"]} == directions
    assert [image["target"]["class"] for image in document["images"]] == found.target.tolist()
    assert document["counts"] == {"inputs": 3, "compared": 3, "failed": 0}
    assert document["references"] == {"source": "inputs", "images": [f"digits-000{i}" for i in (5, 3, 4)]}  # as drawn
    assert (document["complete"], document["seed"], document["model"]["digest"]) == (True, 4, loaded.digest)


def test_the_score_of_one_image_has_no_interval(tmp_path):
    result = quick(tmp_path, "embedded:digits:0:1", "--methods", "ig", "--set", "ig.steps=4", metrics="sparseness")
    assert "the score of the image; n: images with a score" in " ".join(result.stdout.split())
    assert "interval" not in result.stdout


def test_the_page_is_one_file_with_the_picture_and_the_table_of_the_terminal(tmp_path):
    (tmp_path / "broken.jpg").write_text("no picture")
    result = quick(tmp_path / "out", "embedded:digits:3:5", tmp_path / "broken.jpg", *DIGITS, *QUICK)
    page = (tmp_path / "out/index.html").read_text(encoding="utf-8")
    assert base64.b64encode((tmp_path / "out/compare.png").read_bytes()).decode() in page
    assert "default-src 'none'; img-src data:" in page
    assert "<script" not in page
    text = html.unescape(page)
    assert str(tmp_path) not in text  # folders are not for those who it is sent to
    parts = ("broken.jpg': not an image", "method ig", "steps=10", "metric=sparseness", "versions", "torch=")
    assert all(part in text for part in parts)
    rows = [re.sub("<[^>]*>", " ", row).split() for row in re.findall("<tr>(.*?)</tr>", text, re.DOTALL)]
    shown = {tuple(re.sub(r" \((.*?)\)", r" \1", line).split()) for line in result.stdout.splitlines()}
    assert {row[0] for row in rows if tuple(row) in shown} >= {"method", "fringe", "ig", *CONTROLS, "diffusion"}


def test_a_comparison_says_first_what_it_computes_and_how_long_that_takes_at_most(tmp_path):
    result = quick(tmp_path, "embedded:digits:0:2", "--methods", "ig", "--set", "ig.steps=10", metrics="sparseness")
    # two images by ig and six controls; twice ten gradients
    told = re.search(r"hint: (.*) of the network and [\d.]+ (s|min|h), less what is stored\n", result.stderr)
    assert told is not None
    assert told[1] == "14 maps with 1 score each: at most 40 passes"
    again = quick(tmp_path, "embedded:digits:0:2", "--methods", "ig", "--set", "ig.steps=10", "--json")
    assert "hint:" not in again.stderr
    steps = ("--set", "ig.steps=10", "--set", "deletion.steps=4", "--no-controls")
    judged = quick(tmp_path / "b", "embedded:digits:0:2", "--methods", "ig", *steps, "--validity", metrics="deletion")
    # twice ten gradients, and the curve of the map and of five that are made worse, of four steps each
    assert f"hint: 2 maps with 1 score each: at most {2 * (20 + 6 * 4)} passes" in judged.stderr


def test_the_time_is_that_of_the_fastest_pass_and_not_of_the_first(tmp_path, monkeypatch):
    """The first holds what the network does once; others may be slow on a busy machine."""
    clock, seconds, real = [0.0], iter((100.0, 3.0, 1.0, 2.0)), ImageComparison.logits

    def logits(self, items):
        clock[0] += next(seconds)
        return real(self, items)

    monkeypatch.setattr(ImageComparison, "logits", logits)
    monkeypatch.setattr(comparison, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    spec = CompareSpec(methods="ig", metrics="sparseness", set=("ig.steps=10",), controls=False, device="cpu")
    comparing = ImageComparison(["embedded:digits:0:2"], tmp_path, spec)
    comparing.open()
    assert "at most 40 passes of the network and 40 s" in comparing.expectation()


def test_a_curve_without_steps_has_one_for_each_row_of_the_images(tmp_path):
    spec = CompareSpec(methods="ig", metrics="deletion", set=("ig.steps=10",), controls=False, device="cpu")
    comparing = ImageComparison(["embedded:digits:0:2"], tmp_path, spec)
    comparing.open()
    assert f"at most {2 * (20 + 32)} passes" in comparing.expectation()  # of two images: ten gradients, and 32 rows
    many = ("ig.steps=10", "deletion.steps=100000")
    spec = CompareSpec(methods="ig", metrics="deletion", set=many, controls=False, device="cpu")
    comparing = ImageComparison(["embedded:digits:0:2"], tmp_path / "many", spec)
    comparing.open()
    assert f"at most {2 * (20 + 32 * 32):,} passes" in comparing.expectation()  # no more steps than pixels


def test_the_table_says_where_better_is_and_how_many_images_there_are(tmp_path):
    steps = ("--methods", "ig", "--set", "ig.steps=600")
    box = ("--set", "deletion:fast.reference=box", "--set", "deletion:fast.padding=zeros")  # leaves more of a digit
    result = quick(tmp_path, "embedded:digits:0:2", *steps, *box, metrics="sparseness,deletion:fast")
    assert result.exit_code == 0
    assert "sparseness ↑" in result.stdout
    assert "deletion:fast ↓" in result.stdout
    shown = result.stdout.splitlines()
    (line,) = [line for line in shown if line.startswith("ig ")]
    assert [text.partition(" ")[0].strip("─") for text in shown[1:7]] == ["", "ig", "", *list(CONTROLS)[:3]]
    entries = {e["metric"]: e for e in read(tmp_path)["table"] if e["method"] == "ig"}
    printed = [list(map(float, found)) for found in re.findall(r"([\d.]+) \[([\d.]+), ([\d.]+)\]", line)]
    for name, found in zip(("sparseness", "deletion:fast"), printed, strict=True):
        assert found == pytest.approx([entries[name][key] for key in ("mean", "low", "high")], abs=5e-4)
    assert line.split()[-4:-1] == ["2", "1", "1201"]  # images with a score, flagged scores, passes an image
    assert "flagged scores: " in result.stdout
    assert " zero_map " in result.stdout


def test_labels_settings_and_presets_of_methods_and_metrics(tmp_path):
    result = quick(
        tmp_path,
        "embedded:digits:0",
        *("--methods", "black=ig,ig:paper,short = ig", "--no-controls"),
        *("--set", "black.baseline=black", "--set", " short.steps = 3", "--set", "insertion:raw.steps=4"),
        metrics="insertion:raw,sparseness",
    )
    assert result.exit_code == 0, result.output
    document = read(tmp_path)
    settings = {m["label"]: m["settings"] for m in document["methods"]}
    given = {label: (s["steps"], s["baseline"]) for label, s in settings.items()}
    assert given == {"black": (50, "black"), "ig:paper": (200, "zero"), "short": (3, "zero")}
    first = document["metrics"][0]
    assert (first["label"], first["settings"]["steps"], first["settings"]["normalise"]) == ("insertion:raw", 4, False)


def test_an_image_that_a_method_refuses_fails_alone(tmp_path, monkeypatch):
    real = IntegratedGradients.attribute

    def attribute(self, problem):
        if "digits-0001" in problem.keys:
            raise InputError("does not like digits-0001")
        return real(self, problem)

    monkeypatch.setattr(IntegratedGradients, "attribute", attribute)
    result = quick(tmp_path, "embedded:digits:0:3", "--methods", "ig,smoothgrad", "--no-controls", *QUICK[-2:])
    assert result.exit_code == 3
    assert "error: ig: does not like digits-0001\n" in result.stderr
    ig = read(tmp_path)["methods"][0]
    assert (ig["maps"], ig["images"]) == (2, 3)
    assert ig["errors"] == [{"error": "does not like digits-0001", "images": 1}]
    flags = [(r["score"] == "", r["flags"]) for r in lines(tmp_path) if r["method"] == "ig"]
    assert flags == [(False, ""), (True, "failed"), (False, "")]


def test_a_metric_that_refuses_loses_no_score_of_the_others(tmp_path, monkeypatch):
    real = Sparseness.score

    def score(self, maps):
        if "digits-0001" in maps.context.problem.keys:
            raise InputError("does not like digits-0001")
        return real(self, maps)

    monkeypatch.setattr(Sparseness, "score", score)
    asked = ("embedded:digits:0:2", "--methods", "ig", "--validity", "--set", "ig.steps=4", "--no-controls")
    result = quick(tmp_path, *asked, metrics="insertion,sparseness")
    assert result.exit_code == 3, result.output
    assert "error: metric sparseness: does not like digits-0001\n" in result.stderr
    rows = [(r["metric"], r["image"], r["score"] == "", r["flags"]) for r in lines(tmp_path)]
    assert rows[2:] == [("sparseness", "digits-0000", False, ""), ("sparseness", "digits-0001", True, "metric_refused")]
    assert [score for _, _, score, _ in rows[:2]] == [False, False]
    assert read(tmp_path)["refused"] == [
        {"method": "ig", "metric": "sparseness", "reason": "does not like digits-0001", "images": 1}
    ]


OWN = """
def gradient(model, inputs, target):
    inputs.requires_grad_()
    model(inputs)[0, target[0]].backward()
    return inputs.grad


def broken(model, inputs, target):
    raise ZeroDivisionError("by nothing")
"""


def test_functions_of_a_file_take_part(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    names = f"ig,{tmp_path / 'own.py'}:gradient,bad={tmp_path / 'own.py'}:broken"
    asked = ("embedded:digits:0:2", "--methods", names, "--no-controls", "--set", "ig.steps=4")
    assert "pass --trust-code only if you trust its author" in quick(tmp_path / "out", *asked).stderr
    result = quick(tmp_path / "out", *asked, "--trust-code")
    assert result.exit_code == 3, result.output
    assert "error: bad: --methods: broken failed (ZeroDivisionError: by nothing)\n" in result.stderr
    maps = {m["label"]: m["maps"] for m in read(tmp_path / "out")["methods"]}
    assert maps == {"ig": 2, "gradient": 2, "bad": 0}
    wrong = quick(tmp_path / "out", "embedded:digits:0", "--methods", f"{tmp_path / 'own.py'}:grad", "--trust-code")
    assert "error: --methods: " in wrong.stderr
    assert wrong.exit_code == 2


def test_a_method_that_fails_is_a_row_with_its_error(tmp_path, monkeypatch):
    monkeypatch.setattr(IG2, "uses_references", False)  # which would refuse it before the first map
    alone = quick(tmp_path, "embedded:digits:0", "--methods", "ig2,ig", *QUICK[-2:])
    assert alone.exit_code == 3
    told = "error: ig2: --references: ig2 follows paths to images of other classes; pass images with --references DIR\n"
    assert told in alone.stderr
    failed = next(m for m in read(tmp_path)["methods"] if m["label"] == "ig2")
    assert (failed["maps"], failed["images"], len(failed["errors"])) == (0, 1, 1)
    assert [(r["score"], r["flags"]) for r in lines(tmp_path) if r["method"] == "ig2"] == [("", "failed")]


def test_nothing_done_is_exit_code_1(tmp_path, monkeypatch):
    monkeypatch.setattr(IG2, "uses_references", False)
    assert quick(tmp_path / "out", tmp_path / "absent.png", *DIGITS).exit_code == 1
    result = quick(tmp_path / "out", "embedded:digits:0", "--methods", "ig2")
    assert result.exit_code == 1
    assert read(tmp_path / "out")["complete"]


def test_a_folder_of_another_commands_results_is_safe(tmp_path):
    assert run("explain", "embedded:digits:0", "--method", "ig", "--no-figures", "--out", tmp_path).exit_code == 0
    refused = quick(tmp_path, "embedded:digits:0", "--methods", "ig")
    assert refused.exit_code == 2
    assert "--overwrite" in refused.stderr
    out = tmp_path / "again"
    assert [quick(out, "embedded:digits:0", "--methods", "ig").exit_code for _ in range(2)] == [0, 0]


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ("geoig_knn", "--references: geoig_knn explains an image by others, and there are none; name a folder of them"),
        ("ig,straight:smoothgrad", "smoothgrad has no path, and so no end point; name a method with a path"),
        ("ig,straight:agi", "agi follows several paths per image, which end at different points; name a method of one"),
        ("straight:smooth(2):rise", "rise has no path, and so no end point"),
    ],
)
def test_a_method_that_cannot_explain_is_refused_before_the_first_map(tmp_path, methods, message):
    refused = quick(tmp_path / "out", "embedded:digits:0", "--methods", methods)
    assert (refused.exit_code, message in refused.stderr) == (2, True), refused.stderr
    assert not list((tmp_path / "out").glob("*.json"))
    if "straight" in methods:
        assert message in run("benchmark", "--methods", methods, "--n", "2", "--out", tmp_path / "run").stderr
        assert not (tmp_path / "run").exists()


def test_an_interrupted_run_keeps_what_it_finished_and_goes_on(tmp_path, monkeypatch):
    """A signal in the third image: the next call computes this image and the last, and the scores are those of a run
    that nothing stopped."""
    arguments = ("embedded:digits:0:4", "--methods", "ig,smoothgrad", *QUICK[-2:], "--set", "smoothgrad.samples=3")
    arguments = (*arguments, "--no-controls")
    monkeypatch.setattr(comparison, "BATCH_IMAGES", 1)
    assert quick(tmp_path / "whole", *arguments, metrics="insertion,infidelity").exit_code == 0
    real, seen = IntegratedGradients.attribute, []

    def attribute(self, problem):
        seen.extend(problem.keys)
        if len(seen) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return real(self, problem)

    monkeypatch.setattr(IntegratedGradients, "attribute", attribute)
    out = tmp_path / "out"
    result = quick(out, *arguments, metrics="insertion,infidelity")
    assert result.exit_code == 130, result.output
    assert f"2 of 4 inputs are complete, in {out}; run the same command again to go on" in result.stderr
    assert not read(out)["complete"]
    assert {r["image"] for r in lines(out)} == {"digits-0000", "digits-0001"}
    assert quick(out, *arguments, metrics="insertion,infidelity").exit_code == 0
    assert seen[3:] == ["digits-0002", "digits-0003"]
    assert (out / "scores.csv").read_text() == (tmp_path / "whole" / "scores.csv").read_text()
    assert read(out)["table"] == read(tmp_path / "whole")["table"]
    assert (out / "compare.png").read_bytes() == (tmp_path / "whole" / "compare.png").read_bytes()


def test_what_is_added_is_computed_alone(tmp_path, monkeypatch):
    """A metric that is added scores the stored maps, an image that is added is explained alone; what other settings
    asked for stays."""
    real, seen = IntegratedGradients.attribute, []

    def attribute(self, problem):
        seen.append((self.steps, *problem.keys))
        return real(self, problem)

    monkeypatch.setattr(IntegratedGradients, "attribute", attribute)
    monkeypatch.setattr(comparison, "BATCH_IMAGES", 1)
    first = ("embedded:digits:0", "--methods", "ig", "--no-controls")
    for arguments, metrics, made in (
        (first, "sparseness", [(50, "digits-0000")]),
        (first, "sparseness,insertion", []),
        (("embedded:digits:0:2", *first[1:]), "insertion", [(50, "digits-0001")]),
        ((*first, *QUICK[-2:]), "insertion", [(10, "digits-0000")]),
        (first, "sparseness,insertion", []),
    ):
        seen.clear()
        assert quick(tmp_path, *arguments, metrics=metrics).exit_code == 0
        assert seen == made
        assert [m["label"] for m in read(tmp_path)["metrics"]] == metrics.split(",")
        assert len(lines(tmp_path)) == len(metrics.split(",")) * read(tmp_path)["counts"]["compared"]


def test_a_function_that_was_edited_is_called_again(tmp_path):
    """Its file is a part of its settings: of two functions of one name, too."""
    for folder, factor in (("a", 1), ("b", -1)):
        (tmp_path / folder).mkdir()
        code = f"def scaled(model, inputs, target):\n    return {factor} * inputs\n"
        (tmp_path / folder / "own.py").write_text(code)
    names = ",".join(f"{folder}={tmp_path / folder / 'own.py'}:scaled" for folder in "ab")
    asked = ("embedded:digits:0", "--methods", names, "--trust-code", "--no-controls")
    assert quick(tmp_path / "out", *asked, metrics="infidelity").exit_code == 0
    first = {r["method"]: r["score"] for r in lines(tmp_path / "out")}
    assert first["a"] != first["b"]
    (tmp_path / "a" / "own.py").write_text(code)
    assert quick(tmp_path / "out", *asked, metrics="infidelity").exit_code == 0
    assert {r["method"]: r["score"] for r in lines(tmp_path / "out")} == {"a": first["b"], "b": first["b"]}


NET = """
import torch

class Net(torch.nn.Linear):
    def forward(self, x):
        return {factor} * super().forward(x.flatten(1))

def net():
    torch.manual_seed(0)
    return Net(64, 3)
"""


def test_a_model_whose_code_was_edited_is_named(tmp_path):
    """Its weights are the same; with --overwrite its results are computed again."""
    (tmp_path / "net.py").write_text(NET.format(factor=1))
    model = ("--model", f"{tmp_path / 'net.py'}:net", "--trust-code", "--preprocessing", "unit,channels=1")
    asked = (picture(tmp_path / "a.png"), *model, "--methods", "ig", "--no-controls")
    assert quick(tmp_path / "out", *asked, metrics="infidelity").exit_code == 0
    (before,) = lines(tmp_path / "out")
    (tmp_path / "net.py").write_text(NET.format(factor=2))
    refused = quick(tmp_path / "out", *asked, metrics="infidelity")
    assert refused.exit_code == 2
    assert "its logits are not those that the results" in refused.stderr
    assert "or use --overwrite to remove the results of this model" in refused.stderr
    again = quick(tmp_path / "out", *asked, "--overwrite", metrics="infidelity")
    assert (again.exit_code, "its results under 1 setting are removed" in again.stderr) == (0, True)
    (after,) = lines(tmp_path / "out")
    assert float(after["score"]) == pytest.approx(4 * float(before["score"]), rel=1e-4)


def test_what_failed_is_tried_again(tmp_path, monkeypatch):
    def refuse(self, maps):
        raise InputError("not today")

    arguments = ("embedded:digits:0:2", "--methods", "ig", *QUICK[-2:], "--no-controls")
    with monkeypatch.context() as patch:
        patch.setattr(Sparseness, "score", refuse)
        assert quick(tmp_path, *arguments).exit_code == 3
    assert quick(tmp_path, *arguments).exit_code == 0
    assert [r["flags"] for r in lines(tmp_path)] == ["", ""]


def test_a_comparison_is_a_run_that_status_reads(tmp_path):
    arguments = ("embedded:digits:0:2", "--methods", "ig", *QUICK[-2:], "--no-controls")
    assert quick(tmp_path, *arguments).exit_code == 0
    shown = run("status", tmp_path)
    assert (shown.exit_code, "compare" in shown.stdout) == (0, True), shown.output


def test_maps_are_stored_only_where_they_are_shown(tmp_path):
    arguments = ("embedded:digits:0:3", "--methods", "ig", *QUICK[-2:], "--rows", "2")
    assert quick(tmp_path, *arguments).exit_code == 0
    store = Store(tmp_path, create=False)
    kept = {one.about["method"]: int((one.rows["map"] != 0).sum()) for one in store.blocks()}
    assert kept == {"ig": 2, **dict.fromkeys((*CONTROLS, "power(1.5):ig", "centre_prior:ig"), 0)}


def test_a_spreadsheet_computes_no_name(tmp_path):
    arguments = (*DIGITS, "--preprocessing", "channels=1,mean=0.3,std=0.35", "--methods", "-x=ig", "--no-controls")
    assert quick(tmp_path / "out", picture(tmp_path / "=1+2.png"), *arguments).exit_code == 0
    (line,) = lines(tmp_path / "out")
    assert (line["method"], line["image"]) == ("'-x", read(tmp_path / "out")["images"][0]["id"])


def test_copies_of_an_image_stay_two_images(tmp_path):
    """Their noise is that of their names."""
    copies = [picture(tmp_path / name) for name in ("b.png", "a.png")]
    arguments = (*copies, *DIGITS, "--preprocessing", "channels=1,mean=0.3,std=0.35", "--methods", "ig")
    assert quick(tmp_path / "out", *arguments, *QUICK[-2:]).exit_code == 0
    scores = {(r["method"], r["image"]): r["score"] for r in lines(tmp_path / "out")}
    assert list(scores)[:2] == [("ig", "b"), ("ig", "a")]
    assert float(scores["ig", "a"]) == pytest.approx(float(scores["ig", "b"]), rel=1e-6)
    assert scores["random", "a"] != scores["random", "b"]


def test_a_comparison_judges_its_metrics(tmp_path, monkeypatch):
    """The verdicts are the library's, in one batch or in several, and are written, printed and drawn."""
    arguments = ("embedded:digits:0:4", "--methods", "ig,smoothgrad,short=ig", *QUICK[-2:], "--validity")
    options = ("--set", "short.steps=2", "--set", "smoothgrad.samples=3")
    monkeypatch.setattr(comparison, "BATCH_IMAGES", 3)
    result = quick(tmp_path, *arguments, *options, metrics="insertion,sparseness")
    assert result.exit_code == 0, result.output
    assert {"validity.json", "agreement.png"} < {file.name for file in tmp_path.iterdir()}
    assert "not judged: it does not depend on the order of the pixels" in " ".join(result.stdout.split())
    written = json.loads((tmp_path / "validity.json").read_text(encoding="utf-8"))
    assert (written["model"], written["images"]) == ("digits", 4)
    assert written["metrics"] == read(tmp_path)["validity"]["metrics"]
    loaded, x, ids = digits("embedded:digits:0:4")
    low, high = loaded.preprocessing.bounds()
    methods = {"ig": IntegratedGradients(steps=10), "smoothgrad": SmoothGrad(samples=3)}
    methods["short"] = IntegratedGradients(steps=2)
    table = compare(loaded.module, x, methods, ["insertion", "sparseness"], ids=ids, space=InputSpace(low, high))
    for one, expected in zip(written["metrics"], validate_metrics(table).metrics, strict=True):
        assert (one["verdict"], one["n"]) == (expected.verdict, expected.n)
        if one["metric"] == "insertion":
            assert one["validity"]["mean"] == pytest.approx(expected.validity.mean, abs=1e-6)
            assert one["power"] == pytest.approx(expected.power, abs=1e-3)
            assert one["gap"] == pytest.approx(expected.gap, abs=1e-3)
