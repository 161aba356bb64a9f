"""A search over the store: on images that no benchmark meets, resumable, and its best setting written down."""

import errno
import os
import sqlite3
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, ClassVar

import numpy as np
import pytest
from PIL import Image

import fringe
from fringe import FRInGe, FringeError, InputError, IntegratedGradients
from fringe.attribution import Attributor, read_preset
from fringe.bench import tune as _tuning
from fringe.bench.experiments import (
    ExperimentSpec,
    Interrupted,
    Plan,
    PlanModel,
    RunLog,
    RunOptions,
    Store,
    build_plan,
    read_results,
)
from fringe.bench.experiments import _run as engine
from fringe.bench.experiments._manifest import resolve
from fringe.bench.tune import TRIAL, TuneSpec, search_plan, tune_preset, tuning_plan
from fringe.bench.tuning import OBJECTIVE, Trial, Tuned, objective, space_of
from fringe.errors import TransientError
from fringe.inputs import _sampling as experiment_images
from fringe.inputs import sample_images
from fringe.metrics import Deletion, Infidelity, Insertion, Sparseness
from fringe.settings import PositiveInt, Search

METRICS = {"insertion": Insertion(steps=4), "deletion": Deletion(steps=4), "infidelity": Infidelity(samples=2)}


def plan(method=None, data=("embedded:digits",), n=2, **known):
    method = method or IntegratedGradients(steps=3)
    model = PlanModel("net", "embedded:digits", {"mine": method})
    return Plan("benchmark", tuple(data), (model,), {**METRICS, "sparseness": Sparseness()}, n=n, **known)


def steps(trials, low=2, high=40):
    return space_of(IntegratedGradients, {"steps": (low, high)}), trials


def test_a_trials_plan_is_scored_by_the_objective_on_the_end_of_the_order():
    before = plan(limits={"sparseness": 1}, seed=3)
    found = tuning_plan(before)
    assert (found.name, found.holdout, found.controls, found.limits, found.n) == ("tune", True, False, {}, 2)
    assert found.metrics == METRICS
    assert tuple(found.metrics) == OBJECTIVE
    with pytest.raises(InputError, match="got 2, expected one"):
        tuning_plan(replace(before, models=(*before.models, replace(before.models[0], label="other"))))
    with pytest.raises(InputError, match="scene: a search needs images that no other plan uses"):
        tuning_plan(build_plan(ExperimentSpec(scene="patch_and", methods="fringe", n=2)))


@pytest.mark.parametrize("seed", [0, 7])
def test_no_benchmark_of_the_seed_draws_its_images(seed):
    tuned = {image["digest"] for image in resolve(tuning_plan(plan(n=60, seed=seed))).manifest.images}
    drawn = {picture.digest for picture in sample_images(["embedded:digits"], 300, seed).pictures}
    assert (len(tuned), len(drawn), tuned & drawn) == (60, 300, set())
    for other in (0, 7, 8):  # whatever the seed, a benchmark with the preset leaves them out
        left = {picture.digest for picture in sample_images(["embedded:digits"], 300, other, tuned).pictures}
        assert (len(left), left & tuned) == (300, set())


def test_the_best_of_the_trials_is_written_with_what_it_was_tuned_on(tmp_path):
    reported = []
    found = tune_preset(
        plan(seed=2),
        tmp_path,
        RunOptions(),
        *steps(3),
        progress=lambda trial, done, all: reported.append((trial, done, all)),
    )
    assert [(trial.number, done, every) for trial, done, every in reported] == [(0, 1, 3), (1, 2, 3), (2, 3, 3)]
    assert found.path == tmp_path / "digits.preset.json"
    method, about = read_preset(found.path, "digits")
    assert method == found.best
    manifest = resolve(tuning_plan(plan(seed=2))).manifest
    assert about == {
        **{"architecture": "digits", "weights": manifest.models["net"]["weights"], "objective": found.value},
        **{"images": [image["digest"] for image in manifest.images], "trials": 3, "seed": 2},
        "version": fringe.__version__,
    }
    assert found.value == max(trial.value for trial, *_ in reported)
    assert reported[0][0].settings == {"steps": 3}  # the setting that was given comes first

    results = read_results(Store(tmp_path), "tune")  # the folder's plan is the best setting's
    assert results.manifest.settings["net"][TRIAL]["method"] == {**method.record()}
    scores = {name: results.scores("net", TRIAL, name) for name in OBJECTIVE}
    assert objective(*scores.values()) == pytest.approx(found.value, rel=1e-12)


@dataclass(frozen=True)
class Mine(Attributor):
    """A method that nobody registered."""

    name: ClassVar[str] = "mine"
    steps: Annotated[PositiveInt, Search(2, 9)] = 3

    def attribute(self, problem):
        raise AssertionError("nothing is computed")


def test_a_preset_that_could_not_be_written_is_said_before_the_search(tmp_path):
    with pytest.raises(InputError, match="'mine' is no registered method"):
        tune_preset(plan(Mine()), tmp_path / "a", RunOptions(), space_of(Mine), 2)
    found = tune_preset(plan(), tmp_path / "b", RunOptions(), *steps(1))
    before = found.path.read_bytes()
    with pytest.raises(InputError, match=r"json holds the result of another search, of ig with seed 0; name"):
        tune_preset(plan(FRInGe(steps=2)), tmp_path / "b", RunOptions(), space_of(FRInGe, {"tau": None}), 1)
    assert found.path.read_bytes() == before


def test_a_search_that_was_stopped_goes_on_where_it_was(tmp_path, monkeypatch):
    real, calls = engine.run_tasks, []

    def stop(runner, store, units, account, executor):
        calls.append([unit.method for unit in units])
        if len(calls) == 3:
            raise Interrupted("interrupted (SIGTERM)")
        real(runner, store, units, account, executor)

    with monkeypatch.context() as patch:
        patch.setattr(engine, "run_tasks", stop)
        with pytest.raises(Interrupted):
            tune_preset(plan(), tmp_path / "a", RunOptions(), *steps(4))
    resumed = tune_preset(plan(), tmp_path / "a", RunOptions(), *steps(4))
    whole = tune_preset(plan(), tmp_path / "b", RunOptions(), *steps(4))
    known = [[(t.number, t.settings, t.value) for t in found.trials] for found in (resumed, whole)]
    assert known[0] == known[1]
    assert len(known[0]) == 4
    again = []
    with monkeypatch.context() as patch:
        patch.setattr(engine, "run_tasks", lambda runner, store, units, *rest: again.extend(units))
        assert tune_preset(plan(), tmp_path / "a", RunOptions(), *steps(4)).trials == whole.trials
    assert again == []


def test_an_image_without_a_score_fails_the_trial_with_its_reason(tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    Image.fromarray(np.full((32, 32), 90, dtype=np.uint8)).save(folder / "a.png")
    (folder / "b.png").write_bytes((folder / "a.png").read_bytes()[:50])
    message = r"none of 2 trials succeeded; the first: 1 of 2 images have no score \('.*b.png': cannot be decoded"
    with pytest.raises(FringeError, match=message):
        tune_preset(plan(data=[str(folder)]), tmp_path / "run", RunOptions(), *steps(2))


def test_the_text_says_how_many_trials_failed():
    trials = [Trial(k, {}, value, problem) for k, value, problem in ((0, 0.5, ""), (1, float("nan"), "no score"))]
    for known, text in ((trials, "best of 2 trials, of which 1 failed: 0.5000 ("), (trials[:1], "best of 1 trial: ")):
        found = Tuned(FRInGe(), 0.5, tuple(known), "preset.json")
        assert found.describe().startswith(text)


def test_images_that_go_away_amid_a_search_fail_no_trial(tmp_path):
    folder, away = tmp_path / "images", tmp_path / "away"
    folder.mkdir()
    for number in range(2):
        Image.fromarray(np.full((32, 32), 90 + number, dtype=np.uint8)).save(folder / f"{number}.png")
    asked, out, real = plan(data=[str(folder)]), tmp_path / "run", _tuning.run_plan

    def run_without(trial_plan, root, how, **more):
        """The images go away between the plan and its units."""
        return real(trial_plan, root, how, RunLog(began=lambda resolved, units: folder.rename(away)), **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_tuning, "run_plan", run_without)
        with pytest.raises(TransientError, match=r"images have no score yet .*does not exist"):
            tune_preset(asked, out, RunOptions(), *steps(2))
    away.rename(folder)
    found = tune_preset(asked, out, RunOptions(), *steps(2))
    assert [trial.problem for trial in found.trials] == ["", ""]
    whole = tune_preset(asked, tmp_path / "whole", RunOptions(), *steps(2))
    assert (found.best, found.trials) == (whole.best, whole.trials)


class NoTasks(sqlite3.Connection):
    """A file that takes no row."""

    def executemany(self, sql, *values):
        if sql.startswith("INSERT INTO result"):
            raise sqlite3.OperationalError("disk I/O error")
        return super().executemany(sql, *values)


@pytest.mark.parametrize("name", ["EIO", "ENOSPC"])
def test_a_disk_that_fails_amid_a_search_fails_no_trial(tmp_path, monkeypatch, name):
    """SQLite says no more than that it failed; a write of our own says why."""

    def fails(**_):
        raise OSError(getattr(errno, name), os.strerror(getattr(errno, name)))

    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=NoTasks))
        patch.setattr(tempfile, "TemporaryFile", fails)
        for _ in range(3):
            told = "no space left" if name == "ENOSPC" else os.strerror(getattr(errno, name))
            with pytest.raises(Interrupted, match=f"{told}.*nothing that was computed before is lost"):
                tune_preset(plan(), tmp_path / "run", RunOptions(), *steps(2))
    found = tune_preset(plan(), tmp_path / "run", RunOptions(), *steps(2))
    assert [trial.problem for trial in found.trials] == ["", ""]


def test_another_search_in_the_folder_is_scored_on_what_it_asks_for(tmp_path):
    tune_preset(plan(), tmp_path / "a", RunOptions(), *steps(2))
    for asked in (plan(n=3), plan(IntegratedGradients(steps=5))):
        found = tune_preset(asked, tmp_path / "a", RunOptions(), *steps(2))
        alone = tune_preset(asked, tmp_path / "b", RunOptions(), *steps(2))
        assert [one.settings for one in found.trials] == [one.settings for one in alone.trials]
        assert found.value == pytest.approx(alone.value, rel=1e-5)  # some images were computed in other batches


def test_a_trial_reads_neither_the_model_nor_the_images_nor_the_trials_before_it(tmp_path, monkeypatch):
    """What is loaded, opened and checked does not grow with the number of trials, and each task is read once."""
    calls = Counter()

    def count(owner, name):
        real = getattr(owner, name)

        def call(*given, **named):
            calls[name] += 1
            return real(*given, **named)

        monkeypatch.setattr(owner, name, call)

    for owner, name in (
        (experiment_images, "prepare"),
        (PlanModel, "load"),
        (Store, "clean"),
        (Store, "_open"),
        (Store, "_read"),
    ):
        count(owner, name)
    known = dict[int, Counter[str]]()
    for trials in (3, 6):
        tune_preset(plan(), tmp_path / str(trials), RunOptions(), *steps(trials))
        known[trials] = calls.copy()
        calls.clear()
    tasks = {trials: once.pop("_read") for trials, once in known.items()}
    assert tasks == {3: 3, 6: 6}
    assert known[3] == known[6]
    assert known[3]["_open"] == 1


def test_a_search_is_of_the_first_method_on_other_images_and_names_what_it_does_not_use():
    assert search_plan(TuneSpec()).models[0].methods == {"fringe": FRInGe()}
    assert search_plan(TuneSpec()).n == 256
    given = {"methods": "mine=ig,fringe", "metrics": "sparseness", "n": 3, "set": ["insertion.steps=3"]}
    with (
        pytest.warns(UserWarning, match="^metrics: not used; a search is scored by insertion"),
        pytest.warns(UserWarning, match="^fringe: not used; the search is of mine"),
    ):
        found = search_plan(TuneSpec(**given))
    assert found.models[0].methods == {"mine": IntegratedGradients()}
    assert (found.name, found.n, found.holdout, tuple(found.metrics)) == ("tune", 3, True, OBJECTIVE)
    assert found.metrics["insertion"] == Insertion(steps=3)
    with pytest.raises(InputError, match="got 2, expected one"):
        search_plan(TuneSpec(model=["a=embedded:digits", "b=embedded:digits"]))
