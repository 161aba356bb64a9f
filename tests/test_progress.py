"""Progress bars and the log: what a person sees while the library works, and that it prints nothing by itself."""

import logging
import re
import subprocess
import sys

import pytest
import torch

import fringe
from fringe._network import BatchSize
from fringe._progress import Progress, shown

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
    try:
        with shown(True, "work") as report:
            report(1, 2)
            raise KeyError
    except KeyError:
        pass
    with shown(True, "again") as report:  # rich refuses a second bar beside one that is open
        report(2, 2)
    assert "again" in capfd.readouterr().err


def test_without_a_terminal_there_is_a_line_now_and_then(capfd, monkeypatch):
    monkeypatch.setattr("fringe._progress.LOG_EVERY", 0.0)
    for quiet in (False, True):
        with Progress("images", 3, quiet=quiet, steps=True) as bars:
            bars.step(2, 40, "FRInGe")
            bars.advance()
    lines = ["images: 0 of 3, FRInGe: 2 of 40, 0.0 min", "images: 1 of 3, 0.0 min"]
    assert capfd.readouterr() == ("", "\n".join(lines) + "\n")
    monkeypatch.setattr("fringe._progress.LOG_EVERY", 30.0)
    with Progress("images", 3, quiet=False) as bars:
        bars.advance()
    assert capfd.readouterr() == ("", "")


def test_the_log_says_what_happens_by_itself(caplog):
    caplog.set_level(logging.INFO, "fringe")
    fringe.explain("embedded:digits", "embedded:digits:0", method="ig", telemetry=False)
    assert "loaded embedded:digits on cpu" in caplog.text
    BatchSize(8).halve(torch.device("cpu"), MemoryError())
    assert "4 images a pass instead of 8" in caplog.text
    assert {record.name.partition(".")[0] for record in caplog.records} == {"fringe"}


def test_without_a_handler_the_log_is_silent():
    code = "import fringe._progress as p; p.log.warning('seen')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize("absent", [True, False])
def test_a_closed_standard_error_ends_no_computation(absent, monkeypatch, tmp_path):
    stream = open(tmp_path / "log", "w")  # noqa: SIM115 - it is closed, as by a service that began the process
    stream.close()
    monkeypatch.setattr(sys, "stderr", None if absent else stream)
    assert len(fringe.attribute(model, X, method="ig", progress=True)) == 2
    with Progress("images", 2, quiet=False) as bars:
        bars.advance(2)
