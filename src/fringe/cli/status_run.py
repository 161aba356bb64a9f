"""What of a run is there, for people and as JSON."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fringe._text import printable
from fringe.cli.failures import failures, told
from fringe.cli.folder import to_json
from fringe.cli.problems import Exit
from fringe.cli.standings import WIDEST
from fringe.experiments import CellStatus, Manifest, Store, coverage, crashes, manifests, mixed, orphaned, versions_of

SHOWN = 10
"""Reasons of one kind that people are shown."""
TRIAL = "trial"
"""What a search calls the setting that it scores. (Importing the room of the studies loads all that draws.)"""


def run_status(run: Path, *, as_json: bool) -> Exit:
    """Exit code 0 where all is scored, 3 where something failed, 75 where something is missing."""
    store = Store(run, create=False)
    plans = {name: _plan(store, manifest) for name, manifest in manifests(store).items()}
    unasked = [asdict(one) for one in orphaned(store)]
    document = {
        "run": str(run),
        "plans": plans,
        "set_aside": [{name: c[name] for name in ("model", "method", "images", "reason")} for c in crashes(store)],
        "invalidated": [one for one in unasked if one["method"] != TRIAL],
        "damaged": {str(path): problem for path, problem in store.damaged().items()},
        "trials": sum(one["method"] == TRIAL for one in unasked),
    }
    if as_json:
        typer.echo(to_json(document), nl=False)
    else:
        _show(document)
    totals = Counter[str]()
    for plan in plans.values():
        totals.update({name: sum(cell[name] for cell in plan["cells"]) for name in ("failed", "missing")})
    if totals["missing"]:
        return Exit.RESUMABLE
    return Exit.SOME_FAILED if totals["failed"] else Exit.DONE


def _plan(store: Store, manifest: Manifest) -> dict[str, Any]:
    return {
        "images": len(manifest.images),
        "not_read": list(manifest.missing),
        "cells": [_counts(cell) for cell in coverage(store, manifest)],
        "failures": failures(store, manifest),
        "versions": versions_of(store.metadata().values(), manifest),
    }


def _counts(cell: CellStatus) -> dict[str, Any]:
    counts = {"wanted": cell.required, "scored": cell.scored, "failed": cell.failed, "missing": cell.missing}
    return {"model": cell.model, "method": cell.method, "metric": cell.metric, **counts}


def _show(document: Mapping[str, Any]) -> None:
    console = Console(highlight=False)
    if not document["plans"]:
        console.print("no plan yet: nothing was asked for in this folder")
    for name, plan in document["plans"].items():
        console.print(Text.assemble((printable(name), "bold"), f": {plan['images']} images"))
        table = _table(plan["cells"])
        if not console.is_terminal:  # nobody's lines are too long for a file
            console.width = console.measure(table, options=console.options.update(max_width=WIDEST)).maximum
        console.print(table)
        for line in told(plan["failures"], (), SHOWN):
            _line(console, f"  {line}")
        for reason in plan["not_read"][:SHOWN]:
            _line(console, f"  not read: {reason}")
        for line in mixed(plan["versions"]):
            _line(console, f"  results of several versions are mixed: {line}")
    for path, problem in list(document["damaged"].items())[:SHOWN]:
        _line(console, f"damaged: {path} {problem}; the next run sets it aside and makes it again")
    for line in told((), document["set_aside"], SHOWN):
        _line(console, f"{line} (--retry-failed computes it again)")
    reasons = Counter((one["method"], one["model"], one["reason"]) for one in document["invalidated"])
    for (method, model, reason), units in reasons.most_common(SHOWN):
        _line(console, f"no longer asked for: {method} on {model}, {units} units: {reason}")
    if document["trials"]:
        _line(console, f"kept from the trials of a search: {document['trials']} units")


def _line(console: Console, text: str) -> None:
    console.print(Text(printable(text)), soft_wrap=True)


def _table(cells: list[dict[str, Any]]) -> Table:
    """A line a model and method, metrics together."""
    table = Table(box=box.HORIZONTALS, show_edge=False, pad_edge=False, header_style="bold")
    for name in ("model", "method"):
        table.add_column(name, no_wrap=True)
    for name in ("scores", "failed", "missing", "done"):
        table.add_column(name, justify="right", no_wrap=True)
    lines: dict[tuple[str, str], Counter[str]] = {}
    for cell in cells:
        numbers = {name: cell[name] for name in ("wanted", "scored", "failed", "missing")}
        lines.setdefault((cell["model"], cell["method"]), Counter()).update(numbers)
    for (model, method), line in lines.items():
        share = (line["scored"] + line["failed"]) / max(line["wanted"], 1)
        counts = [str(line[name]) if line[name] else "" for name in ("failed", "missing")]
        table.add_row(
            Text(printable(model)),
            Text(printable(method)),
            f"{line['scored']}/{line['wanted']}",
            *counts,
            f"{share:.0%}",
        )
    return table
