"""Whether a file of a run's folder is what was written there: a seal over its bytes, and the shape of its records."""

import errno
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fringe._files import UnfitFile
from fringe.experiments.parquet_size import is_bounded

SEAL = b"fringe-sha256:"
BLANK = SEAL + b"0" * 64

_PLAN = {"plan": dict, "images": list, "missing": list, "settings": dict, "metrics": dict, "models": dict}
_CRASH = {"model": str, "method": str, "reason": str, "setting": dict, "setting_key": str, "metric_keys": list}
_SHAPES: Mapping[str, Mapping[str, type]] = {
    "plans": {**_PLAN, "versions": dict},
    "crashes": {**_CRASH, "images": list},
}
"""What a record of each folder must hold."""


def sealed(content: bytes) -> bytes:
    """A file's bytes with the SHA-256 of themselves at the last place that was left blank for it."""
    before, _, after = content.rpartition(BLANK)
    return before + SEAL + hashlib.sha256(content).hexdigest().encode() + after


def is_whole(content: bytes) -> bool:
    """Whether the bytes are those that were sealed. Parquet alone has no digest over all of a file, and zstd none."""
    at = content.rfind(SEAL)
    return at >= 0 and sealed(content[:at] + BLANK + content[at + len(BLANK) :]) == content


def is_unit(content: bytes) -> bool:
    """Whether the bytes of a Parquet file are those that were sealed, and do not fill the memory when they are read."""
    return is_whole(content) and is_bounded(content)


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
    return all(isinstance(one, Mapping) and one.keys() >= {*names} for part, names in parts for one in part)


def problem_of(path: Path) -> str:
    """What is wrong with an entry that is no result."""
    if path.is_dir():
        return "is a folder where a file belongs"
    if not path.is_file():
        return "is no file"
    return "is damaged" if path.stat().st_size else "is empty"
