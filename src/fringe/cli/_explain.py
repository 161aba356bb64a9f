"""``fringe explain``: explain images into a folder."""

import contextlib
import math
from typing import Any

import typer

from fringe._text import printable, to_json
from fringe.cli._console import (
    Exit,
    Progress,
    exit_on_error,
    print_error,
    require_consent,
    say,
    warn,
    work_of,
)
from fringe.cli._options import AsJson, Inputs, Out, Overwrite, Yes, with_options

SHOWN = 40
"""Rows of the table; the rest is in the summary."""

_STYLE = {
    "ok": "green",
    "short": "yellow",
    "coarse": "yellow",
    "stalled": "yellow",
    "diverged": "red",
    "at_reference": "cyan",
    "unchecked": "dim",
}


@with_options("fringe.explanations:ExplainSpec")
def explain(
    given: dict[str, Any],
    inputs: Inputs,
    out: Out,
    overwrite: Overwrite = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Explain images: pictures, tensors and a record of how reliable each map is. An interrupted run is resumed.

    Exit codes: 0 all done, 1 nothing done, 2 wrong usage, 3 some inputs failed, 130 interrupted.
    """
    with exit_on_error():
        raise typer.Exit(_explain(given, inputs, out, overwrite=overwrite, yes=yes, as_json=as_json))


def _explain(given: dict[str, Any], inputs: list[str], out: Any, *, overwrite: bool, yes: bool, as_json: bool) -> Exit:
    from fringe.attribution import preset_names
    from fringe.explanations import ExplainSpec, Explanation, ExplanationRun

    run = ExplanationRun(inputs, out, ExplainSpec(**given), overwrite=overwrite)
    if not run.refs:
        for failure in run.missing:
            print_error(failure.reason)
        return Exit.NOTHING_DONE
    require_consent(work_of({run.method.name: run.method}, {}, len(run.refs)), yes=yes, quiet=as_json)
    run.open()
    architecture = run.loaded.architecture
    if run.spec.preset is None and run.method.name == "fringe" and architecture in preset_names():
        warn(f"hint: the paper tuned a setting for this network; use it with --preset {architecture}")
    try:
        with (
            Progress("images", len(run.refs), quiet=as_json, steps=True) as bars,
            contextlib.closing(run.results(bars.step)) as results,
        ):
            for _ in results:
                bars.advance()
    except KeyboardInterrupt:
        warn(f"interrupted: {len(run.explained)} finished inputs are in {out}; run the same command again to go on")
        return Exit.INTERRUPTED
    failures = [result for result in run.results_so_far if not isinstance(result, Explanation)]
    if as_json:
        typer.echo(to_json(run.document), nl=False)
    else:
        failed_files = [str(error.filename) for error in run.unwritten]
        _show(run.document, out, summary_written=str(out / "summary.json") not in failed_files)
    for failure in failures:
        print_error(failure.reason if failure.source in failure.reason else f"{failure.source}: {failure.reason}")
    for error in run.unwritten:
        print_error(f"cannot write {error.filename!r} ({error.strerror})")
    if not failures and not run.unwritten:
        return Exit.DONE
    return Exit.SOME_FAILED if run.explained else Exit.NOTHING_DONE


def _show(document: dict[str, Any], out: Any, *, summary_written: bool) -> None:
    """Print the table of the first results, and where the files are."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("id", "prediction", "verdict"):
        table.add_column(name, overflow="fold")
    for name in ("p", "residual", "steps", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    entries = document["inputs"]
    for entry in entries[:SHOWN]:
        table.add_row(*_row(entry))
    console = Console(highlight=False)
    console.print(table)
    if len(entries) > SHOWN:
        console.print(f"… and {len(entries) - SHOWN} more, in summary.json")
    reused = document["counts"]["reused"]
    if reused:
        say(f"{reused} results of an earlier run were reused")
    sheet = document["contact_sheet"]
    say(f"\npictures: {out / sheet}" if sheet else "")
    if summary_written:
        say(f"results:  {out / 'summary.json'} and one folder per input")


def _row(entry: dict[str, Any]) -> list[Any]:
    from rich.text import Text

    if "error" in entry:
        return [Text(printable(entry["id"] or entry["source"])), Text(""), Text("failed", "red"), *[Text("")] * 4]
    best, residual, verdict = entry["prediction"], entry["completeness_residual"], entry["verdict"]
    return [
        Text(printable(entry["id"])),
        Text(printable(best["name"] or f"class {best['class']}")),
        Text(verdict, _STYLE.get(verdict, "")),
        Text(f"{best['probability']:.3f}"),
        Text("—" if residual is None or not math.isfinite(residual) else f"{residual:.2%}"),
        Text("" if entry["steps"] is None else str(entry["steps"])),
        Text(f"{entry['seconds']:.2f}"),
    ]
