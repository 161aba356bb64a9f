"""Runs that explain images: equal to the library's maps, resumed after a kill, and never mixed with other settings."""

import json
import os
import shutil
import signal
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import fringe
from command_line import picture
from fringe import InputError, TargetError
from fringe._files.disk import partial_path
from fringe._files.process import process_name
from fringe.data import find_inputs
from fringe.explanations import ExplainSpec, Explanation, Failure, _explain, explain_images
from fringe.explanations._folder import MAP, ResultFolder
from fringe.inputs import choose_references, find_images

pytestmark = pytest.mark.usefixtures("small_figures")

IG = {"method": "ig", "set": ("steps=4",), "figures": False}
DIGITS, DIGITS_TWO = ["embedded:digits:0:3"], ["embedded:digits:0:2"]


def explain(out, inputs=DIGITS, **options):
    return list(explain_images(inputs, out, **{**IG, **options}))


def reused(results):
    return [result.reused for result in results]


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def stored(out):
    """Everything in a folder that does not depend on the clock, by path."""
    files = {}
    for path in sorted(out.rglob("*")):
        name = str(path.relative_to(out))
        if path.suffix == ".json":
            files[name] = without_times(read(path))
        elif path.is_file():
            files[name] = path.read_bytes()
    return files


def without_times(value):
    if isinstance(value, dict):
        timed = ("seconds", "checksum", "reused", "passes", "images")
        return {key: without_times(item) for key, item in value.items() if key not in timed}
    return [without_times(item) for item in value] if isinstance(value, list) else value


def assert_close(one, other):
    """Equal but for rounding: processes may add in another order, and the checksums of files differ then."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one.keys() - {"files"}:
            assert_close(one[key], other[key])
        assert one.get("files", {}).keys() == other.get("files", {}).keys()
    elif isinstance(one, list):
        assert len(one) == len(other)
        for pair in zip(one, other, strict=True):
            assert_close(*pair)
    else:
        assert one == pytest.approx(other, rel=1e-4, abs=1e-6) if isinstance(one, float) else one == other


def test_results_come_one_by_one_and_are_on_disk_when_they_come(tmp_path):
    seen = []
    for result in explain_images(DIGITS, tmp_path, ExplainSpec(**IG, batch_size=1)):
        seen.append(sorted(path.name for path in tmp_path.iterdir() if path.is_dir()))
        assert torch.equal(result.load()["values"], load_file(result.folder / "attribution.safetensors")["values"])
    assert seen == [["digits-0000"], ["digits-0000", "digits-0001"], ["digits-0000", "digits-0001", "digits-0002"]]


def test_a_single_name_is_an_input_and_not_its_letters(tmp_path):
    """Of ``embedded:digits:1`` the default model is that of digits, as of a list."""
    assert [ref.source for ref in find_inputs("embedded:digits:1")] == ["embedded:digits:1"]
    results = list(explain_images("embedded:digits:1", tmp_path / "text", ExplainSpec(**IG)))
    assert [result.record["id"] for result in results] == ["digits-0001"]
    assert repr(results) == f"[Explanation(folder={results[0].folder!r}, reused=False)]"  # without a page of numbers
    path = tmp_path / "digit.png"
    next(find_inputs("embedded:digits:1")).open().image.save(path)
    named = ExplainSpec(**IG, model="embedded:digits")
    assert [one.record["id"] for one in explain_images(path, tmp_path / "path", named)] == ["digit"]


KILLED = """
import os, signal, sys
from fringe.explanations import ExplainSpec, explain_images
spec = ExplainSpec(method="ig", set=("steps=4",), batch_size=1)
for number, result in enumerate(explain_images(["embedded:digits:0:4"], {out!r}, spec)):
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.thorough
def test_a_killed_run_continues_and_equals_one_that_was_not_killed(tmp_path):
    out, whole = tmp_path / "killed", tmp_path / "whole"
    code = KILLED.format(out=str(out))
    environment = {**os.environ, "PYTHONPATH": str(Path(fringe.__file__).parents[1])}
    killed = subprocess.run([sys.executable, "-c", code], env=environment, timeout=300)
    assert killed.returncode == -signal.SIGKILL
    assert not read(out / "summary.json")["complete"]
    times = {path: path.stat().st_mtime_ns for path in out.glob("digits-*/*")}
    options = {"inputs": ["embedded:digits:0:4"], "batch_size": 1, "figures": True}
    assert reused(explain(out, **options)) == [True, True, False, False]
    assert times
    assert all(path.stat().st_mtime_ns == time for path, time in times.items())
    assert reused(explain(whole, **options)) == [False] * 4
    resumed, uninterrupted = stored(out), stored(whole)
    assert resumed.keys() == uninterrupted.keys()
    for name in resumed:
        if name.endswith(".json"):
            assert_close(resumed[name], uninterrupted[name])
    for folder in out.glob("digits-*"):
        one, other = (load_file(root / folder.name / "attribution.safetensors") for root in (out, whole))
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


def test_other_settings_are_refused_with_the_difference_and_replaced_on_request(tmp_path):
    explain(tmp_path)
    (tmp_path / "digits-0001" / "stale.png").touch()
    before = stored(tmp_path)
    for change, difference in (
        ({"set": ("steps=5",)}, "method.steps: 4, now 5"),
        ({"method": "smoothgrad", "set": ("samples=2",)}, "(method: ig, now smoothgrad; "),
        ({"seed": 1}, "seed: 0, now 1"),
        ({"target": 3}, "target: predicted, now 3"),
        ({"preprocessing": "resize=32,channels=1,mean=0.5,std=0.35"}, "preprocessing.mean"),
    ):
        with pytest.raises(InputError) as caught:
            explain(tmp_path, **change)
        assert difference in caught.value.message
        assert (caught.value.argument, "overwrite=True" in caught.value.hint) == ("out", True)
        assert stored(tmp_path) == before
    assert reused(explain(tmp_path, **change, overwrite=True)) == [False] * 3
    assert reused(explain(tmp_path, **change)) == [True] * 3
    assert not (tmp_path / "digits-0001" / "stale.png").exists()


def test_another_model_is_refused_also_where_only_its_code_changed(tmp_path):
    source, out = tmp_path / "net.py", tmp_path / "out"
    text = "import torch\nclass Net(torch.nn.Linear):\n    def forward(self, x):\n        {body}\ndef net():\n"
    text += "    torch.manual_seed({seed})\n    return Net(64, 4)\n"
    options = {"model": f"{source}:net", "trust_code": True, "preprocessing": "unit,channels=1"}
    images = [str(picture(tmp_path / "a.png"))]
    source.write_text(text.format(body="return super().forward(x.flatten(1))", seed=0))
    explain(out, images, **options)
    source.write_text(text.format(body="return super().forward(x.flatten(1))", seed=1))
    with pytest.raises(InputError, match=r"model\.weights"):
        explain(out, images, **options)
    source.write_text(text.format(body="return super().forward(x.flatten(1).square())", seed=0))
    with pytest.raises(InputError, match=r"its probabilities of .* differ"):
        explain(out, images, **options)


def test_batch_size_and_device_names_are_no_other_settings(tmp_path):
    explain(tmp_path)
    assert reused(explain(tmp_path, batch_size=2, device="cpu")) == [True] * 3


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Two results with their figures; to be copied."""
    out = tmp_path_factory.mktemp("drawn") / "out"
    explain(out, DIGITS_TWO, figures=True)
    return out


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("attribution.safetensors", lambda path: path.write_bytes(path.read_bytes()[:-1])),
        ("explanation.json", lambda path: path.write_text(path.read_text().replace("predicted", "predictee"))),
        pytest.param("explanation.json", lambda path: path.write_text("[" * 10**5), marks=pytest.mark.thorough),
        pytest.param("explanation.json", Path.unlink, marks=pytest.mark.thorough),
        pytest.param("overlay.png", lambda path: path.write_bytes(b""), marks=pytest.mark.thorough),
        pytest.param("path.webp", Path.unlink, marks=pytest.mark.thorough),
    ],
)
def test_a_damaged_result_is_computed_again(drawn, tmp_path, file, damage):
    out = tmp_path / "out"
    shutil.copytree(drawn, out)
    damage(out / "digits-0001" / file)
    assert reused(explain(out, DIGITS_TWO, figures=True, batch_size=1)) == [True, False]
    assert stored(out).keys() == stored(drawn).keys()
    new, old = (load_file(root / "digits-0001" / "attribution.safetensors")["values"] for root in (out, drawn))
    torch.testing.assert_close(new, old, rtol=1e-5, atol=1e-7)  # alone, and in a batch of two


def test_an_image_of_other_content_under_the_same_name_is_computed_again(tmp_path):
    images = [str(picture(tmp_path / f"{name}.png", seed=seed)) for seed, name in enumerate("ab")]
    options = {"model": "embedded:digits", "inputs": images}
    explain(tmp_path / "out", **options)
    picture(tmp_path / "b.png", seed=7)
    assert reused(explain(tmp_path / "out", **options)) == [True, False]


def test_pictures_that_are_asked_for_later_are_drawn_and_never_lost(tmp_path):
    one = ["embedded:digits:0"]
    explain(tmp_path, one)
    assert reused(explain(tmp_path, one, figures=True)) == [False]
    assert (tmp_path / "digits-0000" / "overlay.png").is_file()
    assert (tmp_path / "contact.png").is_file()
    assert reused(explain(tmp_path, one)) == [True]
    assert (tmp_path / "digits-0000" / "overlay.png").is_file()


def test_more_inputs_reuse_the_earlier_results_in_any_order(tmp_path):
    explain(tmp_path)
    grown = explain(tmp_path, ["embedded:digits:4", "embedded:digits:1", "embedded:digits:0"])
    assert reused(grown) == [False, True, True]
    entries = read(tmp_path / "summary.json")["inputs"]
    assert [entry["id"] for entry in entries] == ["digits-0004", "digits-0001", "digits-0000"]


@pytest.mark.filterwarnings("ignore:. results of other settings stay")
def test_the_overviews_list_what_earlier_runs_left_in_the_folder(tmp_path, small_figures):
    explain(tmp_path, ["embedded:digits:1"], figures=True)
    explain(tmp_path, ["embedded:digits:2"])  # without a page
    explain(tmp_path, ["embedded:digits:3"], seed=1, overwrite=True, figures=True)  # of other settings
    explain(tmp_path, ["embedded:digits:0"], overwrite=True, figures=True)
    summary, names = read(tmp_path / "summary.json"), ["digits-0001", "digits-0002"]
    assert [entry["id"] for entry in summary["inputs"]] == ["digits-0000"]
    assert [(entry["id"], entry["folder"]) for entry in summary["earlier"]] == list(zip(names, names, strict=True))
    index = (tmp_path / "index.html").read_text()
    assert [f"digits-000{k}/explanation.html" in index for k in range(4)] == [True, True, False, False]
    explain(tmp_path, ["embedded:digits:2"], figures=True)
    index = (tmp_path / "index.html").read_text()
    assert [f"digits-000{k}/explanation.html" in index for k in range(4)] == [True, True, True, False]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_explain.ExplanationRun, "_explain", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            explain(tmp_path, ["embedded:digits:4"])
    assert [entry["id"] for entry in read(tmp_path / "summary.json")["earlier"]] == ["digits-0000", *names]
    with pytest.warns(UserWarning, match="settings stay in .*: digits-0000, digits-0001, digits-0002"):
        explain(tmp_path, ["embedded:digits:3"], seed=2, overwrite=True)


def test_results_of_other_settings_that_stay_are_named(tmp_path):
    explain(tmp_path)
    with pytest.warns(UserWarning, match="2 results of other settings stay in .*: digits-0001, digits-0002"):
        explain(tmp_path, ["embedded:digits:0"], seed=1, overwrite=True)
    assert [entry["id"] for entry in read(tmp_path / "summary.json")["inputs"]] == ["digits-0000"]


def test_a_folder_of_an_earlier_format_is_refused(tmp_path):
    explain(tmp_path)
    summary = read(tmp_path / "summary.json")
    del summary["setting"], summary["format"]
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(InputError, match="format: 1, now 2"):
        explain(tmp_path)


def test_the_leftovers_of_a_kill_do_not_make_a_folder_foreign(tmp_path):
    (tmp_path / ".partial-summary.json").write_text("{")
    (tmp_path / ".partial-digits-0000").mkdir()
    gone = process_name().rpartition("-")[0] + "-0~1~digits-0000"  # this process has another start
    (tmp_path / f".partial-{gone}").mkdir()
    assert reused(explain(tmp_path)) == [False] * 3
    assert not list(tmp_path.glob(".*"))


def test_two_runs_in_one_folder_leave_the_partial_files_of_each_other(tmp_path, monkeypatch):
    """One is in the middle of a batch while the other does all of it."""
    images = ["embedded:digits:0:2"]
    first = explain_images(images, tmp_path, **IG)
    real, between = ResultFolder.write, []

    def write(folder, identity, record, fill):
        def fill_late(partial):
            fill(partial)
            if not between:
                between.append([])
                with ThreadPoolExecutor(1) as other:
                    between[0] += other.submit(explain, tmp_path, images).result()

        return real(folder, identity, record, fill_late)

    monkeypatch.setattr(ResultFolder, "write", write)
    assert [type(result).__name__ for result in first] == ["Explanation"] * 2
    assert len(between[0]) == 2
    assert not list(tmp_path.glob(".*"))


def test_an_image_with_the_name_of_a_file_of_the_run_has_a_folder_of_another_name(tmp_path):
    folder = ResultFolder(tmp_path, overwrite=False, command="explain")
    assert [folder.result_path(name).name for name in ("Summary.json", "a")] == ["Summary.json_", "a"]


def test_a_folder_of_a_result_that_another_run_has_made_meanwhile_is_replaced(tmp_path, monkeypatch):
    folder, rename, made = ResultFolder(tmp_path, overwrite=False, command="explain"), Path.rename, []

    def meanwhile(one, other):
        if Path(other) == tmp_path / "cat" and not made:
            made.append((tmp_path / "cat").mkdir())
            (tmp_path / "cat" / MAP).write_bytes(b"theirs")
        return rename(one, other)

    monkeypatch.setattr(Path, "rename", meanwhile)
    folder.write("cat", {}, lambda partial: (partial / MAP).write_bytes(b"mine"))
    assert made
    assert (tmp_path / "cat" / MAP).read_bytes() == b"mine"
    assert [path.name for path in tmp_path.iterdir()] == ["cat"]


def test_a_run_that_ended_within_a_batch_computes_the_batch_again_and_gives_its_bits(tmp_path, monkeypatch):
    """On the CPU, the rounding of a map depends on the number of images that are computed together."""
    images, options, out = ["embedded:digits:0:7"], {"batch_size": 5}, tmp_path / "half"
    whole = explain(tmp_path / "whole", images, **options)
    half = explain_images(images, out, **IG, **options)
    next(half)
    half.close()
    for number in (1, 3):
        shutil.rmtree(out / f"digits-000{number}")
    real, sizes = _explain.attribute, []

    def counted(classifier, x, **others):
        sizes.append(len(x))
        return real(classifier, x, **others)

    monkeypatch.setattr(_explain, "attribute", counted)
    again = explain(out, images, **options)
    assert (sizes, reused(again)) == ([5, 2], [True, False, True, False, True, False, False])
    assert all(
        torch.equal(one.load()["values"], other.load()["values"]) for one, other in zip(again, whole, strict=True)
    )
    shutil.rmtree(out / "digits-0001")  # the run ended well: one image is missing, and no more is computed
    explain(out, images, **options)
    assert sizes == [5, 2, 1]


def test_what_a_file_manager_leaves_does_not_make_a_folder_foreign(tmp_path):
    for name in (".DS_Store", "Thumbs.db", "desktop.ini"):
        (tmp_path / name).write_bytes(b"x")
    assert reused(explain(tmp_path)) == [False] * 3
    assert (tmp_path / ".DS_Store").read_bytes() == b"x"


def test_windows_is_asked_again_to_replace_a_result_that_is_being_read(tmp_path, monkeypatch):
    first, asked = explain(tmp_path, DIGITS[:1]), []

    def busy(action):
        def call(one, other):
            asked.append((action, Path(one).name))
            if asked.count(asked[-1]) == 1:
                error = PermissionError(13, "The process cannot access the file")
                error.winerror = 32
                raise error
            return actions[action](one, other)

        return call

    actions = {"rename": Path.rename, "replace": os.replace}
    monkeypatch.setattr(Path, "rename", busy("rename"))
    monkeypatch.setattr(os, "replace", busy("replace"))
    second = explain(tmp_path, DIGITS[:1], set=("steps=5",), overwrite=True)
    assert (reused(second), len(second)) == ([False] * 3, len(first))
    assert not list(tmp_path.glob(".*"))
    known = {(action, name.rpartition("~")[::2]) for action, name in asked if "0002" in name or "summary" in name}
    own = partial_path(tmp_path / "x").name.rpartition("~")[0]
    assert known == {
        ("rename", ("", "digits-0002")),
        ("rename", (own, "digits-0002")),
        ("replace", (own, "summary.json")),
    }


def test_the_old_result_comes_back_where_the_new_one_cannot_take_its_place(tmp_path, monkeypatch):
    (first,) = explain(tmp_path, ["embedded:digits:0"])
    before, rename, asked = stored(first.folder), Path.rename, []

    def fails(one, other):
        asked.append(one.name)
        error = OSError(5, "Input/output error")
        if one.name.endswith("~digits-0000.old") and asked.count(one.name) == 1:
            error = PermissionError(13, "The process cannot access the file")
            error.winerror = 32
        elif not one.name.endswith("~digits-0000"):
            return rename(one, other)
        raise error

    monkeypatch.setattr(Path, "rename", fails)
    (failure,) = explain(tmp_path, ["embedded:digits:0"], set=("steps=5",), overwrite=True)
    assert isinstance(failure, Failure)
    assert stored(first.folder) == before


def test_the_record_gives_the_options_back(tmp_path):
    spec = ExplainSpec(**IG, seed=3, target=4, references="embedded:digits:20:22")
    assert [type(result) for result in explain_images(DIGITS, tmp_path, spec)] == [Explanation] * 3
    record = read(tmp_path / "digits-0001" / "explanation.json")
    assert ExplainSpec.model_validate(record["options"]) == spec
    assert "trust_code" not in record["options"]
    assert record["title"] == read(tmp_path / "summary.json")["title"] == "Integrated Gradients"
    assert ExplainSpec.model_validate(read(tmp_path / "summary.json")["options"]) == spec


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sets": 3}, "unknown field 'sets'; did you mean 'set'? The fields: model, target"),
        ({"target": "cat"}, "target: got 'cat', which is no class of the model"),
        ({"batch_size": 0}, "batch_size: got 0, expected auto or a positive whole number"),
        ({"top": 0}, "top: got 0"),
        ({"method": "igg"}, "did you mean 'ig'"),
        ({"variant": "euclidean"}, "variant: belongs to the methods paper and released, not to 'ig'"),
        ({"set": ("steps",)}, "set: got 'steps', expected KEY=VALUE"),
        ({"score": "entropy"}, "score: got 'entropy', expected"),
    ],
)
def test_options_that_make_no_sense_are_named_before_anything_is_written(tmp_path, options, message):
    with pytest.raises((InputError, TargetError)) as caught:
        explain(tmp_path / "out", **options)
    assert message in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_inputs_that_fail_are_results_with_a_reason(tmp_path):
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no image")
    inputs = [str(broken), "embedded:digits:0", str(tmp_path / "absent.png")]
    results = explain(tmp_path / "out", inputs, model="embedded:digits")
    assert [type(result) for result in results] == [Failure, Explanation, Failure]
    assert [result.source for result in results if isinstance(result, Failure)] == [inputs[0], inputs[2]]


def test_an_unreadable_hash_is_a_warning_and_the_image_is_explained_each_time(tmp_path, monkeypatch):
    path = picture(tmp_path / "x.png")
    real = fringe.explanations._base.file_sha256

    def gone(file, *limit):
        if str(file) == str(path):
            raise OSError(116, "Stale file handle")
        return real(file, *limit)

    with monkeypatch.context() as patch:
        patch.setattr("fringe.explanations._base.file_sha256", gone)
        with pytest.warns(UserWarning, match="the SHA-256 of .* is not recorded"):
            (result,) = explain(tmp_path / "out", [str(path)], model="embedded:digits")
        assert result.record["sha256"] is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert reused(explain(tmp_path / "out", [str(path)], model="embedded:digits")) == [False]


def test_the_references_are_those_of_a_benchmark(tmp_path):
    images = tmp_path / "images"
    images.mkdir()
    for i in range(70):
        Image.new("L", (32, 32), 3 * i).save(images / f"{i:02d}.png")
    shutil.copy(images / "00.png", images / "copy.png")
    spec = ExplainSpec(method="expected_gradients", set=("samples=2",), seed=3, references=str(images))
    list(explain_images(DIGITS[:1], tmp_path / "out", spec))
    taken = read(tmp_path / "out" / "summary.json")["references"]["images"]
    expected = choose_references(find_images([str(images)]), 3)
    assert taken == [picture.ref.id for picture in expected]
    assert len(set(taken) - {"copy"}) >= 63
