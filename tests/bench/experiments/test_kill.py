"""``kill -9``, signals and full disks at every step of a commit and of a copy: nothing that was acknowledged is lost,
nothing is doubled, and the next run ends with the same table."""

import multiprocessing
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from forked_runs import Steps, end_of, fork, spawn_quickly
from poison_methods import Signalled
from small_plans import IG, digits_plan, done_units, models, small
from synthetic_units import SHARD, SyntheticRunner, commit, expected, job, leftovers, manifest, note, noted, table

from fringe import IntegratedGradients
from fringe._files.disk import StoreFull
from fringe.bench.experiments import RunLog, RunOptions, Store, _run, pending_tasks, run_plan
from fringe.bench.experiments._executors import ProcessExecutor, SerialExecutor, run_tasks
from fringe.bench.experiments._manifest import Resolved
from fringe.bench.experiments._run import Interrupted, interruptible
from fringe.errors import FringeError, InputError, TransientError

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs fork and /proc")
ASKED = manifest(images=8)


@pytest.fixture(params=["disk", "bucket"])
def place(request, monkeypatch, tmp_path):
    """Where a run is stored; a folder stands for the object store, so that it outlives a process."""
    if request.param == "disk":
        return tmp_path / "run"
    from fsspec.implementations.local import LocalFileSystem

    class Stored(LocalFileSystem):
        cachable = False

    monkeypatch.setattr("fringe.bench.experiments._places.INTERVAL", -1.0)  # a copy after each commit
    (tmp_path / "bucket").mkdir()
    path = str(tmp_path / "bucket" / "run")
    monkeypatch.setattr(
        "fringe.bench.experiments._places.open_store", lambda url, argument: (Stored(auto_mkdir=True), path)
    )
    return Path("gs://bucket/run")


def run_synthetic(base, place):
    """Four tasks; what was committed is noted."""
    with Store(place) as store:
        store.clean()
        work = SyntheticRunner(Resolved(None, ASKED, {}, ()), base)
        store.write_record("plan", ASKED.name, ASKED.record())
        tasks = pending_tasks(ASKED, store.blocks(), SHARD)
        log = RunLog(ended=lambda report: note(base / "reported", name(report)))
        run_tasks(work, store, tasks, log, SerialExecutor())


def name(report):
    return " ".join(report.task.images)


def struck(base, place, chosen):
    with Steps(chosen, lambda: os.kill(os.getpid(), signal.SIGKILL)):
        run_synthetic(base, place)


def counted_steps(base, place):
    with Steps() as steps:
        run_synthetic(base, place)
    return steps.count


def finish(base, place, step):
    """Nothing of what a dead run reported is lost or doubled, and the next run ends with the whole table."""
    reported = noted(base / "reported")
    stored = Store(place, create=False) if Store.existing(place) else None
    known = {row[2] for row in table(stored)} if stored else set()
    assert {image for line in reported for image in line.split()} <= known, step
    assert stored is None or not stored.damaged(), step
    assert stored is None or table(stored).items() <= expected(ASKED).items(), step
    if stored:
        stored.close()
    run_synthetic(base, place)
    again = [line for line in noted(base / "reported")[len(reported) :] if set(line.split()) & known]
    assert not again, step
    with Store(place, create=False) as reader:
        assert table(reader) == expected(ASKED), step
    assert leftovers(base / "run") == [], step


def clear(base):
    for path in sorted(base.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()


@linux
def test_killed_at_some_steps(place, tmp_path):
    total = counted_steps(tmp_path, place)
    for chosen in range(40, total, total // 3):
        clear(tmp_path)
        assert end_of(fork(struck, tmp_path, place, chosen)) == -signal.SIGKILL, (chosen, total)
        finish(tmp_path, place, chosen)


def copied(base, place, copies):
    """Copy the files before each line of the store, unless they are those of a line before."""
    seen, last = set(), []

    def copy():
        found = [(path, path.is_file() and path.read_bytes()) for path in sorted(base.rglob("*"))]
        if found == last:
            return
        last[:] = found
        state = hash(tuple(found))
        if state not in seen:
            seen.add(state)
            shutil.copytree(base, copies / str(len(seen)))

    with Steps("all", copy):
        run_synthetic(base, place)


@linux
@pytest.mark.thorough
@pytest.mark.timeout(1800)
def test_killed_before_any_line(place, tmp_path, tmp_path_factory):
    """A killed process leaves its files as they are: each state in which they are between two lines is tried."""
    copies = tmp_path_factory.mktemp("copies")
    clear(tmp_path)
    assert end_of(fork(copied, tmp_path, place, copies)) == 0
    states = sorted(copies.iterdir(), key=lambda path: int(path.name))
    assert len(states) > 10
    for state in states:
        clear(tmp_path)
        shutil.copytree(state, tmp_path, dirs_exist_ok=True)
        finish(tmp_path, place, state.name)


@linux
def test_a_signal_at_some_steps_of_a_commit_leaves_no_claim(place, tmp_path):
    total = counted_steps(tmp_path, place)
    for chosen in range(total // 3, total, total // 3):
        clear(tmp_path)
        stop = Steps(chosen, lambda: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(Interrupted, match="SIGTERM"), interruptible(), stop:
            run_synthetic(tmp_path, place)
        run_synthetic(tmp_path, place)  # this process holds no claim any more, or this would wait for ever
        assert table(Store(place)) == expected(ASKED)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_amid_a_method_ends_the_run_and_is_no_failure_of_it(tmp_path, number):
    before = [signal.getsignal(known) for known in (signal.SIGINT, signal.SIGTERM)]
    signalled = Signalled(int(number), str(tmp_path / "cure"))
    plan = small(models=models(ig=IG, signalled=signalled, last=IntegratedGradients(steps=4)))
    first = run_plan(plan, tmp_path / "run", RunOptions())
    assert first.stopped == f"interrupted ({number.name})"
    assert done_units(first) == {("ig", ("sparseness", "insertion"), 1): 1}
    assert {row.status for row in table(Store(tmp_path / "run")).values()} == {"ok"}
    assert [signal.getsignal(known) for known in (signal.SIGINT, signal.SIGTERM)] == before
    (tmp_path / "cure").touch()
    second = run_plan(plan, tmp_path / "run", RunOptions())
    assert (second.stopped, second.partial, second.log.count("done")) == (None, False, 5)


def test_a_signal_with_processes_ends_them(tmp_path, monkeypatch):
    spawn_quickly(monkeypatch)
    told = RunLog(ended=lambda report: os.kill(os.getpid(), signal.SIGINT))
    first = run_plan(small(n=4), tmp_path, RunOptions(executor=ProcessExecutor(2)), told)
    assert first.stopped == "interrupted (SIGINT)"
    assert 0 < first.log.count("done") < 4
    assert multiprocessing.active_children() == []
    assert run_plan(small(n=4), tmp_path, RunOptions()).stopped is None
    assert len(table(Store(tmp_path))) == 4 * 2
    assert leftovers(tmp_path) == []


def test_of_two_runs_with_other_settings_that_begin_at_once_one_is_refused_before_it_computes(tmp_path, monkeypatch):
    check, refusals, others = _run._check_compatible, [], []

    def other():
        try:
            run_plan(small(seed=2), tmp_path, RunOptions())
        except InputError as error:
            refusals.append(str(error))

    def checked(*given, **named):
        check(*given, **named)
        if not others:  # the other run begins after this one saw that there is no plan
            others.append(threading.Thread(target=other))
            others[0].start()
            time.sleep(0.5)

    monkeypatch.setattr(_run, "_check_compatible", checked)
    assert run_plan(small(seed=1), tmp_path, RunOptions()).log.count("done") == 2
    others[0].join()
    assert len(refusals) == 1
    assert "holds a digits with other settings (seed: 1, now 2)" in refusals[0]
    assert len(table(Store(tmp_path))) == 2 * 2


# The disk


@pytest.fixture
def mounted(tmp_path):
    """A file system of four megabytes, and of 80 files."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m,nr_inodes=80", "tmpfs", place], capture_output=True)
    if made.returncode:
        pytest.skip(f"cannot mount a file system here: {made.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def fill(place, left):
    room = os.statvfs(place)
    (place / "ballast").write_bytes(b"x" * (room.f_bavail * room.f_frsize - left))


def many_files(place, left):
    for number in range(os.statvfs(place).f_ffree - left):
        (place / f"ballast-{number}").touch()


@linux
@pytest.mark.parametrize(
    ("take", "left"),
    [
        (fill, 150_000),
        pytest.param(fill, 0, marks=pytest.mark.thorough),
        (many_files, 2),
        pytest.param(many_files, 1, marks=pytest.mark.thorough),
    ],
)
def test_a_full_disk_stops_the_run_until_there_is_room(mounted, tmp_path, take, left):
    plan, out = digits_plan(shard=1), mounted / "run"
    take(mounted, left)
    done, said = 0, ""
    try:
        first = run_plan(plan, out, RunOptions())
        done, said = first.log.count("done"), first.stopped
    except FringeError as error:  # a run that cannot begin
        said = str(error)
    assert "no space left" in said.lower()
    assert done < 28
    for path in mounted.glob("ballast*"):
        path.unlink()
    second = run_plan(plan, out, RunOptions())
    assert (second.stopped, second.log.count("done")) == (None, 28 - done)
    run_plan(plan, tmp_path / "whole", RunOptions())
    assert table(Store(out)) == table(Store(tmp_path / "whole"))


@linux
def test_a_read_only_file_system(mounted):
    run_plan(small(n=1), mounted / "run", RunOptions())
    subprocess.run(["mount", "-o", "remount,ro", mounted], check=True)
    for out in (mounted / "run", mounted / "new"):
        with pytest.raises(InputError, match=rf"^out: .*{out.name}.*Read-only file system"):
            run_plan(small(), out, RunOptions())
    assert len(table(Store(mounted / "run", create=False))) == 2  # reading needs no right to write


@pytest.mark.parametrize(
    ("code", "kind", "told"),
    [
        (28, StoreFull, "no space left"),
        (122, StoreFull, "no space left"),
        (30, InputError, r"^out: .* cannot be written \(Read-only file system\)"),
        (5, TransientError, r"a result cannot be written \(Input/output error\); nothing that was computed before"),
        (None, TransientError, r"a result cannot be written \(attempt to write a readonly database\)"),
    ],
)
def test_what_the_system_says_of_a_commit_that_fails(tmp_path, monkeypatch, code, kind, told):
    work = job(tmp_path, ASKED)
    first, *rest = work.left()
    commit(work.store, first)
    work.store._db.execute("PRAGMA query_only = ON")

    def fails(*given, **named):
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        if code is not None:
            patch.setattr(tempfile, "TemporaryFile", fails)
        with pytest.raises(kind, match=told):
            run_tasks(work, work.store, rest, RunLog(), SerialExecutor())
    work.store._db.execute("PRAGMA query_only = OFF")
    run_tasks(work, work.store, rest, RunLog(), SerialExecutor())
    assert table(work.store) == expected(ASKED)


def test_a_file_that_has_room_for_no_page_more_is_a_full_disk(tmp_path):
    store = Store(tmp_path)
    store.write_record("logits", "a", {"x": [1.0]})
    store._db.execute("PRAGMA max_page_count = 9")
    with pytest.raises(StoreFull, match="no space left"):
        store.write_record("logits", "b", {"x": [0.5] * 50_000})
    store.write_record("logits", "c", {"x": [3.0]})
    assert Store(tmp_path, create=False).records("logits") == {"a": {"x": [1.0]}, "c": {"x": [3.0]}}


@linux
def test_a_claim_of_a_dead_process_is_free_and_that_of_a_living_one_is_not(tmp_path):
    store, other = Store(tmp_path), Store(tmp_path)
    assert (store.claim("unit"), other.claim("unit"), other.claim("another")) == ("claimed", "locked", "claimed")
    store.release("unit")
    assert other.claim("unit") == "claimed"
    other.close()
    assert store.claim("unit") == "claimed"
    store.release("unit")
    assert end_of(fork(lambda: Store(tmp_path).claim("unit"))) == 0
    assert store.claim("unit") == "claimed"
    for owner in ("elsewhere-1-1~00", "", "[", "\udcff"):  # of another machine, or not written by this program
        store._db.execute("UPDATE claim SET owner = ?", (owner.encode(errors="replace").decode(),))
        assert store.claim("unit") == "claimed"


def test_readers_do_not_stop_a_writer_that_closes(tmp_path):
    store = Store(tmp_path)
    store.write_record("logits", "a", {"x": [1.0]})
    reader = sqlite3.connect(tmp_path / "run.db", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM record").fetchall()
    store.close()
    reader.close()
    assert Store(tmp_path, create=False).records("logits") == {"a": {"x": [1.0]}}


@pytest.mark.parametrize("count", [1, 3])
def test_a_kill_amid_a_copy_to_an_object_store_costs_what_came_after_the_last_one(tmp_path, monkeypatch, count):
    """What a later reader finds is one copy or the other, whole."""
    from fsspec.implementations.local import LocalFileSystem

    (tmp_path / "bucket").mkdir()
    system = LocalFileSystem(auto_mkdir=True)
    opened = lambda url, argument: (system, str(tmp_path / "bucket" / "run"))  # noqa: E731
    monkeypatch.setattr("fringe.bench.experiments._places.open_store", opened)
    place = Path("gs://bucket/run")
    with Store(place) as store:
        for task in pending_tasks(ASKED, (), SHARD)[:count]:
            commit(store, task)
    put, store = system.put_file, Store(place)
    commit(store, pending_tasks(ASKED, (), SHARD)[count])

    def cut(local, remote, **named):
        put(local, remote, **named)
        raise OSError(5, "killed")

    monkeypatch.setattr(system, "put_file", cut)
    with pytest.raises(TransientError, match="nothing that was copied before is lost"):
        store.close()
    monkeypatch.setattr(system, "put_file", put)
    assert len(table(Store(place, create=False))) == count * SHARD * 2
