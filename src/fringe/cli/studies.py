"""``fringe ablate``, ``diagnose``, ``sweep``, ``runtime``, ``tune`` and ``reproduce``: their options."""

from pathlib import Path
from typing import Annotated

import typer

from fringe.cli.plan_flags import HowOptions, clock_options, how_options, plan_options
from fringe.cli.plan_options import PlanOptions
from fringe.cli.problems import reported, require_extra, resumable
from fringe.cli.takes import takes

Figures = Annotated[int, typer.Option(min=0, metavar="N", help="Images whose paths are drawn.")]
Reports = Annotated[bool, typer.Option("--report/--no-report", help="Write the report at the end.")]


@takes(plan=plan_options, how=how_options)
def ablate(plan: PlanOptions, how: HowOptions, figures: Figures = 2, report: Reports = True) -> None:
    """Score FRInGe with parts taken out, and draw where its variants walk.

    The variants of the paper's table, and three of its figures: gamma_step only, gamma_prior only, non-geometric. With
    --methods fringe:auto those that the paper tuned for a network, where it did. Unless told otherwise 100 images.
    """
    with resumable():
        from fringe.cli.studies_run import run_ablate

        code = run_ablate(plan, how, figures=figures, report=report)
    raise typer.Exit(code)


@takes(plan=plan_options, how=how_options)
def diagnose(plan: PlanOptions, how: HowOptions, figures: Figures = 2, report: Reports = True) -> None:
    """Measure what the Euclidean cap does: completeness residual, endpoint KL, tracking error; and draw profiles.

    FRInGe with the cap and without, and IG; unless told otherwise on 100 images.
    """
    with resumable():
        from fringe.cli.studies_run import run_diagnose

        code = run_diagnose(plan, how, figures=figures, report=report)
    raise typer.Exit(code)


@takes(plan=plan_options, how=how_options)
def sweep(
    plan: PlanOptions,
    how: HowOptions,
    factor: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=V,V,...", help="A setting and its values; may be repeated. Else the paper's five."),
    ] = None,
) -> None:
    """Vary one setting at a time and draw how the tuning objective moves.

    The first of the methods; unless told otherwise fringe on 100 images.
    """
    with resumable():
        from fringe.cli.studies_run import run_sweep

        code = run_sweep(plan, how, factors=tuple(factor or ()))
    raise typer.Exit(code)


@takes(plan=plan_options, how=clock_options)
def runtime(plan: PlanOptions, how: HowOptions) -> None:
    """Time maps one image at a time, as the paper did, and in batches; with the passes that they take.

    Unless told otherwise fringe and ig on 16 images. Nothing is resumed: times are measured in one go.
    """
    with reported():
        from fringe.cli.studies_run import run_runtime

        code = run_runtime(plan, how)
    raise typer.Exit(code)


@takes(plan=plan_options, how=how_options)
def tune(
    plan: PlanOptions,
    how: HowOptions,
    trials: Annotated[int, typer.Option(min=1, help="Settings that are scored in all, the given one first.")] = 100,
    search: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=LOW,HIGH", help="A setting to search, or its range; may be repeated."),
    ] = None,
    smoothing: Annotated[bool, typer.Option("--smoothing/--no-smoothing", help="Search the two gammas, too.")] = True,
) -> None:
    """Search a setting by the paper's objective on images that no benchmark of this seed draws; writes a preset file.

    The first of the methods; unless told otherwise fringe on 256 images. Several processes may share the folder: the
    trials are theirs together. The same command goes on where it stopped.
    """
    with resumable():
        require_extra("tune")
        from fringe.cli.tune_run import run_tune

        code = run_tune(plan, how, trials=trials, ranges=tuple(search or ()), smoothing=smoothing)
    raise typer.Exit(code)


@takes(plan=plan_options, how=how_options)
def reproduce(
    plan: PlanOptions,
    how: HowOptions,
    imagenet: Annotated[
        Path | None, typer.Option(metavar="DIR", help="ImageNet's validation images; the same as --data.")
    ] = None,
    models: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Some of the paper's six networks, with commas.")
    ] = None,
    studies: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="Some of comparison, ablation, cap, max_sensitivity, sweep, runtime."),
    ] = None,
    figures: Figures = 2,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what there is to do, its passes and time, from a probe.")
    ] = False,
    probe: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="Longest map of the probe.")] = 2.0,
) -> None:
    """All tables and figures of the paper in one run that can be stopped, and our numbers beside the paper's.

    Unless told otherwise the paper's six networks and eight methods on 1000 images, 64 for the studies of the cap, of
    max_sensitivity, of settings (sweep) and of run times.
    """
    with resumable():
        from fringe.cli.reproduce_run import run_reproduce

        code = run_reproduce(
            plan,
            how,
            imagenet=imagenet,
            models=models,
            studies=studies,
            figures=figures,
            dry_run=dry_run,
            probe_seconds=probe,
        )
    raise typer.Exit(code)
