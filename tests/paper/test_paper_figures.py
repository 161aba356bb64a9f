"""The numbers behind the sensitivity figure, and the figures' files."""

import csv
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from PIL import Image

from fringe import FRInGe, InputError
from fringe.experiments import Arm, ExperimentSpec, Manifest, ModelSource, Plan, Results, run_experiment
from fringe.experiments._manifest import resolve
from fringe.metrics import Sparseness
from fringe.paper import ablation_study, cap_study, draw_study, sweep_study
from fringe.paper._studies import OBJECTIVE, cap_plan
from fringe.paper._trajectories import draw_profiles, draw_sweep, draw_variants

FACTORS = {"tau": [0.002, 0.004], "steps": [3]}
BASE = FRInGe(tau=0.003, steps=2)


def plan(methods=None, label="digits", n=1):
    arm = Arm(label, ModelSource("embedded:digits"), methods or {"fringe": BASE})
    return Plan("plan", ("embedded:digits",), (arm,), {"sparseness": Sparseness()}, n=n, controls=False)


def swept(columns, label="digits"):
    """Results of a sweep from (3, n) scores by setting."""
    rows = [
        (label, setting, metric, float(value), "ok")
        for setting, rows in columns.items()
        for metric, values in zip(OBJECTIVE, rows, strict=True)
        for value in values
    ]
    frame = pl.DataFrame(rows, ["model", "method", "metric", "score", "status"], orient="row")
    return Results(Manifest({}, (), (), {label: {}}, {}, {}, {}), frame)


def numbers(path):
    return {(row["factor"], float(row["value"])): row for row in csv.DictReader(path.open())}


def by_hand(insertion, deletion, infidelity):
    """The paper's harmonic mean with the weights 1, 1, 1/2, of the mean scores."""
    parts = np.mean(insertion), 1 - np.mean(deletion), np.exp(-2 * np.mean(infidelity))
    return 2.5 / sum(w / (part + 1e-6) for w, part in zip((1, 1, 0.5), parts, strict=True))


def test_the_numbers_are_the_objective_of_the_scores(tmp_path):
    rng = np.random.default_rng(0)
    columns = {name: rng.random((3, 4)) for name in ("centre", "tau=0.002", "tau=0.004", "steps=3")}
    figure, table = draw_sweep(plan(), swept(columns), FACTORS, tmp_path / "new")
    with Image.open(figure) as picture:
        assert min(picture.size) > 200
    found = numbers(table)
    assert [*found] == [("tau", 0.002), ("tau", 0.003), ("tau", 0.004), ("steps", 2.0), ("steps", 3.0)]
    labels = {("tau", 0.003): "centre", ("steps", 2.0): "centre", ("steps", 3.0): "steps=3"}
    for at, row in found.items():
        expected = by_hand(*columns[labels.get(at, f"tau={at[1]}")])
        assert float(row["objective"]) == pytest.approx(expected, rel=1e-9)
        assert float(row["low"]) <= expected <= float(row["high"])
        assert row["model"] == "digits"


def test_an_image_that_nobody_has_is_left_out_and_a_setting_that_lacks_another_is_failed(tmp_path):
    rng = np.random.default_rng(1)
    columns = {name: rng.random((3, 4)) for name in ("centre", "tau=0.002", "tau=0.004", "steps=3")}
    for rows in columns.values():
        rows[:, 1] = np.nan  # an image that cannot be read
    columns["tau=0.004"][2, 3] = np.nan
    found = numbers(draw_sweep(plan(), swept(columns), FACTORS, tmp_path)[1])
    assert float(found["tau", 0.002]["objective"]) == pytest.approx(by_hand(*columns["tau=0.002"][:, [0, 2, 3]]))
    assert found["tau", 0.004]["objective"] == ""
    assert float(found["tau", 0.003]["objective"]) == pytest.approx(by_hand(*columns["centre"][:, [0, 2, 3]]))
    for rows in columns.values():
        rows[:] = np.nan
    nothing = numbers(draw_sweep(plan(), swept(columns), FACTORS, tmp_path)[1])
    assert {row["objective"] for row in nothing.values()} == {""}


def test_figures_have_a_name_that_is_a_file_name(tmp_path):
    methods = {"fringe": FRInGe(steps=2, cg_iterations=2)}
    resolved = resolve(plan(methods, label="hub/net: a", n=2))
    paths = draw_variants(resolved, 1, tmp_path)
    assert [path.name for path in paths] == ["trajectories-hub_net__a-1.png"]
    assert draw_variants(resolved, 0, tmp_path) == []
    cap = draw_profiles(resolve(cap_plan(plan(methods, n=1))), 5, tmp_path)
    assert [path.name for path in cap] == ["profiles-digits-1.png"]  # there is one image, not five
    for path in (*paths, *cap):
        with Image.open(path) as picture:
            assert min(picture.size) > 200


def test_figures_are_not_drawn_to_a_url(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    resolved = resolve(plan({"fringe": FRInGe(steps=2, cg_iterations=2)}, n=1))
    with pytest.raises(InputError, match="s3:// is not supported"):
        draw_variants(resolved, 1, Path("s3://bucket/run"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("make", "files"),
    [
        (ablation_study, ["trajectories-digits-1.png"]),
        (cap_study, ["profiles-digits-1.png"]),
        (lambda spec: sweep_study(spec, ["steps=2,3"]), ["sensitivity.png", "sensitivity.csv"]),
    ],
    ids=["ablation", "cap", "sweep"],
)
def test_a_study_is_planned_run_and_drawn_from_python(tmp_path, make, files):
    settings = ["fringe.steps=2", "fringe.cg_iterations=2"]
    study = make(ExperimentSpec(model="embedded:digits", data="embedded:digits", n=1, set=settings))
    results = run_experiment(study.plan, tmp_path / "run")
    assert results.methods("digits", controls=False) == tuple(study.plan.arms[0].methods)
    assert set(results.frame["status"]) == {"ok"}
    paths = draw_study(study, tmp_path / "run", tmp_path / "figures", images=1)
    assert [path.name for path in paths] == files
    assert sorted(tmp_path.joinpath("figures").iterdir()) == sorted(paths)
