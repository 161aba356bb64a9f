"""``fringe benchmark``, ``status``, ``report``, ``verify`` and ``card``: methods scored on many images."""

import dataclasses
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fringe._files.disk import write_files
from fringe._strings.formats import plain, to_json
from fringe._strings.names import read_list
from fringe.cli._console import Exit, exit_on_error, resumable, say, show, typed, warn
from fringe.cli._options import AsJson, RunFolder, with_options
from fringe.errors import InputError

if TYPE_CHECKING:
    from fringe.bench.cards import Card

SPEC, FLAGS = "fringe.bench.experiments:ExperimentSpec", "fringe.cli._runs:RunFlags"
#: Fields of a specification without a flag.
UNTYPED = ("name", "sample", "shard")


@with_options(SPEC, FLAGS, "fringe.cli._runs:BenchmarkOptions", skip=UNTYPED)
def benchmark(given: dict[str, Any], how: dict[str, Any], what: dict[str, Any]) -> None:
    """Score methods on many images, with confidence intervals. An interrupted run is resumed by the same command.

    By default: the eight methods of the paper, the first eleven of "fringe metrics" (curves twice: with a blur and with
    zeros), and 100 of the embedded digits (max_sensitivity on 8 of them).

    Exit codes: 0 all done, 1 nothing done, 2 wrong usage, 3 some images failed, 75 stopped early (run it again).
    """
    with resumable("bench"):
        from fringe.bench.experiments import build_plan, estimate_run
        from fringe.cli._runs import BenchmarkOptions, RunFlags, run_and_report

        flags, options = RunFlags(**how).resolve(), BenchmarkOptions(**what)
        plan = build_plan(flags.spec(given))
        for model in plan.models:
            if options.reference not in (None, *model.methods):  # the report would refuse it after hours of work
                message = f"got {options.reference!r}; the methods: {', '.join(model.methods)}"
                raise InputError(message, argument="reference")
        if not options.dry_run:
            raise typer.Exit(run_and_report(plan, flags, report=options.report, reference=options.reference))
        same = flags.model_dump(include={"device", "batch_size", "retry"})
        same |= {"seconds": options.probe, "progress": not flags.as_json}
        known = estimate_run(plan, flags.out, executor=flags.executor, **same)
        flags.print_json(dataclasses.asdict(known))
        flags.print_text(typed(known.describe()))


def status(run: RunFolder, as_json: AsJson = False) -> None:
    """Show how far a run is.

    Scores, failures with their reasons, and results that no plan asks for.

    Exit codes: 0 all scored, 2 no run there, 3 some scores failed, 75 some are not computed yet, or a part of the run
    is damaged or gone.
    """
    with exit_on_error("bench"):
        from fringe.bench.experiments import read_status
        from fringe.bench.report import describe_status

        document = read_status(run)
        if as_json:
            typer.echo(to_json(document), nl=False)
        else:
            show(describe_status(document))
    cells = [cell for plan in document["plans"].values() for cell in plan["cells"]]
    lost = document["damaged"] or any(plan["lost_maps"] for plan in document["plans"].values())
    if lost or not document["plans"] or any(cell["missing"] for cell in cells):
        raise typer.Exit(Exit.RESUMABLE)
    raise typer.Exit(Exit.SOME_FAILED if any(cell["failed"] for cell in cells) else Exit.DONE)


@with_options("fringe.bench.report:ReportSpec")
def report(
    given: dict[str, Any],
    run: RunFolder,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the report. Default: RUN/report, or a folder in it.")
    ] = None,
) -> None:
    """Write tables and one HTML page from the scores of a run.

    The tables are in Markdown, LaTeX and CSV.

    No model or code that the folder names is loaded, and nothing is computed. Maps are those that the run stored.

    Exit codes: 0 written, 1 a file cannot be written, 2 wrong usage, 130 interrupted.
    """
    with exit_on_error("bench"):
        from fringe.bench.experiments import Store, manifests
        from fringe.bench.report import ReportSpec, write_report

        ReportSpec(**given)  # a wrong value is refused before the run is read
        only = given.pop("plan", None)
        store = Store(run, create=False)
        plans = list(manifests(store)) if only is None else [only]
        if not plans:
            raise InputError(f"{str(store.root)!r} holds no plan yet", argument="run")
        for name in plans:
            folder = out / name if out is not None and len(plans) > 1 else out
            say(f"report: {write_report(store, folder, plan=name, **given).page}")


CARD = "fringe.cli._runs:CardOptions"
Folder = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for card.html, card.md and card.json.")]
OUT = Path("out/card")


@with_options(CARD)
def verify(
    given: dict[str, Any],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A method, module:NAME or file.py:NAME.")],
    out: Folder = OUT,
    allow: Annotated[str, typer.Option(metavar="NAMES", help="Checks that may fail, with commas.")] = "",
    as_json: AsJson = False,
) -> None:
    """Try a method, also your own, on tests with a known answer.

    The tests are theorems and scenes. In a scene it is known which pixels the model uses. Scores stand beside those of
    blind maps, which do not depend on the model, and of the method's own map made sharper or moved to the centre. The
    result is a card.

    TARGET is a method of "fringe methods" (ig, gradcam), or NAME in a module or a file: a method class, a class
    of Captum, a function of Quantus, or any function (model, inputs, target) that returns maps. A module or
    file that you name is run; this needs --trust-code. The tests use the digits of the library and no network.

    Exit codes: 0 all checks hold, 1 a theorem or a part of the contract of methods fails, 2 wrong usage,
    130 interrupted.
    """
    with exit_on_error("bench"):
        write_files(out, {})
        card = _measure(target, given, quiet=as_json)
        _show(card, out, ["verify", target], given, as_json=as_json)
        failed = card.failures(read_list(allow))
        for clause in failed:
            warn(clause)
    raise typer.Exit(Exit.CHECK_FAILED if failed else Exit.DONE)


@with_options(CARD)
def card(
    given: dict[str, Any],
    method: Annotated[str, typer.Argument(metavar="METHOD", help="A method; with --from, its label in the run.")],
    out: Folder = OUT,
    run: Annotated[Path | None, typer.Option("--from", metavar="RUN", help="Run folder of a benchmark.")] = None,
    plan: Annotated[str | None, typer.Option(metavar="NAME", help="Name of its plan, if it has several.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write a method's card: what it costs, gets right, gets wrong.

    Every number has its interval and n.

    The numbers are measured as by "fringe verify". With --from they are those of a benchmark. A module or file that you
    name is run; this needs --trust-code.

    Exit codes: 0 written, 2 wrong usage, 130 interrupted.
    """
    with exit_on_error("bench"):
        write_files(out, {})
        if plan is not None and run is None:
            raise InputError(f"got {plan!r}, but only a run has plans", argument="plan", hint="add --from RUN")
        if run is None:
            made = _measure(method, given, quiet=as_json)
        else:
            from fringe.bench.cards import card_of_run

            if given:
                text = f"got {', '.join(given)}, but a run has its own images"
                raise InputError(text, argument="run", hint="leave them out")
            made = card_of_run(run, method, plan)
        source = {name: value for name, value in (("from", run), ("plan", plan)) if value is not None}
        _show(made, out, ["card", method], {**given, **source}, as_json=as_json)


def _measure(target: str, given: Mapping[str, Any], *, quiet: bool) -> "Card":
    from fringe.bench import cards
    from fringe.cli._runs import CardOptions

    def progress(name: str, done: int, total: int) -> None:
        if not quiet:
            warn(f"[{done + 1}/{total}] {name}")

    same = CardOptions(**given).model_dump()
    same["scenes"] = cards.SCENES_OF_CARDS if same["scenes"] is None else read_list(same["scenes"])
    return cards.verify(target, **same, progress=progress)


def _show(card: "Card", out: Path, words: list[str], given: Mapping[str, Any], *, as_json: bool) -> None:
    """Show a card, then write it with the command that made it: what was measured is not lost where it cannot be
    written."""
    from fringe.bench.cards import describe_card, write_card

    for key, value in given.items():
        flag = f"--{key.replace('_', '-')}"
        words += [] if value is False else [flag] if value is True else [flag, str(value)]
    if as_json:
        typer.echo(to_json(plain(dataclasses.asdict(card))), nl=False)
    else:
        show(describe_card(card))
    files = write_card(card, out, shlex.join(["fringe", *words]))
    if not as_json:
        say(f"\ncard: {', '.join(map(str, files[:3]))}")
