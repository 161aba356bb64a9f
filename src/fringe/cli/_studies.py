"""``fringe ablate``, ``diagnose``, ``sweep``, ``runtime``, ``tune`` and ``reproduce``."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fringe._process import Interrupted, interruptible
from fringe._text import to_json
from fringe.cli._benchmark import FLAGS, SPEC, UNTYPED
from fringe.cli._console import (
    Exit,
    Progress,
    exit_on_error,
    print_error,
    require_consent,
    require_extra,
    resumable,
    say,
    warn,
)
from fringe.cli._options import Config, with_options
from fringe.errors import InputError

if TYPE_CHECKING:
    from fringe.cli._runs import RunFlags, RunSummary, TimingOptions
    from fringe.experiments import ExperimentSpec, Plan, Resolved
    from fringe.paper import ModelEstimate, Share, Timing
    from fringe.tuning import SearchSpace

#: Methods of a model above which an estimate shows them together.
MANY = 12

Given = dict[str, Any]
Figures = Annotated[int, typer.Option(min=0, metavar="N", help="Images whose paths are drawn.")]
Reports = Annotated[bool, typer.Option("--report/--no-report", help="Write the report at the end.")]


@with_options(SPEC, FLAGS, skip=UNTYPED)
def ablate(given: Given, how: Given, config: Config = None, figures: Figures = 2, report: Reports = True) -> None:
    """Score FRInGe with parts removed, and draw the paths of its variants.

    The variants of the paper's table, and three of its figures: gamma_step only, gamma_prior only, non-geometric. With
    --methods fringe:auto those that the paper tuned for a network, where it did. By default 100 images.
    """
    with resumable():
        require_extra("bench")
        from fringe.cli._runs import RunFlags, read_plan, read_spec, run_plans
        from fringe.models import resolve_device
        from fringe.paper import ablation, draw_trajectories

        flags = RunFlags(**how)
        plan = ablation(_first_method(read_plan(read_spec(given, config), name="ablation", methods="fringe")))
        summary = run_plans([plan], flags)

        def draw(resolved: "Resolved", out: Path) -> Sequence[Path]:
            return draw_trajectories(resolved, figures, out, device=resolve_device(flags.device))

        code = _finish(summary, flags, report=report, draw=draw)
    raise typer.Exit(code)


@with_options(SPEC, FLAGS, skip=UNTYPED)
def diagnose(given: Given, how: Given, config: Config = None, figures: Figures = 2, report: Reports = True) -> None:
    """Measure the effect of the Euclidean cap: completeness residual, endpoint KL, tracking error; and draw profiles.

    FRInGe with the cap and without, and IG; by default on 100 images.
    """
    with resumable():
        require_extra("bench")
        from fringe.cli._runs import RunFlags, read_spec, run_plans
        from fringe.models import resolve_device
        from fringe.paper import DIAGNOSTICS, cap_study, draw_cap

        flags = RunFlags(**how)
        base = _study_plan(read_spec(given, config), DIAGNOSTICS, name="cap")
        summary = run_plans([cap_study(_first_method(base, also=("ig",)))], flags)

        def draw(resolved: "Resolved", out: Path) -> Sequence[Path]:
            return draw_cap(resolved, figures, out, device=resolve_device(flags.device))

        code = _finish(summary, flags, report=report, draw=draw)
    raise typer.Exit(code)


@with_options(SPEC, FLAGS, skip=UNTYPED)
def sweep(
    given: Given,
    how: Given,
    config: Config = None,
    factor: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=V,V,...", help="Setting and its values; may be repeated (default: the paper's five)."
        ),
    ] = None,
) -> None:
    """Vary one setting at a time and draw how the tuning objective changes.

    The first of the methods; by default fringe on 100 images.
    """
    with resumable():
        require_extra("bench")
        from fringe.cli._runs import RunFlags, read_spec, report_folder, run_plans
        from fringe.experiments import Store, read_results
        from fringe.paper import OBJECTIVE, draw_sweep, first, sweep_plan

        flags = RunFlags(**how)
        base = _first_method(_study_plan(read_spec(given, config), OBJECTIVE, name="sweep"))
        grid = _factors(first(base.arms[0]), factor or ())
        summary = run_plans([sweep_plan(base, grid)], flags)
        paths: Sequence[Path] = []
        if summary.finished:
            results = read_results(Store(flags.out, create=False), "sweep")
            paths = draw_sweep(base, results, grid, report_folder(flags.out, "sweep"))
        code = _print_paths(summary, flags, paths)
    raise typer.Exit(code)


@with_options(SPEC, "fringe.cli._runs:TimingOptions", skip=UNTYPED)
def runtime(given: Given, how: Given, config: Config = None) -> None:
    """Time maps one image at a time, as the paper did, and in batches, and count their passes.

    By default fringe and ig on 16 images. Nothing is resumed: times are measured in one go.
    """
    with exit_on_error():
        require_extra("bench")
        from fringe.cli._runs import TimingOptions, read_spec

        code = _runtime(read_spec(given, config), TimingOptions(**how))
    raise typer.Exit(code)


def _runtime(spec: "ExperimentSpec", options: "TimingOptions") -> Exit:
    from fringe.cli._runs import read_plan, report_folder, warn_ignored, work_of_plans
    from fringe.experiments import Store, resolve
    from fringe.models import resolve_device
    from fringe.paper import measure, record, slowdowns

    spec = warn_ignored(
        spec, "run times have no scores", "metrics", "limits", *(("controls",) if spec.controls else ())
    )
    plan = read_plan(spec, name="runtime", methods="fringe,ig", n=16, controls=False)
    device = resolve_device(options.device)
    require_consent(work_of_plans([plan, plan]), yes=options.yes, quiet=options.as_json)
    Store(options.out)
    path = report_folder(options.out, "runtime") / "runtime.json"
    try:
        with interruptible():
            timings = measure(resolve(plan), device=device, batch_size=options.batch_size)
    except Interrupted as error:
        print_error(f"{error}; run times are measured in one go: nothing is stored")
        return Exit.INTERRUPTED
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record(timings), indent=1), encoding="utf-8")
    lost = plan.n - min(timing.n for timing in timings)
    if lost:
        warn(f"{lost} of {plan.n} images cannot be explained, and are left out")
    if options.as_json:
        typer.echo(to_json({"timings": record(timings)}), nl=False)
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
    with resumable():
        require_extra("bench")
        require_extra("tune")
        from fringe.cli._runs import RunFlags, read_spec

        code = _tune(read_spec(given, config), RunFlags(**how), trials, search or (), smoothing=smoothing)
    raise typer.Exit(code)


def _tune(spec: "ExperimentSpec", flags: "RunFlags", trials: int, ranges: Sequence[str], *, smoothing: bool) -> Exit:
    from fringe.cli._runs import work_of_plans
    from fringe.paper import OBJECTIVE, Search, first, search, tuning_plan
    from fringe.tuning import Trial

    plan = _first_method(_study_plan(spec, OBJECTIVE, name="tune", n=256))
    work = [(name, passes, count * trials) for name, passes, count in work_of_plans([tuning_plan(plan)])]
    options = flags.run_options()
    require_consent(work, yes=flags.yes, quiet=flags.as_json)
    space = _search_space(type(first(plan.arms[0])), ranges, smoothing=smoothing)
    with Progress("trials", trials, quiet=flags.as_json) as bar, interruptible():

        def watch(trial: Trial, done: int, planned: int) -> None:
            bar.advance(1, f"trial {trial.number}")
            if not flags.as_json:
                values = (f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in trial.settings.items())
                say(f"trial {trial.number}: {trial.problem or f'{trial.value:.4f}'} ({', '.join(values)})")

        try:
            result = search(plan, flags.out, options, Search(space, trials), watch)
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


@with_options(SPEC, FLAGS, skip=UNTYPED)
def reproduce(
    given: Given,
    how: Given,
    config: Config = None,
    imagenet: Annotated[
        Path | None, typer.Option(metavar="DIR", help="ImageNet's validation images; the same as --data.")
    ] = None,
    models: Annotated[str | None, typer.Option(metavar="NAMES", help="Some of the paper's six networks.")] = None,
    studies: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="Some of comparison, ablation, cap, max_sensitivity, sweep, runtime."),
    ] = None,
    figures: Figures = 2,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what is missing, its passes and its time, from a probe.")
    ] = False,
    probe: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="Longest map of the probe.")] = 2.0,
) -> None:
    """Run all studies of the paper, and write a page with its numbers and ours. An interrupted run is resumed.

    By default the paper's six networks and eight methods on 1000 images; 64 for the cap, max_sensitivity, the sweep of
    settings, and run times.
    """
    with resumable():
        require_extra("bench")
        from fringe.cli._runs import RunFlags, read_spec

        base, names = _reproduction(read_spec(given, config), imagenet, models, studies)
        flags = RunFlags(**how)
        code = _estimate(base, names, flags, probe) if dry_run else _reproduce(base, names, flags, figures)
    raise typer.Exit(code)


def _reproduction(
    spec: "ExperimentSpec", imagenet: Path | None, models: str | None, studies: str | None
) -> "tuple[Plan, list[str]]":
    """The base plan of a reproduction, and the names of its studies."""
    from fringe.attribution import FRInGe
    from fringe.cli._runs import read_plan, warn_ignored
    from fringe.experiments import PAPER_METHODS, ExperimentSpec
    from fringe.paper import DEFAULT, MODELS, SPECS, STUDIES

    names = _choices("studies", studies or ",".join(STUDIES), STUDIES)
    spec = warn_ignored(spec, "the studies have metrics of their own", "metrics", "limits")
    if imagenet is not None:
        if spec.data:
            raise InputError("--data names images, too; give one of them", argument="imagenet")
        spec = ExperimentSpec(data=[str(imagenet)]).over(spec)
    if not spec.data:
        raise InputError("none given; name the folder of ImageNet's validation images", argument="imagenet")
    if models is not None:
        if spec.model:
            raise InputError("--model names networks, too; give one of them", argument="models")
        spec = ExperimentSpec(model={name: SPECS[name] for name in _choices("models", models, MODELS)}).over(spec)
    base = read_plan(spec, name="comparison", methods=PAPER_METHODS, model=SPECS, n=1000, limits={})
    for arm in base.arms:
        missing = [name for name in ("fringe", "ig") if name not in arm.methods]
        if missing or next(iter(arm.methods)) != "fringe":
            raise InputError("the studies need fringe, first, and ig among the methods", argument="methods")
        if arm.methods.get(DEFAULT, FRInGe()) != FRInGe():
            message = f"{DEFAULT} is the label of FRInGe() here; give this method another"
            raise InputError(message, argument="methods")
    return base, names


def _choices(argument: str, text: str, known: Sequence[str]) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            raise InputError(f"got {name!r}, expected one of {', '.join(known)}", argument=argument)
    return names


def _reproduce(base: "Plan", names: Sequence[str], flags: "RunFlags", figures: int) -> Exit:
    from fringe.cli._runs import report_folder, run_plans
    from fringe.experiments import Store
    from fringe.models import resolve_device
    from fringe.paper import DEFAULT, Timing, plans, runtime_base, stored_timings, write_page

    studies = plans(base, names)
    Store(flags.out)  # also where only run times are measured
    summary = run_plans(list(studies.values()), flags)
    timings, paths, out = list[Timing](), list[Path](), report_folder(flags.out, "benchmark")
    if not summary.finished:
        return _end_reproduction(summary.code, summary, flags, [], [])
    try:
        with interruptible():
            drawn, reports = _draw_studies(base, studies, summary, flags, figures)
            pages = write_page(base, flags.out, out, [], drawn)
            for methods in (("fringe", "ig"), (DEFAULT,)):  # apart: run times of an older folder stay valid
                timings += stored_timings(
                    runtime_base(base, methods),
                    report_folder(flags.out, "runtime") / "kept.json",
                    device=resolve_device(flags.device),
                    batch_size=flags.batch_size,
                    measuring="runtime" in names,
                )
            pages = write_page(base, flags.out, out, timings, drawn)
            paths = [*pages, *reports, *drawn]
    except Interrupted as error:
        print_error(f"{error}; what is there so far is in {flags.out}: run the same command again for the rest")
        return _end_reproduction(Exit.RESUMABLE, summary, flags, timings, [])
    if not flags.as_json:
        for name, files in (("figure", [path for path in drawn if path.suffix == ".png"]), ("page", pages)):
            for path in files:
                say(f"{name}: {path}")
    return _end_reproduction(summary.code, summary, flags, timings, paths)


def _end_reproduction(
    code: Exit, summary: "RunSummary", flags: "RunFlags", timings: "Sequence[Timing]", paths: Sequence[Path]
) -> Exit:
    """Print the one document of a run that was asked for it, also where it was stopped."""
    from fringe.experiments import run_record
    from fringe.paper import record

    if flags.as_json:
        document = {"plans": [run_record(result) for result in summary.results], "timings": record(timings)}
        typer.echo(to_json({**document, "report": [str(path) for path in paths]}), nl=False)
    return code


def _draw_studies(
    base: "Plan", studies: "dict[str, Plan]", summary: "RunSummary", flags: "RunFlags", figures: int
) -> tuple[list[Path], list[Path]]:
    """The figures of the studies, and the pages of their reports."""
    from fringe.cli._runs import report_folder, report_plan
    from fringe.experiments import Store, read_results
    from fringe.models import resolve_device
    from fringe.paper import draw_cap, draw_sweep, draw_trajectories

    root, device = report_folder(flags.out, "benchmark"), resolve_device(flags.device)
    resolved = {result.resolved.plan.name: result.resolved for result in summary.results}
    drawn, reports = list[Path](), list[Path]()
    for name in studies:
        if name != "sweep":
            reports += [Path(path) for path in report_plan(flags, resolved[name]) if path.endswith(".html")]
        if name == "ablation":
            drawn += draw_trajectories(resolved[name], figures, root / name, device=device)
        elif name == "cap":
            drawn += draw_cap(resolved[name], figures, root / name, device=device)
        elif name == "sweep":
            results = read_results(Store(flags.out, create=False), name)
            drawn += draw_sweep(base, results, None, root / name)
    return drawn, reports


def _estimate(base: "Plan", names: Sequence[str], flags: "RunFlags", seconds: float) -> Exit:
    """Show what a reproduction lacks, how many passes that takes, and how long, one map after the other."""
    from dataclasses import asdict

    from fringe.models import resolve_device
    from fringe.paper import DEFAULT, estimate_plans, plans, runtime_base

    timed = runtime_base(base, ("fringe", "ig", DEFAULT)) if "runtime" in names else None
    device, studies = resolve_device(flags.device), list(plans(base, names).values())
    estimates, shown = list["ModelEstimate"](), ""
    for estimate in estimate_plans(studies, timed, flags.out, device=device, seconds=seconds, retry=flags.retry_failed):
        estimates.append(estimate)
        if flags.as_json:
            continue
        if estimate.study != shown:
            say(f"{estimate.study}: {estimate.images} images")
            shown = estimate.study
        for line in _estimate_lines(estimate):
            say(f"  {line}")
    shares = [share for estimate in estimates for share in estimate.shares]
    hours = sum(share.hours for share in shares)
    if flags.as_json:
        document = {"device": device, "hours": hours, "methods": [asdict(share) for share in shares]}
        typer.echo(to_json(document), nl=False)
    else:
        say(f"in all about {hours:.2g} hours on {device}, one map after the other, without what is stored")
    return Exit.DONE


def _estimate_lines(estimate: "ModelEstimate") -> list[str]:
    """One line per method; one for all where there are many. Controls take no pass and have none."""
    shown = [share for share in estimate.shares if share.forward or share.vjp]
    if not shown:
        return [f"{estimate.model}: nothing left to do"]
    if len(shown) <= MANY:
        return [f"{estimate.model} {share.method}: {_describe_shares([share])}" for share in shown]
    return [f"{estimate.model}, {len(shown)} settings: {_describe_shares(shown)}"]


def _describe_shares(shares: "Sequence[Share]") -> str:
    forward, jvp, vjp, hours = (sum(getattr(s, name) for s in shares) for name in ("forward", "jvp", "vjp", "hours"))
    fraction = min(share.told_from for share in shares)
    rough = "" if fraction == 1 else f" (from {fraction:.0%} of a map)"
    maps = sum(share.maps for share in shares)
    return f"{maps} maps, {forward:.3g} F + {jvp:.3g} JVP + {vjp:.3g} VJP, {hours:.2g} h{rough}"


# What the studies share


def _study_plan(spec: "ExperimentSpec", metrics: Sequence[str], **defaults: Any) -> "Plan":
    """The plan of a study that has metrics of its own."""
    from fringe.cli._runs import read_plan, warn_ignored

    reason = f"this study is scored by {', '.join(metrics)} on all images"
    others = set(spec.metrics or ()) - set(metrics)
    spec = spec.model_copy(update={"set": {label: s for label, s in spec.set.items() if label not in others}})
    spec = warn_ignored(spec, reason, "metrics", "limits", *(("controls",) if spec.controls else ()))
    return read_plan(spec, **{"methods": "fringe", "metrics": list(metrics), "limits": {}, **defaults})


def _first_method(plan: "Plan", also: Sequence[str] = ()) -> "Plan":
    """The plan with the first method of each model, which a study is of, and those in ``also``; others are named."""
    from dataclasses import replace

    arms = list(plan.arms)
    for i, arm in enumerate(arms):
        chosen, *others = arm.methods
        unused = [name for name in others if name not in also]
        if unused:
            warn(f"{', '.join(unused)}: not used; this study is of {chosen}, the first of the methods")
        arms[i] = replace(arm, methods={name: m for name, m in arm.methods.items() if name not in unused})
    return replace(plan, arms=tuple(arms))


def _finish(
    summary: "RunSummary", flags: "RunFlags", *, report: bool, draw: "Callable[[Resolved, Path], Sequence[Path]]"
) -> Exit:
    """Report and draw what was computed."""
    from fringe.cli._runs import report_folder, report_plan

    if not summary.finished:
        return _print_paths(summary, flags, [])
    resolved = summary.results[0].resolved
    paths = report_plan(flags, resolved) if report else []
    return _print_paths(
        summary, flags, [*paths, *map(str, draw(resolved, report_folder(flags.out, resolved.plan.name)))]
    )


def _print_paths(summary: "RunSummary", flags: "RunFlags", paths: Sequence[Path | str]) -> Exit:
    """Print what was written."""
    from fringe.experiments import run_record

    if flags.as_json:
        typer.echo(to_json({**run_record(summary.results[0]), "report": [str(path) for path in paths]}), nl=False)
    else:
        for path in paths:
            if str(path).endswith(".png"):
                say(f"figure: {path}")
    return summary.code


def _factors(method: Any, texts: Sequence[str]) -> dict[str, list[float]] | None:
    """The values of ``tau=1e-3,1e-2`` texts; None where there is none."""
    factors: dict[str, list[float]] = {}
    for text in texts:
        key, equals, values = (part.strip() for part in text.partition("="))
        if not equals or not values:
            message = f"got {text!r}, expected KEY=VALUE,VALUE,..., such as tau=1e-3,1e-2"
            raise InputError(message, argument="factor")
        field = "gamma_step" if key == "gamma" else key
        factors[key] = [getattr(method.with_text({field: value.strip()}), field) for value in values.split(",")]
    return factors or None


def _search_space(kind: type, texts: Sequence[str], *, smoothing: bool) -> "SearchSpace":
    """The settings in ``KEY`` or ``KEY=LOW,HIGH`` texts; by default those of the paper, or all of another method."""
    from fringe.attribution import FRInGe
    from fringe.tuning import paper_space, space_of

    if not texts:
        return paper_space(smoothing=smoothing) if issubclass(kind, FRInGe) else space_of(kind)
    names: list[str] = []
    ranges: dict[str, tuple[float, float]] = {}
    for text in texts:
        key, equals, bounds = (part.strip() for part in text.partition("="))
        names.append(key)
        if equals:
            try:
                low, high = (float(bound) for bound in bounds.split(","))
            except ValueError:
                raise InputError(f"got {text!r}, expected KEY or KEY=LOW,HIGH", argument="search") from None
            ranges[key] = (low, high)
    return space_of(kind, names, ranges)
