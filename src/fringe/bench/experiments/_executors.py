"""Executors: the tasks of a run are performed in this process or in others, under one policy. The process that runs
them is the only one that writes."""

import contextlib
import math
import multiprocessing
import os
import pickle
import signal
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
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


#: A task with the stored maps of its images.
Order = tuple[Task, Stored]
#: Tasks as an executor asks for them; None where those that are left are claimed by another run now.
Tasks = Iterator[Order | None]
#: Tasks that ended, each with its result, or the reason why it has none: its process ended, or was late, as in "ended
#: its process (SIGKILL), 3 times".
Ended = Generator[tuple[Task, TaskResult | str]]


class Executor(Protocol):
    """Performs tasks somewhere."""

    def perform(self, runner: TaskRunner, tasks: Tasks, most: int) -> Ended:
        """Perform tasks until there are no more, and end what was started for them when this is closed.

        Args:
            runner: Computes the tasks, here or as a copy in another process.
            tasks: The tasks, to be asked for one when it can begin. None stands for a task that may be had later.
            most: Largest number of tasks.

        Yields:
            Each task that ended, with its result or the reason why it has none.

        Raises:
            FringeError: If the model cannot be used, or no process can start: the run ends.
        """
        ...


def run_tasks(runner: TaskRunner, store: Store, tasks: Sequence[Task], log: RunLog, executor: Executor) -> None:
    """Perform tasks until each is committed, or left to a later run.

    A task that another run has claimed is looked at again every ``POLL_INTERVAL`` seconds.

    ``log`` gets the report of each task, and is up to date at any time, also when this is interrupted. Raises
    FringeError if the model or the store cannot be used, or the executor has no process that takes a task.
    """
    claimed = set[str]()
    log.began(runner.resolved, tasks)

    def tell(report: TaskReport) -> None:
        log.reports.append(report)
        log.ended(report)
        check_interrupt()

    def claims() -> Tasks:
        waiting, again = list(tasks), 0.0
        while waiting:
            while time.monotonic() < again:
                yield None
            for task in waiting[:]:
                state = store.claim(task.key)
                if state == "locked":
                    continue
                waiting.remove(task)
                if state == "done":
                    tell(TaskReport(task, "cached"))
                    continue
                claimed.add(task.key)
                yield task, {} if task.force else store.load_maps(task.setting, task.images)
            again = time.monotonic() + POLL_INTERVAL

    try:
        with contextlib.closing(executor.perform(runner, claims(), len(tasks))) as ended:
            for task, result in ended:
                claimed.discard(task.key)
                tell(_commit(store, runner.resolved.manifest, task, result))
    except BaseException:
        store.abandon()  # where a claim cannot be given up, as on a full disk, it must not stop the next run
        raise
    finally:
        for key in claimed:
            with contextlib.suppress(FringeError):
                store.release(key)


def _commit(store: Store, manifest: Manifest, task: Task, result: TaskResult | str) -> TaskReport:
    """Store the result of a task; of one that has none, the reason."""
    state: State = "crashed" if isinstance(result, str) else "done" if result.results else "left"
    known = TaskResult.failed(task, manifest, result) if isinstance(result, str) else result
    if any(task.metrics or one.map is not None for one in known.results):
        store.commit(known.about, known.results, task=task.key)
    else:
        store.release(task.key)
    made = sum(not one.failed for one in known.results) - known.reused
    return TaskReport(task, state, made, known.reused, known.left)


class SerialExecutor:
    """Performs tasks one after the other in this process.

    Args:
        keep: Whether the model and the images of the last task stay in memory for the next run, of the same models and
            images.
        progress: Called as maps are made.
    """

    def __init__(self, *, keep: bool = False, progress: Progress | None = None) -> None:
        self._keep, self._progress = keep, progress
        self._runner: TaskRunner | None = None

    @property
    def runner(self) -> TaskRunner:
        """What computes the tasks of the last run, with the model and the images of its last task."""
        assert self._runner is not None
        return self._runner

    def perform(self, runner: TaskRunner, tasks: Tasks, most: int) -> Ended:
        if self._runner is None or not self._keep:
            self._runner = runner
            runner.progress = self._progress
        else:
            self._runner.use(runner.resolved)
        for order in tasks:
            if order is None:
                time.sleep(POLL_INTERVAL)
            else:
                yield order[0], perform(self._runner, *order)


class Worker(Protocol):
    """A process that performs one task at a time.

    It is ``busy`` while it starts, and then ``since`` some time with the ``order`` that it took last. ``send`` begins a
    task, and ``close`` ends the process, whatever it does. ``answer`` is what it says: ``READY``, a result, or in words
    how it ended; None if it says nothing yet. FringeError is raised if it cannot use the model.
    """

    order: Order | None = None
    busy: bool = True
    since: float = math.inf

    def send(self, task: Task, stored: Stored) -> None: ...

    def answer(self) -> Any: ...

    def close(self) -> None: ...


def _fit(task: Task, worker: Worker) -> tuple[bool, bool]:
    """How well a worker fits a task: it had one of the same images, or of the same model. Larger is better."""
    last = None if worker.order is None else worker.order[0]
    same = last is not None and last.model == task.model
    return same and last is not None and last.images == task.images, same


#: What a worker says when it can take a task.
READY = "ready"
#: Counts workers in turn that end before they take a task.
_START = ""
#: The largest number of workers, what starts one, and what waits a moment for an answer of those that are busy.
Pool = tuple[int, Callable[[], Worker], Callable[[Sequence[Any]], None]]


class PoolExecutor(Executor, ABC):
    """Performs tasks by workers. Each has one task at a time, so that it is known which task ends its process; a worker
    that dies or is late is replaced."""

    timeout: float | None

    @abstractmethod
    def _pool(self, runner: TaskRunner, most: int) -> AbstractContextManager[Pool]:
        """Prepare to start workers for so many tasks."""

    def perform(self, runner: TaskRunner, tasks: Tasks, most: int) -> Ended:
        if not most:
            return
        workers, again, tries = list[Worker](), deque[Order](), Counter[str]()
        order: Order | tuple[()] | None = None
        with self._pool(runner, most) as (size, start, wait_for), contextlib.ExitStack() as stack:
            stack.callback(lambda: [worker.close() for worker in workers])
            while again or order != () or any(worker.busy and worker.order for worker in workers):
                while len(workers) < size and (again or order != ()):
                    workers.append(start())
                free = [worker for worker in workers if not worker.busy]
                while free and (order := again.popleft() if again else next(tasks, ())):
                    worker = max(free, key=partial(_fit, order[0]))
                    free.remove(worker)
                    worker.order, worker.busy, worker.since = order, True, time.monotonic()
                    worker.send(*order)
                busy = [worker for worker in workers if worker.busy]
                if busy:
                    wait_for(workers)
                elif order is None:  # another run has claimed all tasks
                    time.sleep(POLL_INTERVAL)
                for worker in busy:
                    is_late = self.timeout is not None and time.monotonic() - worker.since > self.timeout
                    answer = worker.answer() or (f"took longer than {self.timeout:g} s" if is_late else None)
                    worker.busy, taken = answer is None, worker.order
                    if isinstance(answer, str) and answer != READY:
                        workers.remove(worker)
                        worker.close()
                        answer = _why_failed(tries, taken, answer)
                        if answer is None and taken is not None:
                            again.append(taken)
                    if taken is not None and answer is not None:
                        tries.pop(_START, None)
                        yield taken[0], answer


def _why_failed(tries: Counter[str], order: Order | None, end: str) -> str | None:
    """Count that a worker ended or was late: the reason why its task failed, or None if it is tried again. Raises
    FringeError after some that ended before they took a task: none is to blame, and another would end the same way."""
    key = _START if order is None else order[0].key
    tries[key] += 1
    if tries[key] < MAX_TRIES:
        if order is not None:
            logger.warning("%s on %s %s; it is tried again", order[0].method, order[0].model, end)
        return None
    if order is None:
        raise FringeError(
            f"{MAX_TRIES} processes in turn {end} before they began; can they import the methods, "
            'and does a script that starts them do so under `if __name__ == "__main__"`?',
            argument="workers",
        )
    return f"{end}, {MAX_TRIES} times"


class ProcessExecutor(PoolExecutor):
    """Performs tasks in several processes that share PyTorch's threads.

    Args:
        workers: Largest number of processes; there are no more than tasks.
        timeout: Seconds that a task may take; None for no limit.
    """

    def __init__(self, workers: int, timeout: float | None = None):
        self.workers, self.timeout = workers, timeout

    @contextlib.contextmanager
    def _pool(self, runner: TaskRunner, most: int) -> Generator[Pool]:
        try:
            pickle.dumps(runner)
        except Exception as error:  # of whatever class a method or a metric has
            message = f"its methods or metrics cannot be sent to other processes ({first_line(error)})"
            hint = "write them as classes of a module that can be imported, or take executor='serial'"
            raise InputError(message, argument="executor", hint=hint) from error
        count = max(1, min(self.workers, most))

        def wait_for(processes: Sequence[_Process]) -> None:
            wait([process.pipe for process in processes if process.busy], _LOOK)

        yield count, lambda: _Process(runner, count), wait_for


class _Process(Worker):
    """A process of this machine, which answers each task that comes through its pipe."""

    def __init__(self, runner: TaskRunner, count: int):
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self._process = context.Process(target=_work, args=(other, runner, count), daemon=True)
        self._process.start()
        other.close()

    def send(self, task: Task, stored: Stored) -> None:
        with contextlib.suppress(OSError):  # it has ended: its answer says so
            self.pipe.send_bytes(pickle.dumps((task, stored)))

    def answer(self) -> Any:
        is_gone, answer = not self._process.is_alive(), None  # before its last words are read; its pipe may stay open
        try:
            answer = pickle.loads(self.pipe.recv_bytes()) if self.pipe.poll() else None
        except Exception:  # the pipe has ended, or its process amid a word
            is_gone = True
        if isinstance(answer, FringeError):
            raise answer
        return f"ended its process ({self._cause()})" if answer is None and is_gone else answer

    def _cause(self) -> str:
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
    answer: Any = READY
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
