"""Many units in one process: what is open and what is held does not grow with what is done."""

import contextlib
import gc
import os
import pathlib
import sys
import tracemalloc

import pytest
from synthetic_units import expected, job, manifest, table

from fringe.bench.experiments import RunLog
from fringe.bench.experiments._executors import SerialExecutor, run_tasks
from fringe.bench.experiments._results import Results
from fringe.bench.experiments._store import Store

UNITS = 800


def opened(folder):
    """Open files of the folder: not those of the process, whose connections the servers of earlier tests close."""
    paths = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            paths.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return sum(path.startswith(str(folder)) for path in paths)


def held():
    """MiB that Python and NumPy hold, without the interpreter's table of the names that pathlib interns, which grows by
    jumps of 4 to 15 MiB and keeps none of them."""
    gc.collect()
    traces = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(False, pathlib.__file__)]).traces
    return sum(trace.size for trace in traces) / 2**20


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.thorough
def test_open_files_and_memory_stay_flat(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # what is asked here is not the disk's to answer
    asked, seen = manifest(tuple(f"method-{i}" for i in range(UNITS // 10)), 20, ("a",)), []
    work = job(tmp_path, asked)

    def watch(report):
        if len(account.reports) % 100 == 0:
            seen.append((opened(tmp_path), held()))

    account = RunLog(ended=watch)
    tracemalloc.start()
    try:
        run_tasks(work, work.store, work.left(), account, SerialExecutor())
    finally:
        tracemalloc.stop()
    assert account.count("done") == UNITS
    files, memory = zip(*seen, strict=True)
    assert max(files) == min(files)
    # MiB in 500 units: their reports are 1.2, and the content of their files, if it were held, 2.8 more
    assert max(memory[3:]) - memory[2] < 2

    stores, files = [], []  # what is closed holds no file, though it may still be asked
    for _ in range(3):
        with Store(tmp_path / "run") as store:
            assert all(cell.scored == 20 for cell in Results(asked, store).cells.values())
        stores.append(store)
        files.append(opened(tmp_path))  # SQLite keeps one for the next, as the run's own store still locks the file
    assert max(files) == min(files)
    assert table(store) == expected(asked)
    assert work.left() == []
