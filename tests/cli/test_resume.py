"""A run of the command line that is cut short, finds its folder damaged, or is sent to a place that is no folder: exit
codes, what is said, and that the same command goes on."""

import errno
import json
import os
import signal
import sqlite3
import sys
from pathlib import Path

import numpy as np
import pytest

from command_line import picture, run
from fringe._files.disk import disk_error
from fringe.attribution import write_preset
from fringe.bench.experiments import RunOptions, Store, read_results, run_plan
from fringe.bench.report import write_report

pytestmark = pytest.mark.usefixtures("small_figures")

IG = ("--methods", "ig", "--set", "ig.steps=2")
BARE = (*IG, "--no-controls", "--metrics", "sparseness", "--n", "2")
linux = pytest.mark.skipif(sys.platform != "linux", reason="needs flock")


def benchmark(out, *arguments):
    return run("benchmark", "--out", out, *BARE, "--no-report", *arguments)


def scores(out):
    return read_results(Store(out, create=False)).scores("digits", "ig", "sparseness").tolist()


def pictures(folder):
    for seed in range(2):
        picture(folder / f"{seed}_a.png", (32, 32), seed)
    return folder


# Somewhere else than a folder

COMMANDS = {
    "benchmark": (*BARE, "--out"),
    "tune": ("--n", "2", "--out"),
    "explain embedded:digits:0 --model embedded:digits": ("--out",),
    "compare embedded:digits:0 --model embedded:digits --methods ig --metrics sparseness": ("--out",),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_url_is_refused_before_anything_is_written(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    bucketless = "a URL that names no bucket and no folder"
    messages = {
        "file:///tmp/run": "file:// is not supported, name a folder or file of this machine",
        "s3://": bucketless,
    }
    if command == "benchmark":  # whose run may be in an object store
        messages |= dict.fromkeys(("s3:", "gs:///", "https://"), bucketless)
    else:
        messages["s3://bucket/run"] = "s3:// is not supported, name a folder or file of this machine"
    for url, message in messages.items():
        result = run(*command.split(), *COMMANDS[command], url)
        assert (result.exit_code, message in result.stderr) == (2, True), result.output
        assert "error: --out: got '" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_urls_of_runs_and_reports_are_refused(tmp_path, monkeypatch):
    benchmark(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    for arguments in (("status", "ftp://x"), ("report", "ftp://x"), ("report", "run", "--out", "s3://x")):
        result = run(*arguments)
        assert (result.exit_code, ":// is not supported" in result.stderr) == (2, True), result.output
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_urls_are_refused_in_the_library(tmp_path, monkeypatch):
    benchmark(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    url = Path("s3://bucket/run")
    for write in (
        lambda: Store(Path("ftp://host/run")),
        lambda: run_plan(None, Path("ftp://host/run"), RunOptions()),
        lambda: write_report(Store(tmp_path / "run"), url, grid=False),
        lambda: write_preset(url, None, None),
    ):
        with pytest.raises(ValueError, match=r"(s3|ftp):// is not supported"):
            write()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


# Cut short

SIGNALLING = """
import os, torch
from pathlib import Path
def net():
    if not Path({cure!r}).exists():
        os.kill(os.getpid(), {number})
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 4))
"""


@pytest.mark.parametrize(
    ("command", "number"),
    [("benchmark", signal.SIGINT), ("tune", signal.SIGTERM)],
)
def test_a_signal_while_a_plan_is_made_is_exit_code_75(tmp_path, command, number):
    """The model is loaded before there is a run."""
    source, cure = tmp_path / "net.py", tmp_path / "cure"
    source.write_text(SIGNALLING.format(cure=str(cure), number=int(number)))
    model = ("--model", f"net={source}:net", "--preprocessing", "resize=8x8,mean=0.5,std=0.5", "--trust-code")
    data = ("--data", pictures(tmp_path / "images"), "--n", 2, "--out", tmp_path / "run")
    arguments = (*command.split(), *model, *data, *(IG if command == "benchmark" else ()))
    handlers = [signal.getsignal(known) for known in (signal.SIGINT, signal.SIGTERM)]
    stopped = run(*arguments)
    assert stopped.exit_code == 75, stopped.output
    assert f"error: interrupted ({number.name})" in stopped.stderr
    assert "run the same command again to go on" in stopped.stderr
    assert [signal.getsignal(known) for known in (signal.SIGINT, signal.SIGTERM)] == handlers
    if command == "benchmark":
        cure.touch()
        assert run(*arguments, "--no-report").exit_code == 0


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_disk_that_fails_is_exit_code_75_and_the_same_command_goes_on(tmp_path, monkeypatch, code):
    whole, out = tmp_path / "whole", tmp_path / "run"
    assert benchmark(whole).exit_code == 0

    def fails_as(error):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(Store, "write_record", lambda *_: fails_as(disk_error(OSError(code, os.strerror(code)), out)))
        first = benchmark(out)
    assert first.exit_code == 75, first.output
    assert "Traceback" not in first.stderr
    with monkeypatch.context() as patch:
        patch.setattr(Store, "commit", lambda *_, **__: fails_as(disk_error(OSError(code, os.strerror(code)), out)))
        second = benchmark(out)
    assert second.exit_code == 75, second.output
    assert f"what is computed is in {out}: run the same command again to go on" in second.stderr
    third = benchmark(out, "--json")
    assert (third.exit_code, json.loads(third.stdout)["units"]["done"]) == (0, 1)
    with monkeypatch.context() as patch:
        # what is there is not computed again because it cannot be read
        patch.setattr(sqlite3, "connect", lambda *_, **__: fails_as(sqlite3.OperationalError("disk I/O error")))
        fourth = benchmark(out)
        assert fourth.exit_code == 75, fourth.output
    assert json.loads(benchmark(out, "--json").stdout)["units"]["done"] == 0
    assert scores(out) == scores(whole)


def test_a_disk_that_fails_while_the_report_is_drawn_is_exit_code_75(tmp_path, monkeypatch):
    def fails(*_, **__):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr("fringe.bench.report.write_report", fails)
        result = run("benchmark", "--out", tmp_path, *BARE)
    assert result.exit_code == 75
    assert result.stderr.splitlines()[-1] == "error: [Errno 5] Input/output error; run the same command again to go on"


@linux
def test_images_that_cannot_be_read_now_are_exit_code_75_and_no_score_is_lost(tmp_path, monkeypatch):
    folder, away = pictures(tmp_path / "images"), tmp_path / "away"
    out, data = tmp_path / "run", ("--model", "digits=embedded:digits", "--data", folder)

    def lose(*_):
        folder.rename(away)

    with monkeypatch.context() as patch:
        patch.setattr("fringe.cli._console.Progress.begin", lose)
        first = benchmark(out, *data)
    assert first.exit_code == 75, first.output
    assert "left: ig on digits, 1 image: " in first.stderr
    assert "does not exist" in first.stderr
    assert "2 images, summed over methods, are left to the next run of the same command" in first.stderr
    assert run("status", out).exit_code == 75
    away.rename(folder)
    second = benchmark(out, *data, "--json")
    assert (second.exit_code, json.loads(second.stdout)["left"]) == (0, [])
    assert all(np.isfinite(scores(out)))


# A damaged folder


def test_a_damaged_file_is_named_set_aside_and_made_again(tmp_path):
    out = tmp_path / "run"
    assert benchmark(out, "--save-maps").exit_code == 0
    before, path = scores(out), out / "run.db"
    path.write_bytes(path.read_bytes()[:5000])
    shown = run("status", out)
    assert (shown.exit_code, "damaged" in shown.output) in ((75, True), (2, True)), shown.output
    assert not (out / "aside").exists()

    healed = benchmark(out)
    assert healed.exit_code == 0, healed.output
    assert f"warning: '{path}' is damaged (" in healed.stderr
    assert "set aside as " in healed.stderr
    assert "Traceback" not in healed.stderr
    assert len(list((out / "aside").iterdir())) == 1
    assert scores(out) == before
    again = run("status", out)
    assert (again.exit_code, "damaged" in again.output) == (0, False)
