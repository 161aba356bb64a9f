"""What is missing, counted by hand: images in blocks, metrics that are there, limits, another shard."""

import itertools
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from fringe._files.records import digest
from fringe.bench.experiments._manifest import Manifest
from fringe.bench.experiments._records import fingerprint, results_of
from fringe.bench.experiments._results import Results
from fringe.bench.experiments._store import Store
from fringe.bench.experiments._tasks import orphaned, pending_tasks


def manifest(images=5, methods=("ig", "fringe"), limits=None, models=("a",)):
    """A manifest of these counts; ``limits`` gives each metric's number of images."""
    limits = {"insertion": images, "deletion": images} if limits is None else limits
    return Manifest(
        plan={"name": "plan", "n": images},
        images=tuple({"digest": f"image-{i}", "id": f"{i}", "source": "", "label": None} for i in range(images)),
        missing=(),
        settings={model: {method: {"model": model, "method": method} for method in methods} for model in models},
        metrics={name: {"settings": {"metric": name}, "key": f"key-{name}", "limit": n} for name, n in limits.items()},
        models={},
        versions={},
    )


def spread(units):
    """(method, metrics, images) of every unit."""
    return [(u.method, "+".join(u.metrics), [int(name.removeprefix("image-")) for name in u.images]) for u in units]


def keys_of(unit):
    return ((unit.setting, metric, image) for metric in unit.metric_keys for image in unit.images)


def required_keys(plan):
    """Keys of every score that a plan requires."""
    for model, methods in plan.settings.items():
        for method, (metric, known) in itertools.product(methods, plan.metrics.items()):
            setting = plan.setting_key(model, method)
            yield from ((setting, known["key"], image["digest"]) for image in plan.images_of(model, metric))


def asked(plan):
    return set(required_keys(plan))


def stored(keys, status="ok"):
    """A row for each key."""
    store = Store(None)
    for setting, metric, image in keys:
        names = {"model": "net", "method": "ig", "setting_key": setting, "setting": {}, "labels": ["x"]}
        about = {**names, "metrics": [metric], "metric_settings": {}, "versions": {}, "map_versions": []}
        store.commit(about, results_of([metric], {image: {"status": status}}, ()))
    return store.blocks()


def test_an_empty_store_lacks_all_block_by_block():
    both = "insertion+deletion"
    assert spread(pending_tasks(manifest(), (), 2)) == [
        ("ig", both, [0, 1]),
        ("fringe", both, [0, 1]),
        ("ig", both, [2, 3]),
        ("fringe", both, [2, 3]),
        ("ig", both, [4]),
        ("fringe", both, [4]),
    ]
    assert len(list(required_keys(manifest()))) == 5 * 2 * 2


def test_models_come_one_after_the_other():
    units = pending_tasks(manifest(images=2, models=("a", "b")), (), 1)
    assert [unit.model for unit in units] == ["a"] * 4 + ["b"] * 4
    assert len({unit.key for unit in units}) == 8


def test_images_of_a_block_that_lack_the_same_make_a_unit():
    plan = manifest(4, ("ig",))
    setting = plan.setting_key("a", "ig")
    have = stored({(setting, "key-insertion", "image-1"), (setting, "key-insertion", "image-3")})
    assert spread(pending_tasks(plan, have, 4)) == [
        ("ig", "insertion+deletion", [0, 2]),
        ("ig", "deletion", [1, 3]),
    ]


def test_limits_cut_a_metric_off():
    plan = manifest(5, ("ig",), {"insertion": 5, "costly": 3})
    assert spread(pending_tasks(plan, (), 2)) == [
        ("ig", "insertion+costly", [0, 1]),
        ("ig", "insertion+costly", [2]),
        ("ig", "insertion", [3]),
        ("ig", "insertion", [4]),
    ]
    assert len(list(required_keys(plan))) == 5 + 3
    raised = manifest(5, ("ig",), {"insertion": 5, "costly": 4})
    assert spread(pending_tasks(raised, stored(asked(plan)), 2)) == [("ig", "costly", [3])]
    assert spread(pending_tasks(manifest(3, ("ig",), {"costly": 0}), (), 2)) == []


def test_two_labels_of_one_setting_are_one_name():
    """A method twice under two labels is computed once: the second unit is there when its turn comes."""
    plan = manifest(2, ("ig",))
    twice = Manifest(**{**vars(plan), "settings": {"a": {"ig": {"m": 1}, "again": {"m": 1}}}})
    first, second = pending_tasks(twice, (), 2)
    assert first.key == second.key
    assert len(asked(twice)) == 2 * 2


def test_the_key_of_a_unit():
    """The order of metrics and the labels are not in it; settings, metrics and images are."""
    (unit,) = pending_tasks(manifest(2, ("ig",)), (), 2)
    (turned,) = pending_tasks(manifest(2, ("ig",), {"deletion": 2, "insertion": 2}), (), 2)
    (renamed,) = pending_tasks(manifest(2, ("ig",)), (), 2, retry=True)
    assert unit.key == turned.key == renamed.key
    assert unit.key == digest(
        [digest({"model": "a", "method": "ig"}), ["key-deletion", "key-insertion"], list(unit.images)]
    )
    others = [
        pending_tasks(manifest(2, ("gi",)), (), 2)[0],
        pending_tasks(manifest(2, ("ig",), {"insertion": 2}), (), 2)[0],
        pending_tasks(manifest(2, ("ig",)), (), 1)[0],
    ]
    assert len({unit.key, *(other.key for other in others)}) == 4


def test_what_is_kept_beside_a_unit_gives_back_its_scores():
    plan = manifest(5, ("ig",), {"insertion": 5, "costly": 3})
    for unit in pending_tasks(plan, (), 2):
        about = unit.about(plan, {"fringe": "1"}, [])
        assert (about["setting_key"], tuple(about["metrics"])) == (unit.setting, unit.metric_keys)
        assert about["setting"] == plan.settings["a"]["ig"]
        assert about["metric_settings"] == {name: {"metric": name} for name in unit.metrics}


def test_lost_maps_are_tasks_and_join_those_of_missing_scores():
    plan = manifest(4, ("ig",), {"insertion": 4})
    setting = plan.setting_key("a", "ig")
    have = stored({(setting, "key-insertion", f"image-{i}") for i in (0, 1, 2)})
    lost = {setting: frozenset({fingerprint("image-1"), fingerprint("image-3"), fingerprint("elsewhere")})}
    units = pending_tasks(plan, have, 4, lost=lost)
    assert spread(units) == [("ig", "", [1]), ("ig", "insertion", [3])]
    assert [unit.save for unit in units] == [True, True]
    assert not any(unit.save for unit in pending_tasks(plan, have, 4))


@settings(max_examples=50)
@given(st.integers(1, 9), st.integers(1, 10), st.integers(0, 9), st.sets(st.integers(0, 35)), st.sampled_from([1, 2]))
def test_units_are_exactly_what_is_missing(images, shard, limit, there, methods):
    """Whatever is there, the units hold each missing score once, and no other."""
    plan = manifest(images, ("ig", "fringe")[:methods], {"insertion": images, "costly": min(limit, images)})
    every = sorted(asked(plan))
    have = {name for i, name in enumerate(every) if i in there}
    units = pending_tasks(plan, stored(have), shard)
    found = Counter(name for unit in units for name in keys_of(unit))
    assert found == Counter(set(every) - have)
    assert all(len(unit.images) <= shard for unit in units)


@settings(max_examples=50)
@given(st.integers(1, 9), st.integers(1, 10), st.sets(st.integers(0, 17)), st.sets(st.integers(0, 17)))
def test_a_retry_lacks_what_failed_too_and_forces_it_alone(images, shard, fine, bad):
    """A valid score counts, whichever came first; a task is forced where one of its scores failed."""
    plan = manifest(images, ("ig",))
    every = sorted(asked(plan))
    good, failed = ({name for i, name in enumerate(every) if i in there} for there in (fine, bad))
    units = pending_tasks(plan, [*stored(good), *stored(failed, "failed")], shard, retry=True)
    assert Counter(name for unit in units for name in keys_of(unit)) == Counter(set(every) - good)
    assert all(unit.force == bool(failed & set(keys_of(unit))) for unit in units)
    assert not any(unit.force for unit in pending_tasks(plan, stored(failed, "failed"), shard))


def test_what_a_plan_requires_is_what_it_lists():
    images = tuple({"digest": name, "id": name, "source": name, "label": None} for name in "pqrs")
    limits = {"k": 4, "l": 2}
    metrics = {label: {"key": label, "limit": limit, "settings": {}} for label, limit in limits.items()}
    about = Manifest({"name": "p"}, images, (), {"net": {"ig": {"m": 1}}}, metrics, {}, {})
    setting = about.setting_key("net", "ig")
    listed = set(required_keys(about))
    assert len(listed) == 6
    for key in itertools.product((setting, "other"), "klz", "pqrsz"):
        (task,) = stored([key])
        assert bool(Results(about, Store(None), [task]).blocks) == (key in listed)
        assert len(orphaned([task], [Results(about, Store(None), [task])])) == (key not in listed)
