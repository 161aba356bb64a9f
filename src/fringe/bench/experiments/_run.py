"""Run experiments: resume a run folder, compute what is missing, and return the results."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import Field, NonNegativeInt, PositiveInt

from fringe._files.process import Interrupted as Interrupted
from fringe._files.process import interruptible as interruptible
from fringe._files.records import changes, describe_changes, digest
from fringe._strings.formats import counted
from fringe._strings.names import Reference
from fringe._strings.progress import Progress
from fringe._strings.progress import log as logger
from fringe.bench.experiments._executors import (
    Executor,
    ProcessExecutor,
    RunLog,
    SerialExecutor,
    run_tasks,
)
from fringe.bench.experiments._manifest import Draw, Manifest, Resolved, resolve, with_methods, without_growth
from fringe.bench.experiments._plan import Plan, build_plan
from fringe.bench.experiments._ray import RayExecutor
from fringe.bench.experiments._records import LOGITS, PLAN, fingerprint, record_problem
from fringe.bench.experiments._results import Results, manifests
from fringe.bench.experiments._runner import TaskRunner
from fringe.bench.experiments._spec import ExperimentSpec, options_of
from fringe.bench.experiments._store import Store
from fringe.bench.experiments._tasks import Task, mixed, orphaned, pending_tasks
from fringe.errors import InputError, TransientError, warn_caller
from fringe.models import resolve_device
from fringe.settings import Options

#: Lines of one kind that :func:`describe_run` shows.
SHOWN = 5
#: What became of images of which there is a map.
MAPPED = ("ok", "diverged", "not_finite")
_FORGET = ", or use overwrite=True to remove the results of this model and compute them again"
#: Severity of a line of :func:`describe_run`.
Level = Literal["info", "warning", "error"]


class RunOptions(Options):
    """How a plan is run; none of it changes a number. The descriptions of the fields are the help of the flags.

    In Python, ``executor`` may also be an executor. It is None for this process, or for processes if a number of
    workers is given.
    """

    expected: ClassVar[Mapping[str, str]] = {"timeout": "a number of seconds of at least 1"}

    device: str = Field("cpu", description="auto, cpu, cuda, cuda:1, ...")
    batch_size: Literal["auto"] | PositiveInt = Field("auto", description="Images per pass: 'auto' or a number.")
    executor: Any = Field(
        None, description="serial, processes, or ray[:ADDRESS]. Default: serial, or processes if workers are given."
    )
    workers: NonNegativeInt = Field(0, description="Worker processes. Default: one for each core or free GPU.")
    timeout: float | None = Field(None, ge=1, description="Longest time of a task; needs worker processes.")
    save_maps: bool = Field(False, description="Store every map: a metric added later needs no new ones.")
    amend: bool = Field(False, description="Let other settings replace those of the folder.")
    retry: bool = Field(False, description="Compute failed scores again.")

    def resolve(self) -> Self:
        """Return the options with an executor in place of its name, and a device in place of "auto". Raises InputError
        for a device that does not exist, and for workers or a timeout of an executor without processes."""
        if self.executor is not None and not isinstance(self.executor, str):
            return self.model_copy(update={"device": resolve_device(self.device)})
        name = self.executor or ("processes" if self.workers else "serial")
        if name == "serial" and self.workers:
            raise InputError("a serial run has no workers", argument="workers", hint="leave out one of the two")
        if self.timeout is not None and name == "serial":
            message = "a task that takes too long is ended with its process"
            raise InputError(message, argument="timeout", hint="add workers=1, or more")
        # the machines of a cluster have their own devices
        device = self.device if name.startswith("ray") and self.device != "auto" else resolve_device(self.device)
        alone = name == "processes" and device.startswith("cuda")  # each process would fill the same GPU
        executor = make_executor(name, self.workers or (1 if alone else None), self.timeout)
        return self.model_copy(update={"executor": executor, "device": device})

    def runner(self, resolved: Resolved) -> TaskRunner:
        """What computes the tasks of a plan."""
        return TaskRunner(resolved, device=self.device, batch_size=self.batch_size, save_maps=self.save_maps)


def make_executor(name: str, workers: int | None = None, timeout: float | None = None) -> Executor:
    """Make the executor ``serial``, ``processes``, ``ray`` or ``ray:ADDRESS``. Without ``workers``, there is one for
    each core, or as many as a cluster has room for. Raises InputError for another name."""
    if name == "serial":
        return SerialExecutor()
    if name == "processes":
        return ProcessExecutor(workers or os.cpu_count() or 1, timeout)
    reference = Reference.parse(name)
    if reference.head == "ray":
        return RayExecutor(reference.rest or None, workers=workers, timeout=timeout)
    raise InputError(f"got {name!r}, expected serial, processes, ray or ray:ADDRESS", argument="executor")


@dataclass(frozen=True)
class RunResult:
    """How a run ended: early if there is a ``cause``, else everything that could be done is done."""

    resolved: Resolved
    log: RunLog
    store: Store
    cause: BaseException | None = None

    @property
    def stopped(self) -> str | None:
        """``cause`` in words."""
        return None if self.cause is None else str(self.cause)

    @cached_property
    def results(self) -> Results:
        """The scores of the plan, as they are stored."""
        return Results(self.resolved.manifest, self.store)

    @property
    def has_scores(self) -> bool:
        """Whether any score of the plan was computed, now or before."""
        return any(cell.scored for cell in self.results.cells.values())

    @property
    def failed(self) -> int:
        """Number of scores of the plan that failed, now or before: what failed before was not tried again."""
        return sum(cell.failed for cell in self.results.cells.values())

    @property
    def partial(self) -> bool:
        """Whether some image has no score, or a sampled image could not be read."""
        cells = self.results.cells.values()
        return bool(self.resolved.manifest.missing) or any(cell.scored < cell.required for cell in cells)

    @property
    def left(self) -> list[dict[str, Any]]:
        """Images that are left to a later run, counted by model, method and reason."""
        counts = Counter((r.task.model, r.task.method, why) for r in self.log.reports for why in r.left.values())
        return [{"model": m, "method": method, "reason": why, "images": n} for (m, method, why), n in counts.items()]


def run_experiment(
    spec: ExperimentSpec | Plan,
    out: str | Path | Store | None = None,
    *,
    progress: bool | RunLog | None = None,
    **options: Any,
) -> Results:
    """Score methods under metrics on many images.

    Args:
        spec: What is computed.
        out: Run folder. Stored results are not computed again; None keeps everything in memory.
        progress: True for a progress bar, or a log whose functions are called: with the tasks at the start, and with
            each report.
        **options: Fields of :class:`RunOptions`: how it is run.

    Returns:
        The scores. A score that failed, or was left to a later run, is null in :attr:`Results.frame`, with the reason.

    Raises:
        FringeError: For a specification, folder or model that cannot be used.
        TransientError: If the disk or device fails: the same call resumes.
        Interrupted: On SIGINT or SIGTERM; what was committed stays, and the same call resumes.
    """
    import polars  # noqa: F401 - if it is absent, say so before hours of work

    plan = spec if isinstance(spec, Plan) else build_plan(spec)
    root = out.root if isinstance(out, Store) else None if out is None else Path(out)
    with Progress(plan.name, None, quiet=progress is not True, leave=True) as bar:
        log = RunLog.shown(bar) if progress is None or isinstance(progress, bool) else progress
        finished = run_plan(plan, root, RunOptions(**options).resolve(), log)
    if finished.cause is not None:
        raise finished.cause
    return finished.results


def open_run(plan: Plan, root: Path | None, *, forget: bool | None = None, draw: Draw | None = None) -> RunResult:
    """Open a run folder, or one in memory (None), for plans of the models and images of ``plan``, and compute nothing.
    What is damaged is removed, models are loaded and images drawn, by ``draw`` if it is given. With ``forget`` the
    results of a model that computes something else now are removed; None means that this cannot be asked for. Raises
    FringeError for a plan, folder or model that cannot be used, and TransientError for trouble of the disk."""
    store = Store(root)
    store.clean()
    known = frozenset(image for logits in store.records(LOGITS).values() for image in logits)
    resolved = resolve(plan, logits=root is not None, known=known, draw=draw)
    _require_same_logits(store, resolved, forget=forget)
    return RunResult(resolved, RunLog(), store)


def run_plan(
    plan: Plan,
    root: Path | None,
    options: RunOptions,
    log: RunLog | None = None,
    opened: RunResult | None = None,
    *,
    forget: bool | None = None,
) -> RunResult:
    """Compute what a run folder lacks of a plan. If it is ``opened`` for other methods (:func:`open_run`), it stays so.

    An interrupt (SIGINT, SIGTERM), a full disk or one that does not answer ends the run early; what was committed
    stays. Raises as :func:`open_run` does, and Interrupted on a signal, before the run begins.
    """
    with interruptible(), contextlib.ExitStack() as stack:
        if opened is not None:
            store, resolved = opened.store, with_methods(opened.resolved, plan)
        else:
            opened = open_run(plan, root, forget=forget)
            store, resolved = stack.enter_context(opened.store), opened.resolved
        record = resolved.manifest.record()
        if problem := record_problem(PLAN, plan.name, record):
            raise InputError(f"its plan cannot be stored, as it could not be read again ({problem})")
        # of two runs that begin at once with other settings the second sees the plan of the first
        check = partial(_check_compatible, store, resolved, amend=options.amend)
        store.write_record(PLAN, plan.name, record, check)
        log, cause = log or RunLog(), None
        try:
            tasks = _pending(store, resolved.manifest, plan.shard, retry=options.retry)
            logger.info("%s: %d tasks to compute, in %s", plan.name, len(tasks), store.root)
            run_tasks(options.runner(resolved), store, tasks, log, options.executor or SerialExecutor())
        except (Interrupted, TransientError) as error:
            logger.warning("%s stopped: %s; the same call resumes", plan.name, error)
            cause = error
    return RunResult(resolved, log, store, cause)


def make_maps(
    result: RunResult, options: RunOptions, images: Mapping[str, Sequence[str]], log: RunLog | None = None
) -> None:
    """Make the maps of images (digests) by model, of all methods and no control, that the folder of a run lacks, and
    store them; not those of images that failed. Raises TransientError and Interrupted as :func:`run_plan` does."""
    resolved, log, wanted = result.resolved, log or RunLog(), dict[str, frozenset[int]]()
    manifest = resolved.manifest
    with interruptible(), Store(result.store.root) as store:
        results = Results(manifest, store)
        for model, digests in images.items():
            for method in results.methods(model, controls=False):
                status = dict(results.map_frame(model, method).select("image", "status").iter_rows())
                setting = manifest.setting_key(model, method)
                stored = store.has_maps(setting, digests)
                lacking = [one for one in digests if one not in stored and status.get(one) in MAPPED]
                wanted[setting] = frozenset(map(fingerprint, lacking))
        tasks = pending_tasks(manifest, results, resolved.plan.shard, lost=wanted)
        tasks = [task for task in tasks if task.save]
        run_tasks(options.runner(resolved), store, tasks, log, options.executor or SerialExecutor())


def _pending(store: Store, manifest: Manifest, shard: int, *, retry: bool) -> list[Task]:
    """The missing tasks, those of maps that are lost among them."""
    lost = _lost_maps(store, manifest)
    return pending_tasks(manifest, Results(manifest, store), shard, retry=retry, lost=lost)


def _lost_maps(store: Store, manifest: Manifest) -> dict[str, frozenset[int]]:
    """By setting, the fingerprints of images whose maps were stored for a plan, and are damaged or gone."""
    return store.lost_maps(
        {manifest.setting_key(model, one) for model, named in manifest.settings.items() for one in named}
    )


def _check_compatible(store: Store, resolved: Resolved, *, amend: bool) -> None:
    """Raise InputError if the folder's plan of this name has other settings, beyond what growing explains, or if its
    name differs from that of another plan by case alone: on macOS and Windows their reports would be one folder."""
    plan, known = resolved.plan, store.records(PLAN)
    alike = [name for name in known if name.casefold() == plan.name.casefold()]
    if alike and plan.name not in alike:
        message = f"got {plan.name!r}, and {str(store.root)!r} holds a plan {alike[0]!r}"
        raise InputError(message, argument="name", hint="give it a name that differs by more than case")
    previous = known.get(plan.name)
    if previous is None or amend:
        return
    # an option that is newer than the run had its default
    before = {**options_of("maps", "scores"), **previous["plan"]}
    lines = changes(before, without_growth(before, resolved.manifest.record()["plan"]))
    if lines:
        raise InputError(
            f"{str(store.root)!r} holds a {plan.name} with other settings ({describe_changes(lines)})",
            argument="out",
            hint="name another folder, or use amend=True to change the plan and keep what still fits",
        )


def _require_same_logits(store: Store, resolved: Resolved, *, forget: bool | None = None) -> None:
    """Store the first logits of each model, or compare them with those that are stored. Raises InputError for a model
    that has results in the folder and computes something else now, unless it is to ``forget`` them."""
    stored = store.records(LOGITS)
    for label, first in resolved.logits.items():
        key = resolved.manifest.model_key(label)
        before = {image: torch.tensor(values) for image, values in stored.get(key, {}).items()}
        if (far := first.differing(before)) is not None:
            made = [block for block in store.blocks() if digest(block.about["setting"].get("model")) == key]
            if made and not forget:
                raise _other_logits(store, resolved, label, far, forget)
            if made:
                under = counted(len({block.setting for block in made}), "setting")
                warn_caller(f"model {label!r}: its results under {under} are removed, and computed again")
                store.remove(made)
            before = {}
        if not first.values.keys() <= before.keys():
            known = {**before, **first.values}
            store.write_record(LOGITS, key, {image: values.float().tolist() for image, values in known.items()})


def _other_logits(
    store: Store, resolved: Resolved, label: str, far: tuple[str, float], forget: bool | None
) -> InputError:
    image = next(image["id"] for image in resolved.manifest.images if image["digest"] == far[0])
    plans = [record["versions"] for record in store.records(PLAN).values()]
    versions = changes(plans[0], resolved.manifest.versions) if plans else []
    cause = f" ({'; '.join(versions)})" if versions else ""
    return InputError(
        f"model {label!r}: its logits are not those that the results in {str(store.root)!r} were computed with; the "
        f"largest difference is {far[1]:.3g}, on image {image!r}. Its weights are the same: its code changed, or a "
        f"library{cause}",
        hint="name another folder" + (_FORGET if forget is not None else ""),
    )


def run_record(result: RunResult) -> dict[str, Any]:
    """Describe how a run of a plan ended, as JSON data."""
    manifest, log = result.resolved.manifest, result.log
    return {
        "plan": manifest.name,
        "images": len(manifest.images),
        "missing": list(manifest.missing),
        "units": {"done": log.count("done"), "there": log.count("cached"), "crashed": log.count("crashed")},
        "left": result.left,
        "failed": result.failed,
        "stopped": result.stopped,
    }


def describe_run(result: RunResult) -> list[tuple[Level, str]]:
    """Describe how a run of a plan ended, in lines with their levels; at most ``SHOWN`` lines of one kind."""
    manifest, reports, store = result.resolved.manifest, result.log.reports, result.store
    lines: list[tuple[Level, str]] = [("error", f"not read: {reason}") for reason in manifest.missing[:SHOWN]]
    for model, gate in [(label, gate) for label in manifest.settings for gate in manifest.gates(label)]:
        text = gate["text"] if gate["holds"] else f"gate failed, its scores are not to be read ({gate['text']})"
        lines.append(("info" if gate["holds"] else "warning", f"{model}: {text}"))
    reused, computed = (sum(getattr(report, name) for report in reports) for name in ("reused", "made"))
    stored = f", {reused} stored maps scored" if reused else ""
    made = f"{counted(len(manifest.images), 'image')}; {counted(computed, 'map')} made now{stored}"
    lines.append(("info", f"{manifest.name}: {made}"))
    if result.failed:
        lines.extend(("error", line) for line in describe_failures(result.results.failures().to_dicts(), SHOWN))
    versions = mixed(result.results.versions)
    lines.extend(("warning", f"results of several versions are mixed: {line}") for line in versions)
    for task in result.left[:SHOWN]:
        text = f"left: {task['method']} on {task['model']}, {counted(task['images'], 'image')}: {task['reason']}"
        lines.append(("error", text))
    if result.left:
        text = f"{result.log.left} images, summed over methods, are left to the next run of the same command: what "
        lines.append(("warning", f"{text}kept them from being computed may pass"))
    if result.stopped:
        text = f"{result.stopped}; what is computed is in {store.root}: run the same command again to go on"
        lines.append(("error", text))
    return lines


#: Name of the method that a search scores.
TRIAL = "trial"
_COUNTED = ("model", "method", "metric", "required", "scored", "failed", "missing")


def read_status(run: Path) -> dict[str, Any]:
    """Describe a run folder, to which nothing is written, as JSON data. Raises InputError if it holds no run.

    ``plans`` by name, with the numbers of required, scored, failed and missing scores of each model, method and metric
    under ``cells``, and of maps that were stored and are ``lost``; ``invalidated`` rows that no plan asks for; what is
    ``damaged``; and the number of stored ``trials`` of a search.
    """
    store = Store(run, create=False)
    blocks = store.blocks()
    plans = {name: Results(manifest, store, blocks) for name, manifest in manifests(store).items()}
    unused = orphaned(blocks, list(plans.values()))

    def lost_maps(results: Results) -> list[dict[str, Any]]:
        manifest, rows = results.manifest, list[dict[str, Any]]()
        lost = _lost_maps(store, manifest)
        for model, methods in manifest.settings.items() if lost else ():
            images = {fingerprint(image["digest"]) for image in manifest.images_of(model)}
            maps = {
                method: len(lost.get(manifest.setting_key(model, method), frozenset()) & images) for method in methods
            }
            rows += [{"model": model, "method": method, "maps": n} for method, n in maps.items() if n]
        return rows

    return {
        "run": str(run),
        "plans": {
            name: {
                "images": len(results.manifest.images),
                "not_read": list(results.manifest.missing),
                "cells": [{key: getattr(cell, key) for key in _COUNTED} for cell in results.cells.values()],
                "failures": results.failures().drop("images").to_dicts(),
                "versions": results.versions,
                "lost_maps": lost_maps(results),
            }
            for name, results in plans.items()
        },
        "invalidated": [rows for rows in unused if rows["method"] != TRIAL],
        "damaged": store.damaged(),
        "trials": sum(rows["method"] == TRIAL for rows in unused),
    }


def describe_failures(failures: Sequence[Mapping[str, Any]], limit: int) -> list[str]:
    """Describe the rows of :meth:`Results.failures` in one line per reason, most frequent first, with the affected
    methods. After ``limit`` lines one counts the others."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for entry in failures:
        groups.setdefault((entry["model"], entry["reason"]), []).append(entry)
    totals = {key: sum(entry["scores"] for entry in group) for key, group in groups.items()}
    lines = list[str]()
    for model, reason in sorted(groups, key=lambda key: -totals[key]):
        methods = ", ".join(entry["method"] for entry in groups[model, reason])
        lines.append(f"{counted(totals[model, reason], 'score')} of {methods} on {model}: {reason}")
    more = len(lines) - limit
    return [*lines[:limit], f"and {counted(more, 'other reason')}"] if more > 0 else lines
