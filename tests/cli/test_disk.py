"""``fringe explain`` and ``compare`` where the disk fails: one line for each thing lost, the rest is written."""

import builtins
import contextlib
import csv
import errno
import io
import json
import os
import resource
from pathlib import Path

import pytest
from safetensors.torch import load_file

from command_line import picture, run
from fringe._files.disk import StoreFull
from fringe.bench.experiments import Store

pytestmark = pytest.mark.usefixtures("small_figures")

PREPARED = ("--model", "embedded:digits", "--preprocessing", "channels=1,mean=0.3,std=0.35")
IG = {
    "explain": ("--method", "ig", "--set", "steps=4"),
    "compare": ("--methods", "ig", "--set", "ig.steps=4", "--metrics", "sparseness"),
}


def run_ig(command, *arguments):
    result = run(command, *arguments, *IG[command])
    assert isinstance(result.exception, (SystemExit, type(None))), result.exception
    assert "Traceback" not in result.stderr
    return result


def errors(result):
    return [line for line in result.stderr.splitlines() if line.startswith("error: ")]


def summary(out):
    return json.loads((out / "summary.json").read_text(encoding="utf-8"))


def scores(out):
    return list(csv.DictReader((out / "scores.csv").read_text(encoding="utf-8").splitlines()))


@contextlib.contextmanager
def largest_file(size):
    """No file of this process may grow beyond ``size`` bytes: the system itself refuses the write."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def failing(monkeypatch):
    """``failing(number, chosen)``: opening a file for writing fails where ``chosen`` says so of its path."""
    real = builtins.open

    def start(number, chosen, letters="wax+"):
        def opened(file, mode="r", *args, **kwargs):
            if any(letter in mode for letter in letters) and chosen(str(file)):
                raise OSError(number, os.strerror(number))  # as a write to an open file: without a name
            return real(file, mode, *args, **kwargs)

        monkeypatch.setattr(builtins, "open", opened)
        monkeypatch.setattr(io, "open", opened)

    return start


def test_a_result_that_is_too_large_for_the_disk_fails_alone(tmp_path):
    small, large = picture(tmp_path / "small.png", (16, 16)), picture(tmp_path / "large.png", (64, 64))
    with largest_file(12_000):
        result = run_ig("explain", large, small, "--out", tmp_path / "out", *PREPARED, "--no-figures")
    assert result.exit_code == 3
    assert errors(result) == [f"error: {large}: cannot write '{tmp_path}/out/large' (File too large)"]
    failed, written = summary(tmp_path / "out")["inputs"]
    assert "File too large" in failed["error"]
    assert load_file(tmp_path / "out" / written["folder"] / "attribution.safetensors")["values"].shape == (1, 16, 16)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["small", "summary.json"]


@pytest.mark.parametrize(
    ("file", "number"),
    [
        ("attribution.safetensors", errno.EFBIG),
        ("overlay.png", errno.EIO),
        pytest.param("explanation.json", errno.EROFS, marks=pytest.mark.thorough),
    ],
)
def test_a_file_of_an_image_that_cannot_be_written_costs_this_image_alone(tmp_path, failing, file, number):
    failing(number, lambda path: "digits-0001" in path and file in path)
    result = run_ig("explain", "embedded:digits:1:3", "--out", tmp_path)
    assert result.exit_code == 3
    (line,) = errors(result)
    assert str(tmp_path / "digits-0001") in line
    assert os.strerror(number) in line
    assert ["error" in entry for entry in summary(tmp_path)["inputs"]] == [True, False]
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"digits-0002", "contact.png", "index.html", "summary.json"}


@pytest.mark.parametrize(
    ("file", "number"),
    [
        ("attribution.safetensors", errno.EDQUOT),
        pytest.param("path.webp", errno.ENOSPC, marks=pytest.mark.thorough),
    ],
)
def test_a_full_disk_stops_the_run_which_goes_on_when_there_is_room(tmp_path, failing, monkeypatch, file, number):
    arguments, tried = ("explain", "embedded:digits:0:3", "--out", tmp_path, "--batch-size", "1"), []

    def is_full(path):
        if path.endswith(file):
            tried.append(path)
        return path.endswith(file) and "digits-0000" not in path

    failing(number, is_full)
    result = run_ig(*arguments)
    monkeypatch.undo()
    assert result.exit_code == 75
    (line,) = errors(result)
    assert line == (
        f"error: '{tmp_path}': no space left (free some and run it again: nothing that was computed before is lost)"
    )
    assert len(tried) == 2  # nothing was computed after the image that did not fit
    assert [entry["id"] for entry in summary(tmp_path)["inputs"]] == ["digits-0000"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["digits-0000", "summary.json"]
    assert run_ig(*arguments).exit_code == 0
    assert summary(tmp_path)["counts"]["reused"] == 1


def test_a_full_disk_stops_a_comparison_which_goes_on_when_there_is_room(tmp_path, monkeypatch):
    arguments = ("compare", "embedded:digits:0:3", "--out", tmp_path)
    monkeypatch.setattr("fringe.bench.comparison.BATCH_IMAGES", 1)
    with monkeypatch.context() as patch:
        real, calls = Store.commit, iter(range(99))

        def commit(self, *args, **kwargs):
            if next(calls) >= 7:  # ig and six controls: one image
                raise StoreFull(f"{str(tmp_path)!r}: no space left")
            real(self, *args, **kwargs)

        patch.setattr(Store, "commit", commit)
        result = run_ig(*arguments)
    assert result.exit_code == 75
    assert errors(result) == [f"error: '{tmp_path}': no space left"]
    assert {row["image"] for row in scores(tmp_path)} == {"digits-0000"}
    assert run_ig(*arguments).exit_code == 0
    assert len({row["image"] for row in scores(tmp_path)}) == 3


@pytest.mark.parametrize(
    ("command", "file", "number"), [("explain", "index.html", errno.ENOSPC), ("compare", "compare.png", errno.EDQUOT)]
)
def test_a_picture_that_cannot_be_written_leaves_the_numbers(tmp_path, failing, command, file, number):
    failing(number, lambda path: file in path)
    result = run_ig(command, "embedded:digits:0:2", "--out", tmp_path)
    assert result.exit_code == 3
    assert errors(result) == [f"error: cannot write '{tmp_path / file}' ({os.strerror(number)})"]
    document = summary(tmp_path)
    assert document["complete"]
    assert file not in json.dumps(document)
    assert str(tmp_path / file) not in result.stdout


@pytest.mark.parametrize(
    ("command", "file", "number"),
    [("explain", "summary", errno.ENOSPC), ("compare", "summary", errno.EACCES), ("compare", "scores", errno.EIO)],
)
def test_a_disk_that_takes_nothing_is_one_line_before_anything_is_computed(tmp_path, failing, command, file, number):
    failing(number, lambda path: str(tmp_path) in path and file in path)
    result = run_ig(command, "embedded:digits:0:2", "--out", tmp_path, "--json")
    assert result.exit_code == 1
    (line,) = errors(result)
    assert str(tmp_path / file) in line
    assert os.strerror(number) in line
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("command", "file", "number"),
    [("explain", "summary.json", errno.ENOSPC), ("compare", "scores.csv", errno.ESTALE)],
)
def test_a_disk_that_fails_at_the_end_loses_that_file_alone(tmp_path, monkeypatch, command, file, number):
    real, calls = os.replace, iter(range(9))

    def replace(source, target, **kwargs):
        if str(target).endswith(file) and next(calls):
            raise OSError(number, os.strerror(number))
        return real(source, target, **kwargs)

    monkeypatch.setattr(os, "replace", replace)
    result = run_ig(command, "embedded:digits:0:2", "--out", tmp_path, "--json")
    assert result.exit_code == 3
    assert errors(result) == [f"error: cannot write '{tmp_path / file}' ({os.strerror(number)})"]
    document = json.loads(result.stdout)
    assert document["counts"]["explained" if command == "explain" else "compared"] == 2
    assert command == "compare" or all((tmp_path / f"digits-000{i}" / "explanation.json").is_file() for i in range(2))
    assert [path.name for path in tmp_path.glob(".partial*")] == []


def test_an_earlier_result_stays_where_the_new_one_cannot_take_its_name(tmp_path, monkeypatch):
    arguments = ("embedded:digits:0", "--out", tmp_path, "--no-figures")
    assert run_ig("explain", *arguments).exit_code == 0
    content = (tmp_path / "digits-0000" / "explanation.json").read_bytes()
    real = os.rename

    def rename(source, target, **kwargs):
        if "partial" in str(source) and not str(source).endswith(".old"):  # which goes back to its place
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(source, target, **kwargs)

    monkeypatch.setattr(os, "rename", rename)
    result = run_ig("explain", *arguments, "--seed", "1", "--overwrite")
    assert result.exit_code == 1
    assert (tmp_path / "digits-0000" / "explanation.json").read_bytes() == content
    assert sorted(p.name for p in tmp_path.iterdir()) == ["digits-0000", "summary.json"]


@pytest.mark.parametrize(("number", "code"), [(errno.ENOSPC, 75), (errno.EROFS, 2)])
def test_a_folder_that_takes_no_further_file_is_one_line(tmp_path, monkeypatch, number, code):
    def touch(self, *_, **__):
        raise OSError(number, os.strerror(number), str(self))

    monkeypatch.setattr(Path, "touch", touch)
    result = run_ig("explain", "embedded:digits:0", "--out", tmp_path, "--no-figures")
    assert (result.exit_code, len(errors(result)), repr(str(tmp_path)) in result.stderr) == (code, 1, True)


def test_an_output_folder_that_cannot_be_used(tmp_path, monkeypatch):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    looped = run_ig("explain", "embedded:digits:0", "--out", tmp_path / "loop" / "out")
    assert looped.exit_code == 2
    assert errors(looped) == [f"error: --out: cannot use '{tmp_path}/loop/out' ({os.strerror(errno.ELOOP)})"]
    (tmp_path / "out").mkdir()

    def refuse(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr(os, "listdir", refuse)
    monkeypatch.setattr(os, "scandir", refuse)
    locked = run_ig("compare", "embedded:digits:0", "--out", tmp_path / "out")
    assert locked.exit_code == 2
    assert errors(locked) == [f"error: --out: cannot use '{tmp_path}/out' (Permission denied)"]


@pytest.mark.parametrize("command", ["explain", "compare"])
def test_links_that_lead_to_themselves_are_named_and_passed_over(tmp_path, command):
    folder = tmp_path / "photos"
    picture(folder / "good.png")
    (folder / "loop.png").symlink_to(folder / "loop.png")
    (folder / "one.png").symlink_to(folder / "two.png")
    (folder / "two.png").symlink_to(folder / "one.png")
    (folder / "up").symlink_to(folder)
    (folder / "dangling.png").symlink_to(folder / "gone.png")
    alone = tmp_path / "alone"
    alone.symlink_to(alone)
    result = run_ig(command, folder, alone, "--out", tmp_path / "out", "--model", "embedded:digits")
    assert result.exit_code == 3
    lines = errors(result)
    for name in ("loop.png", "one.png", "two.png", "dangling.png"):
        assert sum(f"/{name}'" in line and "symbolic link" in line for line in lines) == 1
    assert sum("alone" in line and os.strerror(errno.ELOOP) in line for line in lines) == 1
    assert len(lines) == 5
    entries = summary(tmp_path / "out")["inputs" if command == "explain" else "images"]
    assert [entry["id"] for entry in entries if "error" not in entry] == ["good"]


@pytest.fixture
def locked(tmp_path, monkeypatch):
    """A folder with an image, and in it one of mode 000, which the superuser could list all the same."""
    picture(tmp_path / "photos" / "good.png")
    folder = tmp_path / "photos" / "locked"
    picture(folder / "hidden.png")
    real = os.scandir

    def scandir(path="."):
        if os.fspath(path) == str(folder):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    folder.chmod(0)
    yield folder
    folder.chmod(0o700)


@pytest.mark.parametrize("command", ["explain", "compare"])
def test_a_folder_that_cannot_be_listed_costs_its_own_images_alone(tmp_path, locked, command):
    result = run_ig(command, locked.parent, "--out", tmp_path / "out", "--model", "embedded:digits")
    assert result.exit_code == 3
    assert errors(result) == [f"error: folder '{locked}' cannot be listed (Permission denied)"]
    assert summary(tmp_path / "out")["counts"]["failed"] == 1
    alone = run_ig(command, locked, "--out", tmp_path / "other", "--model", "embedded:digits")
    assert alone.exit_code == 1
    assert errors(alone) == [f"error: INPUT: folder '{locked}' cannot be listed (Permission denied)"]
    assert not (tmp_path / "other").exists()


def test_references_in_a_folder_that_cannot_be_listed_are_left_out_with_a_warning(tmp_path, locked):
    result = run_ig("explain", "embedded:digits:0", "--references", locked.parent, "--out", tmp_path / "out")
    assert result.exit_code == 0
    assert f"warning: references left out: folder '{locked}' cannot be listed (Permission denied)" in result.stderr
    assert summary(tmp_path / "out")["references"]["images"] == ["good"]


def test_images_of_one_name_that_cannot_be_read_are_named(tmp_path, failing):
    paths = [picture(tmp_path / folder / "x.png", seed=seed) for seed, folder in enumerate("abc")]
    failing(errno.EIO, lambda path: path == str(paths[1]), letters="r")
    result = run_ig("explain", *paths, "--out", tmp_path / "out", "--model", "embedded:digits", "--no-figures")
    assert result.exit_code == 3
    (line,) = errors(result)
    assert str(paths[1]) in line
    assert os.strerror(errno.EIO) in line
    assert summary(tmp_path / "out")["counts"]["explained"] == 2


@pytest.mark.parametrize("command", ["explain", "compare"])
def test_an_image_that_is_gone_after_it_was_opened_is_explained_without_its_hash(tmp_path, monkeypatch, command):
    path = picture(tmp_path / "x.png")

    def gone(path):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr("fringe.explanations._base.file_sha256", gone)
    result = run_ig(command, path, "--out", tmp_path / "out", "--model", "embedded:digits")
    assert result.exit_code == 0
    assert f"warning: the SHA-256 of '{path}' is not recorded ({os.strerror(errno.ESTALE)})" in result.stderr
    entry = tmp_path / "out" / "x" / "explanation.json"
    found = json.loads(entry.read_text()) if command == "explain" else summary(tmp_path / "out")["images"][0]
    assert found["sha256"] is None
    if command == "compare":
        assert scores(tmp_path / "out")
