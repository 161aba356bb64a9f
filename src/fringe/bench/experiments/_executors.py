"""Executors: the tasks of a run are performed in this process or in others, under one policy."""

import multiprocessing
import os
import pickle
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from typing import Any, Literal, Protocol, cast

from fringe._files.process import check_interrupt
from fringe._strings.progress import log
from fringe.bench.experiments._manifest import Resolved
from fringe.bench.experiments._records import OK, StoredMap
from fringe.bench.experiments._runner import TaskResult, TaskRunner
from fringe.bench.experiments._store import CRASH, Store
from fringe.bench.experiments._tasks import Task
from fringe.errors import FringeError, InputError, first_line, is_transient
from fringe.evaluation import Progress

#: Times that a task is tried before it is set aside, if its process dies or is late.
MAX_TRIES = 3
#: Seconds between two looks at a task that another run has locked.
POLL_INTERVAL = 0.5


@dataclass(frozen=True)
class Job:
    """A plan and where it goes. ``save_maps`` keeps all maps, too; ``device`` and ``batch_size`` shape no number."""

    resolved: Resolved
    store: Store
    device: str = "cpu"
    batch_size: int | Literal["auto"] = "auto"
    save_maps: bool = False

    def saved(self, task: Task, maps: Mapping[str, StoredMap]) -> Mapping[str, StoredMap]:
        """The maps of a task that are stored: all, or those by methods that the plan shows."""
        if self.save_maps or not maps:
            return maps
        plan, manifest = self.resolved.plan, self.resolved.manifest
        if not plan.shown or "control" in manifest.settings[task.model][task.method]["method"]:
            return {}
        shown = {image["digest"] for image in manifest.images[: plan.shown]}
        return {image: one for image, one in maps.items() if image in shown}

    def worker(self) -> TaskRunner:
        return TaskRunner(self.resolved, device=self.device, batch_size=self.batch_size)


#: done: computed and stored, at least in part; left: for a later run; cached: another run stored it; locked: another
#: run computes it now; crashed: set aside.
State = Literal["done", "left", "cached", "locked", "crashed"]


@dataclass(frozen=True)
class TaskReport:
    """How a task ended.

    Attributes:
        task: The task.
        state: What became of it.
        failed: Number of its images without a score.
        seconds: Time that it took.
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
        """Number of images without a score, summed over tasks, including those that were set aside."""
        return sum(len(r.task.images) if r.state == "crashed" else r.failed for r in self.reports)

    @property
    def left(self) -> int:
        """Number of images left to a later run, summed over tasks."""
        return sum(len(report.left) for report in self.reports)


def perform(job: Job, worker: TaskRunner, task: Task) -> TaskReport:
    """Compute a task and commit it, unless another run has done so or is doing so."""
    store, began = job.store, time.perf_counter()
    with store.claim(task.key) as claimed:
        if not claimed:
            return TaskReport(task, "locked")
        failed = store.meanwhile(task.key)  # by another run
        if failed is not None and not (task.force and failed):
            return TaskReport(task, "cached", failed)
        stored = None if task.force else store.load_maps(task.setting, task.images)
        try:
            result = worker.perform(task, stored)
        except Exception as error:
            if isinstance(error, FringeError) or not is_transient(error):
                raise
            # the system failed: all of its images are left to a later run
            result = TaskResult(None, {}, dict.fromkeys(task.images, f"{type(error).__name__}: {error}"))
        if saved := job.saved(task, result.maps):
            store.commit_maps(task.setting, saved)
        if result.scores is None:
            return TaskReport(task, "left", seconds=time.perf_counter() - began, left=result.left)
        store.commit(result.scores)
    if task.force:
        store.write_record(CRASH, task.key, None)
    failed, has_score = result.scores.failed_images, (result.scores.status == OK).any(0)
    scored = sum(image not in result.maps for image, ok in zip(result.scores.images, has_score, strict=True) if ok)
    return TaskReport(task, "done", failed, time.perf_counter() - began, scored, result.left)


def perform_or_exit(job: Job, worker: TaskRunner, task: Task) -> TaskReport:
    """:func:`perform` in a process of its own, which a bug ends: the next task gets a new one."""
    try:
        return perform(job, worker, task)
    except FringeError:
        raise
    except BaseException:  # nobody listens to the log of such a process; its standard error is that of the run
        print(f"{task.method} on {task.model}", file=sys.stderr)
        traceback.print_exc()
        os._exit(1)


@dataclass(frozen=True)
class TaskFailure:
    """Why a task has no report: its process died or was late.

    Attributes:
        reason: What happened, as in "ended its process (SIGKILL)".
        fault: What is to blame: the task; the start of a process, which had not begun to take tasks; or the machine,
            which is lost, and which costs the task no try.
    """

    reason: str
    fault: Literal["task", "start", "machine"] = "task"


class Executor(Protocol):
    """Performs tasks somewhere. What becomes of a task that fails is decided by :func:`run_tasks`."""

    @property
    def capacity(self) -> int:
        """Tasks that are performed at a time."""
        ...

    def start(self, job: Job, tasks: int) -> None:
        """Prepare for the tasks of a job.

        Args:
            job: Plan, store and options.
            tasks: Largest number of tasks that will be scheduled.
        """
        ...

    def schedule(self, task: Task) -> None:
        """Begin a task; at most ``capacity`` of them are running.

        Args:
            task: A task of the job.
        """
        ...

    def completed(self, timeout: float) -> Sequence[tuple[Task | None, TaskReport | TaskFailure]]:
        """Wait for running tasks, and return those that ended.

        Args:
            timeout: Longest time to wait, in seconds.

        Returns:
            Each task that ended, with its report or the reason why it has none; None stands for a process that could
            not start and had no task.

        Raises:
            FringeError: If the model or the store cannot be used: the run ends.
        """
        ...

    def stop(self) -> None:
        """End everything that is running."""
        ...


def run_tasks(
    job: Job, tasks: Sequence[Task], log: RunLog, callback: Callable[[TaskReport], None], executor: Executor
) -> None:
    """Perform tasks until each is committed, left to a later run, or set aside.

    A task that another run has locked is looked at again every ``POLL_INTERVAL`` seconds. A task whose process dies or
    is late is tried ``MAX_TRIES`` times; then the store says that it is set aside.

    ``log`` gets the report of each task, and is up to date at any time, also when this is interrupted; ``callback`` is
    called with it. The executor is started and stopped here. Raises FringeError if the model or the store cannot be
    used, or ``MAX_TRIES`` processes in turn end before they take a task.
    """
    policy, running = _Policy(job, deque(tasks)), 0
    try:
        executor.start(job, len(tasks))
        while policy.pending or running:
            while running < executor.capacity and (task := policy.next()) is not None:
                executor.schedule(task)
                running += 1
            results = executor.completed(POLL_INTERVAL)
            for task, result in results:
                running -= task is not None
                report = policy.settle(task, result)
                if report is not None:
                    log.reports.append(report)
                    callback(report)
                    check_interrupt()
                elif task is not None:
                    policy.pending.append(task)
            if not results and not running:  # all tasks are locked, or no process is ready
                time.sleep(POLL_INTERVAL)
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

    def settle(self, task: Task | None, result: TaskReport | TaskFailure) -> TaskReport | None:
        """The final report of a task; None if it is to be tried again."""
        if isinstance(result, TaskReport):
            self.failed_starts = 0
            self.not_before[result.task.key] = time.monotonic() + POLL_INTERVAL
            return None if result.state == "locked" else result
        if result.fault == "start":
            self.failed_starts += 1
            if self.failed_starts == MAX_TRIES:
                # no task is to blame for processes that end before they take one, and another would end the same way
                raise FringeError(
                    f"{MAX_TRIES} processes in turn {result.reason} before they began; can they import the methods, "
                    'and does a script that starts them do so under `if __name__ == "__main__"`?',
                    argument="workers",
                )
        if task is None or result.fault != "task":
            return None
        self.tries[task.key] = self.tries.get(task.key, 0) + 1
        if self.tries[task.key] < MAX_TRIES:
            log.warning("%s on %s %s; it is tried again", task.method, task.model, result.reason)
            return None
        record = {**task.record(self.job.resolved.manifest), "reason": f"{result.reason}, {MAX_TRIES} times"}
        self.job.store.write_record(CRASH, task.key, record)
        return TaskReport(task, "crashed")


class SerialExecutor:
    """Performs tasks one after the other in this process.

    Args:
        keep: Whether the model and the images of the last task stay in memory for the next job, of the same models and
            images.
        progress: Called as maps are made.
    """

    capacity = 1

    def __init__(self, *, keep: bool = False, progress: Progress | None = None) -> None:
        self._results: list[tuple[Task, TaskReport | TaskFailure]] = []
        self._keep, self._progress = keep, progress
        self._runner: TaskRunner | None = None

    def start(self, job: Job, tasks: int) -> None:
        self._job = job
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

    def schedule(self, task: Task) -> None:
        self._results.append((task, perform(self._job, self.runner, task)))

    def completed(self, timeout: float) -> list[tuple[Task, TaskReport | TaskFailure]]:
        results, self._results = self._results, []
        return results

    def stop(self) -> None:
        self._results = []


class ProcessExecutor(Executor):
    """Performs tasks in several processes that share PyTorch's threads; one that dies or is late is replaced.

    Args:
        workers: Largest number of processes; there are no more than tasks.
        timeout: Seconds that a task may take; None for no limit.
    """

    def __init__(self, workers: int, timeout: float | None = None):
        self._workers = self._capacity = workers
        self.timeout = timeout
        self._idle, self._running = list[_Worker](), dict[Future[TaskReport], tuple[Task, _Worker]]()

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

    def schedule(self, task: Task) -> None:
        worker = next((worker for worker in self._idle if worker.alive), None)
        if worker is None:
            worker = _Worker(self._job, self._capacity)
        else:
            self._idle.remove(worker)
        self._running[worker.pool.schedule(_perform, args=(task,), timeout=self.timeout)] = task, worker

    def completed(self, timeout: float) -> list[tuple[Task, TaskReport | TaskFailure]]:
        wait(self._running, timeout, return_when=FIRST_COMPLETED)
        # A process that ends with exit code 0 gives no result: pebble replaces it, and its task would never end.
        ended = [future for future, (_, worker) in self._running.items() if future.done() or worker.replaced]
        return [self._result(future, *self._running.pop(future)) for future in ended]

    def stop(self) -> None:
        for worker in (*self._idle, *(worker for _, worker in self._running.values())):
            worker.stop()
        self._idle, self._running = [], {}

    def _result(
        self, future: Future[TaskReport], task: Task, worker: "_Worker"
    ) -> tuple[Task, TaskReport | TaskFailure]:
        error = future.exception() if future.done() else None
        if future.done() and error is None:
            self._idle.append(worker)
            return task, future.result()
        worker.stop()
        if isinstance(error, FringeError):
            raise error
        late = isinstance(error, TimeoutError)
        reason = f"took longer than {self.timeout:g} s" if late else f"ended its process ({worker.cause})"
        return task, TaskFailure(reason, "task" if worker.started else "start")


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


def _perform(task: Task) -> TaskReport:
    return perform_or_exit(_job, _runner, task)
