"""One run of ``fringe reproduce``: every study of the paper over one store, and a page that sets the numbers beside
each other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import typer

from fringe.attribution import FRInGe
from fringe.cli.estimate import estimate
from fringe.cli.folder import to_json
from fringe.cli.plan_flags import HowOptions
from fringe.cli.plan_options import PlanOptions
from fringe.cli.plan_run import Went, account_of, device_of, run_plans
from fringe.cli.planning import PAPER, Defaults, overlooked, read_choice, read_plan
from fringe.cli.problems import Exit, complain, say
from fringe.cli.report_run import report_folder, report_plan
from fringe.cli.timings import timings_of
from fringe.errors import InputError
from fringe.experiments import Interrupted, Plan, Store, interruptible, manifests, read_results
from fringe.paper import (
    DEFAULT,
    MODELS,
    SPECS,
    STUDIES,
    Timing,
    beside,
    cells_csv,
    draw_cap,
    draw_sweep,
    draw_trajectories,
    markdown,
    parts,
    plans,
    readings,
    record,
    runtime_base,
    slowdowns,
)
from fringe.report import comparison_page

PAGE = "reproduction"
TITLE = "Our numbers beside the paper's (arXiv 2605.06404)"


@dataclass(frozen=True)
class _Whole:
    """What is reproduced: the base plan, and the studies by name."""

    base: Plan
    studies: Mapping[str, Plan]
    timed: bool


def run_reproduce(
    options: PlanOptions,
    how: HowOptions,
    *,
    imagenet: Path | None,
    models: str | None,
    studies: str | None,
    figures: int,
    dry_run: bool,
    probe_seconds: float,
) -> Exit:
    """Run the studies in their order and write the page. Raises FringeError on options that cannot be meant."""
    whole = _read(options, imagenet, models, studies)
    if dry_run:
        timed = runtime_base(whole.base, ("fringe", "ig", DEFAULT)) if whole.timed else None
        return estimate(list(whole.studies.values()), timed, how, probe_seconds)
    Store(how.out)  # also where there are only run times to keep
    went = run_plans(list(whole.studies.values()), how)
    if went.code not in (Exit.DONE, Exit.SOME_FAILED):
        return _end(went.code, went, how, [], [])
    timings = list[Timing]()
    try:
        with interruptible():
            drawn, reports = _report(whole, went, how, figures)
            pages = _page(whole, how, [], drawn)
            for methods in (("fringe", "ig"), (DEFAULT,)):  # apart: run times of an older folder stay valid
                timings += timings_of(runtime_base(whole.base, methods), how, measuring=whole.timed)
            pages = _page(whole, how, timings, drawn)
    except Interrupted as error:
        complain(f"{error}; what is there so far is in {how.out}: run the same command again for the rest")
        return _end(Exit.RESUMABLE, went, how, timings, [])
    if not how.json:
        for name, paths in (("figure", [path for path in drawn if path.suffix == ".png"]), ("page", pages)):
            for path in paths:
                say(f"{name}: {path}")
    return _end(went.code, went, how, timings, [*pages, *reports, *drawn])


def _end(code: Exit, went: Went, how: HowOptions, timings: Sequence[Timing], paths: Sequence[Path]) -> Exit:
    """The one document of a run that was asked for it, also where it was stopped."""
    if how.json:
        about = {"plans": [account_of(one) for one in went.finished], "timings": record(timings)}
        typer.echo(to_json({**about, "report": [str(path) for path in paths]}), nl=False)
    return code


def _read(options: PlanOptions, imagenet: Path | None, models: str | None, studies: str | None) -> _Whole:
    chosen = [read_choice("--studies", n.strip(), STUDIES) for n in (studies or ",".join(STUDIES)).split(",")]
    overlooked("the studies have metrics of their own", metrics=options.metrics, limit=options.limits)
    options = replace(options, metrics=None, limits=None)
    if imagenet is not None:
        if options.data:
            raise InputError("--imagenet: --data names images, too; give one of them")
        options = replace(options, data=(str(imagenet),))
    if not options.data:
        raise InputError("--imagenet: none given; name the folder of ImageNet's validation images")
    if models is not None:
        if options.models:
            raise InputError("--models: --model names networks, too; give one of them")
        names = [read_choice("--models", name.strip(), MODELS) for name in models.split(",")]
        options = replace(options, models=tuple(f"{name}={SPECS[name]}" for name in names))
    every = tuple(f"{name}={spec}" for name, spec in SPECS.items())
    base = read_plan(options, Defaults("comparison", methods=PAPER, models=every, n=1000, limits=()))
    for arm in base.arms:
        lacking = [name for name in ("fringe", "ig") if name not in arm.methods]
        if lacking or next(iter(arm.methods)) != "fringe":
            raise InputError("--methods: the studies need fringe, first, and ig among the methods")
        if arm.methods.get(DEFAULT, FRInGe()) != FRInGe():
            raise InputError(f"--methods: {DEFAULT} is the label of FRInGe() here; give this method another")
    return _Whole(base, plans(base, chosen), "runtime" in chosen)


def _report(whole: _Whole, went: Went, how: HowOptions, figures: int) -> tuple[list[Path], list[Path]]:
    """The figures of the studies, and the pages of their reports."""
    store, root, device = Store(how.out, create=False), report_folder(how.out, "benchmark"), device_of(how.device)
    resolved = {one.resolved.plan.name: one.resolved for one in went.finished}
    reports, drawn = list[Path](), list[Path]()
    for name in whole.studies:
        if name != "sweep":
            reports += [Path(p) for p in report_plan(how, resolved[name]) if p.endswith(".html")]
        if name == "ablation":
            drawn += draw_trajectories(resolved[name], figures, root / name, device=device)
        elif name == "cap":
            drawn += draw_cap(resolved[name], figures, root / name, device=device)
        elif name == "sweep":
            drawn += draw_sweep(whole.base, read_results(store, name), None, root / name)
    return drawn, reports


def _page(whole: _Whole, how: HowOptions, timings: Sequence[Timing], drawn: Sequence[Path]) -> list[Path]:
    """Our numbers beside the paper's: as a page with the figures that were drawn, as Markdown, and as CSV."""
    store, root = Store(how.out, create=False), report_folder(how.out, "benchmark")
    results = {name: read_results(store, name) for name in _there(store, whole)}
    rows, notes = beside(results, timings), [*_about(whole), *_times(timings)]
    pictures = [(path.stem, path.read_bytes()) for path in drawn if path.suffix == ".png"]
    contents = {
        ".html": comparison_page(TITLE, notes, parts(rows), pictures, readings()),
        ".md": "\n".join(
            [
                *(f"# {TITLE}", "", *(f"- {note}" for note in notes), ""),
                *("## Readings of the paper", "", *(f"- {reading}" for reading in readings()), ""),
                markdown(rows),
            ]
        ),
        ".csv": cells_csv(rows),
    }
    paths = [root / f"{PAGE}{suffix}" for suffix in contents]
    root.mkdir(parents=True, exist_ok=True)
    for path, content in zip(paths, contents.values(), strict=True):
        path.write_text(content, encoding="utf-8")
    return paths


def _there(store: Store, whole: _Whole) -> list[str]:
    """The studies that the folder holds of these images, also from an earlier call."""
    there, base = manifests(store), whole.base
    known = {name: there[name].plan for name in STUDIES if name in there}
    return [name for name, plan in known.items() if (plan["data"], plan["seed"]) == ([*base.data], base.seed)]


def _about(whole: _Whole) -> list[str]:
    """What whoever reads the page must know of it."""
    specs = ", ".join(f"{arm.label} = {arm.model.spec}" for arm in whole.base.arms)
    n, seed = whole.base.n, whole.base.seed
    named = [arm.label for arm in whole.base.arms if arm.label in SPECS]
    others = [arm.label for arm in whole.base.arms if SPECS.get(arm.label) != arm.model.spec]
    return [
        f"Networks: {specs}.",
        *([f"Not the paper's networks, whatever they are called: {', '.join(others)}."] if others else []),
        *([] if named else ["None has the name of a network of the paper (LABEL=SPEC): there is nothing to compare."]),
        f"Images: {n} of {', '.join(whole.base.data)}, drawn by seed {seed}, the paper gives no list.",
        "The column FRInGe() is our default setting, in the rows of fringe only, and timed on its own.",
        "The paper does not give the settings of the other methods; ours are in the reports of the studies.",
        "± is half a 95 % bootstrap interval, for max sensitivity and its median half the interquartile range.",
    ]


def _times(timings: Sequence[Timing]) -> list[str]:
    """Run times here, as ratios: seconds of another machine are no reproduction."""
    return [
        f"{model}, {mode}: {name} takes {ratio:.1f} times as long as IG on {timings[0].device}."
        for name, method in (("FRInGe", "fringe"), ("FRInGe()", DEFAULT))
        for (model, mode), ratio in slowdowns(timings, method, "ig").items()
    ]
