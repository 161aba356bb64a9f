"""``fringe status``: what is there, what failed and why, what fits no more; as a table and as JSON."""

import copy
import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from command_line import run
from fringe import FRInGe, IntegratedGradients
from fringe.bench import tune as _tuning
from fringe.bench.experiments import TRIAL, Plan, PlanModel, RunOptions, Store, describe_failures, run_plan
from fringe.bench.experiments._store import PLAN
from fringe.metrics import Sparseness

pytestmark = pytest.mark.usefixtures("small_figures")


def status(folder, *arguments):
    return run("status", folder, *arguments)


def document(folder):
    return json.loads(status(folder, "--json").stdout)


def small(data=("embedded:digits",), **changes):
    methods = {"ig": IntegratedGradients(steps=2), "fringe": FRInGe(steps=2)}
    models = (PlanModel("digits", "embedded:digits", methods),)
    plan = Plan("benchmark", tuple(data), models, {"sparseness": Sparseness()}, n=2, controls=False)
    return replace(plan, **changes)


def only(plan, **methods):
    return replace(plan, models=(replace(plan.models[0], methods=methods),))


def test_a_whole_run_is_exit_code_0_in_a_table_and_in_json(tmp_path):
    run_plan(small(), tmp_path, RunOptions())
    shown = status(tmp_path)
    assert shown.exit_code == 0
    lines = [" ".join(line.split()) for line in shown.stdout.splitlines()]
    assert lines[0] == "benchmark: 2 images"
    assert lines[1] == "model method scores failed missing done"
    assert lines[3:] == ["digits ig 2/2 100%", "digits fringe 2/2 100%"]
    known = document(tmp_path)
    cell = {"model": "digits", "method": "ig", "metric": "sparseness", "required": 2, "scored": 2, "failed": 0}
    assert known["plans"]["benchmark"]["cells"][0] == {**cell, "missing": 0}
    assert (known["damaged"], known["invalidated"], known["trials"]) == ([], [], 0)
    assert known["plans"]["benchmark"]["failures"] == []


def test_failures_are_counted_with_their_reason_and_the_methods_that_they_befell(tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    Image.fromarray(np.full((32, 32), 90, dtype=np.uint8)).save(folder / "1_a.png")
    (folder / "2_broken [b]x.png").write_bytes((folder / "1_a.png").read_bytes()[:50])
    out = tmp_path / "run"
    run_plan(small([str(folder)]), out, RunOptions())
    shown = status(out)
    assert shown.exit_code == 3
    (line,) = [line for line in shown.stdout.splitlines() if "cannot be decoded" in line]  # long, and yet one line
    assert line.startswith("  2 scores of ig, fringe on digits: ")
    assert "2_broken [b]x.png" in line
    rows = [" ".join(line.split()) for line in shown.stdout.splitlines()[3:5]]
    assert rows == ["digits ig 1/2 1 100%", "digits fringe 1/2 1 100%"]
    known = document(out)["plans"]["benchmark"]
    assert [(f["method"], f["scores"]) for f in known["failures"]] == [("ig", 1), ("fringe", 1)]
    assert [(cell["scored"], cell["failed"], cell["missing"]) for cell in known["cells"]] == [(1, 1, 0)] * 2


def test_what_is_missing_is_exit_code_75_whatever_failed(tmp_path):
    run_plan(only(small(), ig=IntegratedGradients(steps=2)), tmp_path, RunOptions())
    store = Store(tmp_path)
    record = copy.deepcopy(store.records(PLAN)["benchmark"])
    settings = record["settings"]["digits"]
    settings["other"] = {**settings["ig"], "seed": 7}  # asked for, and nothing of it is there
    record["plan"]["methods"]["digits"]["other"] = {}
    store.write_record(PLAN, "benchmark", record)
    shown = status(tmp_path)
    assert shown.exit_code == 75
    assert "digits other 0/2 2 0%" in [" ".join(line.split()) for line in shown.stdout.splitlines()]
    cells = document(tmp_path)["plans"]["benchmark"]["cells"]
    assert [cell["missing"] for cell in cells] == [0, 2]


def test_units_that_fit_no_more_are_named_with_the_difference(tmp_path):
    run_plan(small(), tmp_path, RunOptions())
    amended = only(small(), ig=IntegratedGradients(steps=3))
    run_plan(amended, tmp_path, RunOptions(amend=True))
    shown = status(tmp_path)
    assert shown.exit_code == 0
    assert "no longer asked for: ig on digits, 2 maps: method.steps: 2, now 3" in shown.stdout.splitlines()
    assert "no longer asked for: fringe on digits, 2 maps: no plan has the method 'fringe'" in shown.stdout
    found = {(one["method"], one["images"], one["reason"]) for one in document(tmp_path)["invalidated"]}
    assert ("ig", 2, "method.steps: 2, now 3") in found


def test_the_trials_of_a_search_are_kept_and_not_called_stale(tmp_path):
    assert TRIAL == _tuning.TRIAL
    for steps in (2, 3, 4):
        run_plan(only(small(name="tune"), trial=IntegratedGradients(steps=steps)), tmp_path, RunOptions(amend=True))
    known = document(tmp_path)
    assert (known["trials"], known["invalidated"]) == (2, [])
    assert "stored from the trials of a search: 2 methods" in status(tmp_path).stdout


def test_a_folder_that_is_no_run_is_exit_code_2(tmp_path):
    for place in (tmp_path, tmp_path / "absent"):
        result = status(place)
        assert result.exit_code == 2
        assert "holds no run of this program" in result.stderr
        assert "Traceback" not in result.stderr
    Store(tmp_path)
    empty = status(tmp_path)
    assert (empty.exit_code, "no plan yet" in empty.stdout, document(tmp_path)["plans"]) == (75, True, {})


def test_reasons_for_people_are_few_and_the_most_frequent_first():
    rows = [
        {"model": "a", "method": "ig", "reason": "rare", "scores": 1},
        {"model": "a", "method": "ig", "reason": "often", "scores": 2},
        {"model": "a", "method": "agi", "reason": "often", "scores": 2},
        {"model": "b", "method": "ig", "reason": "often", "scores": 3},
    ]
    assert describe_failures(rows, 9) == [
        "4 scores of ig, agi on a: often",
        "3 scores of ig on b: often",
        "1 score of ig on a: rare",
    ]
    assert describe_failures(rows, 1) == ["4 scores of ig, agi on a: often", "and 2 other reasons"]
    assert describe_failures([], 1) == []


@pytest.mark.parametrize(("command", "page"), [("explain", "index.html"), ("compare", "compare.png")])
def test_a_folder_of_images_is_told_from_no_run(tmp_path, command, page):
    (tmp_path / "summary.json").write_text(json.dumps({"fringe": "1", "command": command}))
    for asked in ("status", "report"):
        result = run(asked, tmp_path)
        assert result.exit_code == 2
        assert f"holds no run of this program (it is a folder of {command}: open {tmp_path / page})" in result.stderr
