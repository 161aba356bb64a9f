"""What a run would take: missing tasks, and passes, bytes and time by one probe of each method; nothing is stored."""

import contextlib
import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from fringe._strings.formats import counted
from fringe._strings.progress import Report, shown
from fringe.bench.experiments._database import NEW_BYTES
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


@dataclass(frozen=True)
class MethodCost:
    """What is missing of a method on a model, and what it takes.

    ``maps`` are those that are not stored, and ``passes`` are theirs, by kind; ``seconds`` is the time of the maps and
    their scores, one task after the other. A ``fraction`` of a map was computed; the rest is extrapolated.
    """

    model: str
    method: str
    tasks: int
    maps: int
    passes: Mapping[str, float]
    seconds: float
    fraction: float

    def describe(self) -> str:
        """Describe the cost for people, in one line."""
        kinds = ", ".join(f"{n:,.0f} {name}" for name, n in self.passes.items() if n)
        passes = f"{sum(self.passes.values()):,.0f} passes" + (f" ({kinds})" if kinds else "")
        rough = "" if self.fraction == 1 else f" (from {self.fraction:.0%} of a map)"
        return f"{self.model} {self.method}: {self.maps} maps, {passes}, {describe_seconds(self.seconds)}{rough}"


@dataclass(frozen=True)
class RunEstimate:
    """The cost of a run of a plan.

    Attributes:
        plan: Name of the plan.
        images: Images of the plan.
        methods: One entry for each model and method with missing tasks.
        metrics: Seconds of the scores by metric, one task after the other.
        seconds: Time of the run from its start to its last task, without a report.
        bytes: Growth of the store.
        map_bytes: The part of it for stored maps.
        workers: Tasks that run at the same time.
        device: Device of the models.
    """

    plan: str
    images: int
    methods: tuple[MethodCost, ...]
    metrics: Mapping[str, float]
    seconds: float
    bytes: int
    map_bytes: int
    workers: int
    device: str = "cpu"

    def describe(self) -> str:
        """Describe the estimate for people.

        Returns:
            A line for each method with passes, for the scores, for the store and for the time.
        """
        tasks = sum(cost.tasks for cost in self.methods)
        text = [f"{self.plan}: {counted(self.images, 'image')}; missing tasks: {tasks}"]
        text += [f"  {cost.describe()}" for cost in self.methods if any(cost.passes.values())]
        if self.metrics:
            scores = (f"{label} {describe_seconds(spent)}" for label, spent in self.metrics.items())
            text.append(f"  scores: {', '.join(scores)}")
        scores, maps = (f"{size / 1e6:.3g} MB" for size in (self.bytes, self.bytes + self.map_bytes))
        text.append(f"the store grows by {scores}, with save_maps=True by {maps}")
        processes = "one process" if self.workers == 1 else f"{self.workers} processes"
        time = describe_seconds(self.seconds)
        text.append(f"in all about {time} on {self.device} in {processes}, without the report")
        return "\n".join(text)


def describe_seconds(seconds: float) -> str:
    """A time with two digits, in the unit that a person would use."""
    size, unit = next((one for one in ((3600.0, "h"), (60.0, "min")) if seconds >= 1.5 * one[0]), (1.0, "s"))
    return f"{seconds / size:.2g} {unit}" if seconds / size < 99.5 else f"{seconds / size:.0f} {unit}"


class _Stop(BaseException):
    """Ends a map early. It is no Exception, so no method handles it as an error."""


class _Timed:
    """A metric, and the seconds that it took."""

    def __init__(self, metric: Metric):
        self.metric, self.seconds = metric, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.metric, name)

    def score(self, maps: EvaluatedMaps) -> Scores:
        began = time.perf_counter()
        scores = self.metric.score(maps)
        scores.values.cpu()  # a device may still compute them
        self.seconds += time.perf_counter() - began
        return scores


class Probe:
    """A model of a plan, some of whose maps and scores are made and measured.

    ``load`` is the seconds that opening the model took; ``bytes`` and ``map_bytes`` are those of an image's row and of
    its map; ``scores`` are the seconds of an image's scores by metric, measured with the edge control because they
    hardly depend on the map. A map is stopped after ``seconds``. Raises FringeError if no image can be explained, or
    the model cannot be used.
    """

    def __init__(self, resolved: Resolved, model: str, how: RunOptions, seconds: float):
        plan, manifest, self._began = resolved.plan, resolved.manifest, time.perf_counter()
        timed = {label: _Timed(metric) for label, metric in plan.metrics.items() if not metric.requires_explainer}
        self._derived = {one.label for one in plan.candidates(plan.model(model)) if one.of}  # made of others' maps
        self._extra = {label: one.planned_maps for label, one in plan.metrics.items() if one.requires_explainer}
        self._runner = TaskRunner(
            replace(resolved, plan=replace(plan, metrics=cast(Any, {**plan.metrics, **timed}))),
            device=how.device,
            batch_size=how.batch_size,
        )
        self._runner.progress = self._watch
        self._model, self._manifest, self._seconds, self._fraction = model, manifest, seconds, 1.0
        digests = tuple(image["digest"] for image in manifest.images_of(model))
        if not digests:
            raise FringeError("images: none of those that were drawn can be read")
        self._first, _ = next(self._runner.explainable(model, digests))
        self.load = time.perf_counter() - self._began
        problems = [context.problem for context in self._runner.subjects(model, digests[: plan.shard])]
        self._images = tuple(key for problem in problems for key in problem.keys)
        self.scores, self.bytes = self._score(timed, (self._first,))
        if len(self._images) > 1 and sum(self.scores.values()) * len(self._images) <= seconds:
            self.scores, self.bytes = self._score(timed, self._images)
        self.map_bytes = 4.0 * problems[0].inputs[0].numel() if problems else 0.0

    def _task(self, method: str, metrics: Iterable[str], images: tuple[str, ...]) -> Task:
        keys = tuple(self._manifest.metrics[label]["key"] for label in metrics)
        return Task(self._model, method, self._manifest.setting_key(self._model, method), tuple(metrics), keys, images)

    def _score(self, timed: Mapping[str, _Timed], images: tuple[str, ...]) -> tuple[dict[str, float], float]:
        """The seconds of an image's scores by metric, and the bytes of its row."""
        maps, n = dict[str, StoredMap](), len(images)
        for problem in (context.problem for context in self._runner.subjects(self._model, images)):
            edges = zip(problem.keys, CONTROLS["edge"](problem), problem.target.tolist(), strict=True)
            maps |= {key: StoredMap(values, {"target": target, "status": "ok"}) for key, values, target in edges}
        for one in timed.values():
            one.seconds = 0.0
        results = self._runner.perform(
            self._task(next(iter(self._manifest.settings[self._model])), timed, images), maps
        )
        size = max((len(joined(one.details)[1]) for one in results.results), default=0)
        size += row_type(len(self._manifest.metrics)).itemsize + _ROW
        return {label: one.seconds / n for label, one in timed.items()}, size

    def cost(self, method: str) -> tuple[float, dict[str, float], float]:
        """Seconds and passes of a map of a method, and the fraction of a map that was made: of one image, and of those
        of a task if that does not take long."""
        if method in self._derived:
            return 0.0, dict.fromkeys(PASSES, 0.0), 1.0
        known = self._map(method, (self._first,))
        is_short = known[2] == 1 and known[0] * len(self._images) <= self._seconds
        return self._map(method, self._images) if is_short else known

    def _map(self, method: str, images: tuple[str, ...]) -> tuple[float, dict[str, float], float]:
        classifier = self._runner.subjects(self._model, images)[0].problem.model
        before, self._began, self._fraction = replace(classifier.passes), time.perf_counter(), 1.0
        with contextlib.suppress(_Stop):
            self._runner.perform(self._task(method, (), images))
        counts, part = classifier.passes.since(before), self._fraction * len(images)
        passes = {name: getattr(counts, name) / part for name in PASSES}
        return (time.perf_counter() - self._began) / part, passes, self._fraction

    def seconds_of(self, metric: str, maps: float) -> float:
        """The seconds of an image's score, where each further map that the metric asks for takes ``maps`` seconds."""
        return maps * self._extra[metric] if metric in self._extra else self.scores[metric]

    def _watch(self, label: str, done: float, planned: int) -> None:
        if time.perf_counter() - self._began > self._seconds and 0 < done < planned:
            self._fraction = done / planned
            raise _Stop


def estimate_run(
    spec: ExperimentSpec | Plan,
    out: str | Path | None = None,
    *,
    seconds: float = 10.0,
    progress: bool | Report | None = None,
    **options: Any,
) -> RunEstimate:
    """Estimate what :func:`run_experiment` would compute and store, and how long it would take. Nothing is written.

    Each method makes the map of one image, and the maps of one task if that does not take long; other tasks take as
    much for each of their images. A map that takes too long is stopped, and its time is extrapolated from the finished
    steps. Metrics that need further maps cost these maps; the others are measured once for a model.

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
    plan, store = resolved.plan, None if out is None else Store.existing(Path(out))
    blocks = () if store is None else store.blocks()
    tasks = pending_tasks(resolved.manifest, blocks, plan.shard, retry=how.retry)
    named, probes = list(dict.fromkeys((task.model, task.method) for task in tasks)), dict[str, Probe]()
    start, costs, metrics = time.perf_counter() - began, list[MethodCost](), Counter[str]()
    size, map_bytes = 0.0 if store else float(NEW_BYTES + len(to_json(resolved.manifest.record()))), 0.0
    with shown(progress, "measuring") as report:
        for number, (model, method) in enumerate(named):
            if report is not None:
                report(number, len(named), f"measuring {method}")
            probe = probes.get(model) or probes.setdefault(model, Probe(resolved, model, how, seconds))
            (time_of_map, passes, fraction), maps, spent = probe.cost(method), 0, 0.0
            of_method = [task for task in tasks if (task.model, task.method) == (model, method)]
            for task in of_method:
                n = len(task.images)
                made = 0 if store and not task.force and len(store.has_maps(task.setting, task.images)) == n else n
                scores = {metric: n * probe.seconds_of(metric, time_of_map) for metric in task.metrics}
                metrics.update(scores)
                maps, spent = maps + made, spent + sum(scores.values()) + made * time_of_map
                size += n * probe.bytes
            map_bytes += maps * probe.map_bytes
            passes = {name: maps * one for name, one in passes.items()}
            costs.append(MethodCost(model, method, len(of_method), maps, passes, spent, fraction))
    workers, share = _workers(how.executor, how.device)
    start += sum(probe.load for probe in probes.values())
    return RunEstimate(
        plan=plan.name,
        images=len(resolved.manifest.images),
        methods=tuple(costs),
        metrics=dict(+metrics),
        seconds=start + share * sum(cost.seconds for cost in costs) / min(workers, max(1, len(tasks))),
        bytes=round(size),
        map_bytes=round(map_bytes),
        workers=workers,
        device=how.device,
    )


def _workers(executor: Executor | None, device: str) -> tuple[int, float]:
    """Processes of an executor, and how much longer a task takes beside those of the others."""
    cores = os.cpu_count() or 1
    workers = (executor.workers or cores) if isinstance(executor, (RayExecutor, ProcessExecutor)) else 1
    if isinstance(executor, RayExecutor) and executor.address:
        return workers, 1.0  # machines of their own
    return workers, max(1.0, workers / cores) if device.startswith("cpu") else float(workers)
