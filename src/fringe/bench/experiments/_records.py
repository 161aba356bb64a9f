"""What a run stores: the record of a score, a map, and a task as arrays."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fringe._records import digest
from fringe._text import escape_surrogates

#: What became of an image under a method: a score, or why there is none.
Status = Literal["ok", "diverged", "not_finite", "failed", "unreadable"]
#: A status is stored as its place in this list, to which a new one is appended.
STATUSES: tuple[str, ...] = ("missing", *get_args(Status))
MISSING, OK = 0, 1

#: What holds for a map whatever the metric; ``verdict`` is a place in the task's list of verdicts, 0 for none.
MAP = np.dtype(
    [("target", "<i4"), ("batch", "<i4"), ("verdict", "u1")]
    + [(name, "<f8") for name in ("confidence", "forward", "jvp", "vjp", "seconds")]
)
NO_TARGET = np.iinfo(np.int32).min
_TYPES = {"curve": np.float32, "extra": np.float64, "diagnostic": np.float64}

#: Arrays of a task by name.
Details = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class ScoreRecord:
    """One score. ``setting``, ``metric_key`` and ``image`` are the digests that name it, the other names are for
    people.

    ``score`` is None where there is none, and ``status``, ``flags`` and ``error`` say why. ``diagnostics`` are the
    method's, ``extras`` and ``curves`` the metric's. ``forward``, ``jvp``, ``vjp`` and ``seconds`` are an image's share
    of what the maps took.
    """

    setting: str
    metric_key: str
    image: str
    model: str
    method: str
    metric: str
    image_id: str
    label: int | None
    target: int | None
    confidence: float | None
    score: float | None
    status: Status
    error: str | None = None
    verdict: str | None = None
    flags: Sequence[str] = ()
    diagnostics: Sequence[tuple[str, float]] = ()
    extras: Sequence[tuple[str, float]] = ()
    curves: Sequence[tuple[str, Sequence[float]]] = ()
    forward: float = 0.0
    jvp: float = 0.0
    vjp: float = 0.0
    seconds: float = 0.0
    batch: int = field(default=1)

    @property
    def key(self) -> tuple[str, str, str]:
        return self.setting, self.metric_key, self.image


@dataclass(frozen=True)
class StoredMap:
    """An image's map ``values`` (C, H, W), and what a :class:`fringe.bench.experiments.ScoreRecord` says of it whatever
    the metric, by name of the field: target, confidence, status, verdict, diagnostics and the passes that it took;
    ``versions`` are those of the libraries that made it."""

    values: Tensor
    metadata: Mapping[str, Any]
    versions: Mapping[str, str] = field(default_factory=dict[str, str])

    def to_bytes(self) -> bytes:
        """Write the map as a safetensors file, the facts in its header."""
        from safetensors.torch import save

        header = {"facts": json.dumps(self.metadata), "versions": json.dumps(self.versions)}
        return save({"map": self.values.detach().cpu().contiguous()}, header)

    @classmethod
    def from_bytes(cls, content: bytes) -> "StoredMap":
        """Read what :meth:`to_bytes` wrote. Raises ValueError or KeyError for other bytes."""
        from safetensors.torch import load

        length = int.from_bytes(content[:8], "little")  # the format: length of a JSON header, header, numbers
        header = json.loads(content[8 : 8 + length])["__metadata__"]
        facts = dict[str, Any](json.loads(header["facts"]))
        if "diagnostics" in facts:  # JSON knows no pairs
            facts["diagnostics"] = list(map(tuple, facts["diagnostics"]))
        return cls(load(content)["map"], facts, json.loads(header["versions"]))


@dataclass(frozen=True)
class StoredTask:
    """What one task computed: metrics for images under one setting, all named by their digests.

    Attributes:
        setting, metrics, images: Digests.
        scores: Scores (metrics, images), NaN where there is none.
        status: Places in ``STATUSES`` (metrics, images).
        maps: Records of ``MAP`` (images).
        notes: ``verdicts`` of the maps, and under ``scores`` triples of flags, error and the positions (in the
            flattened scores) that they belong to.
        shared: What many tasks share: labels, the setting in full, versions, and the names of the details.
        details: Curves, extras and diagnostics; None where they are in the store.
        row: File and number of the task in the store, and its seal.
    """

    setting: str
    metrics: tuple[str, ...]
    images: tuple[str, ...]
    scores: NDArray[np.float64]
    status: NDArray[np.uint8]
    maps: NDArray[Any]
    notes: Mapping[str, Any]
    shared: Mapping[str, Any]
    details: Details | None = None
    row: tuple[str, int, bytes] = ("", 0, b"")

    @property
    def failed_images(self) -> int:
        """Number of images of which a score was computed and is not valid."""
        return int((self.status > OK).any(0).sum())

    @property
    def key(self) -> str:
        """Name of the task, that of :class:`fringe.bench.experiments.Task`."""
        return digest([self.setting, sorted(self.metrics), self.images])

    def numbers(self) -> bytes:
        """The arrays as bytes, which :meth:`read_numbers` reads."""
        return self.scores.astype("<f8").tobytes() + self.status.tobytes() + self.maps.astype(MAP).tobytes()

    @staticmethod
    def read_numbers(content: bytes, metrics: int, images: int) -> dict[str, NDArray[Any]]:
        """Read scores, status and maps. Raises ValueError for bytes of another length."""
        size = metrics * images
        if len(content) != size * 9 + images * MAP.itemsize:
            raise ValueError("numbers of another length")
        return {
            "scores": np.frombuffer(content, "<f8", size).reshape(metrics, images),
            "status": np.frombuffer(content, np.uint8, size, size * 8).reshape(metrics, images),
            "maps": np.frombuffer(content, MAP, images, size * 9),
        }

    @classmethod
    def of(cls, rows: Sequence[ScoreRecord], shared: Mapping[str, Any] | None = None) -> "StoredTask":
        """Turn records of one setting into a task; a score without a record is missing."""
        metrics = {key: i for i, key in enumerate(dict.fromkeys(row.metric_key for row in rows))}
        images = {image: i for i, image in enumerate(dict.fromkeys(row.image for row in rows))}
        shape, first = (len(metrics), len(images)), {row.image: row for row in reversed(rows)}
        scores, status = np.full(shape, np.nan), np.zeros(shape, np.uint8)
        notes, columns = dict[tuple[Any, ...], list[int]](), dict[str, list[Any]]()
        for row in rows:
            m, i = metrics[row.metric_key], images[row.image]
            scores[m, i] = np.nan if row.score is None else row.score
            status[m, i] = STATUSES.index(row.status)
            if row.flags or row.error is not None:
                error = None if row.error is None else escape_surrogates(row.error)  # it may name a file
                notes.setdefault((tuple(row.flags), error), []).append(m * shape[1] + i)
            named: list[tuple[str, Sequence[float]]] = [(f"curve/{row.metric_key}/{n}", v) for n, v in row.curves]
            named += [(f"extra/{row.metric_key}/{name}", (value,)) for name, value in row.extras]
            if first[row.image] is row:
                named += [(f"diagnostic//{name}", (value,)) for name, value in row.diagnostics]
            for name, values in named:
                columns.setdefault(name, [None] * shape[1])[i] = values
        verdicts = list(dict.fromkeys(row.verdict for row in first.values() if row.verdict is not None))
        numbers, maps = {None: 0, **{name: i + 1 for i, name in enumerate(verdicts)}}, np.empty(shape[1], MAP)
        for image, i in images.items():
            row = first[image]
            target, confidence = NO_TARGET if row.target is None else row.target, row.confidence
            confidence = np.nan if confidence is None else confidence
            passes = row.forward, row.jvp, row.vjp, row.seconds
            maps[i] = (target, row.batch, numbers[row.verdict], confidence, *passes)
        labels = {row.metric_key: row.metric for row in rows}
        names = {"model": rows[0].model, "method": rows[0].method, "labels": [labels[key] for key in metrics]}
        return cls(
            rows[0].setting,
            tuple(metrics),
            tuple(images),
            scores,
            status,
            maps,
            {"verdicts": verdicts, "scores": [[list(flags), why, at] for (flags, why), at in notes.items()]},
            {**(shared or {}), **names, "details": list(columns)},
            {key: one for name, column in columns.items() for key, one in _ragged(name, column).items()},
        )

    def rows(self, details: Details, known: Mapping[str, Mapping[str, Any]]) -> Iterator[ScoreRecord]:
        """The records of the task; ``known`` are the images of the plan by digest."""
        flags, errors = dict[int, Sequence[str]](), dict[int, str | None]()
        for texts, error, positions in self.notes["scores"]:
            flags |= dict.fromkeys(positions, texts)
            errors |= dict.fromkeys(positions, error)
        columns = {name: list(read_ragged(details, name, len(self.images))) for name in self.shared["details"]}
        for m, i in zip(*map(np.ndarray.tolist, np.nonzero(self.status)), strict=True):
            made, at, image = self.maps[i], m * len(self.images) + i, self.images[i]
            named = {"curve": list[Any](), "extra": list[Any](), "diagnostic": list[Any]()}
            for name, column in columns.items():
                kind, key, label = name.split("/", 2)
                if key in ("", self.metrics[m]) and (values := column[i]) is not None:
                    named[kind].append((label, values.tolist() if kind == "curve" else float(values[0])))
            score, confidence = float(self.scores[m, i]), float(made["confidence"])
            yield ScoreRecord(
                setting=self.setting,
                metric_key=self.metrics[m],
                image=image,
                model=self.shared["model"],
                method=self.shared["method"],
                metric=self.shared["labels"][m],
                image_id=known[image]["id"] if image in known else "",
                label=known[image]["label"] if image in known else None,
                target=None if made["target"] == NO_TARGET else int(made["target"]),
                confidence=None if np.isnan(confidence) else confidence,
                score=None if np.isnan(score) else score,
                status=STATUSES[self.status[m, i]],  # pyright: ignore[reportArgumentType]
                error=errors.get(at),
                verdict=[None, *self.notes["verdicts"]][made["verdict"]],
                flags=list(flags.get(at, ())),
                diagnostics=named["diagnostic"],
                extras=named["extra"],
                curves=named["curve"],
                **{name: float(made[name]) for name in ("forward", "jvp", "vjp", "seconds")},
                batch=int(made["batch"]),
            )


def tasks_of(records: Iterable[ScoreRecord]) -> list[StoredTask]:
    """Turn records in memory into tasks, one for each setting."""
    settings = dict[str, list[ScoreRecord]]()
    for record in records:
        settings.setdefault(record.setting, []).append(record)
    return [StoredTask.of(rows) for rows in settings.values()]


def read_ragged(details: Details, name: str, images: int) -> Iterator[NDArray[Any] | None]:
    """The values of each image under a name, None where it has none."""
    values, lengths = details[name], details.get(f"{name}/lengths")
    if lengths is None:
        yield from values
        return
    ends = np.cumsum(np.maximum(lengths, 0))
    for i in range(images):
        yield None if lengths[i] < 0 else values[ends[i] - lengths[i] : ends[i]]


def _ragged(name: str, column: Sequence[Sequence[float] | None]) -> dict[str, NDArray[Any]]:
    """The values of images as one array (images, N), or of different lengths one after the other."""
    lengths = np.array([-1 if values is None else len(values) for values in column], np.int32)
    kind = _TYPES[name.partition("/")[0]]
    if (lengths == lengths[0]).all():
        return {name: np.array(column, kind)}
    flat = [value for values in column if values is not None for value in values]
    return {name: np.array(flat, kind), f"{name}/lengths": lengths}
