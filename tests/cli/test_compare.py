"""``fringe compare`` from the outside: exit codes, files, and numbers equal to the library's."""

import csv
import io
import json

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from fringe import FRInGe, InputError, InputSpace, IntegratedGradients, SmoothGrad
from fringe.cli import app
from fringe.data import find_inputs
from fringe.evaluation import CONTROLS, compare, estimate, validate_metrics
from fringe.explanations import ComparisonRun, _compare
from fringe.metrics import Sparseness
from fringe.models import load_model

DIGITS = ("--model", "embedded:digits")
QUICK = ("--set", "fringe.tau=0.02", "--set", "fringe.cg_iterations=4", "--set", "ig.steps=10")


def run(*arguments):
    return CliRunner().invoke(app, ["compare", *map(str, arguments)])


def quick(out, *arguments, metrics="sparseness"):
    return run(*arguments, "--out", out, "--metrics", metrics)


def read(folder):
    return json.loads((folder / "summary.json").read_text(encoding="utf-8"))


def lines(folder):
    return list(csv.DictReader(io.StringIO((folder / "scores.csv").read_text(encoding="utf-8"))))


def digits(selection):
    loaded = load_model("embedded:digits")
    refs = list(find_inputs([selection]))
    return loaded, loaded.prepare([ref.open(channels=1).image for ref in refs]), [ref.id for ref in refs]


def grey(path, size=(8, 8), seed=0):
    Image.fromarray(np.random.default_rng(seed).integers(0, 255, size[::-1], dtype=np.uint8)).save(path)
    return path


def test_a_run_writes_what_the_library_computes(tmp_path):
    metrics = ["mas_insertion", "mas_deletion", "infidelity"]
    out = tmp_path / "out"
    result = quick(out, "embedded:digits:3:6", *QUICK, "--json", "--seed", "4", metrics=",".join(metrics))
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document == read(out)
    assert {file.name for file in out.iterdir()} == {"compare.png", "scores.csv", "summary.json"}
    with Image.open(out / "compare.png") as picture:
        assert min(picture.size) > 400

    loaded, x, ids = digits("embedded:digits:3:6")
    methods = [FRInGe(tau=0.02, cg_iterations=4), IntegratedGradients(steps=10)]
    found = compare(loaded.module, x, methods, metrics, ids=ids, seed=4)
    rows = lines(out)
    expected = [
        (row.label, metric, image, float(row.scores[metric].values[i]))
        for row in found.rows
        for metric in metrics
        for i, image in enumerate(ids)
    ]
    assert [(r["method"], r["metric"], r["image"], float(r["score"])) for r in rows] == expected
    assert {r["method"] for r in rows if r["control"] == "true"} == {*CONTROLS, "diffusion"}

    entry = next(e for e in document["table"] if (e["method"], e["metric"]) == ("ig", "mas_deletion"))
    interval = estimate([s for m, k, _, s in expected if (m, k) == ("ig", "mas_deletion")], seed=4)
    assert (entry["mean"], entry["low"], entry["high"]) == (interval.mean, interval.low, interval.high)
    assert (entry["n"], entry["images"]) == (3, 3)
    assert [m["label"] for m in document["methods"]] == ["fringe", "ig", *CONTROLS, "diffusion"]
    assert document["methods"][1]["settings"]["steps"] == 10
    assert document["methods"][1]["passes"] == {"forward": 33, "jvp": 0, "vjp": 30}
    assert [(m["label"], m["direction"]) for m in document["metrics"]] == [
        ("mas_insertion", "higher"),
        ("mas_deletion", "lower"),
        ("infidelity", "lower"),
    ]
    assert [image["target"]["class"] for image in document["images"]] == found.target.tolist()
    assert document["counts"] == {"inputs": 3, "compared": 3, "failed": 0}
    assert document["references"] == {"source": "inputs", "images": [f"digits-000{i}" for i in (5, 3, 4)]}  # as drawn
    assert (document["complete"], document["seed"], document["model"]["digest"]) == (True, 4, loaded.digest)


def test_the_table_says_where_better_is_and_how_many_images_there_are(tmp_path):
    result = quick(tmp_path, "embedded:digits:0:2", "--methods", "ig", metrics="sparseness,deletion:fast")
    assert result.exit_code == 0
    assert "sparseness ↑" in result.stdout
    assert "deletion:fast ↓" in result.stdout
    shown = result.stdout.splitlines()
    (line,) = [line for line in shown if line.startswith("ig ")]
    assert [text.partition(" ")[0].strip("─") for text in shown[1:7]] == ["", "ig", "", *list(CONTROLS)[:3]]
    entries = {e["metric"]: e for e in read(tmp_path)["table"] if e["method"] == "ig"}
    for name in ("sparseness", "deletion:fast"):
        mean, low, high = (f"{entries[name][key]:.3f}" for key in ("mean", "low", "high"))
        assert f"{mean} [{low}…{high}]" in line
    assert line.split()[-4:-1] == ["2", "1", "101"]  # images with a score, flagged scores, passes an image
    assert "flagged scores: " in result.stdout
    assert " zero_map " in result.stdout


def test_a_metric_of_maxima_is_summed_up_by_its_median(tmp_path):
    """The median of three unequal scores is one of them; the mean is not."""
    result = quick(tmp_path, "embedded:digits:0:3", "--methods", "ig", metrics="max_sensitivity,sparseness")
    assert result.exit_code == 0
    ordered = sorted(
        float(r["score"]) for r in lines(tmp_path) if (r["method"], r["metric"]) == ("ig", "max_sensitivity")
    )
    assert ordered[0] < ordered[1] < ordered[2]
    (entry,) = [e for e in read(tmp_path)["table"] if (e["method"], e["metric"]) == ("ig", "max_sensitivity")]
    assert (entry["summary"], entry["median"]) == ("median", ordered[1])
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("ig ")]
    assert f" {ordered[1]:.3f} [{entry['low']:.3f}…{entry['high']:.3f}] " in line
    assert "mean (median for max sensitivity) [95 %" in result.stdout


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
    assert {label: (s["steps"], s["baseline"]) for label, s in settings.items()} == {
        "black": (50, "black"),
        "ig:paper": (200, "zero"),
        "short": (3, "zero"),
    }
    first = document["metrics"][0]
    assert (first["label"], first["settings"]["steps"], first["settings"]["normalise"]) == ("insertion:raw", 4, False)
    loaded, x, ids = digits("embedded:digits:0")
    low, high = loaded.preprocessing.bounds()
    method = IntegratedGradients(baseline="black")
    found = compare(loaded.module, x, [method], ["sparseness"], ids=ids, space=InputSpace(low, high), controls=False)
    row = next(r for r in lines(tmp_path) if (r["method"], r["metric"]) == ("black", "sparseness"))
    assert float(row["score"]) == float(found.rows[0].scores["sparseness"].values[0])


def test_one_bad_image_and_one_bad_method_do_not_stop_the_rest(tmp_path):
    good, broken = grey(tmp_path / "7_good.png"), tmp_path / "broken.png"
    broken.write_bytes(good.read_bytes()[:40])
    out = tmp_path / "out"
    result = quick(
        out, broken, good, *DIGITS, "--methods", "geoig_knn,ig", "--set", "geoig_knn.neighbours=50", *QUICK[-2:]
    )
    assert result.exit_code == 3, result.output
    assert "broken.png" in result.stderr
    assert "Traceback" not in result.stderr
    document = read(out)
    assert document["counts"] == {"inputs": 2, "compared": 1, "failed": 1}
    assert [("error" in image, image["id"]) for image in document["images"]] == [(False, "7_good"), (True, "broken")]
    assert {r["image"] for r in lines(out)} == {"7_good"}


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
    assert [(r["score"] == "", r["flags"]) for r in lines(tmp_path) if r["method"] == "ig"] == [
        (False, ""),
        (True, "failed"),
        (False, ""),
    ]


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
    assert [(m["label"], m["maps"]) for m in read(tmp_path / "out")["methods"]] == [
        ("ig", 2),
        ("gradient", 2),
        ("bad", 0),
    ]
    wrong = quick(tmp_path / "out", "embedded:digits:0", "--methods", f"{tmp_path / 'own.py'}:grad", "--trust-code")
    assert "error: --methods: " in wrong.stderr
    assert wrong.exit_code == 2


def test_a_method_that_fails_is_a_row_with_its_error(tmp_path, monkeypatch):
    monkeypatch.setattr(ComparisonRun, "_check", lambda self: None)  # which would refuse a method without references
    alone = quick(tmp_path, "embedded:digits:0", "--methods", "ig2,ig", *QUICK[-2:])
    assert alone.exit_code == 3
    told = "error: ig2: --references: ig2 follows paths to images of other classes; pass images with --references DIR\n"
    assert told in alone.stderr
    failed = next(m for m in read(tmp_path)["methods"] if m["label"] == "ig2")
    assert (failed["maps"], failed["images"], len(failed["errors"])) == (0, 1, 1)
    assert [(r["score"], r["flags"]) for r in lines(tmp_path) if r["method"] == "ig2"] == [("", "failed")]
    given = ("--references", "embedded:digits:20:26", "--set", "ig2.steps=3")
    found = quick(tmp_path, "embedded:digits:0", "--methods", "ig2", *given)
    assert found.exit_code == 0, found.output
    assert sorted(read(tmp_path)["references"]["images"]) == [f"digits-00{i}" for i in range(20, 26)]


def test_images_of_several_sizes_keep_their_order(tmp_path):
    sizes = {"a": (16, 16), "b": (24, 16), "c": (16, 16), "d": (4, 4)}
    paths = [grey(tmp_path / f"{name}.png", size) for name, size in sizes.items()]
    arguments = (*paths, *DIGITS, "--preprocessing", "channels=1,mean=0.3,std=0.35", "--methods", "ig", "--no-controls")
    result = quick(tmp_path / "out", *arguments, *QUICK[-2:], metrics="sparseness,insertion")
    assert result.exit_code == 3
    rows = lines(tmp_path / "out")
    assert [(r["metric"], r["image"]) for r in rows] == [(m, i) for m in ("sparseness", "insertion") for i in "abc"]
    assert "cannot take an input of shape (1, 4, 4)" in read(tmp_path / "out")["images"][-1]["error"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--methods", "fringes"), "did you mean 'fringe'"),
        (("--methods", "ig,ig"), "--methods: ig given twice; give each its own label"),
        (("--rows", "0"), "--rows: got 0, expected a positive whole number"),
        (("--methods", " , "), "--methods: none given"),
        (("--methods", "ig:papers"), "--methods: ig has no 'papers'"),
        (("--metrics", "insertio"), "did you mean 'insertion'"),
        (("--metrics", "insertion:rize"), "insertion has no 'rize'"),
        (("--set", "steps=3"), "expected LABEL.KEY=VALUE"),
        (("--set", "igg.steps=3"), "'igg' is not compared here; did you mean 'ig'"),
        (("--set", "ig.step=3"), "did you mean 'steps'"),
        (("--set", "ig.steps=few"), "expected a positive whole number"),
        (("--pool", "wide"), "--pool"),
        (("--references", "/nowhere"), "--references: '/nowhere'"),
        (("--target", "10"), "class 10 does not exist"),
        (("--model", "embedded:digit"), "did you mean 'digits'"),
    ],
)
def test_wrong_usage_is_exit_code_2_and_one_line(tmp_path, arguments, message):
    result = run(
        "embedded:digits:0:2",
        "--out",
        tmp_path / "out",
        "--methods",
        "fringe,ig",
        "--metrics",
        "sparseness",
        *arguments,
    )
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_a_class_is_compared_by_its_name(tmp_path):
    (tmp_path / "names.txt").write_text("zero one two three four five six seven eight nine".replace(" ", "\n"))
    named = ("embedded:digits:0", "--methods", "ig", "--classes", tmp_path / "names.txt")
    assert quick(tmp_path / "out", *named, "--target", "eight").exit_code == 0
    (entry,) = read(tmp_path / "out")["images"]
    assert (entry["target"]["class"], read(tmp_path / "out")["target"]) == (8, 8)
    refused = quick(tmp_path / "b", *named, "--target", "eigth")
    assert refused.exit_code == 2
    assert "--target: got 'eigth', which is no class of the model; did you mean 'eight'" in refused.stderr


def test_photos_ask_for_a_model(tmp_path, monkeypatch):
    monkeypatch.setattr("fringe.inputs._request.has_efficientnet", lambda: False)
    result = quick(tmp_path / "out", grey(tmp_path / "photo.png"), "--methods", "ig")
    assert result.exit_code == 2
    assert "--model: none given" in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_model_that_ends_in_a_softmax_names_the_option_that_reads_it(tmp_path):
    model = tmp_path / "model.py"
    model.write_text(
        "import torch\n"
        "def network():\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3), torch.nn.Softmax(1))\n"
    )
    arguments = (grey(tmp_path / "a.png"), "--model", f"{model}:network", "--trust-code", "--methods", "ig")
    arguments = (*arguments, "--preprocessing", "unit,channels=1")
    refused = quick(tmp_path / "out", *arguments)
    assert refused.exit_code == 2
    assert "--model-output probabilities" in refused.stderr
    read_as = quick(tmp_path / "out", *arguments, "--model-output", "probabilities")
    assert read_as.exit_code == 0, read_as.stderr
    assert read(tmp_path / "out")["model_output"] == "probabilities"


def test_nothing_done_is_exit_code_1(tmp_path, monkeypatch):
    monkeypatch.setattr(ComparisonRun, "_check", lambda self: None)
    assert quick(tmp_path / "out", tmp_path / "absent.png", *DIGITS).exit_code == 1
    result = quick(tmp_path / "out", "embedded:digits:0", "--methods", "ig2")
    assert result.exit_code == 1
    assert read(tmp_path / "out")["complete"]


def test_a_folder_of_another_commands_results_is_safe(tmp_path):
    explained = ["explain", "embedded:digits:0", "--method", "ig", "--no-figures", "--out", str(tmp_path)]
    assert CliRunner().invoke(app, explained).exit_code == 0
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
    benchmark = ("benchmark", "--methods", methods, "--n", "2", "--out", str(tmp_path / "run"))
    if "straight" in methods:
        assert message in CliRunner().invoke(app, benchmark).stderr
        assert not (tmp_path / "run").exists()


def test_an_interrupted_run_keeps_what_it_finished(tmp_path, monkeypatch):
    real, calls = ComparisonRun.logits, iter([False, True])

    def stop(self, group):
        if next(calls):
            raise KeyboardInterrupt
        return real(self, group)

    monkeypatch.setattr(_compare, "BATCH_IMAGES", 1)
    monkeypatch.setattr(ComparisonRun, "logits", stop)
    result = quick(tmp_path, "embedded:digits:0:3", "--methods", "ig", *QUICK[-2:])
    assert result.exit_code == 130
    assert "1 of 3 inputs are done" in result.stderr
    assert "the comparison is not resumed: run the same command again" in result.stderr
    assert not read(tmp_path)["complete"]
    assert {r["image"] for r in lines(tmp_path)} == {"digits-0000"}


def test_a_spreadsheet_computes_no_name(tmp_path):
    from PIL import Image

    Image.new("L", (32, 32), 90).save(tmp_path / "=1+2.png")
    arguments = (
        tmp_path / "=1+2.png",
        *DIGITS,
        "--preprocessing",
        "channels=1,mean=0.3,std=0.35",
        "--methods",
        "-x=ig",
    )
    assert quick(tmp_path / "out", *map(str, arguments), "--no-controls", metrics="sparseness").exit_code == 0
    (line,) = lines(tmp_path / "out")
    assert (line["method"], line["image"]) == ("'-x", read(tmp_path / "out")["images"][0]["id"])


def test_chunks_change_nothing(tmp_path, monkeypatch):
    arguments = ("embedded:digits:0:3", "--methods", "ig", *QUICK[-2:])
    assert quick(tmp_path / "whole", *arguments, metrics="insertion,infidelity").exit_code == 0
    monkeypatch.setattr(_compare, "BATCH_IMAGES", 1)
    assert quick(tmp_path / "parts", *arguments, metrics="insertion,infidelity").exit_code == 0
    whole, parts = ([float(r["score"]) for r in lines(tmp_path / name)] for name in ("whole", "parts"))
    torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-6)
    assert read(tmp_path / "whole")["methods"][0]["passes"] == read(tmp_path / "parts")["methods"][0]["passes"]


def test_metrics_of_random_networks_and_of_other_classes(tmp_path):
    """The command of the documentation: the controls that know nothing of the model score worst."""
    arguments = ("embedded:digits:0:2", "--methods", "ig", *QUICK[-2:], "--set", "mprt.stages=2")
    result = quick(tmp_path, *arguments, metrics="mprt,efficient_mprt,random_logit")
    assert result.exit_code == 0, result.output
    scores = {(row["method"], row["metric"]): row["score"] for row in lines(tmp_path)}
    assert [float(scores["edge", name]) for name in ("mprt", "efficient_mprt", "random_logit")] == [1.0, 0.0, 1.0]
    assert float(scores["ig", "mprt"]) < 0.9
    assert "random logit ↓" in result.stdout


def test_a_comparison_judges_its_metrics(tmp_path, monkeypatch):
    """The verdicts are the library's, in one batch or in several, and are written, printed and drawn."""
    arguments = ("embedded:digits:0:4", "--methods", "ig,smoothgrad,short=ig", *QUICK[-2:], "--validity")
    options = ("--set", "short.steps=2", "--set", "smoothgrad.samples=3")
    monkeypatch.setattr(_compare, "BATCH_IMAGES", 3)
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
    plain = quick(tmp_path / "plain", *arguments[:-1], *options, metrics="insertion")
    assert plain.exit_code == 0
    assert not (tmp_path / "plain" / "validity.json").exists()
