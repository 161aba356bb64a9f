"""A process that has imported everything and forks a run for each order that comes in: a run that is killed costs
milliseconds then.

An order is a line of JSON with the ``base`` folder and the ``kind`` of run. It may say after how many seconds
(``after``) or at which step (``step``) the run is killed; the seconds count from when the file ``since`` of the folder
has a line. The answer is the run's exit status.
"""

import contextlib
import importlib
import json
import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import time
import traceback
from functools import cache
from pathlib import Path

from small_plans import digits_plan
from synthetic_units import job, manifest, note, noted

from fringe.experiments import Progress, RunLog, RunOptions, _executors, _store, run_plan
from fringe.experiments._executors import SerialExecutor, run_tasks

#: What a run imports when it needs it: once here, or half a second and more in every fork.
LATE = ("filelock", "pandas", "polars", "pyarrow.dataset", "pyarrow.parquet", "torch.fx.experimental.symbolic_shapes")
for name in LATE:
    with contextlib.suppress(ImportError):
        importlib.import_module(name)


def run_synthetic(base, order):
    asked = manifest(tuple(order["methods"]), order["images"])
    if "packed" in order:  # the files of tasks are packed from so many on
        _store.PACKED_FROM, _executors.COMPACT_EVERY = order["packed"], 1
    os.environ.update(order.get("environment", {}))
    work = job(base, asked, order.get("url"))
    work.store.remove_stale_files()
    work.store.compact()
    account = RunLog()
    run_tasks(
        work,
        work.left(),
        account,
        lambda report: note(base / "reported", f"{report.state} {report.task.key}"),
        SerialExecutor(),
    )


def run_digits(base, order):
    told = Progress(ended=lambda report: note(base / "reported", f"{report.state} {report.task.key}"))
    finished = run_plan(digits_plan(), base / "run", RunOptions(), told)
    assert finished.stopped is None


@cache
def nursery():
    """The one nursery of the test session; it ends with the session, whose end of the line closes."""
    return Nursery()


def spawn_quickly(monkeypatch):
    """Have processes forked from one that has imported everything: as bare as spawned ones, but there at once."""
    context = multiprocessing.get_context("forkserver")
    modules = ["fringe.experiments._executors", "forked_runs", "poison_methods"]
    context.set_forkserver_preload(modules)
    monkeypatch.setattr(multiprocessing, "get_context", lambda how: {"spawn": context}[how])


class Nursery:
    """The other end of :func:`serve`."""

    def __init__(self):
        here = Path(__file__)
        roots = [str(here.parent), str(here.parents[2] / "src"), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, roots)), "OMP_NUM_THREADS": "1"}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([sys.executable, here], stdin=pipe, stdout=pipe, text=True, env=environment)
        assert self.process.stdout.readline() == "ready\n"

    def run(self, base, kind="synthetic", methods=("fine",), images=6, **more):
        """How the runs ended: 0, or the negative number of the signal that ended them."""
        base.mkdir(exist_ok=True)
        order = {"base": str(base), "kind": kind, "methods": list(methods), "images": images, **more}
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


class Steps:
    """Numbers every call that changes the disk, and calls ``strike`` at one of them; what was done is in the file
    ``log``, a line of JSON each."""

    def __init__(self, log, chosen, strike):
        self.log, self.chosen, self.strike, self.count = log, chosen, strike, 0
        self.open, self.fsync, self.replace, self.mkdir = pathlib.Path.open, os.fsync, os.replace, os.mkdir
        self.unlink = pathlib.Path.unlink

    def step(self, *done):
        number, self.count = self.count, self.count + 1
        if number == self.chosen:
            self.strike()
        if done:
            note(self.log, json.dumps([str(part) for part in done]))

    def __exit__(self, *error):
        pathlib.Path.open, os.fsync, os.replace, os.mkdir = self.open, self.fsync, self.replace, self.mkdir
        pathlib.Path.unlink = self.unlink

    def __enter__(self):
        steps = self

        def opened(path, mode="r", *more, **named):
            if "w" not in mode:
                return steps.open(path, mode, *more, **named)
            steps.step()
            return Written(steps.open(path, mode, *more, **named), path, steps)

        def fsync(descriptor):
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            steps.step()
            steps.fsync(descriptor)
            steps.step("fsync", path)

        def replace(source, target):
            steps.step()
            steps.replace(source, target)
            steps.step("replace", source, target)

        def mkdir(path, *more, **named):
            steps.mkdir(path, *more, **named)
            steps.step("mkdir", path)

        def unlink(path, missing_ok=False):
            if path.suffix == ".parquet" and not path.name.startswith(".partial-"):
                steps.step("unlink", path)
            steps.unlink(path, missing_ok)

        pathlib.Path.open, os.fsync, os.replace, os.mkdir = opened, fsync, replace, mkdir
        pathlib.Path.unlink = unlink
        return self


class Written:
    """A file whose every write has a step in its middle."""

    def __init__(self, file, path, steps):
        self.file, self.path, self.steps = file, path, steps

    def write(self, content):
        self.steps.step("write", self.path)
        self.file.write(content[: len(content) // 2])
        self.file.flush()
        self.steps.step()
        self.file.write(content[len(content) // 2 :])

    def __getattr__(self, name):
        return getattr(self.file, name)

    def __enter__(self):
        self.file.__enter__()
        return self

    def __exit__(self, *error):
        return self.file.__exit__(*error)


def live(order):
    """The life of a run."""
    base = Path(order["base"])
    try:
        if "step" in order:
            Steps(base / "steps", order["step"], lambda: os.kill(os.getpid(), signal.SIGKILL)).__enter__()
        {"synthetic": run_synthetic, "digits": run_digits}[order["kind"]](base, order)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def serve():
    for line in sys.stdin:
        order, children = json.loads(line), []
        if "url" in order:
            importlib.import_module("s3fs")  # late, too
        for _ in range(order.get("runs", 1)):
            children.append(os.fork())
            if children[-1] == 0:
                live(order)
        if "after" in order:
            since = Path(order["base"], order.get("since", ""))
            while not since.is_dir() and not noted(since):
                time.sleep(0.01)
            time.sleep(order["after"])
            for child in children:
                os.kill(child, signal.SIGKILL)
        print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]), flush=True)


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    print("ready", flush=True)
    serve()
