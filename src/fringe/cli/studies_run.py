"""The studies of the paper but for the search and the whole, from what was typed to an exit code."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import typer

from fringe.cli.consent import require_consent, work_of_plans
from fringe.cli.folder import to_json
from fringe.cli.options import read_batch_size
from fringe.cli.plan_flags import HowOptions
from fringe.cli.plan_options import PlanOptions
from fringe.cli.plan_run import Went, account_of, device_of, run_plans
from fringe.cli.planning import Defaults, overlooked, read_plan
from fringe.cli.problems import Exit, complain, remark, say
from fringe.cli.report_run import report_folder, report_plan
from fringe.cli.settings import assign
from fringe.errors import InputError
from fringe.experiments import Arm, Interrupted, Plan, Resolved, Store, interruptible, read_results, resolve
from fringe.paper import (
    DIAGNOSTICS,
    OBJECTIVE,
    ablation,
    cap_study,
    draw_cap,
    draw_sweep,
    draw_trajectories,
    first,
    measure,
    record,
    slowdowns,
    sweep_plan,
)

FRINGE = ("fringe",)
Draw = Callable[[Resolved, Path], Sequence[Path]]


def run_ablate(options: PlanOptions, how: HowOptions, *, figures: int, report: bool) -> Exit:
    plan = ablation(first_only(read_plan(options, Defaults("ablation", methods=FRINGE))))
    went = run_plans([plan], how)
    device = device_of(how.device)

    def draw(resolved: Resolved, out: Path) -> list[Path]:
        return draw_trajectories(resolved, figures, out, device=device)

    return finish(went, how, report=report, draw=draw)


def run_diagnose(options: PlanOptions, how: HowOptions, *, figures: int, report: bool) -> Exit:
    base = read_study(options, Defaults("cap", methods=FRINGE, metrics=DIAGNOSTICS, limits=()))
    plan = cap_study(first_only(base, keep=("ig",)))
    went = run_plans([plan], how)
    device = device_of(how.device)

    def draw(resolved: Resolved, out: Path) -> list[Path]:
        return draw_cap(resolved, figures, out, device=device)

    return finish(went, how, report=report, draw=draw)


def run_sweep(options: PlanOptions, how: HowOptions, *, factors: Sequence[str]) -> Exit:
    base = first_only(read_study(options, Defaults("sweep", methods=FRINGE, metrics=OBJECTIVE, limits=())))
    grid = _factors(base.arms[0], factors)
    went = run_plans([sweep_plan(base, grid)], how)
    if went.code not in (Exit.DONE, Exit.SOME_FAILED):
        return tell(went, how, [])
    results = read_results(Store(how.out, create=False), "sweep")
    paths = draw_sweep(base, results, grid, report_folder(how.out, "sweep"))
    return tell(went, how, paths)


def run_runtime(options: PlanOptions, how: HowOptions) -> Exit:
    overlooked(
        "run times have no scores", metrics=options.metrics, limit=options.limits, controls=options.controls or None
    )
    bare = replace(options, metrics=None, limits=None)
    plan = replace(read_plan(bare, Defaults("runtime", methods=("fringe", "ig"), n=16)), controls=False)
    device, batch_size = device_of(how.device), read_batch_size(how.batch_size)
    require_consent(work_of_plans([plan, plan]), yes=how.yes, quiet=how.json)
    Store(how.out)
    path = report_folder(how.out, "runtime") / "runtime.json"
    try:
        with interruptible():
            timings = measure(resolve(plan), device=device, batch_size=batch_size)
    except Interrupted as error:
        complain(f"{error}; run times are measured in one go: nothing is kept")
        return Exit.INTERRUPTED
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record(timings), indent=1), encoding="utf-8")
    lost = plan.n - min(t.n for t in timings)
    if lost:
        remark(f"{lost} of {plan.n} images cannot be explained, and are left out")
    if how.json:
        typer.echo(to_json({"timings": record(timings)}), nl=False)
        return Exit.DONE
    for t in timings:
        passes = f"{t.forward:.0f} F + {t.jvp:.0f} JVP + {t.vjp:.0f} VJP"
        half = f" ± {t.half:.3f}" if math.isfinite(t.half) else ""
        say(f"{t.model} {t.method} {t.mode}: {t.seconds:.3f}{half} s an image of {t.n}, {passes}; {t.device}")
    for (model, mode), ratio in slowdowns(timings, "fringe", "ig").items():
        say(f"{model} {mode}: fringe takes {ratio:.1f} times as long as ig")
    say(f"account: {path}")
    return Exit.DONE


def read_study(options: PlanOptions, defaults: Defaults) -> Plan:
    """The plan of a study that has metrics of its own."""
    overlooked(
        f"this study is scored by {', '.join(defaults.metrics)} on all images",
        metrics=options.metrics,
        limit=options.limits,
        controls=options.controls or None,
    )
    gone = {*(options.metrics or ())} - {*defaults.metrics}
    return read_plan(replace(options.without(gone), metrics=None, limits=None), defaults)


def first_only(plan: Plan, keep: Sequence[str] = ()) -> Plan:
    """The plan with the first method of each model, which the study is of, and those to ``keep``; what else was asked
    for is named."""
    arms: list[Arm] = []
    for arm in plan.arms:
        chosen, *others = arm.methods
        left_out = [name for name in others if name not in keep]
        if left_out:
            remark(f"{', '.join(left_out)}: not used; this study is of {chosen}, the first of the methods")
        arms.append(replace(arm, methods={n: m for n, m in arm.methods.items() if n not in left_out}))
    return replace(plan, arms=tuple(arms))


def finish(went: Went, how: HowOptions, *, report: bool, draw: Draw) -> Exit:
    """Report and draw what was computed."""
    if went.code not in (Exit.DONE, Exit.SOME_FAILED):
        return tell(went, how, [])
    resolved = went.finished[0].resolved
    paths = report_plan(how, resolved, reference=None) if report else []
    return tell(went, how, [*paths, *map(str, draw(resolved, report_folder(how.out, resolved.plan.name)))])


def tell(went: Went, how: HowOptions, paths: Sequence[Path | str]) -> Exit:
    """Say what was written."""
    if how.json:
        typer.echo(to_json({**account_of(went.finished[0]), "report": [str(path) for path in paths]}), nl=False)
    else:
        for path in paths:
            if str(path).endswith(".png"):
                say(f"figure: {path}")
    return went.code


def _factors(arm: Arm, texts: Sequence[str]) -> dict[str, list[float]] | None:
    """``tau=1e-3,1e-2`` texts; None where there is none."""
    found: dict[str, list[float]] = {}
    for text in texts:
        key, equals, values = (part.strip() for part in text.partition("="))
        if not equals or not values:
            raise InputError(f"--factor: got {text!r}, expected KEY=VALUE,VALUE,..., such as tau=1e-3,1e-2")
        field = "gamma_step" if key == "gamma" else key
        found[key] = [getattr(assign(first(arm), [f"{field}={value}"]), field) for value in values.split(",")]
    return found or None
