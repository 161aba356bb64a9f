"""Trouble that may pass is no result: what it kept from being computed is left to the next run of the same plan. What
will not pass is recorded."""

import sys
from collections import Counter
from dataclasses import replace

import pytest
from forked_runs import spawn_quickly
from poison_methods import Troubled
from small_plans import IG, digits_plan, models, net_file, pictures, small
from synthetic_units import table

from fringe import ExpectedGradients
from fringe.bench.experiments import RunLog, RunOptions, run_plan
from fringe.bench.experiments._executors import ProcessExecutor
from fringe.bench.experiments._manifest import resolve
from fringe.bench.experiments._plan import PlanModel
from fringe.bench.experiments._results import Results
from fringe.bench.experiments._store import Store
from fringe.errors import FringeError, TransientError
from fringe.metrics import Insertion, Sparseness

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs a fork server")
PASSES = ("memory", "numpy", "torch", "allocator", "disk", "file", "wrapped", "nested")
STAYS = ("bug", "data", "shape")


def cells(out, finished):
    return [
        (cell.scored, cell.failed, cell.missing)
        for cell in Results(finished.resolved.manifest, Store(out)).cells.values()
    ]


def test_what_may_pass_is_left_to_the_next_run_and_what_will_not_is_recorded(tmp_path):
    cure, out = tmp_path / "cure", tmp_path / "run"
    troubled = {name: Troubled(name, str(cure)) for name in (*PASSES, *STAYS)}
    plan = small(models=models(**troubled, ig=IG))
    first = run_plan(plan, out, RunOptions())
    assert (first.stopped, first.log.left, first.failed, first.partial) == (None, 2 * 8, 2 * 2 * 3, True)
    assert {(one["method"], one["images"]) for one in first.left} == {(name, 2) for name in PASSES}
    assert all(one["reason"] for one in first.left)
    lost, failed, scored = (0, 0, 2), (0, 2, 0), (2, 0, 0)
    assert cells(out, first) == [lost] * 2 * 8 + [failed] * 2 * 3 + [scored] * 2  # two metrics of each method
    assert {row.method for row in table(Store(out)).values()} == {*STAYS, "ig"}
    cure.touch()
    second = run_plan(plan, out, RunOptions())
    assert (second.log.count("done"), second.log.left, second.failed) == (2 * 8, 0, 2 * 2 * 3)
    assert cells(out, second) == [scored] * 2 * 8 + [failed] * 2 * 3 + [scored] * 2


@pytest.mark.parametrize("save_maps", [False, True])
def test_an_image_that_a_method_refuses_does_not_cost_the_others_theirs(tmp_path, monkeypatch, save_maps):
    data = {"data": (str(pictures(tmp_path / "data")),), "controls": False, "shard": 4}
    plan, options = digits_plan(models=models(ig=IG), **data), RunOptions(save_maps=save_maps)
    assert not run_plan(plan, tmp_path / "whole", options).partial
    undisturbed, honest = table(Store(tmp_path / "whole")), type(IG).attribute
    refused = resolve(plan).manifest.images[2]["digest"]

    def refusing(self, problem):
        if refused in problem.keys:
            raise KeyError("waypoint")
        return honest(self, problem)

    monkeypatch.setattr(type(IG), "attribute", refusing)
    first = run_plan(plan, tmp_path / "run", options)
    assert (first.log.left, first.failed) == (0, 2)
    rows = table(Store(tmp_path / "run"))
    assert {row.image for row in rows.values() if row.status != "ok"} == {refused}
    assert {row.error for row in rows.values() if row.status != "ok"} == {"KeyError: 'waypoint'"}
    close = {key: pytest.approx(row.score, rel=1e-5) for key, row in undisturbed.items() if row.image != refused}
    assert {key: row.score for key, row in rows.items() if row.status == "ok"} == close
    monkeypatch.setattr(type(IG), "attribute", honest)
    assert not run_plan(plan, tmp_path / "run", RunOptions(save_maps=save_maps, retry=True)).partial


def test_a_method_that_has_no_memory_for_all_images_of_a_unit_makes_one_map_after_the_other(tmp_path, monkeypatch):
    """Else the same command would never come to an end."""
    honest = type(IG).attribute

    def hungry(self, problem):
        if len(problem.inputs) > 1:
            raise MemoryError
        return honest(self, problem)

    monkeypatch.setattr(type(IG), "attribute", hungry)
    finished = run_plan(digits_plan(shard=4, controls=False), tmp_path / "run", RunOptions())
    assert (finished.log.left, finished.failed, finished.partial) == (0, 0, False)
    assert {row.status for row in table(Store(tmp_path / "run")).values()} == {"ok"}


def test_a_metric_that_fails_leaves_no_failure_to_one_that_is_added_later(tmp_path, monkeypatch):
    def failing(self, maps):
        raise FringeError("sparseness: not here")

    monkeypatch.setattr(Sparseness, "score", failing)
    plan, out = small(metrics={"sparseness": Sparseness()}), tmp_path / "run"
    assert run_plan(plan, out, RunOptions(save_maps=True)).failed == 2
    more = replace(plan, metrics={**plan.metrics, "insertion": Insertion()})
    finished = run_plan(more, out, RunOptions(save_maps=True))
    assert cells(out, finished) == [(0, 2, 0), (2, 0, 0)]


def test_what_another_run_computes_again_meanwhile_is_not_computed_twice(tmp_path):
    plan = small(models=models(troubled=Troubled("bug", str(tmp_path / "cure")), ig=IG))
    out = tmp_path / "run"
    assert run_plan(plan, out, RunOptions()).failed == 2 * 2
    (tmp_path / "cure").touch()
    again, more, others = RunOptions(retry=True), replace(plan, n=3), []
    meanwhile = RunLog(lambda *_: others.append(run_plan(more, out, again)))
    finished = run_plan(more, out, again, meanwhile)  # both list four tasks: two that failed, two of a new image
    assert others[0].log.count("done") == 4
    assert finished.log.count("cached") == 4
    assert not finished.partial


def test_a_run_says_that_what_another_run_computed_meanwhile_has_failed(tmp_path):
    plan, others = small(models=models(troubled=Troubled("bug", str(tmp_path / "cure")))), []
    meanwhile = RunLog(lambda *_: others.append(run_plan(plan, tmp_path / "run", RunOptions())))
    finished = run_plan(plan, tmp_path / "run", RunOptions(), meanwhile)
    assert finished.log.count("cached") == 2
    assert (finished.failed, finished.partial) == (others[0].failed, others[0].partial) == (2 * 2, True)


def test_a_device_that_fails_ends_the_run_and_fails_no_unit(tmp_path):
    """What comes after it in the same process would fail as well, for no fault of its own."""
    plan = small(models=models(ig=IG, troubled=Troubled("device", str(tmp_path / "cure")), more=replace(IG, steps=4)))
    out = tmp_path / "run"
    first = run_plan(plan, out, RunOptions())
    assert first.stopped == (
        "troubled on digits: the device failed (CUDA error: an illegal memory access was encountered)"
    )
    assert Counter(row.status for row in table(Store(out)).values()) == {"ok": 2}
    (tmp_path / "cure").touch()
    assert not run_plan(plan, out, RunOptions()).partial


@linux
@pytest.mark.thorough
def test_a_device_that_fails_in_a_process_ends_the_run(tmp_path, monkeypatch):
    spawn_quickly(monkeypatch)
    plan = small(models=models(troubled=Troubled("device", str(tmp_path / "cure"))))
    assert "the device failed" in run_plan(plan, tmp_path, RunOptions(executor=ProcessExecutor(1))).stopped


@pytest.mark.parametrize("save_maps", [False, True])
def test_images_on_a_folder_that_goes_away_amid_a_run_are_scored_when_it_is_back(tmp_path, save_maps):
    folder, away = pictures(tmp_path / "images"), tmp_path / "away"
    (folder / "9_broken.png").write_bytes((folder / "1_picture.png").read_bytes()[:50])
    plan = digits_plan(data=(str(folder),), n=5, shard=2)
    whole = run_plan(plan, tmp_path / "whole", RunOptions())
    lacking = [failed for _, failed, _ in cells(tmp_path / "whole", whole)]
    assert lacking == [1] * len(lacking)  # the broken one

    told = RunLog(ended=lambda report: folder.rename(away) if folder.exists() else None)
    out = tmp_path / "run"
    first = run_plan(plan, out, RunOptions(save_maps=save_maps), told)
    assert first.stopped is None
    assert first.log.left > 0
    reasons = {one["reason"] for one in first.left}
    assert all("does not exist" in reason for reason in reasons)
    away.rename(folder)
    second = run_plan(plan, out, RunOptions(save_maps=save_maps))
    assert second.log.left == 0
    assert cells(out, second) == cells(tmp_path / "whole", whole)
    known, found = table(Store(tmp_path / "whole")), table(Store(out))
    assert {key: row.score for key, row in found.items()} == pytest.approx(
        {key: row.score for key, row in known.items()}, abs=1e-4
    )
    assert {key: row.status for key, row in found.items()} == {key: row.status for key, row in known.items()}


def test_an_image_that_is_back_is_scored_by_the_methods_that_follow(tmp_path):
    folder = pictures(tmp_path / "images")
    lost = folder / "1_picture.png"
    content = lost.read_bytes()
    plan = small(data=(str(folder),), n=4, shard=4, models=models(ig=IG, more=replace(IG, steps=4)))
    told = RunLog(lambda resolved, units: lost.unlink(), lambda report: lost.write_bytes(content))
    first = run_plan(plan, tmp_path / "run", RunOptions(), told)
    assert [(one["method"], one["images"]) for one in first.left] == [("ig", 1)]


def test_reference_images_that_go_away_make_no_score_of_the_others(tmp_path):
    folder, others = pictures(tmp_path / "images", 2), pictures(tmp_path / "others", 3)
    lost = others / "1_picture.png"
    content = lost.read_bytes()
    methods = models(eg=ExpectedGradients(samples=4))
    plan = small(data=(str(folder),), references=str(others), models=methods)
    run_plan(plan, tmp_path / "whole", RunOptions())
    first = run_plan(plan, tmp_path / "run", RunOptions(), RunLog(began=lambda resolved, units: lost.unlink()))
    assert f"{str(lost)!r}: does not exist" in first.stopped
    assert table(Store(tmp_path / "run")) == {}
    lost.write_bytes(content)
    assert not run_plan(plan, tmp_path / "run", RunOptions()).partial
    assert table(Store(tmp_path / "run")) == table(Store(tmp_path / "whole"))
    # a method that uses none is computed without them
    unused = small(data=(str(folder),), references=str(others))
    told = RunLog(began=lambda resolved, units: lost.unlink())
    finished = run_plan(unused, tmp_path / "other", RunOptions(), told)
    assert (finished.stopped, finished.partial) == (None, False)


@pytest.mark.parametrize("error", ["MemoryError", 'RuntimeError("DefaultCPUAllocator: can\'t allocate memory")'])
def test_a_model_that_has_no_memory_fails_no_image(tmp_path, error):
    cure = tmp_path / "cure"

    def plan(least):
        fails = f"if not Path({str(cure)!r}).exists() and len(x) >= {least}: raise {error}"
        model = net_file(tmp_path / f"net{least}.py", before=fails)
        return small(data=(str(tmp_path / "images"),), models=(model,), n=4, shard=4)

    pictures(tmp_path / "images")
    first = run_plan(plan(2), tmp_path / "run", RunOptions())  # one image after the other
    assert (first.stopped, first.log.left, first.failed, first.partial) == (None, 0, 0, False)
    with pytest.raises(TransientError, match=r"net1\.py:net': .*[Mm]emory"):  # for one image already: before any unit
        run_plan(plan(1), tmp_path / "other", RunOptions())
    cure.touch()
    assert not run_plan(plan(1), tmp_path / "other", RunOptions()).partial


def test_what_a_person_must_mend_is_no_trouble_that_passes(tmp_path):
    plan = small(models=(PlanModel("net", f"{tmp_path}/absent.py:net", {"ig": IG}, trust_code=True),))
    with pytest.raises(FringeError) as caught:
        run_plan(plan, tmp_path / "run", RunOptions())
    assert not isinstance(caught.value, TransientError)
