"""Files of tasks are packed into few: the same results, whoever dies or writes meanwhile, and nothing is read twice."""

import json
import random
import signal
import sys
import time
from dataclasses import replace

import forked_runs
import pyarrow.parquet as pq
import pytest
import torch
from small_plans import IG, arms, digits_plan
from synthetic_units import SHARD, expected, leftovers, manifest, noted, rows_of, table

from fringe.experiments import (
    RunOptions,
    _executors,
    _store,
    committed_keys,
    pending_tasks,
    read_results,
    read_status,
    run_plan,
)
from fringe.experiments._disk import Disk
from fringe.experiments._formats import StoredMap
from fringe.experiments._manifest import digest
from fringe.experiments._packs import Pack, Packs, pack_bytes
from fringe.experiments._sealed import Damaged, SealedFile
from fringe.experiments._store import MARKER, Store

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs fork and /proc")
METHODS, IMAGES = ("fine", "too"), 12


def filled(root, methods=METHODS, images=IMAGES):
    """A run folder with a file for each task of a plan."""
    bare, store = manifest(methods, images), Store(root)
    parts = {name: {} for name in ("models", "preprocessing", "methods", "metrics", "limits")}
    asked = replace(bare, plan={**bare.plan, **parts})
    store.write_record("plans", asked.name, asked.record())
    for unit in pending_tasks(asked, (), SHARD):
        store.commit(unit.key, rows_of(unit), {**unit.record(asked), "failed": [], "versions": {"fringe": "1"}})
    return store, asked


@pytest.fixture
def few(monkeypatch):
    """Four files of tasks are many."""
    monkeypatch.setattr(_store, "PACKED_FROM", 4)
    monkeypatch.setattr(_executors, "COMPACT_EVERY", 1)


def packs(store):
    return sorted((store.root / "packs").iterdir())


def test_packed_tasks_are_what_they_were(few, tmp_path):
    store, asked = filled(tmp_path / "run")
    before, tasks, metadata = table(store), store.tasks(), store.metadata()
    status, frame = read_status(store.root), read_results(store).frame
    store.compact()
    assert store.loose() == []
    assert len(packs(store)) == 2 * 3  # 12 tasks, 4 in a pack
    for again in (store, Store(store.root, create=False)):
        assert (table(again), again.tasks(), again.metadata()) == (before, tasks, metadata)
        assert all(again.read(key) for key in tasks)
        assert read_results(again).frame.equals(frame)
        assert read_status(store.root) == status
    assert before == expected(asked)
    assert len(committed_keys(store)) == len(before)
    assert pending_tasks(asked, committed_keys(store), SHARD) == []
    (first, *_) = [path for path in packs(store) if ".scores." in path.name]
    assert set(pq.read_table(first).column("status").to_pylist()) == {"ok"}  # others can read it


@pytest.mark.parametrize("kind", ["scores", "details"])
def test_every_flipped_byte_of_a_pack_is_seen(few, tmp_path, kind):
    store, asked = filled(tmp_path / "run", images=4)
    store.compact()
    (path,) = [path for path in packs(store) if f".{kind}." in path.name]
    content = path.read_bytes()

    def damage():
        with path.open("rb") as file:
            return SealedFile(file, path.stat().st_size).damaged()

    assert damage() == []
    for place in (*range(4, len(content), 7), *range(len(content) - 70, len(content))):  # the first 4 are never read
        path.write_bytes(content[:place] + bytes([content[place] ^ 1 << place % 8]) + content[place + 1 :])
        try:
            assert damage() != [], place
        except Damaged:
            continue
    path.write_bytes(content)
    assert table(store) == expected(asked)


@pytest.mark.parametrize("kind", ["scores", "details"])
def test_of_a_damaged_pack_only_the_damaged_method_is_computed_again(few, tmp_path, kind):
    store, asked = filled(tmp_path / "run", images=4)
    store.compact()
    (path,) = [path for path in packs(store) if f".{kind}." in path.name]
    content = bytearray(path.read_bytes())
    content[200] ^= 1  # in the first of two row groups
    path.write_bytes(content)
    if kind == "scores":
        with pytest.warns(UserWarning, match="is damaged; its scores count as missing"):
            cells = read_results(Store(store.root, create=False)).coverage()
        assert sorted((cell.method, cell.missing) for cell in cells if cell.missing) in (
            [("fine", 4)] * 2,
            [("too", 4)] * 2,
        )
        assert len(read_status(store.root)["damaged"]) == 1
    again = Store(store.root)
    with pytest.warns(UserWarning, match="is damaged: set aside"):
        again.quarantine_damaged()
    assert again.damaged() == {}
    missing = pending_tasks(asked, committed_keys(again), SHARD)
    assert len(missing) == 2
    assert len({unit.method for unit in missing}) == 1
    for unit in missing:
        again.commit(unit.key, rows_of(unit), unit.record(asked))
    assert table(again) == expected(asked)


@pytest.mark.parametrize("left", [0, 4, 100, -100, -1])
def test_a_torn_pack_is_set_aside(few, tmp_path, left):
    store, asked = filled(tmp_path / "run", images=4)
    store.compact()
    for path in packs(store):
        path.write_bytes(path.read_bytes()[:left])
    again = Store(store.root)
    assert again.metadata() == {}
    with pytest.warns(UserWarning, match="is damaged: set aside"):
        again.quarantine_damaged()
    assert packs(again) == []
    assert len(pending_tasks(asked, committed_keys(again), SHARD)) == 4


def test_packed_tasks_that_are_no_longer_true_are_set_aside(few, tmp_path):
    store, asked = filled(tmp_path / "run")
    every = store.tasks()
    store.compact()
    store.commit("loose", rows_of(pending_tasks(asked, (), SHARD)[0]), {"metric_keys": [], "images": []})
    store.quarantine_tasks([*every[:7], "loose"])
    assert store.tasks() == every[7:]
    assert set(table(store)) < set(expected(asked))
    assert len(list((store.root / "aside").iterdir())) >= 3


def test_of_two_records_of_a_score_the_one_with_a_score_counts(few, tmp_path):
    store, asked = filled(tmp_path / "run", methods=("fine",), images=2)
    (unit,) = pending_tasks(asked, (), SHARD)
    failed = [replace(row, status="failed", score=None, error="x") for row in rows_of(unit)]
    for key in ("a", "b", "c"):
        store.commit(key, failed, {**unit.record(asked), "failed": [[row.metric_key, row.image] for row in failed]})
    for _ in range(2):
        assert [cell.scored for cell in read_results(Store(store.root)).coverage()] == [2, 2]
        assert read_results(Store(store.root)).frame["score"].null_count() == 0
        store.compact()
    assert store.loose() == []


# Kills, and others at work


def fail(store, asked, unit):
    """Commit a task again, as one that failed."""
    failed = [replace(row, status="failed", score=None, error="x") for row in rows_of(unit)]
    pairs = [[row.metric_key, row.image] for row in failed]
    store.commit(unit.key, failed, {**unit.record(asked), "failed": pairs})


def whole_or_absent(base, asked):
    """Every task in the folder is complete, once, as it should be."""
    store = Store(base / "run")
    assert set(table(store)) <= set(expected(asked))
    assert all(row == expected(asked)[key] for key, row in table(store).items())
    return set(store.tasks())


@linux
@pytest.mark.parametrize("stride", [4, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.thorough
def test_killed_at_every_step_of_packing(tmp_path, stride):
    nursery, asked = forked_runs.nursery(), manifest(("fine",), 8)
    assert nursery.run(tmp_path / "steps", images=8, packed=3, step=-1) == [0]
    kinds = {"write": 3, "fsync": 2, "replace": 2, "mkdir": 1, "unlink": 1}
    lines = [json.loads(line) for line in noted(tmp_path / "steps" / "steps")]
    assert sum("packs" in line[-1] and line[0] == "replace" for line in lines) == 2
    assert sum(line[0] == "unlink" for line in lines) == 3
    total, killed = sum(kinds[line[0]] for line in lines), 0
    for step in range(20, total, stride):
        base, done = tmp_path / f"{step}", set()
        if nursery.run(base, images=8, packed=3, step=step) != [-signal.SIGKILL]:
            continue
        killed += 1
        if (base / "run" / MARKER).exists():
            done = whole_or_absent(base, asked)
        performed = len(noted(base / "log"))
        assert len(done) >= performed - 1
        assert nursery.run(base, images=8, packed=3) == [0]
        assert not set(noted(base / "log")[performed:]) & done  # nothing that was committed is computed again
        assert table(Store(base / "run")) == expected(asked)
        assert leftovers(base / "run") == []
    assert killed > 30 / stride


@linux
@pytest.mark.thorough
def test_two_runs_that_pack_and_are_killed(tmp_path):
    nursery, chance, asked = forked_runs.nursery(), random.Random(3), manifest(METHODS, 20)
    for trial in range(6):
        base = tmp_path / f"{trial}"
        nursery.run(base, methods=METHODS, images=20, runs=2, packed=2, after=chance.uniform(0.02, 0.4))
        done = whole_or_absent(base, asked) if (base / "run" / MARKER).exists() else set()
        before = noted(base / "log")
        assert len(set(before) - done) <= 2
        assert nursery.run(base, methods=METHODS, images=20, runs=2, packed=2) == [0, 0]
        assert table(Store(base / "run")) == expected(asked)
        assert not set(noted(base / "log")[len(before) :]) & done


def test_what_is_packed_while_it_is_read_is_not_missed(few, tmp_path, monkeypatch):
    store, asked = filled(tmp_path / "run")
    reader, real = Store(store.root, create=False), Disk.read

    def read(disk, name, *more):
        monkeypatch.setattr(Disk, "read", real)
        store.compact()  # after the reader has listed the files, before it reads the first
        return real(disk, name, *more)

    monkeypatch.setattr(Disk, "read", read)
    assert set(reader.metadata()) == {unit.key for unit in pending_tasks(asked, (), SHARD)}
    assert store.loose() == []


@pytest.mark.parametrize("amid", ["before the pack is written", "after it"])
def test_a_task_that_is_retried_while_it_is_packed_is_not_lost(few, tmp_path, monkeypatch, amid):
    store, asked = filled(tmp_path / "run", methods=("fine",), images=8)
    unit = pending_tasks(asked, (), SHARD)[0]
    fail(store, asked, unit)
    other, write = Store(store.root), Packs.write

    def retried():
        with other.lock(unit.key) as locked:
            assert locked
            other.commit(unit.key, rows_of(unit), {**unit.record(asked), "failed": []})

    def meanwhile(packs, tasks):
        if amid != "after it":
            retried()
        write(packs, tasks)
        if amid == "after it":
            retried()

    monkeypatch.setattr(Packs, "write", meanwhile)
    store.compact()
    assert {row.status for row in store.read(unit.key)[0]} == {"ok"}
    assert read_results(store).frame["score"].null_count() == 0
    assert committed_keys(store, failures=False).complete(unit.setting, frozenset(unit.metric_keys)) >= {*unit.images}
    assert len(store.loose()) == 1  # the others are packed


def test_a_task_that_is_being_retried_is_left_where_it_is(few, tmp_path):
    store, asked = filled(tmp_path / "run", methods=("fine",), images=8)
    unit = pending_tasks(asked, (), SHARD)[0]
    fail(store, asked, unit)
    with store.lock(unit.key):
        Store(store.root).compact()
    assert store.loose() == [unit.key]


def test_what_a_machine_packs_whose_clock_is_late_is_newer_all_the_same(few, tmp_path, monkeypatch):
    store, asked = filled(tmp_path / "run", methods=("fine",), images=8)
    for unit in (units := pending_tasks(asked, (), SHARD)):
        fail(store, asked, unit)
    store.compact()
    for unit in units:
        store.commit(unit.key, rows_of(unit), {**unit.record(asked), "failed": [], "versions": {"fringe": "2"}})
    late = time.time_ns() - 10**12
    monkeypatch.setattr(time, "time_ns", lambda: late)
    later = Store(store.root)
    write = Packs.write
    monkeypatch.setattr(Packs, "write", lambda packs, tasks: write(packs, {**tasks, "another": tasks[units[0].key]}))
    later.compact()
    assert len(packs(later)) == 4
    assert [task["failed"] for task in later.metadata().values()] == [[]] * 5
    assert {row.status for unit in units for row in later.read(unit.key)[0]} == {"ok"}


def test_tasks_that_are_mended_and_packed_together_are_seen_by_who_read_the_first_pack(few, tmp_path):
    store, asked = filled(tmp_path / "run", methods=("fine",), images=8)
    for unit in (units := pending_tasks(asked, (), SHARD)):
        fail(store, asked, unit)
    store.compact()
    reader = Store(store.root)
    assert all(reader.metadata()[unit.key]["failed"] for unit in units)
    for unit in units:
        store.commit(unit.key, rows_of(unit), {**unit.record(asked), "failed": []})
    store.compact()
    assert store.loose() == []
    assert [reader.metadata()[unit.key]["failed"] for unit in units] == [[]] * 4
    assert [reader.read(unit.key)[1]["failed"] for unit in units] == [[]] * 4


def test_a_pack_that_is_written_again_does_not_hide_what_was_mended_since(few, tmp_path):
    store, asked = filled(tmp_path / "run", methods=METHODS, images=4)
    unit = next(unit for unit in pending_tasks(asked, (), SHARD) if unit.method == "fine")
    fail(store, asked, unit)
    store.compact()
    (path,) = [path for path in packs(store) if ".scores." in path.name]
    for key in ("x", "y", "z"):
        store.commit(key, [], {**unit.record(asked), "images": [], "metric_keys": [], "failed": []})
    store.commit(unit.key, rows_of(unit), {**unit.record(asked), "failed": []})
    store.compact()
    assert len(packs(store)) == 4
    assert len(store.metadata()[unit.key]["failed"]) == 0
    too = next(unit for unit in pending_tasks(asked, (), SHARD) if unit.method == "too")
    pack = next(pack for pack in store.packs.list() if too.key in pack.tasks)
    with path.open("rb") as file:
        (start, *_) = SealedFile(file, path.stat().st_size).groups[pack.tasks[too.key].group]
    content = bytearray(path.read_bytes())
    content[start + 40] ^= 1
    path.write_bytes(content)
    again = Store(store.root)
    with pytest.warns(UserWarning, match="is damaged: set aside"):
        again.quarantine_damaged()
    assert again.metadata()[unit.key]["failed"] == []
    assert {row.status for row in again.read(unit.key)[0]} == {"ok"}


def test_two_that_begin_at_once_both_set_a_damaged_pack_aside(few, tmp_path, monkeypatch):
    store, asked = filled(tmp_path / "run", images=4)
    store.compact()
    path = next(path for path in packs(store) if ".scores." in path.name)
    content = bytearray(path.read_bytes())
    content[200] ^= 1  # in the first of two row groups
    path.write_bytes(content)
    table_of, others = Pack.table, []

    def meanwhile(pack, groups, columns):
        if not others:
            others.append(Store(store.root))
            others[0].quarantine_damaged()
        return table_of(pack, groups, columns)

    monkeypatch.setattr(Pack, "table", meanwhile)
    with pytest.warns(UserWarning, match="is damaged: set aside"):
        Store(store.root).quarantine_damaged()
    again = Store(store.root)
    assert again.damaged() == {}
    assert len(pending_tasks(asked, committed_keys(again), SHARD)) == 2  # of the four


def test_a_second_process_that_packs_leaves_it_to_the_first(few, tmp_path):
    store, _ = filled(tmp_path / "run")
    with store.lock("packs"):
        Store(store.root).compact()
        assert packs(store) == []
    Store(store.root).compact()
    assert len(packs(store)) == 6


# Nothing is read twice


class Counted:
    """Counts the calls of methods of :class:`Disk` by their first argument."""

    def __init__(self, monkeypatch, *names):
        self.calls = []
        for name in names:
            monkeypatch.setattr(Disk, name, self._counting(name, getattr(Disk, name)))

    def _counting(self, name, real):
        def call(disk, path, *more, **named):
            self.calls.append((name, path))
            return real(disk, path, *more, **named)

        return call


@pytest.mark.parametrize("images", [24, 96])
def test_a_status_opens_a_pack_a_few_times_whatever_is_in_it(tmp_path, monkeypatch, images):
    monkeypatch.setattr(_store, "PACKED_FROM", 96)
    store, _ = filled(tmp_path / "run", images=images)
    monkeypatch.setattr(_store, "PACKED_FROM", 4)
    monkeypatch.setattr("fringe.experiments._store.PACKED_FROM", images)
    store.compact()
    assert len(packs(store)) == 2
    count = Counted(monkeypatch, "open", "read")
    assert read_status(store.root)["plans"]["synthetic"]["cells"][0]["scored"] == images
    assert len(count.calls) <= 12


@pytest.mark.parametrize("images", [8, 40])
def test_a_pack_is_written_again_from_few_reads_whatever_is_in_it(tmp_path, monkeypatch, images):
    monkeypatch.setattr(_store, "PACKED_FROM", 4)
    store, _ = filled(tmp_path / "run", images=images)
    monkeypatch.setattr(_store, "PACKED_FROM", images)
    store.compact()
    assert len(packs(store)) == 2
    counted, every = Counted(monkeypatch, "open"), store.tasks()
    store.quarantine_tasks(every[:1])
    assert len(counted.calls) <= 12
    assert store.tasks() == every[1:]


def test_the_files_of_maps_are_each_opened_once(tmp_path, monkeypatch):
    store = Store(tmp_path / "run")
    for image in map(str, range(20)):
        store.commit_maps("s", {image: StoredMap(torch.zeros(1, 2, 2), {})})
    count = Counted(monkeypatch, "open", "read")
    for image in map(str, range(20)):
        assert set(store.load_maps("s", [image])) == {image}
    assert sum(name == "open" for name, _ in count.calls) == 20
    assert sum(name == "read" for name, _ in count.calls) == 20


def test_the_images_of_a_manifest_are_not_searched(tmp_path):
    class Images(tuple):
        passes = 0

        def __iter__(self):
            Images.passes += 1
            return super().__iter__()

    from fringe.experiments import TaskRunner, resolve

    resolved = resolve(digits_plan(arms=arms(ig=IG), n=8, shard=8))
    resolved = replace(resolved, manifest=replace(resolved.manifest, images=Images(resolved.manifest.images)))
    runner, tasks = TaskRunner(resolved), pending_tasks(resolved.manifest, (), 8)
    Images.passes = 0
    assert len(runner.perform(tasks[0]).rows) == 16
    assert Images.passes == 0


def test_lock_files_are_fewer_than_tasks(tmp_path):
    store = Store(tmp_path / "run")
    for number in range(5000):
        with store.lock(digest(number)) as mine:
            assert mine
    assert len(list((store.root / "claims").iterdir())) <= 4096


def test_a_run_packs_what_it_computes(few, tmp_path):
    assert run_plan(digits_plan(shard=1, n=3), tmp_path / "run", RunOptions(save_maps=True)).stopped is None
    store = Store(tmp_path / "run", create=False)
    assert len(store.loose()) < 4
    assert len(packs(store)) >= 4
    assert run_plan(digits_plan(shard=1, n=3), tmp_path / "run", RunOptions()).log.reports == []
    assert len(table(store)) == 5 * 2 * 3
    assert read_results(store).missing() == []


def test_a_pack_that_would_be_too_large_is_two(few, tmp_path, monkeypatch):
    store, asked = filled(tmp_path / "run")
    _, *parts = pack_bytes({key: store.read_loose(key) for key in store.loose()[:4]})
    monkeypatch.setattr("fringe.experiments._packs.RECORD_BYTES", max(map(len, parts)) - 1)
    store.compact()
    assert len(packs(store)) > 6
    assert table(store) == expected(asked)


def test_equal_tasks_make_packs_of_one_name(tmp_path):
    store, _ = filled(tmp_path / "run", images=4)
    tasks = {key: store.read_loose(key) for key in store.tasks()}
    assert pack_bytes(tasks)[0] == pack_bytes(dict(reversed(tasks.items())))[0]
