"""``fringe explain`` from the outside: exit codes, files, and numbers equal to the library's."""

import hashlib
import json
import os
import re
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import fringe
from command_line import SOFTMAX, picture, run
from fringe._strings.progress import Progress
from fringe.data import find_inputs
from fringe.explanations import ExplanationRun
from fringe.models import load_model

pytestmark = pytest.mark.usefixtures("small_figures")

QUICK = ("--set", "tau=0.1")
DIGITS = ("--model", "embedded:digits")
FILES = {
    *("overlay.png", "signed.png", "trajectory.png", "profile.png", "attribution.safetensors", "explanation.json"),
    *("explanation.html", "path.webp"),
}


def explain(*arguments):
    return run("explain", *arguments)


def quick(out, *arguments):
    return explain(*arguments, "--out", out, *QUICK, "--no-figures")


def read(path: Path):
    return json.loads(path.read_text(encoding="utf-8"))


def test_a_run_writes_what_the_library_computes(tmp_path, small_figures):
    small_figures.undo()
    result = explain("embedded:digits:3", "--out", tmp_path / "out", *QUICK, "--json")
    assert result.exit_code == 0
    printed = json.loads(result.stdout)
    assert printed == read(tmp_path / "out" / "summary.json")
    assert printed["complete"]
    counts = {"inputs": 1, "explained": 1, "reused": 0, "failed": 0}
    assert printed["counts"] == counts | {"verdicts": printed["counts"]["verdicts"]}

    loaded = load_model("embedded:digits")
    recipe = loaded.preprocessing
    images = [ref.open(channels=1).image for ref in find_inputs(["embedded:digits:3"])]
    x = torch.stack([recipe.normalise(recipe.pixels(image)) for image in images])
    direct = fringe.attribute(loaded.module, x, method=fringe.FRInGe(tau=0.1))
    for row, entry in enumerate(printed["inputs"]):
        folder = tmp_path / "out" / entry["folder"]
        assert {file.name for file in folder.iterdir()} == FILES
        tensors = load_file(folder / "attribution.safetensors")
        assert torch.equal(tensors["values"], direct.values[row])
        assert torch.equal(tensors["input"], x[row])
        assert entry["completeness_residual"] == float(direct.completeness_residual[row])
        assert entry["verdict"] == direct.verdict[row]
        full = read(folder / "explanation.json")
        assert {key: full[key] for key in entry if key != "folder"} == {k: v for k, v in entry.items() if k != "folder"}
        assert full["diagnostics"]["endpoint_kl"] == float(direct.diagnostics["endpoint_kl"][row])
        assert full["model"]["digest"] == loaded.digest
        assert full["settings"]["tau"] == 0.1
        assert len(full["top"]) == 5
        assert set(full["files"]) == FILES - {"explanation.json"}
    for drawn in (tmp_path / "out").rglob("*.png"):
        with Image.open(drawn) as image:
            assert min(image.size) > 200


def test_a_broken_image_does_not_stop_the_good_ones(tmp_path):
    good, broken = picture(tmp_path / "7_good.png"), tmp_path / "broken.png"
    broken.write_bytes(good.read_bytes()[:40])
    result = quick(tmp_path / "out", broken, good, tmp_path / "absent.png", *DIGITS)
    assert result.exit_code == 3
    assert "broken.png" in result.stderr
    assert "absent.png" in result.stderr
    assert "Traceback" not in result.stderr
    first, second, third = read(tmp_path / "out" / "summary.json")["inputs"]
    assert "broken.png" in first["error"]
    assert "absent.png" in third["error"]
    assert (second["id"], second["label"]) == ("7_good", 7)
    record = read(tmp_path / "out" / "7_good" / "explanation.json")
    assert record["sha256"] == hashlib.sha256(good.read_bytes()).hexdigest()
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["7_good", "summary.json"]


def test_two_methods_are_refused_with_the_command_that_takes_them(tmp_path):
    for methods in (("--method", "ig,gradcam"), ("--method", "ig", "--method", "gradcam")):
        result = explain("embedded:digits:3", *DIGITS, *methods, "--out", tmp_path / "out")
        assert result.exit_code == 2
        assert (
            "--method: got 'ig,gradcam', expected one method; several methods are compared by 'fringe compare"
            in result.stderr
        )
    assert not (tmp_path / "out").exists()


def test_nothing_done_is_exit_code_1(tmp_path):
    (tmp_path / "empty.png").touch()
    for source in ("empty.png", "absent.png"):
        result = quick(tmp_path / "out", tmp_path / source, *DIGITS)
        assert result.exit_code == 1
        assert result.stderr.startswith("error: ")
        assert source in result.stderr
        assert "A verdict is about" not in result.stdout  # there is no map


REFUSES = """
import torch

class Refuses(torch.nn.Sequential):
    def forward(self, x):
        bright = x.mean((1, 2, 3)) == 1
        {reaction}
        return super().forward(x)

def refuses():
    torch.manual_seed(0)
    return Refuses(torch.nn.Flatten(), torch.nn.Linear(64, 3))
"""


def refused(folder, command, reaction):
    """The command with a network that refuses the second of three images."""
    (folder / "net.py").write_text(REFUSES.format(reaction=reaction))
    images = [picture(folder / f"{name}.png", value=value) for name, value in (("a", 40), ("white", 255), ("z", 80))]
    model = ("--model", f"{folder / 'net.py'}:refuses", "--trust-code", "--preprocessing", "unit,channels=1")
    more = {"compare": ("--methods", "ig", "--metrics", "sparseness"), "explain": ("--method", "ig", "--no-figures")}
    return run(command, *images, *model, *more[command], "--out", folder / "out")


@pytest.mark.parametrize(
    ("command", "reaction", "reason"),
    [
        ("explain", "if bright.any(): raise ValueError('too bright')", "(1, 8, 8): too bright, in line 7 of net.py"),
        ("compare", "if bright.any(): raise ValueError('too bright')", "(1, 8, 8): too bright, in line 7 of net.py"),
        ("explain", "x = torch.where(bright[:, None, None, None], torch.nan, x)", "NaN"),
    ],
)
def test_an_image_that_the_model_refuses_stops_no_other(tmp_path, command, reaction, reason):
    result = refused(tmp_path, command, reaction)
    assert result.exit_code == 3, result.output
    entries = read(tmp_path / "out" / "summary.json")["inputs" if command == "explain" else "images"]
    errors = {entry["id"]: entry.get("error") for entry in entries}
    assert reason in errors.pop("white")
    assert errors == {"a": None, "z": None}


@pytest.mark.parametrize("command", ["explain", "compare"])
def test_memory_that_runs_out_in_a_model_is_no_fault_of_an_image(tmp_path, command):
    """It is no reason to set the image aside, and no traceback; nothing that was computed is lost."""
    result = refused(tmp_path, command, "if bright.any(): raise RuntimeError('CUDA out of memory')")
    assert result.exit_code == (75 if command == "compare" else 1), result.output
    assert result.stderr.splitlines()[-1].endswith("CUDA out of memory")


def test_a_model_that_cannot_decide_gets_an_empty_map_with_its_pictures(tmp_path):
    model = tmp_path / "flat.py"
    forward = "    def forward(self, x):\n        return 0 * x.flatten(1)[:, :3]\n"
    model.write_text(f"import torch\nclass Flat(torch.nn.Module):\n{forward}")
    options = ("--model", f"{model}:Flat", "--trust-code", "--preprocessing", "unit,channels=1")
    result = explain(picture(tmp_path / "a.png"), "--out", tmp_path / "out", *options)
    assert result.exit_code == 0
    (entry,) = read(tmp_path / "out" / "summary.json")["inputs"]
    assert (entry["verdict"], entry["steps"], entry["completeness_gap"]) == ("at_reference", 0, 0.0)
    assert "\nat_reference: There is nothing to explain" in result.stdout
    assert "\nok: " not in quick(tmp_path / "ok", "embedded:digits:3", *DIGITS).stdout
    assert {file.name for file in (tmp_path / "out" / "a").iterdir()} == FILES - {"profile.png"}
    assert not load_file(tmp_path / "out" / "a" / "attribution.safetensors")["values"].any()


def test_sizes_are_grouped_and_the_order_is_kept(tmp_path):
    sizes = {"a": (16, 16), "b": (24, 16), "c": (16, 16), "d": (4, 4), "e": (24, 16)}
    paths = [picture(tmp_path / f"{name}.png", size) for name, size in sizes.items()]
    result = quick(tmp_path / "out", *paths, *DIGITS, "--preprocessing", "channels=1,mean=0.3,std=0.35")
    assert result.exit_code == 3
    entries = read(tmp_path / "out" / "summary.json")["inputs"]
    assert [entry["id"] for entry in entries] == list(sizes)
    assert entries[3]["error"].startswith("preprocessing: the model cannot take an input of shape (1, 4, 4): ")
    for name in "abce":
        width, height = sizes[name]
        tensors = load_file(tmp_path / "out" / name / "attribution.safetensors")
        assert tensors["values"].shape == (1, height, width)
        stored = np.asarray(Image.open(tmp_path / f"{name}.png"), dtype=np.float32)[None] / 255
        np.testing.assert_allclose(tensors["input"].numpy(), (stored - 0.3) / 0.35, rtol=1e-5, atol=1e-6)


def test_photos_ask_for_a_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fringe.inputs._sampling.has_efficientnet", lambda: False)
    picture(tmp_path / "photo.png")
    result = quick("out", "embedded:digits:0", "photo.png")
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    for part in ("--model: none given", "--model torchvision:", "--model timm:", "--model hf:", "'fringe models'"):
        assert part in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_name_that_is_no_text_is_written_so_that_it_can_be_read_back(tmp_path):
    try:
        path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xffx.png"))
        picture(path)
    except OSError:
        pytest.skip("this file system takes text alone")
    assert quick(tmp_path / "out", path, *DIGITS).exit_code == 0
    (entry,) = read(tmp_path / "out" / "summary.json")["inputs"]
    assert entry["source"] == str(path)


def test_a_model_that_ends_in_a_softmax_names_the_option_that_reads_it(tmp_path):
    model, image = tmp_path / "model.py", picture(tmp_path / "a.png")
    model.write_text(SOFTMAX)
    others = (image, "--trust-code", "--preprocessing", "unit,channels=1", "--method", "ig", "--no-figures", "--json")
    softmax = ("--model", f"{model}:Softmax")
    refused = explain(*others, *softmax, "--out", tmp_path / "a")
    assert refused.exit_code == 2
    assert "look like probabilities" in refused.stderr
    assert "--model-output probabilities" in refused.stderr
    read_as = {}
    for name, options in (
        ("probabilities", (*softmax, "--model-output", "probabilities", "--score", "log_probability")),
        ("logits", ("--model", f"{model}:Logits", "--score", "log_probability")),
    ):
        result = explain(*others, *options, "--out", tmp_path / name)
        assert result.exit_code == 0, result.stderr
        read_as[name] = load_file(tmp_path / name / "a" / "attribution.safetensors")["values"]
    torch.testing.assert_close(read_as["probabilities"], read_as["logits"], rtol=1e-4, atol=1e-6)
    assert read(tmp_path / "probabilities" / "summary.json")["model_output"] == "probabilities"
    assert explain(*others, *softmax, "--model-output", "odds", "--out", tmp_path / "b").exit_code == 2


WORDS = "zero one two three four five six seven eight nine"


def test_a_class_is_explained_by_its_name(tmp_path):
    (tmp_path / "names.txt").write_text(WORDS.replace(" ", "\n"))
    named = ("embedded:digits:0", "--classes", tmp_path / "names.txt", "--json")
    for typed, number in (("seven", 7), ("SEV", 7), ("3", 3)):
        result = quick(tmp_path / "out", *named, "--target", typed, "--overwrite")
        assert result.exit_code == 0, result.stderr
        document = json.loads(result.stdout)
        assert document["inputs"][0]["target"]["class"] == document["setting"]["target"] == number
    again = quick(tmp_path / "out", *named, "--target", "three")
    assert json.loads(again.stdout)["counts"]["reused"] == 1  # the same class by its name
    several = quick(tmp_path / "out", *named, "--target", "s")
    assert several.exit_code == 2
    assert "--target: got 's', which fits the classes 6 (six), 7 (seven)" in several.stderr


def test_a_list_of_names_of_the_wrong_length_is_refused(tmp_path):
    (tmp_path / "names").write_text("a\nb\n")
    result = quick(tmp_path / "out", "embedded:digits:0", "--classes", tmp_path / "names")
    assert result.exit_code == 2
    assert "has 2 names for a model of 10 classes; name every class" in result.stderr


def test_other_peoples_files_are_safe(tmp_path):
    theirs = tmp_path / "digits-0000" / "thesis.txt"
    theirs.parent.mkdir()
    theirs.write_text("years of work")
    refused = quick(tmp_path, "embedded:digits:0")
    assert refused.exit_code == 2
    assert "--overwrite" in refused.stderr
    result = quick(tmp_path, "embedded:digits:0:2", "--overwrite")
    assert result.exit_code == 3
    assert "is no result of this command" in result.stderr
    assert theirs.read_text() == "years of work"
    assert (tmp_path / "digits-0001" / "explanation.json").is_file()


def test_a_folder_that_a_wrong_option_left_without_results_takes_other_settings(tmp_path):
    wrong = quick(tmp_path, "embedded:digits:0", "--target", "77")
    assert (wrong.exit_code, "class 77 does not exist" in wrong.stderr) == (2, True)
    assert quick(tmp_path, "embedded:digits:0", "--target", "7").exit_code == 0
    assert quick(tmp_path, "embedded:digits:0", "--target", "6").exit_code == 2


def test_a_wrong_reference_distribution_is_not_taken_for_reference_images(tmp_path):
    result = quick(tmp_path, "embedded:digits:0", "--set", "reference=0.5,0.5")
    assert (result.exit_code, result.stderr) == (2, "error: reference: got shape (2,), expected (10,) or (1, 10)\n")


def test_another_method_is_named_first_and_the_rest_is_counted(tmp_path):
    assert quick(tmp_path, "embedded:digits:0").exit_code == 0
    refused = explain("embedded:digits:0", "--method", "rise", "--out", tmp_path)
    assert refused.exit_code == 2
    assert re.search(r"other settings \(method: fringe, now rise; ([^;]*; ){3}and \d+ more\); name", refused.stderr)


def test_a_damaged_summary_is_named_and_written_again_from_results_that_are_whole(tmp_path):
    assert quick(tmp_path, "embedded:digits:0:2").exit_code == 0
    before = (tmp_path / "digits-0000" / "explanation.json").stat().st_mtime_ns
    (tmp_path / "summary.json").write_text("{")
    refused = quick(tmp_path, "embedded:digits:0:2", "--seed", "1")
    assert (refused.exit_code, "other settings (seed: 0, now 1)" in refused.stderr) == (2, True)
    again = quick(tmp_path, "embedded:digits:0:2")
    assert (again.exit_code, again.stderr.count("summary.json' is damaged and is written again")) == (0, 1)
    assert read(tmp_path / "summary.json")["counts"]["reused"] == 2
    assert (tmp_path / "digits-0000" / "explanation.json").stat().st_mtime_ns == before
    (tmp_path / "summary.json").write_text("{")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "letter.txt").touch()
    foreign = quick(tmp_path, "embedded:digits:0:2")
    assert (foreign.exit_code, "summary.json' is damaged, and so it is not known" in foreign.stderr) == (2, True)


def test_the_table_shows_another_class_than_the_prediction_and_whose_probability_it_is(tmp_path):
    same, other = (quick(tmp_path / t, "embedded:digits:0:2", "--target", t).stdout for t in ("predicted", "3"))
    for word in ("explained", "p(prediction)"):
        assert (word in same, word in other) == (False, True)
    rows = [line.split()[:3] for line in other.splitlines() if line.startswith("digits-")]
    assert rows == [["digits-0000", "0", "3"], ["digits-0001", "1", "3"]]


@pytest.mark.parametrize(("step", "size"), [("_write", "auto"), ("logits", "1")])
def test_an_interrupted_run_keeps_what_it_finished(tmp_path, monkeypatch, step, size):
    """What it wrote of a batch, and what was there."""
    assert quick(tmp_path, "embedded:digits:0").exit_code == 0
    real, calls = getattr(ExplanationRun, step), iter([False, True])

    def interrupted(self, *given):
        if next(calls):
            raise KeyboardInterrupt
        return real(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(ExplanationRun, step, interrupted)
        result = quick(tmp_path, "embedded:digits:0:4", "--batch-size", size)
    assert (result.exit_code, "2 of 4 inputs are complete" in result.stderr) == (130, True), result.stderr
    assert "run the same command again to go on" in result.stderr
    summary = read(tmp_path / "summary.json")
    assert not summary["complete"]
    listed = [entry["folder"] for entry in summary["inputs"]]
    assert listed == (["digits-0000", "digits-0001"] if size == "1" else [])  # it is written after each batch
    written = [path.stat().st_mtime_ns for path in sorted(tmp_path.glob("digits-*/explanation.json"))]
    resumed = quick(tmp_path, "embedded:digits:0:4")
    assert (resumed.exit_code, "reused from an earlier run: 2" in resumed.stdout) == (0, True)
    assert [path.stat().st_mtime_ns for path in sorted(tmp_path.glob("digits-*/explanation.json"))][:2] == written


def swallowed(*_):
    """Send Ctrl+C where the caller ignores errors, as that of a finaliser does."""

    class Final:
        def __del__(self):
            signal.raise_signal(signal.SIGINT)

    Final()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_that_a_callback_swallows_ends_the_run_at_the_next_image(tmp_path, monkeypatch):
    monkeypatch.setattr(Progress, "step", swallowed)
    result = quick(tmp_path / "out", "embedded:digits:0:3", "--batch-size", "1")
    assert (result.exit_code, "1 of 3 inputs are complete" in result.stderr) == (130, True), result.stderr


NET = """
from fringe.models import load_model

PREPROCESSING = load_model("embedded:digits").preprocessing


def make():
    return load_model("embedded:digits").module
"""


def test_pages_are_titled_by_the_file_or_the_label_and_not_by_the_function(tmp_path):
    (tmp_path / "net.py").write_text(NET)
    named = ("embedded:digits:3", "--method", "ig", "--set", "steps=4", "--trust-code")
    for label, title in (("", "net.make"), ("mine=", "mine")):
        out = tmp_path / title
        result = explain(*named, "--model", f"{label}{tmp_path / 'net.py'}:make", "--out", out)
        assert result.exit_code == 0, result.output
        page = (out / "digits-0003" / "explanation.html").read_text(encoding="utf-8")
        assert f"<strong>{title}</strong> gives" in page
        index = (out / "index.html").read_text(encoding="utf-8")
        assert f"<title>{title} · " in index
        assert "does not say whether the map marks the right parts of the input" in index
        assert "It does not say whether the map marks the right parts." in result.output.replace("\n", " ")
        assert json.loads((out / "summary.json").read_text())["model"]["label"] == title
    again = explain(*named, "--model", f"other={tmp_path / 'net.py'}:make", "--out", tmp_path / "mine")
    assert "model.label: mine, now other" in again.stderr.replace("\n", " ")


def test_a_run_into_the_folder_of_a_living_run_of_other_settings_is_refused(tmp_path, monkeypatch):
    """It has no result yet, as for as long as a model takes to load; both would replace what the other writes."""
    out, seconds = tmp_path / "out", []

    def meanwhile(self, *given):
        if not seconds:
            seconds.extend([None, None])
            seconds[:] = [
                explain("embedded:digits:0:2", "--method", name, "--no-figures", "--out", out)
                for name in ("hirescam", "gradcam")
            ]
        return real(self, *given)

    real = ExplanationRun._explain_group
    monkeypatch.setattr(ExplanationRun, "_explain_group", meanwhile)
    first = list(fringe.explain_images(["embedded:digits:0:2"], out, method="gradcam", figures=False, batch_size=1))
    assert [result.exit_code for result in seconds] == [2, 0]
    assert "another run writes results of other settings into" in seconds[0].stderr
    assert re.search(
        r"name another folder, or wait until it has ended; if it has, remove '\.partial-", seconds[0].stderr
    )
    assert [result.record["setting"]["method"]["method"] for result in first] == ["gradcam"] * 2
    assert sorted(path.name for path in out.iterdir()) == ["digits-0000", "digits-0001", "summary.json"]
    after = explain("embedded:digits:0:2", "--method", "hirescam", "--no-figures", "--overwrite", "--out", out)
    assert after.exit_code == 0


def test_an_image_that_the_references_do_not_suit_stops_no_other(tmp_path):
    for index, sample in enumerate(fringe.data.digits_samples()[:24]):
        for folder in ["images"] * (index < 4) + ["threes"] * (sample.label == 3):
            (tmp_path / folder).mkdir(exist_ok=True)
            sample.image.save(tmp_path / folder / f"{index}.png")
    ig2 = ("--method", "ig2", "--set", "steps=3", "--references", tmp_path / "threes", *DIGITS, "--no-figures")
    result = explain(tmp_path / "images", *ig2, "--out", tmp_path / "out")
    assert (result.exit_code, result.stderr.count("error:")) == (3, 1), result.stderr
    assert "3.png: space.references: the model predicts the target of image 0, class 3, for all" in result.stderr
    assert [entry["verdict"] for entry in read(tmp_path / "out" / "summary.json")["inputs"][:3]]
    result = explain(tmp_path / "threes", *ig2, "--out", tmp_path / "none")
    assert (result.exit_code, "for all" in result.stderr) == (1, True)


def test_a_contrast_gives_the_maps_of_the_library_and_is_said_wherever_classes_are(tmp_path):
    """An image whose explained class it is fails alone, and it is none of the classes of a page."""
    (tmp_path / "names.txt").write_text(WORDS.replace(" ", "\n"))
    out, named = tmp_path / "out", ("--classes", tmp_path / "names.txt", "--contrast", "one")
    result = explain("embedded:digits:0:3", *named, "--method", "fringe:fast", "--top", "10", "--out", out)
    assert (result.exit_code, "digits:1: class 1 is the class to explain itself" in result.stderr) == (3, True)
    rows = [" ".join(line.split()[:5]) for line in result.stdout.splitlines() if line.startswith("digits-")]
    assert rows == ["digits-0000 zero zero, not one", "digits-0001 failed", "digits-0002 two two, not one"]
    inputs = ["embedded:digits:0", "embedded:digits:2"]
    expected = fringe.explain("embedded:digits", inputs, method="fringe:fast", contrast=1).values
    for name, values in zip(("digits-0000", "digits-0002"), expected, strict=True):
        torch.testing.assert_close(load_file(out / name / "attribution.safetensors")["values"], values)
    page = (out / "digits-0002" / "explanation.html").read_text(encoding="utf-8")
    explained = re.findall(r'"label": ?"(\w+), not one"', page)
    assert (explained[0], sorted(explained)) == ("two", sorted({*WORDS.split()} - {"one"}))
    assert read(out / "summary.json")["inputs"][0]["contrast"] == {"class": 1, "name": "one"}
    again = quick(tmp_path / "out", "embedded:digits:0", "--contrast", "3", "--method", "fringe:fast")
    assert (again.exit_code, "contrast: 1, now 3" in again.stderr) == (2, True)
    for wrong, message in (("77", "--contrast: class 77 does not exist"), ("cat", "--contrast: got 'cat'")):
        result = explain("embedded:digits:0", *named[:2], "--contrast", wrong, "--out", tmp_path / "wrong")
        assert (result.exit_code, message in result.stderr) == (2, True)
