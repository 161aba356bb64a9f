"""Tasks: what of a plan is stored, missing, or no longer required."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fringe._files.records import changes, digest
from fringe._strings.formats import counted
from fringe.bench.experiments._manifest import Manifest
from fringe.bench.experiments._records import MAP, MISSING, OK, StoredTask
from fringe.bench.experiments._store import CRASH, PLAN, Store


@dataclass(frozen=True)
class Task:
    """One method on one model for some images, scored by some metrics: computed and committed together.

    Attributes:
        model, method: Labels.
        setting: Digest of what shapes the maps.
        metrics: Labels of the metrics.
        metric_keys: Their digests.
        images: Digests of the images.
        force: Whether to compute it again if it is committed.
    """

    model: str
    method: str
    setting: str
    metrics: tuple[str, ...]
    metric_keys: tuple[str, ...]
    images: tuple[str, ...]
    force: bool = False

    @property
    def key(self) -> str:
        """Name of the task in the store."""
        return digest([self.setting, sorted(self.metric_keys), self.images])

    def record(self, manifest: Manifest) -> dict[str, Any]:
        """What names the task and its scores, as JSON data: the record of one that ended its process."""
        names = {"model": self.model, "method": self.method, "setting_key": self.setting}
        return {**names, "metric_keys": list(self.metric_keys), "images": list(self.images), **self.shared(manifest)}

    def shared(self, manifest: Manifest) -> dict[str, Any]:
        """What is stored with its records: enough to say later why it is no longer required."""
        metrics = {label: manifest.metrics[label]["settings"] for label in self.metrics}
        return {"setting": manifest.settings[self.model][self.method], "metrics": metrics}


class ScoreArrays:
    """The scores of a plan as arrays (settings, metrics, images): which are required, done and failed. Of several tasks
    with one score a valid one counts, and of those the last.

    Attributes:
        manifest: The plan.
        required: Whether the plan asks for a score.
        score: Scores, NaN where there is none.
        status: Places in ``STATUSES``.
        note_index: Places in ``notes``.
        map_index: Places in ``maps``; -1, the place of the empty one, where the score is missing.
        notes: Flags and error of scores, each pair once.
        maps: Records of ``MAP`` of the maps of all ``tasks``, and an empty one.
        tasks: Those of a required score.
    """

    def __init__(self, manifest: Manifest, tasks: Iterable[StoredTask]):
        self.manifest = manifest
        keys = [manifest.setting_key(model, method) for model, named in manifest.settings.items() for method in named]
        names = keys, [m["key"] for m in manifest.metrics.values()], [image["digest"] for image in manifest.images]
        self._places = tuple({name: i for i, name in enumerate(dict.fromkeys(one))} for one in names)
        shape = tuple(map(len, self._places))
        self.required = np.zeros(shape, np.bool_)
        for model, named in manifest.settings.items():
            settings = [self._places[0][manifest.setting_key(model, method)] for method in named]
            for label, metric in manifest.metrics.items():
                at = np.asarray(manifest.positions(model, label), np.int64)
                self.required[np.array(settings)[:, None], self._places[1][metric["key"]], at] = True
        self.score, self.status = np.full(shape, np.nan), np.zeros(shape, np.uint8)
        self.note_index, self.map_index = np.zeros(shape, np.int32), np.full(shape, -1, np.int32)
        self.tasks, self._first = list[StoredTask](), [0]
        self._places_of_notes: dict[tuple[tuple[str, ...], str | None], int] = {((), None): 0}
        maps, verdicts = list[bytes](), {"": 0}
        known = dict[tuple[int, int], tuple[Any, Any]]()  # many tasks share their names
        for task in tasks:
            s, names = self._places[0].get(task.setting), (id(task.metrics), id(task.images))
            if s is None:
                continue
            if names not in known:
                known[names] = self._where(task)
            if not self.required[s][known[names][1]].any():
                continue
            self._add(task, s, *known[names])
            words = [verdicts.setdefault(word, len(verdicts)) for word in ("", *task.notes["verdicts"])]
            made = task.maps
            if words != list(range(len(words))):
                made = made.copy()
                made["verdict"] = np.array(words, np.uint8)[task.maps["verdict"]]
            maps.append(made.tobytes())
        self.maps = np.frombuffer(b"".join([*maps, bytes(MAP.itemsize)]), MAP)
        self.verdicts, self.notes = [None, *list(verdicts)[1:]], list(self._places_of_notes)

    def _where(self, task: StoredTask) -> tuple[Any, Any]:
        """Which scores of a task are asked for, and where they belong."""
        at = [
            np.array([p.get(n, -1) for n in names])
            for p, names in zip(self._places[1:], (task.metrics, task.images), strict=True)
        ]
        source, target = [np.flatnonzero(one >= 0) for one in at], [one[one >= 0] for one in at]
        if all(len(one) and (np.diff(one) == 1).all() for one in (*source, *target)):  # views are faster than copies
            slices = [slice(int(one[0]), int(one[-1]) + 1) for one in (*source, *target)]
            return tuple(slices[:2]), tuple(slices[2:])
        return np.ix_(*source), np.ix_(*target)

    def _add(self, task: StoredTask, s: int, source: Any, target: Any) -> None:
        status, before = task.status[source], self.status[s][target]
        rows = np.arange(self._first[-1], self._first[-1] + len(task.images), dtype=np.int32)[source[1]]
        values: list[tuple[NDArray[Any], Any]]
        values = [(self.score, task.scores[source]), (self.status, status), (self.map_index, rows)]
        is_first = not before.any()
        if task.notes["scores"] or not is_first:
            index, known = np.zeros(task.status.size, np.int32), self._places_of_notes
            for flags, error, positions in task.notes["scores"]:
                index[positions] = known.setdefault((tuple(flags), error), len(known))
            values.append((self.note_index, index.reshape(task.status.shape)[source]))
        if not (is_first and status.all()):
            is_better = (status != MISSING) & ((status == OK) | (before != OK))
            values = [(array, np.where(is_better, value, array[s][target])) for array, value in values]
        for array, value in values:
            array[s][target] = value
        self.tasks.append(task)
        self._first.append(self._first[-1] + len(task.images))

    def tasks_at(self, rows: NDArray[Any]) -> NDArray[np.intp]:
        """Places in ``tasks`` of rows of ``maps``, -1 for none."""
        return np.where(rows < 0, -1, np.searchsorted(self._first, rows, "right") - 1)

    def index(self, setting: str, metric_key: str) -> tuple[int, int]:
        """Where the scores (images,) of a setting and a metric are."""
        return self._places[0][setting], self._places[1][metric_key]

    def has_failed(self, task: Task) -> bool:
        """Whether a score of a task of the plan failed."""
        rows = [self.index(task.setting, key) for key in task.metric_keys]
        images = [self._places[2][image] for image in task.images]
        return any(bool((self.status[row][images] > OK).any()) for row in rows)


def pending_tasks(
    manifest: Manifest, stored: Iterable[StoredTask] | ScoreArrays, shard: int, *, retry: bool = False
) -> list[Task]:
    """The tasks that compute the scores of a plan that are not ``stored``, with ``retry`` also those that failed: model
    by model, ``shard`` images at a time, all methods on the same images in turn, so that they share what is computed
    once for an image."""
    arrays = stored if isinstance(stored, ScoreArrays) else ScoreArrays(manifest, stored)
    is_done = arrays.status == OK if retry else arrays.status != MISSING
    labels, tasks = list(manifest.metrics), list[Task]()
    keys, limits = ([one[name] for one in manifest.metrics.values()] for name in ("key", "limit"))
    for model, methods in manifest.settings.items():
        at = np.asarray(manifest.positions(model), np.int64)
        digests = [manifest.images[i]["digest"] for i in at.tolist()]
        is_limited = np.arange(len(digests)) >= np.array(limits)[:, None]
        lacking = dict[str, NDArray[np.bool_]]()  # (metrics, images)
        for method in methods:
            columns = [arrays.index(manifest.setting_key(model, method), key) for key in keys]
            lacking[method] = ~(np.stack([is_done[column][at] for column in columns]) | is_limited)
        for start in range(0, len(digests), shard):
            for method, columns in lacking.items():
                block = columns[:, start : start + shard]
                by_metrics: dict[tuple[int, ...], list[int]] = {}  # the images by the metrics that they lack
                for i in np.flatnonzero(block.any(0)).tolist():
                    by_metrics.setdefault(tuple(np.flatnonzero(block[:, i]).tolist()), []).append(start + i)
                for metrics, images in by_metrics.items():
                    setting = manifest.setting_key(model, method)
                    named, asked = (tuple(one[m] for m in metrics) for one in (labels, keys))
                    task = Task(model, method, setting, named, asked, tuple(digests[i] for i in images))
                    tasks.append(replace(task, force=retry and arrays.has_failed(task)))
    return tasks


def manifests(store: Store) -> dict[str, Manifest]:
    """The plans of a folder by name."""
    return {name: Manifest.from_record(record) for name, record in store.records(PLAN).items()}


def crashes(store: Store, tasks: Iterable[StoredTask] | None = None) -> list[Mapping[str, Any]]:
    """The records of tasks that were set aside and whose scores are still missing. ``tasks`` are those of the store, if
    they were read."""
    records = store.records(CRASH)
    stored = list(store.tasks() if tasks is None else tasks) if records else []

    def is_done(crash: Mapping[str, Any]) -> bool:
        missing = {(metric, image) for metric in crash["metric_keys"] for image in crash["images"]}
        for task in (task for task in stored if task.setting == crash["setting_key"]):
            missing -= {(task.metrics[m], task.images[i]) for m, i in np.argwhere(task.status != MISSING).tolist()}
        return not missing

    return [record for record in records.values() if not is_done(record)]


def mixed(versions: Mapping[str, Mapping[str, int]]) -> list[str]:
    """A line for each library of which several versions computed the results."""
    return [
        f"{name}: " + ", ".join(f"{version} ({counted(n, 'unit')})" for version, n in counts.items())
        for name, counts in versions.items()
        if len(counts) > 1
    ]


def orphaned(tasks: Iterable[StoredTask], plans: Sequence[ScoreArrays]) -> list[dict[str, Any]]:
    """Committed tasks that no plan requires: ``model``, ``method``, how many ``images``, and as ``reason`` the
    difference to what the plans require now. The plans hold the same ``tasks``."""
    required, manifests = {id(task) for one in plans for task in one.tasks}, [one.manifest for one in plans]
    return [
        {
            **{name: task.shared[name] for name in ("model", "method")},
            **{"images": len(task.images), "reason": _reason(task, manifests)},
        }
        for task in tasks
        if id(task) not in required
    ]


def _reason(task: StoredTask, plans: list[Manifest]) -> str:
    model, method = task.shared["model"], task.shared["method"]
    current = [m.settings[model] for m in plans if model in m.settings]
    if not current:
        return f"no plan has the model {model!r}"
    same = [settings[method] for settings in current if method in settings]
    if not same:
        return f"no plan has the method {method!r}"
    differences = min((changes(task.shared["setting"], setting) for setting in same), key=len)
    if differences:
        return "; ".join(differences)
    images = {image["digest"] for manifest in plans for image in manifest.images}
    missing = sum(image not in images for image in task.images)
    return (
        f"{missing} of its images changed or are not drawn any more"
        if missing
        else "its metrics have other settings now"
    )
