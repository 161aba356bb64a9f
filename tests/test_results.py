"""The program that makes the tables of docs/results."""

import importlib.util
import os
import signal
from pathlib import Path

import pytest
from small_plans import digits_plan
from typer.main import get_command

from fringe.bench.experiments import Callbacks, ExperimentSpec, RunOptions, run_plan
from fringe.cli import app

ROOT = Path(__file__).parents[1]
NAMED = [path for path in sorted((ROOT / "experiments").glob("*.toml")) if "net" in path.stem.partition("_")[2]]


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


def test_every_table_is_made_by_an_experiment_or_a_command(results):
    """``prior`` and ``controls`` are of several runs; those of equal prices are of reports."""
    made = {*results.TABLES, *results.COMMANDS, "prior", "controls"}
    stored = {path.stem for path in results.TABLES_FOLDER.glob("*.csv")}
    assert {name for name in stored - made if not name.startswith("budget_")} == set()
    assert made - stored == set()


def test_commands_of_tables_have_flags_that_exist(results, monkeypatch, tmp_path):
    monkeypatch.setenv("FRINGE_SHARED", "")  # which is set in it, and then restored
    called, group = [], get_command(app)
    monkeypatch.setattr(results.subprocess, "run", lambda words, **_: called.append(words))
    for name in results.COMMANDS:
        results.run(name, tmp_path, tmp_path / "out", "cpu")
        command, built, words = group.resolve_command(group.make_context("fringe", called[-1][3:]), called[-1][3:])
        assert built.make_context(command, words).params["out"] == tmp_path / "out" / name
