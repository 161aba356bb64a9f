"""What a run folder holds: scores by model and method, failures with their reasons, and what no plan asks for."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fringe.attribution import Attributor
from fringe.experiments._jobs import State
from fringe.experiments._manifest import Manifest
from fringe.experiments._plan import Plan
from fringe.experiments._results import CellStatus, coverage, results_of
from fringe.experiments._run import RunResult
from fringe.experiments._store import Store
from fringe.experiments._tasks import committed_keys, crashes, manifests, orphaned, required_keys, versions_of
from fringe.metrics import Metric

#: States of tasks by their name in a record.
_STATES: Mapping[str, State] = {"done": "done", "there": "cached", "crashed": "crashed"}
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
    unused = [asdict(task) for task in orphaned(store)]
    return {
        "run": str(run),
        "plans": {name: _plan_status(store, manifest) for name, manifest in manifests(store).items()},
        "set_aside": [{name: c[name] for name in ("model", "method", "images", "reason")} for c in crashes(store)],
        "invalidated": [task for task in unused if task["method"] != TRIAL],
        "damaged": {str(path): problem for path, problem in store.damaged().items()},
        "trials": sum(task["method"] == TRIAL for task in unused),
    }


def _plan_status(store: Store, manifest: Manifest) -> dict[str, Any]:
    return {
        "images": len(manifest.images),
        "not_read": list(manifest.missing),
        "cells": [_cell_status(cell) for cell in coverage(store, manifest)],
        "failures": count_failures(store, manifest),
        "versions": versions_of(store.metadata().values(), manifest),
    }


def _cell_status(cell: CellStatus) -> dict[str, Any]:
    counts = {"wanted": cell.required, "scored": cell.scored, "failed": cell.failed, "missing": cell.missing}
    return {"model": cell.model, "method": cell.method, "metric": cell.metric, **counts}


def count_failures(store: Store, manifest: Manifest) -> list[dict[str, Any]]:
    """Count the failed scores of a plan.

    Returns:
        One entry per model, method and reason, in the order of the plan, with the number of ``scores``.
    """
    return results_of(store, manifest).failures().drop("images").to_dicts()


def describe_failures(
    failures: Sequence[Mapping[str, Any]], crashes: Sequence[Mapping[str, Any]], limit: int
) -> list[str]:
    """Describe failures in lines.

    Args:
        failures: Entries of :func:`count_failures`.
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


def run_record(result: RunResult) -> dict[str, Any]:
    """Describe how a run of a plan ended, as JSON data."""
    manifest = result.resolved.manifest
    return {
        "plan": manifest.name,
        "images": len(manifest.images),
        "missing": list(manifest.missing),
        "units": {name: result.log.count(state) for name, state in _STATES.items()},
        "left": result.left,
        "failed": result.log.failed,
        "failed_before": result.failed_before,
        "set_aside": len(result.set_aside),
        "stopped": result.stopped,
    }


def has_scores(result: RunResult, store: Store) -> bool:
    """Whether any score of the plan of a run was computed, now or before."""
    manifest = result.resolved.manifest
    if not result.partial or not manifest.images:
        return bool(manifest.images)
    scored = committed_keys(store, failures=False)
    return any(key in scored for *_, key in required_keys(manifest))


def planned_work(
    methods: Mapping[str, Attributor],
    metrics: Mapping[str, Metric],
    images: int,
    limits: Mapping[str, int] | None = None,
) -> list[tuple[str, float, float]]:
    """List what maps and scores would take, as far as the settings tell.

    Args:
        methods: Methods by label.
        metrics: Metrics by label.
        images: Number of images.
        limits: Metrics that are computed on the first images only.

    Returns:
        What is computed, the forward and backward passes of one, and how many.
    """
    work: list[tuple[str, float, float]] = []
    for label, metric in metrics.items():
        samples = getattr(metric, "samples", 0)  # forward passes of a score, or complete maps
        count = min((limits or {}).get(label, images), images)
        work.append((f"the score {label}", samples, count * len(methods)))
        if metric.requires_explainer:
            work += [(f"a map by {name}", m.planned_passes or 0.0, samples * count) for name, m in methods.items()]
    return work + [(f"a map by {name}", m.planned_passes or 0.0, images) for name, m in methods.items()]


def planned_work_of(plans: Iterable[Plan]) -> list[tuple[str, float, float]]:
    """As :func:`planned_work`, for all models of plans."""
    return [work for p in plans for arm in p.arms for work in planned_work(arm.methods, p.metrics, p.n, p.limits)]


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"
