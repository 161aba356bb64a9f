"""Experiments with scenes: what is run, stored, resumed, pooled, and refused."""

import json
import sys

import numpy as np
import pytest
import torch
from forked_runs import spawn_quickly
from small_scenes import TwoNetworks

from fringe import InputError
from fringe.bench.experiments import (
    ExperimentSpec,
    RunLog,
    build_plan,
    planned_work_of,
    read_results,
    read_status,
    resolve,
    run_experiment,
)
from fringe.bench.experiments._manifest import open_entry
from fringe.data import digits_samples
from fringe.errors import TransientError

BOTH = {"scene": "colour_counter,patch_and", "methods": "ig", "n": 3, "set": {"ig.steps": 4}}


def counted(spec, out, **options):
    """The results, and how many tasks were missing."""
    tasks = []
    results = run_experiment(spec, out, progress=RunLog(began=lambda _, t: tasks.extend(t)), **options)
    return results, len(tasks)


def test_every_network_is_explained_on_the_examples_of_its_scene(tmp_path):
    results = run_experiment(ExperimentSpec(**BOTH), tmp_path / "run")
    assert results.models == ("colour_counter", "patch_and")
    assert results.metrics == ("mass_inside", "mass_inside:smooth", "rank_accuracy", "expected_hit")
    frame = results.frame
    for model in results.models:
        rows = frame.filter(model=model)
        assert len(rows) == 3 * 7 * 4  # examples, methods and controls, metrics
        assert all(name.startswith(model) for name in rows["image_id"])
        assert rows["status"].cast(str).unique().to_list() == ["ok"]
        assert rows["target"].unique().to_list() == [1]
        assert results.scores(model, "ig", "mass_inside").tolist() == pytest.approx([1.0] * 3)
        chance = {"colour_counter": 12 / 256, "patch_and": 18 / 256}[model]
        assert results.scores(model, "uniform", "mass_inside") == pytest.approx([chance] * 3)
    assert {cell.required for cell in results.cells.values()} == {3}
    assert not results.missing()


def test_fewer_examples_of_a_scene_are_less_work():
    plan = build_plan(ExperimentSpec(**BOTH | {"n": 50, "limits": {"patch_and": 2}}))
    passes = plan.models[0].methods["ig"].planned_passes
    maps = [(cost, count) for what, cost, count in planned_work_of([plan]) if what == "a map by ig"]
    assert maps == [(passes, 50), (passes, 2)]
    scores = {count for what, _, count in planned_work_of([plan]) if what == "the score mass_inside"}
    assert scores == {7 * 50, 7 * 2}  # of ig and six controls


def test_a_run_is_resumed_grows_and_is_the_same_in_memory(tmp_path):
    begun = {**BOTH, "scene": "colour_counter,difull"}
    first, tasks = counted(ExperimentSpec(**begun), tmp_path / "run")
    assert tasks > 0
    assert counted(ExperimentSpec(**begun), tmp_path / "run")[1] == 0
    larger = {**begun, "n": 5, "scene": "patch_and,colour_counter,difull"}
    grown, more = counted(ExperimentSpec(**larger), tmp_path / "run")
    assert more > 0
    memory = run_experiment(ExperimentSpec(**begun))
    for model in first.models:
        for metric in first.metrics:
            before = first.scores(model, "ig", metric)
            assert np.array_equal(before, grown.scores(model, "ig", metric)[:3])
            assert np.array_equal(before, memory.scores(model, "ig", metric))
    assert read_results(tmp_path / "run").scores("difull:digits", "ig", "mass_inside").tolist() == [1.0] * 5


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="needs a fork server")
def test_processes_make_input_and_truth_again_from_plain_data(tmp_path, monkeypatch):
    spawn_quickly(monkeypatch)
    spec = ExperimentSpec(scene="region", methods="ig", n=2, set={"ig.steps": 4}, controls=False)
    apart = run_experiment(spec, tmp_path / "run", executor="processes")
    here = run_experiment(spec)
    for metric in here.metrics:
        one, other = apart.scores("region:digits", "ig", metric), here.scores("region:digits", "ig", metric)
        assert one == pytest.approx(other, abs=1e-6)
    assert here.scores("region:digits", "ig", "region_completeness").max() < 0.1


@pytest.fixture(scope="module")
def grids(tmp_path_factory):
    """A run of two settings of one scene, and its folder: of nine examples, grids of four and of nine cells."""
    limited = {"mass_inside": 3, "rank_accuracy": 2}
    settings = {"nine.cells": 3, "ig.steps": 2}
    spec = ExperimentSpec(scene="four=gridpg,nine=gridpg", methods="ig", n=9, set=settings, limits=limited)
    folder = tmp_path_factory.mktemp("grids") / "run"
    run_experiment(spec, folder)
    return spec, folder, read_results(folder)


def test_two_settings_of_a_scene_share_a_network_and_not_their_examples(grids):
    *_, results = grids
    settings = results.manifest.settings
    assert settings["four:digits"]["ig"] == settings["nine:digits"]["ig"]
    assert len(set(results.clusters("four:digits"))) == 3
    assert len(set(results.clusters("nine:digits"))) == 1
    chance = {"mass_inside": "extra/chance"}
    assert results.details("four:digits", "ig", chance)["mass_inside"][0] == 1 / 4
    assert results.details("nine:digits", "ig", chance)["mass_inside"][0] == 1 / 9


def test_the_rows_of_a_map_are_those_of_its_scene_and_a_limit_counts_in_each(grids):
    spec, folder, results = grids
    images = {model: [image["digest"] for image in results.manifest.images_of(model)] for model in results.models}
    assert len({*images["four:digits"], *images["nine:digits"]}) == 18
    assert not results.missing()
    for model in results.models:
        assert [len(results.clusters(model, metric)) for metric in results.metrics] == [3, 9, 2, 9]
        assert [len(results.scores(model, "ig", metric)) for metric in results.metrics] == [3, 9, 2, 9]
        rows, maps = results.method_frame(model, "ig"), results.map_frame(model, "ig")
        every = rows.filter(metric="expected_hit")
        assert every["image"].cast(str).to_list() == maps["image"].to_list() == images[model]
        for name in ("target", "confidence", "forward", "vjp"):
            assert every[name].to_list() == maps[name].to_list()
        firsts = rows.filter(metric="rank_accuracy")
        assert firsts["image"].cast(str).to_list() == images[model][:2]
        assert firsts["score"].to_list() == results.scores(model, "ig", "rank_accuracy").tolist()
    status = read_status(folder)
    assert {cell["scored"] for cell in status["plans"][results.manifest.name]["cells"]} == {2, 3, 9}
    assert status["invalidated"] == []
    assert counted(spec, folder)[1] == 0


def test_the_key_of_an_example_is_what_makes_it(tmp_path):
    """Where the images lie names nothing, what they show and the settings of the scene do."""

    def keys(**changed):
        spec = ExperimentSpec(**{"scene": "difull", "methods": "ig", "n": 2, **changed})
        return [image["digest"] for image in resolve(build_plan(spec)).manifest.images]

    assert keys() == keys(methods="fringe")
    assert keys() != keys(set={"difull.cell": "last"})
    assert keys() != keys(seed=1)


def test_gates_are_measured_stored_and_mark_a_network(tmp_path):
    results = run_experiment(ExperimentSpec(scene=[TwoNetworks()], methods="ig", n=4), tmp_path / "run")
    assert results.models == ("two_networks-0", "two_networks-1")
    stored = read_results(tmp_path / "run").manifest
    assert [gate["holds"] for model in results.models for gate in stored.gates(model)] == [True, True, True, False]
    assert stored.gates("two_networks-1")[1]["text"] == "largest weight: 1 (at most 0.6): fails"
    assert results.clusters("two_networks-0") == ("c0", "c0", "c1", "c1")
    with pytest.warns(UserWarning, match="^two_networks-1: gate failed, its scores are not to be read") as caught:
        summary = results.summary()
    assert len(caught) == 1
    row = summary.filter(model="two_networks-0", method="edge", metric="mass_inside").row(0, named=True)
    halves = results.scores("two_networks-0", "edge", "mass_inside").reshape(2, 2).mean(1)
    assert (row["low"], row["high"]) == pytest.approx((halves.min(), halves.max()))


def test_an_image_that_changed_is_left_to_the_next_run(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    for sample in digits_samples()[:40]:
        sample.image.save(folder / f"{sample.label}_{sample.id}.png")
    fields = {"scene": "difull", "model": "embedded:digits", "data": str(folder), "methods": "ig", "n": 1}
    spec = ExperimentSpec(**fields, set={"difull.confidence": 0.5})
    resolved = resolve(build_plan(spec))
    entry = resolved.pictures[resolved.manifest.images[0]["digest"]]
    model = build_plan(spec).models[0].load()
    x, truth = open_entry(entry, model, "ignore")
    assert x.shape == (1, *truth.shape)
    path = entry.example.images[1]
    digits_samples()[50].image.save(path)
    with pytest.raises(TransientError, match="an image changed since the run began"):
        open_entry(entry, model, "ignore")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"scene": "gridpgg"}, "did you mean 'gridpg'"),
        ({"scene": "gridpg", "target": 3}, "target: got 3 with a scene"),
        (
            {"scene": "gridpg", "sample": False},
            "sample: got False with a scene, which draws its examples; leave it out",
        ),
        ({"metrics": "mass_inside", "data": "embedded:digits"}, "metrics: mass_inside: it is not known what"),
        ({"scene": "gridpg", "set": {"gridpg.cells": 1}}, "cells: got '1', expected a whole number of at least 2"),
        ({"scene": "gridpg", "set": {"difull.cells": 2}}, "'difull' is not compared here"),
        ({"scene": "gridpg,gridpg"}, "gridpg given twice"),
    ],
)
def test_what_does_not_fit_is_refused(fields, message):
    with pytest.raises(InputError, match=message):
        build_plan(ExperimentSpec(methods="ig", **fields))


def test_a_file_names_scenes_and_their_settings(tmp_path):
    path = tmp_path / "truth.toml"
    path.write_text('scene = ["four=gridpg", "difull:last"]\nmethods = ["ig"]\nn = 2\n[set]\n"four.cells" = 3\n')
    plan = build_plan(ExperimentSpec.from_file(path))
    assert [model.label for model in plan.models] == ["four:digits", "difull:last:digits"]
    assert plan.record()["scenes"]["four"]["cells"] == 3
    assert json.dumps(plan.record())


def test_a_network_of_a_scene_is_loaded_on_the_device_that_is_asked_for():
    plan = build_plan(ExperimentSpec(scene="patch_and", methods="ig", n=1))
    loaded = plan.models[0].load("meta")
    assert {parameter.device for parameter in loaded.module.parameters()} == {torch.device("meta")}


def test_one_scene_under_two_names_is_refused():
    """Its examples have one name each, so that the scores of one of the two would never be found."""
    same = r"scene: a, b are one scene with the same settings; name it once, or change a setting of one$"
    with pytest.raises(InputError, match=same):
        build_plan(ExperimentSpec(scene="a=gridpg:nine,b=gridpg,c=gridpg", set={"b.cells": 3}, methods="ig", n=2))
