"""``fringe ablate``, ``diagnose``, ``sweep``, ``runtime``, ``tune`` and ``reproduce``."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fringe._files import require_local
from fringe._process import Interrupted, interruptible
from fringe._text import to_json
from fringe.cli._benchmark import FLAGS, SPEC, UNTYPED
from fringe.cli._console import (
    Exit,
    Progress,
    exit_on_error,
    print_error,
    require_consent,
    resumable,
    say,
    warn,
)
from fringe.cli._options import Config, with_options
from fringe.errors import InputError

if TYPE_CHECKING:
    from fringe.cli._runs import RunFlags, RunSummary, TimingOptions
    from fringe.experiments import ExperimentSpec, Plan
    from fringe.paper import PaperStudy, Timing

Given = dict[str, Any]
Figures = Annotated[int, typer.Option(min=0, metavar="N", help="Images whose paths are drawn.")]
Reports = Annotated[bool, typer.Option("--report/--no-report", help="Write the report at the end.")]


@with_options(SPEC, FLAGS, skip=UNTYPED)
def ablate(given: Given, how: Given, config: Config = None, figures: Figures = 2, report: Reports = True) -> None:
    """Score FRInGe with parts removed, and draw the paths of its variants.

    The variants of the paper's table, and three of its figures: gamma_step only, gamma_prior only, non-geometric. With
    --methods fringe:auto those that the paper tuned for a network, where it did. By default 100 images.
    """
    with resumable("bench"):
        from fringe.cli._runs import RunFlags, read_spec
        from fringe.paper import ablation_study

        flags = RunFlags(**how)
        code = _run_study(ablation_study(read_spec(given, config)), flags, figures, report=report)
    raise typer.Exit(code)


@with_options(SPEC, FLAGS, skip=UNTYPED)
def diagnose(given: Given, how: Given, config: Config = None, figures: Figures = 2, report: Reports = True) -> None:
    """Measure the effect of the Euclidean cap: completeness residual, endpoint KL, tracking error; and draw profiles.

    FRInGe with the cap and without, and IG; by default on 100 images.
    """
    with resumable("bench"):
        from fringe.cli._runs import RunFlags, read_spec
        from fringe.paper import cap_study

        flags = RunFlags(**how)
        code = _run_study(cap_study(read_spec(given, config)), flags, figures, report=report)
    raise typer.Exit(code)


@with_options(SPEC, FLAGS, skip=UNTYPED)
def sweep(
    given: Given,
    how: Given,
    config: Config = None,
    factor: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=V,V,...", help="A setting and its values; may be repeated (default: five)."),
    ] = None,
) -> None:
    """Vary one setting at a time and draw how the tuning objective changes.

    The first of the methods; by default fringe on 100 images.
    """
    with resumable("bench"):
        from fringe.cli._runs import RunFlags, read_spec
        from fringe.paper import sweep_study

        flags = RunFlags(**how)
        code = _run_study(sweep_study(read_spec(given, config), factor or ()), flags, 0, report=False)
    raise typer.Exit(code)


@with_options(SPEC, "fringe.cli._runs:TimingOptions", skip=UNTYPED)
def runtime(given: Given, how: Given, config: Config = None) -> None:
    """Time maps one image at a time, as the paper did, and in batches, and count their passes.

    By default fringe and ig on 16 images. Nothing is resumed: times are measured in one go.
    """
    with exit_on_error("bench"):
        from fringe.cli._runs import TimingOptions, read_spec

        code = _runtime(read_spec(given, config), TimingOptions(**how))
    raise typer.Exit(code)


def _runtime(spec: "ExperimentSpec", options: "TimingOptions") -> Exit:
    from fringe.cli._runs import report_folder
    from fringe.experiments import Store, planned_work_of, resolve
    from fringe.models import resolve_device
    from fringe.paper import measure_runtimes, runtime_study, slowdowns, timing_records, write_timings

    require_local("out", options.out)
    plan, device = runtime_study(spec), resolve_device(options.device)
    require_consent(planned_work_of([plan, plan]), yes=options.yes, quiet=options.as_json)
    Store(options.out)
    path = report_folder(options.out, "runtime") / "runtime.json"
    try:
        with interruptible():
            timings = measure_runtimes(resolve(plan), device=device, batch_size=options.batch_size)
    except Interrupted as error:
        print_error(f"{error}; run times are measured in one go: nothing is stored")
        return Exit.INTERRUPTED
    write_timings(path, timings)
    lost = plan.n - min(timing.n for timing in timings)
    if lost:
        warn(f"{lost} of {plan.n} images cannot be explained, and are left out")
    if options.as_json:
        typer.echo(to_json({"timings": timing_records(timings)}), nl=False)
        return Exit.DONE
    for t in timings:
        passes = f"{t.forward:.0f} F + {t.jvp:.0f} JVP + {t.vjp:.0f} VJP"
        half = f" ± {t.half:.3f}" if math.isfinite(t.half) else ""
        say(f"{t.model} {t.method} {t.mode}: {t.seconds:.3f}{half} s per image of {t.n}, {passes}; {t.device}")
    for (model, mode), ratio in slowdowns(timings, "fringe", "ig").items():
        say(f"{model} {mode}: fringe takes {ratio:.1f} times as long as ig")
    say(f"timings: {path}")
    return Exit.DONE


@with_options(SPEC, FLAGS, skip=UNTYPED)
def tune(
    given: Given,
    how: Given,
    config: Config = None,
    trials: Annotated[int, typer.Option(min=1, metavar="N", help="Settings to score, the given one first.")] = 100,
    search: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY[=LOW,HIGH]", help="Setting to search, and its range; may be repeated."),
    ] = None,
    smoothing: Annotated[bool, typer.Option("--smoothing/--no-smoothing", help="Also search the two gammas.")] = True,
) -> None:
    """Search a setting by the paper's objective on images that no benchmark of this seed uses; write a preset file.

    The first of the methods; by default fringe on 256 images. Several processes may share the folder and its trials.
    An interrupted search is resumed by the same command.
    """
    with resumable("bench", "tune"):
        from fringe.cli._runs import RunFlags, read_spec

        code = _tune(read_spec(given, config), RunFlags(**how), trials, search or (), smoothing=smoothing)
    raise typer.Exit(code)


def _tune(spec: "ExperimentSpec", flags: "RunFlags", trials: int, ranges: Sequence[str], *, smoothing: bool) -> Exit:
    from fringe.experiments import planned_work_of
    from fringe.paper import read_search_space, tune_preset, tuning_study
    from fringe.tuning import Trial

    plan = tuning_study(spec)
    work = [(name, passes, count * trials) for name, passes, count in planned_work_of([plan])]
    options = flags.run_options()
    require_consent(work, yes=flags.yes, quiet=flags.as_json)
    space = read_search_space(plan, ranges, smoothing=smoothing)
    with Progress("trials", trials, quiet=flags.as_json) as bar, interruptible():

        def watch(trial: Trial, done: int, planned: int) -> None:
            bar.advance(1, f"trial {trial.number}")
            if not flags.as_json:
                values = (f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in trial.settings.items())
                say(f"trial {trial.number}: {trial.problem or f'{trial.value:.4f}'} ({', '.join(values)})")

        try:
            result = tune_preset(plan, flags.out, options, space, trials, progress=watch)
        except Interrupted as error:
            print_error(f"{error}; the trials so far are in {flags.out}: run the same command again to go on")
            if flags.as_json:
                typer.echo(to_json({"preset": None, "stopped": str(error)}), nl=False)
            return Exit.RESUMABLE
    tuned = result.tuned
    start = next((trial.value for trial in tuned.trials if trial.number == 0 and not trial.problem), None)
    if flags.as_json:
        document = {"preset": str(result.path), "stopped": None, "objective": tuned.value, "start": start}
        typer.echo(to_json({**document, "trials": len(tuned.trials), "settings": tuned.best.record()}), nl=False)
    else:
        began = "no score" if start is None else f"{start:.4f}"
        say(f"best of {len(tuned.trials)} trials: {tuned.value:.4f} (the setting it began with: {began})")
        say(f"preset: {result.path}; use it with --preset {result.path}")
    return Exit.DONE


@with_options(SPEC, FLAGS, "fringe.cli._runs:ReproduceOptions", skip=UNTYPED)
def reproduce(given: Given, how: Given, what: Given, config: Config = None) -> None:
    """Run all studies of the paper, and write a page with its numbers and ours. An interrupted run is resumed.

    By default the paper's six networks and eight methods on 1000 images; 64 for the cap, max_sensitivity, the sweep of
    settings, and run times.
    """
    with resumable("bench"):
        from fringe.cli._runs import ReproduceOptions, RunFlags, read_spec
        from fringe.experiments import ExperimentSpec
        from fringe.paper import check_studies, paper_models, reproduction_plan

        spec, flags, options = read_spec(given, config), RunFlags(**how), ReproduceOptions(**what)
        names = check_studies(_names(options.studies))
        if options.imagenet is not None and spec.data:
            raise InputError("--data names images, too; give one of them", argument="imagenet")
        if options.models is not None and spec.model:
            raise InputError("--model names networks, too; give one of them", argument="models")
        chosen = {"data": str(options.imagenet)} if options.imagenet is not None else {}
        typed = ExperimentSpec(**chosen, **({"model": paper_models(_names(options.models))} if options.models else {}))
        base = reproduction_plan(typed.over(spec))
        if options.dry_run:
            code = _estimate(base, names, flags, options.probe)
        else:
            code = _reproduce(base, names, flags, options.figures)
    raise typer.Exit(code)


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in text.split(",")] if text else []


def _reproduce(base: "Plan", names: Sequence[str], flags: "RunFlags", figures: int) -> Exit:
    from fringe.cli._runs import report_folder, report_plan, run_plans
    from fringe.experiments import Store
    from fringe.models import resolve_device
    from fringe.paper import Timing, study_plans, write_reproduction

    require_local("out", flags.out)
    studies, device = study_plans(base, names), resolve_device(flags.device)
    Store(flags.out)  # also where only run times are measured
    summary = run_plans(list(studies.values()), flags)
    timings, out, reports = list[Timing](), report_folder(flags.out, "benchmark"), list[str]()
    if not summary.finished:
        return _end_reproduction(summary.code, summary, flags, [], [])
    resolved = {result.resolved.plan.name: result.resolved for result in summary.results}
    try:
        with interruptible():
            for name in studies:
                if name != "sweep":
                    reports += [path for path in report_plan(flags, resolved[name]) if path.endswith(".html")]
            files = write_reproduction(
                base,
                flags.out,
                out,
                studies=names,
                resolved=resolved,
                images=figures,
                device=device,
                batch_size=flags.batch_size,
                on_timings=timings.extend,
            )
    except Interrupted as error:
        print_error(f"{error}; what is there so far is in {flags.out}: run the same command again for the rest")
        return _end_reproduction(Exit.RESUMABLE, summary, flags, timings, [])
    if not flags.as_json:
        for path in files.figures:
            if path.suffix == ".png":
                say(f"figure: {path}")
        for path in files.pages:
            say(f"page: {path}")
    return _end_reproduction(summary.code, summary, flags, timings, [*files.pages, *reports, *files.figures])


def _end_reproduction(
    code: Exit, summary: "RunSummary", flags: "RunFlags", timings: "Sequence[Timing]", paths: Sequence[Path | str]
) -> Exit:
    """Print the one document of a run that was asked for it, also where it was stopped."""
    from fringe.experiments import run_record
    from fringe.paper import timing_records

    if flags.as_json:
        document = {"plans": [run_record(result) for result in summary.results], "timings": timing_records(timings)}
        typer.echo(to_json({**document, "report": [str(path) for path in paths]}), nl=False)
    return code


def _estimate(base: "Plan", names: Sequence[str], flags: "RunFlags", seconds: float) -> Exit:
    """Show what a reproduction lacks, how many passes that takes, and how long, one map after the other."""
    from fringe.experiments import MethodCost
    from fringe.models import resolve_device
    from fringe.paper import estimate_reproduction

    device, retry = resolve_device(flags.device), flags.retry_failed
    costs, shown = list[MethodCost](), ""
    for part in estimate_reproduction(base, flags.out, studies=names, device=device, seconds=seconds, retry=retry):
        costs += part.costs
        if not flags.as_json:
            heading = [f"{part.study}: {part.images} images"] if part.study != shown else []
            shown = part.study
            say("\n".join([*heading, *(f"  {line}" for line in part.lines())]))
    hours = sum(cost.seconds for cost in costs) / 3600
    if flags.as_json:
        document = {"device": device, "hours": hours, "methods": [cost.record() for cost in costs]}
        typer.echo(to_json(document), nl=False)
    else:
        say(f"in all about {hours:.2g} hours on {device}, one map after the other, without what is stored")
    return Exit.DONE


def _run_study(study: "PaperStudy", flags: "RunFlags", images: int, *, report: bool) -> Exit:
    """Run the plan of a study, report and draw it."""
    from fringe.cli._runs import report_folder, report_plan, run_plans
    from fringe.experiments import run_record
    from fringe.models import resolve_device
    from fringe.paper import draw_study

    require_local("out", flags.out)
    summary, paths = run_plans([study.plan], flags), list[str]()
    if summary.finished:
        resolved = summary.results[0].resolved
        paths += report_plan(flags, resolved) if report else []
        folder = report_folder(flags.out, resolved.plan.name)
        device = resolve_device(flags.device)
        paths += map(str, draw_study(study, flags.out, folder, images=images, device=device, resolved=resolved))
    if flags.as_json:
        typer.echo(to_json({**run_record(summary.results[0]), "report": paths}), nl=False)
    for path in [] if flags.as_json else paths:
        if path.endswith(".png"):
            say(f"figure: {path}")
    return summary.code
