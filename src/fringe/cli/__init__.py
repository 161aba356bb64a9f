"""The commands of ``fringe``.

Nothing here loads torch or matplotlib: the flags of a command, and what it needs, are loaded when it is used.
"""

import io
import signal
import sys
from collections.abc import Callable, Collection
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from fringe.cli._benchmark import benchmark, card, report, status, verify
from fringe.cli._console import FLAGS
from fringe.cli._images import app as serve
from fringe.cli._images import compare, explain
from fringe.cli._listing import methods, metrics, models, presets
from fringe.cli._tune import tune
from fringe.errors import did_you_mean

__all__ = ["app", "main"]

COMMANDS: dict[str, Callable[..., None]] = {
    command.__name__: command
    for command in (
        *(explain, compare, serve, benchmark, status, report),
        *(tune, verify, card),
        *(methods, metrics, presets, models),
    )
}


class _SettingsCommand(TyperCommand):
    """A command that answers a mistyped flag, and a setting of a method or metric that was typed as a flag."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            typed: Any = error
            flag = getattr(error, "option_name", "")  # of NoSuchOption alone
            if flag:
                typed.message, typed.possibilities = f"No such option: {flag}{self._hint(flag)}", None
            raise

    def _hint(self, flag: str) -> str:
        name = flag.lstrip("-").replace("-", "_")
        example = _setting_example(name) if any(parameter.name == "set" for parameter in self.params) else None
        if example is not None:
            label = "" if self.name == "explain" else f"{example}."
            return f". A setting is given by --set, as in --set {label}{name}=VALUE."
        if self.name == "tune":
            from fringe.bench.tune import TuneSpec

            if name in TuneSpec.model_fields:
                return f". A key of the search is given by --set, as in --set {name}=VALUE."
        if any(parameter.name == name and parameter.param_type_name == "argument" for parameter in self.params):
            return f". {name.upper()} is typed without it, as in fringe {self.name} {name.upper()}."
        known = [option.lstrip("-") for parameter in self.params for option in parameter.opts if option[0] == "-"]
        near = did_you_mean(flag.lstrip("-"), known, shown={one: f"--{one}" for one in known}, cutoff=0.6)
        return f"; {near}" if near else ""


def _setting_example(name: str) -> str | None:
    """A method or metric that has a setting of this name."""
    from fringe.attribution import METHODS
    from fringe.metrics import METRICS
    from fringe.settings import settings_of

    kinds = {**METHODS, **METRICS}
    return next((label for label, kind in kinds.items() if name in settings_of(kind)), None)


class _LazyGroup(TyperGroup):
    """Commands that are built when one is used: the flags of some come from a model whose package loads torch."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, stub, rest = super().resolve_command(ctx, args)
        if stub is None or name is None:
            return name, stub, rest
        command = COMMANDS[name]
        single = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
        single.command(name, cls=_SettingsCommand)(getattr(command, "build", lambda: command)())
        built = typer.main.get_command(single)
        FLAGS.clear()
        FLAGS.update({p.name: p.opts[0] for p in built.params if p.opts[0].startswith("-")})
        return name, built, rest


app = typer.Typer(
    name="fringe",
    cls=_LazyGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _stub() -> None:
    """Only listed; the group builds the command itself."""


for _name, _command in COMMANDS.items():
    app.command(_name, help=_command.__doc__)(_stub)


def _show_version(required: bool) -> None:
    if required:
        from fringe import __version__

        typer.echo(f"fringe {__version__}")
        raise typer.Exit()


@app.callback()
def _root(  # pyright: ignore[reportUnusedFunction] - typer calls it
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Show which parts of its input made a classifier give its answer (Fisher-Rao Integrated Gradients, FRInGe)."""


def main() -> None:
    """Run the command line with the arguments of this process."""
    _print_every_letter()
    try:
        app(prog_name="fringe")
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python takes a while to end, and would print a traceback


def _print_every_letter() -> None:
    """Print UTF-8 into files and pipes, and to a terminal escapes for what it lacks: the code page of Windows has no
    place for many file names, and printing them would end the program."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # not where a program has set another one
            encoding = stream.encoding if stream.isatty() else "utf-8"
            stream.reconfigure(encoding=encoding, errors="backslashreplace")
