"""``fringe benchmark``, ``status`` and ``report``."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fringe._text import to_json
from fringe.cli._console import Exit, exit_on_error, require_consent, resumable, say
from fringe.cli._options import AsJson, Config, RunFolder, with_options
from fringe.errors import InputError

if TYPE_CHECKING:
    from fringe.cli._runs import RunFlags
    from fringe.experiments import Manifest, Plan

SPEC, FLAGS = "fringe.experiments:ExperimentSpec", "fringe.cli._runs:RunFlags"
#: Fields of a specification without a flag.
UNTYPED = ("name", "shard")

Reference = Annotated[
    str | None,
    typer.Option(
        metavar="METHOD",
        help="Reference method for paired differences (default: fringe if present, else the first).",
    ),
]


@with_options(SPEC, FLAGS, skip=UNTYPED)
def benchmark(
    given: dict[str, Any],
    how: dict[str, Any],
    config: Config = None,
    report: Annotated[bool, typer.Option("--report/--no-report", help="Write the report at the end.")] = True,
    reference: Reference = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what is missing, its passes, bytes and time, from a probe.")
    ] = False,
    probe: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="Longest time of a map of the probe.")
    ] = 10.0,
) -> None:
    """Score methods on many images, with confidence intervals. An interrupted run is resumed by the same command.

    By default the eight methods of the paper, all metrics but those that change the model, 100 of the embedded digits,
    and max_sensitivity on 8.

    Exit codes: 0 all done, 1 nothing done, 2 wrong usage, 3 some images failed, 75 stopped early (run it again).
    """
    with resumable("bench"):
        from fringe.cli._runs import RunFlags, read_spec, report_plan, run_plans
        from fringe.experiments import build_plan, run_record, url_of

        plan, flags, written = build_plan(read_spec(given, config)), RunFlags(**how), list[str]()
        for arm in plan.arms:
            if reference is not None and reference not in arm.methods:  # the report would refuse it after hours of work
                raise InputError(f"got {reference!r}; the methods: {', '.join(arm.methods)}", argument="reference")
        if dry_run:
            _show_estimate(plan, flags, probe)
            raise typer.Exit(Exit.DONE)
        summary, url = run_plans([plan], flags), url_of(flags.out)
        if report and url is not None:
            say(f"a report is written on this machine: fringe report {url} --out FOLDER")
        elif report and summary.finished:
            written = report_plan(flags, summary.results[0].resolved, reference=reference)
        if flags.as_json:
            typer.echo(to_json({**run_record(summary.results[0]), "report": written}), nl=False)
    raise typer.Exit(summary.code)


def _show_estimate(plan: "Plan", flags: "RunFlags", seconds: float) -> None:
    """Show what a run would take; nothing is written."""
    from fringe.experiments import describe_seconds, estimate_run

    options = flags.run_options()
    device, batch_size, executor = options.device, options.batch_size, options.executor or "serial"
    known = estimate_run(
        plan, flags.out, executor=executor, device=device, batch_size=batch_size, retry=options.retry, seconds=seconds
    )
    if flags.as_json:
        typer.echo(to_json({"device": device, **known.record()}), nl=False)
        return
    say(f"{known.study}: {known.images} images; missing tasks: {sum(cost.tasks for cost in known.costs)}")
    say("\n".join(f"  {line}" for line in known.lines()))
    if known.metrics:
        say(f"  scores: {', '.join(f'{label} {describe_seconds(spent)}' for label, spent in known.metrics.items())}")
    scores, maps = (f"{size / 1e6:.3g} MB" for size in (known.bytes, known.bytes + known.map_bytes))
    say(f"the store grows by {scores}, with --save-maps by {maps}")
    processes = "one process" if known.workers == 1 else f"{known.workers} processes"
    time, cpu = describe_seconds(known.seconds), describe_seconds(known.cpu_seconds)
    say(f"in all about {time} on {device} in {processes} ({cpu} of processor time), without the report")


def status(run: RunFolder, as_json: AsJson = False) -> None:
    """Show what a run folder holds: scores, failures with their reasons, and results that no plan asks for.

    Exit codes: 0 all scored, 2 no run there, 3 some scores failed, 75 some are not computed yet.
    """
    with exit_on_error("bench"):
        from fringe.cli._tables import show_status
        from fringe.experiments import read_status

        document = read_status(run)
        if as_json:
            typer.echo(to_json(document), nl=False)
        else:
            show_status(document)
    cells = [cell for plan in document["plans"].values() for cell in plan["cells"]]
    if any(cell["missing"] for cell in cells):
        raise typer.Exit(Exit.RESUMABLE)
    raise typer.Exit(Exit.SOME_FAILED if any(cell["failed"] for cell in cells) else Exit.DONE)


@with_options("fringe.cli._runs:ReportOptions")
def report(how: dict[str, Any], run: RunFolder, reference: Reference = None) -> None:
    """Write tables (Markdown, LaTeX, CSV) and one HTML page from the scores of a run.

    Nothing that the folder names is loaded or run: maps are those that were stored, or made by the model of --model.
    """
    with exit_on_error("bench"):
        from fringe.cli._runs import ReportOptions, report_folder
        from fringe.experiments import ExperimentSpec, ModelSource, Store, manifests
        from fringe.models import resolve_device
        from fringe.report import write_report

        store, options = Store(run, create=False), ReportOptions(**how)
        plans = manifests(store)
        if options.plan is not None and options.plan not in plans:
            message = f"got {options.plan!r}; the plans in {str(run)!r}: {', '.join(plans) or 'none'}"
            raise InputError(message, argument="plan")
        names = [options.plan] if options.plan is not None else list(plans)
        if not names:
            raise InputError(f"{str(run)!r} holds no plan yet", argument="run")
        labels = list(dict.fromkeys(label for name in names for label in plans[name].settings))
        specs = ExperimentSpec(model=options.model).model if options.model else {}
        sources = {
            label: ModelSource(spec, options.preprocessing, options.trust_code, output=options.model_output)
            for label, spec in _labelled(specs, labels).items()
        }
        if options.grid:
            _require_consent([plans[name] for name in names], list(sources), yes=options.yes)
        for name in names:
            folder = options.out and options.out / (name if len(names) > 1 else "")
            written = write_report(
                store,
                folder or report_folder(run, name),
                plan=name,
                reference=reference,
                allow_partial=options.allow_partial,
                grid=options.grid,
                device=resolve_device(options.device),
                batch_size=options.batch_size,
                models={label: source for label, source in sources.items() if label in plans[name].settings},
                validity=options.validity,
            )
            say(f"report: {written.page}")


def _require_consent(plans: "Sequence[Manifest]", models: Sequence[str], *, yes: bool) -> None:
    """Ask for consent to a few maps: their settings are those of the folder."""
    from fringe.experiments import planned_work
    from fringe.report import EXAMPLES, recorded_methods

    pairs = [(plan, model) for plan in plans for model in models if model in plan.settings]
    work = [one for plan, model in pairs for one in planned_work(recorded_methods(plan, model), {}, 3 * EXAMPLES)]
    require_consent(work, yes=yes, quiet=False)


def _labelled(specs: Mapping[str, str], labels: Sequence[str]) -> dict[str, str]:
    """The given models by their labels in the run; one without a label is the only one of the run."""
    known = ", ".join(labels)
    if len(labels) != 1 and any(label == spec for label, spec in specs.items()):
        hint = f"say which is meant by LABEL=SPEC; the models: {known}"
        raise InputError("the run has several models", argument="model", hint=hint)
    named = {labels[0] if label == spec else label: spec for label, spec in specs.items()}
    for label in named:
        if label not in labels:
            raise InputError(f"{label!r} is no model of the run; its models: {known}", argument="model")
    return named
