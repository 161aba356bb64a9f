"""The program that makes the tables of docs/results."""

import importlib
import importlib.util
import os
import re
import signal
from pathlib import Path

import numpy as np
import pytest
from small_plans import digits_plan
from typer.main import get_command

from fringe.bench.experiments import Callbacks, ExperimentSpec, RunOptions, Store, run_plan
from fringe.cli import app

ROOT = Path(__file__).parents[1]
NAMED = [path for path in sorted((ROOT / "experiments").glob("*.toml")) if "net" in path.stem.partition("_")[2]]
#: A difference with its interval, as in "+.067 [.004, .136]".
DIFFERENCE = re.compile(r"([+−]?\d*\.\d+) \[([+−]?\d*\.\d+),\s+([+−]?\d*\.\d+)\]")
#: How many differences of a page are in no table: between two rows of which none is the first, or of a run without one.
IN_NO_TABLE = {"docs/results/focus.md": 2, "docs/results/steadiness.md": 47}


@pytest.fixture(scope="module")
def results():
    spec = importlib.util.spec_from_file_location("results", ROOT / "scripts" / "results.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", [path for path in NAMED if path.stem[:5] != "truth"], ids=lambda path: path.stem)
def test_networks_for_small_images_get_them(path, results):
    images = results.images_of(ExperimentSpec.from_file(path))
    assert images == ("cifar10" if path.stem.endswith("cifar_resnet20") else "imagenet")


def test_the_table_of_a_run_that_was_interrupted_stays(results, monkeypatch, tmp_path, capsys):
    name, plan = "focus_designed", digits_plan(n=2)
    monkeypatch.setattr(results, "TABLES_FOLDER", tmp_path)
    run_plan(plan, tmp_path / name, RunOptions(), Callbacks(ended=lambda report: os.kill(os.getpid(), signal.SIGINT)))
    results.write_tables(tmp_path, [name])
    assert capsys.readouterr().out == f"{name}: left as it is, because its run is not complete\n"
    assert list(tmp_path.glob("*.csv")) == []
    Store(tmp_path / "begun", create=True).close()  # which was stopped before its plan was stored
    assert results.complete(tmp_path, ["begun"]) == results.complete(tmp_path, ["absent"]) == []
    run_plan(plan, tmp_path / name, RunOptions())
    assert len(results.complete(tmp_path, [name])) == 1
    assert results.complete(tmp_path, [name, "begun"]) == []


def test_every_table_is_made_by_an_experiment_or_a_command(results):
    """``prior`` and ``controls`` are of several runs; those of equal prices are of reports; ``occlusion`` and
    ``coordinates`` of a script."""
    made = {*results.TABLES, *results.COMMANDS, *results.KEPT, *results.SCRIPTS, "prior", "controls", "coordinates"}
    stored = {path.stem for path in results.TABLES_FOLDER.glob("*.csv")}
    assert {name for name in stored - made if not name.startswith("budget_")} == set()
    assert made - stored == set()


def test_commands_of_tables_have_flags_that_exist(results, monkeypatch, tmp_path):
    monkeypatch.setenv("FRINGE_SHARED", "")  # which is set in it, and then restored
    monkeypatch.syspath_prepend(str(ROOT / "experiments" / "paper"))
    called, group, reproduce = [], get_command(app), importlib.import_module("reproduce")
    monkeypatch.setattr(results.subprocess, "run", lambda words, **_: called.append(words))
    for name in results.COMMANDS:
        results.run(name, tmp_path, tmp_path / "out", "cpu")
        if "reproduce.py" in called[-1][1]:
            assert reproduce.arguments(called[-1][2:]).out == tmp_path / "out" / name
            continue
        command, built, words = group.resolve_command(group.make_context("fringe", called[-1][3:]), called[-1][3:])
        assert built.make_context(command, words).params["out"] == tmp_path / "out" / name


def differences(path):
    """Differences with their intervals (N, 3), and how far rounding may move them (N, 1)."""
    found = [[one.replace("−", "-") for one in texts] for texts in DIFFERENCE.findall(path.read_text(encoding="utf-8"))]
    digits = [len(texts[0].partition(".")[2]) for texts in found]
    return np.array(found, float).reshape(-1, 3), 0.5 * 10.0 ** -np.array(digits)[:, None] + 1e-9


def test_a_difference_in_a_sentence_is_that_of_a_table(results):
    """In either direction: what one row gains the other one loses."""
    rows = np.concatenate([differences(path)[0] for path in results.TABLES_FOLDER.glob("*.csv")])
    rows = np.concatenate([rows, -rows[:, [0, 2, 1]]])
    for page in (*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"):
        said, rounding = differences(page)
        near = (abs(said[:, None] - rows) <= rounding[:, None]).all(-1).any(-1)
        name = page.relative_to(ROOT).as_posix()
        assert (~near).sum() == IN_NO_TABLE.get(name, 0), (name, said[~near].tolist())
