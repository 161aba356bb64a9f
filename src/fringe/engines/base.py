"""What every engine takes and gives: units in, committed units out."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from fringe.benchmark.manifest import Resolved
from fringe.benchmark.store import Store
from fringe.benchmark.units import Unit
from fringe.benchmark.work import Worker


@dataclass(frozen=True)
class Job:
    """A plan and where it goes. ``save_maps`` keeps the maps, too; ``device`` and ``batch_size`` shape no number."""

    resolved: Resolved
    store: Store
    device: str = "cpu"
    batch_size: int | Literal["auto"] = "auto"
    save_maps: bool = False

    def worker(self) -> Worker:
        return Worker(self.resolved, device=self.device, batch_size=self.batch_size)


State = Literal["done", "there", "taken", "crashed"]
"""Computed and committed; committed by somebody else; in the hands of another process; given up."""


@dataclass(frozen=True)
class Report:
    """What became of a unit: ``failed`` of its images have no score, and ``reread`` maps were kept ones."""

    unit: Unit
    state: State
    failed: int = 0
    seconds: float = 0.0
    reread: int = 0


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


Watcher = Callable[[Report], None]
"""Called once a unit, when its fate is known."""


def perform(job: Job, worker: Worker, unit: Unit) -> Report:
    """Compute a unit and commit it, unless somebody has done so or is about to."""
    store, began = job.store, time.perf_counter()
    with store.claim(unit.key) as mine:
        if not mine:
            return Report(unit, "taken")
        if not unit.again and store.has(unit.key):
            return Report(unit, "there")
        kept = None if unit.again else store.find_maps(unit.setting, unit.images)
        done = worker.perform(unit, kept)
        if job.save_maps and done.maps:
            store.commit_maps(unit.setting, done.maps)
        failures = {(row.metric_key, row.image) for row in done.rows if row.status != "ok"}
        about = {**unit.record(job.resolved.manifest), "failed": sorted(failures)}
        store.commit(unit.key, done.rows, about)
    store.forget_crash(unit.key)
    failed = len({image for _, image in failures})
    reread = len({row.image for row in done.rows if row.status == "ok"} - done.maps.keys())
    return Report(unit, "done", failed, time.perf_counter() - began, reread)


def left_over(reports: Sequence[Report]) -> list[Unit]:
    """Units that another process had in hand: to be looked at again."""
    return [report.unit for report in reports if report.state == "taken"]
