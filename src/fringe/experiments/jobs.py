"""What every engine takes and gives: units in, committed units out."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from fringe.errors import FringeError, is_transient
from fringe.experiments.kept import StoredMap
from fringe.experiments.manifest import Resolved, versions
from fringe.experiments.store import Store
from fringe.experiments.units import Task
from fringe.experiments.work import TaskResult, TaskRunner


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
