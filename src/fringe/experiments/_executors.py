"""What every engine takes and gives: units in, committed units out."""

import contextlib
import multiprocessing
import signal
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Literal

from fringe.errors import FringeError, is_transient
from fringe.experiments._manifest import Resolved, versions
from fringe.experiments._records import StoredMap
from fringe.experiments._runner import TaskResult, TaskRunner
from fringe.experiments._store import CRASHES, Store
from fringe.experiments._tasks import Task


@dataclass(frozen=True)
class Job:
    """A plan and where it goes. ``save_maps`` keeps the maps, too; ``device`` and ``batch_size`` shape no number."""

    resolved: Resolved
    store: Store
    device: str = "cpu"
    batch_size: int | Literal["auto"] = "auto"
    save_maps: bool = False

    def worker(self) -> TaskRunner:
        return TaskRunner(self.resolved, device=self.device, batch_size=self.batch_size)


State = Literal["done", "left", "there", "taken", "crashed"]
"""Computed and committed, in part at least; left to a later run; committed by somebody else; in the hands of another
process; given up."""


@dataclass(frozen=True)
class Report:
    """What became of a unit: ``failed`` of its images have no score, and ``reread`` maps were kept ones. Images that
    are ``left`` to a later run, with the reason, are not recorded at all."""

    unit: Task
    state: State
    failed: int = 0
    seconds: float = 0.0
    reread: int = 0
    left: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass
class Account:
    """What an engine came to, as far as it got."""

    reports: list[Report] = field(default_factory=list[Report])

    def count(self, state: State) -> int:
        return sum(report.state == state for report in self.reports)

    @property
    def failed(self) -> int:
        """Images without a score, summed over units; those of a unit that was given up among them."""
        return sum(len(r.unit.images) if r.state == "crashed" else r.failed for r in self.reports)

    @property
    def left(self) -> int:
        """Images that trouble of the moment left to a later run, summed over units."""
        return sum(len(report.left) for report in self.reports)


Watcher = Callable[[Report], None]
"""Called once a unit, when its fate is known."""


def perform(job: Job, worker: TaskRunner, unit: Task) -> Report:
    """Compute a unit and commit it, unless somebody has done so or is about to."""
    store, began = job.store, time.perf_counter()
    with store.claim(unit.key) as mine:
        if not mine:
            return Report(unit, "taken")
        if not unit.again and store.has(unit.key):
            return Report(unit, "there")
        kept = None if unit.again else store.find_maps(unit.setting, unit.images)
        done = _attempt(worker, unit, kept)
        if job.save_maps and done.maps:
            store.commit_maps(unit.setting, done.maps)
        failures = {(row.metric_key, row.image) for row in done.rows if row.status != "ok"}
        whole = replace(unit, images=tuple(image for image in unit.images if image not in done.left))
        if not whole.images:
            return Report(unit, "left", seconds=time.perf_counter() - began, left=done.left)
        about = {**whole.record(job.resolved.manifest), "failed": sorted(failures), **_made_by(done, kept or {})}
        store.commit(whole.key, done.rows, about)
    store.forget_crash(unit.key)
    failed = len({image for _, image in failures})
    reread = len({row.image for row in done.rows if row.status == "ok"} - done.maps.keys())
    return Report(unit, "done", failed, time.perf_counter() - began, reread, done.left)


def _attempt(worker: TaskRunner, unit: Task, kept: Mapping[str, StoredMap] | None) -> TaskResult:
    """The unit computed; without any image where the system, and not the unit, is to blame."""
    try:
        return worker.perform(unit, kept)
    except FringeError:
        raise
    except Exception as error:
        if not is_transient(error):
            raise
        return TaskResult([], {}, dict.fromkeys(unit.images, f"{type(error).__name__}: {error}"))


def _made_by(done: TaskResult, kept: Mapping[str, StoredMap]) -> dict[str, Any]:
    """The versions of what computed a unit, and of what made the maps that were kept from before."""
    reread = {row.image for row in done.rows} - done.maps.keys()
    old = [dict(kept[image].versions) for image in sorted(reread) if image in kept]
    return {"versions": versions(), "map_versions": [one for place, one in enumerate(old) if one not in old[:place]]}


def left_over(reports: Sequence[Report]) -> list[Task]:
    """Units that another process had in hand: to be looked at again."""
    return [report.unit for report in reports if report.state == "taken"]


PAUSE = 0.5
"""Seconds between two looks at units that another process has in hand."""


def run_here(job: Job, units: Sequence[Task], account: Account, watch: Watcher) -> None:
    """Perform ``units``; those that another process is at are looked at again until they are there, or free because it
    died. ``account`` knows at any time what is done, also when this is interrupted."""
    worker, pending = job.worker(), list(units)
    while pending:
        passed: list[Report] = []
        for unit in pending:
            report = perform(job, worker, unit)
            passed.append(report)
            if report.state != "taken":
                account.reports.append(report)
                watch(report)
        pending = left_over(passed)
        if len(pending) == len(passed):
            time.sleep(PAUSE)


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
