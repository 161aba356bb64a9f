"""A plan from a record to results in a folder, as far as it gets."""

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fringe._checks import require_choice
from fringe._interrupt import Interrupted as Interrupted
from fringe._interrupt import interruptible as interruptible
from fringe.errors import InputError, TransientError
from fringe.experiments._executors import Account, Executor, Job, ProcessExecutor, Report, SerialExecutor, run_tasks
from fringe.experiments._manifest import Resolved, changes, digest, resolve
from fringe.experiments._plan import Plan, build_plan
from fringe.experiments._records import ScoreRecord
from fringe.experiments._results import Results, gather, results_of
from fringe.experiments._runner import TaskRunner
from fringe.experiments._spec import ExperimentSpec
from fringe.experiments._store import CRASHES, MAPS, PLANS, UNITS, Store
from fringe.experiments._tasks import Key, Task, missing_units, present, wanted


@dataclass(frozen=True)
class RunOptions:
    """How a plan is run; none of it shapes a number. ``workers`` 0 is this process; with one or more, a process that
    dies is replaced. ``amend`` lets a folder's plan change; ``retry`` computes again what failed or was set aside;
    ``renew`` sets aside the results of a model that computes other logits now than when they were made. ``executor``
    takes the place of ``workers`` and ``timeout``."""

    device: str = "cpu"
    batch_size: int | Literal["auto"] = "auto"
    workers: int = 0
    timeout: float | None = None
    save_maps: bool = False
    amend: bool = False
    retry: bool = False
    renew: bool = False
    executor: Executor | None = None


@dataclass
class Progress:
    """What a run tells about itself: ``began`` with the units that are missing, then ``ended`` with each."""

    began: Callable[[Resolved, Sequence[Task]], None] = lambda resolved, units: None
    ended: Callable[[Report], None] = lambda report: None


@dataclass(frozen=True)
class RunResult:
    """How a run ended: ``stopped`` says why it did so early, None where all that could be done is done.
    ``failed_before`` counts the plan's scores that came to nothing in an earlier run and were not tried again."""

    resolved: Resolved
    account: Account
    stopped: str | None = None
    cause: BaseException | None = None
    set_aside: tuple[Mapping[str, Any], ...] = field(default=())
    failed_before: int = 0

    @property
    def partial(self) -> bool:
        """Whether some image has no score, or a drawn image could not be read."""
        manifest = self.resolved.manifest
        lacking = (self.account.left, self.account.failed, self.failed_before, self.set_aside, manifest.missing)
        return any(map(bool, lacking))

    @property
    def left(self) -> list[dict[str, Any]]:
        """Images that a later run of the same plan computes, counted by model, method and reason: nothing of them is
        recorded, because the reason may pass."""
        found = Counter((r.unit.model, r.unit.method, why) for r in self.account.reports for why in r.left.values())
        return [{"model": m, "method": method, "reason": why, "images": n} for (m, method, why), n in found.items()]


def run_experiment(
    spec: ExperimentSpec | Plan,
    out: str | Path | Store | None = None,
    *,
    executor: Executor | Literal["serial", "processes"] = "serial",
    device: str = "cpu",
    batch_size: int | Literal["auto"] = "auto",
    save_maps: bool = False,
    amend: bool = False,
    retry: bool = False,
    renew: bool = False,
    progress: Progress | None = None,
) -> Results:
    """Score methods under metrics on many images.

    Args:
        spec: What is computed.
        out: Run folder. What it holds already is not computed again; None keeps everything in memory.
        executor: Where tasks are performed: ``"serial"`` in this process, ``"processes"`` in one process for each CPU
            core, or an executor of your own. With None as ``out``, this process is used.
        device: Device of the models.
        batch_size: Images of a forward pass, or "auto".
        save_maps: Keep the maps, so that a metric added later needs no new ones.
        amend: Let other settings replace those of the folder's plan of this name.
        retry: Compute again what failed or was set aside.
        renew: Set aside the results of a model that computes other logits now than when they were made.
        progress: Called with the tasks at the start, and with each report.

    Returns:
        The scores; one that failed, or was left to a later run, is null in :attr:`Results.frame`, with the reason.

    Raises:
        FringeError: For a specification, folder or model that cannot be used.
        TransientError: If the disk or device fails: the same call resumes.
        Interrupted: On SIGINT or SIGTERM; what was committed stays, and the same call resumes.
    """
    plan = spec if isinstance(spec, Plan) else build_plan(spec)
    if out is None:
        return _in_memory(plan, device, batch_size, progress or Progress())
    if isinstance(executor, str):
        require_choice("executor", executor, ("serial", "processes"))
        executor = SerialExecutor() if executor == "serial" else ProcessExecutor(os.cpu_count() or 1)
    root = out.root if isinstance(out, Store) else Path(out)
    how = RunOptions(device, batch_size, 0, None, save_maps, amend, retry, renew, executor)
    finished = run_plan(plan, root, how, progress)
    if finished.cause is not None:
        raise finished.cause
    return results_of(Store(root, create=False), finished.resolved.manifest)


def _in_memory(plan: Plan, device: str, batch_size: int | Literal["auto"], progress: Progress) -> Results:
    resolved = resolve(plan)
    runner, records = TaskRunner(resolved, device=device, batch_size=batch_size), dict[Key, ScoreRecord]()
    tasks = missing_units(resolved.manifest, (), plan.shard)
    progress.began(resolved, tasks)
    for task in tasks:
        result = runner.perform(task)
        records |= {record.key: record for record in result.rows}
        failed = {record.image for record in result.rows if record.status != "ok"}
        progress.ended(Report(task, "left" if result.left else "done", len(failed), left=result.left))
    return gather(resolved.manifest, records)


def run_plan(plan: Plan, root: Path, how: RunOptions, progress: Progress | None = None) -> RunResult:
    """Compute what ``root`` lacks of ``plan``. Raises FringeError for a plan, a folder or a model that cannot be used;
    what was committed before stays. An interrupt (SIGINT, SIGTERM), a full disk or one that does not answer drops the
    unit in hand and ends the run early. Where one comes before there is a run that could end, it is raised:
    :class:`Interrupted` or TransientError."""
    with interruptible():
        return _run(plan, root, how, progress or Progress())


def _run(plan: Plan, root: Path, how: RunOptions, told: Progress) -> RunResult:
    store = Store(root)
    store.sweep()
    store.heal()
    resolved = resolve(plan, logits=True)
    _admit(store, resolved, amend=how.amend)
    require_same_logits(store, resolved, renew=how.renew)
    account, cause, aside, failed_before = Account(), None, (), 0
    try:
        store.write_record(PLANS, plan.name, resolved.manifest.record())
        units, aside, failed_before = _to_do(store, resolved, retry=how.retry)
        told.began(resolved, units)
        job = Job(resolved, store, how.device, how.batch_size, how.save_maps)
        executor = ProcessExecutor(how.workers, how.timeout) if how.workers else SerialExecutor()
        run_tasks(job, units, account, told.ended, how.executor or executor)
    except (Interrupted, TransientError) as error:
        cause = error
    return RunResult(resolved, account, None if cause is None else str(cause), cause, aside, failed_before)


def _to_do(store: Store, resolved: Resolved, *, retry: bool) -> tuple[list[Task], tuple[Mapping[str, Any], ...], int]:
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
            f"{str(store.root)!r} holds a {plan.name} with other settings ({'; '.join(lines)})",
            argument="out",
            hint="name another folder, or set amend=True to change the plan and keep what still fits",
        )


def require_same_logits(store: Store, resolved: Resolved, *, renew: bool) -> None:
    """Keep the first logits of each model, or compare them with those that are kept. Raises InputError for a model that
    has results in the folder and computes something else now; with ``renew`` those are set aside instead."""
    for label, first in resolved.logits.items():
        key = resolved.manifest.model_key(label)
        before = store.logits(key)
        far = first.differing(before)
        if far is not None:
            old = _results_of(store, resolved, label)
            if old and not renew:
                raise _other_logits(store, resolved, label, far)
            store.set_aside(old)
            before = {}
        if not first.values.keys() <= before.keys():
            store.commit_logits(key, {**before, **first.values})


def _other_logits(store: Store, resolved: Resolved, label: str, far: tuple[str, float]) -> InputError:
    image = next(image["id"] for image in resolved.manifest.images if image["digest"] == far[0])
    plans = [record["versions"] for record in store.records(PLANS).values()]
    versions = changes(plans[0], resolved.manifest.versions) if plans else []
    cause = f" ({'; '.join(versions)})" if versions else ""
    return InputError(
        f"model {label!r}: its logits are not those that the results in {str(store.root)!r} were computed with; the "
        f"largest difference is {far[1]:.3g}, on image {image!r}. Its weights are the same: its code changed, or a "
        f"library{cause}",
        hint="name another folder, or set renew=True to set the results of this model aside and compute them again",
    )


def _results_of(store: Store, resolved: Resolved, label: str) -> list[tuple[str, str]]:
    """Folder and file of all that was computed with the weights of a model, whatever it was called."""
    key, manifest = resolved.manifest.model_key(label), resolved.manifest
    units = {name: about for name, about in store.metadata().items() if digest(about["setting"]["model"]) == key}
    aside = {name: one for name, one in store.records(CRASHES).items() if digest(one["setting"]["model"]) == key}
    settings = {about["setting_key"] for about in units.values()}
    settings |= {manifest.setting_key(label, method) for method in manifest.settings[label]}
    return [
        *((UNITS, f"{name}.parquet") for name in units),
        *((CRASHES, f"{name}.json") for name in aside),
        *((MAPS, name) for setting in sorted(settings) for name in store.map_files(setting)),
    ]


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
