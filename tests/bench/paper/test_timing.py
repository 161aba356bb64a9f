"""Run times: the passes are those of the maps, images take turns, and what cannot be explained is left out."""

import json
import math

import numpy as np
import pytest
import torch
from PIL import Image

from fringe import FRInGe, FringeError, IntegratedGradients, attribute
from fringe.baselines import InputSpace
from fringe.bench.experiments import ExperimentSpec, ModelSource, Plan, PlanModel, build_plan
from fringe.bench.experiments._manifest import resolve
from fringe.bench.paper import _timing
from fringe.bench.paper._timing import (
    Timing,
    cache_key,
    device_name,
    measure_runtimes,
    read_timings,
    slowdowns,
    timing_records,
)
from fringe.classifier import Classifier
from fringe.inputs import prepare
from fringe.metrics import Sparseness
from fringe.paths import Problem, verify

METHODS = {"fringe": FRInGe(steps=2), "ig": IntegratedGradients(steps=3)}


def study(data=("embedded:digits",), n=3, preprocessing=None, methods=METHODS, **more):
    model = PlanModel("digits", ModelSource("embedded:digits", preprocessing), methods)
    return resolve(Plan("runtime", tuple(data), (model,), {"sparseness": Sparseness()}, n=n, controls=False, **more))


def passes(counts):
    return counts.forward, counts.jvp, counts.vjp


def checked(module, x, method):
    """A classifier that was verified for the images: a call spends one pass for the logits, the rest for the map."""
    classifier = Classifier(module, batch_size=1)
    with classifier.session(x.device):
        problem = Problem.of(classifier, x)
        verify(problem, {method.jvp_use(problem)})
    return classifier


def of_attribute(resolved, label, **options):
    """Passes of each image's map by the library's own call, without the logits."""
    model = resolved.plan.models[0]
    loaded, found = model.source.load(), []
    for image in resolved.manifest.images:
        x = prepare(resolved.pictures[image["digest"]].ref, loaded.preprocessing, "ignore")[None]
        spent = attribute(
            checked(loaded.module, x, model.methods[label]),
            x,
            method=model.methods[label],
            ids=[image["digest"]],
            seed=resolved.plan.seed,
            space=InputSpace(*loaded.preprocessing.bounds()),
            **options,
        ).passes
        found.append(np.subtract(passes(spent), (1, 0, 0)))
    return np.mean(found, 0)


@pytest.mark.parametrize("target", ["predicted", 3])
def test_the_passes_are_those_of_the_maps_that_attribute_makes(target):
    resolved = study(seed=5, target=target)
    found = {(t.method, t.mode): t for t in measure_runtimes(resolved)}
    assert list(found) == [("fringe", "sequential"), ("ig", "sequential"), ("fringe", "batched"), ("ig", "batched")]
    for label in METHODS:
        timing = found[label, "sequential"]
        assert passes(timing) == pytest.approx(tuple(of_attribute(resolved, label, target=target)), abs=1e-12)
        assert (timing.n, timing.model) == (3, "digits")
        assert timing.seconds > 0
        assert timing.half >= 0
        assert math.isnan(found[label, "batched"].half)
    assert passes(found["ig", "sequential"]) == passes(found["ig", "batched"])  # the path of ig depends on nothing
    assert found["ig", "batched"].vjp == 3.0


def test_a_network_of_a_scene_is_timed_on_the_examples_of_its_scene():
    spec = ExperimentSpec(scene="colour_counter,patch_and", methods="ig", n=2, set={"ig.steps": 2}, controls=False)
    timings = measure_runtimes(resolve(build_plan(spec)))
    assert {(timing.model, timing.n) for timing in timings} == {("colour_counter", 2), ("patch_and", 2)}


def test_labels_explain_labels():
    resolved = study(target="label", n=2, methods={"ig": IntegratedGradients(steps=2)})
    assert [t.n for t in measure_runtimes(resolved)] == [2, 2]


def test_methods_take_turns_on_each_image_after_a_start_that_is_nobodys_time(monkeypatch):
    real, calls = _timing.make_maps, []

    def spy(entrant, problem):
        size = problem.model.batch_size.on(problem.inputs.device)
        calls.append((entrant.label, problem.ids, problem.progress is not None, size))
        return real(entrant, problem)

    monkeypatch.setattr(_timing, "make_maps", spy)
    resolved = study(n=2)
    measure_runtimes(resolved, batch_size=7)
    one, two = ((image["digest"],) for image in resolved.manifest.images)
    assert [(label, ids, warm) for label, ids, warm, _ in calls] == [
        ("fringe", one, True),
        ("fringe", one, False),
        ("ig", one, True),
        ("ig", one, False),
        ("fringe", two, False),
        ("ig", two, False),
        ("fringe", one + two, True),
        ("fringe", one + two, False),
        ("ig", one + two, True),
        ("ig", one + two, False),
    ]
    assert {size for *_, size in calls[:6]} == {1}
    assert {size for *_, size in calls[6:]} == {7}


def grey(path, size):
    Image.fromarray(np.random.default_rng(ord(path.stem)).integers(0, 255, size, dtype=np.uint8)).save(path)


def test_images_of_several_sizes_are_timed_and_broken_ones_left_out(tmp_path, monkeypatch):
    real, calls = _timing.make_maps, []

    def spy(entrant, problem):
        calls.append((len(problem.inputs), problem.progress is not None))
        return real(entrant, problem)

    monkeypatch.setattr(_timing, "make_maps", spy)
    for name, size in {"a": (16, 16), "b": (24, 16), "c": (16, 16)}.items():
        grey(tmp_path / f"{name}.png", size)
    (tmp_path / "d.png").write_bytes((tmp_path / "a.png").read_bytes()[:40])
    resolved = study([str(tmp_path)], 4, "channels=1,mean=0.3,std=0.35", {"ig": IntegratedGradients(steps=2)})
    found = measure_runtimes(resolved)
    assert [(t.mode, t.n) for t in found] == [("sequential", 3), ("batched", 3)]
    assert [passes(t) for t in found] == [passes(found[0])] * 2
    assert calls[:4] == [(1, True), *[(1, False)] * 3]  # one start for all images alone
    assert sorted(calls[4:]) == [(1, False), (1, True), (2, False), (2, True)]  # one for each batch of a size
    (tmp_path / "only").mkdir()
    (tmp_path / "only" / "d.png").write_bytes((tmp_path / "d.png").read_bytes())
    with pytest.raises(FringeError, match=r"images: .*d.png"):
        measure_runtimes(study([str(tmp_path / "only")], 1))


def timing(method="fringe", mode="sequential", seconds=1.0, model="a", half=0.25):
    return Timing(model, method, mode, seconds, half, 4, 1.5, 2.0, 3.0, "CPU")


def test_a_slowdown_is_a_ratio_of_seconds_of_one_model_and_mode():
    found = [timing(seconds=6.0), timing("ig", seconds=1.5), timing(mode="batched"), timing(model="b")]
    assert slowdowns(found, "fringe") == {("a", "sequential"): 4.0}
    assert slowdowns(found, "agi") == {}


def test_a_record_is_json_and_comes_back():
    before = [timing(), timing(mode="batched", half=math.nan)]
    plain = json.loads(json.dumps(timing_records(before), allow_nan=False))
    assert plain[1]["half"] is None
    again = read_timings(plain)
    assert again[0] == before[0]
    assert (again[1].mode, math.isnan(again[1].half), again[1].forward) == ("batched", True, 1.5)


def test_times_are_of_one_setting_image_and_machine():
    resolved = study()
    name = cache_key(resolved, "digits", "cpu", "auto")
    assert cache_key(study(), "digits", "cpu", "auto") == name
    others = {
        cache_key(resolved, "digits", "cpu", 4),
        cache_key(study(n=2), "digits", "cpu", "auto"),
        cache_key(study(target=3), "digits", "cpu", "auto"),
        cache_key(study(methods={**METHODS, "ig": IntegratedGradients(steps=4)}), "digits", "cpu", "auto"),
    }
    assert len(others - {name}) == 4
    assert device_name("cpu") == f"CPU, {torch.get_num_threads()} threads"
