"""``fringe verify`` and ``fringe card``: what a method gets right and wrong, measured on this machine."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fringe.cli._console import Exit, exit_on_error, say, warn
from fringe.cli._options import AsJson
from fringe.errors import InputError

if TYPE_CHECKING:
    from fringe.cards import Card

Count = Annotated[int, typer.Option("--n", min=1, metavar="N", help="Examples of each scene, and digits.")]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Draws the examples, and keys all randomness.")]
Scenes = Annotated[
    str | None, typer.Option("--scenes", metavar="NAMES", help="Scenes, with commas; none: all offline.")
]
Trust = Annotated[
    bool, typer.Option("--trust-code", help="Run the module or file that TARGET names: do so only if you trust it.")
]
Folder = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for card.html, card.md and card.json.")]
OUT = Path("out/card")


def verify(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A method, module:NAME or file.py:NAME.")],
    out: Folder = OUT,
    n: Count = 24,
    seed: Seed = 0,
    scenes: Scenes = None,
    allow: Annotated[str, typer.Option(metavar="NAMES", help="Checks that may fail, with commas.")] = "",
    trust_code: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Try an attribution method, also your own, on theorems, scenes with a known answer and blind maps; write its card.

    TARGET is a method of "fringe methods" (ig, captum:grad_cam), or NAME in a module or a file: a method class, a class
    of Captum, a function of Quantus, or any function (model, inputs, target) that returns maps. Naming a module or a
    file runs it, which takes --trust-code. Everything happens offline, on the digits that come with the library.

    Exit codes: 0 all checks hold, 1 a theorem or a part of the contract of methods fails, 2 wrong usage.
    """
    with exit_on_error("bench"):
        card = _measure(target, n, seed, scenes, trust_code=trust_code, quiet=as_json)
        allowed = _names(allow)
        unknown = sorted(set(allowed) - {check.name for check in card.checks})
        if unknown:
            known = ", ".join(check.name for check in card.checks)
            raise InputError(f"no check is called {', '.join(unknown)}", argument="allow", hint=f"known: {known}")
        command = f"fringe verify {target} --n {n} --seed {seed}{' --trust-code' if trust_code else ''}"
        _show(card, out, command, as_json=as_json)
        failed = card.failed_checks(allowed)
        for check in failed:
            warn(f"check {check.name} fails: {check.detail}")
    raise typer.Exit(Exit.CHECK_FAILED if failed else Exit.DONE)


def card(
    method: Annotated[str, typer.Argument(metavar="METHOD", help="A method; with --from, its label in the run.")],
    out: Folder = OUT,
    run: Annotated[Path | None, typer.Option("--from", metavar="RUN", help="Run folder of a benchmark.")] = None,
    n: Count = 24,
    seed: Seed = 0,
    scenes: Scenes = None,
    trust_code: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Write the card of a method: what it assumes, costs, gets right and gets wrong, with intervals and n.

    The numbers are measured as by "fringe verify", or are those of a benchmark with --from.
    """
    with exit_on_error("bench"):
        if run is None:
            made = _measure(method, n, seed, scenes, trust_code=trust_code, quiet=as_json)
            command = f"fringe card {method} --n {n} --seed {seed}"
        else:
            from fringe.cards import card_of_run

            made, command = card_of_run(run, method), f"fringe card {method} --from {run}"
        _show(made, out, command, as_json=as_json)


def _measure(target: str, n: int, seed: int, scenes: str | None, *, trust_code: bool, quiet: bool) -> "Card":
    from fringe.cards import SCENES_OF_CARDS
    from fringe.cards import verify as measure

    def progress(name: str, done: int, total: int) -> None:
        if not quiet:
            warn(f"[{done + 1}/{total}] {name}")

    chosen = SCENES_OF_CARDS if scenes is None else _names(scenes)
    return measure(target, n=n, seed=seed, scenes=chosen, trust_code=trust_code, progress=progress)


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
