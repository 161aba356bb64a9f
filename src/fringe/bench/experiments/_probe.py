"""A probe of a plan: each method makes and scores the maps of one task, and nothing is stored."""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import torch

from fringe.bench.experiments._database import encoded, to_json
from fringe.bench.experiments._manifest import Resolved
from fringe.bench.experiments._records import StoredMap
from fringe.bench.experiments._runner import TaskResult, TaskRunner
from fringe.bench.experiments._tasks import Task
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


@dataclass(frozen=True)
class ProbeOptions:
    """How tasks are probed: a map is stopped after ``seconds`` and extrapolated.

    The tasks are for ``workers`` processes of ``threads`` threads each (None: those of this process), beside which a
    task takes ``share`` times as long.
    """

    device: str = "cpu"
    batch_size: int | Literal["auto"] = "auto"
    seconds: float = 10.0
    workers: int = 1
    threads: int | None = None
    share: float = 1.0


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
class _Sample:
    """What the task of some images took: seconds of the maps, of scores by metric, and of its rows in the store;
    passes; bytes of its rows, of what it shares with the tasks of its method, and of its maps."""

    images: int
    maps: float
    scores: Mapping[str, float]
    file: float
    passes: Sequence[float]
    fraction: float
    file_bytes: float
    shared_bytes: float
    map_bytes: float


class TaskCost:
    """Cost of the tasks of a method: measured for one image and for a whole task, linear for other sizes."""

    def __init__(self, samples: Sequence[_Sample], metrics: Mapping[str, Metric], chunk: int):
        self._samples, self._metrics, self._chunk, last = samples, metrics, chunk, samples[-1]
        self.passes, self.fraction = [n / last.images for n in last.passes], last.fraction
        self.shared_bytes, self.map_bytes = last.shared_bytes, last.map_bytes / last.images

    def maps(self, images: int) -> float:
        """Seconds of the maps of some images."""
        return self._at(images, [sample.maps for sample in self._samples])

    def scores(self, labels: Sequence[str], images: int) -> dict[str, float]:
        """Seconds of the scores of some images by metric; further maps that one asks for are counted as those."""
        return {label: self._score(label, images) for label in labels}

    def file(self, images: int) -> float:
        """Seconds to make the rows of a task of some images."""
        return self._at(images, [sample.file for sample in self._samples])

    def file_bytes(self, images: int) -> float:
        """Bytes of the store for the rows of a task of some images."""
        return self._at(images, [sample.file_bytes for sample in self._samples])

    def _score(self, label: str, images: int) -> float:
        if not self._metrics[label].requires_explainer:
            return self._at(images, [sample.scores[label] for sample in self._samples])
        full, part = divmod(round(images * self._metrics[label].planned_maps), self._chunk)
        return full * self.maps(self._chunk) + (self.maps(part) if part else 0.0)

    def _at(self, images: int, values: Sequence[float]) -> float:
        if len(values) == 1:
            return values[0] * images
        low, high = min(values), values[-1]
        return low + (high - low) * (images - 1) / (self._samples[-1].images - 1)


class Probe:
    """A model of a plan, open to be probed; ``load`` is the seconds that this took. Raises FringeError if no image can
    be explained, or the model cannot be used."""

    def __init__(self, resolved: Resolved, model: str, options: ProbeOptions):
        self._resolved, self._model, self._options = resolved, model, options
        self._device, metrics = torch.device(options.device), resolved.plan.metrics
        self._clock = clock_of(self._device)
        plain = {label: metric for label, metric in metrics.items() if not metric.requires_explainer}
        self._timed = {label: _Timed(metric, self._clock) for label, metric in plain.items()}
        plan = replace(resolved.plan, metrics=cast(Any, {**metrics, **self._timed}))
        self._runner = TaskRunner(replace(resolved, plan=plan), device=options.device, batch_size=options.batch_size)
        self._runner.progress = self._watch
        digests = tuple(image["digest"] for image in resolved.manifest.images_of(model))
        began = self._clock()
        first = self._first(digests)
        self.load = self._clock() - began
        self._sizes, self._opening, self._warm = list[tuple[str, ...]]([(first,)]), list[float](), False
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

    def cost(self, method: str) -> TaskCost:
        """Measure what tasks of a method take. All images of a task are tried if those of one do not take long."""
        if not self._warm:
            self._sample(method, self._sizes[0])
            self._warm = True
        samples = [self._sample(method, self._sizes[0])]
        one = samples[0].maps + sum(samples[0].scores.values())
        if samples[0].fraction == 1 and one <= self._options.seconds:
            samples += [self._sample(method, images) for images in self._sizes[1:]]
        chunk = self._runner.subjects(self._model, self._sizes[0])[0].problem.model.batch_size.on(self._device)
        return TaskCost(samples, self._resolved.plan.metrics, chunk)

    def _first(self, images: Sequence[str]) -> str:
        """The first image that can be explained, after the network has run once."""
        if not images:
            raise FringeError("images: none of those that were drawn can be read")
        for image in images[:-1]:
            with contextlib.suppress(FringeError):
                self._runner.subject(self._model, (image,))
                return image
        self._runner.subject(self._model, (images[-1],))
        return images[-1]

    def _sample(self, method: str, images: tuple[str, ...]) -> _Sample:
        manifest, contexts = self._resolved.manifest, self._runner.subjects(self._model, images)
        labels = tuple(self._timed)
        keys, setting = (tuple(manifest.metrics[n]["key"] for n in labels), manifest.setting_key(self._model, method))
        task, classifier = Task(self._model, method, setting, labels, keys, images), contexts[0].problem.model
        before, maps = replace(classifier.passes), dict[str, StoredMap]()
        try:
            result, seconds = self._perform(task)
        except _Stop:
            seconds, counts = self._clock() - self._began, classifier.passes.since(before)
            seconds, passes = seconds / self._fraction, [getattr(counts, name) / self._fraction for name in PASSES]
            for problem in (context.problem for context in contexts):  # the edge control, in place of slow maps
                known = zip(problem.keys, CONTROLS["edge"](problem), problem.target.tolist(), strict=True)
                maps |= {key: StoredMap(values, {"target": target, "status": "ok"}) for key, values, target in known}
            result, _ = self._perform(task, maps)
        else:
            seconds -= sum(timed.seconds for timed in self._timed.values())
            passes = [sum(stored.metadata[name] for stored in result.maps.values()) for name in PASSES]
        scores, began = {label: timed.seconds for label, timed in self._timed.items()}, self._clock()
        file, shared = 0.0, 0.0
        if result.scores is not None:
            numbers, notes, details = map(len, encoded(result.scores))
            file = stored_bytes(numbers + notes) + stored_bytes(details)
            shared = stored_bytes(len(to_json(result.scores.shared)))
        stored = sum(stored_bytes(len(one.to_bytes())) for one in (maps or result.maps).values())
        return _Sample(
            images=len(images),
            maps=seconds,
            scores=scores,
            file=self._clock() - began,
            passes=passes,
            fraction=self._fraction,
            file_bytes=file,
            shared_bytes=shared,
            map_bytes=stored,
        )

    def _perform(self, task: Task, maps: Mapping[str, StoredMap] | None = None) -> tuple[TaskResult, float]:
        for timed in self._timed.values():
            timed.seconds = 0.0
        self._began = self._clock()
        self._fraction = 1.0 if maps is None else self._fraction
        result = self._runner.perform(task, maps)
        return result, self._clock() - self._began

    def _watch(self, label: str, done: float, planned: int) -> None:
        if self._clock() - self._began > self._options.seconds and 0 < done < planned:
            self._fraction = done / planned
            raise _Stop
