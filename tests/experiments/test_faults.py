"""A disk that is full, broken or read-only, files that are damaged later, and signals."""

import errno
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from forked_runs import Steps, spawn_quickly
from poison_methods import Signalled
from small_plans import IG, arms, digits_plan, done_units, small
from synthetic_units import expected, job, leftovers, manifest, table

from fringe import IntegratedGradients
from fringe.errors import FringeError, InputError, TransientError
from fringe.experiments import Progress, RunLog, RunOptions, run_plan
from fringe.experiments._executors import ProcessExecutor, SerialExecutor, run_tasks
from fringe.experiments._results import read_results, results_of
from fringe.experiments._run import Interrupted, interruptible
from fringe.experiments._store import Store, StoreFull

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs fork and /proc")

# The disk


@pytest.fixture
def mounted(tmp_path):
    """A file system of one megabyte."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place], capture_output=True)
    if made.returncode:
        pytest.skip(f"cannot mount a file system here: {made.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The table of the digits plan where nothing goes wrong."""
    out = tmp_path_factory.mktemp("whole") / "run"
    assert run_plan(digits_plan(shard=1), out, RunOptions()).stopped is None
    return table(Store(out))


@linux
def test_a_full_disk_stops_the_run_until_there_is_room(mounted, whole):
    out, ballast = mounted / "run", mounted / "ballast"
    room = os.statvfs(mounted)
    ballast.write_bytes(b"x" * (room.f_bavail * room.f_frsize - 200_000))
    first = run_plan(digits_plan(shard=1), out, RunOptions())
    needed = re.search(r"no space left \((\d+) bytes are needed; free some and run it again", first.stopped)
    assert 4_000 < int(needed[1]) < 40_000
    done = first.log.count("done")
    assert 2 < done < 20
    store = Store(out)
    assert len(store.metadata()) == len(store.tasks()) == done
    assert leftovers(out) == []
    again = run_plan(digits_plan(shard=1), out, RunOptions())
    assert "bytes are needed" in again.stopped
    assert again.log.count("done") == 0

    ballast.unlink()
    second = run_plan(digits_plan(shard=1), out, RunOptions())
    assert second.stopped is None
    assert second.log.count("done") == 20 - done
    assert table(store) == whole


@linux
def test_a_full_disk_where_a_run_would_begin(mounted):
    room = os.statvfs(mounted)
    (mounted / "run").mkdir()
    (mounted / "ballast").write_bytes(b"x" * (room.f_bavail * room.f_frsize))
    with pytest.raises(FringeError, match=r"no space left|No space left"):
        run_plan(small(), mounted / "run", RunOptions())
    (mounted / "ballast").unlink()
    assert run_plan(small(), mounted / "run", RunOptions()).log.count("done") == 2


@linux
def test_a_read_only_file_system(mounted):
    run_plan(small(n=1), mounted / "run", RunOptions())
    subprocess.run(["mount", "-o", "remount,ro", mounted], check=True)
    for out in (mounted / "run", mounted / "new"):
        with pytest.raises(InputError, match=rf"^out: .*{out.name}.*Read-only file system"):
            run_plan(small(), out, RunOptions())
    kept = Store(mounted / "run", create=False)  # reading needs no right to write
    assert len(kept.metadata()) == 1


@linux
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root, who can be somebody else")
def test_a_folder_of_somebody_else(tmp_path):
    tmp_path.chmod(0o700)
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.setuid(65534)
        try:
            Store(tmp_path / "run")
        except InputError as error:
            os.write(theirs, str(error).encode())
        os._exit(0)
    os.close(theirs)
    os.waitpid(child, 0)
    told = os.read(ours, 1000).decode()
    os.close(ours)
    assert told == f"out: cannot write in {str(tmp_path / 'run')!r} (Permission denied)"


FAULTS = {
    errno.ENOSPC: (StoreFull, r"no space left \(\d+ bytes are needed"),
    errno.EDQUOT: (StoreFull, r"no space left \(\d+ bytes are needed"),
    errno.EROFS: (InputError, r"^out: .* cannot be written \(Read-only file system\)"),
    errno.EACCES: (InputError, r"^out: .* cannot be written \(Permission denied\)"),
    errno.EIO: (TransientError, r"a result cannot be written \(Input/output error\); nothing that was computed before"),
    errno.ESTALE: (TransientError, r"a result cannot be written \(Stale file handle\)"),
}


def fail(code):
    def strike():
        raise OSError(code, os.strerror(code))

    return strike


def run_synthetic(base, asked, chosen, strike):
    """A run in which ``strike`` is called at a step: how many steps there were."""
    with Steps(base / "steps", chosen, strike) as steps:
        work = job(base, asked)
        account = RunLog()
        run_tasks(work, work.left(), account, lambda report: None, SerialExecutor())
    return steps.count


@linux
@pytest.mark.parametrize("code", FAULTS, ids=errno.errorcode.get)
def test_every_call_that_can_fail(tmp_path, code):
    """The second commit fails at each of its calls: the first unit stays, and the next run computes the others."""
    kind, told = FAULTS[code]
    asked = manifest(images=4)
    (tmp_path / "count").mkdir()
    total = run_synthetic(tmp_path / "count", asked, -1, None)
    last, silent = range(total - 9, total), 0
    for step in last:
        base = tmp_path / f"{step}"
        base.mkdir()
        raised = None
        try:
            run_synthetic(base, asked, step, fail(code))
        except FringeError as error:
            raised = error
        silent += raised is None
        assert raised is None or (type(raised) is kind and re.search(told, str(raised)))
        store = Store(base / "run")
        assert leftovers(base / "run") == []
        assert len(store.tasks()) == len(store.metadata()) >= 1
        run_synthetic(base, asked, -1, None)
        assert table(store) == expected(asked)
    assert silent == 2  # a folder that cannot be flushed, which some systems refuse


@linux
def test_a_full_disk_in_a_process_stops_them_all(mounted, monkeypatch):
    """What one process finds is raised where the run was asked for."""
    work = job(mounted, manifest(("fine", "too"), 40))
    room = os.statvfs(mounted)
    (mounted / "ballast").write_bytes(b"x" * (room.f_bavail * room.f_frsize - 60_000))
    spawn_quickly(monkeypatch)
    with pytest.raises(StoreFull, match="bytes are needed"):
        run_tasks(work, work.left(), RunLog(), lambda report: None, ProcessExecutor(2))
    (mounted / "ballast").unlink()
    work.store.remove_stale_files()
    assert leftovers(mounted / "run") == []
    assert len(work.store.metadata()) == len(work.store.tasks())
    run_tasks(work, work.left(), RunLog(), lambda report: None, SerialExecutor())
    assert table(work.store) == expected(manifest(("fine", "too"), 40))


# Shards that were damaged later


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content)


def swap(path):
    pq.write_table(pa.table({"score": [1.0]}), path)


DAMAGES = {
    "torn": lambda path: os.truncate(path, 1000),
    "empty": lambda path: os.truncate(path, 0),
    "flip": flip,
    "swap": swap,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_unit_shows_as_missing_and_is_computed_again(tmp_path, damage):
    plan = small(n=3)
    finished = run_plan(plan, tmp_path, RunOptions())
    store = Store(tmp_path)
    before, victim = table(store), store.tasks()[1]
    DAMAGES[damage](tmp_path / "units" / f"{victim}.parquet")
    assert [cell.missing for cell in results_of(store, finished.resolved.manifest).coverage()] == [1, 1]
    holes = [f"digits, ig, {metric}: 1 of 3 images are not computed" for metric in ("sparseness", "insertion")]
    assert read_results(store).missing() == holes
    again = run_plan(plan, tmp_path, RunOptions())
    assert [(report.task.key, report.state) for report in again.log.reports] == [(victim, "done")]
    assert table(store) == before
    assert read_results(store).missing() == []


# Signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_amid_a_method_ends_the_run_and_is_no_failure_of_it(tmp_path, number):
    before = [signal.getsignal(known) for known in (signal.SIGINT, signal.SIGTERM)]
    signalled = Signalled(int(number), str(tmp_path / "cure"))
    plan = small(arms=arms(ig=IG, signalled=signalled, last=IntegratedGradients(steps=4)))
    first = run_plan(plan, tmp_path / "run", RunOptions())
    assert first.stopped == f"interrupted ({number.name})"
    assert done_units(first) == {("ig", ("sparseness", "insertion"), 1): 1}
    assert {row.status for row in table(Store(tmp_path / "run")).values()} == {"ok"}
    assert [signal.getsignal(known) for known in (signal.SIGINT, signal.SIGTERM)] == before
    (tmp_path / "cure").touch()
    second = run_plan(plan, tmp_path / "run", RunOptions())
    assert second.stopped is None
    assert not second.partial
    assert second.log.count("done") == 5


@linux
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_at_every_step_of_a_commit(tmp_path, number):
    asked = manifest(images=4)
    (tmp_path / "count").mkdir()
    total = run_synthetic(tmp_path / "count", asked, -1, None)
    for step in range(total - 18, total):
        base = tmp_path / f"{step}"
        base.mkdir()
        with pytest.raises(Interrupted, match=number.name), interruptible():
            run_synthetic(base, asked, step, lambda: os.kill(os.getpid(), number))
        store = Store(base / "run")
        assert leftovers(base / "run") == []
        assert len(store.tasks()) == len(store.metadata())
        run_synthetic(base, asked, -1, None)  # this process holds no claim any more, or this would wait for ever
        assert table(store) == expected(asked)


@pytest.mark.thorough
def test_a_signal_at_any_time(tmp_path):
    """40 signals out of the blue, in a process that lives on."""
    asked, interrupted = manifest(("fine", "too"), 20), 0
    for trial in range(40):
        base = tmp_path / f"{trial // 8}"
        base.mkdir(exist_ok=True)
        work = job(base, asked)
        sender = threading.Timer(0.01 + 0.005 * (trial % 8), os.kill, (os.getpid(), signal.SIGTERM))
        try:
            with interruptible():
                sender.start()
                run_tasks(work, work.left(), RunLog(), lambda report: None, SerialExecutor())
                for _ in range(600):  # until the signal comes: out of this block it would end the tests
                    time.sleep(0.1)
        except Interrupted:
            interrupted += 1
        sender.join()
        assert len(work.store.tasks()) == len(work.store.metadata())
        assert leftovers(base / "run") == []
    assert interrupted == 40
    for base in sorted(tmp_path.iterdir()):
        work = job(base, asked)
        run_tasks(work, work.left(), RunLog(), lambda report: None, SerialExecutor())
        assert table(work.store) == expected(asked)


def test_a_signal_with_processes_ends_them(tmp_path, monkeypatch):
    spawn_quickly(monkeypatch)
    told = Progress(ended=lambda report: os.kill(os.getpid(), signal.SIGINT))
    first = run_plan(small(n=4), tmp_path, RunOptions(executor=ProcessExecutor(2)), told)
    assert first.stopped == "interrupted (SIGINT)"
    assert 0 < first.log.count("done") < 4
    assert multiprocessing.active_children() == []
    second = run_plan(small(n=4), tmp_path, RunOptions())
    assert second.stopped is None
    assert len(table(Store(tmp_path))) == 4 * 2
    assert leftovers(tmp_path) == []
