"""Run plans and say how it went: what all commands over the store have in common."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fringe._files import require_inside
from fringe.cli.consent import require_consent, work_of_plans
from fringe.cli.failures import failures, told
from fringe.cli.options import read_batch_size
from fringe.cli.plan_flags import HowOptions
from fringe.cli.problems import Exit, complain, remark, say
from fringe.cli.progress import Units
from fringe.errors import InputError
from fringe.experiments import (
    CRASHES,
    Plan,
    Progress,
    Resolved,
    RunOptions,
    RunResult,
    Store,
    Task,
    TaskReport,
    committed_keys,
    mixed,
    required_keys,
    run_plan,
    versions_of,
)
from fringe.models import devices, usable_device

SHOWN = 5
"""Failures that are told one by one."""


@dataclass(frozen=True)
class Went:
    """How plans went: the exit code, and each plan that was begun."""

    code: Exit
    finished: tuple[RunResult, ...]


def run_plans(plans: Sequence[Plan], how: HowOptions) -> Went:
    """Run the plans in their order; one that is stopped stops those after it."""
    wanted_how, finished = read_how(how), list[RunResult]()
    require_consent(work_of_plans(plans), yes=how.yes, quiet=how.json)
    require_inside(how.out / "report", how.out)  # now, and not after hours of work
    for plan in plans:
        finished.append(_run(plan, how, wanted_how))
        if finished[-1].stopped:
            break
    return Went(_code(finished, how), tuple(finished))


def read_how(options: HowOptions) -> RunOptions:
    """Raises InputError on what cannot be meant."""
    if options.timeout is not None and not options.workers:
        raise InputError("--timeout: a unit that takes too long is ended with its process; add --workers 1, or more")
    return RunOptions(
        device=device_of(options.device),
        batch_size=read_batch_size(options.batch_size),
        workers=options.workers,
        timeout=options.timeout,
        save_maps=options.save_maps,
        amend=options.amend,
        retry=options.retry,
        renew=options.renew,
    )


def device_of(text: str) -> str:
    """``auto`` or a device that is there. Nothing is put on a GPU: with workers, this process does not need it."""
    if text == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(text)
    except RuntimeError:
        raise InputError(f"--device: got {text!r}, expected auto, cpu, cuda, cuda:1 or mps") from None
    if device.type not in ("cpu", "cuda", "mps"):
        usable_device(device)
    elif device.type not in {name.partition(":")[0] for name in devices()} or (
        device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count()
    ):
        raise InputError(f"--device: {text!r} cannot be used here: there is {', '.join(devices())}")
    return text


def account_of(finished: RunResult) -> dict[str, Any]:
    """How a plan went, as plain data."""
    manifest = finished.resolved.manifest
    return {
        "plan": manifest.name,
        "images": len(manifest.images),
        "missing": list(manifest.missing),
        "units": {
            "done": finished.log.count("done"),
            "there": finished.log.count("cached"),
            "crashed": finished.log.count("crashed"),
        },
        "left": finished.left,
        "failed": finished.log.failed,
        "failed_before": finished.failed_before,
        "set_aside": len(finished.set_aside),
        "stopped": finished.stopped,
    }


def _run(plan: Plan, options: HowOptions, how: RunOptions) -> RunResult:
    with Units(plan.name, quiet=options.json) as bar:

        def began(resolved: Resolved, units: Sequence[Task]) -> None:
            bar.begin(sum(len(unit.images) for unit in units))

        def ended(report: TaskReport) -> None:
            bar.advance(len(report.task.images), f"{report.task.model}: {report.task.method}")

        finished = run_plan(plan, options.out, how, Progress(began, ended))
    _tell(finished, options)
    return finished


def _tell(finished: RunResult, options: HowOptions) -> None:
    manifest, reports = finished.resolved.manifest, finished.log.reports
    for reason in manifest.missing[:SHOWN]:
        complain(f"not read: {reason}")
    if not options.json:
        done = [report for report in reports if report.state == "done"]
        reread = sum(report.reused for report in done)
        made = sum(len(report.task.images) - len(report.left) - report.failed for report in done) - reread
        kept = f", {reread} kept ones scored" if reread else ""
        say(f"{manifest.name}: {len(manifest.images)} images; {made} maps made now{kept}")
    if finished.log.failed or finished.failed_before or finished.set_aside:
        store = Store(options.out, create=False)
        lost = {report.task.key for report in reports if report.state == "crashed"}
        crashes = [about for key, about in store.records(CRASHES).items() if key in lost]
        for line in told(failures(store, manifest), [*finished.set_aside, *crashes], SHOWN):
            complain(line)
        remark(f"'fringe status {options.out}' lists what has no score; --retry-failed computes it again")
    for line in mixed(versions_of(Store(options.out, create=False).metadata().values(), manifest)):
        remark(f"results of several versions are mixed: {line}")
    if finished.left:
        for one in finished.left[:SHOWN]:
            complain(f"left: {one['method']} on {one['model']}, {one['images']} images: {one['reason']}")
        remark(
            f"{finished.log.left} images, summed over methods, are left to the next run of the same command: what "
            "kept them from being computed may pass"
        )
    if finished.stopped:
        complain(f"{finished.stopped}; what is computed is in {options.out}: run the same command again to go on")


def _code(finished: Sequence[RunResult], options: HowOptions) -> Exit:
    if any(one.stopped or one.log.left for one in finished):
        return Exit.RESUMABLE
    if finished and not any(_has_scores(one, options) for one in finished):
        return Exit.NOTHING_DONE
    return Exit.SOME_FAILED if any(one.partial for one in finished) else Exit.DONE


def _has_scores(one: RunResult, options: HowOptions) -> bool:
    """Whether a plan came to anything."""
    manifest = one.resolved.manifest
    if not one.partial or not manifest.images:
        return bool(manifest.images)
    scored = committed_keys(Store(options.out, create=False), failures=False)
    return any(key in scored for *_, key in required_keys(manifest))
