"""Jobs: a plan with its store, and the report of each of its tasks."""

import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from fringe.bench.experiments._manifest import Resolved, versions
from fringe.bench.experiments._records import StoredMap
from fringe.bench.experiments._runner import TaskResult, TaskRunner
from fringe.bench.experiments._store import CRASH, Store
from fringe.bench.experiments._tasks import Task
from fringe.errors import FringeError, is_transient


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


#: Computed and committed, in part at least; left to a later run; committed by another run; being computed by another
#: run; set aside.
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


#: Called with each report.
Callback = Callable[[TaskReport], None]


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
        result = _attempt(worker, task, stored)
        if saved := job.saved(task, result.maps):
            store.commit_maps(task.setting, saved)
        part = replace(task, images=tuple(image for image in task.images if image not in result.left))
        if not part.images:
            return TaskReport(task, "left", seconds=time.perf_counter() - began, left=result.left)
        store.commit(result.rows, {**part.shared(job.resolved.manifest), **_made_by(result, stored or {})})
    if task.force:
        store.write_record(CRASH, task.key, None)
    failed = len({row.image for row in result.rows if row.status != "ok"})
    reused = len({row.image for row in result.rows if row.status == "ok"} - result.maps.keys())
    return TaskReport(task, "done", failed, time.perf_counter() - began, reused, result.left)


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


def _attempt(worker: TaskRunner, task: Task, stored: Mapping[str, StoredMap] | None) -> TaskResult:
    """Compute a task; all of its images are left to a later run if the system failed."""
    try:
        return worker.perform(task, stored)
    except FringeError:
        raise
    except Exception as error:
        if not is_transient(error):
            raise
        return TaskResult([], {}, dict.fromkeys(task.images, f"{type(error).__name__}: {error}"))


def _made_by(result: TaskResult, stored: Mapping[str, StoredMap]) -> dict[str, Any]:
    """The library versions that computed a task, and those that made the stored maps that it scored."""
    reused = {row.image for row in result.rows} - result.maps.keys()
    previous = [dict(stored[image].versions) for image in sorted(reused) if image in stored]
    return {
        "versions": versions(),
        "map_versions": [one for index, one in enumerate(previous) if one not in previous[:index]],
    }
