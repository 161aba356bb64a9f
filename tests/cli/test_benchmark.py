"""``fringe benchmark`` from the outside: exit codes, what is computed and what is not, and the library's numbers."""

import json
import os
import signal

import numpy as np
import pytest
import torch

import fringe
from command_line import SOFTMAX, picture, run
from fringe import FRInGe, InputSpace, IntegratedGradients, SmoothGrad
from fringe.attribution import PRESET_FORMAT
from fringe.bench.experiments import Store, read_results
from fringe.bench.experiments._runner import TaskRunner
from fringe.evaluation import CONTROLS, compare
from fringe.inputs import prepare, sample_images
from fringe.models import load_model

pytestmark = pytest.mark.usefixtures("small_figures")

DIGITS = ("--model", "embedded:digits")
IG = ("--methods", "ig", "--set", "ig.steps=2", "--no-controls")


def benchmark(out, *arguments, report=False):
    return run("benchmark", "--out", out, *(() if report else ("--no-report",)), *arguments)


def sparse(out, *arguments, n=2):
    """The smallest benchmark."""
    return benchmark(out, *IG, "--metrics", "sparseness", "--n", n, *arguments)


def test_a_dry_run_shows_what_is_missing_and_writes_nothing(tmp_path):
    out = tmp_path / "out"
    result = sparse(out, "--dry-run")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == "benchmark: 2 images; missing tasks: 1"
    assert lines[1].startswith("  digits ig: 2 maps, ")
    assert lines[2].startswith("  scores: sparseness ")
    assert "the store grows by 0." in lines[3]
    assert "MB, with --save-maps by 0." in lines[3]
    assert lines[4].endswith(", one task after the other")
    assert not out.exists()
    assert sparse(out).exit_code == 0
    document = json.loads(sparse(out, "--dry-run", "--json", n=3).stdout)
    assert [(row["method"], row["tasks"], row["maps"]) for row in document["methods"]] == [("ig", 1, 1)]
    assert (document["plan"], document["images"]) == ("benchmark", 3)


def account(result):
    return json.loads(result.stdout)


def test_the_scores_are_those_of_compare_on_the_same_images(tmp_path):
    metrics = ("insertion", "infidelity", "sparseness", "max_sensitivity")
    result = benchmark(
        tmp_path,
        *("--methods", "fringe,ig,smoothgrad", "--metrics", ",".join(metrics), "--n", 2, "--seed", 3, "--json"),
        *("--set", "fringe.steps=2", "--set", "ig.steps=3", "--set", "smoothgrad.samples=2"),
        *("--set", "max_sensitivity.samples=2", "--limit", "max_sensitivity=1"),
    )
    assert result.exit_code == 0, result.output
    assert account(result)["units"] == {"done": 20, "there": 0, "crashed": 0}  # 10 maps, two limits
    pictures = sample_images(["embedded:digits"], 2, 3).pictures
    loaded = load_model("embedded:digits")
    x = torch.stack([prepare(picture.ref, loaded.preprocessing, "ignore") for picture in pictures])
    methods = {"fringe": FRInGe(steps=2), "ig": IntegratedGradients(steps=3), "smoothgrad": SmoothGrad(samples=2)}
    space = InputSpace(*loaded.preprocessing.bounds())
    known = {"ids": [p.digest for p in pictures], "seed": 3, "space": space}
    results = read_results(Store(tmp_path, create=False))
    assert [image["digest"] for image in results.manifest.images] == known["ids"]
    found = compare(loaded.module, x, methods, metrics[:3], **known)
    for row in found.rows:
        for metric in metrics[:3]:
            expected = np.asarray(row.scores[metric].values, dtype=np.float64)
            assert np.isfinite(expected).all()
            np.testing.assert_allclose(results.scores("digits", row.label, metric), expected, rtol=1e-5, atol=1e-7)
    controls = (*CONTROLS, "diffusion", "power(1.5):fringe", "centre_prior:fringe")
    assert {row.label for row in found.rows} == {*methods, *controls}
    assert results.scores("digits", "ig", "max_sensitivity").shape == (1,)
    targets = set(results.cells["digits", "ig", "insertion"].maps["target"].tolist())
    assert targets == set(loaded.module(x).argmax(1).tolist())


def stored(out):
    """The rows of a run as bytes, in the order of their numbers."""
    rows = [row for block in Store(out, create=False).blocks() for row in block.rows]
    return [row.tobytes() for row in sorted(rows, key=lambda row: row["id"])]


def test_the_same_command_computes_nothing_twice_and_growing_computes_the_rest(tmp_path):
    assert account(sparse(tmp_path, "--json"))["units"]["done"] == 1
    before = stored(tmp_path)
    again = sparse(tmp_path, "--json")
    assert (again.exit_code, account(again)["units"]) == (0, {"done": 0, "there": 0, "crashed": 0})
    assert stored(tmp_path) == before
    first = [i["digest"] for i in read_results(Store(tmp_path)).manifest.images]

    assert "benchmark: 4 images; 2 maps made now" in sparse(tmp_path, n=4).stdout
    assert [i["digest"] for i in read_results(Store(tmp_path)).manifest.images][:2] == first
    assert stored(tmp_path)[:2] == before


def test_one_document_as_json_and_bars_for_nobody(tmp_path, small_figures):
    small_figures.undo()
    arguments = (*IG, "--metrics", "sparseness,insertion", "--n", 2, "--json")
    result = benchmark(tmp_path, *arguments, report=True)
    document = account(result)
    assert (document["plan"], document["images"], document["failed"], document["stopped"]) == ("benchmark", 2, 0, None)
    report = tmp_path / "report"
    assert {str(report / "report.html"), str(report / "summary.csv")} <= set(document["report"])
    assert (report / "report.html").is_file()
    assert result.stderr == ""


def test_a_class_that_there_is_not_is_told_before_its_scores_fail_and_the_folder_takes_another(tmp_path):
    result = sparse(tmp_path, "--target", "10")
    assert result.exit_code == 2
    assert "--target: class 10 does not exist; the model digits has classes 0 to 9" in result.stderr
    assert not (tmp_path / "report").exists()
    assert sparse(tmp_path, "--target", "9").exit_code == 0


def test_a_corrupt_image_does_not_stop_the_others(tmp_path):
    folder = tmp_path / "images"
    for seed, name in enumerate(("3_a.png", "4_b.png", "5_c.png")):
        picture(folder / name, (32, 32), seed)
    (folder / "6_broken.png").write_bytes((folder / "3_a.png").read_bytes()[:60])
    out = tmp_path / "out"
    result = sparse(out, "--data", folder, *DIGITS, "--target", "label", n=4)
    assert result.exit_code == 3
    assert "4 images; 3 maps made now" in result.stdout
    assert "1 score of ig on digits:" in result.stderr
    assert "6_broken.png': cannot be decoded" in result.stderr
    assert "--retry-failed" in result.stderr
    again = sparse(out, "--data", folder, *DIGITS, "--target", "label", n=4)
    assert (again.exit_code, "cannot be decoded" in again.stderr) == (3, True)  # still said, though nothing was tried
    assert "0 maps made now" in again.stdout


def test_a_function_of_a_file_is_a_method(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("def double(model, inputs, target):\n    return 2 * inputs\n")
    (tmp_path / "plan.toml").write_text("methods = 'mine.py:double'\n")
    few = ("--metrics", "sparseness", "--n", 1, "--no-controls")
    methods = ("--methods", "blur_ig,own=mine.py:double", "--trust-code", *few)
    result = benchmark("out", *methods)
    assert result.exit_code == 0, result.output
    assert read_results(Store("out", create=False)).methods("digits") == ("blur_ig", "own")
    assert "0 maps made now" in benchmark("out", *methods).stdout
    assert benchmark("other", "--config", "plan.toml", "--trust-code", *few).exit_code == 0
    assert read_results(Store("other", create=False)).methods("digits") == ("double",)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--data", "EMPTY", *DIGITS), "holds no images"),
        (("--n", "361"), "n: got 361, but there are 360 different images"),
        (("--methods", "mine.py:f"), "--methods: 'mine.py:f' runs the Python code in mine.py; pass --trust-code only"),
        (("--timeout", "9"), "add --workers 1, or more"),
        (("--batch-size", "0"), "--batch-size: got '0'"),
        (("--reference", "fringe"), "--reference: got 'fringe'; the methods: ig"),
        (("--methods", "zero=ig", "--controls"), "zero is a control"),
        (("--out", "FOREIGN"), "holds files that are no results of a run (mine.txt)"),
        (("--out", "FOREIGN/mine.txt"), "is a file, expected a folder"),
        (("--out", "FOREIGN/mine.txt/deeper"), "--out"),
        (("--preset", "PRESET"), "was tuned for 'resnet18'; the models are digits"),
    ],
)
def test_wrong_usage_is_exit_code_2_and_one_line(tmp_path, arguments, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "mine.txt").write_text("mine")
    about = {"architecture": "resnet18", "weights": "w", "objective": 0.5, "images": [], "trials": 1, "seed": 0}
    settings = {name: value for name, value in fringe.FRInGe().record().items() if name != "method"}
    preset = {"format": PRESET_FORMAT, "method": "fringe", "settings": settings, "about": {**about, "version": "0"}}
    (tmp_path / "tuned.json").write_text(json.dumps(preset))
    places = {"EMPTY": tmp_path / "empty", "PRESET": tmp_path / "tuned.json"}
    given = [str(places.get(a, a)).replace("FOREIGN", str(tmp_path / "foreign")) for a in arguments]
    known = ("--metrics", "sparseness", "--methods", "ig", "--no-controls")
    result = benchmark(tmp_path / "out", *known, *given)
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--data", "/"), "--model: none given; name the network that these images are for"),
        (("--device", "cuda:99"), "--device: 'cuda:99' cannot be used here: this machine has cpu"),
    ],
)
def test_a_model_or_device_that_is_not_there_is_one_line_before_anything_is_written(
    tmp_path, arguments, message, monkeypatch
):
    monkeypatch.setattr("fringe.inputs._sampling.has_efficientnet", lambda: False)
    result = sparse(tmp_path / "out", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()


TWO = ("--methods", "ig,other=ig", "--set", "other.steps=3", *IG[2:], "--metrics", "sparseness", "--n", 2)


def test_a_signal_is_exit_code_75_and_the_same_command_goes_on(tmp_path, monkeypatch):
    """It arrives while the second task is in work."""
    real, calls = TaskRunner.perform, []

    def perform(self, unit, kept=None):
        calls.append(unit)
        if len(calls) > 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(self, unit, kept)

    with monkeypatch.context() as patch:
        patch.setattr(TaskRunner, "perform", perform)
        stopped = benchmark(tmp_path, *TWO, report=True)
    assert stopped.exit_code == 75
    assert "interrupted (SIGTERM)" in stopped.stderr
    assert "run the same command again to go on" in stopped.stderr
    shown = run("status", tmp_path)
    assert shown.exit_code == 75

    refused = run("report", tmp_path)
    assert refused.exit_code == 2
    assert "digits, other, sparseness: 2 of 2 images are not computed" in refused.stderr
    assert "--allow-partial" in refused.stderr
    assert not (tmp_path / "report").exists()
    partial = run("report", tmp_path, "--allow-partial", "--no-grid", "--out", tmp_path / "partial")
    assert partial.exit_code == 0, partial.output
    assert "2 of 2 images are not computed" in (tmp_path / "partial" / "report.md").read_text()

    resumed = benchmark(tmp_path, *TWO)
    assert (resumed.exit_code, "2 images; 2 maps made now" in resumed.stdout) == (0, True)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_that_a_callback_swallows_ends_the_run_at_the_next_task(tmp_path, monkeypatch):
    class Final:
        def __del__(self):
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr("fringe.cli._console.Progress.advance", lambda *_, **__: Final() and None)
    stopped = benchmark(tmp_path, *TWO)
    assert (stopped.exit_code, "interrupted (SIGTERM)" in stopped.stderr) == (75, True), stopped.output
    assert run("status", tmp_path).exit_code == 75


def test_the_printed_table_says_what_its_numbers_are(tmp_path):
    result = benchmark(tmp_path, *TWO, report=True)
    assert "\nValues: mean [95% bootstrap interval over images" in result.stdout, result.output
    assert "\n*, **, ***: differs from" in result.stdout  # the table has these marks


def test_the_report_command_writes_where_it_is_told(tmp_path):
    assert sparse(tmp_path / "run").exit_code == 0
    place = tmp_path / "elsewhere"
    result = run("report", tmp_path / "run", "--plan", "benchmark", "--no-grid", "--out", place)
    assert result.exit_code == 0, result.output
    assert f"report: {place / 'report.html'}" in result.stdout
    assert {"report.html", "report.md", "tables.tex", "scores.csv", "summary.csv"} <= {p.name for p in place.iterdir()}
    unknown = run("report", tmp_path / "run", "--plan", "ablation")
    assert (unknown.exit_code, "the plans in" in unknown.stderr) == (2, True)
    other = run("report", tmp_path / "run", "--reference", "fringe")
    assert (other.exit_code, "reference: got 'fringe'; the methods of digits: ig" in other.stderr) == (2, True)
    absent = run("report", tmp_path / "absent")
    assert (absent.exit_code, "holds no run of this program" in absent.stderr) == (2, True)


@pytest.fixture
def softmax(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(SOFTMAX)
    return ("--data", "embedded:digits", "--trust-code", "--preprocessing", "unit,channels=1")


@pytest.mark.parametrize("command", ["benchmark", "tune"])
def test_a_model_that_ends_in_a_softmax_names_the_flag_of_every_command(softmax, command):
    result = run(*command.split(), *softmax, "--model", "net=net.py:Softmax", "--n", 2, "--out", "out")
    assert result.exit_code == 2
    assert result.stderr.count("error: --model-output: the outputs") == 1
    assert "pass --model-output probabilities" in result.stderr


def test_probabilities_are_scored_as_their_logarithms(softmax):
    scores = {}
    chosen = (*softmax, "--score", "log_probability", "--save-maps")
    for name, options in (("Logits", ()), ("Softmax", ("--model-output", "probabilities"))):
        assert sparse(name, *chosen, "--model", f"net=net.py:{name}", *options).exit_code == 0
        scores[name] = read_results(name).scores("net", "ig", "sparseness")
    assert scores["Logits"] == pytest.approx(scores["Softmax"], rel=1e-4)
    other = sparse("Softmax", *chosen, "--model", "net=net.py:Softmax", "--model-output", "logits")
    assert other.exit_code == 2
    assert "output" in other.stderr
