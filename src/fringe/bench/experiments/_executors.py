"""Executors: the tasks of a run are performed in this process or in others, under one policy. The process that runs
them is the only one that writes."""

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import Any, Literal, Protocol, Self

from fringe._files.process import check_interrupt
from fringe._strings.progress import Progress as Bar
from fringe._strings.progress import log as logger
from fringe.bench.experiments._manifest import Manifest, Resolved
from fringe.bench.experiments._records import StoredMap
from fringe.bench.experiments._runner import TaskResult, TaskRunner
from fringe.bench.experiments._store import Store
from fringe.bench.experiments._tasks import Task
from fringe.errors import FringeError, InputError, first_line, is_transient
from fringe.evaluation import Progress

#: Times that a task is tried before it counts as failed, if its process dies or is late.
MAX_TRIES = 3
#: Seconds between two looks at a task that another run has claimed.
POLL_INTERVAL = 0.5
#: Seconds between two looks whether a process has ended that says nothing.
_LOOK = 0.2


#: done: computed and stored, at least in part; left: for a later run; cached: another run stored it; crashed: its
#: process ended, again and again.
State = Literal["done", "left", "cached", "crashed"]


@dataclass(frozen=True)
class TaskReport:
    """How a task ended.

    Attributes:
        task: The task.
        state: What became of it.
        made: Number of its images whose maps were made, and have all of their scores.
        reused: Number of stored maps that were scored.
        left: Reasons by image (digest) for those that are left to a later run; nothing of them is recorded.
    """

    task: Task
    state: State
    made: int = 0
    reused: int = 0
    left: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass
class RunLog:
    """What a run tells: ``began`` is called with the tasks that are missing, then ``ended`` with each report; and the
    ``reports``, as far as it got."""

    began: Callable[[Resolved, Sequence[Task]], None] = lambda resolved, tasks: None
    ended: Callable[[TaskReport], None] = lambda report: None
    reports: list[TaskReport] = field(default_factory=list[TaskReport])

    @classmethod
    def shown(cls, bar: Bar) -> Self:
        """Count the images of the tasks in a bar."""
        return cls(
            lambda _, tasks: bar.begin(sum(len(task.images) for task in tasks)),
            lambda report: bar.advance(len(report.task.images), f"{report.task.model}: {report.task.method}"),
        )

    def count(self, state: State) -> int:
        """Count the tasks in a state."""
        return sum(report.state == state for report in self.reports)

    @property
    def left(self) -> int:
        """Number of images left to a later run, summed over tasks."""
        return sum(len(report.left) for report in self.reports)


#: Maps of the images of a task that are stored: they are scored, and not made again.
Stored = Mapping[str, StoredMap]


def perform(runner: TaskRunner, task: Task, stored: Stored) -> TaskResult:
    """Compute a task. What the system failed at is left to a later run."""
    try:
        return runner.perform(task, stored)
    except Exception as error:
        if isinstance(error, FringeError) or not is_transient(error):
            raise
        return TaskResult({}, [], dict.fromkeys(task.images, f"{type(error).__name__}: {error}"))


def perform_or_exit(runner: TaskRunner, task: Task, stored: Stored) -> TaskResult:
    """:func:`perform` in a process of its own, which a bug ends: the next task gets a new one."""
    try:
        return perform(runner, task, stored)
    except FringeError:
        raise
    except BaseException:  # nobody listens to the log of such a process; its standard error is that of the run
        print(f"{task.method} on {task.model}", file=sys.stderr)
        traceback.print_exc()
        os._exit(1)


#: A task that ended, with its result, or the reason why it has none: its process died or was late, as in "ended its
#: process (SIGKILL)". No task, and a reason: a process ended before it could take one.
Ended = tuple[Task | None, TaskResult | str]


class Executor(Protocol):
    """Performs tasks somewhere. What becomes of a task that fails is decided by :func:`run_tasks`."""

    @property
    def capacity(self) -> int:
        """Tasks that are performed at a time."""
        ...

    def start(self, runner: TaskRunner, tasks: int) -> None:
        """Prepare for tasks.

        Args:
            runner: Computes the tasks, here or as a copy in another process.
            tasks: Largest number of tasks that will be scheduled.
        """
        ...

    def schedule(self, task: Task, stored: Stored) -> None:
        """Begin a task; at most ``capacity`` of them are running.

        Args:
            task: A task of the plan of the runner.
            stored: The stored maps of its images, by image: it scores them.
        """
        ...

    def completed(self, timeout: float) -> Sequence[Ended]:
        """Wait for running tasks, and return those that ended.

        Args:
            timeout: Longest time to wait, in seconds.

        Returns:
            Each task that ended, with its result or the reason why it has none; without a task, the reason why a
            process could not start.

        Raises:
            FringeError: If the model cannot be used: the run ends.
        """
        ...

    def stop(self) -> None:
        """End everything that is running."""
        ...


def run_tasks(runner: TaskRunner, store: Store, tasks: Sequence[Task], log: RunLog, executor: Executor) -> None:
    """Perform tasks until each is committed, or left to a later run.

    A task that another run has claimed is looked at again every ``POLL_INTERVAL`` seconds. A task whose process dies or
    is late is tried ``MAX_TRIES`` times; then its scores failed.

    ``log`` gets the report of each task, and is up to date at any time, also when this is interrupted. The executor is
    started and stopped here. Raises FringeError if the model or the store cannot be used, or ``MAX_TRIES`` processes in
    turn end before they take a task.
    """
    policy, running = _Policy(runner.resolved.manifest, store, deque(tasks)), 0

    def tell(report: TaskReport) -> None:
        log.reports.append(report)
        log.ended(report)
        check_interrupt()

    try:
        executor.start(runner, len(tasks))
        while policy.pending or running:
            while running < executor.capacity and (found := policy.next()) is not None:
                if isinstance(found, TaskReport):
                    tell(found)
                    continue
                executor.schedule(found, {} if found.force else store.load_maps(found.setting, found.images))
                running += 1
            results = executor.completed(POLL_INTERVAL)
            for task, result in results:
                if task is None:
                    policy.blame_start(str(result))
                    continue
                running -= 1
                if (report := policy.settle(task, result)) is not None:
                    tell(report)
                else:
                    policy.pending.append(task)
            if not results and not running:  # all tasks are claimed by another run, or no process is ready
                time.sleep(POLL_INTERVAL)
    except BaseException:
        store.abandon()  # where a claim cannot be given up, as on a full disk, it must not stop the next run
        raise
    finally:
        executor.stop()
        for key in policy.claimed:
            with contextlib.suppress(FringeError):
                store.release(key)


@dataclass
class _Policy:
    """Which task comes next, and what follows from a task's end."""

    manifest: Manifest
    store: Store
    pending: deque[Task]
    tries: Counter[str] = field(default_factory=Counter[str])
    not_before: dict[str, float] = field(default_factory=dict[str, float])
    claimed: set[str] = field(default_factory=set[str])
    failed_starts: int = 0

    def next(self) -> Task | TaskReport | None:
        """Take the first task that may be tried now; a report for one that another run has done meanwhile."""
        now = time.monotonic()
        for task in list(self.pending):
            if self.not_before.get(task.key, 0.0) > now:
                continue
            state = "claimed" if task.key in self.claimed else self.store.claim(task.key)
            if state == "locked":
                self.not_before[task.key] = now + POLL_INTERVAL
                continue
            self.pending.remove(task)
            if state == "done":
                return TaskReport(task, "cached")
            self.claimed.add(task.key)
            return task
        return None

    def blame_start(self, reason: str) -> None:
        """Count a process that ended before it took a task: no task is to blame, and another would end the same way."""
        self.failed_starts += 1
        if self.failed_starts == MAX_TRIES:
            raise FringeError(
                f"{MAX_TRIES} processes in turn {reason} before they began; can they import the methods, "
                'and does a script that starts them do so under `if __name__ == "__main__"`?',
                argument="workers",
            )

    def settle(self, task: Task, result: TaskResult | str) -> TaskReport | None:
        """Commit a result, and give the final report of a task; None if it is to be tried again."""
        if isinstance(result, TaskResult):
            self.failed_starts = 0
            return self._commit(task, result, "done")
        self.tries[task.key] += 1
        if self.tries[task.key] < MAX_TRIES:
            logger.warning("%s on %s %s; it is tried again", task.method, task.model, result)
            return None
        reason = f"{result}, {MAX_TRIES} times"
        return self._commit(task, TaskResult.failed(task, self.manifest, reason), "crashed")

    def _commit(self, task: Task, result: TaskResult, state: State) -> TaskReport:
        self.claimed.discard(task.key)
        if any(task.metrics or one.map is not None for one in result.results):
            self.store.commit(result.about, result.results, task=task.key)
        else:
            self.store.release(task.key)
        made = sum(not one.failed for one in result.results) - result.reused
        return TaskReport(task, state if result.results else "left", made, result.reused, result.left)


class SerialExecutor:
    """Performs tasks one after the other in this process.

    Args:
        keep: Whether the model and the images of the last task stay in memory for the next run, of the same models and
            images.
        progress: Called as maps are made.
    """

    capacity = 1

    def __init__(self, *, keep: bool = False, progress: Progress | None = None) -> None:
        self._results = list[Ended]()
        self._keep, self._progress = keep, progress
        self._runner: TaskRunner | None = None

    def start(self, runner: TaskRunner, tasks: int) -> None:
        if self._runner is None or not self._keep:
            self._runner = runner
            runner.progress = self._progress
        else:
            self._runner.use(runner.resolved)

    @property
    def runner(self) -> TaskRunner:
        """What computes the tasks of the last run, with the model and the images of its last task."""
        assert self._runner is not None
        return self._runner

    def schedule(self, task: Task, stored: Stored) -> None:
        self._results.append((task, perform(self.runner, task, stored)))

    def completed(self, timeout: float) -> list[Ended]:
        results, self._results = self._results, []
        return results

    def stop(self) -> None:
        self._results = []


class ProcessExecutor(Executor):
    """Performs tasks in several processes that share PyTorch's threads; one that dies or is late is replaced. Each has
    one task at a time, so that it is known which task ends its process.

    Args:
        workers: Largest number of processes; there are no more than tasks.
        timeout: Seconds that a task may take; None for no limit.
    """

    def __init__(self, workers: int, timeout: float | None = None):
        self._workers = self._capacity = workers
        self.timeout = timeout
        self._idle, self._busy = list[_Process](), list[_Process]()

    @property
    def capacity(self) -> int:
        """Number of processes."""
        return self._capacity

    def start(self, runner: TaskRunner, tasks: int) -> None:
        try:
            pickle.dumps(runner)
        except Exception as error:  # of whatever class a method or a metric has
            message = f"its methods or metrics cannot be sent to other processes ({first_line(error)})"
            hint = "write them as classes of a module that can be imported, or take executor='serial'"
            raise InputError(message, argument="executor", hint=hint) from error
        self._runner, self._capacity = runner, max(1, min(self._workers, tasks))

    def schedule(self, task: Task, stored: Stored) -> None:
        for dead in [process for process in self._idle if not process.alive]:  # it blames no task
            self._idle.remove(dead)
            dead.close()
        process = self._idle.pop() if self._idle else _Process(self._runner, self._capacity)
        self._busy.append(process)
        process.send(task, stored)

    def completed(self, timeout: float) -> list[Ended]:
        deadline, results = time.monotonic() + timeout, list[Ended]()
        while self._busy and not results:
            wait([process.pipe for process in self._busy], min(_LOOK, max(0.0, deadline - time.monotonic())))
            for process in list(self._busy):
                results += self._ended(process)
            if time.monotonic() > deadline:
                break
        return results

    def stop(self) -> None:
        for process in (*self._idle, *self._busy):
            process.close()
        self._idle, self._busy = [], []

    def _ended(self, process: "_Process") -> list[Ended]:
        """What a process says; nothing if it says nothing yet."""
        is_gone = not process.alive  # before its last words are read
        answer = process.answer()
        if answer == _READY:
            process.began = True
            answer = process.answer()
        if isinstance(answer, FringeError):
            raise answer
        is_late = self.timeout is not None and time.monotonic() - process.since > self.timeout
        if isinstance(answer, TaskResult):
            self._busy.remove(process)
            self._idle.append(process)
            return [(process.task, answer)]
        if not is_gone and not is_late and answer is None:
            return []
        self._busy.remove(process)
        reason = f"ended its process ({process.cause})" if is_gone or answer else f"took longer than {self.timeout:g} s"
        process.close()
        if process.began:
            return [(process.task, reason)]
        self.schedule(process.task, process.stored)  # it took no part in that
        return [(None, reason)]


#: What a process says when it can take a task, and what it is heard to say when it has ended.
_READY, _ENDED = "ready", "ended"


class _Process:
    """A process with a worker, which answers each task that comes through its pipe."""

    def __init__(self, runner: TaskRunner, count: int):
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self._process = context.Process(target=_work, args=(other, runner, count), daemon=True)
        self._process.start()
        other.close()
        self.began = False

    def send(self, task: Task, stored: Stored) -> None:
        self.task, self.stored, self.since = task, stored, time.monotonic()
        with contextlib.suppress(OSError):  # it has ended: its answer says so
            self.pipe.send_bytes(pickle.dumps((task, stored)))

    def answer(self) -> Any:
        """What it says; None if it says nothing."""
        try:
            return pickle.loads(self.pipe.recv_bytes()) if self.pipe.poll() else None
        except Exception:  # the pipe has ended, or its process amid a word
            return _ENDED

    @property
    def alive(self) -> bool:
        """Whether it runs; what it forked may keep its pipe open."""
        return self._process.is_alive()

    @property
    def cause(self) -> str:
        """How it ended."""
        self._process.join(5)
        code = self._process.exitcode
        if code is not None and code < 0:
            with contextlib.suppress(ValueError):
                return signal.Signals(-code).name
        return f"exit code {code}"

    def close(self) -> None:
        self._process.kill()
        self._process.join()
        self.pipe.close()


def _work(pipe: Any, runner: TaskRunner, count: int) -> None:
    """Take tasks until the pipe ends."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt from the keyboard is handled by the parent
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(max(1, torch.get_num_threads() // count))
    answer: Any = _READY
    while True:
        pipe.send_bytes(pickle.dumps(answer))  # by value: what a pipe pickles itself shares the memory of tensors
        try:
            task, stored = pickle.loads(pipe.recv_bytes())
        except EOFError:  # the parent has ended
            return
        try:
            answer = perform_or_exit(runner, task, stored)
        except FringeError as error:
            answer = error
