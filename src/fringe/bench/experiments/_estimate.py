"""What a run would take: missing tasks, and passes, bytes and time by one probe of each method; nothing is stored."""

import os
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch

from fringe._strings.formats import counted
from fringe._strings.progress import Report, shown
from fringe.bench.experiments._executors import Executor, ProcessExecutor
from fringe.bench.experiments._manifest import Resolved, resolve
from fringe.bench.experiments._plan import Plan, build_plan
from fringe.bench.experiments._ray import RayExecutor
from fringe.bench.experiments._records import StoredMap, joined, row_type, to_json
from fringe.bench.experiments._run import RunOptions
from fringe.bench.experiments._runner import TaskRunner
from fringe.bench.experiments._spec import ExperimentSpec
from fringe.bench.experiments._store import Store
from fringe.bench.experiments._tasks import Task, pending_tasks
from fringe.errors import FringeError
from fringe.evaluation import CONTROLS
from fringe.metrics import EvaluatedMaps, Metric, Scores

#: Passes of each kind.
PASSES = ("forward", "jvp", "vjp")
#: Bytes of a row of SQLite and of its details beside their content: digests, headers, and their share of the pages.
_ROW = 160


class _Stop(BaseException):
    """Ends a map early. It is no Exception, so no method handles it as an error."""


@dataclass
class _Timed:
    """A metric, and the seconds that it took."""

    metric: Metric
    seconds: float = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.metric, name)

    def score(self, maps: EvaluatedMaps) -> Scores:
        began = time.perf_counter()
        scores = self.metric.score(maps)
        _wait_for(scores.values.device)
        self.seconds += time.perf_counter() - began
        return scores


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@dataclass(frozen=True)
class TaskCost:
    """What the tasks of a method take for each of their images: seconds of the map, and of the scores by metric; passes
    of the map; bytes of the row and of the map. A ``fraction`` of a map was made."""

    maps: float
    scores: Mapping[str, float]
    passes: Sequence[float]
    fraction: float
    bytes: float
    map_bytes: float


class Probe:
    """A model of a plan, open to be probed: a map is stopped after ``seconds``, and extrapolated. ``load`` is the
    seconds that opening took. Raises FringeError if no image can be explained, or the model cannot be used."""

    def __init__(self, resolved: Resolved, model: str, how: RunOptions, seconds: float):
        self._resolved, self._model, self._seconds, metrics = resolved, model, seconds, resolved.plan.metrics
        self._timed = {label: _Timed(metric) for label, metric in metrics.items() if not metric.requires_explainer}
        candidates = resolved.plan.candidates(resolved.plan.model(model))
        self._derived = {one.label for one in candidates if one.of}  # their maps are made of others, without a pass
        plan = replace(resolved.plan, metrics=cast(Any, {**metrics, **self._timed}))
        self._runner = TaskRunner(replace(resolved, plan=plan), device=how.device, batch_size=how.batch_size)
        self._runner.progress = self._watch
        digests = tuple(image["digest"] for image in resolved.manifest.images_of(model))
        if not digests:
            raise FringeError("images: none of those that were drawn can be read")
        began = time.perf_counter()
        first, _ = next(self._runner.explainable(model, digests))
        self.load = time.perf_counter() - began
        shard = tuple(k for one in self._runner.subjects(model, digests[: plan.shard]) for k in one.problem.keys)
        self._first, self._shard = (first,), shard
        self._scored = dict[tuple[str, ...], dict[str, float]]()
        self._warm = False

    def cost(self, method: str, metrics: Collection[str]) -> TaskCost:
        """Measure what tasks of a method take: with one image, and with those of a task if that does not take long."""
        labels = tuple(label for label in self._timed if label in metrics)
        if not self._warm:  # the first use of a model takes longer
            self._sample(method, self._first, labels)
            self._warm = True
        cost = self._sample(method, self._first, labels)
        is_short = cost.fraction == 1 and cost.maps + sum(cost.scores[label] for label in labels) <= self._seconds
        return self._sample(method, self._shard, labels) if is_short and len(self._shard) > 1 else cost

    def _sample(self, method: str, images: tuple[str, ...], metrics: tuple[str, ...]) -> TaskCost:
        plan, manifest, n = self._resolved.plan, self._resolved.manifest, len(images)
        problems = [context.problem for context in self._runner.subjects(self._model, images)]
        known, setting = self._scored.get(metrics), manifest.setting_key(self._model, method)
        labels = metrics if known is None else ()  # scores hardly depend on the map: those that take long are made once
        keys = tuple(manifest.metrics[label]["key"] for label in labels)
        task = Task(self._model, method, setting, labels, keys, images)
        for timed in self._timed.values():
            timed.seconds = 0.0
        classifier = problems[0].model
        before, self._began, self._fraction = replace(classifier.passes), time.perf_counter(), 1.0
        try:
            if method in self._derived:
                raise _Stop  # before it begins
            made = self._runner.perform(task).results
        except _Stop:
            seconds = (time.perf_counter() - self._began) / self._fraction
            counts = classifier.passes.since(before)
            passes = [getattr(counts, name) / self._fraction / n for name in PASSES]
            maps = dict[str, StoredMap]()
            for problem in problems:  # the edge control, in place of slow maps
                edges = zip(problem.keys, CONTROLS["edge"](problem), problem.target.tolist(), strict=True)
                maps |= {key: StoredMap(values, {"target": target, "status": "ok"}) for key, values, target in edges}
            self._began = float("inf")  # is not stopped
            made = self._runner.perform(task, maps).results
        else:
            seconds = time.perf_counter() - self._began - sum(self._timed[label].seconds for label in labels)
            passes = [sum(float(one.made.get(name) or 0) for one in made) / n for name in PASSES]
        if known is None:
            known = {label: self._timed[label].seconds / n for label in labels}
            if n * sum(known.values()) > self._seconds:
                self._scored[metrics] = known
        row = row_type(len(metrics)).itemsize + max((len(joined(one.details)[1]) for one in made), default=0) + _ROW
        size = 4.0 * problems[0].inputs[0].numel()
        explained = {label: m.planned_maps for label, m in plan.metrics.items() if m.requires_explainer}
        more = {label: seconds / n * maps for label, maps in explained.items()}
        return TaskCost(seconds / n, known | more, passes, self._fraction, row, size)

    def _watch(self, label: str, done: float, planned: int) -> None:
        if time.perf_counter() - self._began > self._seconds and 0 < done < planned:
            self._fraction = done / planned
            raise _Stop


#: Methods of a model above which an estimate shows them together.
MANY = 12


@dataclass(frozen=True)
class MethodCost:
    """What is missing of a method of a plan (``study``) on a model, and what it takes.

    ``maps`` are those that are not stored, and the passes are theirs; ``seconds`` is the time of the maps and their
    scores, one task after the other. ``fraction`` of a map was computed; the rest is extrapolated.
    """

    study: str
    model: str
    method: str
    tasks: int
    maps: int
    forward: float
    jvp: float
    vjp: float
    seconds: float
    fraction: float

    def record(self) -> dict[str, Any]:
        """Return the cost as JSON data."""
        record = asdict(self)
        fraction = record.pop("fraction")
        return {**record, "hours": self.seconds / 3600, "told_from": fraction}


@dataclass(frozen=True)
class RunEstimate:
    """The cost of a run of a plan, or of one model of it.

    Attributes:
        study: Name of the plan.
        images: Images of the plan.
        models: Labels of the models.
        costs: One entry for each model and method with missing tasks.
        metrics: Seconds of the scores by metric, one task after the other.
        seconds: Time of the run from its start to its last task, without a report.
        bytes: Growth of the store.
        map_bytes: The part of it for stored maps.
        workers: Tasks that run at the same time.
        device: Device of the models.
    """

    study: str
    images: int
    models: tuple[str, ...]
    costs: tuple[MethodCost, ...]
    metrics: Mapping[str, float]
    seconds: float
    bytes: int
    map_bytes: int
    workers: int
    device: str = "cpu"

    def lines(self) -> list[str]:
        """Describe the costs of each model.

        Returns:
            One line per method, or one line for a model with many methods; methods without passes have no line.
        """
        lines: list[str] = []
        for model in self.models:
            shown = [cost for cost in self.costs if cost.model == model and (cost.forward or cost.vjp)]
            if not any(cost.model == model for cost in self.costs):
                lines.append(f"{model}: nothing left to do")
            elif len(shown) <= MANY:
                lines += [f"{model} {cost.method}: {_describe([cost])}" for cost in shown]
            else:
                lines.append(f"{model}, {len(shown)} settings: {_describe(shown)}")
        return lines

    def describe(self) -> str:
        """Describe the estimate for people.

        Returns:
            The lines of :meth:`lines`, with the growth of the store and the time.
        """
        text = [
            f"{self.study}: {counted(self.images, 'image')}; missing tasks: {sum(cost.tasks for cost in self.costs)}"
        ]
        text += [f"  {line}" for line in self.lines()]
        if self.metrics:
            scores = (f"{label} {describe_seconds(spent)}" for label, spent in self.metrics.items())
            text.append(f"  scores: {', '.join(scores)}")
        scores, maps = (f"{size / 1e6:.3g} MB" for size in (self.bytes, self.bytes + self.map_bytes))
        text.append(f"the store grows by {scores}, with save_maps=True by {maps}")
        processes = "one process" if self.workers == 1 else f"{self.workers} processes"
        time = describe_seconds(self.seconds)
        text.append(f"in all about {time} on {self.device} in {processes}, without the report")
        return "\n".join(text)

    def record(self) -> dict[str, Any]:
        """Write the estimate as JSON data.

        Returns:
            The fields, with the costs of each method under ``"methods"``.
        """
        known = {n: v for n, v in vars(self).items() if n not in ("costs", "models")}
        return {**known, "metrics": dict(self.metrics), "methods": [cost.record() for cost in self.costs]}


def describe_seconds(seconds: float) -> str:
    """A time with two digits, in the unit that a person would use."""
    size, unit = next((one for one in ((3600.0, "h"), (60.0, "min")) if seconds >= 1.5 * one[0]), (1.0, "s"))
    return f"{seconds / size:.2g} {unit}" if seconds / size < 99.5 else f"{seconds / size:.0f} {unit}"


def _describe(costs: Sequence[MethodCost]) -> str:
    counts = {name: sum(getattr(cost, name) for cost in costs) for name in PASSES}
    fraction = min(cost.fraction for cost in costs)
    rough = "" if fraction == 1 else f" (from {fraction:.0%} of a map)"
    passes = f"{sum(counts.values()):,.0f} passes ({', '.join(f'{n:,.0f} {name}' for name, n in counts.items() if n)})"
    maps, seconds = sum(cost.maps for cost in costs), sum(cost.seconds for cost in costs)
    return f"{maps} maps, {passes}, {describe_seconds(seconds)}{rough}"


def estimate_run(
    spec: ExperimentSpec | Plan,
    out: str | Path | None = None,
    *,
    seconds: float = 10.0,
    progress: bool | Report | None = None,
    **options: Any,
) -> RunEstimate:
    """Estimate what :func:`run_experiment` would compute and store, and how long it would take. Nothing is written.

    Each method makes and scores the map of one image, and the maps of one task if that does not take long; other tasks
    take as much for each of their images. Scores that take long are measured with one method. A map that takes too long
    is stopped, and its time is extrapolated from the finished steps. Metrics that need further maps cost these maps.

    Args:
        spec: What is computed.
        out: Run folder. What it holds already is not counted; None, or a folder that does not exist, holds nothing.
        seconds: Longest time of a map of the probe.
        progress: True for a progress bar, or a function that is called with the numbers of measured and of all methods
            and the name of the next.
        **options: Fields of :class:`RunOptions`, as for :func:`run_experiment`; no executor is started. Processes share
            the cores, and take turns on any other device.

    Returns:
        The estimate.

    Raises:
        FringeError: For a specification, folder or model that cannot be used, and if no image can be explained.
    """
    how, began = RunOptions(**options).resolve(), time.perf_counter()
    resolved = resolve(spec if isinstance(spec, Plan) else build_plan(spec), logits=True)
    store = None if out is None else Store.existing(Path(out))
    blocks = () if store is None else store.blocks()
    tasks = pending_tasks(resolved.manifest, blocks, resolved.plan.shard, retry=how.retry)
    start = time.perf_counter() - began
    with shown(progress, "measuring") as report:
        known = estimate_tasks(resolved, tasks, how, seconds, store, report)
    size = 0 if store is not None else len(to_json(resolved.manifest.record()))
    return replace(known, seconds=known.seconds + start, bytes=known.bytes + size)


def _workers(executor: Executor | None, device: str) -> tuple[int, float]:
    """Processes of an executor, and how much longer a task takes beside those of the others."""
    cores = os.cpu_count() or 1
    if isinstance(executor, RayExecutor):
        workers = executor.workers or cores
    else:
        workers = executor.capacity if isinstance(executor, ProcessExecutor) else 1
    if isinstance(executor, RayExecutor) and executor.address:
        return workers, 1.0  # machines of their own
    return workers, max(1.0, workers / cores) if device.startswith("cpu") else float(workers)


def estimate_tasks(
    resolved: Resolved,
    tasks: Sequence[Task],
    how: RunOptions,
    seconds: float,
    store: Store | None = None,
    report: Report | None = None,
) -> RunEstimate:
    """Estimate tasks of a plan, of which the stored maps of ``store`` are not made again. A map of the probe takes at
    most some ``seconds``; ``report`` takes the numbers of measured and of all methods, and the next one's name."""
    (workers, share), load, size, map_bytes = _workers(how.executor, how.device), 0.0, 0.0, 0.0
    costs, metrics = list[MethodCost](), Counter[str]()
    methods = len({(task.model, task.method) for task in tasks})
    for model in (model.label for model in resolved.plan.models):
        pending = [task for task in tasks if task.model == model]
        if not pending:
            continue
        probe = Probe(resolved, model, how, seconds)
        load += probe.load
        for method in dict.fromkeys(task.method for task in pending):
            of_method = [task for task in pending if task.method == method]
            if report is not None:
                report(len(costs), methods, f"measuring {method}")
            cost, maps, spent = probe.cost(method, {m for task in of_method for m in task.metrics}), 0, 0.0
            for task in of_method:
                known = len(store.has_maps(task.setting, task.images)) if store and not task.force else 0
                made = 0 if known == len(task.images) else len(task.images)
                scores = {metric: len(task.images) * cost.scores[metric] for metric in task.metrics}
                metrics.update(scores)
                maps, spent = maps + made, spent + sum(scores.values()) + made * cost.maps
                size += len(task.images) * cost.bytes
            map_bytes += maps * cost.map_bytes
            passes = (maps * one for one in cost.passes)
            names = resolved.plan.name, model, method, len(of_method), maps
            costs.append(MethodCost(*names, *passes, seconds=spent, fraction=cost.fraction))
    return RunEstimate(
        study=resolved.plan.name,
        images=len(resolved.manifest.images),
        models=tuple(model.label for model in resolved.plan.models),
        costs=tuple(costs),
        metrics=dict(+metrics),
        seconds=load + share * sum(cost.seconds for cost in costs) / min(workers, max(1, len(tasks))),
        bytes=round(size),
        map_bytes=round(map_bytes),
        workers=workers,
        device=how.device,
    )
