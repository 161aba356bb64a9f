"""A report of a run on disk: what is written, what is refused, and where the maps come from."""

import dataclasses
import shutil

import numpy as np
import polars as pl
import pytest
import report_toys as runs
import torch

from fringe import IntegratedGradients
from fringe.attribution import SmoothGrad
from fringe.bench.experiments import (
    Plan,
    PlanModel,
    Results,
    RunOptions,
    Store,
    TaskRunner,
    make_maps,
    read_results,
    run_plan,
)
from fringe.bench.report import write_report
from fringe.bench.report._maps import examples_of, load_maps
from fringe.errors import InputError
from fringe.metrics import METRICS

pytestmark = pytest.mark.usefixtures("small_figures")

FILES = ["report.html", "report.md", "tables.tex", "scores.csv", "summary.csv", "figures/differences.png"]


def known(folder, column=(0.5, 0.6, 0.7), methods=("fringe", "ig"), **more):
    about = runs.manifest(methods, ("insertion",), 3)
    scores = {("net", methods[0], "insertion"): [0.1, 0.2, 0.4], ("net", methods[1], "insertion"): list(column)}
    return runs.store_of(folder, about, scores, **more)


def names(out):
    return sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())


def test_all_files_are_written_and_nothing_else(tmp_path):
    written = write_report(known(tmp_path / "run"), tmp_path / "out")
    assert [str(path.relative_to(tmp_path / "out")) for path in written.paths] == FILES
    assert written.page == tmp_path / "out" / "report.html"
    assert names(tmp_path / "out") == sorted(FILES)


def test_a_report_is_written_into_the_run_and_again_byte_by_byte(tmp_path):
    store = known(tmp_path / "run")
    first = {path: path.read_bytes() for path in write_report(store).paths}
    assert first.keys() == {tmp_path / "run" / "report" / name for name in FILES}
    assert {path: path.read_bytes() for path in write_report(str(tmp_path / "run")).paths} == first
    assert Store(tmp_path / "run", create=False).blocks()


def test_holes_are_refused_with_their_places_and_the_cure(tmp_path):
    store = known(tmp_path / "run", [0.5, "missing", "missing"])
    with pytest.raises(InputError) as caught:
        write_report(store, tmp_path / "out")
    assert "net, ig, insertion: 2 of 3 images are not computed" in str(caught.value)
    assert "repeat the run's command" in str(caught.value)
    assert "allow_partial=True" in str(caught.value)
    assert not (tmp_path / "out").exists()
    page = write_report(store, tmp_path / "out", allow_partial=True).page.read_text(encoding="utf-8")
    assert "n=1 of 3" in page
    assert "<sup>†</sup>" in page
    assert "net, ig, insertion: 2 of 3 images are not computed" in page


def test_only_the_first_holes_are_listed(tmp_path):
    methods = tuple(f"m{i}" for i in range(9))
    about = runs.manifest(methods, ("insertion",), 2)
    scores = {("net", method, "insertion"): [0.1, "missing"] for method in methods}
    store = runs.store_of(tmp_path / "run", about, scores)
    with pytest.raises(InputError, match=r"m4, insertion: 1 of 2 images are not computed; and 4 cells more\)"):
        write_report(store, tmp_path / "out")


def test_images_that_failed_are_no_holes(tmp_path):
    store = known(tmp_path / "run", [0.5, "out of memory", 0.7])
    page = write_report(store, tmp_path / "out").page.read_text(encoding="utf-8")
    assert "out of memory" in page
    assert "n=2 of 3" in page
    assert "<sup>†</sup>" not in page


def test_what_is_not_there_is_refused_by_name(tmp_path):
    store = known(tmp_path / "run")
    with pytest.raises(InputError, match=r"plan: got 'ablation'.*benchmark"):
        write_report(store, plan="ablation")
    with pytest.raises(InputError, match=r"reference: got 'agi'; the methods of net: fringe, ig"):
        write_report(store, reference="agi")
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(InputError, match=r"out: cannot write in .*file"):
        write_report(store, tmp_path / "file")
    empty = Store(tmp_path / "empty")
    empty.write_record("plan", "benchmark", runs.manifest(("ig",), ("insertion",), 2).record())
    with pytest.raises(InputError, match=r"nothing of the plan benchmark is computed yet"):
        write_report(empty, allow_partial=True)


def test_a_file_that_cannot_be_written_leaves_nothing_half_written(tmp_path, monkeypatch):
    store = known(tmp_path / "run")

    def full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(InputError, match="No space left on device"):
        write_report(store, tmp_path / "out")
    assert names(tmp_path / "out") == []


def test_without_the_model_the_maps_are_left_out_with_the_reason(tmp_path):
    page = write_report(known(tmp_path / "run"), tmp_path / "out").page.read_text(encoding="utf-8")
    assert "Maps are left out: method &#39;fringe&#39; has other settings in this version" not in page
    assert "Maps are left out:" in page
    page = write_report(known(tmp_path / "b"), tmp_path / "c", grid=False).page.read_text(encoding="utf-8")
    assert "Maps were not asked for." in page


def test_one_method_alone_has_a_report(tmp_path):
    about = runs.manifest(("ig",), ("insertion",), 3)
    store = runs.store_of(tmp_path / "run", about, {("net", "ig", "insertion"): [0.1, 0.2, 0.3]})
    page = write_report(store, tmp_path / "out").page.read_text(encoding="utf-8")
    assert "There is no other method to compare with." in page


# With the network that travels with the package

SHARED = ("mas_insertion", "mas_deletion", "insertion", "deletion")


def plan(n=8):
    return Plan(
        "benchmark",
        ("embedded:digits",),
        (
            PlanModel(
                "digits",
                "embedded:digits",
                {"ig": IntegratedGradients(steps=4), "sg": SmoothGrad(samples=3)},
            ),
        ),
        {name: METRICS[name](steps=8) for name in SHARED},
        n,
        controls=False,
    )


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """Two runs of one plan: one that kept its maps and one that did not."""
    folder = tmp_path_factory.mktemp("digits")
    for name, keep in (("kept", True), ("bare", False)):
        finished = run_plan(plan(), folder / name, RunOptions(save_maps=keep))
        assert finished.stopped is None
    return folder, finished.resolved


@pytest.fixture
def kept(digits):
    """The run that kept its maps: its store, its results, the digests of its images, and its plan."""
    store = Store(digits[0] / "kept", create=False)
    results = read_results(store)
    return store, results, [image["digest"] for image in results.manifest.images], digits[1]


def grids(folder):
    return sorted(path.name for path in (folder / "figures").iterdir() if path.name.startswith("maps"))


def test_the_maps_of_examples_are_made_as_the_run_made_them_once(digits, tmp_path, monkeypatch):
    folder, _ = digits
    shutil.copytree(folder / "bare", tmp_path / "bare")
    finished = run_plan(plan(), tmp_path / "bare", RunOptions())
    images = examples_of(finished.results)
    make_maps(finished, RunOptions(), images)
    bare, kept = Store(tmp_path / "bare", create=False), Store(folder / "kept", create=False)
    assert len(images["digits"]) == 8  # of 8 images, at most 9 are picked
    for method in ("ig", "sg"):
        setting = finished.results.manifest.setting_key("digits", method)
        made, theirs = (store.load_maps(setting, images["digits"]) for store in (bare, kept))
        assert len(made) == len(theirs) == 8
        for image, again in made.items():
            torch.testing.assert_close(again.values, theirs[image].values, rtol=1e-4, atol=1e-6)
    write_report(bare, tmp_path / "out")
    assert grids(tmp_path / "out") == ["maps-failures.png", "maps-strong.png", "maps-typical.png"]
    assert read_results(bare).frame.equals(finished.results.frame)  # what was scored is what it was

    def never(self, *_):
        raise AssertionError("maps that are kept are not made again")

    monkeypatch.setattr(TaskRunner, "perform", never)
    make_maps(finished, RunOptions(), images)
    first = {name: (tmp_path / "out" / "figures" / name).read_bytes() for name in grids(tmp_path / "out")}
    write_report(bare, tmp_path / "again")
    assert {name: (tmp_path / "again" / "figures" / name).read_bytes() for name in first} == first


def test_images_are_those_that_the_model_saw(kept):
    store, results, digests, resolved = kept
    shown = load_maps(results, "digits", digests[:2], store)
    assert shown.class_names == tuple("0123456789")
    for digest in digests[:2]:
        ref = resolved.pictures[digest].ref
        pixels = np.asarray(ref.open(channels=1).image.resize((32, 32), 2)) / 255
        np.testing.assert_allclose(shown.images[digest][..., 0], pixels, atol=1e-6)
        assert shown.maps["ig"][digest].shape == (1, 32, 32)


def test_kept_maps_are_drawn_without_the_model(digits, tmp_path, monkeypatch):
    def never(*_, **__):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("fringe.bench.experiments._plan.load_model", never)
    store = Store(digits[0] / "kept", create=False)
    page = write_report(store, tmp_path / "out").page.read_text(encoding="utf-8")
    assert grids(tmp_path / "out") == ["maps-failures.png", "maps-strong.png", "maps-typical.png"]
    assert "Maps are left out" not in page


def test_without_kept_maps_there_is_no_grid_but_a_reason(digits, tmp_path):
    run_plan(plan(n=2), tmp_path / "bare", RunOptions())
    page = write_report(Store(tmp_path / "bare"), tmp_path / "out").page.read_text(encoding="utf-8")
    assert "Maps are left out: the run stored no maps of these images; run the benchmark again" in page


def test_a_kept_map_of_another_size_is_not_drawn(kept, monkeypatch):
    store, results, (image, *_), _ = kept
    found = store.load_maps(results.manifest.setting_key("digits", "ig"), [image])[image]
    wrong = {image: dataclasses.replace(found, values=found.values[:, :5])}
    of_sg = {results.manifest.setting_key("digits", "sg"): {image: found}}
    monkeypatch.setattr(store, "load_maps", lambda setting, images: of_sg.get(setting, wrong))
    shown = load_maps(results, "digits", [image], store)
    assert (shown.maps["ig"], list(shown.maps["sg"])) == ({}, [image])


def test_an_image_that_is_lost_or_another_one_now_is_named(kept):
    store, results, (first, second, *_), _ = kept
    record = results.manifest.record()
    images = {image["digest"]: image for image in record["images"]}
    for source, what in (
        ("nowhere.png", r"'digits-\d+' is no longer there"),
        (images[second]["source"], r"'embedded:digits:\d+' has changed since the run"),
    ):
        moved = [{**image, "source": source} if image["digest"] == first else image for image in record["images"]]
        results = type(results)(type(results.manifest).from_record({**record, "images": moved}), store)
        with pytest.raises(InputError, match=f"image {what}"):
            load_maps(results, "digits", [first], store)


def test_maps_of_images_that_failed_are_not_asked_for(digits, tmp_path, monkeypatch):
    shutil.copytree(digits[0] / "bare", tmp_path / "bare")
    finished, asked = run_plan(plan(), tmp_path / "bare", RunOptions()), []
    first, second, *_ = (image["digest"] for image in finished.results.manifest.images)
    real = Results.map_frame

    def failed(self, model, method):
        frame = real(self, model, method)
        is_it = (pl.col("image").cast(pl.String) == first) & (pl.lit(method) == "sg")
        status = pl.when(is_it).then(pl.lit("failed")).otherwise(pl.col("status").cast(pl.String))
        return frame.with_columns(status.alias("status"))

    monkeypatch.setattr(Results, "map_frame", failed)
    monkeypatch.setattr("fringe.bench.experiments._run.run_tasks", lambda runner, store, tasks, *_: asked.extend(tasks))
    make_maps(finished, RunOptions(), {"digits": (first, second)})
    assert {task.method: task.images for task in asked} == {"ig": (first, second), "sg": (second,)}
    assert all(task.save and not task.metrics for task in asked)
