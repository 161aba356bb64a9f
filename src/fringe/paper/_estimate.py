"""What plans would cost, extrapolated from one image and a little time; nothing is stored."""

import contextlib
import os
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fringe.errors import FringeError
from fringe.experiments import (
    CONTROLS,
    MARKER,
    Candidate,
    KeySet,
    Plan,
    Resolved,
    Store,
    TaskRunner,
    committed_keys,
    make_maps,
    pending_tasks,
    required_keys,
    resolve,
)
from fringe.metrics import EvaluationContext, evaluate
from fringe.paper._studies import DEFAULT, STUDIES, study_plans, timed_plan
from fringe.paper._timing import Stop, synchronize

#: Methods of a model above which an estimate shows them together.
MANY = 12


@dataclass(frozen=True)
class MapCost:
    """Seconds of one map and of its scores, the passes of the map, and the fraction of it that was computed."""

    seconds: float
    scores: float
    forward: float
    jvp: float
    vjp: float
    fraction: float


@dataclass(frozen=True)
class MethodCost:
    """The cost of a method of a study on a model.

    Attributes:
        study: Name of the plan.
        model: Label of the model.
        method: Label of the method.
        maps: Maps that are missing.
        forward: Forward passes of these maps.
        jvp: Their Jacobian-vector products.
        vjp: Their vector-Jacobian products.
        hours: Time of the maps and their scores.
        fraction: Fraction of a map that was computed; the rest is extrapolated.
    """

    study: str
    model: str
    method: str
    maps: int
    forward: float
    jvp: float
    vjp: float
    hours: float
    fraction: float

    def record(self) -> dict[str, Any]:
        """Return the cost as JSON data."""
        record = asdict(self)
        fraction = record.pop("fraction")
        return {**record, "told_from": fraction}


@dataclass(frozen=True)
class ModelEstimate:
    """The costs of the methods of one model of a plan.

    Attributes:
        study: Name of the plan.
        images: Images of the plan.
        model: Label of the model.
        costs: One entry per method with missing maps.
    """

    study: str
    images: int
    model: str
    costs: tuple[MethodCost, ...]

    def lines(self) -> list[str]:
        """Return one line per method, or one for all if there are many; controls take no pass and have none."""
        shown = [cost for cost in self.costs if cost.forward or cost.vjp]
        if not shown:
            return [f"{self.model}: nothing left to do"]
        if len(shown) <= MANY:
            return [f"{self.model} {cost.method}: {_describe([cost])}" for cost in shown]
        return [f"{self.model}, {len(shown)} settings: {_describe(shown)}"]


def _describe(costs: Sequence[MethodCost]) -> str:
    forward, jvp, vjp, hours = (sum(getattr(c, name) for c in costs) for name in ("forward", "jvp", "vjp", "hours"))
    fraction = min(cost.fraction for cost in costs)
    rough = "" if fraction == 1 else f" (from {fraction:.0%} of a map)"
    maps = sum(cost.maps for cost in costs)
    return f"{maps} maps, {forward:.3g} F + {jvp:.3g} JVP + {vjp:.3g} VJP, {hours:.2g} h{rough}"


def estimate_reproduction(
    base: Plan,
    out: Path,
    *,
    studies: Sequence[str] = STUDIES,
    device: str = "cpu",
    seconds: float = 2.0,
    retry: bool = False,
) -> Iterator[ModelEstimate]:
    """Estimate what a reproduction lacks in a folder: maps, their passes, and the time one after the other.

    Args:
        base: The plan of :func:`reproduction_plan`.
        out: Run folder; it may not exist yet.
        studies: Names of the studies; what an earlier one computes is not missing in a later one.
        device: Device of the probe.
        seconds: Longest time of a map of the probe.
        retry: Count failed scores as missing.

    Yields:
        One estimate per study and model.
    """
    have = committed_keys(Store(out, create=False)) if os.path.isfile(out / MARKER) else KeySet()
    for plan in study_plans(base, studies).values():
        resolved = resolve(plan)
        tasks = pending_tasks(resolved.manifest, have, plan.shard, force=retry)
        for setting, metric, image in (key for *_, key in required_keys(resolved.manifest)):
            have.add(setting, (metric,), (image,))
        maps = Counter[tuple[str, str]]()
        for task in tasks:
            maps[task.model, task.method] += len(task.images)
        yield from _estimates(resolved, maps, seconds, device)
    if "runtime" in studies:  # each map is made twice, and not scored
        timed = timed_plan(base, ("fringe", "ig", DEFAULT))
        resolved = resolve(timed)
        twice = {(arm.label, name): 2 * len(resolved.manifest.images) for arm in timed.arms for name in arm.methods}
        yield from _estimates(resolved, twice, seconds, device, scored=False)


def estimate_cost(
    resolved: Resolved, model: str, methods: Collection[str] | None = None, *, seconds: float = 5.0, device: str = "cpu"
) -> dict[str, MapCost]:
    """Estimate what a map of each method (and control) costs, from the plan's first image that can be explained.

    A map is stopped after ``seconds``, and its cost extrapolated from the steps that were done. Metrics that ask for
    further maps are counted as those maps. Raises FringeError if no image can be explained, or a method cannot be used.
    """
    plan = resolved.plan
    arm = next(arm for arm in plan.arms if arm.label == model)
    context = _first_context(resolved, model, device)
    device_used = context.problem.inputs.device
    with context.problem.model.session(device_used):
        values = CONTROLS["edge"](context.problem)
        plain = {label: metric for label, metric in plan.metrics.items() if not metric.requires_explainer}
        began = time.perf_counter()
        evaluate(context, values, plain)
        synchronize(device_used)
        scored = time.perf_counter() - began
        further = sum(
            getattr(metric, "samples", 10) * plan.limit(label) / plan.n
            for label, metric in plan.metrics.items()
            if metric.requires_explainer
        )
        costs = {
            candidate.label: _map_cost(candidate, context, seconds)
            for candidate in plan.candidates(arm)
            if methods is None or candidate.label in methods
        }
    return {label: replace(cost, scores=scored + further * cost.seconds) for label, cost in costs.items()}


def _estimates(
    resolved: Resolved, maps: Mapping[tuple[str, str], int], seconds: float, device: str, *, scored: bool = True
) -> Iterator[ModelEstimate]:
    study, images = resolved.plan.name, len(resolved.manifest.images)
    for arm in resolved.plan.arms:
        missing = {method: n for (model, method), n in maps.items() if model == arm.label}
        costs = estimate_cost(resolved, arm.label, missing, seconds=seconds, device=device) if missing else {}
        methods = [_method_cost(study, arm.label, m, missing[m], cost, scored) for m, cost in costs.items()]
        yield ModelEstimate(study, images, arm.label, tuple(methods))


def _method_cost(study: str, model: str, method: str, n: int, cost: MapCost, scored: bool) -> MethodCost:
    hours = n * (cost.seconds + (cost.scores if scored else 0.0)) / 3600
    return MethodCost(study, model, method, n, n * cost.forward, n * cost.jvp, n * cost.vjp, hours, cost.fraction)


def _first_context(resolved: Resolved, model: str, device: str) -> EvaluationContext:
    """The first image that can be explained, after the network has run once."""
    runner, images = TaskRunner(resolved, device=device), [image["digest"] for image in resolved.manifest.images]
    if not images:
        raise FringeError("images: none of those that were drawn can be read")
    for image in images[:-1]:
        with contextlib.suppress(FringeError):
            return runner.subject(model, (image,))
    return runner.subject(model, (images[-1],))


def _map_cost(candidate: Candidate, context: EvaluationContext, seconds: float) -> MapCost:
    classifier, before = context.problem.model, replace(context.problem.model.passes)
    began, fraction = time.perf_counter(), 1.0

    def watch(done: int, planned: int) -> None:
        nonlocal fraction
        if time.perf_counter() - began > seconds and done < planned:
            fraction = max(done, 1) / planned
            raise Stop

    with contextlib.suppress(Stop):
        make_maps(candidate, replace(context.problem, progress=watch))
    synchronize(context.problem.inputs.device)
    spent, passes = time.perf_counter() - began, classifier.passes.since(before)
    counts = passes.forward / fraction, passes.jvp / fraction, passes.vjp / fraction
    return MapCost(spent / fraction, 0.0, *counts, fraction)
