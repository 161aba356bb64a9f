"""What a run will take: exact where the probe runs to the end, near where it is stopped, and nothing is written."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from small_plans import digits_plan

from fringe import FRInGe, FringeError, IntegratedGradients
from fringe.attribution import PaperFRInGe
from fringe.bench.experiments import (
    MethodCost,
    Plan,
    PlanModel,
    RunEstimate,
    RunOptions,
    estimate_run,
    read_status,
    run_plan,
)
from fringe.bench.experiments._estimate import Probe, describe_seconds
from fringe.bench.experiments._manifest import resolve
from fringe.bench.experiments._runner import TaskRunner
from fringe.evaluation import CONTROLS
from fringe.evaluation._evaluator import Candidate, make_maps
from fringe.metrics import Deletion, Insertion, MaxSensitivity, Sparseness, get_metric


def study(methods, data=("embedded:digits",), n=2, controls=False, **known):
    model = PlanModel("digits", "embedded:digits", methods)
    metrics = known.pop("metrics", {"sparseness": Sparseness()})
    return Plan("plan", tuple(data), (model,), metrics, n=n, controls=controls, **known)


def spent(plan, method):
    """Passes of the maps of all images, counted."""
    resolved = resolve(plan)
    (subject,) = TaskRunner(resolved).subjects("digits", [image["digest"] for image in resolved.manifest.images])
    classifier = subject.problem.model
    before = replace(classifier.passes)
    with classifier.session(subject.problem.inputs.device):
        make_maps(Candidate("m", method), subject.problem)
    passes = classifier.passes.since(before)
    return passes.forward + passes.jvp + passes.vjp


METHODS = {"fringe": FRInGe(steps=3), "ig": IntegratedGradients(steps=5)}


def test_maps_that_are_finished_cost_what_they_cost():
    plan = study(METHODS)
    told = []
    known = estimate_run(plan, seconds=600, progress=lambda *what: told.append(what))
    assert told == [(0, 2, "measuring fringe"), (1, 2, "measuring ig")]
    assert [(cost.method, cost.tasks, cost.maps) for cost in known.methods] == [("fringe", 1, 2), ("ig", 1, 2)]
    for cost in known.methods:
        assert cost.passes == pytest.approx(spent(plan, METHODS[cost.method]))
        assert (cost.fraction, cost.seconds > 0) == (1.0, True)
    assert known.seconds == sum(cost.seconds for cost in known.methods)
    assert known.metrics.keys() == {"sparseness"}


@pytest.mark.parametrize(
    "method",
    [
        FRInGe(steps=24),
        FRInGe(tau=5e-3),
        PaperFRInGe(tau=5e-3).variant("euclidean"),
        IntegratedGradients(steps=400),
    ],
    ids=["fringe", "fringe of a budget", "euclidean", "ig"],
)
def test_a_map_that_is_stopped_is_told_to_within_a_small_factor(method):
    plan = study({"m": method}, n=1)
    (cost,) = estimate_run(plan, seconds=0.0).methods
    assert 0 < cost.fraction < 0.5
    true = spent(plan, method)
    assert true / 2 <= cost.passes <= 2.5 * true


def test_scores_are_measured_once_for_a_model(monkeypatch):
    counted, score = [], Sparseness.score
    monkeypatch.setattr(Sparseness, "score", lambda self, maps: counted.append(1) or score(self, maps))
    known = estimate_run(study(METHODS, n=1), seconds=600)
    assert len(counted) == 1
    assert known.metrics["sparseness"] > 0


def test_metrics_that_ask_for_maps_cost_those_maps():
    metrics = {"max_sensitivity": MaxSensitivity(samples=50), "sparseness": Sparseness()}
    plan = study({"ig": IntegratedGradients(steps=50)}, n=4, metrics=metrics, limits={"max_sensitivity": 2})
    known = estimate_run(plan, seconds=600)
    (cost,) = known.methods
    assert (cost.tasks, cost.maps) == (2, 4)  # the first two images have a metric more
    without = cost.seconds - known.metrics["max_sensitivity"]
    assert known.metrics["max_sensitivity"] > 5 * without  # a hundred maps beside four


@pytest.mark.parametrize("seconds", [0.0, 600.0], ids=["maps are stopped", "maps are finished"])
def test_a_control_without_passes_has_no_line(seconds):
    known = estimate_run(study(METHODS, controls=True), seconds=seconds)
    assert [cost.method for cost in known.methods] == [
        *(*METHODS, *CONTROLS, "diffusion", "power(1.5):fringe", "centre_prior:fringe"),
    ]
    assert {cost.passes for cost in known.methods if cost.method in CONTROLS} == {0.0}
    assert known.describe().count("passes") == len(METHODS) + 1


def test_what_is_stored_is_not_missing_and_nothing_is_written(tmp_path):
    plan, run = digits_plan(), tmp_path / "run"
    assert len(estimate_run(plan, run).methods) == 7
    assert not run.exists()
    run_plan(plan, run, RunOptions(save_maps=True))
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    nothing = estimate_run(plan, run)
    assert (nothing.methods, nothing.bytes) == ((), 0)
    more = estimate_run(digits_plan(n=6), run)
    assert {(cost.tasks, cost.maps) for cost in more.methods} == {(1, 2)}
    scored = estimate_run(digits_plan(metrics={**plan.metrics, "deletion": Deletion()}), run)
    of_stored_maps = {(cost.tasks, cost.maps, cost.passes) for cost in scored.methods}
    assert of_stored_maps == {(2, 0, 0.0)}
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    assert read_status(run)["plans"].keys() == {"digits"}


def test_the_bytes_are_those_of_the_run(tmp_path):
    metrics = {"sparseness": Sparseness(), "insertion": Insertion(steps=2)}
    plan = digits_plan(n=60, shard=20, metrics=metrics)
    known = estimate_run(plan, tmp_path / "run", seconds=600)
    for save_maps, expected in ((False, known.bytes), (True, known.bytes + known.map_bytes)):
        root = tmp_path / f"maps-{save_maps}"
        run_plan(plan, root, RunOptions(save_maps=save_maps))
        size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
        assert expected == pytest.approx(size, rel=0.3)


def test_an_estimate_is_the_sum_of_what_its_tasks_take(monkeypatch):
    """A probe of known numbers."""
    known_probe = {"bytes": 100, "map_bytes": 10, "cost": lambda method: (2.0, 8.0, 0.5)}
    probe = SimpleNamespace(**known_probe, seconds_of=lambda metric, of_map: of_map / 8)
    monkeypatch.setattr("fringe.bench.experiments._estimate.Probe", lambda *_: probe)
    monkeypatch.setattr("fringe.bench.experiments._estimate.to_json", lambda _: bytes(20))
    monkeypatch.setattr("fringe.bench.experiments._estimate.NEW_BYTES", 1000)
    known = estimate_run(study(METHODS, n=3, shard=2))
    told = [(cost.method, cost.tasks, cost.maps, cost.passes, cost.seconds, cost.fraction) for cost in known.methods]
    assert told == [(method, 2, 3, 24.0, 6.75, 0.5) for method in METHODS]
    assert (known.images, known.seconds, known.metrics) == (3, 2 * 6.75, {"sparseness": 1.5})
    assert (known.bytes, known.map_bytes) == (1000 + 20 + 600, 60)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0123, "0.012 s"), (89, "89 s"), (90, "1.5 min"), (5399, "90 min"), (5400, "1.5 h"), (358200, "100 h")],
)
def test_a_time_has_the_unit_that_a_person_would_use(seconds, text):
    assert describe_seconds(seconds) == text


def test_an_estimate_in_words():
    one = MethodCost("a", "ig", 1, 2, 2500.4, 30.0, 1.0)
    none = MethodCost("a", "edge", 1, 2, 0.0, 0.0, 1.0)
    part = MethodCost("c", "0", 1, 2, 3.0, 1.0, 0.25)
    known = RunEstimate("p", 5, (one, none, part), {"mas": 120.0}, 7200.0, 2_000_000, 1_500_000, "cpu")
    assert known.describe().splitlines() == [
        "p: 5 images; missing tasks: 3",
        "  a ig: 2 maps, 2,500 passes, 30 s",
        "  c 0: 2 maps, 3 passes, 1 s (from 25% of a map)",
        "  scores: mas 2 min",
        "the store grows by 2 MB, with save_maps=True by 3.5 MB",
        "in all about 2 h on cpu, one task after the other",
    ]
    assert "mas" not in replace(known, metrics={}).describe()


def test_an_image_that_cannot_be_explained_is_passed_over(tmp_path):
    for place in range(3):
        values = np.random.default_rng(place).integers(0, 255, (32, 32), dtype=np.uint8)
        Image.fromarray(values).save(tmp_path / f"{place}.png")
    methods = {"ig": IntegratedGradients(steps=2)}
    first = resolve(study(methods, [str(tmp_path)], n=3)).manifest.images[0]["source"]
    with open(first, "rb+") as file:
        file.truncate(60)
    plan = study(methods, [str(tmp_path)], n=3)
    assert resolve(plan).manifest.images[0]["source"] == first
    (cost,) = estimate_run(plan).methods
    one = spent(plan, methods["ig"]) / 2  # of the two that can be read
    assert (cost.maps, cost.passes) == (3, pytest.approx(3 * one))
    run_plan(plan, tmp_path / "run", RunOptions())
    assert estimate_run(plan, tmp_path / "run").methods == ()
    (again,) = estimate_run(plan, tmp_path / "run", retry=True).methods
    assert (again.tasks, again.maps) == (1, 1)
    with pytest.raises(FringeError, match="cannot be decoded"):
        estimate_run(study(methods, [first], n=1))


@pytest.mark.parametrize(
    ("metric", "maps"),
    [("max_sensitivity", 10), ("random_logit", 1), ("efficient_mprt", 1), ("mprt", 8), ("region_completeness", 1)],
)
def test_further_maps_are_as_many_as_the_metric_asks_for(metric, maps):
    plan = study({"ig": IntegratedGradients(steps=2)}, n=1, metrics={metric: get_metric(metric)})
    probe = Probe(resolve(plan), "digits", RunOptions(), 600)
    assert probe.seconds_of(metric, 2.0) == 2.0 * maps
