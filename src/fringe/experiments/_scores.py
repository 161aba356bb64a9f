"""Scores from tables to arrays: what is stored of a plan is read method by method, so that memory does not grow with
the number of methods."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from io import BytesIO
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, Protocol, cast
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from fringe.experiments._disk import warn
from fringe.experiments._formats import ScoreRecord, to_table
from fringe.experiments._manifest import Manifest
from fringe.experiments._packs import DETAILS, SCORES, Opener, Pack, pack_bytes, release_memory
from fringe.experiments._sealed import Damaged, SealedFile
from fringe.experiments._store import Store

if TYPE_CHECKING:
    import polars as pl  # of the extra bench, which :func:`fringe.compare` does without

#: Texts of few different values; they are stored as numbers of these.
_WORDS = ("status", "error", "verdict", "flags")
#: Columns of a score in their order; details are large, and read when they are asked for.
COLUMNS = ("target", "confidence", "score", "status", "error", "verdict", "flags", "forward", "jvp", "vjp", "seconds")
MISSING = "missing"


class Source(Protocol):
    """Where the records of a plan are."""

    def tables(self, columns: Sequence[str], settings: Collection[str] | None = None) -> Iterator[Any]:
        """Read columns of the records of some settings, or of all, as Arrow tables; of two records of one score the
        better, or else the newer, comes first or has a score."""
        ...


class StoredRecords:
    """The records of a run folder as it is now. The files of single tasks are read once and packed in memory."""

    def __init__(self, store: Store):
        self._packs, images = list[Pack](), dict[str, str]()
        for tasks in store.loose_tasks():
            if tasks:
                name, scores, details = pack_bytes(tasks)
                self._packs.append(Pack(name, self._in_memory(scores, details), images))
        self._packs += store.packs.list()  # after the others: what is packed meanwhile is in one of them

    def tables(self, columns: Sequence[str], settings: Collection[str] | None = None) -> Iterator[Any]:
        for pack in self._packs:
            groups = pack.groups(settings)
            try:
                if groups:
                    yield pack.table(groups, columns)
            except Damaged:
                for group in groups:
                    try:
                        yield pack.table([group], columns)
                    except Damaged as error:
                        warn(f"pack {pack.name!r}: {error} is damaged; its scores count as missing until the next run")
        release_memory()

    def _in_memory(self, scores: bytes, details: bytes) -> Opener:
        """Opens the files of a pack that is not stored: its details are in a temporary file for as long as ``self``."""
        file: Any = TemporaryFile()  # noqa: SIM115
        finalize(self, file.close)
        file.write(details)
        files = {SCORES: (BytesIO(scores), len(scores)), DETAILS: (file, len(details))}
        return lambda kind: nullcontext(SealedFile(*files[kind]))


class Records:
    """Records in memory."""

    def __init__(self, records: Iterable[ScoreRecord]):
        self._table = to_table(list(records))

    def tables(self, columns: Sequence[str], settings: Collection[str] | None = None) -> Iterator[Any]:
        import pyarrow.compute as pc

        rows = self._table if settings is None else self._table.filter(pc.field("setting").isin(list(settings)))
        yield rows.select(list(columns))


class ScoreArrays:
    """Columns of the scores of some settings under all metrics of a plan, as arrays (settings, metrics, images);
    ``status`` is always among them. Of several records of one score the first with a score counts, else the first."""

    def __init__(self, manifest: Manifest, source: Source, settings: Sequence[str], columns: Sequence[str]):
        self._columns = list(dict.fromkeys((*columns, "status")))
        metrics = list(dict.fromkeys(metric["key"] for metric in manifest.metrics.values()))
        self._indices = tuple(
            {name: i for i, name in enumerate(names)}
            for names in (settings, metrics, (image["digest"] for image in manifest.images))
        )
        self._shape = len(settings), len(metrics), len(manifest.images)
        size = int(np.prod(self._shape))
        self._rank = np.zeros(size, np.uint8)
        self._values: dict[str, NDArray[Any]] = {
            name: np.full(size, -1, np.int16) if name in _WORDS else np.full(size, np.nan) for name in self._columns
        }
        self._words = {name: dict[str, int]() for name in _WORDS}
        for table in source.tables(["setting", "metric_key", "image", *self._columns], set(settings)):
            # one batch of a pack, whose texts are looked up once, and not again for each of its settings
            for batch in table.unify_dictionaries().combine_chunks().to_batches():
                self._add(batch)

    def column(self, name: str, setting: str, metric_key: str) -> NDArray[Any]:
        """Numbers (images,), NaN where there is none; of a text the number of its word, or -1."""
        s, m = self._indices[0][setting], self._indices[1][metric_key]
        return self._values[name].reshape(self._shape)[s, m]

    @property
    def ok(self) -> int:
        """The number of the status ``ok``; -2, which no score has, if none is."""
        return self._words["status"].get("ok", -2)

    def words(self, name: str) -> list[str]:
        """The texts of a column by number. Flags are joined by line feeds."""
        return list(self._words[name])

    def _add(self, batch: Any) -> None:
        s, m, i = (
            _numbered(batch.column(name), index)
            for name, index in zip(("setting", "metric_key", "image"), self._indices, strict=True)
        )
        known = (s >= 0) & (m >= 0) & (i >= 0)
        position = (s * self._shape[1] + m) * self._shape[2] + i
        values = {name: self._read(name, batch.column(name)) for name in self._columns}
        is_ok = values["status"] == self.ok
        for rows, rank in ((known & ~is_ok, 1), (known & is_ok, 2)):
            better = np.flatnonzero(rows)[::-1]  # of several records of one score the first is assigned last, and stays
            better = better[self._rank[position[better]] < rank]
            at = position[better]
            self._rank[at] = rank
            for name, column in values.items():
                if len(self._words.get(name, ())) > 2**15:  # more texts than there are short numbers
                    self._values[name] = self._values[name].astype(np.int32, copy=False)
                self._values[name][at] = column[better]

    def _read(self, name: str, column: Any) -> NDArray[Any]:
        import pyarrow.compute as pc

        if name not in _WORDS:
            return np.asarray(pc.cast(column, "float64").to_numpy(zero_copy_only=False), dtype=np.float64)
        if name == "flags":
            column = cast(Any, pc).binary_join(column, "\n")
        return _numbered(column, self._words[name], grow=True)


def _numbered(column: Any, index: dict[str, int], *, grow: bool = False) -> NDArray[np.int64]:
    """The number of each text in ``index``, -1 for null and unknown ones."""
    import pyarrow as pa

    encoded = column if isinstance(column, pa.DictionaryArray) else column.dictionary_encode()
    texts = encoded.dictionary.to_pylist()
    numbers = np.array([index.setdefault(t, len(index)) if grow else index.get(t, -1) for t in texts], np.int64)
    codes = np.asarray(encoded.indices.fill_null(len(texts)).to_numpy(zero_copy_only=False), np.int64)
    return np.append(numbers, -1)[codes]


def frame_of(manifest: Manifest, arrays: ScoreArrays, model: str, method: str) -> "pl.DataFrame":
    """The required scores of a method: a row for each metric and image, in the order of the plan."""
    import polars as pl

    setting, metrics = manifest.setting_key(model, method), manifest.metrics
    images = manifest.images_of(model)
    counts = [len(manifest.positions(model, metric)) for metric in metrics]

    def constant(value: Any, kind: Any) -> pl.Series:
        return pl.repeat(value, sum(counts), dtype=pl.String if kind == pl.Categorical else kind, eager=True).cast(kind)

    def by_metric(values: Iterable[str]) -> pl.Series:
        parts = [[value] * count for value, count in zip(values, counts, strict=True)]
        return pl.Series([one for part in parts for one in part], dtype=pl.String).cast(pl.Categorical)

    def by_image(name: str, kind: Any) -> pl.Series:
        column = pl.Series([image[name] for image in images], dtype=kind)
        return pl.concat([column[:count] for count in counts]) if counts else column[:0]

    def stored(name: str) -> NDArray[Any]:
        at = np.asarray(manifest.positions(model), np.int64)
        parts = [arrays.column(name, setting, metric["key"])[at] for metric in metrics.values()]
        return np.concatenate([part[:n] for part, n in zip(parts, counts, strict=True)]) if parts else np.empty(0)

    def words(name: str, kind: Any) -> pl.Series:
        texts: list[Any] = [*arrays.words(name), MISSING if name == "status" else None]
        if name == "flags":
            texts = [[flag for flag in text.split("\n") if flag] if text is not None else None for text in texts]
        codes = stored(name).astype(np.int64)
        return pl.Series(texts, dtype=kind)[np.where(codes < 0, len(texts) - 1, codes)]

    word = pl.Categorical
    kinds = {"error": pl.String, "flags": pl.List(pl.String), "status": word, "verdict": word}
    columns: dict[str, pl.Series] = {
        "model": constant(model, word),
        "method": constant(method, word),
        "control": constant("control" in manifest.settings[model][method]["method"], pl.Boolean),
        "setting": constant(setting, word),
        "metric": by_metric(metrics),
        "metric_key": by_metric(metric["key"] for metric in metrics.values()),
        "image": by_image("digest", pl.String).cast(word),
        "image_id": by_image("id", pl.String),
        "label": by_image("label", pl.Int32),
    }
    for name in COLUMNS:
        if name in _WORDS:
            columns[name] = words(name, kinds[name])
        else:
            series = pl.Series(stored(name)).fill_nan(None)
            columns[name] = series.cast(pl.Int32) if name == "target" else series
    return pl.DataFrame(columns)


#: What holds for a map whatever the metric.
_OF_MAP = ("target", "confidence", "status", "verdict", "forward", "jvp", "vjp", "seconds")


def map_frame_of(manifest: Manifest, arrays: ScoreArrays, model: str, method: str) -> "pl.DataFrame":
    """What holds for the maps of a method whatever the metric: a row for each computed image, from its first score that
    is valid, or else from its first."""
    import polars as pl

    setting, at = manifest.setting_key(model, method), np.asarray(manifest.positions(model), np.int64)

    def every(name: str) -> NDArray[Any]:
        return np.stack([arrays.column(name, setting, metric["key"])[at] for metric in manifest.metrics.values()])

    status = every("status")
    asked = np.arange(len(at)) < np.array([[metric["limit"]] for metric in manifest.metrics.values()])
    rank = np.where(asked, (status >= 0).astype(np.int8) + (status == arrays.ok), 0)
    images = np.flatnonzero(rank.max(0) > 0)
    best = rank.argmax(0)[images]

    def stored(name: str) -> pl.Series:
        values = every(name)[best, images]
        if name in _WORDS:
            return pl.Series([*arrays.words(name), None], dtype=pl.Categorical)[values.astype(np.int64)]
        series = pl.Series(values).fill_nan(None)
        return series.cast(pl.Int32) if name == "target" else series

    digests = [manifest.images[index]["digest"] for index in at[images].tolist()]
    texts = {"method": [method] * len(digests), "image": digests}
    columns = {name: pl.Series(text, dtype=pl.Categorical) for name, text in texts.items()}  # 4 bytes, not 48
    return pl.DataFrame({**columns, **{name: stored(name) for name in _OF_MAP}})


def curves_of(
    source: Source, setting: str, names: Mapping[str, str], images: Mapping[str, int]
) -> dict[str, dict[int, NDArray[Any]]]:
    """Read curves of a setting, (N + 1,) each by the number of its image in ascending order, by key of the metric;
    ``names`` says which curve for each metric."""
    import pyarrow.compute as pc

    lines: dict[str, dict[int, NDArray[Any]]] = {key: {} for key in names}
    ranks = np.zeros((len(names), len(images)), np.int8)
    metrics, curves = {key: i for i, key in enumerate(names)}, dict[str, int]()
    name_of = np.array([curves.setdefault(name, len(curves)) for name in names.values()], np.int64)
    for table in source.tables(["setting", "metric_key", "image", "status", "curves"], {setting}):
        rows = table.filter((pc.field("setting") == setting) & pc.field("metric_key").isin(list(names)))
        for batch in rows.to_batches():
            position = _numbered(batch.column("image"), cast(Any, images))
            metric = _numbered(batch.column("metric_key"), metrics)
            rank = 1 + (_numbered(batch.column("status"), {"ok": 1}) > 0).astype(np.int8)
            stored = batch.column("curves")
            ends, numbers = stored.items.offsets.to_numpy(), stored.items.values.to_numpy(zero_copy_only=False)
            offsets = stored.offsets.to_numpy()
            row, first = np.repeat(np.arange(len(batch)), np.diff(offsets)), int(offsets[0])
            entry = np.flatnonzero(_numbered(stored.keys, curves)[first : first + len(row)] == name_of[metric[row]])
            entry = entry[position[row[entry]] >= 0]
            entry = entry[np.argsort(-rank[row[entry]], kind="stable")]  # valid ones first
            for index, key in enumerate(names):
                chosen = entry[metric[row[entry]] == index]
                places, unique = np.unique(position[row[chosen]], return_index=True)
                better = rank[row[chosen[unique]]] > ranks[index, places]
                chosen, places = chosen[unique][better], places[better]
                ranks[index, places] = rank[row[chosen]]
                copies = _rows(numbers, ends[first + chosen], ends[first + chosen + 1])
                lines[key] |= dict(zip(places.tolist(), copies, strict=True))
    return {key: dict(sorted(of_key.items())) for key, of_key in lines.items()}


def _rows(numbers: NDArray[Any], starts: NDArray[Any], ends: NDArray[Any]) -> list[NDArray[Any]]:
    """Copies of parts of an array, which does not stay in memory for them."""
    length = int(ends[0] - starts[0]) if len(starts) else 0
    if (ends - starts == length).all():
        return list(numbers[starts[:, None] + np.arange(length)])
    return [numbers[a:b].copy() for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]


#: Scores whose rows are in memory at a time, some 140 bytes each.
_AT_ONCE = 1_000_000


class PlanScores:
    """The scores of a plan, read when they are asked for."""

    def __init__(self, manifest: Manifest, source: Source):
        self.manifest, self.source = manifest, source
        self._frames: dict[tuple[str, str], pl.DataFrame] = {}
        self._map_frames: dict[tuple[str, str], pl.DataFrame] = {}
        self._positions = dict[str, NDArray[np.int64]]()

    @cached_property
    def arrays(self) -> ScoreArrays:
        """What tables are made of, of every score."""
        return ScoreArrays(self.manifest, self.source, self._settings(), ["score", "flags", "error"])

    @property
    def statuses(self) -> ScoreArrays:
        """Status and error of every score, which take few bytes; with the rest, if that is in memory."""
        return self.__dict__.get("arrays") or self._statuses

    @cached_property
    def _statuses(self) -> ScoreArrays:
        return ScoreArrays(self.manifest, self.source, self._settings(), ["error"])

    def column(self, name: str, model: str, method: str, metric: str) -> NDArray[Any]:
        """A column of :attr:`arrays` for the images of a metric."""
        return self.selected(self.arrays, name, model, method, metric)

    def selected(self, arrays: ScoreArrays, name: str, model: str, method: str, metric: str) -> NDArray[Any]:
        """A column of ``arrays`` for the images of a metric."""
        if model not in self._positions:
            self._positions[model] = np.asarray(self.manifest.positions(model), np.int64)
        setting, required = self.manifest.setting_key(model, method), self.manifest.metrics[metric]
        return arrays.column(name, setting, required["key"])[self._positions[model][: required["limit"]]]

    def counts(self, model: str, method: str, metric: str) -> tuple[int, int, int]:
        """How many scores are required, how many there are, and how many failed."""
        arrays = self.statuses
        status = self.selected(arrays, "status", model, method, metric)
        scored = int((status == arrays.ok).sum())
        return len(status), scored, int((status >= 0).sum()) - scored

    def failed(self, model: str, method: str, metric: str) -> list[tuple[int, str]]:
        """The positions of the images that were computed and have no score, each with the reason."""
        arrays = self.statuses
        status, error = (self.selected(arrays, name, model, method, metric) for name in ("status", "error"))
        statuses, errors = arrays.words("status"), arrays.words("error")
        at = np.flatnonzero((status >= 0) & (status != arrays.ok)).tolist()
        return [(i, errors[error[i]] if error[i] >= 0 else statuses[status[i]]) for i in at]

    def method_frame(self, model: str, method: str) -> "pl.DataFrame":
        """The rows of one method. Those of the last methods are in memory, unless they are large."""
        name, scores = (model, method), len(self.manifest.images) * len(self.manifest.metrics)
        if name not in self._frames:
            while self._frames and (len(self._frames) + 1) * scores > _AT_ONCE:
                del self._frames[next(iter(self._frames))]
            arrays = ScoreArrays(self.manifest, self.source, [self.manifest.setting_key(*name)], COLUMNS)
            self._frames[name] = frame_of(self.manifest, arrays, *name)
            self._keep_maps(name, arrays)
        self._frames[name] = frame = self._frames.pop(name)  # the last one used is the last one to go
        return frame

    def map_frame(self, model: str, method: str) -> "pl.DataFrame":
        """A row for each computed image of a method; see :func:`map_frame_of`."""
        name = (model, method)
        if name not in self._map_frames:
            arrays = ScoreArrays(self.manifest, self.source, [self.manifest.setting_key(*name)], _OF_MAP)
            self._keep_maps(name, arrays)
        return self._map_frames[name]

    def _keep_maps(self, name: tuple[str, str], arrays: ScoreArrays) -> None:
        if (len(self._map_frames) + 1) * len(self.manifest.images) > _AT_ONCE:
            self._map_frames.clear()
        self._map_frames[name] = map_frame_of(self.manifest, arrays, *name)

    def _settings(self) -> list[str]:
        methods = [(model, method) for model, named in self.manifest.settings.items() for method in named]
        return list(dict.fromkeys(self.manifest.setting_key(*names) for names in methods))
