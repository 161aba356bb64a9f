"""Reports of runs, from what was typed to files."""

from pathlib import Path

import typer

from fringe._errors import InputError
from fringe.benchmark import Store
from fringe.benchmark.coverage import manifests
from fringe.benchmark.manifest import Resolved
from fringe.cli.options import read_batch_size
from fringe.cli.plan_flags import HowOptions
from fringe.cli.plan_run import device_of
from fringe.cli.problems import Exit
from fringe.report import write_report


def run_report(
    run: Path,
    out: Path | None,
    *,
    plan: str | None,
    reference: str | None,
    allow_partial: bool,
    grid: bool,
    device: str,
    batch_size: str,
) -> Exit:
    """Report one plan of a folder, or every one in a folder of its own."""
    store = Store(run, create=False)
    names = [plan] if plan is not None else list(manifests(store))
    if not names:
        raise InputError(f"run: {str(run)!r} holds no plan yet")
    for name in names:
        place = report_folder(run, name) if out is None else out / (name if len(names) > 1 else "")
        written = write_report(
            store,
            place,
            plan=name,
            reference=reference,
            allow_partial=allow_partial,
            grid=grid,
            device=device_of(device),
            batch_size=read_batch_size(batch_size),
        )
        typer.echo(f"report: {written.page}")
    return Exit.DONE


def report_folder(run: Path, plan: str) -> Path:
    """Where the report of a plan belongs: that of a benchmark is the folder's own."""
    return run / "report" / ("" if plan == "benchmark" else plan)


def report_plan(how: HowOptions, resolved: Resolved, *, reference: str | None = None) -> list[str]:
    """The report of a plan that was just run: what failed is stated in it, and nothing else is missing."""
    plan = resolved.plan.name
    written = write_report(
        Store(how.out, create=False),
        report_folder(how.out, plan),
        plan=plan,
        reference=reference,
        allow_partial=True,
        device=device_of(how.device),
        batch_size=read_batch_size(how.batch_size),
        resolve=lambda: resolved,
    )
    if not how.json:
        typer.echo(f"report: {written.page}")
    return [str(path) for path in written.paths]
