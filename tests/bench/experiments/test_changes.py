"""Two runs in one folder, and plans that change: what is shared, what is computed anew, and what is told."""

import re
import sys
from dataclasses import replace

import pytest
from forked_runs import end_of, fork
from small_plans import IG, done_units, models, net_file, picture, pictures, small
from synthetic_units import expected, job, manifest, noted, table

from fringe import IntegratedGradients
from fringe._files.records import changes
from fringe.bench.experiments import ProcessExecutor, RunLog, RunOptions, run_plan
from fringe.bench.experiments._executors import SerialExecutor, run_tasks
from fringe.bench.experiments._manifest import without_growth
from fringe.bench.experiments._plan import PlanModel
from fringe.bench.experiments._results import Results, manifests, read_results
from fringe.bench.experiments._store import Store
from fringe.bench.experiments._tasks import orphaned
from fringe.errors import InputError
from fringe.inputs import content_digest
from fringe.metrics import Insertion, Sparseness


def stale(out):
    """The rows of a run that no plan asks for."""
    store = Store(out)
    blocks = store.blocks()
    return orphaned(blocks, [Results(plan, store, blocks) for plan in manifests(store).values()])


linux = pytest.mark.skipif(sys.platform != "linux", reason="needs fork and /proc")

# Two runs in one folder


def run_synthetic(base):
    work = job(base, manifest(("fine", "too"), 20))
    run_tasks(work, work.store, work.left(), RunLog(), SerialExecutor())


@linux
@pytest.mark.thorough
def test_runs_that_begin_together_compute_each_unit_once(tmp_path):
    children = [fork(run_synthetic, tmp_path) for _ in range(3)]
    assert [end_of(child) for child in children] == [0, 0, 0]
    performed = noted(tmp_path / "log")
    assert len(performed) == len(set(performed)) == 20
    assert table(Store(tmp_path / "run")) == expected(manifest(("fine", "too"), 20))


# Plans that change


def test_other_settings_under_one_name_are_refused_and_shown(tmp_path):
    plan = small()
    run_plan(plan, tmp_path, RunOptions())
    other = {
        "methods.digits.ig.steps: 8, now 16": {"models": models(ig=IntegratedGradients(steps=16))},
        "methods.digits.ig: .*, now absent": {"models": models(other=IG)},
        "seed: 0, now 1": {"seed": 1},
        "target: predicted, now 3": {"target": 3},
        "n: 2, now 1": {"n": 1},
        "metrics.insertion: .*, now absent": {"metrics": {"sparseness": Sparseness()}},
        "limits.insertion: absent, now 1": {"limits": {"insertion": 1}},
        "metrics.insertion.reference: gaussian, now box": {
            "metrics": {"sparseness": Sparseness(), "insertion": Insertion(reference="box")}
        },
    }
    for difference, change in other.items():
        with pytest.raises(InputError, match=rf"^out: .*holds a digits with other settings \({difference}\); name"):
            run_plan(replace(plan, **change), tmp_path, RunOptions())
    assert run_plan(plan, tmp_path, RunOptions()).log.reports == []  # none of them was let in


def test_a_limit_may_be_raised_and_not_lowered():
    """Of a metric and of a scene alike; one that is larger than all images is none."""
    parts = {"models": {}, "preprocessing": {}, "methods": {}}
    whole = {**parts, "metrics": {"m": {}}, "scenes": {"s": {}}, "limits": {}, "n": 9}
    few = {**whole, "limits": {"m": 4}, "examples": {"s": 4}}
    more = {**whole, "limits": {"m": 12}, "examples": {"s": 6}}
    for previous, new in (
        (few, more),
        (few, whole),
        (more, {**more, "n": 20}),
        (few, {**few, "limits": {"m": 4, "o": 1}}),
    ):
        assert without_growth(previous, new) == previous
    for previous in (whole, more):
        assert changes(previous, without_growth(previous, few))[-1].startswith("examples")


@pytest.mark.parametrize("amend", [False, True])
def test_names_of_plans_differ_by_more_than_case(tmp_path, amend):
    """On a disk that ignores case, the record of the second plan would replace that of the first."""
    run_plan(small(name="sweep"), tmp_path, RunOptions())
    with pytest.raises(InputError, match=r"^name: got 'Sweep', and .* holds a plan 'sweep'; give it a name"):
        run_plan(small(name="Sweep", n=1), tmp_path, RunOptions(amend=amend))
    assert run_plan(small(name="sweep-2"), tmp_path, RunOptions()).stopped is None
    assert sorted(Store(tmp_path).records("plan")) == ["sweep", "sweep-2"]


def test_a_plan_that_grows_computes_what_is_new(tmp_path):
    both = ("sparseness", "insertion")
    plan = small(metrics={"insertion": Insertion()}, limits={"insertion": 1})
    assert done_units(run_plan(plan, tmp_path, RunOptions())) == {("ig", ("insertion",), 1): 1}
    plan = replace(plan, limits={})
    assert done_units(run_plan(plan, tmp_path, RunOptions())) == {("ig", ("insertion",), 1): 1}
    plan = replace(plan, metrics={"sparseness": Sparseness(), "insertion": Insertion()})
    assert done_units(run_plan(plan, tmp_path, RunOptions())) == {("ig", ("sparseness",), 1): 2}
    plan = replace(plan, models=models(ig=IG, more=IntegratedGradients(steps=4)))
    assert done_units(run_plan(plan, tmp_path, RunOptions())) == {("more", both, 1): 2}
    plan = replace(plan, n=3)
    assert done_units(run_plan(plan, tmp_path, RunOptions())) == {("ig", both, 1): 1, ("more", both, 1): 1}
    plan = replace(plan, models=(*plan.models, PlanModel("twin", "embedded:digits", {"new": IG})))
    grown = run_plan(plan, tmp_path, RunOptions())
    assert grown.log.reports == []  # another name for the same maps: they are there
    store = Store(tmp_path)
    assert all(cell.scored == cell.required == 3 for cell in Results(grown.resolved.manifest, store).cells.values())
    assert stale(tmp_path) == []
    assert read_results(store).missing() == []


def test_a_plan_in_another_batch_size_engine_or_order_is_the_same(tmp_path):
    plan = small(models=models(ig=IG, more=IntegratedGradients(steps=4)), n=3, shard=2)
    run_plan(plan, tmp_path, RunOptions())
    turned = replace(plan, models=models(more=IntegratedGradients(steps=4), ig=IG), shard=3)
    turned = replace(turned, metrics=dict(reversed(plan.metrics.items())))
    assert run_plan(turned, tmp_path, RunOptions(batch_size=1, executor=ProcessExecutor(1))).log.reports == []


def test_amended_plans_say_why_old_units_serve_no_more(tmp_path):
    model, folder = net_file(tmp_path / "net.py"), pictures(tmp_path / "pictures", 2)
    plan = small(
        data=(str(folder),), models=(replace(model, methods={"ig": IG, "old": IG}),), metrics={"s": Sparseness()}
    )
    out = tmp_path / "run"

    def reasons():
        return {(rows["method"], rows["reason"]): rows["images"] for rows in stale(out)}

    assert not run_plan(plan, out, RunOptions()).partial
    assert reasons() == {}

    plan = replace(plan, models=(replace(model, methods={"ig": IntegratedGradients(steps=16)}),))
    assert run_plan(plan, out, RunOptions(amend=True)).log.count("done") == 2
    assert reasons() == {("ig", "method.steps: 8, now 16"): 2}

    net_file(tmp_path / "net.py", seed=2)
    assert run_plan(plan, out, RunOptions()).log.count("done") == 2
    now = reasons()
    assert sum(now.values()) == 4
    (weights,) = [reason for _, reason in now if "method.steps" not in reason]
    assert re.fullmatch(r"model\.weights: [0-9a-f]{32}, now [0-9a-f]{32}", weights)

    picture(folder / "1_picture.png", 7)
    assert run_plan(plan, out, RunOptions()).log.count("done") == 1
    assert {known: n for known, n in reasons().items() if known not in now} == {
        ("ig", "1 of its images changed or are not drawn any more"): 1
    }

    plan = replace(plan, metrics={"s": Insertion()})
    run_plan(plan, out, RunOptions(amend=True))
    assert ("ig", "its metrics have other settings now") in reasons()
    plan = replace(plan, models=(replace(model, label="other"),))
    run_plan(plan, out, RunOptions(amend=True))
    assert set(reasons()) == {("ig", "no plan has the model 'net'")}


def test_a_label_that_is_corrected_is_explained_anew(tmp_path):
    """The class is in the name of the file: the scores of another class do not stand for it."""
    folder, out = pictures(tmp_path / "pictures", 2), tmp_path / "run"
    plan = small(target="label", data=(str(folder),), metrics={"s": Sparseness()})
    before = run_plan(plan, out, RunOptions(save_maps=True))
    assert run_plan(plan, out, RunOptions()).log.reports == []
    (folder / "1_picture.png").rename(folder / "5_picture.png")
    after = run_plan(plan, out, RunOptions(save_maps=True))
    assert after.log.count("done") == 1
    expected = (("0_picture", 0), ("1_picture", 1)), (("0_picture", 0), ("5_picture", 5))
    for run, targets in zip((before, after), expected, strict=True):
        frame = Results(run.resolved.manifest, Store(out)).frame
        assert sorted(frame.select("image_id", "target").iter_rows()) == list(targets)
        assert frame["label"].to_list() == frame["target"].to_list()
    assert [unit["reason"] for unit in stale(out)] == ["1 of its images changed or are not drawn any more"]
    entries = after.resolved.pictures.values()
    assert {entry.digest.partition("-")[0] for entry in entries} == {content_digest(entry.ref) for entry in entries}


def test_a_run_of_the_past_that_failed_keeps_the_plan_partial(tmp_path):
    """A run with nothing left to do still says that some images have no score."""
    folder = pictures(tmp_path / "pictures", 1)
    picture(folder / "12_picture.png", 2)  # the model has ten classes
    plan = small(target="label", data=(str(folder),), metrics={"s": Sparseness()})
    first = run_plan(plan, tmp_path / "run", RunOptions())
    assert (first.failed, first.partial) == (1, True)
    second = run_plan(plan, tmp_path / "run", RunOptions())
    assert (second.log.reports, second.failed, second.partial) == ([], 1, True)
    third = run_plan(plan, tmp_path / "run", RunOptions(retry=True))
    assert (third.log.count("done"), third.failed, third.partial) == (1, 1, True)
    assert len(table(Store(tmp_path / "run"))) == 2
