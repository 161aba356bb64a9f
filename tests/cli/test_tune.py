"""``fringe tune`` from the outside, on digits with tiny settings."""

import json

import pytest

from command_line import run
from fringe import FringeError
from fringe.bench import tune as _tuning
from fringe.bench.experiments import Interrupted, Store, read_results

TINY = ("--set", "fringe.steps=2", "--n", "2")
METRICS = ("--set", "insertion.steps=4", "--set", "deletion.steps=4", "--set", "infidelity.samples=2")


def results(folder, plan):
    return read_results(Store(folder, create=False), plan)


def settings(folder, plan, model="digits"):
    return {name: about["method"] for name, about in results(folder, plan).manifest.settings[model].items()}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tune", "--search", "taau"), "did you mean 'tau'"),
        (("tune", "--search", "tau=1"), "--search: got 'tau=1', expected KEY or KEY=LOW,HIGH"),
        (("tune", "--search", "tau=1e-3,1e-2", "--search", "tau=1,2"), "--search: tau given twice"),
        (("tune", "--trials", "0"), "--trials"),
        (("tune", "--model", "a=embedded:digits", "--model", "b=embedded:digits"), "got 2, expected one"),
        (("tune", "--timeout", "5"), "add --workers 1, or more"),
    ],
)
def test_wrong_usage_is_exit_code_2_and_nothing_is_written(tmp_path, arguments, message):
    result = run(*arguments, "--n", 1, "--out", tmp_path / "out")
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.thorough
def test_tune_goes_on_and_its_preset_keeps_its_images_from_benchmarks(tmp_path):
    arguments = ("tune", "--out", tmp_path / "tune", *TINY, *METRICS, "--search", "tau=1e-3,5e-3", "--set", "seed=3")
    first = run(*arguments, "--trials", 1)
    assert first.exit_code == 0, first.output
    assert first.stdout.startswith("trial 0: ")
    assert "best of 1 trial: " in first.stdout
    second = run(*arguments, "--trials", 2, "--json")
    known = json.loads(second.stdout)
    assert known["trials"] == 2
    assert known["objective"] >= known["start"]
    path = tmp_path / "tune" / "digits.preset.json"
    assert known["preset"] == str(path)
    about = json.loads(path.read_text())
    assert (about["settings"]["steps"], about["about"]["trials"]) == (2, 2)
    spent = ("--methods", "fringe", "--metrics", "sparseness", "--no-controls", "--no-report", "--seed", 4)
    scored = run("benchmark", "--out", tmp_path / "run", "--preset", path, *spent, "--n", 3)
    assert scored.exit_code == 0, scored.output
    method = settings(tmp_path / "run", "benchmark")["fringe"]
    assert (method["tau"], method["steps"]) == (known["settings"]["tau"], 2)
    too_many = run("benchmark", "--out", tmp_path / "run", "--preset", path, *spent, "--n", 359)
    assert "(2 are excluded: a setting was tuned on them)" in too_many.stderr
    shown = run("status", tmp_path / "tune", "--json")
    assert json.loads(shown.stdout)["trials"] == 1
    other = run(*arguments[:-2], "--set", "seed=4", "--trials", 1)
    assert other.exit_code == 2, other.output
    assert "holds the result of another search, of fringe with seed 3" in other.stderr


@pytest.mark.thorough
def test_a_search_says_how_it_began_and_where_it_was_stopped(tmp_path, monkeypatch):
    arguments = ("tune", "--out", tmp_path, *TINY, *METRICS, "--search", "tau=1e-3,5e-3", "--trials", 2, "--json")
    calls = []

    def stop(*known):
        calls.append(known)
        if len(calls) == 1:
            raise FringeError("the first setting has no score")
        raise Interrupted("interrupted (SIGTERM)")

    with monkeypatch.context() as patch:
        patch.setattr(_tuning, "_score", stop)
        stopped = run(*arguments)
    assert stopped.exit_code == 75
    assert "run the same command again to go on" in stopped.stderr
    assert json.loads(stopped.stdout) == {"preset": None, "stopped": "interrupted (SIGTERM)"}
    known = json.loads(run(*arguments).stdout)
    assert (known["trials"], known["start"] > 0, known["stopped"]) == (2, True, None)


@pytest.mark.thorough
def test_a_search_whose_start_has_no_score_says_so(tmp_path, monkeypatch):
    score, calls = _tuning._score, []

    def fail_once(*known):
        calls.append(known)
        if len(calls) == 1:
            raise FringeError("the first setting has no score")
        return score(*known)

    monkeypatch.setattr(_tuning, "_score", fail_once)
    done = run("tune", "--out", tmp_path, *TINY, *METRICS, "--search", "tau=1e-3,5e-3", "--trials", 2)
    assert "best of 2 trials, of which 1 failed: " in done.stdout
    assert "(the setting it began with: no score)" in done.stdout
