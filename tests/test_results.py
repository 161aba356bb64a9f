"""The program that makes the tables of docs/results."""

import importlib.util
import json
import os
import re
import signal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from small_plans import digits_plan
from typer.main import get_command

import fringe
from fringe.bench.experiments import ExperimentSpec, RunLog, RunOptions, Store, build_plan, run_plan
from fringe.bench.report import build_table
from fringe.cli import app
from fringe.metrics._perturbation import ExchangeMetric

ROOT = Path(__file__).parents[1]
GIVEN = {"data": ("embedded:photos",), "trust_code": True}
NAMED = [path for path in sorted((ROOT / "experiments").glob("*.toml")) if "net" in path.stem.partition("_")[2]]
#: A difference with its interval, as in "+.067 [.004, .136]".
DIFFERENCE = re.compile(r"([+−]?\d*\.\d+) \[([+−]?\d*\.\d+),\s+([+−]?\d*\.\d+)\]")


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


def test_every_curve_of_an_experiment_has_two_references():
    """But those of the paper's own scores."""
    for path in sorted((ROOT / "experiments").glob("*.toml")):
        metrics = build_plan(ExperimentSpec.from_file(path).model_copy(update=GIVEN)).metrics
        curves = {name.partition(":")[0] for name, one in metrics.items() if isinstance(one, ExchangeMetric)}
        both = {name for name in curves if f"{name}:zero" in metrics}
        assert curves == both or path.stem == "paper_cifar_resnet20", path.stem


def test_the_table_of_a_run_that_was_interrupted_stays(results, monkeypatch, tmp_path, capsys):
    name, plan = "focus", digits_plan(n=2)
    monkeypatch.setattr(results, "TABLES_FOLDER", tmp_path)
    run_plan(plan, tmp_path / name, RunOptions(), RunLog(ended=lambda report: os.kill(os.getpid(), signal.SIGINT)))
    results.write_tables(tmp_path, [name])
    assert capsys.readouterr().out == f"{name}: left as it is, because its run is not complete\n"
    assert list(tmp_path.glob("*.csv")) == []
    Store(tmp_path / "begun", create=True).close()  # which was stopped before its plan was stored
    assert results.complete(tmp_path, ["begun"]) == results.complete(tmp_path, ["absent"]) == []
    run_plan(plan, tmp_path / name, RunOptions())
    assert len(results.complete(tmp_path, [name])) == 1
    assert results.complete(tmp_path, [name, "begun"]) == []


def test_at_most_14_tables_of_this_version_take_a_night(results):
    """A table of an older version is made anew: what it says may hold no longer."""
    experiments = {path.stem for path in (ROOT / "experiments").glob("*.toml")}
    assert experiments == set(results.TABLES)
    assert set(results.MINUTES) == {*results.TABLES, *results.COMMANDS, *results.SCRIPTS}
    tables = {*results.TABLES, *results.COMMANDS, *(name for names in results.SCRIPTS.values() for name in names)}
    tables |= set(results.DERIVED)
    assert len(tables) <= 14
    assert sum(results.MINUTES.values()) <= 8 * 60
    stored = {path.stem for path in results.TABLES_FOLDER.glob("*.csv")}
    made = json.loads(results.MADE.read_text(encoding="utf-8"))
    assert stored == set(made) <= tables
    for name, what in made.items():
        assert what["fringe"].split(".")[:2] == fringe.__version__.split(".")[:2], name
        assert re.fullmatch("[0-9a-f]{8,12}", what["commit"]), name
        assert what["torch"], name


def test_a_table_says_what_made_it_and_what_follows(results, monkeypatch, tmp_path):
    monkeypatch.setattr(results, "TABLES_FOLDER", tmp_path)
    monkeypatch.setattr(results, "MADE", tmp_path / "made.json")
    run_plan(digits_plan(n=8), tmp_path / "paper_cifar_resnet20", RunOptions())
    monkeypatch.setitem(results.TABLES, "paper_cifar_resnet20", results.Table("ig"))
    results.write_tables(tmp_path, ["paper_cifar_resnet20"])
    (run,) = results.complete(tmp_path, ["paper_cifar_resnet20"])
    made = json.loads((tmp_path / "made.json").read_text(encoding="utf-8"))["paper_cifar_resnet20"]
    assert made["fringe"] == fringe.__version__
    assert made.get("conclusions", []) == build_table(run, run.models[0]).conclusions
    assert (tmp_path / "paper_cifar_resnet20.csv").is_file()
    (tmp_path / "made.json").write_text(json.dumps({"paper_cifar_resnet20": {**made, "commit": "0" * 12}}))
    for computed, commit in ((False, "0" * 12), (True, made["commit"])):  # whose run is stored
        results.write_tables(tmp_path, ["paper_cifar_resnet20"], computed=computed)
        again = json.loads((tmp_path / "made.json").read_text(encoding="utf-8"))["paper_cifar_resnet20"]
        assert again == {**made, "commit": commit}


def test_a_map_is_right_by_ranks_or_above_every_blind_map(results):
    """Chance .25 of the mass and .2 of the ranks: the bounds are .325 and .6, and what a blind map reaches."""
    rank = [0.60, 0.59, 0.10, 0.10, 0.10, np.nan]
    mass = [0.10, 0.10, 0.33, 0.32, 0.33, 0.90]
    blind = {"random": [0.1] * 6, "uniform": [0.25] * 6, "edge": [0.1, 0.1, 0.1, 0.1, 0.33, 0.1]}
    known = {("fringe", "mass_inside"): mass, ("fringe", "rank_accuracy"): rank}
    known |= {(name, "mass_inside"): column for name, column in blind.items()}
    chance = {"mass_inside": 0.25, "rank_accuracy": 0.2}
    gates = {"good": [{"holds": True}], "bad": [{"holds": True}, {"holds": False}]}
    networks = {name: {"gates": one, "given": None} for name, one in gates.items()}

    def details(model, method, asked):
        return {metric: {0: [chance[metric]], 1: [np.nan]} for metric in asked}

    def scores(model, method, metric):
        assert model == "good"  # a network whose gate fails does not count
        return np.array(known[method, metric])

    run = SimpleNamespace(
        manifest=SimpleNamespace(scenes={"scene": {"networks": networks}}),
        methods=lambda model: ["fringe", "random", "uniform", "edge"],
        scores=lambda model, method, metric: scores(model, method, metric) if metric in chance else None,
        details=details,
        map_frame=lambda *_: pl.DataFrame({"verdict": ["ok", "ok", "stalled", "stalled", "ok", "ok"]}),
        clusters=lambda model: ["a", "b", "c", "d", "e", "f"],
    )
    known |= {(name, "rank_accuracy"): [0.2] * 6 for name in blind}
    found = [(row["verdict"], row["maps"], row["right maps, of these"]) for row in results.verdict_rows([run])]
    assert found == [("`ok`", "4", "2"), ("`stalled`", "2", "1")]
    (ok,) = [row for row in results.verdict_rows([run] * 10) if row["verdict"] == "`ok`"]
    share, rest = ok["right maps, of these"].split(maxsplit=1)
    low, high = (float(one.strip("[]%")) for one in rest.split(", "))
    assert (share, ok["maps"]) == ("50%", "40")
    assert 0 <= low < 50 < high <= 100


def test_settings_are_judged_on_images_that_did_not_choose(results, monkeypatch, tmp_path):
    files = [tmp_path / "images" / "cifar10" / f"{i}.png" for i in range(5)]
    files[0].parent.mkdir(parents=True)
    for path in files:
        path.touch()
    ran = []
    monkeypatch.setenv("FRINGE_SHARED", "")
    monkeypatch.setattr(results, "run_experiment", lambda spec, out, **_: ran.append((spec.data[0], out.name)))
    results.run("settings", tmp_path, tmp_path / "out", "cpu")
    given = {name: {path.name for path in Path(data).iterdir()} for data, name in ran}
    assert given == {"settings-0": {"0.png", "2.png", "4.png"}, "settings-1": {"1.png", "3.png"}}
    assert all(one.halves in ((), (1,), (0, 1)) for one in results.TABLES.values())


def test_commands_of_tables_have_flags_that_exist(results, monkeypatch, tmp_path):
    monkeypatch.setenv("FRINGE_SHARED", "")  # which is set in it, and then restored
    called, group = [], get_command(app)
    monkeypatch.setattr(results.subprocess, "run", lambda words, **_: called.append(words))
    for name in results.COMMANDS:
        results.run(name, tmp_path, tmp_path / "out", "cpu")
        command, built, words = group.resolve_command(group.make_context("fringe", called[-1][3:]), called[-1][3:])
        assert built.make_context(command, [*words, "image.png"]).params["out"] == tmp_path / "out" / name


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
        if page.stem not in ("steadiness", "scenes", "texts"):  # whose tables the commands of the page print
            assert said[~near].tolist() == [], page
