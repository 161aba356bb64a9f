"""Units in several processes: one that dies costs the unit it was at, and is replaced."""

import contextlib
import multiprocessing
import signal
import time
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from fringe.errors import FringeError
from fringe.experiments.jobs import Account, Job, Report, Watcher, perform
from fringe.experiments.serial import PAUSE
from fringe.experiments.store import CRASHES
from fringe.experiments.units import Task

TRIES = 3
"""Processes that a unit may cost before it is set aside."""

FAREWELL = 5.0
"""Seconds that a process has to end by itself."""

READY = "ready"
"""What a process says once it can take units."""


@dataclass
class _Hand:
    """A process, the line to it, whether it has begun to listen, the unit it is at, and since when."""

    process: BaseProcess
    line: Connection
    ready: bool = False
    unit: Task | None = None
    since: float = 0.0


def run_processes(
    job: Job, units: Sequence[Task], account: Account, watch: Watcher, *, workers: int, timeout: float | None = None
) -> None:
    """Perform ``units`` in ``workers`` processes that share PyTorch's threads.

    A unit whose process dies, or takes longer than ``timeout`` seconds, is given to another process; after ``TRIES`` of
    them it is set aside, and the store says so. Raises FringeError, once the others have stopped, where a process finds
    that the model or the store cannot be used, and where processes end before they take a unit.
    """
    _Crew(job, units, account, watch, workers, timeout).run()


class _Crew:
    def __init__(
        self, job: Job, units: Sequence[Task], account: Account, watch: Watcher, workers: int, timeout: float | None
    ):
        self.job, self.account, self.watch, self.timeout = job, account, watch, timeout
        self.pending, self.deaths, self.stillborn = deque(units), dict[str, int](), 0
        self.resting = dict[str, float]()  # when a unit that another run had in hand is looked at again
        self.wanted, self.hands = min(workers, len(units)), list[_Hand]()
        self.context = multiprocessing.get_context("spawn")

    def run(self) -> None:
        try:
            while self.pending or any(hand.unit for hand in self.hands):
                self._staff()
                self._give()
                self._listen()
        finally:
            for hand in self.hands:
                hand.process.terminate()
            for hand in self.hands:
                _end(hand)

    def _staff(self) -> None:
        while len(self.hands) < min(self.wanted, len(self.pending) + sum(h.unit is not None for h in self.hands)):
            ours, theirs = self.context.Pipe()
            process = self.context.Process(target=_work, args=(self.job, theirs, self.wanted), daemon=True)
            process.start()
            theirs.close()
            self.hands.append(_Hand(process, ours))

    def _give(self) -> None:
        for hand in self.hands:
            unit = self._next() if hand.ready and hand.unit is None else None
            if unit is None:
                continue
            try:
                hand.line.send(unit)
            except OSError:  # it died while it waited: the unit is not to blame
                self.pending.appendleft(unit)
                continue
            hand.unit, hand.since = unit, time.monotonic()

    def _next(self) -> Task | None:
        """The first pending unit that does not rest."""
        now = time.monotonic()
        unit = next((unit for unit in self.pending if self.resting.get(unit.key, 0.0) <= now), None)
        if unit is not None:
            self.pending.remove(unit)
        return unit

    def _listen(self) -> None:
        lines: list[Any] = [hand.line for hand in self.hands]
        ready = wait(lines, timeout=PAUSE)
        for hand in list(self.hands):
            if hand.line in ready:
                self._hear(hand)
            elif self.timeout and hand.unit and time.monotonic() - hand.since > self.timeout:
                hand.process.kill()
                self._lost(hand, f"took longer than {self.timeout:g} s")

    def _hear(self, hand: _Hand) -> None:
        try:
            heard = hand.line.recv()
        except (EOFError, OSError):
            hand.process.join(timeout=FAREWELL)
            self._lost(hand, f"ended its process ({_cause(hand.process.exitcode)})")
            return
        if isinstance(heard, FringeError):
            raise heard
        if heard == READY:
            hand.ready, self.stillborn = True, 0
            return
        report: Report = heard
        hand.unit = None
        if report.state == "taken":
            self.pending.append(report.unit)
            self.resting[report.unit.key] = time.monotonic() + PAUSE
        else:
            self._note(report)

    def _lost(self, hand: _Hand, how: str) -> None:
        self.hands.remove(hand)
        _end(hand)
        unit = hand.unit
        if unit is None:
            self._count_stillborn(hand, how)
            return
        self.deaths[unit.key] = self.deaths.get(unit.key, 0) + 1
        if self.deaths[unit.key] < TRIES:
            self.pending.append(unit)
            return
        record = {**unit.record(self.job.resolved.manifest), "reason": f"{how}, {TRIES} times"}
        self.job.store.write_record(CRASHES, unit.key, record)
        self._note(Report(unit, "crashed"))

    def _count_stillborn(self, hand: _Hand, how: str) -> None:
        """No unit is to blame for a process that ends before it takes one, and another would end the same way."""
        self.stillborn += not hand.ready
        if self.stillborn == TRIES:
            raise FringeError(
                f"workers: {TRIES} processes in turn {how} before they began; can they import the methods, and does a "
                'script that starts them do so under `if __name__ == "__main__"`?'
            )

    def _note(self, report: Report) -> None:
        self.account.reports.append(report)
        self.watch(report)


def _work(job: Job, line: Connection, workers: int) -> None:
    """The life of a process: units in, reports out, until nobody asks any more."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the keyboard's interrupt is the parent's to deal with
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(max(1, torch.get_num_threads() // workers))
    worker = job.worker()
    line.send(READY)
    for unit in _asked(line):
        try:
            answer = perform(job, worker, unit)
        except FringeError as error:
            answer = error
        with contextlib.suppress(OSError):  # the parent is gone, and so is the line to wait at
            line.send(answer)


def _asked(line: Connection) -> Generator[Task]:
    """Units, until nobody asks any more."""
    with contextlib.suppress(EOFError, OSError):
        while True:
            yield line.recv()


def _end(hand: _Hand) -> None:
    hand.line.close()
    hand.process.terminate()
    hand.process.join(timeout=FAREWELL)
    if hand.process.is_alive():
        hand.process.kill()


def _cause(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        with contextlib.suppress(ValueError):
            return signal.Signals(-exitcode).name
    return f"exit code {exitcode}"
