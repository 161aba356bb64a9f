"""The table of scores: one row an image, method and metric, as Parquet keeps it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, Literal

from torch import Tensor

#: What became of an image under a method: a score, or why there is none.
Status = Literal["ok", "diverged", "not_finite", "failed", "unreadable"]


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


@cache
def schema() -> Any:
    """The Arrow schema of :class:`ScoreRecord`."""
    import pyarrow as pa

    number, text = pa.float64(), pa.string()
    types = {
        "label": pa.int32(),
        "target": pa.int32(),
        "confidence": number,
        "score": number,
        "flags": pa.list_(text),
        "diagnostics": pa.map_(text, number),
        "extras": pa.map_(text, number),
        "curves": pa.map_(text, pa.list_(pa.float32())),
        **dict.fromkeys(("forward", "jvp", "vjp", "seconds"), number),
        "batch": pa.int32(),
    }
    return pa.schema([(f.name, types.get(f.name, text)) for f in fields(ScoreRecord)])


def to_table(rows: Sequence[ScoreRecord]) -> Any:
    """The rows as an Arrow table."""
    import pyarrow as pa

    columns = {f.name: [getattr(row, f.name) for row in rows] for f in fields(ScoreRecord)}
    return pa.table(columns, schema=schema())


def from_table(table: Any) -> list[ScoreRecord]:
    """The rows of an Arrow table; an unknown column is passed over."""
    names = [f.name for f in fields(ScoreRecord) if f.name in table.column_names]
    columns = [table.column(name).to_pylist() for name in names]
    return [ScoreRecord(**dict(zip(names, values, strict=True))) for values in zip(*columns, strict=True)]


@dataclass(frozen=True)
class StoredMap:
    """An image's map ``values`` (C, H, W), and what a :class:`fringe.experiments.ScoreRecord` says of it whatever the
    metric, by name of the field: target, confidence, status, verdict, diagnostics and the passes that it took;
    ``versions`` are those of the libraries that made it."""

    values: Tensor
    metadata: Mapping[str, Any]
    versions: Mapping[str, str] = field(default_factory=dict[str, str])


def to_bytes(maps: Mapping[str, StoredMap], seal: str) -> bytes:
    """Maps by image digest as a safetensors file, the facts in its header."""
    from safetensors.torch import save

    metadata = {image: stored.metadata for image, stored in maps.items()}
    versions = {image: stored.versions for image, stored in maps.items()}
    tensors = {image: stored.values.detach().cpu().contiguous() for image, stored in maps.items()}
    return save(tensors, {"facts": json.dumps(metadata), "versions": json.dumps(versions), "seal": seal})


def from_bytes(content: bytes) -> dict[str, StoredMap]:
    """The maps of a whole file."""
    from safetensors.torch import load

    length = int.from_bytes(content[:8], "little")  # the format: length of a JSON header, header, numbers
    header = json.loads(content[8 : 8 + length])["__metadata__"]
    metadata, versions = json.loads(header["facts"]), json.loads(header.get("versions", "{}"))
    return {image: StoredMap(v, _facts(metadata[image]), versions.get(image, {})) for image, v in load(content).items()}


def _facts(header: Mapping[str, Any]) -> dict[str, Any]:
    """As a row has them: JSON knows no pairs."""
    return {name: list(map(tuple, known)) if name == "diagnostics" else known for name, known in header.items()}
