"""What a run would take: missing tasks, their passes, bytes, and the time by a probe, in which each method makes and
scores the maps of one task; nothing is stored."""

import contextlib
import heapq
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch

from fringe._strings.formats import counted
from fringe._strings.progress import Report, shown
from fringe.bench.experiments._database import Writer, encoded
from fringe.bench.experiments._executors import Executor, ProcessExecutor
from fringe.bench.experiments._manifest import Resolved, resolve
from fringe.bench.experiments._plan import Plan, build_plan
from fringe.bench.experiments._ray import RayExecutor
from fringe.bench.experiments._records import StoredMap, to_json
from fringe.bench.experiments._run import RunOptions
from fringe.bench.experiments._runner import TaskResult, TaskRunner
from fringe.bench.experiments._spec import ExperimentSpec
from fringe.bench.experiments._store import Store
from fringe.bench.experiments._tasks import Task, pending_tasks
from fringe.errors import FringeError
from fringe.evaluation import CONTROLS
from fringe.metrics import EvaluatedMaps, Metric, Scores

#: Passes of each kind.
PASSES = ("forward", "jvp", "vjp")
#: Bytes of a page of SQLite; what a leaf has for its rows, a chain of overflow pages for each of its pages, and a row
#: that has such a chain keeps at the least and at the most (the file format of SQLite, sections 1.6 and 1.7).
_PAGE, _LEAF, _OVERFLOW, _LOCAL = 4096, 4088, 4092, (489, 4061)
#: Bytes of a row beside its content: the names and digests, the header of the row and its place in the page.
_ROW = 128


class _Stop(BaseException):
    """Ends a map early. It is no Exception, so no method handles it as an error."""


@dataclass
class _Timed:
    """A metric, and the seconds that it took."""

    metric: Metric
    clock: Callable[[], float]
    seconds: float = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.metric, name)

    def score(self, maps: EvaluatedMaps) -> Scores:
        began = self.clock()
        scores = self.metric.score(maps)
        self.seconds += self.clock() - began
        return scores


def clock_of(device: torch.device) -> Callable[[], float]:
    """Return the clock of a device: processor time for one CPU thread, which other programs do not affect; else wall
    time, read after the device has finished its work."""
    if device.type == "cpu":
        return time.process_time if torch.get_num_threads() == 1 else time.perf_counter

    def waited() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    return waited


def stored_bytes(content: int) -> float:
    """Bytes of a file of SQLite for one of many rows of ``content`` bytes: whole rows share a page, and what a page
    cannot hold has pages of its own."""
    size, pages = content + _ROW, 0
    if size > _LOCAL[1]:
        local = _LOCAL[0] + (size - _LOCAL[0]) % _OVERFLOW
        local = local if local <= _LOCAL[1] else _LOCAL[0]
        size, pages = local, -(-(size - local) // _OVERFLOW)
    return _PAGE * (pages + 1 / (_LEAF // size))


@dataclass(frozen=True)
class TaskCost:
    """What the tasks of a method take for each of their images: seconds of the map, of the scores by metric and of the
    rows in the store; passes of the map; bytes of the rows and of the map. The rows of a method share further bytes,
    and a ``fraction`` of a map was made."""

    maps: float
    scores: Mapping[str, float]
    file: float
    passes: Sequence[float]
    fraction: float
    file_bytes: float
    map_bytes: float
    shared_bytes: float


class Probe:
    """A model of a plan, open to be probed: a map is stopped after ``seconds``, and extrapolated. ``load`` is the
    seconds that opening took. Raises FringeError if no image can be explained, or the model cannot be used."""

    def __init__(self, resolved: Resolved, model: str, how: RunOptions, seconds: float):
        self._resolved, self._model, self._seconds, metrics = resolved, model, seconds, resolved.plan.metrics
        self._clock = clock_of(torch.device(how.device))
        plain = {label: metric for label, metric in metrics.items() if not metric.requires_explainer}
        self._timed = {label: _Timed(metric, self._clock) for label, metric in plain.items()}
        candidates = resolved.plan.candidates(resolved.plan.model(model))
        self._derived = {one.label for one in candidates if one.of}  # their maps are made of others, without a pass
        plan = replace(resolved.plan, metrics=cast(Any, {**metrics, **self._timed}))
        self._runner = TaskRunner(replace(resolved, plan=plan), device=how.device, batch_size=how.batch_size)
        self._runner.progress = self._watch
        digests = tuple(image["digest"] for image in resolved.manifest.images_of(model))
        if not digests:
            raise FringeError("images: none of those that were drawn can be read")
        began = self._clock()
        first, _ = next(self._runner.explainable(model, digests))
        self.load = self._clock() - began
        self._sizes, self._opening, self._warm = list[tuple[str, ...]]([(first,)]), list[float](), False
        self._scored = dict[tuple[int, tuple[str, ...]], dict[str, Any]]()
        for images in (digests[: plan.shard], (first,)):
            began = self._clock()
            contexts = self._runner.subjects(model, images)
            self._opening.append((self._clock() - began) / len(images))
            keys = tuple(key for context in contexts for key in context.problem.keys)
            if len(keys) > 1:
                self._sizes.append(keys)

    def opening(self, images: int) -> float:
        """Seconds to open some images."""
        return images * (self._opening[-1] if images == 1 else self._opening[0])

    def cost(self, method: str, metrics: Collection[str]) -> TaskCost:
        """Measure what tasks of a method take. All images of a task are tried if those of one do not take long."""
        labels = tuple(label for label in self._timed if label in metrics)
        if not self._warm:
            self._sample(method, self._sizes[0], labels)
            self._warm = True
        cost = self._sample(method, self._sizes[0], labels)
        if cost.fraction == 1 and cost.maps + sum(cost.scores[label] for label in labels) <= self._seconds:
            for images in self._sizes[1:]:
                cost = self._sample(method, images, labels)
        return cost

    def _sample(self, method: str, images: tuple[str, ...], metrics: tuple[str, ...]) -> TaskCost:
        manifest, contexts = self._resolved.manifest, self._runner.subjects(self._model, images)
        scored, n = self._scored.get((len(images), metrics)), len(images)
        labels = metrics if scored is None else ()
        keys, setting = (tuple(manifest.metrics[n]["key"] for n in labels), manifest.setting_key(self._model, method))
        task, classifier = Task(self._model, method, setting, labels, keys, images), contexts[0].problem.model
        before, maps = replace(classifier.passes), dict[str, StoredMap]()
        self._began, self._fraction = self._clock(), 1.0
        try:
            if method in self._derived:  # stopped before it begins
                raise _Stop
            result, seconds = self._perform(task)
        except _Stop:
            seconds, counts = self._clock() - self._began, classifier.passes.since(before)
            seconds, passes = seconds / self._fraction, [getattr(counts, name) / self._fraction for name in PASSES]
            for problem in (context.problem for context in contexts):  # the edge control, in place of slow maps
                known = zip(problem.keys, CONTROLS["edge"](problem), problem.target.tolist(), strict=True)
                maps |= {key: StoredMap(values, {"target": target, "status": "ok"}) for key, values, target in known}
            result, _ = self._perform(task, maps)
        else:
            seconds -= sum(self._timed[label].seconds for label in labels)
            passes = [sum(stored.metadata[name] for stored in result.maps.values()) for name in PASSES]
        if scored is None:
            scored = self._score_cost(result, labels, n)
            if n * sum(scored["scores"].values()) > self._seconds:  # they hardly depend on the map: once is enough
                self._scored[n, metrics] = scored
        stored = sum(stored_bytes(len(one.to_bytes())) for one in (maps or result.maps).values())
        more = {
            label: seconds / n * m.planned_maps
            for label, m in self._resolved.plan.metrics.items()
            if m.requires_explainer
        }
        return TaskCost(
            **{**scored, "scores": scored["scores"] | more},
            maps=seconds / n,
            passes=[one / n for one in passes],
            fraction=self._fraction,
            map_bytes=stored / n,
        )

    def _score_cost(self, result: TaskResult, labels: Sequence[str], n: int) -> dict[str, Any]:
        """The fields of a :class:`TaskCost` that scores decide, which were just measured on ``n`` images."""
        began, file, shared = self._clock(), 0.0, 0.0
        if result.scores is not None:
            numbers, notes, details = map(len, encoded(result.scores))
            file = stored_bytes(numbers + notes) + stored_bytes(details)
            shared = stored_bytes(len(to_json(result.scores.shared)))
        scores = {label: self._timed[label].seconds / n for label in labels}
        spent = self._clock() - began
        return {"scores": scores, "file": spent / n, "file_bytes": file / n, "shared_bytes": shared}

    def _perform(self, task: Task, maps: Mapping[str, StoredMap] | None = None) -> tuple[TaskResult, float]:
        for timed in self._timed.values():
            timed.seconds = 0.0
        self._began = self._clock()
        result = self._runner.perform(task, maps)
        return result, self._clock() - self._began

    def _watch(self, label: str, done: float, planned: int) -> None:
        if self._clock() - self._began > self._seconds and 0 < done < planned:
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
        cpu_seconds: Processor time of the run: ``seconds`` without other programs.
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
    cpu_seconds: float
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
        time, cpu = describe_seconds(self.seconds), describe_seconds(self.cpu_seconds)
        text.append(
            f"in all about {time} on {self.device} in {processes} ({cpu} of processor time), without the report"
        )
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

    Each method makes and scores the maps of one task after a first use of the model; other tasks take as much for each
    of their images. Scores that take long are measured with one method. If a map takes too long, one image is tried
    alone, the map is stopped, and its time is extrapolated from the finished steps. Metrics that need further maps cost
    these maps.

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
    how = RunOptions(**options).resolve()
    began, used = time.perf_counter(), time.process_time()
    resolved = resolve(spec if isinstance(spec, Plan) else build_plan(spec), logits=True)
    store = None if out is None else Store.existing(Path(out))
    stored = () if store is None else store.tasks()
    tasks = pending_tasks(resolved.manifest, stored, resolved.plan.shard, retry=how.retry)
    start = time.perf_counter() - began, time.process_time() - used
    with shown(progress, "measuring") as report:
        known = estimate_tasks(resolved, tasks, how, seconds, store, report)
    records = [{i: v.tolist() for i, v in one.values.items()} for one in resolved.logits.values()]
    size = sum(stored_bytes(len(to_json(one))) for one in (resolved.manifest.record(), *records))
    return replace(
        known,
        seconds=known.seconds + start[0],
        cpu_seconds=known.cpu_seconds + start[1],
        bytes=known.bytes + (round(size) if store is None else 0),
    )


def _workers(executor: Executor | None, device: str) -> tuple[int, int | None, float]:
    """Processes of an executor, the threads of each, and how much longer a task takes beside those of the others."""
    cores = os.cpu_count() or 1
    if isinstance(executor, RayExecutor):
        workers = executor.workers or cores
    else:
        workers = executor.capacity if isinstance(executor, ProcessExecutor) else 1
    if workers == 1:
        return 1, None, 1.0
    threads = max(1, torch.get_num_threads() // workers)
    if isinstance(executor, RayExecutor) and executor.address:
        return workers, threads, 1.0  # machines of their own
    return workers, threads, max(1.0, workers / cores) if device.startswith("cpu") else float(workers)


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
    workers, threads, share = _workers(how.executor, how.device)
    began, used = time.perf_counter(), time.process_time()
    load, size, map_bytes, durations = 0.0, 0.0, 0.0, [0.0] * len(tasks)
    costs, metrics, name = list[MethodCost](), Counter[str](), resolved.plan.name
    methods = len({(task.model, task.method) for task in tasks})
    for model in (model.label for model in resolved.plan.models):
        pending = [(index, task) for index, task in enumerate(tasks) if task.model == model]
        if not pending:
            continue
        with _threads(threads):
            probe, opened = Probe(resolved, model, how, seconds), tuple[str, ...]()
            load += probe.load
            for index, task in pending:  # the images of the last task are open
                durations[index] = 0.0 if task.images == opened else probe.opening(len(task.images))
                opened = task.images
            for method in dict.fromkeys(task.method for _, task in pending):
                of_method = [(i, task) for i, task in pending if task.method == method]
                if report is not None:
                    report(len(costs), methods, f"measuring {method}")
                cost = probe.cost(method, {metric for _, task in of_method for metric in task.metrics})
                first, maps, spent, stored = of_method[0][1], 0, 0.0, frozenset[str]()
                if store is not None and not first.force:
                    stored = store.images_with_maps(first.setting)
                for index, task in of_method:
                    images = len(task.images)
                    made = 0 if stored.issuperset(task.images) else images
                    scores = {metric: images * cost.scores[metric] for metric in task.metrics}
                    taken = images * cost.file + sum(scores.values()) + made * cost.maps
                    durations[index] += taken
                    metrics.update(scores)
                    maps, spent, size = maps + made, spent + taken, size + images * cost.file_bytes
                size, map_bytes = size + cost.shared_bytes, map_bytes + maps * cost.map_bytes
                forward, jvp, vjp = (maps * passes for passes in cost.passes)
                names = name, model, method, len(of_method), maps
                costs.append(MethodCost(*names, forward, jvp, vjp, spent, cost.fraction))
    elapsed, cpu = time.perf_counter() - began, time.process_time() - used
    with _threads(threads):
        is_cpu = clock_of(torch.device(how.device)) is time.process_time
    # the processor time of Windows moves in steps of 16 ms, and where nothing is left to do it stands still
    slower, busy = (max(1.0, elapsed / cpu) if cpu else 1.0, 1.0) if is_cpu else (1.0, cpu / elapsed)
    # each process begins a file, and with maps another
    empty = Writer(Path(), "", lambda name, content: None).size * min(workers, len(tasks))
    images = sum(stored_bytes(len(to_json(list(one)))) for one in {task.images for task in tasks})
    return RunEstimate(
        study=name,
        images=len(resolved.manifest.images),
        models=tuple(model.label for model in resolved.plan.models),
        costs=tuple(costs),
        metrics=dict(+metrics),
        seconds=slower * (load + _makespan([share * one for one in durations], workers)),
        cpu_seconds=busy * (load + sum(durations)),
        bytes=round(size + images + empty),
        map_bytes=round(map_bytes + (empty if map_bytes else 0)),
        workers=workers,
        device=how.device,
    )


def _makespan(durations: Sequence[float], workers: int) -> float:
    """When the last task ends, if each goes to the first process that is free."""
    free = [0.0] * workers
    for seconds in durations:
        heapq.heapreplace(free, free[0] + seconds)
    return max(free)


@contextlib.contextmanager
def _threads(number: int | None) -> Generator[None]:
    """The threads that a process of several has."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
