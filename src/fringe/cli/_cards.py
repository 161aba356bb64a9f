"""``fringe verify`` and ``fringe card``: what a method gets right and wrong, measured on this machine."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fringe.cli._console import Exit, exit_on_error, say, warn
from fringe.cli._options import AsJson, with_options
from fringe.errors import InputError

if TYPE_CHECKING:
    from fringe.cards import Card

Folder = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for card.html, card.md and card.json.")]
OUT = Path("out/card")
#: Flags of what is measured.
OPTIONS = "fringe.cli._runs:CardOptions"


@with_options(OPTIONS)
def verify(
    given: dict[str, Any],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A method, module:NAME or file.py:NAME.")],
    out: Folder = OUT,
    allow: Annotated[str, typer.Option(metavar="NAMES", help="Checks that may fail, with commas.")] = "",
    as_json: AsJson = False,
) -> None:
    """Try an attribution method, also your own, on theorems, scenes with a known answer and blind maps; write its card.

    TARGET is a method of "fringe methods" (ig, captum:grad_cam), or NAME in a module or a file: a method class, a class
    of Captum, a function of Quantus, or any function (model, inputs, target) that returns maps. Naming a module or a
    file runs it, which takes --trust-code. Everything happens offline, on the digits that come with the library.

    Exit codes: 0 all checks hold, 1 a theorem or a part of the contract of methods fails, 2 wrong usage.
    """
    with exit_on_error("bench"):
        card = _measure(target, given, quiet=as_json)
        allowed = _names(allow)
        unknown = sorted(set(allowed) - {check.name for check in card.checks})
        if unknown:
            known = ", ".join(check.name for check in card.checks)
            raise InputError(f"no check is called {', '.join(unknown)}", argument="allow", hint=f"known: {known}")
        _show(card, out, _command("verify", target, given), as_json=as_json)
        failed = card.failed_checks(allowed)
        for check in failed:
            warn(f"check {check.name} fails: {check.detail}")
    raise typer.Exit(Exit.CHECK_FAILED if failed else Exit.DONE)


@with_options(OPTIONS)
def card(
    given: dict[str, Any],
    method: Annotated[str, typer.Argument(metavar="METHOD", help="A method; with --from, its label in the run.")],
    out: Folder = OUT,
    run: Annotated[Path | None, typer.Option("--from", metavar="RUN", help="Run folder of a benchmark.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write the card of a method: what it assumes, costs, gets right and gets wrong, with intervals and n.

    The numbers are measured as by "fringe verify", or are those of a benchmark with --from. Naming a module or a file
    runs it, which takes --trust-code.
    """
    with exit_on_error("bench"):
        if run is None:
            made = _measure(method, given, quiet=as_json)
        else:
            from fringe.cards import card_of_run

            if given:
                flags = ", ".join(given)
                raise InputError(f"got {flags}, but a run has its own images", argument="run", hint="leave them out")
            made = card_of_run(run, method)
        _show(made, out, _command("card", method, {**given, **({"from": run} if run else {})}), as_json=as_json)


def _command(name: str, target: str, given: Mapping[str, Any]) -> str:
    flags = {f"--{key.replace('_', '-')}": value for key, value in given.items() if value is not False}
    parts = [part for flag, value in flags.items() for part in ((flag,) if value is True else (flag, str(value)))]
    return shlex.join(["fringe", name, target, *parts])


def _measure(target: str, given: Mapping[str, Any], *, quiet: bool) -> "Card":
    from fringe.cards import SCENES_OF_CARDS
    from fringe.cards import verify as measure
    from fringe.cli._runs import CardOptions

    def progress(name: str, done: int, total: int) -> None:
        if not quiet:
            warn(f"[{done + 1}/{total}] {name}")

    options = CardOptions(**given)
    chosen = SCENES_OF_CARDS if options.scenes is None else _names(options.scenes)
    trust = options.trust_code
    return measure(target, n=options.n, seed=options.seed, scenes=chosen, trust_code=trust, progress=progress)


def _show(card: "Card", out: Path, command: str, *, as_json: bool) -> None:
    import dataclasses

    from fringe._text import plain, to_json
    from fringe.cards import write_card
    from fringe.cli._tables import show_card

    files = write_card(card, out, command)
    if as_json:
        typer.echo(to_json(plain(dataclasses.asdict(card))), nl=False)
        return
    show_card(card)
    say(f"\ncard: {files[0]}, {files[1].name}, {files[2].name}")


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
