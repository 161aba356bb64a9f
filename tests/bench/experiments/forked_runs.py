"""Processes for tests: forked with all imports, and killed, or struck in another way, at a chosen step."""

import contextlib
import importlib
import multiprocessing
import os
import sys
import traceback
from pathlib import Path

from fringe.bench.experiments import _places, _store

for late in (
    "pandas",
    "polars",
    "safetensors.numpy",
    "torch.fx.experimental.symbolic_shapes",
):  # once, not in each fork
    with contextlib.suppress(ImportError):
        importlib.import_module(late)

#: Files whose lines are the steps of a store.
STORE = {Path(module.__file__) for module in (_places, _store)}


def spawn_quickly(monkeypatch):
    """Have processes forked from one that has imported everything: as bare as spawned ones, but there at once."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fringe.bench.experiments._executors", "forked_runs", "poison_methods"])
    monkeypatch.setattr(multiprocessing, "get_context", lambda how: {"spawn": context}[how])


def fork(live, *arguments):
    """Call a function in a forked process; its id."""
    child = os.fork()
    if child:
        return child
    try:
        live(*arguments)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def end_of(child):
    """How a process ended: 0, or the negative number of the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Steps:
    """Counts the lines of the store that are run, and calls ``strike`` before one of them, or before all."""

    def __init__(self, chosen=-1, strike=None):
        self.chosen, self.strike, self.count = chosen, strike, 0

    def __enter__(self):
        sys.settrace(self._called)
        return self

    def __exit__(self, *error):
        sys.settrace(None)

    def _called(self, frame, event, argument):
        return self._stepped if Path(frame.f_code.co_filename) in STORE else None

    def _stepped(self, frame, event, argument):
        if event == "line":
            self.count += 1
            if self.chosen in (self.count, "all"):
                self.strike()
        return self._stepped
