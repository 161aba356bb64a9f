"""A run of synthetic tasks into an object store, to be killed: the log of what was performed is on the disk."""

import sys
from pathlib import Path

from synthetic_units import SyntheticJob, manifest

from fringe.experiments import RunLog, _executors, _store
from fringe.experiments._executors import SerialExecutor, run_tasks
from fringe.experiments._manifest import Resolved
from fringe.experiments._store import Store

if __name__ == "__main__":
    url, base, images = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    _store.PACKED_FROM, _executors.COMPACT_EVERY = 4, 1
    work = SyntheticJob(Resolved(None, manifest(("fine",), images), {}, ()), Store(Path(url)), base=base)
    print("began", flush=True)
    work.store.compact()
    run_tasks(work, work.left(), RunLog(), lambda report: None, SerialExecutor())
