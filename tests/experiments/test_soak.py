"""Two thousand units in one process: what is open and what is held does not grow with what is done."""

import ctypes
import gc
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from synthetic_units import expected, job, manifest

from fringe.experiments import RunLog
from fringe.experiments._executors import SerialExecutor, run_tasks
from fringe.experiments._results import results_of
from fringe.experiments._store import Store

UNITS = 2000


def held():
    """Open files, and resident memory in MiB."""
    gc.collect()
    getattr(ctypes.CDLL(None), "malloc_trim", int)(0)  # free memory is not held: earlier tests leave some
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return len(os.listdir("/proc/self/fd")), pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.thorough
def test_open_files_and_memory_stay_flat(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # what is asked here is not the disk's to answer
    asked, seen = manifest(tuple(f"method-{i}" for i in range(UNITS // 10)), 20, ("a",)), []
    work, account = job(tmp_path, asked), RunLog()

    def watch(report):
        if len(account.reports) % 250 == 0:
            seen.append(held())

    run_tasks(work, work.left(), account, watch, SerialExecutor())
    assert account.count("done") == UNITS
    files, memory = zip(*seen, strict=True)
    assert max(files) == min(files)
    # MiB in 1250 units: their reports are some 4, and the content of their files, if it were held, 7 more
    assert max(memory[3:]) - memory[2] < 8

    before = held()
    store = Store(tmp_path / "run")
    assert all(cell.scored == 20 for cell in results_of(store, asked).coverage())
    assert held()[0] == before[0]
    rows = {row.key: replace(row, seconds=0.0) for key in store.tasks()[::10] for row in store.read(key)[0]}
    assert len(rows) == UNITS // 10 * 2
    assert rows.items() <= expected(asked).items()
    assert work.left() == []
