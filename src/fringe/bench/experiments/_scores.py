"""Scores of a plan: tasks become arrays, and arrays tables."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fringe.bench.experiments._manifest import Manifest
from fringe.bench.experiments._records import (
    MAP,
    MISSING,
    OK,
    STATUSES,
    Details,
    ScoreRecord,
    StoredTask,
    read_ragged,
    targets_of,
    tasks_of,
)

if TYPE_CHECKING:
    import polars as pl  # of the extra bench, which :func:`fringe.compare` does without


class Source(Protocol):
    """Where the tasks of a plan are."""

    def tasks(self) -> list[StoredTask]:
        """Read the tasks; of two that have a score the later counts."""
        ...

    def details(self, tasks: Sequence[StoredTask]) -> Iterator[tuple[StoredTask, Details]]:
        """Read the curves, extras and diagnostics of tasks."""
        ...


class Records:
    """Records in memory."""

    def __init__(self, records: Iterable[ScoreRecord]):
        self._tasks = tasks_of(records)

    def tasks(self) -> list[StoredTask]:
        return self._tasks

    def details(self, tasks: Sequence[StoredTask]) -> Iterator[tuple[StoredTask, Details]]:
        yield from ((task, task.details or {}) for task in tasks)


class ScoreArrays:
    """The scores of a plan as arrays (settings, metrics, images). Of several tasks with one score a valid one counts,
    and of those the last.

    Attributes:
        score: Scores, NaN where there is none.
        status: Places in ``STATUSES``.
        note: Places in ``notes``: flags and error of each score.
        map: Places in ``maps``, the records of ``MAP`` of all ``tasks``; -1 where the score is missing.
    """

    def __init__(self, manifest: Manifest, tasks: Iterable[StoredTask]):
        keys = [manifest.setting_key(model, method) for model, named in manifest.settings.items() for method in named]
        names = keys, [m["key"] for m in manifest.metrics.values()], [image["digest"] for image in manifest.images]
        self._places = tuple({name: i for i, name in enumerate(dict.fromkeys(one))} for one in names)
        shape = tuple(map(len, self._places))
        self.score, self.status = np.full(shape, np.nan), np.zeros(shape, np.uint8)
        self.note, self.notes = np.zeros(shape, np.int32), {((), None): 0}
        self.map, self.tasks, self._first = np.full(shape, -1, np.int32), list[StoredTask](), [0]
        maps, verdicts = list[bytes](), {"": 0}
        known = dict[tuple[int, int], tuple[Any, Any]]()  # many tasks share their names
        for task in tasks:
            s, names = self._places[0].get(task.setting), (id(task.metrics), id(task.images))
            if s is None:
                continue
            if names not in known:
                known[names] = self._where(task)
            self._add(task, s, *known[names])
            words = [verdicts.setdefault(word, len(verdicts)) for word in ("", *task.notes["verdicts"])]
            made = task.maps
            if words != list(range(len(words))):
                made = made.copy()
                made["verdict"] = np.array(words, np.uint8)[task.maps["verdict"]]
            maps.append(made.tobytes())
        self.maps, self.verdicts = np.frombuffer(b"".join(maps), MAP), [None, *list(verdicts)[1:]]

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
        rows = np.broadcast_to(np.arange(len(task.images), dtype=np.int32) + self._first[-1], task.status.shape)
        values = [(self.score, task.scores[source]), (self.status, status), (self.map, rows[source])]
        if task.notes["scores"] or before.any():
            notes = np.zeros(task.status.size, np.int32)
            for flags, error, positions in task.notes["scores"]:
                notes[positions] = self.notes.setdefault((tuple(flags), error), len(self.notes))
            values.append((self.note, notes.reshape(task.status.shape)[source]))
        is_better = (status != MISSING) & ((status == OK) | (before != OK))
        for array, value in values:
            array[s][target] = value if is_better.all() else np.where(is_better, value, array[s][target])
        self.tasks.append(task)
        self._first.append(self._first[-1] + len(task.images))

    def tasks_at(self, rows: NDArray[Any]) -> NDArray[np.intp]:
        """Places in ``tasks`` of rows of ``maps``, -1 for none."""
        return np.where(rows < 0, -1, np.searchsorted(self._first, rows, "right") - 1)

    def column(self, name: str, setting: str, metric_key: str) -> NDArray[Any]:
        """A part (images,) of the array of a name."""
        return getattr(self, name)[self._places[0][setting], self._places[1][metric_key]]

    @cached_property
    def words(self) -> list[tuple[tuple[str, ...], str | None]]:
        """Flags and error by place."""
        return list(self.notes)


#: What holds for a map whatever the metric, as the tables show it.
_OF_MAP = ("target", "confidence", "status", "verdict", "forward", "jvp", "vjp", "seconds")


class PlanScores:
    """The scores of a plan, read when they are asked for."""

    def __init__(self, manifest: Manifest, source: Source, tasks: Callable[[], Iterable[StoredTask]] | None = None):
        self.manifest, self.source, self._tasks = manifest, source, tasks or source.tasks
        self._positions = dict[str, NDArray[np.int64]]()
        self._last: tuple[tuple[str, str], pl.DataFrame] | None = None

    @cached_property
    def arrays(self) -> ScoreArrays:
        """All scores, without details."""
        return ScoreArrays(self.manifest, self._tasks())

    def column(self, name: str, model: str, method: str, metric: str) -> NDArray[Any]:
        """A part of an array for the images of a metric."""
        return self._column(name, model, method, metric)[: self.manifest.metrics[metric]["limit"]]

    def _column(self, name: str, model: str, method: str, metric: str) -> NDArray[Any]:
        if model not in self._positions:
            self._positions[model] = np.asarray(self.manifest.positions(model), np.int64)
        key = self.manifest.metrics[metric]["key"]
        return self.arrays.column(name, self.manifest.setting_key(model, method), key)[self._positions[model]]

    def counts(self, model: str, method: str, metric: str) -> tuple[int, int, int]:
        """How many scores are required, how many there are, and how many failed."""
        status = self.column("status", model, method, metric)
        scored = int((status == OK).sum())
        return len(status), scored, int((status != MISSING).sum()) - scored

    def failed(self, model: str, method: str, metric: str) -> list[tuple[int, str]]:
        """The positions of the images that were computed and have no score, each with the reason."""
        status, note = (self.column(name, model, method, metric) for name in ("status", "note"))
        return [(i, self.arrays.words[note[i]][1] or STATUSES[status[i]]) for i in np.flatnonzero(status > OK).tolist()]

    def flags(self, model: str, method: str, metric: str) -> dict[str, int]:
        """Count how often each flag is set, the first that is met first."""
        result = dict[str, int]()
        numbers, first, counts = np.unique(
            self.column("note", model, method, metric), return_index=True, return_counts=True
        )
        for index in np.argsort(first):
            for flag in self.arrays.words[numbers[index]][0]:
                result[flag] = result.get(flag, 0) + int(counts[index])
        return result

    def rows(self, model: str, method: str, metric: str) -> tuple[ScoreRecord | None, ...]:
        """All that is stored of each score, None where an image was not computed."""
        at = self.arrays.tasks_at(self.column("map", model, method, metric))
        key = self.manifest.metrics[metric]["key"]
        images = self.manifest.images_of(model, metric)
        known, records = {image["digest"]: image for image in images}, dict[tuple[int, str], ScoreRecord]()
        numbers = {id(self.arrays.tasks[number]): number for number in np.unique(at[at >= 0]).tolist()}
        for task, details in self.source.details([self.arrays.tasks[number] for number in numbers.values()]):
            rows = (row for row in task.rows(details, known) if row.metric_key == key)
            records |= {(numbers[id(task)], row.image): row for row in rows}
        return tuple(records.get((n, image["digest"])) for n, image in zip(at.tolist(), images, strict=True))

    def curves(self, model: str, method: str, names: Mapping[str, str]) -> dict[str, list[NDArray[np.float64]]]:
        """Read a curve of each metric in ``names``, (N + 1,) for each image that has one."""
        columns = {metric: self.arrays.tasks_at(self.column("map", model, method, metric)) for metric in names}
        images = [image["digest"] for image in self.manifest.images_of(model)]
        numbers = np.unique(np.concatenate(list(columns.values()))) if columns else np.empty(0, np.int32)
        tasks = {id(self.arrays.tasks[n]): n for n in numbers[numbers >= 0].tolist()}
        lines: dict[str, dict[int, Any]] = {metric: {} for metric in names}
        positions = {digest: i for i, digest in enumerate(images)}
        for task, details in self.source.details([self.arrays.tasks[number] for number in tasks.values()]):
            for metric, name in names.items():
                full = f"curve/{self.manifest.metrics[metric]['key']}/{name}"
                if full not in task.shared["details"]:
                    continue
                for image, values in zip(task.images, read_ragged(details, full, len(task.images)), strict=True):
                    i = positions.get(image, len(images))
                    if i < len(columns[metric]) and columns[metric][i] == tasks[id(task)] and values is not None:
                        lines[metric][i] = values
        return {metric: [of[i] for i in sorted(of)] for metric, of in lines.items()}

    def method_frame(self, model: str, method: str) -> "pl.DataFrame":
        """The required scores of a method: a row for each metric and image, in the order of the plan."""
        if self._last is None or self._last[0] != (model, method):
            self._last = (model, method), self._frame(model, method)
        return self._last[1]

    def _frame(self, model: str, method: str) -> "pl.DataFrame":
        import polars as pl

        manifest, metrics, word = self.manifest, self.manifest.metrics, pl.Categorical
        images, counts = manifest.images_of(model), [len(manifest.positions(model, metric)) for metric in metrics]
        setting = manifest.setting_key(model, method)

        def constant(value: Any, kind: Any) -> pl.Series:
            plain = pl.String if kind == word else kind
            return pl.repeat(value, sum(counts), dtype=plain, eager=True).cast(kind)

        def by_metric(values: Iterable[str]) -> pl.Series:
            numbers = np.repeat(np.arange(len(counts)), counts)
            return pl.Series(list(values), dtype=word)[numbers]

        def by_image(name: str, kind: Any) -> pl.Series:
            column = pl.Series([image[name] for image in images], dtype=kind)
            return pl.concat([column[:count] for count in counts]) if counts else column[:0]

        def stored(name: str) -> NDArray[Any]:
            parts = [self.column(name, model, method, metric) for metric in metrics]
            return np.concatenate(parts) if parts else np.empty(0, np.int64)

        status, note, words = stored("status"), stored("note"), self.arrays.words
        of_map = self._of_map(stored("map"), status)
        errors, flags = [error for _, error in words], [list(named) for named, _ in words]
        return pl.DataFrame(
            {
                "model": constant(model, word),
                "method": constant(method, word),
                "control": constant("control" in manifest.settings[model][method]["method"], pl.Boolean),
                "setting": constant(setting, word),
                "metric": by_metric(metrics),
                "metric_key": by_metric(metric["key"] for metric in metrics.values()),
                "image": by_image("digest", pl.String).cast(word),
                "image_id": by_image("id", pl.String),
                "label": by_image("label", pl.Int32),
                "target": of_map["target"],
                "confidence": of_map["confidence"],
                "score": pl.Series(stored("score"), dtype=pl.Float64).fill_nan(None),
                "status": of_map["status"],
                "error": pl.Series(errors, dtype=pl.String)[note],
                "verdict": of_map["verdict"],
                "flags": pl.Series([*flags, None], dtype=pl.List(pl.String))[np.where(status == MISSING, -1, note)],
                **{name: of_map[name] for name in ("forward", "jvp", "vjp", "seconds")},
            }
        )

    def _of_map(self, at: NDArray[Any], status: NDArray[Any]) -> "dict[str, pl.Series]":
        """Columns of the maps at some places, null where there is none (-1)."""
        import polars as pl

        empty = np.zeros(1, MAP)
        maps = np.concatenate([self.arrays.maps, empty])[at]
        numbers = {
            name: np.where(at < 0, np.nan, maps[name]) for name in ("confidence", "forward", "jvp", "vjp", "seconds")
        }
        columns = {name: pl.Series(values).fill_nan(None) for name, values in numbers.items()}
        target = np.where(at < 0, np.nan, targets_of(maps))
        columns["target"] = pl.Series(target).fill_nan(None).cast(pl.Int32)
        columns["verdict"] = pl.Series(self.arrays.verdicts, dtype=pl.Categorical)[maps["verdict"].astype(np.int64)]
        columns["status"] = pl.Series(STATUSES, dtype=pl.Categorical)[status.astype(np.int64)]
        return columns

    def map_frame(self, model: str, method: str) -> "pl.DataFrame":
        """What holds for the maps of a method whatever the metric: a row for each computed image, from its first score
        that is valid, or else from its first."""
        import polars as pl

        metrics, limits = self.manifest.metrics, [[metric["limit"]] for metric in self.manifest.metrics.values()]
        status, at = (np.stack([self._column(n, model, method, m) for m in metrics]) for n in ("status", "map"))
        is_asked = np.arange(status.shape[1]) < np.array(limits)
        rank = np.where(is_asked, (status != MISSING).astype(np.int8) + (status == OK), 0)
        images = np.flatnonzero(rank.max(0) > 0)
        best = rank.argmax(0)[images]
        columns = self._of_map(at[best, images], status[best, images])
        digests = [self.manifest.images[index]["digest"] for index in self._positions[model][images].tolist()]
        names = {"method": [method] * len(digests), "image": digests}
        texts = {name: pl.Series(text, dtype=pl.Categorical) for name, text in names.items()}  # 4 bytes, not 48
        return pl.DataFrame({**texts, **{name: columns[name] for name in _OF_MAP}})
