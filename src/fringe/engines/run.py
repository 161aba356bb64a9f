"""A plan from a record to results in a folder, as far as it gets."""

import contextlib
import json
import signal
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from fringe._errors import InputError
from fringe.benchmark.coverage import present
from fringe.benchmark.keys import changes
from fringe.benchmark.manifest import Resolved, resolve
from fringe.benchmark.plan import Plan
from fringe.benchmark.store import CRASHES, PLANS, Store, StoreFull
from fringe.benchmark.units import Unit, missing_units, wanted
from fringe.engines.base import Account, Job, Report
from fringe.engines.here import run_here
from fringe.engines.processes import run_processes


@dataclass(frozen=True)
class How:
    """How a plan is run; none of it shapes a number. ``workers`` 0 is this process; with one or more, a process that
    dies is replaced. ``amend`` lets a folder's plan change; ``retry`` computes again what failed or was set aside."""

    device: str = "cpu"
    batch_size: int | Literal["auto"] = "auto"
    workers: int = 0
    timeout: float | None = None
    save_maps: bool = False
    amend: bool = False
    retry: bool = False


@dataclass
class Progress:
    """What a run tells about itself: ``began`` with the units that are missing, then ``ended`` with each."""

    began: Callable[[Resolved, Sequence[Unit]], None] = lambda resolved, units: None
    ended: Callable[[Report], None] = lambda report: None


@dataclass(frozen=True)
class Finished:
    """How a run ended: ``stopped`` says why it did so early, None where all that could be done is done.
    ``failed_before`` counts the plan's scores that came to nothing in an earlier run and were not tried again."""

    resolved: Resolved
    account: Account
    stopped: str | None = None
    set_aside: tuple[Mapping[str, Any], ...] = field(default=())
    failed_before: int = 0

    @property
    def partial(self) -> bool:
        """Whether some image has no score, or a drawn image could not be read."""
        manifest = self.resolved.manifest
        return bool(self.account.failed or self.failed_before or self.set_aside or manifest.missing)


def run_plan(plan: Plan, root: Path, how: How, progress: Progress | None = None) -> Finished:
    """Compute what ``root`` lacks of ``plan``. Raises FringeError for a plan, a folder or a model that cannot be used;
    what was committed before stays. An interrupt (SIGINT, SIGTERM) drops the unit in hand and ends the run early."""
    told = progress or Progress()
    store = Store(root)
    resolved = resolve(plan)
    _admit(store, resolved, amend=how.amend)
    account, stopped, aside, failed_before = Account(), None, (), 0
    try:
        store.sweep()
        store.write_record(PLANS, plan.name, resolved.manifest.record())
        units, aside, failed_before = _to_do(store, resolved, retry=how.retry)
        told.began(resolved, units)
        job = Job(resolved, store, how.device, how.batch_size, how.save_maps)
        with interruptible():
            if how.workers:
                run_processes(job, units, account, told.ended, workers=how.workers, timeout=how.timeout)
            else:
                run_here(job, units, account, told.ended)
    except (Interrupted, StoreFull) as error:
        stopped = str(error)
    return Finished(resolved, account, stopped, aside, failed_before)


def _to_do(store: Store, resolved: Resolved, *, retry: bool) -> tuple[list[Unit], tuple[Mapping[str, Any], ...], int]:
    """The missing units, what is known of those that were set aside because they end their process, and how many scores
    failed before and are left at that."""
    manifest, scored = resolved.manifest, present(store, failures=False)
    have = scored if retry else present(store)
    units = missing_units(manifest, have, resolved.plan.shard, again=retry)
    crashes = {} if retry else store.records(CRASHES)
    aside = tuple(crashes[unit.key] for unit in units if unit.key in crashes)
    failed_before = sum(key in have and key not in scored for *_, key in wanted(manifest))
    return [unit for unit in units if unit.key not in crashes], aside, failed_before


def _admit(store: Store, resolved: Resolved, *, amend: bool) -> None:
    """Raise InputError where the folder's plan of this name has other settings than growing explains."""
    plan = resolved.plan
    old = store.records(PLANS).get(plan.name)
    if old is None or amend:
        return
    new: dict[str, Any] = json.loads(json.dumps(resolved.manifest.record()["plan"]))
    lines = changes(old["plan"], _without_growth(old["plan"], new))
    if lines:
        raise InputError(
            f"--out: {str(store.root)!r} holds a {plan.name} with other settings ({'; '.join(lines)}); name another "
            "folder, or pass --amend to change the plan and keep what still fits"
        )


def _without_growth(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """``new`` without what only adds to ``old``: more images, other models, methods and metrics."""

    def known(part: str) -> dict[str, Any]:
        return {name: value for name, value in new[part].items() if name in old[part]}

    methods = {
        model: {name: method for name, method in found.items() if name in old["methods"][model]}
        for model, found in new["methods"].items()
        if model in old["methods"]
    }
    limits: dict[str, int] = {}
    for metric in old["metrics"]:
        limiting = (old if _limit(new, metric) >= _limit(old, metric) else new)["limits"]
        limits |= {metric: limiting[metric]} if metric in limiting else {}
    shared = {part: known(part) for part in ("models", "preprocessing", "metrics")}
    return {**new, **shared, "methods": methods, "limits": limits, "n": min(old["n"], new["n"])}


def _limit(plan: Mapping[str, Any], metric: str) -> int:
    return min(plan["limits"].get(metric, plan["n"]), plan["n"])


class Interrupted(BaseException):
    """A signal asked the run to end. No error, so that no handler of errors takes it for a failure of the unit in
    hand."""


@contextlib.contextmanager
def interruptible() -> Generator[None]:
    """SIGINT and SIGTERM raise :class:`Interrupted` here. Elsewhere than in the main thread nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise Interrupted(f"interrupted ({signal.Signals(number).name})")

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
