"""Executors: the tasks of a run are performed in this process or in others, under one policy."""

import multiprocessing
import os
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from multiprocessing.process import BaseProcess
from typing import Any, Literal, Protocol, cast

from fringe.errors import FringeError, is_transient
from fringe.experiments._manifest import Resolved, versions
from fringe.experiments._records import StoredMap
from fringe.experiments._runner import TaskResult, TaskRunner
from fringe.experiments._store import CRASHES, Store
from fringe.experiments._tasks import Task

#: Times that a task is tried before it is set aside, if its process dies or is late.
MAX_TRIES = 3
#: Seconds between two looks at a task that another run has locked.
POLL_INTERVAL = 0.5


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


@dataclass(frozen=True)
class TaskFailure:
    """Why a task has no report: its process died or was late.

    Attributes:
        reason: What happened, as in "ended its process (SIGKILL)".
        started: Whether the process had begun to take tasks; if not, the task is not to blame.
    """

    reason: str
    started: bool = True


class Executor(Protocol):
    """Performs tasks somewhere. What becomes of a task that fails is decided by :func:`run_tasks`."""

    @property
    def capacity(self) -> int:
        """Tasks that are performed at a time."""
        ...

    def start(self, job: Job, tasks: int) -> None:
        """Prepare for at most this many tasks of a job."""
        ...

    def schedule(self, task: Task) -> None:
        """Begin a task; at most ``capacity`` of them are running."""
        ...

    def completed(self, timeout: float) -> list[tuple[Task, Report | TaskFailure]]:
        """Wait at most ``timeout`` seconds for running tasks, and return those that ended.

        Raises:
            FringeError: If the model or the store cannot be used: the run ends.
        """
        ...

    def stop(self) -> None:
        """End everything that is running."""
        ...


def run_tasks(job: Job, tasks: Sequence[Task], account: Account, watch: Watcher, executor: Executor) -> None:
    """Perform tasks until each is committed, left to a later run, or set aside.

    A task that another run has locked is looked at again every ``POLL_INTERVAL`` seconds. A task whose process dies or
    is late is tried ``MAX_TRIES`` times; then the store says that it is set aside.

    Args:
        job: Plan, store and options.
        tasks: Tasks of the job.
        account: Gets the report of each task, and is up to date at any time, also when this is interrupted.
        watch: Called with each report.
        executor: Where tasks are performed; it is started and stopped here.

    Raises:
        FringeError: If the model or the store cannot be used, or ``MAX_TRIES`` processes in turn end before they take
            a task.
    """
    policy, running = _Policy(job, deque(tasks)), 0
    try:
        executor.start(job, len(tasks))
        while policy.pending or running:
            while running < executor.capacity and (task := policy.next()) is not None:
                executor.schedule(task)
                running += 1
            if not running:
                time.sleep(POLL_INTERVAL)
                continue
            for task, result in executor.completed(POLL_INTERVAL):
                running -= 1
                report = policy.settle(task, result)
                if report is None:
                    policy.pending.append(task)
                else:
                    account.reports.append(report)
                    watch(report)
    finally:
        executor.stop()


@dataclass
class _Policy:
    """Which task comes next, and what follows from a task's end."""

    job: Job
    pending: deque[Task]
    tries: dict[str, int] = field(default_factory=dict[str, int])
    not_before: dict[str, float] = field(default_factory=dict[str, float])
    failed_starts: int = 0

    def next(self) -> Task | None:
        """Take the first task that may be tried now."""
        now = time.monotonic()
        task = next((task for task in self.pending if self.not_before.get(task.key, 0.0) <= now), None)
        if task is not None:
            self.pending.remove(task)
        return task

    def settle(self, task: Task, result: Report | TaskFailure) -> Report | None:
        """The final report of a task; None if it is to be tried again."""
        if isinstance(result, Report):
            self.failed_starts = 0
            self.not_before[task.key] = time.monotonic() + POLL_INTERVAL
            return None if result.state == "taken" else result
        if not result.started:
            self.failed_starts += 1
            if self.failed_starts == MAX_TRIES:
                raise _cannot_start(result.reason)
            return None
        self.tries[task.key] = self.tries.get(task.key, 0) + 1
        if self.tries[task.key] < MAX_TRIES:
            return None
        record = {**task.record(self.job.resolved.manifest), "reason": f"{result.reason}, {MAX_TRIES} times"}
        self.job.store.write_record(CRASHES, task.key, record)
        return Report(task, "crashed")


def _cannot_start(reason: str) -> FringeError:
    """No task is to blame for processes that end before they take one, and another would end the same way."""
    return FringeError(
        f"{MAX_TRIES} processes in turn {reason} before they began; can they import the methods, and does a script "
        'that starts them do so under `if __name__ == "__main__"`?',
        argument="workers",
    )


class SerialExecutor:
    """Performs tasks one after the other in this process."""

    capacity = 1

    def __init__(self) -> None:
        self._results: list[tuple[Task, Report | TaskFailure]] = []

    def start(self, job: Job, tasks: int) -> None:
        self._job, self._runner = job, job.worker()

    def schedule(self, task: Task) -> None:
        self._results.append((task, perform(self._job, self._runner, task)))

    def completed(self, timeout: float) -> list[tuple[Task, Report | TaskFailure]]:
        results, self._results = self._results, []
        return results

    def stop(self) -> None:
        self._results = []


class ProcessExecutor:
    """Performs tasks in several processes that share PyTorch's threads; one that dies or is late is replaced.

    Args:
        workers: Number of processes.
        timeout: Seconds that a task may take; None for no limit.
    """

    def __init__(self, workers: int, timeout: float | None = None):
        self.capacity, self.timeout = workers, timeout
        self._idle, self._running = list[_Worker](), dict[Future[Report], tuple[Task, _Worker]]()

    def start(self, job: Job, tasks: int) -> None:
        self._job, self.capacity = job, max(1, min(self.capacity, tasks))

    def schedule(self, task: Task) -> None:
        worker = next((worker for worker in self._idle if worker.alive), None)
        if worker is None:
            worker = _Worker(self._job, self.capacity)
        else:
            self._idle.remove(worker)
        self._running[worker.pool.schedule(_perform, args=(task,), timeout=self.timeout)] = task, worker

    def completed(self, timeout: float) -> list[tuple[Task, Report | TaskFailure]]:
        wait(self._running, timeout, return_when=FIRST_COMPLETED)
        # A process that ends with exit code 0 gives no result: pebble replaces it, and its task would never end.
        ended = [future for future, (_, worker) in self._running.items() if future.done() or worker.replaced]
        return [self._result(future, *self._running.pop(future)) for future in ended]

    def stop(self) -> None:
        for worker in (*self._idle, *(worker for _, worker in self._running.values())):
            worker.stop()
        self._idle, self._running = [], {}

    def _result(self, future: Future[Report], task: Task, worker: "_Worker") -> tuple[Task, Report | TaskFailure]:
        error = future.exception() if future.done() else None
        if future.done() and error is None:
            self._idle.append(worker)
            return task, future.result()
        worker.stop()
        if isinstance(error, FringeError):
            raise error
        late = isinstance(error, TimeoutError)
        reason = f"took longer than {self.timeout:g} s" if late else f"ended its process ({worker.cause})"
        return task, TaskFailure(reason, worker.started)


class _Worker:
    """One process at a time, in a pool of its own: the pool of several would not say which task a death belongs to if
    the process dies as soon as it takes the task."""

    def __init__(self, job: Job, workers: int):
        from pebble import ProcessPool

        self._context, self._processes = multiprocessing.get_context("spawn"), list[BaseProcess]()
        self._ready = self._context.Event()
        self.pool = ProcessPool(1, initializer=_begin, initargs=(job, workers, self._ready), context=cast(Any, self))

    def Process(self, **arguments: Any) -> BaseProcess:
        """Called by the pool: keeps the process, for its exit code."""
        self._processes.append(self._context.Process(**arguments))
        return self._processes[-1]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    @property
    def started(self) -> bool:
        return self._ready.is_set()

    @property
    def replaced(self) -> bool:
        return len(self._processes) > 1

    @property
    def alive(self) -> bool:
        return not self.replaced and self.pool.active

    @property
    def cause(self) -> str:
        """How the process ended."""
        code = self._processes[0].exitcode if self._processes else None
        if code is not None and code < 0:
            try:
                return signal.Signals(-code).name
            except ValueError:
                pass
        return f"exit code {code}"

    def stop(self) -> None:
        self.pool.stop()
        self.pool.join()


_job: Job
_runner: TaskRunner


def _begin(job: Job, workers: int, ready: Any) -> None:
    """Prepare a process to take tasks."""
    import torch

    global _job, _runner
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt from the keyboard is handled by the parent
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(max(1, torch.get_num_threads() // workers))
    _job, _runner = job, job.worker()
    ready.set()


def _perform(task: Task) -> Report:
    try:
        return perform(_job, _runner, task)
    except FringeError:
        raise
    except BaseException:  # a bug: the next task gets a new process
        traceback.print_exc()
        os._exit(1)
