"""What a reproduction of the paper lacks, by a probe; nothing is stored."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from fringe.bench.experiments import (
    KeySet,
    Plan,
    ProbeOptions,
    Resolved,
    RunEstimate,
    Store,
    Task,
    committed_keys,
    estimate_tasks,
    pending_tasks,
    required_keys,
    resolve,
)
from fringe.bench.paper._studies import DEFAULT, STUDIES, study_plans, timed_plan


def estimate_reproduction(
    base: Plan,
    out: Path,
    *,
    studies: Sequence[str] = STUDIES,
    device: str = "cpu",
    seconds: float = 2.0,
    retry: bool = False,
) -> Iterator[RunEstimate]:
    """Estimate what a reproduction of the plan of :func:`reproduction_plan` lacks in a folder, which may not exist yet,
    for each study and model: maps, their passes, and the time one after the other.

    What an earlier study computes is not missing in a later one; with ``retry`` failed scores are. ``seconds`` is the
    longest time of a map of the probe.
    """
    store, options = Store.existing(out), ProbeOptions(device, seconds=seconds)
    have = KeySet() if store is None else committed_keys(store)
    for plan in study_plans(base, studies).values():
        resolved = resolve(plan)
        tasks = pending_tasks(resolved.manifest, have, plan.shard, force=retry)
        for setting, metric, image in required_keys(resolved.manifest):
            have.add(setting, (metric,), (image,))
        yield from _by_model(resolved, tasks, options, store)
    if "runtime" in studies:  # each map is made twice, and not scored
        resolved = resolve(timed_plan(base, ("fringe", "ig", DEFAULT)))
        once = [replace(task, metrics=(), metric_keys=()) for task in pending_tasks(resolved.manifest, (), 1)]
        named = {(model.label, name) for model in resolved.plan.models for name in model.methods}
        yield from _by_model(resolved, [task for task in 2 * once if (task.model, task.method) in named], options)


def _by_model(
    resolved: Resolved, tasks: Sequence[Task], options: ProbeOptions, store: Store | None = None
) -> Iterator[RunEstimate]:
    for model in resolved.plan.models:
        one = replace(resolved, plan=replace(resolved.plan, models=(model,)))
        yield estimate_tasks(one, [task for task in tasks if task.model == model.label], options, store)
