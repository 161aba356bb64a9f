"""What a run stores: a map, and the scores of a task as arrays."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fringe._records import digest
from fringe._text import escape_surrogates
from fringe.metrics import Scores

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
class StoredMap:
    """An image's map ``values`` (C, H, W), and by name what holds whatever the metric: target, confidence, status,
    error, verdict, diagnostics, and the image's share of the passes and seconds that the maps of its batch took;
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
    def of(
        cls,
        setting: str,
        metrics: Sequence[str],
        made: Mapping[str, Mapping[str, Any]],
        scored: Iterable[tuple[Sequence[str], Sequence[Scores]]],
        shared: Mapping[str, Any],
    ) -> "StoredTask":
        """Make a task of the scores of images.

        Args:
            setting, metrics: Digests.
            made: What holds for each image whatever the metric, as in :attr:`StoredMap.metadata`; an image without a
                valid map has at least a status and an error.
            scored: Some images (B), and their scores by each of the metrics; those of valid maps alone count.
            shared: ``shared`` of the task, without the names of the details.
        """
        places, shape = {image: i for i, image in enumerate(made)}, (len(metrics), len(made))
        scores, columns = np.full(shape, np.nan), dict[str, list[Any]]()
        status = np.tile(np.array([STATUSES.index(one["status"]) for one in made.values()], np.uint8), (shape[0], 1))
        errors: list[tuple[tuple[str, ...], str | None]] = [((), one.get("error")) for one in made.values()]
        words = [list(errors) for _ in metrics]
        for images, by_metric in scored:
            for m, (key, one) in enumerate(zip(metrics, by_metric, strict=True)):
                named = {f"curve/{key}/{name}": curves.float().tolist() for name, curves in one.curves.items()}
                named |= {f"extra/{key}/{name}": column[:, None].tolist() for name, column in one.details.items()}
                flags, values = {name: flag.tolist() for name, flag in one.flags.items()}, one.values.tolist()
                for k, i in enumerate(places[image] for image in images):
                    if status[m, i] != OK:
                        continue
                    if one.refusals and one.refusals[k]:
                        status[m, i], words[m][i] = STATUSES.index("failed"), ((), one.refusals[k])
                        continue
                    scores[m, i] = values[k] if math.isfinite(values[k]) else np.nan
                    words[m][i] = tuple(name for name, flag in flags.items() if flag[k]), None
                    for name, column in named.items():
                        columns.setdefault(name, [None] * shape[1])[i] = column[k]
        for i, one in enumerate(made.values()):
            for name, value in one.get("diagnostics", ()):
                columns.setdefault(f"diagnostic//{name}", [None] * shape[1])[i] = (value,)
        notes = dict[tuple[Any, ...], list[int]]()
        for at, (flags, error) in enumerate(word for row in words for word in row):
            if flags or error is not None:  # an error may name a file
                notes.setdefault((flags, None if error is None else escape_surrogates(error)), []).append(at)
        verdicts = list(dict.fromkeys(one["verdict"] for one in made.values() if one.get("verdict") is not None))
        numbers = {None: 0, **{name: i + 1 for i, name in enumerate(verdicts)}}
        empty = {"target": NO_TARGET, "batch": 1, "confidence": np.nan}
        maps = np.zeros(shape[1], MAP)
        for i, one in enumerate(made.values()):
            known = {**empty, **{name: value for name, value in one.items() if value is not None}}
            known["verdict"] = numbers[one.get("verdict")]
            maps[i] = tuple(known.get(name, 0) for name in MAP.names or ())
        return cls(
            setting,
            tuple(metrics),
            tuple(made),
            scores,
            status,
            maps,
            {"verdicts": verdicts, "scores": [[list(flags), why, at] for (flags, why), at in notes.items()]},
            {**shared, "details": list(columns)},
            {key: one for name, column in columns.items() for key, one in _ragged(name, column).items()},
        )


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
