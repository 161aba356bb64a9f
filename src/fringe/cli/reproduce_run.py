"""One run of ``fringe reproduce``: every study of the paper over one store, and a page that sets the numbers beside
each other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import typer

from fringe._errors import InputError
from fringe.benchmark import Plan, Results, Store, read_results
from fringe.benchmark.manifest import resolve
from fringe.cli.plan_flags import HowOptions
from fringe.cli.plan_options import PlanOptions
from fringe.cli.plan_run import device_of, run_plans
from fringe.cli.planning import PAPER, Defaults, read_choice, read_plan
from fringe.cli.problems import Exit, remark
from fringe.cli.report_run import report_plan
from fringe.engines import Interrupted, interruptible
from fringe.studies import draw_cap, draw_sweep, draw_trajectories
from fringe.studies.probe import Cost, probe
from fringe.studies.published import MODELS
from fringe.studies.reproduction import SPECS, STUDIES, beside, markdown, plans, runtime_base, to_csv
from fringe.studies.runtime import Timing, measure, slowdowns

PAGE = "reproduction"


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
        return _estimate(whole, how, probe_seconds)
    went = run_plans(list(whole.studies.values()), how)
    if went.code not in (Exit.DONE, Exit.SOME_FAILED):
        return went.code
    try:
        with interruptible():
            timings = measure(resolve(runtime_base(whole.base)), device=device_of(how.device)) if whole.timed else []
            written = _write(whole, how, timings, figures)
    except Interrupted as error:
        remark(f"{error}; the scores are in {how.out}: run the same command again for what is missing of the reports")
        return Exit.RESUMABLE
    for path in written:
        typer.echo(f"{'page' if path.stem == PAGE else 'written'}: {path}")
    return went.code


def _read(options: PlanOptions, imagenet: Path | None, models: str | None, studies: str | None) -> _Whole:
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
    chosen = [read_choice("--studies", n.strip(), STUDIES) for n in (studies or ",".join(STUDIES)).split(",")]
    return _Whole(base, plans(base, chosen), "runtime" in chosen)


def _estimate(whole: _Whole, how: HowOptions, seconds: float) -> Exit:
    """Say what there is to do, how many passes it takes, and how long here. Nothing is kept."""
    hours = 0.0
    for name, plan in whole.studies.items():
        resolved = resolve(plan)
        typer.echo(f"{name}: {len(resolved.manifest.images)} images")
        for arm in plan.arms:
            costs = probe(resolved, arm.label, seconds=seconds, device=device_of(how.device))
            for method, cost in costs.items():
                if cost.forward or cost.vjp:
                    typer.echo(f"  {_line(arm.label, method, cost, plan.n)}")
            hours += plan.n * sum(cost.seconds + cost.scores for cost in costs.values()) / 3600
    typer.echo(
        f"in all about {hours:.2g} hours one after the other on {device_of(how.device)}, what is kept not counted"
    )
    return Exit.DONE


def _line(model: str, method: str, cost: Cost, n: int) -> str:
    passes = f"{cost.forward * n:.3g} F + {cost.jvp * n:.3g} JVP + {cost.vjp * n:.3g} VJP"
    rough = "" if cost.share == 1 else f" (told from {cost.share:.0%} of a map)"
    return f"{model} {method}: {passes}, {n * (cost.seconds + cost.scores) / 3600:.2g} h{rough}"


def _write(whole: _Whole, how: HowOptions, timings: Sequence[Timing], figures: int) -> list[Path]:
    """The report of each study, its figures, and the page."""
    store, root = Store(how.out, create=False), how.out / "report"
    results: dict[str, Results] = {name: read_results(store, name) for name in whole.studies}
    written: list[Path] = []
    for name, plan in whole.studies.items():
        out = root / name
        if name in ("comparison", "ablation", "cap", "max_sensitivity"):
            written += [Path(path) for path in report_plan(how, name, reference=None) if path.endswith(".html")]
        if name == "ablation":
            written += draw_trajectories(resolve(plan), figures, out)
        elif name == "cap":
            written += draw_cap(resolve(plan), figures, out)
        elif name == "sweep":
            written += draw_sweep(whole.base, results[name], None, out)
    rows = beside(results, timings)
    text = ["# Our numbers beside the paper's (arXiv 2605.06404)", "", *_times(timings), markdown(rows)]
    for suffix, content in ((".md", "\n".join(text)), (".csv", to_csv(rows))):
        path = root / f"{PAGE}{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
        written.append(path)
    return written


def _times(timings: Sequence[Timing]) -> list[str]:
    """Run times here, as ratios: seconds of another machine are no reproduction."""
    found = slowdowns(timings, "fringe", "ig")
    lines = [
        f"- {model}, {mode}: FRInGe takes {ratio:.1f} times as long as IG" for (model, mode), ratio in found.items()
    ]
    return ["## Run time", "", *lines, ""] if lines else []
