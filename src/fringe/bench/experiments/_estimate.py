"""What a run would take: missing tasks, and passes, bytes and time by one probe of each method; nothing is stored."""

import contextlib
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from fringe._strings.formats import counted
from fringe._strings.progress import Report, shown
from fringe.bench.experiments._database import NEW_BYTES
from fringe.bench.experiments._manifest import Resolved, resolve
from fringe.bench.experiments._plan import Plan, build_plan
from fringe.bench.experiments._records import Result, StoredMap, joined, row_type, to_json
from fringe.bench.experiments._run import RunOptions
from fringe.bench.experiments._spec import ExperimentSpec
from fringe.bench.experiments._store import Store
from fringe.bench.experiments._tasks import Task, pending_tasks
from fringe.evaluation import CONTROLS
from fringe.metrics import EvaluatedMaps, Metric, Scores

#: Bytes of a row of SQLite and of its details beside their content: digests, headers, and their share of the pages.
_ROW = 160


@dataclass(frozen=True)
class MethodCost:
    """What is missing of a method on a model, and what it takes: ``maps`` are those that are not stored, ``passes`` are
    theirs, and ``seconds`` those of maps and scores. A ``fraction`` of a map was computed; the rest is extrapolated."""

    model: str
    method: str
    tasks: int
    maps: int
    passes: float
    seconds: float
    fraction: float

    def describe(self) -> str:
        """Describe the cost for people, in one line."""
        rough = "" if self.fraction == 1 else f" (from {self.fraction:.0%} of a map)"
        passes = f"{self.maps} maps, {self.passes:,.0f} passes"
        return f"{self.model} {self.method}: {passes}, {describe_seconds(self.seconds)}{rough}"


@dataclass(frozen=True)
class RunEstimate:
    """What is missing of a plan, and what it takes.

    Attributes:
        plan: Name of the plan.
        images: Number of its images.
        methods: An entry for each model and method with missing tasks.
        metrics: Seconds of all scores by metric.
        seconds: Time of all tasks, one after the other.
        bytes: Growth of the store without maps.
        map_bytes: Its growth by maps, if they are saved.
        device: Where the models are.
    """

    plan: str
    images: int
    methods: tuple[MethodCost, ...]
    metrics: Mapping[str, float]
    seconds: float
    bytes: int
    map_bytes: int
    device: str

    def describe(self) -> str:
        """Describe the estimate for people.

        Returns:
            A line for each method with passes, for the scores, for the store and for the time.
        """
        scores = ", ".join(f"{label} {describe_seconds(spent)}" for label, spent in self.metrics.items())
        rows, both = (f"{size / 1e6:.3g} MB" for size in (self.bytes, self.bytes + self.map_bytes))
        lines = [
            f"{self.plan}: {counted(self.images, 'image')}; missing tasks: {sum(cost.tasks for cost in self.methods)}",
            *(f"  {cost.describe()}" for cost in self.methods if cost.passes),
            *([f"  scores: {scores}"] if scores else []),
            f"the store grows by {rows}, with save_maps=True by {both}",
            f"in all about {describe_seconds(self.seconds)} on {self.device}, one task after the other",
        ]
        return "\n".join(lines)


def describe_seconds(seconds: float) -> str:
    """A time with two digits, in the unit that a person would use."""
    size, unit = next((one for one in ((3600.0, "h"), (60.0, "min")) if seconds >= 1.5 * one[0]), (1.0, "s"))
    return f"{seconds / size:.2g} {unit}" if seconds / size < 99.5 else f"{seconds / size:.0f} {unit}"


class _Stop(BaseException):
    """Ends a map early. It is no Exception, so no method handles it as an error."""


class _Timed:
    """A metric, and the seconds that it took: what metrics share is computed by the first of them."""

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
    """A model of a plan, whose maps and scores are measured on the first image that can be explained.

    A map is stopped after ``seconds``. ``bytes`` and ``map_bytes`` are those of a row and of a map; ``scores`` are the
    seconds of a row's scores by metric, measured with the edge control because they hardly depend on the map. Raises
    FringeError if no image can be explained, or the model cannot be used.
    """

    def __init__(self, resolved: Resolved, model: str, how: RunOptions, seconds: float):
        plan, self._manifest, self._model, self._seconds = resolved.plan, resolved.manifest, model, seconds
        timed = {label: _Timed(one) for label, one in plan.metrics.items() if not one.requires_explainer}
        self._further = {label: one.planned_maps for label, one in plan.metrics.items() if one.requires_explainer}
        self._derived = {one.label for one in plan.candidates(plan.model(model)) if one.of}  # made of others' maps
        metrics = cast("dict[str, Any]", {**plan.metrics, **timed})
        self._runner = how.runner(replace(resolved, plan=replace(plan, metrics=metrics)))
        self._runner.progress = self._watch
        digests = (image["digest"] for image in self._manifest.images_of(model))
        self._image, subject = self._runner.first_explainable(model, digests)
        self._passes, edge = subject.problem.model.passes, CONTROLS["edge"](subject.problem)[0]
        known = {"target": int(subject.problem.target[0]), "status": "ok"}
        results = self._perform(next(iter(self._manifest.settings[model])), timed, StoredMap(edge, known))
        self.scores = {label: one.seconds for label, one in timed.items()}
        self.bytes = len(joined(results[0].details)[1]) + row_type(len(plan.metrics)).itemsize + _ROW
        self.map_bytes = 4 * edge.numel()

    def _perform(self, method: str, metrics: Iterable[str] = (), stored: StoredMap | None = None) -> list[Result]:
        setting, labels = self._manifest.setting_key(self._model, method), tuple(metrics)
        keys = tuple(self._manifest.metrics[label]["key"] for label in labels)
        task = Task(self._model, method, setting, labels, keys, (self._image,))
        return self._runner.perform(task, {} if stored is None else {self._image: stored}).results

    def cost(self, method: str) -> tuple[float, float, float]:
        """Seconds and passes of a map of a method, and the fraction of a map that was made."""
        if method in self._derived:
            return 0.0, 0.0, 1.0
        before, self._began, self._fraction = replace(self._passes), time.perf_counter(), 1.0
        with contextlib.suppress(_Stop):
            self._perform(method)
        made = self._passes.since(before)
        passes = made.forward + made.jvp + made.vjp
        return (time.perf_counter() - self._began) / self._fraction, passes / self._fraction, self._fraction

    def seconds_of(self, metric: str, of_map: float) -> float:
        """The seconds of an image's score, where each further map that the metric asks for takes ``of_map`` seconds."""
        return of_map * self._further[metric] if metric in self._further else self.scores[metric]

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

    Each method makes the map of one image, and each other map takes as much; a device that computes several images at
    once is faster. A map that takes too long is stopped, and its time is extrapolated from the finished steps. Metrics
    that need further maps cost these maps; the others are measured once for a model.

    Args:
        spec: What is computed.
        out: Run folder. What it holds already is not counted; None, or a folder that does not exist, holds nothing.
        seconds: Longest time of a map of the probe.
        progress: True for a progress bar, or a function that is called with the numbers of measured and of all methods
            and the name of the next.
        **options: Fields of :class:`RunOptions`, as for :func:`run_experiment`; no executor is started.

    Returns:
        The estimate.

    Raises:
        FringeError: For a specification, folder or model that cannot be used, and if no image can be explained.
    """
    how = RunOptions(**options).resolve()
    resolved = resolve(spec if isinstance(spec, Plan) else build_plan(spec), logits=True)
    plan, manifest, store = resolved.plan, resolved.manifest, None if out is None else Store.existing(Path(out))
    missing, probes = dict[tuple[str, str], list[Task]](), dict[str, Probe]()
    for task in pending_tasks(manifest, () if store is None else store.blocks(), plan.shard, retry=how.retry):
        missing.setdefault((task.model, task.method), []).append(task)
    costs, scores, map_bytes = list[MethodCost](), Counter[str](), 0.0
    size = 0.0 if store else float(NEW_BYTES + len(to_json(manifest.record())))
    with shown(progress, "measuring") as report:
        for number, ((model, method), tasks) in enumerate(missing.items()):
            if report is not None:
                report(number, len(missing), f"measuring {method}")
            probe = probes.get(model) or probes.setdefault(model, Probe(resolved, model, how, seconds))
            (of_map, passes, fraction), maps, spent = probe.cost(method), 0, Counter[str]()
            for task in tasks:
                n = len(task.images)
                stored = 0 if store is None or task.force else len(store.has_maps(task.setting, task.images))
                maps += n if stored < n else 0
                spent.update({metric: n * probe.seconds_of(metric, of_map) for metric in task.metrics})
                size += n * probe.bytes
            map_bytes += maps * probe.map_bytes
            scores.update(spent)
            of_all = maps * of_map + sum(spent.values())
            costs.append(MethodCost(model, method, len(tasks), maps, maps * passes, of_all, fraction))
    return RunEstimate(
        plan=plan.name,
        images=len(manifest.images),
        methods=tuple(costs),
        metrics=dict(+scores),
        seconds=sum(cost.seconds for cost in costs),
        bytes=round(size),
        map_bytes=round(map_bytes),
        device=how.device,
    )
