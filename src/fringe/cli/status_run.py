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

from fringe.benchmark import Store
from fringe.benchmark.coverage import coverage, crashes, manifests, stale
from fringe.benchmark.manifest import Manifest
from fringe.benchmark.results import all_rows
from fringe.cli.folder import to_json
from fringe.cli.problems import Exit

SHOWN = 10
"""Reasons of one kind that people are shown."""


def run_status(run: Path, *, as_json: bool) -> Exit:
    """Exit code 0 where all is scored, 3 where something failed, 75 where something is missing."""
    store = Store(run, create=False)
    plans = {name: _plan(store, manifest) for name, manifest in manifests(store).items()}
    document = {
        "run": str(run),
        "plans": plans,
        "set_aside": [{name: c[name] for name in ("model", "method", "images", "reason")} for c in crashes(store)],
        "invalidated": [asdict(one) for one in stale(store)],
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
    keys = {manifest.setting_key(model, method) for model, methods in manifest.settings.items() for method in methods}
    drawn = {image["digest"] for image in manifest.images}
    rows = (row for row in all_rows(store).values() if row.setting in keys and row.image in drawn)
    reasons = Counter((row.method, row.error or row.status) for row in rows if row.status != "ok")
    return {
        "images": len(manifest.images),
        "not_read": list(manifest.missing),
        "cells": [{**asdict(cell), "missing": cell.missing} for cell in coverage(store, manifest)],
        "failures": [{"method": method, "reason": why, "scores": n} for (method, why), n in reasons.most_common()],
    }


def _show(document: Mapping[str, Any]) -> None:
    console = Console(highlight=False)
    for name, plan in document["plans"].items():
        console.print(f"[bold]{name}[/bold]: {plan['images']} images", highlight=False)
        console.print(_table(plan["cells"]))
        for failure in plan["failures"][:SHOWN]:
            console.print(f"  {failure['scores']} scores of {failure['method']}: {failure['reason']}", markup=False)
        for reason in plan["not_read"][:SHOWN]:
            console.print(f"  not read: {reason}", markup=False)
    for crash in document["set_aside"]:
        line = f"set aside: {crash['method']} on {crash['model']}, {len(crash['images'])} images: {crash['reason']}"
        console.print(f"{line} (--retry-failed computes them again)", markup=False)
    reasons = Counter((one["method"], one["model"], one["reason"]) for one in document["invalidated"])
    for (method, model, reason), units in reasons.most_common(SHOWN):
        console.print(f"no longer asked for: {units} units of {method} on {model}: {reason}", markup=False)


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
        table.add_row(model, method, f"{line['scored']}/{line['wanted']}", *counts, f"{share:.0%}")
    return table
