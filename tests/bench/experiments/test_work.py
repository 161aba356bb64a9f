"""One unit after the other: the same numbers however they are cut, and a row with a reason for every image that has no
score."""

from dataclasses import replace

import pytest
import torch
from PIL import Image
from small_plans import IG, models, net_file, picture, small

from fringe import ExpectedGradients, SmoothGrad
from fringe.bench.experiments._manifest import resolve
from fringe.bench.experiments._plan import PlanModel
from fringe.bench.experiments._records import results_of
from fringe.bench.experiments._runner import TaskRunner
from fringe.bench.experiments._store import Store
from fringe.bench.experiments._tasks import pending_tasks
from fringe.errors import FringeError, InputError
from fringe.metrics import Insertion, Scores, Sparseness
from score_records import ScoreRecord, records_in

BOTH = {"sparseness": Sparseness(), "insertion": Insertion()}


def plan(data=("embedded:digits",), methods=None, **changed):
    known = {"data": data, "metrics": {"sparseness": Sparseness()}, "n": 6}
    return small(**known | ({"models": models(**methods)} if methods else {}) | changed)


def rows_in(resolved, done):
    """The records of a task, with the names of its images."""
    known = {image["digest"]: image for image in resolved.manifest.images}
    store = Store(None)
    store.commit(done.about, done.results)
    return records_in(store, known)


def rows_of(asked, shard=16, batch_size="auto", order=1):
    """All rows of a plan by name."""
    resolved = resolve(asked)
    worker = TaskRunner(resolved, batch_size=batch_size)
    found = [
        row
        for unit in pending_tasks(resolved.manifest, (), shard)[::order]
        for row in rows_in(resolved, worker.perform(unit))
    ]
    assert len({row.key for row in found}) == len(found)
    return {row.key: row for row in found}


# However the work is cut


@pytest.fixture(scope="module")
def many():
    methods = {"ig": IG, "eg": ExpectedGradients(samples=4), "sg": SmoothGrad(samples=3)}
    return plan(methods=methods, metrics=BOTH, controls=True)


@pytest.fixture(scope="module")
def reference(many):
    return rows_of(many)


@pytest.mark.parametrize("cut", [{"batch_size": 3, "shard": 5}, {"batch_size": 1, "order": -1, "shard": 2}], ids=str)
def test_shards_batches_and_order_move_numbers_by_rounding_alone(many, reference, cut):
    found = rows_of(many, **cut)
    assert found.keys() == reference.keys()
    assert len(found) == 9 * 2 * 6
    for key, row in found.items():
        other = reference[key]
        assert row.score == pytest.approx(other.score, abs=1e-4)
        # a random map's order of entries is that of no rounding, so that its curve is the very same
        assert (row.status, row.verdict, row.target, row.label) == (
            other.status,
            other.verdict,
            other.target,
            other.label,
        )
        assert row.confidence == pytest.approx(other.confidence, abs=1e-5)
        for (name, curve), (_, before) in zip(row.curves, other.curves, strict=True):
            assert curve == pytest.approx(before, abs=1e-3), name


def test_one_score_is_that_of_a_larger_plan(many, reference):
    """What shares the plan with an image, a method or a metric does not move them."""
    few = replace(
        many, n=2, metrics={"insertion": Insertion()}, models=plan(methods={"sg": SmoothGrad(samples=3)}).models
    )
    found = rows_of(few)
    of_map = {key for key, row in found.items() if row.method in ("power(1.5):sg", "centre_prior:sg")}
    assert len(of_map) == 2 * 2  # of two images: the larger plan has those of its FRInGe
    assert found.keys() - of_map <= reference.keys()
    for key, row in found.items():
        if key in of_map:
            continue
        assert row.score == pytest.approx(reference[key].score, abs=1e-4)


# Images that are no images


def outcome(rows):
    """Status and reason by the image's id."""
    return {row.image_id: (row.status, row.error) for row in rows.values()}


def test_damaged_images_cost_themselves_alone(tmp_path):
    sound = [picture(tmp_path / f"{number}_sound.png", number) for number in range(2)]
    whole = {kind: picture(tmp_path / f"whole.{kind}", 5, (40, 40)).read_bytes() for kind in ("png", "jpg", "webp")}
    for kind, content in whole.items():
        (tmp_path / f"whole.{kind}").unlink()
        (tmp_path / f"half_{kind}.{kind}").write_bytes(content[: len(content) // 2])
        (tmp_path / f"head_{kind}.{kind}").write_bytes(content[:20])
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "text.png").write_text("no image at all")
    (tmp_path / "flipped.png").write_bytes(whole["png"][:60] + b"\xff\xff\xff\xff" + whole["png"][64:])
    found = rows_of(plan((str(tmp_path),), n=11, metrics=BOTH))
    assert len(found) == 11 * 2
    states = outcome(found)
    assert {name for name, (status, _) in states.items() if status == "ok"} == {path.stem for path in sound}
    bad = {name: error for name, (status, error) in states.items() if status == "unreadable"}
    assert len(bad) == 9
    for name, error in bad.items():
        assert name in error, error
    assert bad["empty"] == f"{str(tmp_path / 'empty.png')!r}: is empty"
    assert "not an image of the formats" in bad["text"]
    for row in found.values():
        assert (row.score is None) == (row.status != "ok")


def test_images_that_vanish_or_change_amid_a_run(tmp_path):
    for number in range(4):
        picture(tmp_path / f"{number}_picture.png", number)
    resolved = resolve(plan((str(tmp_path),), n=4))
    (tmp_path / "1_picture.png").unlink()
    picture(tmp_path / "2_picture.png", 9)
    (unit,) = pending_tasks(resolved.manifest, (), 16)
    done = TaskRunner(resolved).perform(unit)
    states = outcome({row.key: row for row in rows_in(resolved, done)})
    assert states == {"0_picture": ("ok", None), "3_picture": ("ok", None)}
    left = {image["id"]: done.left.get(image["digest"]) for image in resolved.manifest.images}
    source = str(tmp_path / "2_picture.png")
    assert left == {
        **{"0_picture": None, "3_picture": None},
        "1_picture": f"{str(tmp_path / '1_picture.png')!r}: does not exist",
        "2_picture": f"{source!r} changed since the run began; run it again",
    }


def test_images_that_vanish_or_change_between_runs_give_way(tmp_path):
    for number in range(5):
        picture(tmp_path / f"{number}_picture.png", number)
    asked = plan((str(tmp_path),), n=3)
    before = [image["id"] for image in resolve(asked).manifest.images]
    (tmp_path / f"{before[0]}.png").unlink()
    after = resolve(asked).manifest
    assert [image["id"] for image in after.images][:2] == before[1:]
    with pytest.raises(InputError, match="n: got 5, but there are 4 different images"):
        resolve(replace(asked, n=5))
    old = {image["id"]: image["digest"] for image in after.images}
    picture(tmp_path / f"{before[1]}.png", 200)
    new = {image["id"]: image["digest"] for image in resolve(asked).manifest.images}
    assert {name for name in old if old[name] != new[name]} == {before[1]}


def test_labels_that_do_not_fit(tmp_path):
    picture(tmp_path / "3_fits.png", 1)
    picture(tmp_path / "10_beyond.png", 2)
    picture(tmp_path / "cat.png", 3)
    rows = rows_of(plan((str(tmp_path),), n=3, target="label"))
    states = outcome(rows)
    assert states["3_fits"] == ("ok", None)
    assert states["10_beyond"] == ("failed", "label 10 does not fit a model of 10 classes")
    assert states["cat"][0] == "failed"
    assert "the file name gives no label" in states["cat"][1]
    (row,) = [row for row in rows.values() if row.image_id == "3_fits"]
    assert (row.target, row.label) == (3, 3)


def test_images_of_several_sizes_share_a_unit(tmp_path):
    """A model without a size of its own takes each size by itself; one that cannot take a size says so."""
    for name, size in (("a.png", (8, 8)), ("b.png", (16, 4)), ("c.png", (9, 9))):
        picture(tmp_path / name, 5, size)
    model = net_file(tmp_path / "net.py", resize="none")
    states = outcome(rows_of(plan((str(tmp_path),), n=3, models=(model,))))
    assert states["a"] == states["b"] == ("ok", None)
    status, error = states["c"]
    assert status == "failed"
    assert error.startswith("the model cannot take an input of shape (3, 9, 9): ")


@pytest.mark.parametrize(
    ("raised", "reason"),
    [("raise RuntimeError('too dark')", "too dark"), ("raise ValueError", "ValueError"), ("assert False", "Assertion")],
)
def test_an_image_that_the_model_refuses_costs_no_other_its_score(tmp_path, raised, reason):
    for number, name in enumerate(("a.png", "b.png", "c.png")):
        picture(tmp_path / name, number)
    Image.new("RGB", (8, 8)).save(tmp_path / "black.png")
    model = net_file(tmp_path / "net.py", before=f"if bool((x.mean((1, 2, 3)) == -1).any()): {raised}")
    states = outcome(rows_of(plan((str(tmp_path),), n=4, models=(model,))))
    status, error = states.pop("black")
    assert status == "failed"
    assert error.startswith(f"the model cannot take an input of shape (3, 8, 8): {reason}")
    assert set(states.values()) == {("ok", None)}
    assert states.keys() == {"a", "b", "c"}


# Methods and models that fail


def test_weights_that_change_amid_a_run_stop_it(monkeypatch):
    resolved = resolve(plan(n=1))
    (unit,) = pending_tasks(resolved.manifest, (), 16)
    changed = replace(resolved.plan.models[0].load(), digest="f" * 64)
    monkeypatch.setattr(PlanModel, "load", lambda source, device: changed)
    with pytest.raises(FringeError, match="model 'digits': its weights changed since the run began; run it again"):
        TaskRunner(resolved).perform(unit)


def test_maps_are_those_that_were_scored():
    resolved = resolve(plan(n=3))
    (unit,) = pending_tasks(resolved.manifest, (), 16)
    done = TaskRunner(resolved, save_maps=True).perform(unit)
    maps = {one.image: one.map for one in done.results}
    assert set(maps) == set(unit.images)
    for row in rows_in(resolved, done):
        values = maps[row.image].values.double().abs().flatten().sort().values
        places = torch.arange(1, len(values) + 1, dtype=torch.float64)
        gini = ((2 * places - len(values) - 1) * values).sum() / (len(values) * values.sum())
        assert row.score == pytest.approx(float(gini), abs=1e-6)  # sparseness is the Gini index


def test_an_image_that_a_metric_refuses_has_its_scores_of_the_others(monkeypatch):
    asked, real = plan(metrics=BOTH, n=2), Insertion.score
    refused = resolve(asked).manifest.images[0]["digest"]

    def score(self, maps):
        if refused in maps.context.problem.keys:
            raise InputError("does not like it")
        return real(self, maps)

    monkeypatch.setattr(Insertion, "score", score)
    rows = {(row.metric, row.image == refused): row for row in rows_of(asked).values()}
    assert {name: (row.status, row.score is None) for name, row in rows.items()} == {
        ("insertion", True): ("failed", True),
        ("insertion", False): ("ok", False),
        ("sparseness", True): ("ok", False),
        ("sparseness", False): ("ok", False),
    }
    assert rows["insertion", True].error == "metric insertion: does not like it"


# As they are stored


def test_scores_of_several_sizes_are_stored_by_image_with_what_each_metric_says_of_them():
    """Two images of one size, one of another, one that diverged, and one that cannot be read."""
    inside = {"forward": 1.5, "jvp": 0.0, "vjp": 3.0, "seconds": 0.25, "batch": 2}
    sound = {"target": 3, "confidence": 0.75, "status": "ok", "error": None, "verdict": "coarse", **inside}
    made = {
        "a": {**sound, "diagnostics": [("residual", 1e-300)]},
        "b": {"status": "unreadable", "error": "'b.png': is empty"},
        "c": {**sound, "verdict": None, "diagnostics": [("residual", -0.0)]},
        "d": {**sound, "status": "diverged", "verdict": "diverged", "diagnostics": [("residual", 5.0)]},
        "e": sound,
    }
    nan = torch.nan
    of_two = Scores(
        torch.tensor([0.5, nan, nan], dtype=torch.float64),
        {"flat": torch.tensor([True, False, True]), "tied": torch.tensor([True, True, False])},
        {"chance": torch.tensor([0.25, 0.5, nan])},
        {"raw": torch.tensor([[0.0, 1.0], [2.0, 3.0], [nan, nan]])},
    )
    refused = Scores(torch.tensor([1.0, nan, nan]), refusals=("", "metric y: no", ""))
    alone = Scores(torch.tensor([-1.0]), curves={"raw": torch.tensor([[4.0, 5.0, 6.0]])})
    scored = [(["c", "a", "d"], [of_two, refused]), (["e"], [alone, alone])]
    names = {
        "model": "net",
        "method": "ig",
        "setting_key": "s",
        "setting": {},
        "labels": ["x", "y"],
        "metrics": ["X", "Y"],
    }
    shared = {**names, "metric_settings": {}, "versions": {}, "map_versions": []}
    results, store = results_of(("X", "Y"), made, scored), Store(None)
    store.commit(shared, results)

    named = {"setting": "s", "model": "net", "method": "ig", "image_id": "", "label": None}
    of_x, of_y = {**named, "metric": "x", "metric_key": "X"}, {**named, "metric": "y", "metric_key": "Y"}
    nothing = {"target": None, "confidence": None, "score": None, **made["b"]}
    lost = {**made["d"], "score": None}
    both = {**made["c"], "flags": ["flat", "tied"], "extras": [("chance", 0.25)], "curves": [("raw", [0.0, 1.0])]}
    one = {**made["a"], "flags": ["tied"], "extras": [("chance", 0.5)], "curves": [("raw", [2.0, 3.0])]}
    expected = [
        {**of_x, "image": "a", "score": None, **one},
        {**of_x, "image": "b", **nothing},
        {**of_x, "image": "c", "score": 0.5, **both},
        {**of_x, "image": "d", **lost},
        {**of_x, "image": "e", "score": -1.0, **sound, "curves": [("raw", [4.0, 5.0, 6.0])]},
        {**of_y, "image": "a", **made["a"], "score": None, "status": "failed", "error": "metric y: no"},
        {**of_y, "image": "b", **nothing},
        {**of_y, "image": "c", "score": 1.0, **made["c"]},
        {**of_y, "image": "d", **lost},
        {**of_y, "image": "e", "score": -1.0, **sound, "curves": [("raw", [4.0, 5.0, 6.0])]},
    ]
    lists = {"flags": [], "diagnostics": [], "extras": [], "curves": []}
    rows = sorted(records_in(store, dict.fromkeys("abcde")), key=lambda row: (row.metric, row.image))
    assert rows == [ScoreRecord(**{**lists, **row}) for row in expected]
    assert [one.image for one in results if one.failed] == ["a", "b", "d"]


def test_the_images_of_a_task_are_stored_in_its_order_so_that_another_run_knows_it(tmp_path):
    """Whichever of them fail, or are of another size."""
    for number, size in enumerate([(8, 8), (16, 4), (8, 8)]):
        picture(tmp_path / f"{number}_a.png", number, size)
    (tmp_path / "3_a.png").write_bytes(b"")
    model = net_file(tmp_path / "net.py", resize="none")
    resolved = resolve(plan((str(tmp_path),), n=4, models=(model,), metrics=BOTH))
    (unit,) = pending_tasks(resolved.manifest, (), 4)
    done = TaskRunner(resolved).perform(unit)
    assert tuple(one.image for one in done.results) == unit.images
