"""Run plans and say how it went: what all commands over the store have in common."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import typer

from fringe.benchmark import Plan
from fringe.benchmark.manifest import Resolved
from fringe.benchmark.units import Unit
from fringe.cli.options import read_batch_size
from fringe.cli.plan_flags import HowOptions
from fringe.cli.problems import Exit, complain, remark
from fringe.cli.progress import Units
from fringe.engines import Finished, How, Progress, Report, run_plan

SHOWN = 5
"""Failures that are told one by one."""


@dataclass(frozen=True)
class Went:
    """How plans went: the exit code, and each plan that was begun."""

    code: Exit
    finished: tuple[Finished, ...]


def run_plans(plans: Sequence[Plan], how: HowOptions) -> Went:
    """Run the plans in their order; one that is stopped stops those after it."""
    finished: list[Finished] = []
    for plan in plans:
        finished.append(_run(plan, how))
        if finished[-1].stopped:
            break
    return Went(_code(finished), tuple(finished))


def read_how(options: HowOptions) -> How:
    return How(
        device=device_of(options.device),
        batch_size=read_batch_size(options.batch_size),
        workers=options.workers,
        timeout=options.timeout,
        save_maps=options.save_maps,
        amend=options.amend,
        retry=options.retry,
    )


def device_of(text: str) -> str:
    if text == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return text


def account_of(finished: Finished) -> dict[str, Any]:
    """How a plan went, as plain data."""
    manifest = finished.resolved.manifest
    return {
        "plan": manifest.name,
        "images": len(manifest.images),
        "missing": list(manifest.missing),
        "units": {state: finished.account.count(state) for state in ("done", "there", "crashed")},
        "failed": finished.account.failed,
        "set_aside": len(finished.set_aside),
        "stopped": finished.stopped,
    }


def _run(plan: Plan, options: HowOptions) -> Finished:
    with Units(plan.name, quiet=options.json) as bar:

        def began(resolved: Resolved, units: Sequence[Unit]) -> None:
            bar.begin(sum(len(unit.images) for unit in units))

        def ended(report: Report) -> None:
            bar.advance(len(report.unit.images), f"{report.unit.model}: {report.unit.method}")

        finished = run_plan(plan, options.out, read_how(options), Progress(began, ended))
    _tell(finished, options)
    return finished


def _tell(finished: Finished, options: HowOptions) -> None:
    manifest, account = finished.resolved.manifest, finished.account
    for reason in manifest.missing[:SHOWN]:
        complain(f"not read: {reason}")
    if not options.json:
        computed = sum(len(report.unit.images) for report in account.reports if report.state == "done")
        typer.echo(f"{manifest.name}: {len(manifest.images)} images; {computed} maps made now")
    if account.failed:
        remark(f"{account.failed} maps have no score; 'fringe status {options.out}' says why")
    for crash in [*finished.set_aside][:SHOWN]:
        complain(f"set aside: {crash['method']} on {crash['model']}, {len(crash['images'])} images: {crash['reason']}")
    if finished.stopped:
        complain(f"{finished.stopped}; what is computed is in {options.out}: run the same command again to go on")


def _code(finished: Sequence[Finished]) -> Exit:
    if any(one.stopped for one in finished):
        return Exit.RESUMABLE
    if not any(one.resolved.manifest.images for one in finished):
        return Exit.NOTHING_DONE
    return Exit.SOME_FAILED if any(one.partial for one in finished) else Exit.DONE
