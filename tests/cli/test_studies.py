"""The commands of the paper's studies from the outside, on digits with tiny settings: plans, files and numbers."""

import csv
import errno
import html
import json
import math
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import Image

from command_line import run
from fringe import FRInGe, FringeError
from fringe.bench.experiments import Interrupted, Store, read_results
from fringe.bench.paper import _timing, _tuning, paper_tables
from fringe.bench.paper._studies import DIAGNOSTICS, OBJECTIVE, VARIANTS
from fringe.bench.paper._tables import READINGS
from fringe.bench.paper._timing import read_timings

TINY = ("--set", "fringe.steps=2", "--set", "fringe.cg_iterations=2", "--n", "2")
UNREPORTED = ("--set", "report=false", "--set", "figures=1")
ALL_DIGITS = ("reproduce", "all", "--data", "embedded:digits", "--model", "embedded:digits")
METRICS = ("--set", "insertion.steps=4", "--set", "deletion.steps=4", "--set", "infidelity.samples=2")


def results(folder, plan):
    return read_results(Store(folder, create=False), plan)


def settings(folder, plan, model="digits"):
    return {name: about["method"] for name, about in results(folder, plan).manifest.settings[model].items()}


def are_pictures(paths):
    for path in paths:
        with Image.open(path) as picture:
            assert min(picture.size) > 200


def test_an_ablation_scores_the_variants_and_draws_their_paths(tmp_path):
    arguments = (*TINY, "--set", "metrics=sparseness", "--set", "controls=false", *UNREPORTED)
    result = run("reproduce", "ablation", "--out", tmp_path, *arguments)
    assert result.exit_code == 0, result.output
    assert "ablation: 2 images; 14 maps made now" in result.stdout
    assert "the paper has no setting for digits; fringe:paper is used" in result.stderr
    base = replace(FRInGe.preset("paper"), steps=2, cg_iterations=2)  # not the default
    assert settings(tmp_path, "ablation") == {name: base.variant(name).record() for name in VARIANTS}
    assert np.isfinite(results(tmp_path, "ablation").scores("digits", "euclidean", "sparseness")).all()
    figures = list((tmp_path / "report" / "ablation").iterdir())
    assert [path.name for path in figures] == ["trajectories-digits-1.png"]
    assert f"figure: {figures[0]}" in result.stdout
    are_pictures(figures)
    again = run("reproduce", "ablation", "--out", tmp_path, *arguments, "--json")
    assert json.loads(again.stdout)["units"]["done"] == 0
    assert json.loads(again.stdout)["report"] == [str(figures[0])]


def test_the_study_of_the_cap_takes_it_off(tmp_path):
    others = ("--methods", "fringe,ig,smoothgrad", "--set", "ig.steps=3")
    others = (*others, "--set", "metrics=insertion", "--set", "insertion.steps=3")
    result = run("reproduce", "cap", "--out", tmp_path, *TINY, *others, *UNREPORTED)
    assert result.exit_code == 0, result.output
    assert "smoothgrad: not used; this study is of fringe" in result.stderr
    assert "metrics: not used; this study is scored by completeness_residual" in result.stderr
    found = settings(tmp_path, "cap")
    assert [*found] == ["cap", "no_cap", "ig"]
    assert (found["cap"]["delta_euc"], found["no_cap"]["delta_euc"], found["ig"]["steps"]) == ("auto", None, 3)
    assert results(tmp_path, "cap").metrics == DIAGNOSTICS
    assert [path.name for path in (tmp_path / "report" / "cap").iterdir()] == ["profiles-digits-1.png"]
    without = run("reproduce", "cap", "--out", tmp_path / "b", *TINY, "--set", "fringe.delta_euc=none")
    assert (without.exit_code, "has no Euclidean cap to take off" in without.stderr) == (2, True)
    other = run("reproduce", "cap", "--out", tmp_path / "b", "--methods", "ig")
    assert (other.exit_code, "the study is of fringe, got 'ig' first" in other.stderr) == (2, True)


def test_sweep_draws_the_objective_of_the_scores(tmp_path):
    factors = ("--set", 'factor=["tau=2e-3,4e-2", " steps = 2, 3 "]')
    result = run("reproduce", "sweep", "--methods", "fringe", "--out", tmp_path, *TINY, *METRICS, *factors)
    assert result.exit_code == 0, result.output
    assert "6 maps made now" in result.stdout
    found = results(tmp_path, "sweep")
    assert found.methods("digits") == ("centre", "tau=0.002", "steps=3")
    with (tmp_path / "report" / "sweep" / "sensitivity.csv").open() as file:
        rows = {(row["factor"], float(row["value"])): float(row["objective"]) for row in csv.DictReader(file)}
    labels = {("tau", 0.002): "tau=0.002", ("tau", 0.04): "centre", ("steps", 2.0): "centre", ("steps", 3.0): "steps=3"}
    assert rows.keys() == labels.keys()
    for at, label in labels.items():
        ins, dele, inf = (found.scores("digits", label, name).mean() for name in OBJECTIVE)
        parts = (1.0, ins), (1.0, 1 - dele), (0.5, math.exp(-2 * inf))
        assert rows[at] == pytest.approx(2.5 / sum(w / (max(part, 0) + 1e-6) for w, part in parts), rel=1e-9)
    are_pictures([tmp_path / "report" / "sweep" / "sensitivity.png"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("reproduce", "sweep", "--set", "factor=tau"), "factor: got 'tau', expected KEY=VALUE,VALUE,..."),
        (("tune", "--search", "taau"), "did you mean 'tau'"),
        (("tune", "--search", "tau=1"), "--search: got 'tau=1', expected KEY or KEY=LOW,HIGH"),
        (("tune", "--search", "tau=1e-3,1e-2", "--search", "tau=1,2"), "--search: tau given twice"),
        (("reproduce", "sweep", "--set", 'factor=["tau=1e-3", "tau=1e-2"]'), "factor: tau given twice"),
        (("reproduce", "sweep", "--set", "factor=solve=natural,gradient"), "natural,gradient', expected numbers"),
        (("tune", "--trials", "0"), "--trials"),
        (("tune", "--model", "a=embedded:digits", "--model", "b=embedded:digits"), "got 2, expected one"),
        (("tune", "--timeout", "5"), "add --workers 1, or more"),
        (("reproduce", "runtime", "--workers", "2"), "--workers: run times are measured in this process"),
        (("reproduce", "runtime", "--device", "tpu7"), "--device: got 'tpu7'"),
        (("reproduce", "cure"), "expected one of ablation, cap, sweep, tuning, runtime, budget, tables, all"),
        (("reproduce", "all"), "--data: none given; name the folder of ImageNet's validation images"),
        (("reproduce", "tables", "--data", "x", "--set", "studies=all"), "studies: got 'all', expected one of"),
        (("reproduce", "tuning", "--dry-run"), "so it cannot be estimated; leave it out"),
        ((*ALL_DIGITS, "--methods", "ig,fringe"), "fringe, first, and ig"),
        ((*ALL_DIGITS, "--methods", "fringe,ig,fringe_default=ig"), "fringe_default is the label of FRInGe() here"),
    ],
)
def test_wrong_usage_is_exit_code_2_and_nothing_is_written(tmp_path, arguments, message):
    result = run(*arguments, "--n", 1, "--out", tmp_path / "out")
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "out").exists()


def test_runtime_writes_the_account_that_it_shows(tmp_path):
    arguments = ("reproduce", "runtime", "--out", tmp_path, *TINY, "--methods", "fringe,ig", "--set", "ig.steps=3")
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    path = tmp_path / "report" / "runtime" / "runtime.json"
    rows = json.loads(path.read_text())
    expected = [(method, mode, 2) for mode in ("sequential", "batched") for method in ("fringe", "ig")]
    assert [(row["method"], row["mode"], row["n"]) for row in rows] == expected
    assert {(row["vjp"], row["jvp"]) for row in rows if row["method"] == "ig"} == {(3.0, 0.0)}
    ratio = rows[0]["seconds"] / rows[1]["seconds"]
    assert f"digits sequential: fringe takes {ratio:.1f} times as long as ig" in result.stdout
    assert f"timings: {path}" in result.stdout
    again = json.loads(run(*arguments, "--json", "--set", "metrics=insertion").stdout)
    assert [row["vjp"] for row in again["timings"]] == [row["vjp"] for row in rows]


def test_run_times_are_shown_where_the_disk_is_full(tmp_path, monkeypatch):
    monkeypatch.setattr("fringe.bench.paper._timing.write_atomic", Mock(side_effect=OSError(errno.ENOSPC, "no space")))
    arguments = ("--out", tmp_path, *TINY, "--methods", "fringe,ig", "--set", "ig.steps=3")
    result = run("reproduce", "runtime", *arguments)
    assert (result.exit_code, "no space" in result.stderr) == (75, True)
    assert result.stdout.count(" s per image of 2, ") == 4
    assert "timings: " not in result.stdout


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
    other = run(*arguments[:-2], "--set", "seed=4", "--trials", 2)
    assert (other.exit_code, other.stderr.startswith("error: --out: the study 'digits fringe' in ")) == (2, True)
    assert "was made with other settings; ask for the same, or name another place for the new one" in other.stderr


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
    assert (known["trials"], known["start"], known["stopped"]) == (2, None, None)
    assert "(the setting it began with: no score)" in run(*arguments[:-1]).stdout


@pytest.mark.parametrize("study", ["ablation", "tables"])
def test_a_study_of_nothing_is_exit_code_1_and_still_one_document(tmp_path, study):
    digits = ("--data", "embedded:digits")
    more = (*REPRODUCE, "--set", "studies=cap") if study == "tables" else ()
    model = () if study == "tables" else ("--model", "embedded:digits")
    for name, grey in (("a", 50), ("b", 200)):  # without a class in their names
        Image.new("L", (8, 8), grey).save(tmp_path / f"{name}.png")
    data = (*model, "--data", tmp_path / "a.png", "--data", tmp_path / "b.png", "--set", "target=label")
    arguments = [a for a in (*TINY, *more) if a not in digits]
    result = run("reproduce", study, "--out", tmp_path / "out", *arguments, *data, "--json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert document["report"] == []
    assert "the file name gives no label" in result.stderr


REPRODUCE = (
    *("--model", "resnet18=embedded:digits", "--data", "embedded:digits", "--methods", "fringe,ig"),
    *(*TINY, "--set", "ig.steps=2", "--set", "infidelity.samples=2", "--set", "figures=1"),
)


@pytest.mark.thorough
def test_a_dry_run_tells_the_passes_and_keeps_nothing(tmp_path):
    out = tmp_path / "out"
    result = run("reproduce", "all", "--out", out, *REPRODUCE, "--dry-run", "--set", "probe=100")
    assert result.exit_code == 0, result.output
    assert not out.exists()
    lines = result.stdout.splitlines()
    studies = ("comparison", "ablation", "cap", "max_sensitivity", "sweep", "runtime")
    assert [line for line in lines if not line.startswith((" ", "in all"))] == [f"{name}: 2 images" for name in studies]
    at = lines.index("comparison: 2 images")
    assert lines[at + 2].startswith("  resnet18 ig: 2 maps, 10 passes (6 forward, 4 vjp), ")  # of 3 and 2 an image
    assert not any("resnet18 fringe:" in line for line in lines[lines.index("ablation: 2 images") :][:3])  # as above
    (settings_line,) = [line for line in lines if "35 settings" in line]
    assert settings_line.startswith("  resnet18, 35 settings: 70 maps, ")
    assert lines[-1].startswith("in all about ")


@pytest.mark.thorough
def test_reproduce_sets_our_numbers_beside_the_papers_and_goes_on(tmp_path, monkeypatch):
    arguments = ("reproduce", "tables", "--out", tmp_path, *REPRODUCE)
    runtime = ("--set", "studies=runtime")
    result = run(*arguments, "--set", "studies=comparison, cap")
    assert result.exit_code == 0, result.output
    report = tmp_path / "report"
    for name in ("reproduction.html", "reproduction.md", "reproduction.csv"):
        assert f"page: {report / name}" in result.stdout
    assert f"figure: {report / 'cap' / 'profiles-resnet18-1.png'}" in result.stdout

    with (report / "reproduction.csv").open() as file:
        rows = list(csv.DictReader(file))
    paper = {(c.study, c.model, c.method, c.metric): c for c in paper_tables()}
    assert len(rows) == 2 * 6 + 2 * 4
    for row in rows:
        cell = paper[row["study"], row["model"], row["method"], row["metric"]]
        scores = results(tmp_path, row["study"]).scores(row["model"], row["method"], row["metric"])
        assert (float(row["value"]), float(row["ours"]), row["n"]) == (cell.value, pytest.approx(scores.mean()), "2")
        near = abs(float(row["ours"]) - cell.value) <= float(row["ours_half"]) + cell.half
        assert row["overlap"] == ("yes" if near else "no")
    page = (report / "reproduction.html").read_text()
    assert "Not the paper" in page
    assert "0.597 ± 0.015" in page
    assert results(tmp_path, "comparison").manifest.metrics["infidelity"]["settings"]["samples"] == 2

    real, calls = _timing.measure_runtimes, []

    def interrupt(resolved, **known):
        raise Interrupted("interrupted (SIGTERM)")

    with monkeypatch.context() as patch:
        patch.setattr(_timing, "measure_runtimes", interrupt)
        stopped = run(*arguments, *runtime)
    assert (stopped.exit_code, "run the same command again for the rest" in stopped.stderr) == (75, True)
    monkeypatch.setattr(_timing, "measure_runtimes", lambda *a, **k: calls.append(a) or real(*a, **k))
    timed = run(*arguments, *runtime, "--json")
    document = json.loads(timed.stdout)
    assert (timed.exit_code, document["plans"], len(document["timings"]), len(calls)) == (0, [], 6, 2)  # FRInGe() apart
    again = json.loads(run(*arguments, *runtime, "--json").stdout)
    assert (again["timings"], len(calls)) == (document["timings"], 2)  # measured once

    def known(resolved, **_):
        calls.append(resolved)
        methods = resolved.plan.models[0].methods
        return read_timings([row for row in document["timings"] if row["method"] in methods])

    monkeypatch.setattr(_timing, "measure_runtimes", known)
    kept = report / "runtime" / "kept.json"
    for damaged in ("[1]", None):
        kept.unlink()
        kept.mkdir() if damaged is None else kept.write_text(damaged)
        healed = run(*arguments, *runtime, "--json")
        assert (healed.exit_code, f"'{kept}' is damaged: set aside as" in healed.stderr) == (0, True)
        assert json.loads(healed.stdout)["timings"] == document["timings"]
    assert len(calls) == 6
    whole = kept.read_text()

    def fails(*_):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("fringe.bench.paper._timing.read_regular", fails)
        assert run(*arguments, *runtime, "--json").exit_code == 75
    assert (kept.read_text(), len(calls)) == (whole, 6)  # hours of measuring stay
    assert run(*arguments, *runtime).exit_code == 0

    text = (report / "reproduction.md").read_text().replace("\\", "")  # without the escapes of Markdown
    assert all(html.unescape(text).count(reading.text) == 1 for reading in READINGS)
    default = results(tmp_path, "comparison").scores("resnet18", "fringe_default", "sparseness").mean()
    paper_setting = results(tmp_path, "comparison").scores("resnet18", "fringe", "sparseness").mean()
    assert f"{default:.3f}" != f"{paper_setting:.3f}"
    (line,) = [line for line in text.splitlines() if line.startswith("| resnet18 | sparseness | fringe |")]
    assert [cell.split(" ± ")[0].strip() for cell in line.split("|")[5:7]] == [f"{paper_setting:.3f}", f"{default:.3f}"]
    seconds = {row["method"]: row["seconds"] for row in document["timings"] if row["mode"] == "sequential"}
    assert f"| resnet18 | slowdown | fringe | 19.000 | {seconds['fringe'] / seconds['ig']:.3f} |" in text
    assert "### comparison" in text  # what an earlier call computed is still there
