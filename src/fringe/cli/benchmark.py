"""``fringe benchmark``, ``status`` and ``report``: their options. What they do is imported when they are called."""

from pathlib import Path
from typing import Annotated

import typer

from fringe.cli import flags
from fringe.cli.plan_flags import HowOptions, how_options, plan_options
from fringe.cli.plan_options import PlanOptions
from fringe.cli.problems import reported, require_extra, resumable
from fringe.cli.takes import takes

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")]
PlanName = Annotated[str | None, typer.Option("--plan", metavar="NAME", help="Which plan of the folder; else all.")]
Reference = Annotated[
    str | None, typer.Option(metavar="METHOD", help="Whom the others are compared with; else fringe, or the first.")
]
Partial = Annotated[bool, typer.Option("--allow-partial", help="Report though some images are not computed.")]


@takes(plan=plan_options, how=how_options)
def benchmark(
    plan: PlanOptions,
    how: HowOptions,
    report: Annotated[bool, typer.Option("--report/--no-report", help="Write the report at the end.")] = True,
    reference: Reference = None,
) -> None:
    """Score methods on many images: resumable, with intervals. The same command goes on where it stopped.

    Unless told otherwise: the eight methods that the paper compares, all metrics, 100 of the embedded digits, and
    max_sensitivity on 8 of them.

    Exit codes: 0 all done, 1 nothing done, 2 wrong usage, 3 some images failed, 75 stopped early (run it again).
    """
    with resumable():
        from fringe.cli.benchmark_run import run_benchmark

        code = run_benchmark(plan, how, report=report, reference=reference)
    raise typer.Exit(code)


def status(run: RunFolder, as_json: flags.AsJson = False) -> None:
    """Show what of a run is there, what failed and why, and what in its folder fits no more.

    Exit codes: 0 all scored, 2 no run there, 3 some scores failed, 75 some are not computed yet.
    """
    with reported():
        require_extra("bench")
        from fringe.cli.status_run import run_status

        code = run_status(run, as_json=as_json)
    raise typer.Exit(code)


def report(
    run: RunFolder,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Where to; else RUN/report, or a folder in it.")
    ] = None,
    plan: PlanName = None,
    reference: Reference = None,
    allow_partial: Partial = False,
    grid: Annotated[bool, typer.Option("--grid/--no-grid", help="Draw maps of picked images.")] = True,
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SPEC", help="SPEC or LABEL=SPEC: makes maps that were not kept again. A run's own is never loaded."
        ),
    ] = None,
    preprocessing: flags.Preprocessing = None,
    trust_code: flags.TrustCode = False,
    yes: flags.Yes = False,
    device: flags.Device = "auto",
    batch_size: flags.BatchSize = "auto",
) -> None:
    """Write tables (Markdown, LaTeX, CSV) and one HTML page from the scores of a run.

    Nothing that the folder names is loaded or run: maps are those that were kept, or made by the model of --model.
    """
    with reported():
        require_extra("bench")
        from fringe.cli.report_run import run_report

        code = run_report(
            run,
            out,
            plan=plan,
            reference=reference,
            allow_partial=allow_partial,
            grid=grid,
            models=tuple(model or ()),
            preprocessing=preprocessing,
            trust_code=trust_code,
            yes=yes,
            device=device,
            batch_size=batch_size,
        )
    raise typer.Exit(code)
