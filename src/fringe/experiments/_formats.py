"""The files of a run folder: rows, maps and records as bytes, with a seal over them, and whether they are intact."""

import errno
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import Tensor

from fringe._files import UnfitFile
from fringe.errors import FringeError, InputError, TransientError

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
    """Return the maps of a complete file."""
    from safetensors.torch import load

    length = int.from_bytes(content[:8], "little")  # the format: length of a JSON header, header, numbers
    header = json.loads(content[8 : 8 + length])["__metadata__"]
    metadata, versions = json.loads(header["facts"]), json.loads(header.get("versions", "{}"))
    return {image: StoredMap(v, _facts(metadata[image]), versions.get(image, {})) for image, v in load(content).items()}


def _facts(header: Mapping[str, Any]) -> dict[str, Any]:
    """As a row has them: JSON knows no pairs."""
    return {name: list(map(tuple, known)) if name == "diagnostics" else known for name, known in header.items()}


#: 64 MiB: size that any file may expand to when it is read.
SMALL = 2**26
#: Expansion that is allowed for longer files. Scores expand about 10 times.
RATIO = 100
#: 2 GiB: size that no file may expand beyond.
LARGEST = 2**31

#: Bytes of a value that is no text, its share of the levels included.
_NUMBER = 8
_CODECS = {"ZSTD": "zstd", "UNCOMPRESSED": None}
_PLAIN, _RLE, _DICTIONARY = 0, 3, (2, 8)
_BYTE, _INTEGERS, _DOUBLE, _BINARY, _STRUCT = 3, (4, 5, 6), 7, 8, 12
_DEEPEST = 4


#: The sizes of column chunks that were looked at, by row group and number of the column.
Sizes = dict[tuple[int, int], int]


def is_bounded(
    content: Any,
    groups: Iterable[int] | None = None,
    columns: Iterable[str] | None = None,
    known: tuple[Any, Sizes] | None = None,
) -> bool:
    """Whether a Parquet file, or some of its row groups and columns, expands to a bounded size when it is read; False
    if its metadata do not say. ``known``: the metadata of this very file, and sizes, which get the others."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    limit = min(max(SMALL, RATIO * len(content)), LARGEST)
    try:
        header, sizes = known or (pq.read_metadata(pa.BufferReader(content)), {})
        chosen = range(header.num_row_groups) if groups is None else groups
        names, numbers = None if columns is None else set(columns), range(header.num_columns)
        if names is not None:  # leaves of a nested column are those of its name
            numbers = [n for n in numbers if header.schema.column(n).path.partition(".")[0] in names]
        return _grown(content, limit, [(index, header.row_group(index)) for index in chosen], numbers, sizes) <= limit
    except Exception:  # a damaged file fails in many ways, and none of them is a size
        return False


def _grown(content: Any, limit: int, groups: Iterable[tuple[int, Any]], columns: Sequence[int], sizes: Sizes) -> int:
    """Bytes of row groups after reading; more than ``limit`` as soon as that is certain."""
    total = 0
    for index, group in groups:
        total += group.num_rows * _NUMBER * group.num_columns
        for number in columns:
            if total > limit:
                return total
            size = sizes.get((index, number))
            if size is None:
                size = _column_size(content, group.column(number), limit - total)
                if total + size <= limit:  # else it was not looked at to its end
                    sizes[index, number] = size
            total += size
    return total


def _column_size(content: bytes, column: Any, limit: int) -> int:
    """Bytes of a column chunk after reading, by its metadata or by its pages, whichever say more."""
    codec, is_text = _CODECS[column.compression], column.physical_type == "BYTE_ARRAY"
    starts = [start for start in (column.dictionary_page_offset, column.data_page_offset) if start]
    at, end = min(starts), min(starts) + column.total_compressed_size
    pages = entry = values = 0
    while at < end:
        header, start = _struct(content, at)
        size, compressed = header[2], header[3]
        if size < 0 or compressed < 0 or start + compressed > end:
            raise ValueError("a page that does not fit")
        pages += size
        if pages > limit:
            return pages
        if header[1] == 2:  # a dictionary, in front of the values that refer to it
            entry = _longest(content[start : start + compressed], size, codec) if is_text else _NUMBER
        else:
            header = header[5] if 5 in header else header[8]
            encoding = header[2] if 5 in header else header[4]
            if encoding not in (_PLAIN, _RLE, *_DICTIONARY):
                raise ValueError("an encoding that this program does not write")
            values += header[1]
        at = start + compressed
    count = max(values, column.num_values)
    return max(pages, column.total_uncompressed_size) + count * max(_NUMBER, entry)


def _longest(page: bytes, size: int, codec: str | None) -> int:
    """The longest entry of a dictionary of texts: each is its length in four bytes, and its letters."""
    import pyarrow as pa

    plain = page if codec is None else pa.Codec(codec).decompress(page, decompressed_size=size, asbytes=True)
    width = 4 + int.from_bytes(plain[:4], "little")
    if len(plain) == width:
        return width - 4
    if plain and len(plain) % width == 0:  # digests, which are of one length
        lengths = np.frombuffer(plain, np.uint8).reshape(-1, width)[:, :4]
        if (lengths == lengths[0]).all():
            return width - 4
    at = longest = 0
    while at < len(plain):
        length = int.from_bytes(plain[at : at + 4], "little")
        longest, at = max(longest, length), at + 4 + length
    return longest


def _struct(content: bytes, at: int, depth: int = 0) -> tuple[dict[int, Any], int]:
    """A struct of numbers, texts and structs by the numbers of its fields, and where it ends."""
    if depth > _DEEPEST:
        raise ValueError("structs too deep for a page header")
    fields: dict[int, Any] = {}
    number = 0
    while (head := content[at]) != 0:
        at, kind = at + 1, head & 15
        if head >> 4:
            number += head >> 4
        else:
            number, at = _integer(content, at)
        if kind in (1, 2):  # a truth value is its own type
            fields[number] = kind == 1
        elif kind in _INTEGERS:
            raw = content[at]  # most are one byte
            raw, at = (raw, at + 1) if raw < 128 else _varint(content, at)
            fields[number] = (raw >> 1) ^ -(raw & 1)
        elif kind == _STRUCT:
            fields[number], at = _struct(content, at, depth + 1)
        elif kind == _BINARY:
            length, at = _varint(content, at)
            at += length
        elif kind in (_BYTE, _DOUBLE):
            at += 1 if kind == _BYTE else 8
        else:
            raise ValueError(f"a field of type {kind} in a page header")
    return fields, at + 1


def _integer(content: bytes, at: int) -> tuple[int, int]:
    raw, at = _varint(content, at)
    return (raw >> 1) ^ -(raw & 1), at


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """Read an integer of seven bits per byte, lowest first; the eighth bit says that another byte follows."""
    value = 0
    for index in range(10):
        byte = content[at + index]
        value |= (byte & 127) << (7 * index)
        if byte < 128:
            return value, at + index + 1
    raise ValueError("a number without end")


#: Errors that only a person can fix; all others may pass.
REFUSED = (errno.EACCES, errno.EROFS, errno.EPERM, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EEXIST, errno.ELOOP)
#: Errors of a file system without locks.
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)

CHECKSUM = b"fringe-sha256:"
BLANK = CHECKSUM + b"0" * 64

#: Seals of files that are known to be bounded: their pages are looked at once, as long as there are not too many.
_BOUNDED, _SEALS = set[bytes](), 4096

_PLAN = {"plan": dict, "images": list, "missing": list, "settings": dict, "metrics": dict, "models": dict}
_CRASH = {"model": str, "method": str, "reason": str, "setting": dict, "setting_key": str, "metric_keys": list}
#: What a record of each folder must hold.
_SHAPES: Mapping[str, Mapping[str, type]] = {
    "plans": {**_PLAN, "versions": dict},
    "crashes": {**_CRASH, "images": list},
}


def with_checksum(content: bytes) -> bytes:
    """A file's bytes with the SHA-256 of themselves at the last place that was left blank for it."""
    before, _, after = content.rpartition(BLANK)
    return before + CHECKSUM + hashlib.sha256(content).hexdigest().encode() + after


def is_intact(content: bytes) -> bool:
    """Whether the bytes are those that were sealed. Parquet alone has no digest over all of a file, and zstd none."""
    at = content.rfind(CHECKSUM)
    return at >= 0 and with_checksum(content[:at] + BLANK + content[at + len(BLANK) :]) == content


def seal_of(content: bytes) -> bytes:
    """The seal of bytes that are intact: it stands for all of them."""
    at = content.rfind(CHECKSUM)
    return content[at : at + len(BLANK)]


def is_task_file(content: bytes) -> bool:
    """Whether the bytes of a Parquet file are those that were sealed, and do not fill the memory when they are read."""
    if not is_intact(content):
        return False
    seal = seal_of(content)
    if seal not in _BOUNDED and is_bounded(content):
        if len(_BOUNDED) == _SEALS:
            _BOUNDED.clear()
        _BOUNDED.add(seal)
    return seal in _BOUNDED


def is_absent(error: OSError) -> bool:
    """Whether there is no file, or one that this program does not write; else the disk did not answer."""
    return isinstance(error, UnfitFile) or error.errno in (errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.ELOOP)


def read_record(folder: str, content: bytes) -> dict[str, Any] | None:
    """The JSON document in a file of ``folder``, None unless it holds what a record there must hold."""
    try:
        record = json.loads(content)
    except (ValueError, RecursionError):
        return None
    shape = _SHAPES[folder].items()
    if not isinstance(record, dict) or not all(isinstance(record.get(name), kind) for name, kind in shape):
        return None
    return record if (_is_plan if folder == "plans" else _is_crash)(record) else None


def _is_crash(record: Mapping[str, Any]) -> bool:
    """Whether a crash names its scores: they are looked up."""
    names = [record["setting_key"], *record["metric_keys"], *record["images"]]
    return all(isinstance(name, str) for name in names)


def _is_plan(record: Mapping[str, Any]) -> bool:
    """Whether a plan's record names itself, its images and its settings."""
    parts: tuple[tuple[Iterable[Any], tuple[str, ...]], ...] = (
        ([record["plan"]], ("name", "models", "preprocessing", "methods", "metrics", "limits", "n")),
        (record["images"], ("digest", "id", "source", "label")),
        (record["metrics"].values(), ("key", "limit", "settings")),
        (record["settings"].values(), ()),
    )
    required = [(part, {*names}) for part, names in parts]
    return all(isinstance(one, dict) and one.keys() >= names for part, names in required for one in part)


def problem_of(path: Path) -> str:
    """What is wrong with an entry that is no result."""
    if path.is_dir():
        return "is a folder where a file belongs"
    if not path.is_file():
        return "is no file"
    return "is damaged" if path.stat().st_size else "is empty"


class StoreFull(TransientError):
    """There is no room for a result. Nothing that was committed is lost; the run goes on when there is room."""


def disk_error(error: OSError, root: Path, needed: int = 0, *, what: str = "a result cannot be written") -> FringeError:
    """What an error of the system means for the files in ``root``; ``needed`` is the size of a file in bytes."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        room = f"{needed} bytes are needed; " if needed else ""
        return StoreFull(
            f"{str(root)!r}: no space left ({room}free some and run it again: nothing that was computed before is lost)"
        )
    if error.errno in REFUSED:
        if what != "a result cannot be written":
            return InputError(f"run: {str(root)!r}: {what} ({error.strerror})")
        return InputError(f"{str(root)!r} cannot be written ({error.strerror})", argument="out")
    return TransientError(
        f"{str(root)!r}: {what} ({error.strerror or error}); nothing that was computed before is lost"
    )
