"""An experiment from its specification to a table: in memory, in a folder, and in processes alike."""

import gc
import itertools
import math
import sys
import warnings
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch
from forked_runs import spawn_quickly
from small_plans import IG
from torch import nn

from fringe import FringeError, Insertion, SmoothGrad
from fringe.bench.experiments import (
    ExperimentSpec,
    Manifest,
    ProcessExecutor,
    Results,
    Store,
    pending_tasks,
    read_results,
    run_experiment,
)
from fringe.evaluation import estimate
from score_records import ScoreRecord, commit, records_of_cell, results_from

SPEC = ExperimentSpec(
    model="embedded:digits", methods={"ig": IG, "sg": SmoothGrad(samples=2)}, metrics=["insertion", "sparseness"], n=4
)
COLUMNS = ("target", "confidence", "score", "status", "error", "verdict", "flags", "forward", "jvp", "vjp", "seconds")


def numbers(results: Results):
    return results.frame.select(
        pl.exclude("seconds", "setting", "metric_key", "status", "verdict"), pl.col("status", "verdict").cast(pl.String)
    )


def test_memory_a_folder_and_processes_give_one_table(tmp_path, monkeypatch):
    if sys.platform == "linux":
        spawn_quickly(monkeypatch)
    memory = run_experiment(SPEC)
    folder = run_experiment(SPEC, tmp_path / "run")
    other = run_experiment(SPEC, Store(tmp_path / "processes"), executor=ProcessExecutor(1))
    assert numbers(memory).equals(numbers(folder))
    assert numbers(read_results(Store(tmp_path / "run", create=False))).equals(numbers(folder))
    assert folder.frame["score"].to_list() == pytest.approx(other.frame["score"].to_list(), rel=1e-5)
    assert memory.frame.height == 2 * (2 + 6) * 4
    assert memory.frame["status"].cast(pl.String).unique().to_list() == ["ok"]
    assert memory.missing() == []


def test_results_that_are_gone_leave_no_file_open(tmp_path):
    run_experiment(SPEC, tmp_path)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert read_results(tmp_path).missing() == []
        gc.collect()
    assert [str(warning.message) for warning in said] == []


def test_a_summary_is_the_estimate_of_each_method_and_metric():
    results = run_experiment(SPEC)
    table = results.summary(seed=3)
    assert table.height == 2 * (2 + 6)
    for row in table.iter_rows(named=True):
        found = estimate(results.scores(row["model"], row["method"], row["metric"]), 3)
        assert (row["mean"], row["n"]) == (found.mean, 4)
        assert (row["low"], row["high"]) == pytest.approx((found.low, found.high), rel=1e-12)
        assert (row["images"], row["missing"], row["failed"]) == (4, 0, 0)


def test_scores_that_are_missing_or_failed_say_so():
    whole = run_experiment(ExperimentSpec(controls=False).over(SPEC))
    records = {row.key: row for cell in whole.cells.values() for row in records_of_cell(cell)}
    digests = [image["digest"] for image in whole.manifest.images]
    for key, record in list(records.items()):
        if record.method == "sg" and record.image == digests[1]:
            del records[key]
        if record.method == "sg" and record.image == digests[2]:
            records[key] = type(record)(**{**vars(record), "score": None, "status": "failed", "error": "no memory"})
    results = results_from(whole.manifest, records)
    column = results.scores("digits", "sg", "insertion")
    assert np.isnan(column).tolist() == [False, True, True, False]
    assert [column[0], column[3]] == [whole.scores("digits", "sg", "insertion")[i] for i in (0, 3)]
    assert [(c.method, c.metric, c.required, c.scored, c.failed, c.missing) for c in results.cells.values()] == [
        ("ig", "insertion", 4, 4, 0, 0),
        ("ig", "sparseness", 4, 4, 0, 0),
        ("sg", "insertion", 4, 2, 1, 1),
        ("sg", "sparseness", 4, 2, 1, 1),
    ]
    assert results.missing() == [
        f"digits, sg, {m}: 1 of 4 images are not computed" for m in ("insertion", "sparseness")
    ]
    assert results.failures().rows() == [("digits", "sg", "no memory", 2, 1)]
    cell = results.cells["digits", "sg", "sparseness"]
    assert (cell.missing, cell.failed) == (1, 1)
    assert cell.frame.equals(results.frame.filter(method="sg", metric="sparseness"))
    assert math.isfinite(results.summary()["mean"].min())


@pytest.mark.parametrize("form", [nn.Module.train, torch.jit.script])
def test_a_model_in_memory_is_scored(form):
    net = form(nn.Sequential(nn.Flatten(), nn.Linear(32 * 32, 3)))
    spec = ExperimentSpec(
        model={"net": net}, data="embedded:digits", methods=[IG], metrics=[Insertion(steps=4)], n=2, controls=False
    )
    with pytest.raises(FringeError, match="preprocessing: none given for a model in memory"):
        run_experiment(spec)
    results = run_experiment(ExperimentSpec(preprocessing="resize=32,channels=1,mean=0.5,std=0.5").over(spec))
    assert np.isfinite(results.scores("net", "ig", "insertion")).all()


def test_without_polars_nothing_is_computed(monkeypatch):
    monkeypatch.setitem(sys.modules, "polars", None)
    monkeypatch.setattr("fringe.bench.experiments._run.build_plan", lambda spec: pytest.fail("the plan was begun"))
    with pytest.raises(ImportError, match="polars"):
        run_experiment(ExperimentSpec())


@pytest.mark.parametrize("scored", [["ok"], []])
def test_tables_say_of_each_score_what_its_best_record_says(scored):
    """Random records, many of one score, of labels that share a setting or a metric, and of no plan: of those of one
    score the first with a score counts, else the first."""
    rng, methods = np.random.default_rng(0), ("a", "ab", "c")  # a and ab are one method
    about = Manifest(
        {"seed": 0},
        tuple({"digest": f"i{i}", "id": f"{i}.png", "source": "", "label": i or None} for i in range(5)),
        (),
        {model: {method: {"model": model, "method": {"method": method[0]}} for method in methods} for model in "mn"},
        {"x": {"key": "x", "limit": 5}, "y": {"key": "y", "limit": 3}, "x again": {"key": "x", "limit": 2}},
        {},
        {},
    )  # fmt: skip
    keys = [*{about.setting_key(model, method) for model in "mn" for method in ("a", "c")}, "another"]
    records = []
    for number in range(400):
        status = str(rng.choice([*scored, "failed", "diverged", "unreadable"]))
        record = ScoreRecord(
            setting=str(rng.choice(sorted(keys))),
            metric_key=str(rng.choice(["x", "y", "z"])),
            image=f"i{rng.integers(6)}",
            **dict.fromkeys(("model", "method", "metric", "image_id"), ""),
            diagnostics=[],
            extras=[],
            label=None,
            target=int(rng.integers(10)) if number % 3 else None,
            confidence=float(number),
            score=float(rng.integers(2, 9)) if status == "ok" else None,
            status=status,
            error=f"why {number % 4}" if status == "failed" else None,
            verdict=str(rng.choice(["ok", "short"])),
            flags=[["one", "two"][: number % 3], []][number % 2],
            curves=[("raw", [number, *range(number % 2)]), ("other", [0.0])][: 1 + number % 2][:: (-1) ** number],
            **dict.fromkeys(("forward", "jvp", "vjp", "seconds"), float(number)),
        )
        records.append(record)
    store = Store(None)
    for record in records:
        commit(store, [record])
    results, of_map = Results(about, store), {}
    records.reverse()
    records.sort(key=lambda record: record.status != "ok")
    for (model, method, metric), cell in results.cells.items():
        best, name = {}, (about.setting_key(model, method), about.metrics[metric]["key"])
        for record in records:
            if (record.setting, record.metric_key) == name:
                best.setdefault(record.image, record)
        rows = [best.get(f"i{i}") for i in range(about.metrics[metric]["limit"])]
        rows = [row and replace(row, image_id=f"{i}.png", label=i or None) for i, row in enumerate(rows)]
        known = [row for row in rows if row]
        assert list(records_of_cell(cell)) == rows
        expected = [
            {name: getattr(row, name, None) for name in COLUMNS} | {"image_id": f"{i}.png"}
            for i, row in enumerate(rows)
        ]
        for row in expected:
            row["status"] = row["status"] or "missing"
        assert cell.frame.select("image_id", *COLUMNS).rows(named=True) == [
            {name: row[name] for name in ("image_id", *COLUMNS)} for row in expected
        ]
        assert (cell.missing, cell.failed) == (rows.count(None), sum(row.status != "ok" for row in known))
        assert cell.scores.tolist() == pytest.approx([row["score"] or np.nan for row in expected], nan_ok=True)
        lines = results.details(model, method, {metric: "curve/raw"})[metric]
        assert [line.tolist() for line in lines.values()] == [dict(row.curves)["raw"] for row in known]
        for row in known:
            of_map.setdefault((model, method, row.image), []).append(row)
    for model, method in itertools.product("mn", methods):
        maps = results.map_frame(model, method).drop("method")
        found = maps.rows(named=True)
        rows = [of_map[key] for key in sorted(of_map) if key[:2] == (model, method)]
        best = [next((row for row in one if row.status == "ok"), one[0]) for one in rows]
        assert found == [{name: getattr(row, name) for name in found[0]} for row in best]
        assert maps.schema["target"] == pl.Int32


def test_more_reasons_than_there_are_short_numbers_are_told_apart():
    reasons = [f"why {i}" for i in range(2**15 + 2)]
    images = tuple({"digest": reason, "id": reason, "label": None} for reason in reasons)
    about = Manifest({"seed": 0}, images, (), {"m": {"a": {"method": {}}}}, {"x": {"key": "x", "limit": 2**16}}, {}, {})
    names = (about.setting_key("m", "a"), "x")
    rest = ("m", "a", "x", "", None, None, None, None, "failed")
    records = [ScoreRecord(*names, reason, *rest, error=reason) for reason in reasons]
    frame = results_from(about, {record.key: record for record in records}).frame
    assert frame["error"].to_list() == reasons
    assert frame.schema["label"] == frame.schema["target"] == pl.Int32  # without one, too


def test_a_task_is_forced_where_one_of_its_scores_failed_and_none_counts_instead():
    images = tuple({"digest": name, "id": name, "label": None} for name in "pqr")
    metrics = {name: {"key": f"key {name}", "limit": 3} for name in "xy"}
    about = Manifest({"seed": 0}, images, (), {"m": {"a": {"method": {}}}}, metrics, {}, {})
    setting = about.setting_key("m", "a")

    def record(image, metric, status):
        return ScoreRecord(setting, f"key {metric}", image, "m", "a", metric, image, None, 0, 0.5, None, status)

    rows = [record("p", "x", "failed"), record("q", "x", "ok"), record("q", "y", "failed"), record("q", "y", "ok")]
    rows.append(record("r", "x", "ok"))
    store = Store(None)
    for row in rows:
        commit(store, [row])
    tasks = pending_tasks(about, Results(about, store), 3, retry=True)
    found = [(task.metrics, task.images, task.force) for task in tasks]
    assert sorted(found) == [(("x", "y"), ("p",), True), (("y",), ("r",), False)]
