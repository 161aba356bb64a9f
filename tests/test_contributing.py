"""CONTRIBUTING.md says what to touch for each kind of addition: every row is walked through."""

import dataclasses
import itertools
import re
import subprocess
import sys
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import pytest
from pydantic import Field
from torch import nn
from typer.testing import CliRunner

import fringe
from fringe.bench import experiments
from fringe.errors import InputError
from fringe.models import Preprocessing, load_model

pytestmark = pytest.mark.usefixtures("small_figures")

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
DIGITS = {"model": "embedded:digits", "data": "embedded:digits", "n": 2, "controls": False}


def command(*arguments):
    from fringe.cli import app

    return CliRunner().invoke(app, list(arguments))


def test_every_path_of_the_page_exists():
    rows = PAGE.split("## What to touch")[1].split("## ")[0]
    paths = re.findall(r"`((?:src|tests|scripts)/[\w/.]+)`", rows)
    assert len(paths) >= 16
    assert [path for path in paths if not (ROOT / path).exists()] == []
    files = [ROOT / path for path in paths if (ROOT / path).is_file()]
    texts = "\n".join(path.read_text(encoding="utf-8") for path in files)
    named = set(re.findall(r"`([A-Z_]+|_?[A-Z][a-z]\w+|[a-z_]+_[a-z]+)`", rows))
    assert {"ExperimentSpec", "RunFlags", "is_prefix"} <= named
    assert {name for name in named if not re.search(rf"\b{name}\b", texts)} == set()


@pytest.mark.parametrize(("kind", "room"), [("method", "attribution"), ("metric", "metrics")])
def test_a_method_or_a_metric_is_its_class_and_a_line(kind, room):
    """``tests/test_how_to.py`` adds one of each in this way, and runs the tests of all methods and metrics."""
    (touched,) = re.findall(rf"^\| a {kind} \| (.*?) \|", PAGE, re.MULTILINE)
    folder = f"src/fringe/{room}"
    assert re.findall(r"`(\w+/[\w/.]+)`", touched) == [f"{folder}/", f"{folder}/_registry.py"]


def test_the_tree_names_every_package():
    tree = PAGE.split("```")[3]
    packages = {path.parent.name for path in (ROOT / "src" / "fringe").glob("*/__init__.py")}
    assert packages <= set(re.findall(r"(\w+)/", tree))


def test_one_command_runs_each_test_and_a_change_must_pass_all_but_the_sweeps():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    chosen = dict(re.findall(r'^(\w+): .*\n\t.* -m pytest -m "?([\w ]+)', makefile, re.MULTILINE))
    assert set(chosen) == {"test", "thorough", "sweep"}
    for slow, thorough in itertools.product((True, False), repeat=2):
        runs = [name for name, marks in chosen.items() if eval(marks, {"slow": slow, "thorough": thorough})]
        assert len(runs) == 1, (slow, thorough, runs)
    assert re.search(r"^check: test thorough lint types$", makefile, re.MULTILINE)


def test_a_flag_is_a_field(monkeypatch, tmp_path):
    class Extended(experiments.ExperimentSpec):
        flavour: str = Field("plain", description="Taste of the maps.")

    monkeypatch.setattr(experiments, "ExperimentSpec", Extended)
    output = command("benchmark", "--help").output
    assert "--flavour" in output
    assert "Taste of the maps." in output
    (tmp_path / "plan.toml").write_text('flavour = "sour"\n')
    assert Extended.from_file(tmp_path / "plan.toml").flavour == "sour"


@pytest.mark.parametrize("what", ["maps", "scores", "nothing"])
def test_an_option_of_experiments_is_a_field(monkeypatch, tmp_path, what):
    """Its word decides what a run records, what it refuses, and which maps are others."""
    from fringe.bench.experiments import _spec

    class Extended(experiments.ExperimentSpec):
        flavour: Annotated[str, _spec.Changes(what)] = Field("plain", description="Taste of the maps.")

    given = {**DIGITS, "n": 1, "methods": "ig", "metrics": "sparseness", "set": ["ig.steps=2"], "controls": False}
    before = experiments.run_experiment(experiments.ExperimentSpec(**given), tmp_path)
    monkeypatch.setattr(_spec, "ExperimentSpec", Extended)
    plain, sour = (experiments.build_plan(Extended(**given, **more)) for more in ({}, {"flavour": "sour"}))
    assert (plain.option("flavour"), sour.option("flavour")) == ("plain", "sour")
    assert ("flavour" in sour.record()) == (what != "nothing")
    same = experiments.run_experiment(plain, tmp_path)  # as before there was this option
    assert same.manifest.settings == before.manifest.settings
    if what == "nothing":
        assert experiments.run_experiment(sour, tmp_path).manifest.settings == before.manifest.settings
        return
    with pytest.raises(InputError, match=r"with other settings \(flavour: plain, now sour\)"):
        experiments.run_experiment(sour, tmp_path)
    other = experiments.run_experiment(sour, tmp_path, amend=True)
    assert (other.manifest.settings == before.manifest.settings) == (what == "scores")
    assert experiments.read_results(tmp_path).manifest.plan["flavour"] == "sour"


def test_what_a_run_stores_of_its_plan_can_be_read_again():
    from fringe.bench.experiments import _records

    spec = experiments.ExperimentSpec(**DIGITS, scene="gridpg", limits={"gridpg": 1}, model_output="logits")
    plan = dataclasses.replace(experiments.build_plan(spec), holdout=True, sample=False, boxes="predicted")
    assert plan.record().keys() == {name.rstrip("?") for name in _records._ASKED} | {"sample", "boxes"}


@pytest.mark.parametrize(("name", "kind"), [("explain", "ExplainSpec"), ("compare", "CompareSpec")])
def test_a_flag_of_images_is_a_field(monkeypatch, name, kind):
    from fringe import explanations

    class Extended(getattr(explanations, kind)):
        flavour: str = Field("plain", description="Taste of the maps.")

    monkeypatch.setattr(explanations, kind, Extended)
    assert "--flavour" in command(name, "--help").output
    assert Extended(flavour="sour").record()["flavour"] == "sour"


def test_a_flag_of_how_runs_are_computed_is_a_field():
    from fringe.cli import _runs

    output = command("benchmark", "--help").output
    assert experiments.RunOptions.model_fields.keys() < _runs.RunFlags.model_fields.keys()
    fields = experiments.RunOptions.model_fields
    assert [name for name in fields if f"--{name.replace('_', '-')}" not in output] == []


def test_a_report_section_is_a_function(monkeypatch, tmp_path):
    from fringe.bench.report import _build, write_report

    original = _build._model_chapter

    def with_remark(*given):
        chapter = original(*given)
        remark = _build.Section("Remark", ("A section of mine.",))
        return dataclasses.replace(chapter, sections=(*chapter.sections, remark))

    monkeypatch.setattr(_build, "_model_chapter", with_remark)
    spec = experiments.ExperimentSpec(**DIGITS, methods="ig", metrics="sparseness", set=["ig.steps=2"])
    experiments.run_experiment(spec, tmp_path / "run")
    page = write_report(tmp_path / "run", tmp_path / "report").page
    assert "A section of mine." in page.read_text(encoding="utf-8")
    assert all("A section of mine." in p.read_text(encoding="utf-8") for p in page.parent.glob("report.*"))


def test_an_executor_is_a_class(tmp_path):
    class Counting(experiments.SerialExecutor):
        ended = 0

        def perform(self, runner, tasks, most):
            for task, result in super().perform(runner, tasks, most):
                Counting.ended += 1
                yield task, result

    spec = experiments.ExperimentSpec(**DIGITS, methods="ig", metrics="sparseness", set=["ig.steps=2"], shard=1)
    results = experiments.run_experiment(spec, tmp_path / "run", executor=Counting())
    assert Counting.ended == 2
    assert (results.frame["status"] == "ok").all()


def test_a_model_family_is_a_loader(monkeypatch):
    from fringe.models import _load

    def load(options):
        net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 4))
        return _load.LoadedParts(net, "toy", Preprocessing.parse("resize=8"), None)

    family = _load.Loader("toy:NAME", "for this test", "toy:net", load, is_prefix=True)
    for module in (_load, sys.modules["fringe.models"]):
        monkeypatch.setattr(module, "LOADERS", MappingProxyType({**_load.LOADERS, "toy": family}))
    assert load_model("toy:anything").architecture == "toy"
    assert "--model toy:net" in command("models").stdout
    with pytest.raises(fringe.FringeError, match="toy:NAME"):
        load_model("nothing")


def test_the_tests_are_collected_without_xdist():
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider", "--collect-only"]
    subprocess.run([*command, "tests/bench/experiments/test_ray.py"], cwd=ROOT, check=True, capture_output=True)
