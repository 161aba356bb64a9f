"""The commands and what they are called."""

from typing import Annotated

import typer

from fringe.cli.benchmark import benchmark, report, status
from fringe.cli.compare import compare
from fringe.cli.explain import explain
from fringe.cli.listings import methods, metrics, models, presets
from fringe.cli.studies import ablate, diagnose, reproduce, runtime, sweep, tune

app = typer.Typer(
    name="fringe",
    help="Fisher-Rao Integrated Gradients: explain what a neural classifier saw.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command()(explain)
app.command()(compare)
app.command()(benchmark)
app.command()(status)
app.command()(report)
app.command()(ablate)
app.command()(diagnose)
app.command()(tune)
app.command()(sweep)
app.command()(runtime)
app.command()(reproduce)
app.command()(methods)
app.command()(metrics)
app.command()(presets)
app.command()(models)


def _show_version(wanted: bool) -> None:
    if wanted:
        from fringe import __version__

        typer.echo(f"fringe {__version__}")
        raise typer.Exit()


@app.callback()
def _root(  # pyright: ignore[reportUnusedFunction] - typer keeps it
    version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show it.")] = False,
) -> None:
    """Fisher-Rao Integrated Gradients: explain what a neural classifier saw."""


def main() -> None:
    """Run the command line with the arguments of this process."""
    app(prog_name="fringe")
