"""``fringe ablate``, ``diagnose``, ``sweep``, ``runtime``, ``tune`` and ``reproduce``: the studies of the paper."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import typer

from fringe._files import require_local
from fringe._process import Interrupted, interruptible
from fringe.cli._benchmark import FLAGS, SPEC, UNTYPED
from fringe.cli._console import Exit, Progress, exit_on_error, print_error, require_consent, resumable, typed, warn
from fringe.cli._options import names_of, with_options
from fringe.errors import InputError

if TYPE_CHECKING:
    from fringe.cli._runs import ReproduceOptions, RunFlags
    from fringe.experiments import Plan
    from fringe.paper import PaperStudy

Given = dict[str, Any]
DRAW = "fringe.cli._runs:DrawOptions"
#: Of studies that have metrics of their own, on all images.
UNUSED: dict[str, str] = dict.fromkeys(("metrics", "limits", "controls"), "not used here")


@with_options(SPEC, FLAGS, DRAW, skip=UNTYPED)
def ablate(given: Given, how: Given, what: Given) -> None:
    """Score FRInGe with parts removed, and draw the paths.

    The variants are those of the paper's table, and three of its figures: gamma_step only, gamma_prior only,
    non-geometric. --methods fringe:auto takes the settings that the paper tuned for a network. By default 100 images.
    """
    _run_study(lambda paper, spec: paper.ablation_study(spec), given, how, what)


@with_options(SPEC, FLAGS, DRAW, skip=UNTYPED, notes=UNUSED)
def diagnose(given: Given, how: Given, what: Given) -> None:
    """Measure what the Euclidean cap changes in a path.

    The cap limits the length of a step (delta_euc). Three paths are measured: FRInGe with the cap, without it, and IG.
    Results: completeness residual, endpoint KL, tracking error and profiles. By default on 100 images.
    """
    _run_study(lambda paper, spec: paper.cap_study(spec), given, how, what)


@with_options(SPEC, FLAGS, "fringe.cli._runs:SweepOptions", skip=UNTYPED, notes=UNUSED)
def sweep(given: Given, how: Given, what: Given) -> None:
    """Vary one setting at a time, and draw the tuning objective.

    Only the first method is varied; by default fringe, on 100 images.
    """
    factors = what.get("factor", ())
    _run_study(lambda paper, spec: paper.sweep_study(spec, factors), given, how, {"report": False})


def _flags(how: Given) -> "RunFlags":
    from fringe.cli._runs import RunFlags

    flags = RunFlags(**how).resolve()
    require_local("out", flags.out)
    return flags


def _run_study(make: Callable[[Any, Any], "PaperStudy"], given: Given, how: Given, what: Given) -> None:
    """Run the plan of a study, report and draw it; ``make`` takes the package of studies and the experiment."""
    with resumable("bench"):
        from fringe import paper
        from fringe.cli._runs import DrawOptions, run_and_report
        from fringe.report import report_folder

        flags, options = _flags(how), DrawOptions(**what)
        study = make(paper, flags.spec(given))
        folder = report_folder(flags.out, study.plan.name)
        same = {"images": options.figures, "device": flags.device}
        draw = partial(paper.draw_study, study, flags.out, folder, **same)
        code = run_and_report(study.plan, flags, report=options.report, draw=lambda plan: draw(resolved=plan))
    raise typer.Exit(code)


@with_options(
    *(SPEC, FLAGS),
    skip=(*UNTYPED, "executor", "workers", "timeout", "save_maps", "amend", "retry", "renew"),
    notes={**UNUSED, "n": "default: 16"},
)
def runtime(given: Given, how: Given) -> None:
    """Time maps, one image at a time and in batches.

    The paper takes one at a time. Passes are counted, too. By default fringe and ig on 16 images. An interrupted
    command measures all times again.
    """
    with exit_on_error("bench"):
        from fringe.experiments import Store, planned_work_of, resolve
        from fringe.paper import describe_timings, measure_runtimes, runtime_study, timing_records, write_timings
        from fringe.report import report_folder

        flags = _flags(how)
        plan = runtime_study(flags.spec(given))
        require_consent(planned_work_of([plan, plan]), yes=flags.yes, quiet=flags.as_json)
        path = report_folder(Store(flags.out).root, "runtime") / "runtime.json"
        try:
            with interruptible():
                timings = measure_runtimes(resolve(plan), device=flags.device, batch_size=flags.batch_size)
        except Interrupted as error:
            print_error(f"{error}; run times are measured in one go: nothing is stored")
            raise typer.Exit(Exit.INTERRUPTED) from error
        write_timings(path, timings)
        lost = plan.n - min(timing.n for timing in timings)
        if lost:
            warn(f"{lost} of {plan.n} images cannot be explained, and are left out")
        flags.print_json({"timings": timing_records(timings)})
        flags.print_text("\n".join([*describe_timings(timings), f"timings: {path}"]))


@with_options(SPEC, FLAGS, "fringe.cli._runs:TuneOptions", skip=UNTYPED, notes={**UNUSED, "n": "default: 256"})
def tune(given: Given, how: Given, what: Given) -> None:
    """Search the best setting, and write it as a preset file.

    The best setting has the largest objective of the paper, on images that no benchmark of this seed uses. Only the
    first method is tuned; by default fringe, on 256 images. Several processes may work in one folder. An interrupted
    search is resumed by the same command.
    """
    with resumable("bench", "tune"):
        from fringe.cli._runs import TuneOptions
        from fringe.experiments import planned_work_of
        from fringe.paper import read_search_space, tune_preset, tuning_study
        from fringe.tuning import Trial

        flags, options = _flags(how), TuneOptions(**what)
        plan, trials = tuning_study(flags.spec(given)), options.trials
        work = [(name, passes, count * trials) for name, passes, count in planned_work_of([plan])]
        require_consent(work, yes=flags.yes, quiet=flags.as_json)
        space = read_search_space(plan, options.search, smoothing=options.smoothing)
        with Progress("trials", trials, quiet=flags.as_json) as bar, interruptible():

            def watch(trial: Trial, done: int, planned: int) -> None:
                bar.advance(1, f"trial {trial.number}")
                flags.print_text(trial.describe())

            try:
                result = tune_preset(plan, flags.out, flags, space, trials, progress=watch)
            except Interrupted as error:
                print_error(f"{error}; the trials so far are in {flags.out}: run the same command again to go on")
                flags.print_json({"preset": None, "stopped": str(error)})
                raise typer.Exit(Exit.RESUMABLE) from error
        flags.print_json({**result.record(), "stopped": None})
        flags.print_text(typed(result.describe()))


@with_options(
    *(SPEC, FLAGS, "fringe.cli._runs:ReproduceOptions"),
    skip=UNTYPED,
    notes={"metrics": UNUSED["metrics"], "limits": UNUSED["limits"], "n": "default: 1000"},
)
def reproduce(given: Given, how: Given, what: Given) -> None:
    """Run all studies of the paper, and set its numbers beside ours.

    An interrupted run is resumed. By default the paper's six networks and eight methods on 1000 images; 64 for the cap,
    max_sensitivity, the sweep of settings, and run times.
    """
    with resumable("bench"):
        from fringe.cli._runs import ReproduceOptions
        from fringe.experiments import ExperimentSpec
        from fringe.paper import check_studies, paper_models, reproduction_plan

        flags, options = _flags(how), ReproduceOptions(**what)
        spec, studies = flags.spec(given), check_studies(names_of(options.studies))
        if options.imagenet is not None and spec.data:
            raise InputError("--data names images, too; give one of them", argument="imagenet")
        if options.models is not None and spec.model:
            raise InputError("--model names networks, too; give one of them", argument="models")
        chosen: dict[str, Any] = {} if options.imagenet is None else {"data": str(options.imagenet)}
        chosen |= {"model": paper_models(names_of(options.models))} if options.models else {}
        plan = reproduction_plan(ExperimentSpec(**chosen).over(spec))
        work = _estimate if options.dry_run else _reproduce
        raise typer.Exit(work(plan, studies, flags, options))


def _reproduce(base: "Plan", studies: Sequence[str], flags: "RunFlags", options: "ReproduceOptions") -> Exit:
    from fringe.cli._runs import FINISHED, report_plan, run_plans
    from fringe.experiments import Store, run_record
    from fringe.paper import Timing, study_plans, timing_records, write_reproduction
    from fringe.report import report_folder

    plans, timings, paths = study_plans(base, studies), list[Timing](), list[str]()
    Store(flags.out)  # also where only run times are measured
    code, results = run_plans(list(plans.values()), flags)
    resolved = {result.resolved.plan.name: result.resolved for result in results}
    try:
        with interruptible():
            if code in FINISHED:
                written = (path for name in plans if name != "sweep" for path in report_plan(flags, resolved[name]))
                reports = [path for path in written if path.endswith(".html")]
                out, same = report_folder(flags.out, "benchmark"), flags.model_dump(include={"device", "batch_size"})
                kwargs: dict[str, Any] = {**same, "images": options.figures}
                files = write_reproduction(
                    base, flags.out, out, studies=studies, resolved=resolved, on_timings=timings.extend, **kwargs
                )
                paths = [*map(str, files.pages), *reports, *map(str, files.figures)]
                flags.print_text("\n".join(f"figure: {path}" for path in files.figures if path.suffix == ".png"))
                flags.print_text("\n".join(f"page: {path}" for path in files.pages))
    except Interrupted as error:
        print_error(f"{error}; what is there so far is in {flags.out}: run the same command again for the rest")
        code = Exit.RESUMABLE
    document = {"plans": [run_record(result) for result in results], "timings": timing_records(timings)}
    flags.print_json({**document, "report": paths})
    return code


def _estimate(base: "Plan", studies: Sequence[str], flags: "RunFlags", options: "ReproduceOptions") -> Exit:
    """Show what a reproduction lacks, how many passes that takes, and how long, one map after the other."""
    from fringe.experiments import MethodCost
    from fringe.paper import estimate_reproduction

    costs, shown = list[MethodCost](), ""
    same: dict[str, Any] = {"device": flags.device, "retry": flags.retry, "seconds": options.probe}
    for part in estimate_reproduction(base, flags.out, studies=studies, **same):
        heading = [f"{part.study}: {part.images} images"] if part.study != shown else []
        costs, shown = [*costs, *part.costs], part.study
        flags.print_text("\n".join([*heading, *(f"  {line}" for line in part.lines())]))
    hours = sum(cost.seconds for cost in costs) / 3600
    flags.print_json({"device": flags.device, "hours": hours, "methods": [cost.record() for cost in costs]})
    machine = f"on {flags.device}, one map after the other, without what is stored"
    flags.print_text(f"in all about {hours:.2g} hours {machine}")
    return Exit.DONE
