"""Progress bars and the log: what a person sees while the library works, and that it prints nothing by itself."""

import io
import logging
import re
import subprocess
import sys
import threading

import pytest
import torch
from rich.cells import cell_len

import fringe
from fringe._network.passes import BatchSize
from fringe._strings.progress import Progress, shown

X = torch.rand(2, 1, 4, 4)


def model(x):
    return torch.stack([x.square().sum((1, 2, 3)), x.sum((1, 2, 3))], 1)


def test_every_call_takes_true_or_a_function(capfd):
    spec = fringe.ExperimentSpec(data="embedded:digits", methods="ig", metrics="sparseness", n=2)
    calls = {
        "attribute": lambda progress: fringe.attribute(model, X, method="ig", progress=progress),
        "explain": lambda progress: fringe.explain(model, X, method="ig", progress=progress),
        "compare": lambda progress: fringe.compare(model, X, ["ig"], ["sparseness"], progress=progress),
        "run_experiment": lambda progress: fringe.run_experiment(spec, progress=progress),
    }
    for name, call in calls.items():
        call(True)
        shown = capfd.readouterr()
        assert re.search(r" (\d+)/\1 ", shown.err), name  # a full bar
        assert shown.out == ""
        call(False)
        assert capfd.readouterr() == ("", ""), name
    steps, maps = [], []
    fringe.explain(model, X, method="ig", progress=lambda done, total: steps.append((done, total)))
    fringe.compare(model, X, ["ig"], ["sparseness"], progress=lambda what, done, total: maps.append((done, total)))
    assert steps[-1][0] == steps[-1][1]
    assert maps[-1][0] == maps[-1][1]


def test_a_bar_is_closed_when_the_work_fails(capfd):
    threads = threading.active_count()
    try:
        with shown(True, "work") as report:
            report(1, 2)
            raise KeyError
    except KeyError:
        pass
    with shown(True, "again") as report:
        report(2, 2)
    assert "again" in capfd.readouterr().err
    assert threading.active_count() == threads


def test_without_a_terminal_there_is_a_line_now_and_then(capfd, monkeypatch):
    monkeypatch.setattr("fringe._strings.progress.LOG_EVERY", 1e-9)
    for quiet in (False, True):
        with Progress("images", 3, quiet=quiet) as bars:
            bars.step(2, 40, "FRInGe")
            bars.advance()
    written = capfd.readouterr()
    assert written.out == ""
    first, second = written.err.splitlines()
    assert re.fullmatch(r"images: +0%\|.*\| 0/3 \[.*, FRInGe: 2 of 40\]", first)
    assert re.fullmatch(r"images: +33%\|.*\| 1/3 \[00:00<00:00\]", second)
    assert not re.search("[\r\x1b]", written.err)
    monkeypatch.setattr("fringe._strings.progress.LOG_EVERY", 30.0)
    with Progress("images", 3, quiet=False) as bars:
        bars.advance()
    assert capfd.readouterr() == ("", "")


class BrokenStream(io.StringIO):
    """A stream whose reader is gone."""

    def write(self, text):
        raise BrokenPipeError

    def flush(self):
        raise BrokenPipeError


@pytest.mark.parametrize("kind", ["absent", "closed", "broken"])
def test_a_stream_that_takes_nothing_does_not_end_the_work(kind, monkeypatch):
    stream = None if kind == "absent" else BrokenStream()
    if kind == "closed":
        stream.close()
    monkeypatch.setattr(sys, "stderr", stream)
    with shown(True, "work") as report, Progress("images", None, quiet=False) as bars:
        report(1, 2)
        bars.begin(1)
        bars.advance(what="ig")


def test_a_terminal_without_a_width_shows_a_bar(monkeypatch):
    """Such as that of a container, whose width is 0. Letters may be two columns wide, and a line is never too long."""
    stream = io.StringIO()
    stream.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr("fringe._strings.progress.REFRESH", 0.0)
    with shown(True, "work\x1b[2J") as report:
        report(1, 2)
        report(2, 2, "図" * 60)
        report(2, 2)
    assert "\rwork\\x1b[2J: 100%|" in stream.getvalue()
    assert " 2/2 [" in stream.getvalue()
    assert {cell_len(line) for line in stream.getvalue().rstrip("\n").split("\r")[1:]} == {79}


def test_the_log_says_what_happens_by_itself(caplog):
    caplog.set_level(logging.INFO, "fringe")
    fringe.explain("embedded:digits", "embedded:digits:0", method="ig", telemetry=False)
    assert "loaded embedded:digits on cpu" in caplog.text
    BatchSize(8).halve(torch.device("cpu"), MemoryError())
    assert "4 images a pass instead of 8" in caplog.text
    assert {record.name.partition(".")[0] for record in caplog.records} == {"fringe"}


def test_without_a_handler_the_log_is_silent():
    code = "import fringe._strings.progress as p; p.log.warning('seen')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
