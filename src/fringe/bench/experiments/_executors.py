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
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import Any, Literal, Protocol

from fringe._files.process import check_interrupt
from fringe._strings.progress import log
from fringe.bench.experiments._manifest import Resolved
from fringe.bench.experiments._records import OK, StoredMap
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


@dataclass(frozen=True)
class Job:
    """A plan and how it is computed. ``save_maps`` keeps all maps; ``device`` and ``batch_size`` shape no number."""

    resolved: Resolved
    device: str = "cpu"
    batch_size: int | Literal["auto"] = "auto"
    save_maps: bool = False

    def saved(self, task: Task, made: Sequence[str]) -> Sequence[str]:
        """The images of a task, of those whose maps were ``made``, whose maps are stored: all, or those by methods that
        the plan shows."""
        if self.save_maps or task.save or not made:
            return made
        plan, manifest = self.resolved.plan, self.resolved.manifest
        if not plan.shown or "control" in manifest.settings[task.model][task.method]["method"]:
            return ()
        shown = {image["digest"] for image in manifest.images[: plan.shown]}
        return [image for image in made if image in shown]

    def worker(self) -> TaskRunner:
        return TaskRunner(self.resolved, device=self.device, batch_size=self.batch_size)


@dataclass(frozen=True)
class Order:
    """A task, and maps of its images that are stored: they are scored, and not made again."""

    task: Task
    stored: Mapping[str, StoredMap] = field(default_factory=dict[str, StoredMap])


#: done: computed and stored, at least in part; left: for a later run; cached: another run stored it; crashed: its
#: process ended, again and again.
State = Literal["done", "left", "cached", "crashed"]


@dataclass(frozen=True)
class TaskReport:
    """How a task ended.

    Attributes:
        task: The task.
        state: What became of it.
        failed: Number of its images without a score.
        seconds: Time from its start to its commit.
        reused: Number of stored maps that were scored.
        left: Reasons by image (digest) for those that are left to a later run; nothing of them is recorded.
    """

    task: Task
    state: State
    failed: int = 0
    seconds: float = 0.0
    reused: int = 0
    left: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass
class RunLog:
    """The reports of a run, as far as it got."""

    reports: list[TaskReport] = field(default_factory=list[TaskReport])

    def count(self, state: State) -> int:
        """Count the tasks in a state."""
        return sum(report.state == state for report in self.reports)

    @property
    def failed(self) -> int:
        """Number of images without a score, summed over tasks."""
        return sum(report.failed for report in self.reports)

    @property
    def left(self) -> int:
        """Number of images left to a later run, summed over tasks."""
        return sum(len(report.left) for report in self.reports)


def perform(worker: TaskRunner, order: Order) -> TaskResult:
    """Compute a task. What the system failed at is left to a later run."""
    try:
        return worker.perform(order.task, order.stored)
    except Exception as error:
        if isinstance(error, FringeError) or not is_transient(error):
            raise
        return TaskResult({}, [], dict.fromkeys(order.task.images, f"{type(error).__name__}: {error}"))


def perform_or_exit(worker: TaskRunner, order: Order) -> TaskResult:
    """:func:`perform` in a process of its own, which a bug ends: the next task gets a new one."""
    try:
        return perform(worker, order)
    except FringeError:
        raise
    except BaseException:  # nobody listens to the log of such a process; its standard error is that of the run
        print(f"{order.task.method} on {order.task.model}", file=sys.stderr)
        traceback.print_exc()
        os._exit(1)


@dataclass(frozen=True)
class TaskFailure:
    """Why a task has no result: its process died or was late.

    Attributes:
        reason: What happened, as in "ended its process (SIGKILL)".
        fault: What is to blame: the task, or the start of a process, which had not begun to take tasks.
    """

    reason: str
    fault: Literal["task", "start"] = "task"


class Executor(Protocol):
    """Performs tasks somewhere. What becomes of a task that fails is decided by :func:`run_tasks`."""

    @property
    def capacity(self) -> int:
        """Tasks that are performed at a time."""
        ...

    def start(self, job: Job, tasks: int) -> None:
        """Prepare for the tasks of a job.

        Args:
            job: Plan and options.
            tasks: Largest number of tasks that will be scheduled.
        """
        ...

    def schedule(self, order: Order) -> None:
        """Begin a task; at most ``capacity`` of them are running.

        Args:
            order: A task of the job, with the stored maps that it scores.
        """
        ...

    def completed(self, timeout: float) -> Sequence[tuple[Order | None, TaskResult | TaskFailure]]:
        """Wait for running tasks, and return those that ended.

        Args:
            timeout: Longest time to wait, in seconds.

        Returns:
            Each task that ended, with its result or the reason why it has none; None stands for a process that could
            not start and had no task.

        Raises:
            FringeError: If the model cannot be used: the run ends.
        """
        ...

    def stop(self) -> None:
        """End everything that is running."""
        ...


def run_tasks(
    job: Job,
    store: Store,
    tasks: Sequence[Task],
    log: RunLog,
    callback: Callable[[TaskReport], None],
    executor: Executor,
) -> None:
    """Perform tasks until each is committed, or left to a later run.

    A task that another run has claimed is looked at again every ``POLL_INTERVAL`` seconds. A task whose process dies or
    is late is tried ``MAX_TRIES`` times; then its scores failed.

    ``log`` gets the report of each task, and is up to date at any time, also when this is interrupted; ``callback`` is
    called with it. The executor is started and stopped here. Raises FringeError if the model or the store cannot be
    used, or ``MAX_TRIES`` processes in turn end before they take a task.
    """
    policy, running = _Policy(job, store, deque(tasks)), 0

    def tell(report: TaskReport) -> None:
        log.reports.append(report)
        callback(report)
        check_interrupt()

    try:
        executor.start(job, len(tasks))
        while policy.pending or running:
            while running < executor.capacity and (found := policy.next()) is not None:
                if isinstance(found, TaskReport):
                    tell(found)
                    continue
                executor.schedule(found)
                running += 1
            results = executor.completed(POLL_INTERVAL)
            for order, result in results:
                running -= order is not None
                report = policy.settle(order, result)
                if report is not None:
                    tell(report)
                elif order is not None:
                    policy.pending.append(order.task)
            if not results and not running:  # all tasks are claimed by another run, or no process is ready
                time.sleep(POLL_INTERVAL)
    except BaseException:
        store.abandon()  # where a claim cannot be given up, as on a full disk, it must not stop the next run
        raise
    finally:
        executor.stop()
        for key in policy.began:
            with contextlib.suppress(FringeError):
                store.release(key)


@dataclass
class _Policy:
    """Which task comes next, and what follows from a task's end."""

    job: Job
    store: Store
    pending: deque[Task]
    tries: dict[str, int] = field(default_factory=dict[str, int])
    not_before: dict[str, float] = field(default_factory=dict[str, float])
    began: dict[str, float] = field(default_factory=dict[str, float])
    failed_starts: int = 0

    def next(self) -> Order | TaskReport | None:
        """Take the first task that may be tried now; a report for one that another run has done meanwhile."""
        now = time.monotonic()
        for task in list(self.pending):
            if self.not_before.get(task.key, 0.0) > now:
                continue
            state = "claimed" if task.key in self.began else self.store.claim(task.key)
            if state == "locked":
                self.not_before[task.key] = now + POLL_INTERVAL
                continue
            self.pending.remove(task)
            if state == "done":
                return TaskReport(task, "cached", self.store.failed_since(task.setting, task.images))
            self.began[task.key] = now
            return Order(task, {} if task.force else self.store.load_maps(task.setting, task.images))
        return None

    def settle(self, order: Order | None, result: TaskResult | TaskFailure) -> TaskReport | None:
        """Commit a result, and give the final report of a task; None if it is to be tried again."""
        if isinstance(result, TaskResult):
            self.failed_starts = 0
            assert order is not None
            return self._commit(order.task, result, "done")
        if result.fault == "start":
            self.failed_starts += 1
            if self.failed_starts == MAX_TRIES:
                # no task is to blame for processes that end before they take one, and another would end the same way
                raise FringeError(
                    f"{MAX_TRIES} processes in turn {result.reason} before they began; can they import the methods, "
                    'and does a script that starts them do so under `if __name__ == "__main__"`?',
                    argument="workers",
                )
        if order is None:
            return None
        task = order.task
        self.tries[task.key] = self.tries.get(task.key, 0) + 1
        if self.tries[task.key] < MAX_TRIES:
            log.warning("%s on %s %s; it is tried again", task.method, task.model, result.reason)
            return None
        reason = f"{result.reason}, {MAX_TRIES} times"
        return self._commit(task, TaskResult.failed(task, self.job.resolved.manifest, reason), "crashed")

    def _commit(self, task: Task, result: TaskResult, state: State) -> TaskReport:
        seconds = time.monotonic() - self.began.pop(task.key)
        if not result.results:
            self.store.release(task.key)
            return TaskReport(task, "left", seconds=seconds, left=result.left)
        saved = self.job.saved(task, [one.image for one in result.results if one.map is not None])
        if task.metrics or saved:
            self.store.commit(result.about, result.results, task=task.key, maps=saved)
        else:
            self.store.release(task.key)
        failed = sum(one.failed for one in result.results)
        reused = sum(one.map is None and bool((one.status == OK).any()) for one in result.results)
        return TaskReport(task, state, failed, seconds, reused, result.left)


class SerialExecutor:
    """Performs tasks one after the other in this process.

    Args:
        keep: Whether the model and the images of the last task stay in memory for the next job, of the same models and
            images.
        progress: Called as maps are made.
    """

    capacity = 1

    def __init__(self, *, keep: bool = False, progress: Progress | None = None) -> None:
        self._results: list[tuple[Order, TaskResult | TaskFailure]] = []
        self._keep, self._progress = keep, progress
        self._runner: TaskRunner | None = None

    def start(self, job: Job, tasks: int) -> None:
        if self._runner is None or not self._keep:
            self._runner = job.worker()
            if self._progress is not None:
                self._runner.progress = self._progress
        else:
            self._runner.use(job.resolved)

    @property
    def runner(self) -> TaskRunner:
        """What computes the tasks of the last job, with the model and the images of its last task."""
        assert self._runner is not None
        return self._runner

    def schedule(self, order: Order) -> None:
        self._results.append((order, perform(self.runner, order)))

    def completed(self, timeout: float) -> list[tuple[Order, TaskResult | TaskFailure]]:
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

    def start(self, job: Job, tasks: int) -> None:
        try:
            pickle.dumps(job)
        except Exception as error:  # of whatever class a method or a metric has
            message = f"its methods or metrics cannot be sent to other processes ({first_line(error)})"
            hint = "write them as classes of a module that can be imported, or take executor='serial'"
            raise InputError(message, argument="executor", hint=hint) from error
        self._job, self._capacity = job, max(1, min(self._workers, tasks))

    def schedule(self, order: Order) -> None:
        for dead in [process for process in self._idle if not process.alive]:  # it blames no task
            self._idle.remove(dead)
            dead.close()
        process = self._idle.pop() if self._idle else _Process(self._job, self._capacity)
        self._busy.append(process)
        process.send(order)

    def completed(self, timeout: float) -> list[tuple[Order, TaskResult | TaskFailure]]:
        deadline, results = time.monotonic() + timeout, list[tuple[Order, TaskResult | TaskFailure]]()
        while self._busy and not results:
            wait([process.pipe for process in self._busy], min(_LOOK, max(0.0, deadline - time.monotonic())))
            for process in list(self._busy):
                if (result := self._result(process)) is not None:
                    results.append((process.order, result))
            if time.monotonic() > deadline:
                break
        return results

    def stop(self) -> None:
        for process in (*self._idle, *self._busy):
            process.close()
        self._idle, self._busy = [], []

    def _result(self, process: "_Process") -> TaskResult | TaskFailure | None:
        """What a process says; None if it says nothing yet."""
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
            return answer
        if not is_gone and not is_late and answer is None:
            return None
        self._busy.remove(process)
        reason = f"ended its process ({process.cause})" if is_gone or answer else f"took longer than {self.timeout:g} s"
        process.close()
        return TaskFailure(reason, "task" if process.began else "start")


#: What a process says when it can take a task, and what it is heard to say when it has ended.
_READY, _ENDED = "ready", "ended"


class _Process:
    """A process with a worker, which answers each task that comes through its pipe."""

    def __init__(self, job: Job, count: int):
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self._process = context.Process(target=_work, args=(other, job, count), daemon=True)
        self._process.start()
        other.close()
        self.began = False

    def send(self, order: Order) -> None:
        self.order, self.since = order, time.monotonic()
        with contextlib.suppress(OSError):  # it has ended: its answer says so
            self.pipe.send_bytes(pickle.dumps(order))

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


def _work(pipe: Any, job: Job, count: int) -> None:
    """Take tasks until the pipe ends."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt from the keyboard is handled by the parent
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(max(1, torch.get_num_threads() // count))
    worker = job.worker()
    answer: Any = _READY
    while True:
        pipe.send_bytes(pickle.dumps(answer))  # by value: what a pipe pickles itself shares the memory of tensors
        try:
            order = pickle.loads(pipe.recv_bytes())
        except EOFError:  # the parent has ended
            return
        try:
            answer = perform_or_exit(worker, order)
        except FringeError as error:
            answer = error
