"""Flags made from the fields of a model: the same names, defaults and values as in Python and in a file."""

import pytest

from command_line import run
from fringe.bench.experiments import ExperimentSpec, Store, manifests
from fringe.bench.tune import TuneSpec, search_plan
from fringe.explanations import CompareSpec, ExplainSpec
from fringe.settings import settings_of

SMALL = ("--methods", "ig", "--set", "ig.steps=2", "--no-controls", "--metrics", "sparseness", "--no-report", "--n", 2)
FILE = """
methods = "ig"
metrics = ["sparseness"]
n = 2
controls = false
set.ig.steps = 2
"""


def plan(folder):
    return manifests(Store(folder, create=False))["benchmark"].plan


@pytest.mark.parametrize(
    ("command", "spec", "others"),
    [
        ("explain", ExplainSpec, ()),
        ("compare", CompareSpec, ()),
        ("benchmark", ExperimentSpec, ("name", "sample", "shard")),
    ],
)
def test_every_field_is_a_flag_with_its_help(command, spec, others):
    shown = run(command, "--help").stdout
    words = " ".join(shown.split())
    for name, field in settings_of(spec).items():
        flag = "--limit" if name == "limits" else f"--{name.replace('_', '-')}"
        assert (f" {flag} " in shown) == (name not in others), flag
        if name not in others:
            assert " ".join(field.doc.text.split()) in words


def test_the_help_of_tune_shows_its_number_of_images():
    n = search_plan(TuneSpec()).n
    shown = " ".join(run("tune", "--help").stdout.split())
    assert f"--n N Number of images, sampled by the seed. [default: {n}]" in shown


def test_help_lists_the_exit_code_of_an_interruption():
    for command in ("verify", "card", "report", "explain", "compare"):
        assert "130 interrupted" in " ".join(run(command, "--help").stdout.split()), command


def test_a_file_gives_the_plan_of_the_flags_and_flags_come_first(tmp_path):
    (tmp_path / "plan.toml").write_text(FILE)
    assert run("benchmark", "--out", tmp_path / "flags", *SMALL).exit_code == 0
    file = ("--config", tmp_path / "plan.toml", "--no-report")
    assert run("benchmark", "--out", tmp_path / "file", *file).exit_code == 0
    assert plan(tmp_path / "file") == plan(tmp_path / "flags")
    both = run("benchmark", "--out", tmp_path / "both", *file, "--n", 1, "--set", "ig.steps=3")
    assert both.exit_code == 0, both.output
    assert (plan(tmp_path / "both")["n"], plan(tmp_path / "both")["methods"]["digits"]["ig"]["steps"]) == (1, 3)


def test_a_key_of_a_specification_may_be_set_as_text(tmp_path):
    shown = run("benchmark", "--out", tmp_path, *SMALL, "--set", "seed=3", "--set", "target=label", "--set", "n=5")
    assert shown.exit_code == 0, shown.output
    found = plan(tmp_path)
    assert (found["seed"], found["target"], found["n"]) == (3, "label", 2)  # a flag comes first
    assert found["methods"]["digits"]["ig"]["steps"] == 2
    wrong = run("benchmark", "--out", tmp_path / "b", "--set", "seed=many")
    assert (wrong.exit_code, "got 'many', expected a whole number" in wrong.stderr) == (2, True)
    other = run("benchmark", "--out", tmp_path / "b", "--set", "seeed=1")
    assert (other.exit_code, "expected LABEL.KEY=VALUE" in other.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("explian",), "explain"),
        (("explain", "embedded:digits:0", "--out", "x", "--scor", "logit"), "--score"),
        (("explain", "embedded:digits:0"), "--out"),
        (("explain", "embedded:digits:0", "--out", "x", "--tau", "1"), "--tau. A setting is given by --set, as in"),
        (("compare", "embedded:digits:0", "--out", "x", "--learning-rate", "1"), "--set geoig_svi.learning_rate=VALUE"),
        (("status", "x", "--tau", "1"), "No such option: --tau\n"),
        (("benchmark", "--out", "x", "--metods", "ig"), "No such option: --metods; did you mean '--methods'?\n"),
        (("status", "--run", "x"), "No such option: --run. RUN is typed without it, as in fringe status RUN.\n"),
        (("status", "--rum", "x"), "No such option: --rum\n"),
        (("benchmark", "--out", "x", "--n", "many"), "--n"),
        (("tune", "--out", "x", "--trials", "0"), "--trials: got 0, expected a positive whole number\n"),
        (("tune", "--out", "x", "--seed", "1"), "No such option: --seed. A key of the search is given by --set"),
    ],
)
def test_a_wrong_flag_is_exit_code_2_with_the_nearest_one(arguments, message):
    result = run(*arguments)
    assert (result.exit_code, message in result.stderr) == (2, True), result.stderr
