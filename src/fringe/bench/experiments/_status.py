"""What a run folder holds, and why scores are missing."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fringe._text import counted
from fringe.bench.experiments._manifest import Manifest
from fringe.bench.experiments._records import StoredTask
from fringe.bench.experiments._results import results_of
from fringe.bench.experiments._store import Store
from fringe.bench.experiments._tasks import crashes, manifests, orphaned, versions_of

#: Name of the method that a search scores.
TRIAL = "trial"
_COUNTED = ("model", "method", "metric", "required", "scored", "failed", "missing")


def read_status(run: Path) -> dict[str, Any]:
    """Describe a run folder, to which nothing is written, as JSON data. Raises InputError if it holds no run.

    ``plans`` by name, with the numbers of required, scored, failed and missing scores of each model, method and metric
    under ``cells``; ``set_aside`` tasks that ended their process; ``invalidated`` tasks that no plan asks for;
    ``damaged`` files; and the number of stored ``trials`` of a search.
    """
    store = Store(run, create=False)
    tasks, plans = store.tasks(), manifests(store)
    unused = [asdict(task) for task in orphaned(tasks, plans.values())]
    quarantined = crashes(store, tasks)
    return {
        "run": str(run),
        "plans": {name: _plan_status(store, manifest, tasks) for name, manifest in plans.items()},
        "set_aside": [{name: c[name] for name in ("model", "method", "images", "reason")} for c in quarantined],
        "invalidated": [task for task in unused if task["method"] != TRIAL],
        "damaged": store.damaged(),
        "trials": sum(task["method"] == TRIAL for task in unused),
    }


def _plan_status(store: Store, manifest: Manifest, tasks: Sequence[StoredTask]) -> dict[str, Any]:
    results = results_of(store, manifest, tasks)
    return {
        "images": len(manifest.images),
        "not_read": list(manifest.missing),
        "cells": [{name: getattr(cell, name) for name in _COUNTED} for cell in results.coverage()],
        "failures": results.failures().drop("images").to_dicts(),
        "versions": versions_of(tasks, manifest),
    }


def describe_failures(
    failures: Sequence[Mapping[str, Any]], crashes: Sequence[Mapping[str, Any]], limit: int
) -> list[str]:
    """Describe the rows of :meth:`Results.failures` in one line per reason, most frequent first, with the affected
    methods; then ``crashes``, the tasks that end their process. After ``limit`` lines one counts the others."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for entry in failures:
        groups.setdefault((entry["model"], entry["reason"]), []).append(entry)
    totals = {key: sum(entry["scores"] for entry in group) for key, group in groups.items()}
    lines = list[str]()
    for model, reason in sorted(groups, key=lambda key: -totals[key]):
        methods = ", ".join(entry["method"] for entry in groups[model, reason])
        lines.append(f"{counted(totals[model, reason], 'score')} of {methods} on {model}: {reason}")
    lines += [
        f"set aside: {task['method']} on {task['model']}, {counted(len(task['images']), 'image')}: {task['reason']}"
        for task in crashes
    ]
    more = len(lines) - limit
    return [*lines[:limit], f"and {counted(more, 'other reason')}"] if more > 0 else lines
