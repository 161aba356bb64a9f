"""Paths are what the methods recorded, blur-change maps what their words say; the figures' files and numbers."""

import csv
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fringe import FRInGe, InputError, IntegratedGradients, attribute
from fringe.attribution import get_method
from fringe.baselines import InputSpace
from fringe.bench.experiments import ExperimentSpec, ModelSource, Plan, PlanModel, build_plan, run_experiment
from fringe.bench.experiments._manifest import resolve
from fringe.bench.paper import StudySpec, _trajectories, draw_study, paper_study
from fringe.bench.paper._studies import OBJECTIVE, PaperStudy, cap_plan
from fringe.bench.paper._trajectories import SHOWN, blur_change, draw_sweep, trajectories
from fringe.errors import FringeError
from fringe.inputs import prepare
from fringe.metrics import Sparseness, get_metric
from fringe.plots import plot_sensitivity
from toys import results_of_scores

METHODS = {
    "fringe": FRInGe(tau=3e-2),
    "ig": IntegratedGradients(steps=6),
    "noisy": IntegratedGradients(steps=4, baseline="noise"),
    "smoothgrad": get_method("smoothgrad"),
    "onward": FRInGe(tau=3e-2, steps=7, until="arrival", arrival_kl=1e-9, max_steps=9),
}


@pytest.fixture(scope="module")
def digits():
    model = PlanModel("digits", ModelSource("embedded:digits"), METHODS)
    return resolve(Plan("p", ("embedded:digits",), (model,), {"insertion": get_metric("insertion")}, n=3, seed=11))


@pytest.fixture(scope="module")
def walked(digits):
    return trajectories(digits, "digits", 2)


def random(*shape):
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(len(shape)))


def the_input(digits, digest):
    loaded = digits.plan.models[0].source.load()
    return loaded, prepare(digits.pictures[digest].ref, loaded.preprocessing, digits.plan.exif)


def directly(digits, digest, label, **more):
    """What the library's one call says of the image."""
    loaded, x = the_input(digits, digest)
    options = {"seed": digits.plan.seed, "space": InputSpace(*loaded.preprocessing.bounds()), "ids": [digest], **more}
    return attribute(loaded.module, x[None], method=METHODS[label], telemetry=True, **options)


def test_one_changed_pixel_becomes_the_gaussian_of_its_distance():
    start = random(3, 25, 25)
    points = start.repeat(1, 1, 1, 1)
    points[0, 1, 12, 11] -= 0.7
    reach = 4
    down, right = torch.meshgrid(torch.arange(25) - 12.0, torch.arange(25) - 11.0, indexing="ij")
    expected = torch.exp(-0.5 * (down**2 + right**2).double())
    expected[(down.abs() > reach) | (right.abs() > reach)] = 0.0
    torch.testing.assert_close(blur_change(points, start)[0], expected, rtol=1e-12, atol=1e-15)


def test_all_points_share_the_scale_of_the_largest_change():
    start, change = torch.zeros(1, 9, 9, dtype=torch.float64), random(1, 9, 9)
    maps = blur_change(torch.stack([start, start + change, start - 4 * change]), start)
    assert maps.shape == (3, 9, 9)
    assert float(maps.max()) == 1.0
    torch.testing.assert_close(maps[1], maps[2] / 4)
    assert not maps[0].any()


def test_channels_count_alike():
    start, change = torch.zeros(3, 9, 9, dtype=torch.float64), random(9, 9)
    one, every = start.clone(), start + 1.0
    one[2] = change + 2.0
    every[0] += change  # |1 + c| + |1| + 0 = |2 + c|
    every[2] = 0.0
    maps = blur_change(torch.stack([one, every]), start)
    torch.testing.assert_close(maps[0], maps[1], rtol=1e-12, atol=0)


def test_what_is_not_finite_is_not_shown_as_no_change():
    points = torch.zeros(1, 1, 5, 5)
    points[0, 0, 2, 2] = math.nan
    assert blur_change(points, torch.zeros(1, 5, 5)).isnan().any()


def test_the_images_are_the_first_of_the_plan(digits, walked):
    assert list(walked) == [image["digest"] for image in digits.manifest.images[:2]]


def test_a_network_of_a_scene_has_paths_of_the_examples_of_its_scene():
    spec = ExperimentSpec(scene="colour_counter,patch_and", methods="ig", n=2, set={"ig.steps": 2}, controls=False)
    resolved = resolve(build_plan(spec))
    for model in ("colour_counter", "patch_and"):
        images = [image["digest"] for image in resolved.manifest.images if image["scene"] == model]
        assert list(trajectories(resolved, model, 2)) == images


def test_a_method_without_a_trajectory_has_no_walk(walked):
    for found in walked.values():
        assert [walk.label for walk in found] == ["fringe", "ig", "noisy", "onward"]


@pytest.mark.parametrize("label", ["fringe", "ig", "noisy"])
def test_a_walk_holds_what_attribute_says(digits, walked, label):
    for digest, found in walked.items():
        walk = next(walk for walk in found if walk.label == label)
        same = directly(digits, digest, label)
        trajectory = same.trajectory[0]
        np.testing.assert_array_equal(walk.attribution, same.values[0].numpy())
        np.testing.assert_array_equal(walk.entropy, trajectory.points["entropy"].numpy() / math.log(10))
        np.testing.assert_array_equal(walk.fisher_rao_step, trajectory.steps["fisher_rao_step"].numpy())
        np.testing.assert_array_equal(walk.euclidean_step, trajectory.steps["euclidean_step"].numpy())
        np.testing.assert_array_equal(walk.snapshot_steps, trajectory.snapshot_steps.numpy())
        assert walk.verdict == same.verdict[0]
        changes = blur_change(trajectory.snapshots, trajectory.snapshots[0])
        np.testing.assert_array_equal(walk.changes, changes.numpy())
        seen = digits.plan.models[0].source.load().preprocessing.denormalise(trajectory.snapshots).clamp(0, 1)
        np.testing.assert_allclose(walk.images, seen.permute(0, 2, 3, 1).numpy(), atol=1e-6)


def test_only_a_trust_region_has_bounds(digits, walked):
    (digest, found), *_ = walked.items()
    by_label = {walk.label: walk for walk in found}
    assert by_label["ig"].active_bound.size == 0
    expected = directly(digits, digest, "fringe").trajectory[0].steps["active_bound"].numpy()
    np.testing.assert_array_equal(by_label["fringe"].active_bound, expected)


def test_a_walk_that_went_on_shows_six_points_with_both_ends(walked):
    for found in walked.values():
        walk = found[-1]
        assert len(walk.entropy) == 10
        assert walk.snapshot_steps.tolist() == [0, 1, 4, 6, 8, 9]  # of 0, 1, 3, 4, 6, 7, 8, 9
        assert len(walk.images) == len(walk.changes) == SHOWN


def test_the_seed_is_the_plans_and_the_batch_size_changes_nothing(digits, walked):
    digest = next(iter(walked))
    other = trajectories(replace(digits, plan=replace(digits.plan, seed=5)), "digits", 1, batch_size=3)[digest]
    found = other[2].attribution
    np.testing.assert_allclose(found, directly(digits, digest, "noisy", seed=5).values[0].numpy(), rtol=1e-5, atol=1e-7)
    assert np.abs(found - walked[digest][2].attribution).max() > 1e-2


def test_the_target_is_the_plans(digits):
    aimed = replace(digits, plan=replace(digits.plan, target=3))
    (digest, found), *_ = trajectories(aimed, "digits", 1).items()
    same = directly(digits, digest, "ig", target=3)
    np.testing.assert_array_equal(found[1].attribution, same.values[0].numpy())
    assert np.abs(found[1].attribution - directly(digits, digest, "ig").values[0].numpy()).max() > 1e-2


def test_an_image_that_cannot_be_explained_makes_room_for_the_next(tmp_path):
    for number in range(3):
        Image.new("L", (8, 8), 60 * number).save(tmp_path / f"{number}.png")
    model = PlanModel("digits", ModelSource("embedded:digits"), {"ig": METHODS["ig"]})
    asked = Plan("p", (str(tmp_path),), (model,), {"insertion": get_metric("insertion")}, n=3)
    first, *others = [(image["digest"], image["source"]) for image in resolve(asked).manifest.images]
    Path(first[1]).write_bytes(b"no image")
    again = resolve(asked)
    assert again.manifest.images[0]["source"] == first[1]
    assert list(trajectories(again, "digits", 2)) == [digest for digest, _ in others]
    for _, source in others:
        Path(source).write_bytes(source.encode())
    with pytest.raises(FringeError, match="not an image"):
        trajectories(resolve(asked), "digits", 2)


FACTORS = {"tau": [0.002, 0.004], "steps": [3]}
BASE = FRInGe(tau=0.003, steps=2)


def plan(methods=None, label="digits", n=1):
    model = PlanModel(label, ModelSource("embedded:digits"), methods or {"fringe": BASE})
    return Plan("plan", ("embedded:digits",), (model,), {"sparseness": Sparseness()}, n=n, controls=False)


def swept(columns, label="digits"):
    """Results of a sweep from (3, n) scores by setting."""
    scores = {
        (label, setting, metric): values
        for setting, rows in columns.items()
        for metric, values in zip(OBJECTIVE, rows, strict=True)
    }
    return results_of_scores(scores)


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


def test_a_sweep_of_a_scene_resamples_its_grids(tmp_path):
    """Nine images of three grids: as wide as that of three images with the same three scores."""
    rng = np.random.default_rng(2)
    settings = ("centre", "tau=0.002", "tau=0.004", "steps=3")
    few = {name: rng.random((3, 3)) for name in settings}
    many = {
        name: np.concatenate([np.full((3, 1), np.nan), np.repeat(rows, 3, axis=1)], 1) for name, rows in few.items()
    }
    expected = numbers(draw_sweep(plan(), swept(few), FACTORS, tmp_path)[1])
    found = swept(many)
    clusters = ["unread", *"aaabbbccc"]
    images = tuple({**i, "scene": "grids", "cluster": c} for i, c in zip(found.manifest.images, clusters, strict=True))
    scenes = {"grids": {"networks": {"digits": {}}}}
    object.__setattr__(found.manifest, "images", images)
    object.__setattr__(found.manifest, "scenes", scenes)
    for at, row in numbers(draw_sweep(plan(), found, FACTORS, tmp_path)[1]).items():
        for end in ("objective", "low", "high"):
            assert float(row[end]) == pytest.approx(float(expected[at][end]), rel=1e-9)


def test_a_sweep_that_is_not_complete_has_the_images_of_the_setting_that_has_most(tmp_path, monkeypatch):
    titles = []

    def spied(panels, title):
        titles.append(title)
        return plot_sensitivity(panels, title=title)

    monkeypatch.setattr(_trajectories, "plot_sensitivity", spied)
    counts = {"centre": 4, "tau=0.002": 4, "tau=0.004": 3, "steps=3": 2}
    columns = {name: np.random.default_rng(2).random((3, count)) for name, count in counts.items()}
    draw_sweep(plan(), swept(columns), FACTORS, tmp_path)
    assert titles == ["One setting varied at a time, 4 images"]


def test_figures_have_a_name_that_is_a_file_name(tmp_path):
    methods = {"fringe": FRInGe(steps=2)}
    named = replace(plan(methods, label="hub/net: a", n=2), name="ablation")
    study = PaperStudy(named, named)
    paths = draw_study(study, tmp_path, tmp_path, images=1)
    assert [path.name for path in paths] == ["trajectories-hub_net__a-1.png"]
    assert draw_study(study, tmp_path, tmp_path, images=0) == []
    capped = cap_plan(plan(methods, n=1))
    cap = draw_study(PaperStudy(capped, capped), tmp_path, tmp_path, images=5)
    assert [path.name for path in cap] == ["profiles-digits-1.png"]  # there is one image, not five
    for path in (*paths, *cap):
        with Image.open(path) as picture:
            assert min(picture.size) > 200


def test_figures_are_not_drawn_to_a_url(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    named = replace(plan({"fringe": FRInGe(steps=2)}, n=1), name="ablation")
    with pytest.raises(InputError, match="s3:// is not supported"):
        draw_study(PaperStudy(named, named), tmp_path, Path("s3://bucket/run"))
    assert list(tmp_path.iterdir()) == []


def test_a_study_is_planned_run_and_drawn_from_python(tmp_path):
    settings = ["fringe.steps=2", "fringe.cg_iterations=2"]
    spec = StudySpec(model="embedded:digits", data="embedded:digits", n=1, set=settings, factor="steps=2,3")
    study = paper_study("sweep", spec)
    results = run_experiment(study.plan, tmp_path / "run")
    assert results.methods("digits", controls=False) == tuple(study.plan.models[0].methods)
    assert set(results.frame["status"]) == {"ok"}
    paths = draw_study(study, tmp_path / "run", tmp_path / "figures", images=1)
    assert [path.name for path in paths] == ["sensitivity.png", "sensitivity.csv"]
    assert sorted(tmp_path.joinpath("figures").iterdir()) == sorted(paths)
