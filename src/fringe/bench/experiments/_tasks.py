"""Tasks: what of a plan is stored, missing, or no longer required."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fringe._files.records import changes, digest
from fringe._strings.formats import counted
from fringe.bench.experiments._manifest import Manifest
from fringe.bench.experiments._records import MISSING, OK, STATUSES, fingerprint
from fringe.bench.experiments._store import PLAN, Block, Store

#: What holds for a map whatever the metric, with its row: ``id`` in the store, ``block`` in :class:`ScoreArrays`.
_COPIED = ("id", "target", "batch", "confidence", "forward", "jvp", "vjp", "seconds")
MAP = np.dtype(
    [("id", "<i8"), ("block", "<i4"), ("target", "<i4"), ("batch", "<i4"), ("verdict", "<i4")]
    + [(name, "<f8") for name in ("confidence", "forward", "jvp", "vjp", "seconds")]
)


@dataclass(frozen=True)
class Task:
    """One method on one model for some images, scored by some metrics: computed and committed together.

    Attributes:
        model, method: Labels.
        setting: Digest of what shapes the maps.
        metrics: Labels of the metrics.
        metric_keys: Their digests.
        images: Digests of the images.
        force: Whether to compute it again, and to use no stored map.
        save: Whether its maps are stored in any case.
    """

    model: str
    method: str
    setting: str
    metrics: tuple[str, ...]
    metric_keys: tuple[str, ...]
    images: tuple[str, ...]
    force: bool = False
    save: bool = False

    @property
    def key(self) -> str:
        """Name of the task in the store."""
        return digest([self.setting, sorted(self.metric_keys), self.images])

    def about(
        self, manifest: Manifest, versions: Mapping[str, str], of_maps: Sequence[Mapping[str, str]]
    ) -> dict[str, Any]:
        """What the rows of the task share: enough to read them, and to say later why they are no longer required. The
        stored maps that were scored are by other versions, ``of_maps``."""
        return {
            **{"model": self.model, "method": self.method, "setting_key": self.setting},
            "setting": manifest.settings[self.model][self.method],
            **{"labels": list(self.metrics), "metrics": list(self.metric_keys)},
            "metric_settings": {label: manifest.metrics[label]["settings"] for label in self.metrics},
            **{"versions": dict(versions), "map_versions": [dict(one) for one in of_maps]},
        }


class ScoreArrays:
    """The scores of a plan as arrays (settings, metrics, images): which are required, done and failed. Of several rows
    with one score a valid one counts, and of those the last.

    Attributes:
        manifest: The plan.
        required: Whether the plan asks for a score.
        score: Scores, NaN where there is none.
        status: Places in ``STATUSES``.
        note_index: Places in ``notes``.
        map_index: Places in ``maps``; 0, the place of the empty one, where the score is missing.
        notes: Flags and error of scores, each pair once.
        maps: Records of ``MAP``.
        verdicts: The verdicts on maps; None stands for none.
        blocks: Where the rows of the maps come from.
    """

    def __init__(self, manifest: Manifest, blocks: Iterable[Block]):
        self.manifest = manifest
        keys = [manifest.setting_key(model, method) for model, named in manifest.settings.items() for method in named]
        names = keys, [m["key"] for m in manifest.metrics.values()], [image["digest"] for image in manifest.images]
        self._places = tuple({name: i for i, name in enumerate(dict.fromkeys(one))} for one in names)
        shape = tuple(map(len, self._places))
        marks = np.array([fingerprint(image) for image in self._places[2]], np.int64)
        self._order = np.argsort(marks)
        self._marks = marks[self._order]
        self.required = np.zeros(shape, np.bool_)
        for model, named in manifest.settings.items():
            settings = [self._places[0][manifest.setting_key(model, method)] for method in named]
            for label, metric in manifest.metrics.items():
                at = np.asarray(manifest.positions(model, label), np.int64)
                self.required[np.array(settings)[:, None], self._places[1][metric["key"]], at] = True
        self.score, self.status = np.full(shape, np.nan), np.zeros(shape, np.uint8)
        self.note_index, self.map_index = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
        self._rank = np.zeros(shape, np.int64)
        self._places_of_notes: dict[tuple[tuple[str, ...], str | None], int] = {((), None): 0}
        self._places_of_verdicts: dict[str | None, int] = {None: 0}
        self.blocks, parts, self._size = list[Block](), [np.zeros(1, MAP)], 1
        for block in blocks:
            at, columns = self._where(block), [self._places[1].get(key, -1) for key in block.about["metrics"]]
            if at is None or not (is_used := self._uses(block, at, columns)).any():
                continue
            rows, at = block.rows[is_used], at[is_used]
            notes = self._notes(block, rows)
            parts.append(self._map_rows(rows, notes[1]))
            left = np.arange(len(rows))
            while len(left):  # once, unless a block has an image twice
                _, first = np.unique(at[left], return_index=True)
                self._add(block, rows, at, columns, notes[0], left[first])
                left = np.delete(left, first)
            self.blocks.append(block)
            self._size += len(rows)
        self.maps = np.concatenate(parts)
        del self._rank
        self.verdicts, self.notes = list(self._places_of_verdicts), list(self._places_of_notes)

    def _where(self, block: Block) -> NDArray[np.int64] | None:
        """Where the images of rows are, -1 for one that is none of the plan's; None for another setting."""
        if block.setting not in self._places[0] or not len(self._marks):
            return None
        at = np.minimum(np.searchsorted(self._marks, block.rows["image"]), len(self._marks) - 1)
        return np.where(self._marks[at] == block.rows["image"], self._order[at], -1)

    def _uses(self, block: Block, at: NDArray[Any], columns: Sequence[int]) -> NDArray[np.bool_]:
        known = [column for column in columns if column >= 0]
        required = self.required[self._places[0][block.setting]][known][:, at].any(0)
        return (at >= 0) & (required | (not columns))

    def uses(self, block: Block) -> NDArray[np.bool_]:
        """Which rows of a block the plan asks for."""
        at = self._where(block)
        columns = [self._places[1].get(key, -1) for key in block.about["metrics"]]
        return np.zeros(len(block.rows), np.bool_) if at is None else self._uses(block, at, columns)

    def _notes(self, block: Block, rows: NDArray[Any]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """The places of the notes of scores (metrics, rows), and of the verdicts (rows)."""
        index = np.zeros((len(block.about["metrics"]), len(rows)), np.int32)
        verdicts = np.zeros(len(rows), np.int32)
        numbers, inverse = np.unique(rows["notes"], return_inverse=True)
        for n, number in enumerate(numbers.tolist()):
            verdict, words = block.notes[number]
            chosen = np.flatnonzero(inverse == n) if len(numbers) > 1 else np.arange(len(rows))
            verdicts[chosen] = self._places_of_verdicts.setdefault(verdict, len(self._places_of_verdicts))
            for flags, error, metrics in words:
                place = self._places_of_notes.setdefault((tuple(flags), error), len(self._places_of_notes))
                index[np.ix_([m for m in metrics if m < len(index)], chosen)] = place
        return index, verdicts

    def _map_rows(self, rows: NDArray[Any], verdicts: NDArray[np.int32]) -> NDArray[Any]:
        result = np.zeros(len(rows), MAP)
        for name in _COPIED:
            result[name] = rows[name]
        result["verdict"], result["block"] = verdicts, len(self.blocks)
        return result

    def _add(
        self,
        block: Block,
        rows: NDArray[Any],
        at: NDArray[Any],
        columns: Sequence[int],
        notes: NDArray[Any],
        chosen: NDArray[Any],
    ) -> None:
        """Take the scores of some rows, each of another image, where they are better than those that are there."""
        source = [m for m, column in enumerate(columns) if column >= 0]
        target = self._places[0][block.setting], np.array([columns[m] for m in source], int)[:, None], at[chosen]
        status = rows["status"][chosen].T[source]
        rank = rows["id"][chosen] + np.where(status == OK, 2**62, 0)
        is_better = (status != MISSING) & (status < len(STATUSES)) & (rank > self._rank[target])
        places = np.broadcast_to((self._size + chosen).astype(np.int32), status.shape)
        for array, values in (
            (self.score, rows["score"][chosen].T[source]),
            (self.status, status),
            (self.map_index, places),
            (self.note_index, notes[source][:, chosen]),
            (self._rank, rank),
        ):
            array[target] = np.where(is_better, values, array[target])

    def index(self, setting: str, metric_key: str) -> tuple[int, int]:
        """Where the scores (images,) of a setting and a metric are."""
        return self._places[0][setting], self._places[1][metric_key]

    def has_failed(self, task: Task) -> bool:
        """Whether a score of a task of the plan failed."""
        rows = [self.index(task.setting, key) for key in task.metric_keys]
        images = [self._places[2][image] for image in task.images]
        return any(bool((self.status[row][images] > OK).any()) for row in rows)


def pending_tasks(
    manifest: Manifest,
    stored: Iterable[Block] | ScoreArrays,
    shard: int,
    *,
    retry: bool = False,
    lost: Mapping[str, frozenset[int]] | None = None,
) -> list[Task]:
    """The tasks that compute the scores of a plan that are not ``stored``, with ``retry`` also those that failed, and
    the maps that are ``lost`` (:meth:`Store.lost_maps`): model by model, ``shard`` images at a time, all methods on the
    same images in turn, so that they share what is computed once for an image."""
    arrays = stored if isinstance(stored, ScoreArrays) else ScoreArrays(manifest, stored)
    is_done = arrays.status == OK if retry else arrays.status != MISSING
    labels, tasks, lost = list(manifest.metrics), list[Task](), lost or {}
    keys, limits = ([one[name] for one in manifest.metrics.values()] for name in ("key", "limit"))
    for model, methods in manifest.settings.items():
        at = np.asarray(manifest.positions(model), np.int64)
        digests = [manifest.images[i]["digest"] for i in at.tolist()]
        is_limited = np.arange(len(digests)) >= np.array(limits)[:, None]
        lacking, gone = dict[str, NDArray[np.bool_]](), dict[str, NDArray[np.bool_]]()  # (metrics, images), (images,)
        for method in methods:
            setting = manifest.setting_key(model, method)
            columns = [arrays.index(setting, key) for key in keys]
            lacking[method] = ~(np.stack([is_done[column][at] for column in columns]) | is_limited)
            of_setting = lost.get(setting, frozenset())
            gone[method] = np.array([bool(of_setting) and fingerprint(one) in of_setting for one in digests], np.bool_)
        for start in range(0, len(digests), shard):
            for method, columns in lacking.items():
                block, again = columns[:, start : start + shard], gone[method][start : start + shard]
                by_metrics: dict[tuple[tuple[int, ...], bool], list[int]] = {}  # the images by what they lack
                for i in np.flatnonzero(block.any(0) | again).tolist():
                    what = tuple(np.flatnonzero(block[:, i]).tolist()), bool(again[i])
                    by_metrics.setdefault(what, []).append(start + i)
                for (metrics, save), images in by_metrics.items():
                    setting = manifest.setting_key(model, method)
                    named, asked = (tuple(one[m] for m in metrics) for one in (labels, keys))
                    task = Task(model, method, setting, named, asked, tuple(digests[i] for i in images), save=save)
                    tasks.append(replace(task, force=retry and arrays.has_failed(task)))
    return tasks


def manifests(store: Store) -> dict[str, Manifest]:
    """The plans of a folder by name."""
    return {name: Manifest.from_record(record) for name, record in store.records(PLAN).items()}


def mixed(versions: Mapping[str, Mapping[str, int]]) -> list[str]:
    """A line for each library of which several versions computed the results."""
    return [
        f"{name}: " + ", ".join(f"{version} ({counted(n, 'map')})" for version, n in counts.items())
        for name, counts in versions.items()
        if len(counts) > 1
    ]


def orphaned(blocks: Iterable[Block], plans: Sequence[ScoreArrays]) -> list[dict[str, Any]]:
    """Rows that no plan requires: ``model``, ``method``, how many ``images``, and as ``reason`` the difference to what
    the plans require now."""
    found, manifests = Counter[tuple[str, str, str]](), [one.manifest for one in plans]
    images = [fingerprint(image["digest"]) for manifest in manifests for image in manifest.images]
    for block in blocks:
        used = np.zeros(len(block.rows), np.bool_)
        for one in plans:
            used |= one.uses(block)
        if used.all():
            continue
        is_known = np.isin(block.rows["image"], images)
        for missing, rows in ((0, ~used & is_known), (int((~used & ~is_known).sum()), ~used & ~is_known)):
            if rows.any():
                found[block.about["model"], block.about["method"], _reason(block, manifests, missing)] += int(
                    rows.sum()
                )
    return [
        {"model": model, "method": method, "images": n, "reason": reason}
        for (model, method, reason), n in found.items()
    ]


def _reason(block: Block, plans: list[Manifest], missing: int) -> str:
    model, method = block.about["model"], block.about["method"]
    current = [m.settings[model] for m in plans if model in m.settings]
    if not current:
        return f"no plan has the model {model!r}"
    same = [settings[method] for settings in current if method in settings]
    if not same:
        return f"no plan has the method {method!r}"
    differences = min((changes(block.about["setting"], setting) for setting in same), key=len)
    if differences:
        return "; ".join(differences)
    if missing:
        return f"{missing} of its images changed or are not drawn any more"
    return "its metrics have other settings now"
