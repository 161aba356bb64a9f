"""A metric that is added later scores the maps that were kept: the same rows, and no map made again."""

import sys
from dataclasses import fields, replace

import pytest
import torch
from forked_runs import spawn_quickly
from PIL import Image
from small_plans import all_rows, digits_plan, models
from typer.testing import CliRunner

from fringe import FRInGe, IntegratedGradients, SmoothGrad
from fringe.bench.experiments import ProcessExecutor, RunOptions, read_results, run_plan
from fringe.bench.experiments._manifest import resolve
from fringe.bench.experiments._runner import TaskRunner
from fringe.bench.experiments._store import Store
from fringe.bench.experiments._tasks import pending_tasks
from fringe.cli import app
from fringe.metrics import (
    MPRT,
    CompletenessResidual,
    EfficientMPRT,
    EndpointKL,
    Insertion,
    MaxSensitivity,
    RandomLogit,
    Sparseness,
)

METHODS = {"fringe": FRInGe(tau=0.1), "sg": SmoothGrad(samples=3)}
FIRST = {"sparseness": Sparseness()}
LATER = {
    "insertion": Insertion(),
    "completeness_residual": CompletenessResidual(),
    "endpoint_kl": EndpointKL(),
    "max_sensitivity": MaxSensitivity(samples=2),
}
COSTS = ("seconds",)
"""What no two runs have in common."""


def asked(metrics, **changed):
    return digits_plan(**{"models": models(**METHODS), "metrics": metrics, "n": 2, "shard": 1, **changed})


@pytest.fixture
def made(monkeypatch):
    """The images that maps of FRInGe were made of, in order."""
    found = []
    honest = FRInGe.attribute

    def noted(self, problem):
        found.extend(problem.keys)
        return honest(self, problem)

    monkeypatch.setattr(FRInGe, "attribute", noted)
    return found


def rows(folder):
    return list(all_rows(Store(folder, create=False)).values())


def table(folder):
    left_out = dict.fromkeys(COSTS, 0.0)
    return {row.key: replace(row, **left_out) for row in rows(folder)}


def maps_of(done):
    """The maps that were made for a task, by image."""
    return {one.image: one.map for one in done.results if one.map is not None}


def as_told(row):
    """A row, NaN equal to NaN."""
    return {f.name: repr(getattr(row, f.name)) for f in fields(row)}


def test_kept_maps_give_the_rows_of_a_run_that_asked_for_all_at_once(tmp_path, made):
    run_plan(asked({**FIRST, **LATER}), tmp_path / "whole", RunOptions())
    whole = table(tmp_path / "whole")
    run_plan(asked(FIRST), tmp_path / "run", RunOptions(save_maps=True))
    made.clear()
    cheap = {name: metric for name, metric in LATER.items() if name != "max_sensitivity"}
    run_plan(asked({**FIRST, **cheap}), tmp_path / "run", RunOptions())
    assert made == []
    run_plan(asked({**FIRST, **LATER}), tmp_path / "run", RunOptions())
    assert len(made) == 2 * 2 * 2  # of moved inputs alone, by FRInGe and its control diffusion
    found = table(tmp_path / "run")
    assert found.keys() == whole.keys()
    assert len(found) == (2 + 7) * 5 * 2
    for key, row in found.items():
        assert as_told(row) == as_told(whole[key])


@pytest.mark.skipif(sys.platform != "linux", reason="needs a fork server")
@pytest.mark.thorough
def test_metrics_that_make_maps_of_random_networks(tmp_path, monkeypatch):
    """The same rows from kept maps and from a worker process, each with its own copies of the random networks."""
    spawn_quickly(monkeypatch)
    later = {"mprt": MPRT(stages=2), "efficient_mprt": EfficientMPRT(), "random_logit": RandomLogit()}
    two = {"models": models(ig=IntegratedGradients(steps=4)), "n": 2}
    plan = digits_plan(**two, metrics={**FIRST, **later})
    run_plan(plan, tmp_path / "whole", RunOptions(executor=ProcessExecutor(1)))
    run_plan(digits_plan(**two, metrics=FIRST), tmp_path / "run", RunOptions(save_maps=True))
    run_plan(plan, tmp_path / "run", RunOptions())
    found, whole = table(tmp_path / "run"), table(tmp_path / "whole")
    assert found.keys() == whole.keys()
    assert len(found) == 4 * 7 * 2
    for key, row in found.items():
        assert as_told(row) == as_told(whole[key])
    edge = {row.metric: row.score for row in found.values() if row.method == "edge"}
    assert (edge["mprt"], edge["efficient_mprt"], edge["random_logit"]) == (1.0, 0.0, 1.0)


def test_without_kept_maps_they_are_made_again(tmp_path, made):
    run_plan(asked(FIRST), tmp_path, RunOptions())
    made.clear()
    run_plan(asked({**FIRST, "insertion": Insertion()}), tmp_path, RunOptions(save_maps=True))
    assert len(made) == 2 * 2  # by FRInGe and its control diffusion
    run_plan(asked({**FIRST, "insertion": Insertion(), "deletion": Insertion(steps=4)}), tmp_path, RunOptions())
    assert len(made) == 2 * 2  # by FRInGe and its control diffusion


def test_one_image_more_makes_its_own_map_alone(tmp_path, made):
    run_plan(asked(FIRST, controls=False, shard=8), tmp_path, RunOptions(save_maps=True))
    made.clear()
    more = asked({**FIRST, "insertion": Insertion()}, controls=False, shard=8, n=3)
    run_plan(more, tmp_path, RunOptions(save_maps=True))
    assert len(made) == 1
    assert {row.metric for row in rows(tmp_path)} == {"sparseness", "insertion"}


def test_images_without_a_sound_map_keep_their_reason(tmp_path, monkeypatch):
    """A map with NaN is kept and stays unscored; an image that could not be read is tried again."""
    honest = IntegratedGradients.attribute

    def breaking(self, problem):
        found = honest(self, problem)
        values = found.values.clone()
        values[0] = torch.nan
        return replace(found, values=values)

    monkeypatch.setattr(IntegratedGradients, "attribute", breaking)
    for number in range(3):
        Image.new("L", (8, 8), 60 * number + 20).save(tmp_path / f"{number}.png")
    (tmp_path / "2.png").write_bytes(b"\x89PNG no more")
    out, data = tmp_path / "out", {"data": (str(tmp_path),), "controls": False, "n": 3, "shard": 3}
    one = {"models": models(ig=IntegratedGradients(steps=4)), **data}
    run_plan(digits_plan(**one, metrics=FIRST), out, RunOptions(save_maps=True))
    monkeypatch.setattr(IntegratedGradients, "attribute", honest)
    run_plan(digits_plan(**one, metrics={**FIRST, "insertion": Insertion()}), out, RunOptions())
    outcome = {}
    for row in rows(out):
        outcome.setdefault(row.metric, []).append((row.status, row.score is None))
    assert sorted(outcome["sparseness"]) == [("not_finite", True), ("ok", False), ("unreadable", True)]
    assert sorted(outcome["insertion"]) == sorted(outcome["sparseness"])


def test_a_map_of_another_class_is_made_again(made):
    """As rounding on another device may have it, where two classes are as likely."""
    resolved = resolve(asked(FIRST, controls=False, n=2))
    unit = pending_tasks(resolved.manifest, (), 2)[0]
    runner = TaskRunner(resolved, save_maps=True)
    kept = maps_of(runner.perform(unit))
    assert len(made) == 2
    assert maps_of(runner.perform(unit, kept)) == {}
    assert len(made) == 2
    first, second = kept
    other = replace(kept[second], metadata={**kept[second].metadata, "target": 9 - kept[second].metadata["target"]})
    assert maps_of(runner.perform(unit, {**kept, second: other})).keys() == {first, second}
    assert len(made) == 4


@pytest.mark.parametrize("lost", ["a flipped bit", "a missing file", "an empty file"])
def test_a_lost_map_shows_in_the_status_and_the_same_command_makes_it_again(tmp_path, made, lost):
    plan, keep = asked(FIRST, controls=False), RunOptions(save_maps=True)
    first = run_plan(plan, tmp_path, keep)
    (path, *_) = sorted(tmp_path.glob("maps/*/*.safetensors"))
    content = path.read_bytes()
    if lost == "a missing file":
        path.unlink()
    else:
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]) if lost == "a flipped bit" else b"")
    status = CliRunner().invoke(app, ["status", str(tmp_path)])
    assert (status.exit_code, "1 stored map of " in status.output) == (75, True)
    made.clear()
    again = run_plan(plan, tmp_path, RunOptions())  # whether or not it stores others
    assert [(len(report.task.images), report.task.metrics) for report in again.log.reports] == [(1, ())]
    assert CliRunner().invoke(app, ["status", str(tmp_path)]).exit_code == 0
    assert run_plan(plan, tmp_path, keep).log.reports == []
    store = Store(tmp_path, create=False)
    assert sum(read_results(store).versions["fringe"].values()) == 2 * len(METHODS)
    for method in METHODS:
        setting = first.resolved.manifest.setting_key("digits", method)
        assert len(store.load_maps(setting, [image["digest"] for image in first.resolved.manifest.images])) == 2


def test_a_lost_map_of_an_image_that_lacks_a_score_is_made_once(tmp_path, made):
    run_plan(asked(FIRST, controls=False), tmp_path, RunOptions(save_maps=True))
    for path in tmp_path.glob("maps/*/*.safetensors"):
        path.unlink()
    made.clear()
    run_plan(asked({**FIRST, "insertion": Insertion()}, controls=False), tmp_path, RunOptions())
    assert len(made) == 2
    assert len(list(tmp_path.glob("maps/*/*.safetensors"))) == 2 * 2
