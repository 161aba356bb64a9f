"""What a run folder holds, and why scores are missing."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fringe.experiments._manifest import Manifest
from fringe.experiments._results import CellStatus, results_of
from fringe.experiments._store import Store
from fringe.experiments._tasks import Metadata, crashes, manifests, orphaned, versions_of

#: Name of the method that a search scores.
TRIAL = "trial"


def read_status(run: Path) -> dict[str, Any]:
    """Describe a run folder.

    Args:
        run: Folder of the run; nothing is written to it.

    Returns:
        JSON data: ``plans`` by name, with the numbers of required, scored, failed and missing scores of each model,
        method and metric under ``cells``; ``set_aside`` tasks that ended their process; ``invalidated`` tasks that no
        plan asks for; ``damaged`` files; and the number of stored ``trials`` of a search.

    Raises:
        InputError: If the folder holds no run.
    """
    store = Store(run, create=False)
    metadata, plans = store.metadata(), manifests(store)
    unused = [asdict(task) for task in orphaned(store, metadata, plans.values())]
    quarantined = crashes(store, metadata)
    return {
        "run": str(run),
        "plans": {name: _plan_status(store, manifest, metadata) for name, manifest in plans.items()},
        "set_aside": [{name: c[name] for name in ("model", "method", "images", "reason")} for c in quarantined],
        "invalidated": [task for task in unused if task["method"] != TRIAL],
        "damaged": {str(path): problem for path, problem in store.damaged().items()},
        "trials": sum(task["method"] == TRIAL for task in unused),
    }


def _plan_status(store: Store, manifest: Manifest, metadata: Metadata) -> dict[str, Any]:
    results = results_of(store, manifest, metadata)
    return {
        "images": len(manifest.images),
        "not_read": list(manifest.missing),
        "cells": [_cell_status(cell) for cell in results.coverage()],
        "failures": results.failures().drop("images").to_dicts(),
        "versions": versions_of(metadata.values(), manifest),
    }


def _cell_status(cell: CellStatus) -> dict[str, Any]:
    counts = {"required": cell.required, "scored": cell.scored, "failed": cell.failed, "missing": cell.missing}
    return {"model": cell.model, "method": cell.method, "metric": cell.metric, **counts}


def describe_failures(
    failures: Sequence[Mapping[str, Any]], crashes: Sequence[Mapping[str, Any]], limit: int
) -> list[str]:
    """Describe failures in lines.

    Args:
        failures: Rows of :meth:`Results.failures`.
        crashes: Tasks that were set aside because they end their process.
        limit: Largest number of lines; a further one counts the others.

    Returns:
        One line per reason, most frequent first, with the affected methods; then the tasks that were set aside.
    """
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for entry in failures:
        groups.setdefault((entry["model"], entry["reason"]), []).append(entry)
    totals = {key: sum(entry["scores"] for entry in group) for key, group in groups.items()}
    lines = [
        f"{_count(totals[key], 'score')} of {', '.join(entry['method'] for entry in groups[key])} on {key[0]}: {key[1]}"
        for key in sorted(groups, key=lambda key: -totals[key])
    ]
    lines += [
        f"set aside: {task['method']} on {task['model']}, {_count(len(task['images']), 'image')}: {task['reason']}"
        for task in crashes
    ]
    more = len(lines) - limit
    return [*lines[:limit], f"and {_count(more, 'other reason')}"] if more > 0 else lines


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"
