"""``fringe tune`` and ``fringe reproduce``: a search for a network's setting, and the studies of the paper."""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fringe._files.disk import require_local
from fringe._files.process import Interrupted, interruptible
from fringe.cli._benchmark import FLAGS
from fringe.cli._console import Exit, Progress, print_error, require_consent, resumable, typed, warn
from fringe.cli._options import with_options
from fringe.errors import InputError

if TYPE_CHECKING:
    from fringe.bench.paper import PaperStudy
    from fringe.cli._runs import RunFlags

STUDY_SPEC = "fringe.bench.paper:StudySpec"
#: The keys of a study that have a flag of their own; the others are given by ``--set`` or in a file.
TYPED = ("model", "data", "methods", "n", "set", "preprocessing", "trust_code", "model_output")
TUNING = ("trials", "search", "smoothing")
NOTES = {
    "set": "a text without a dot is a key of the study's file, as in --set seed=3",
    "n": "default: the study's own",
}
#: What run times, which are measured in this process, do not use.
NOT_TIMED = ("executor", "workers", "timeout", "save_maps", "amend", "retry")


@with_options(STUDY_SPEC, FLAGS, only={STUDY_SPEC: (*TYPED, *TUNING)}, notes={**NOTES, "n": "default: 256"})
def tune(given: dict[str, Any], how: dict[str, Any]) -> None:
    """Search the best setting, and write it as a preset file.

    The best setting has the largest objective of the paper, on images that no benchmark of this seed uses. Only the
    first method is tuned; by default fringe, on 256 images. Several processes may work in one folder. An interrupted
    search is resumed by the same command.
    """
    with resumable("bench", "tune"):
        flags, study = _study("tuning", given, how)
        raise typer.Exit(_tune(study, flags))


@with_options(STUDY_SPEC, FLAGS, only={STUDY_SPEC: TYPED}, notes=NOTES)
def reproduce(
    given: dict[str, Any],
    how: dict[str, Any],
    study: Annotated[str, typer.Argument(metavar="STUDY", help="Name of a study.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Compute nothing: estimate passes and time of what is missing.")
    ] = False,
) -> None:
    """Run a study of the paper.

    ablation: FRInGe with parts taken out, and their paths. cap: the paths with and without the limit on the length of
    a step. sweep: one setting varied at a time. tuning: a search, as by "fringe tune". runtime: times of maps.
    budget: methods at equal prices of a map.
    tables: the numbers of the paper's tables beside ours, on its six networks. all: the tables and the sweep.

    Each study is a file of the package: fringe/bench/paper/studies/STUDY.toml. The file of --config replaces keys of
    it, and flags replace both. An interrupted run is resumed by the same command; run times alone are measured again.
    """
    with resumable("bench", *(("tune",) if study == "tuning" else ())):
        flags, planned = _study(study, given, how)
        run = {"tuning": _tune, "runtime": _time, "budget": _at_budgets, "tables": _reproduce, "all": _reproduce}.get(
            study, _score
        )
        raise typer.Exit((_estimate if dry_run else run)(planned, flags))


def _study(name: str, given: Mapping[str, Any], how: Mapping[str, Any]) -> "tuple[RunFlags, PaperStudy]":
    from fringe.bench.paper import StudySpec, paper_study
    from fringe.cli._runs import RunFlags

    if name == "runtime" and (unused := [option for option in NOT_TIMED if option in how]):
        message = "run times are measured in this process, and not stored"
        raise InputError(message, argument=unused[0], hint=f"leave out {', '.join(unused)}")
    flags = RunFlags(**how).resolve()
    require_local("out", flags.out)
    return flags, paper_study(name, flags.spec(given, StudySpec))


def _score(study: "PaperStudy", flags: "RunFlags") -> Exit:
    """Run the plan of a study, report and draw it."""
    from fringe.bench.paper import draw_study
    from fringe.bench.report import report_folder
    from fringe.cli._runs import run_and_report

    folder = report_folder(flags.out, study.plan.name)
    draw = partial(draw_study, study, flags.out, folder, images=study.spec.figures, device=flags.device)
    return run_and_report(study.plan, flags, report=study.spec.report, draw=lambda plan: draw(resolved=plan))


def _at_budgets(study: "PaperStudy", flags: "RunFlags") -> Exit:
    """Measure the prices of the settings, then run and report those that are nearest to each budget."""
    from fringe.bench.experiments import Store
    from fringe.bench.paper import budget_chapter, equal_budgets
    from fringe.bench.report import report_folder
    from fringe.cli._runs import run_and_report

    path = report_folder(Store(flags.out).root, study.plan.name) / "prices.json"
    plan, entries = equal_budgets(study, path, device=flags.device, batch_size=flags.batch_size)
    return run_and_report(plan, flags, report=study.spec.report, chapter=partial(budget_chapter, study, entries))


def _time(study: "PaperStudy", flags: "RunFlags") -> Exit:
    from fringe.bench.experiments import Store, planned_work_of, resolve
    from fringe.bench.paper import describe_timings, measure_runtimes, timing_records, write_timings
    from fringe.bench.report import report_folder

    plan = study.plan
    require_consent(planned_work_of([plan, plan]), yes=flags.yes, quiet=flags.as_json)
    path = report_folder(Store(flags.out).root, "runtime") / "runtime.json"
    try:
        with interruptible():
            timings = measure_runtimes(resolve(plan), device=flags.device, batch_size=flags.batch_size)
    except Interrupted as error:
        print_error(f"{error}; run times are measured in one go: nothing is stored")
        return Exit.INTERRUPTED
    lost = plan.n - min(timing.n for timing in timings)
    if lost:
        warn(f"{lost} of {plan.n} images cannot be explained, and are left out")
    flags.print_json({"timings": timing_records(timings)})
    flags.print_text("\n".join(describe_timings(timings)))
    write_timings(path, timing_records(timings))  # last: a full disk must not take what took hours
    flags.print_text(f"timings: {path}")
    return Exit.DONE


def _tune(study: "PaperStudy", flags: "RunFlags") -> Exit:
    from fringe.bench.experiments import planned_work_of
    from fringe.bench.paper import read_search_space, tune_preset
    from fringe.bench.tuning import Trial

    plan, spec = study.plan, study.spec
    work = [(name, passes, count * spec.trials) for name, passes, count in planned_work_of([plan])]
    require_consent(work, yes=flags.yes, quiet=flags.as_json)
    space = read_search_space(plan, spec.search, smoothing=spec.smoothing)
    with Progress("trials", spec.trials, quiet=flags.as_json) as bar, interruptible():

        def watch(trial: Trial, done: int, planned: int) -> None:
            bar.advance(1, f"trial {trial.number}")
            flags.print_text(trial.describe())

        try:
            result = tune_preset(plan, flags.out, flags, space, spec.trials, progress=watch)
        except Interrupted as error:
            print_error(f"{error}; the trials so far are in {flags.out}: run the same command again to go on")
            flags.print_json({"preset": None, "stopped": str(error)})
            return Exit.RESUMABLE
    flags.print_json({**result.record(), "stopped": None})
    flags.print_text(typed(result.describe()))
    return Exit.DONE


def _reproduce(study: "PaperStudy", flags: "RunFlags") -> Exit:
    from fringe.bench.experiments import Store, run_record
    from fringe.bench.paper import Timing, study_plans, timing_records, write_reproduction
    from fringe.bench.report import report_folder
    from fringe.cli._runs import FINISHED, report_plan, run_plans

    base, studies = study.base, study.spec.studies
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
                kwargs: dict[str, Any] = {**same, "images": study.spec.figures}
                pages, figures = write_reproduction(
                    base, flags.out, out, studies=studies, resolved=resolved, on_timings=timings.extend, **kwargs
                )
                paths = [*map(str, pages), *reports, *map(str, figures)]
                flags.print_text("\n".join(f"figure: {path}" for path in figures if path.suffix == ".png"))
                flags.print_text("\n".join(f"page: {path}" for path in pages))
    except Interrupted as error:
        print_error(f"{error}; what is there so far is in {flags.out}: run the same command again for the rest")
        code = Exit.RESUMABLE
    document = {"plans": [run_record(result) for result in results], "timings": timing_records(timings)}
    flags.print_json({**document, "report": paths})
    return code


def _estimate(study: "PaperStudy", flags: "RunFlags") -> Exit:
    """Show what a study lacks, how many passes that takes, and how long, one map after the other."""
    from fringe.bench.experiments import MethodCost, estimate_run
    from fringe.bench.paper import estimate_reproduction

    same: dict[str, Any] = {"device": flags.device, "retry": flags.retry, "seconds": study.spec.probe}
    same["progress"] = not flags.as_json
    if not study.spec.studies:
        if study.plan.name in ("tune", "runtime", "budget"):
            message = "this study begins with measurements that decide what it computes, so it cannot be estimated"
            raise InputError(message, argument="dry_run", hint="leave it out")
        known = estimate_run(study.plan, flags.out, executor=flags.executor, batch_size=flags.batch_size, **same)
        flags.print_json(known.record())
        flags.print_text(typed(known.describe()))
        return Exit.DONE
    costs, shown = list[MethodCost](), ""
    for part in estimate_reproduction(study.base, flags.out, studies=study.spec.studies, **same):
        heading = [f"{part.study}: {part.images} images"] if part.study != shown else []
        costs, shown = [*costs, *part.costs], part.study
        flags.print_text("\n".join([*heading, *(f"  {line}" for line in part.lines())]))
    hours = sum(cost.seconds for cost in costs) / 3600
    flags.print_json({"device": flags.device, "hours": hours, "methods": [cost.record() for cost in costs]})
    machine = f"on {flags.device}, one map after the other, without what is stored"
    flags.print_text(f"in all about {hours:.2g} hours {machine}")
    return Exit.DONE
