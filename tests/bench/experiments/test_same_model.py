"""Scores of a model that computes something else by now, and of other versions of the libraries, are never mixed with
new ones in silence."""

import math
import sys
from dataclasses import replace

import pytest
import torch
from forked_runs import spawn_quickly
from PIL import Image
from small_plans import IG, digits_plan, net_file, pictures, small
from synthetic_units import table
from typer.testing import CliRunner

import fringe
from fringe.bench.experiments import ProcessExecutor, RunLog, RunOptions, run_plan
from fringe.bench.experiments._manifest import resolve
from fringe.bench.experiments._plan import PlanModel
from fringe.bench.experiments._results import read_results
from fringe.bench.experiments._runner import TaskRunner
from fringe.bench.experiments._store import Store
from fringe.bench.experiments._tasks import mixed, pending_tasks
from fringe.bench.report import write_report
from fringe.bench.tune import tune_preset
from fringe.bench.tuning import space_of
from fringe.cli import app
from fringe.errors import FringeError, InputError
from fringe.metrics import Insertion, Sparseness
from fringe.models import Answers

pytestmark = pytest.mark.usefixtures("small_figures")

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs a fork server")
FIRST = "self.layer(x.flatten(1))"
CHANGED = "self.layer(x.flatten(1).square())"
ROUNDED = "self.layer(x.flatten(1) * (1 + 3e-6))"


@pytest.fixture
def plan(tmp_path):
    """A plan of a model whose weights and structure stay, whatever its code does."""
    model = net_file(tmp_path / "net.py")
    return small(data=(str(pictures(tmp_path / "images", 6)),), models=(model,), n=3)


def write(folder, answer):
    net_file(folder / "net.py", answer)


def scores(out):
    return {key: row.score for key, row in table(Store(out)).items()}


def test_a_forward_pass_that_changed_is_refused_and_named(tmp_path, plan):
    out = tmp_path / "run"
    run_plan(plan, out, RunOptions())
    before = scores(out)
    write(tmp_path, CHANGED)
    told = (
        r"^model 'net': its logits are not those that the results in .*run' were computed with; the largest difference "
        r"is [\d.e-]+, on image '._picture'. Its weights are the same.*name another folder"
    )
    for asked in (plan, replace(plan, n=6), replace(plan, metrics={"sparseness": Sparseness()})):
        with pytest.raises(InputError, match=told):
            run_plan(asked, out, RunOptions(amend=True, retry=True))
    other = replace(plan.models[0], label="another name")
    with pytest.raises(InputError, match=r"^model 'another name': its logits"):
        run_plan(replace(plan, models=(other,)), out, RunOptions(amend=True))
    assert scores(out) == before
    write(tmp_path, "self.layer(x.flatten(1))[:, :3]")
    with pytest.raises(InputError, match="the largest difference is inf"):
        run_plan(plan, out, RunOptions())
    write(tmp_path, "None")
    with pytest.raises(InputError, match="the largest difference is inf"):
        run_plan(plan, out, RunOptions())
    write(tmp_path, FIRST)
    assert run_plan(plan, out, RunOptions()).log.reports == []


def test_a_forward_pass_that_changed_is_refused_though_new_images_come_first(tmp_path, plan):
    """Logits are compared on an image that was there before, wherever the order of the seed puts it now."""
    out, more = tmp_path / "run", tmp_path / "more"
    first = run_plan(plan, out, RunOptions())
    before = scores(out)
    pictures(more, 40)
    for path in more.iterdir():
        (tmp_path / "images" / f"new{path.name}").write_bytes(path.read_bytes() + b" ")
    grown = replace(plan, n=40)
    drawn = [image["digest"] for image in resolve(grown).manifest.images]
    assert {image["digest"] for image in first.resolved.manifest.images}.isdisjoint(drawn[:4])
    assert not first.resolved.pictures.keys().isdisjoint(drawn)
    write(tmp_path, CHANGED)
    with pytest.raises(InputError, match="its logits are not those that the results in"):
        run_plan(grown, out, RunOptions())
    assert scores(out) == before


def test_rounding_is_no_change(tmp_path, plan):
    run_plan(plan, tmp_path / "run", RunOptions())
    write(tmp_path, ROUNDED)
    assert run_plan(plan, tmp_path / "run", RunOptions()).log.reports == []


def test_the_results_of_a_changed_model_are_removed_on_request_and_computed_again(tmp_path, plan):
    out, both = tmp_path / "run", (*plan.models, PlanModel("digits", "embedded:digits", {"ig": IG}))
    plan = replace(plan, models=both)
    run_plan(plan, out, RunOptions(save_maps=True))
    before = {row.model: row for row in table(Store(out)).values()}
    write(tmp_path, CHANGED)
    with pytest.warns(UserWarning, match="model 'net': its results under 1 setting are removed, and computed again"):
        renewed, store = run_plan(plan, out, RunOptions(), forget=True), Store(out)
    assert [(report.task.model, report.state) for report in renewed.log.reports] == [("net", "done")] * 3
    fresh = run_plan(plan, tmp_path / "fresh", RunOptions())
    assert not fresh.partial
    assert scores(out) == pytest.approx(scores(tmp_path / "fresh"), abs=1e-6)
    after = {row.model: row for row in table(store).values()}
    assert after["digits"].score == before["digits"].score
    assert after["net"].confidence != before["net"].confidence
    write(tmp_path, FIRST)
    with pytest.raises(InputError, match="its logits are not those"):
        run_plan(plan, out, RunOptions())


def test_a_forward_pass_that_was_mended_before_anything_was_computed(tmp_path, plan):
    def stop(resolved, units):
        raise FringeError("stopped before the first unit")

    with pytest.raises(FringeError, match="stopped before"):
        run_plan(plan, tmp_path / "run", RunOptions(), RunLog(began=stop))
    write(tmp_path, CHANGED)
    assert not run_plan(plan, tmp_path / "run", RunOptions()).partial
    write(tmp_path, FIRST)
    with pytest.raises(InputError, match="its logits are not those"):
        run_plan(plan, tmp_path / "run", RunOptions())


@pytest.mark.parametrize(
    "workers", [0, pytest.param(1, marks=pytest.mark.skipif(sys.platform != "linux", reason="fork"))]
)
def test_a_model_that_changes_amid_a_run_stops_it(tmp_path, plan, monkeypatch, workers):
    spawn_quickly(monkeypatch)
    told = RunLog(began=lambda resolved, units: write(tmp_path, CHANGED))
    with pytest.raises(FringeError, match="model 'net': what it computes changed since the run began"):
        run_plan(plan, tmp_path / "run", RunOptions(executor=ProcessExecutor(workers) if workers else None), told)
    assert scores(tmp_path / "run") == {}


def test_images_that_a_model_does_not_take_are_the_same_again(tmp_path):
    """Two sizes, of which the model takes one: what has no logits is no difference."""
    folder = pictures(tmp_path / "images", 3)
    Image.new("L", (9, 9)).save(folder / "large.png")
    (folder / "broken.png").write_bytes(b"x")
    model = net_file(tmp_path / "net.py", resize="none")
    plan = small(data=(str(folder),), models=(model,), n=5)
    assert run_plan(plan, tmp_path / "run", RunOptions()).failed == 2 * 2
    assert run_plan(plan, tmp_path / "run", RunOptions()).log.reports == []
    write(tmp_path, CHANGED)
    with pytest.raises(InputError, match="its logits are not those"):
        run_plan(plan, tmp_path / "run", RunOptions())


def test_a_report_reads_the_run_alone_whatever_became_of_the_model(tmp_path, plan):
    """It shows the maps that the run stored, and makes none."""
    for name, saved in (("bare", False), ("full", True)):
        write(tmp_path, FIRST)
        out = tmp_path / name
        run_plan(plan, out, RunOptions(save_maps=saved))
        before = len(list(out.glob("maps/*/*")))
        write(tmp_path, CHANGED)
        write_report(Store(out), tmp_path / f"{name} report")
        assert "digits" in (tmp_path / f"{name} report" / "report.md").read_text() or not saved
        assert (before > 0, len(list(out.glob("maps/*/*")))) == (saved, before)


def test_devices_round_differently_and_one_may_not_run_a_model_at_all():
    first = Answers({"a": torch.tensor([10.0, -5.0]), "b": torch.tensor([math.nan])})
    near = {"a": torch.tensor([10.1, -5.0]), "b": torch.tensor([1.0, 2.0])}
    assert first.differing(near) == ("b", math.inf)
    assert first.differing({"a": near["a"]}) == ("a", pytest.approx(0.1, rel=1e-4))
    assert first.differing(near, same_device=False) is None
    assert first.differing({"a": torch.tensor([math.nan])}, same_device=False) is None
    assert first.differing({"a": torch.tensor([12.0, -5.0])}, same_device=False) == ("a", 2.0)
    assert Answers(first.values, tolerance=0.05).differing({"a": near["a"]}) is None  # a model of short numbers


def test_a_search_does_not_go_on_with_another_model(tmp_path, plan):
    searched = space_of(type(IG), {"steps": (1, 20)}), 2
    plan = replace(plan, name="tune", n=2)
    found = tune_preset(plan, tmp_path / "run", RunOptions(), *searched)
    write(tmp_path, CHANGED)
    for how in (RunOptions(), RunOptions(amend=True)):
        with pytest.raises(InputError, match="model 'net': its logits are not those"):
            tune_preset(plan, tmp_path / "run", how, *searched)
    write(tmp_path, FIRST)
    assert tune_preset(plan, tmp_path / "run", RunOptions(), *searched) == found


# Versions


def run_as(monkeypatch, version, plan, out, **how):
    with monkeypatch.context() as patch:
        patch.setattr(fringe, "__version__", version)
        return run_plan(plan, out, RunOptions(**how))


def status(out):
    return CliRunner().invoke(app, ["status", str(out)]).stdout


def reported(out):
    return (write_report(Store(out), grid=False, allow_partial=True).page.parent / "report.md").read_text()


def test_every_result_says_which_versions_computed_it(tmp_path):
    run_plan(small(), tmp_path, RunOptions())
    stored = Store(tmp_path).blocks()
    assert stored
    for about in (block.about for block in stored):
        assert about["versions"].keys() >= {"fringe", "torch", "numpy", "python"}
        loaded = {name for name in ("torchvision", "timm", "transformers") if name in sys.modules}
        assert about["versions"].keys() >= loaded
        assert about["versions"]["fringe"] == fringe.__version__


def test_a_mix_of_versions_is_said_and_one_version_is_not(tmp_path, monkeypatch):
    run_as(monkeypatch, "0.0.1", small(), tmp_path)
    assert "mixed" not in status(tmp_path)
    assert "mixed" not in reported(tmp_path)
    run_as(monkeypatch, "0.0.2", small(n=3), tmp_path)
    assert "results of several versions are mixed: fringe: 0.0.1 (2 maps), 0.0.2 (1 map)" in status(tmp_path)
    page = reported(tmp_path)
    assert "Results of several versions of libraries are mixed here (fringe: 0.0.1 (2 maps), 0.0.2 (1 map))" in page
    assert r"| fringe (run) | 0\.0.1, 0.0.2 |" in page
    assert [line.partition(":")[0] for line in mixed(read_results(Store(tmp_path)).versions)] == ["fringe"]


def test_units_that_serve_another_plan_are_no_mix(tmp_path, monkeypatch):
    run_as(monkeypatch, "0.0.1", small(), tmp_path)
    run_as(monkeypatch, "0.0.2", small(seed=1), tmp_path, amend=True)
    assert "mixed" not in status(tmp_path)


def test_a_kept_map_of_another_version_is_a_mix(tmp_path, monkeypatch):
    first = digits_plan(controls=False, metrics={"sparseness": Sparseness()})
    run_as(monkeypatch, "0.0.1", first, tmp_path, save_maps=True)
    only = digits_plan(controls=False, metrics={"insertion": Insertion()})
    second = run_as(monkeypatch, "0.0.2", only, tmp_path, amend=True)
    assert sum(report.reused for report in second.log.reports) == 4
    assert "mixed: fringe: 0.0.1 (4 maps), 0.0.2 (4 maps)" in status(tmp_path)


def test_who_only_looks_at_a_plan_runs_no_model():
    """Logits are for runs that go on; an estimate or a report needs none."""
    resolved = resolve(small())
    assert resolved.logits == {}
    (unit, _) = pending_tasks(resolved.manifest, (), 1)
    assert TaskRunner(resolved).perform(unit).left == {}
