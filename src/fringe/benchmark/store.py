"""The folder of a run: what is committed there is whole and stays, whenever the process dies.

A unit is one Parquet file, written under a temporary name, flushed to the disk, and renamed: the rename is the commit.
Its name is a digest of what it holds, so that two processes that compute the same unit write the same file. Locks only
keep them from doing so at the same time. A file bears a seal, the digest of its own bytes: one that was damaged later
counts as not there, and is computed again.
"""

import contextlib
import errno
import hashlib
import json
import os
import socket
from collections.abc import Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fringe._errors import FringeError, InputError
from fringe._files import MAPS_BYTES, RECORD_BYTES, open_regular, read_regular
from fringe.benchmark.kept import KeptMap, from_bytes, to_bytes
from fringe.benchmark.keys import digest
from fringe.benchmark.parquet_size import is_bounded
from fringe.benchmark.rows import ScoreRow, from_table, to_table

UNITS, MAPS, CLAIMS, CRASHES, PLANS = "units", "maps", "claims", "crashes", "plans"
MARK = "fringe-run.json"
FORMAT = 1
SEAL = b"fringe-sha256:"
BLANK = SEAL + b"0" * 64


class StoreFull(FringeError):
    """There is no room for a result. Nothing that was committed is lost; the run goes on when there is room."""


class Store:
    """The results under ``root``. Raises InputError for a folder that holds other things or cannot be written."""

    def __init__(self, root: Path, *, create: bool = True):
        self.root = root
        mark = root / MARK
        if not os.path.isfile(mark):  # Path.is_file raises where a folder above may not be entered
            if not create:
                raise InputError(f"run: {str(root)!r} holds no run of this program ({MARK} is missing)")
            self._begin(mark)
        try:
            kept = json.loads(read_regular(mark, RECORD_BYTES))["format"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise InputError(f"run: {str(mark)!r} cannot be read ({error}); is it a run of this program?") from error
        if kept != FORMAT:
            raise InputError(f"run: {str(root)!r} has format {kept}, this program reads format {FORMAT}")

    def _begin(self, mark: Path) -> None:
        if os.path.exists(self.root) and not self.root.is_dir():
            raise InputError(f"--out: {str(self.root)!r} is a file, expected a folder")
        folders = (UNITS, MAPS, CLAIMS, CRASHES, PLANS)
        try:
            new = [path for path in (self.root, *self.root.parents) if not os.path.exists(path)]
            self.root.mkdir(parents=True, exist_ok=True)
            for path in new:
                _sync_folder(path.parent)
            ours = (*folders, MARK)  # the mark, too: another process may have begun here just now
            strangers = sorted(p.name for p in self.root.iterdir() if p.name not in ours and not _is_partial(p.name))
            if strangers:
                raise InputError(
                    f"--out: {str(self.root)!r} holds files that are no results of a run ({', '.join(strangers[:3])}); "
                    "name another folder"
                )
            for name in folders:
                (self.root / name).mkdir(exist_ok=True)
            self._place(mark, json.dumps({"format": FORMAT}).encode())
        except OSError as error:
            raise InputError(f"--out: cannot write in {str(self.root)!r} ({error.strerror})") from error

    # Units

    def has(self, key: str) -> bool:
        """Whether the unit is committed, and whole."""
        return self._content(key) is not None

    def commit(self, key: str, rows: Sequence[ScoreRow], about: Mapping[str, Any]) -> None:
        """Keep the rows of a unit, with plain data about it. Raises :class:`StoreFull` where they do not fit."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = to_table(rows).replace_schema_metadata({"fringe": json.dumps(about), "seal": BLANK.decode()})
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd")
        content = _sealed(sink.getvalue().to_pybytes())
        if len(content) > RECORD_BYTES or not is_bounded(content):
            raise InputError("shard: the scores of one unit are more than can be read back; make units of fewer images")
        self._place(self._unit(key), content)

    def units(self) -> list[str]:
        """Every committed unit, damaged ones among them."""
        return sorted(path.stem for path in (self.root / UNITS).glob("*.parquet") if not _is_partial(path.name))

    def read(self, key: str) -> tuple[list[ScoreRow], dict[str, Any]] | None:
        """Rows of a unit and the data about it; None where the file is damaged: it will be computed again."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        content = self._content(key)
        if content is None:
            return None
        table = pq.read_table(pa.BufferReader(content))
        about: dict[str, Any] = json.loads(table.schema.metadata[b"fringe"])
        return from_table(table), about

    def about(self) -> dict[str, dict[str, Any]]:
        """The data about every unit that is whole, without its rows."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        found: dict[str, dict[str, Any]] = {}
        for key in self.units():
            content = self._content(key)
            if content is not None:
                found[key] = json.loads(pq.read_schema(pa.BufferReader(content)).metadata[b"fringe"])
        return found

    # Maps

    def commit_maps(self, setting: str, maps: Mapping[str, KeptMap]) -> None:
        """Keep the maps of a setting by image digest. Raises :class:`StoreFull` where they do not fit."""
        path = self.root / MAPS / f"{setting}-{digest(sorted(maps))}.safetensors"
        self._place(path, _sealed(to_bytes(maps, BLANK.decode())))

    def find_maps(self, setting: str, images: Iterable[str]) -> dict[str, KeptMap]:
        """The kept maps of a setting by image digest; those that are not there, or not whole, are not in it."""
        from safetensors import SafetensorError, safe_open

        wanted, found = set(images), dict[str, KeptMap]()
        for path in sorted((self.root / MAPS).glob(f"{setting}-*.safetensors")):
            with contextlib.suppress(SafetensorError, OSError):
                open_regular(path, MAPS_BYTES).close()
                with safe_open(path, framework="pt") as file:  # the header alone: most files are of other images
                    here = wanted.intersection(file.keys()) - found.keys()
                content = read_regular(path, MAPS_BYTES) if here else b""
                if _is_whole(content):
                    kept = from_bytes(content)
                    found |= {image: kept[image] for image in here}
        return found

    # Plans and crashes

    def write_record(self, folder: str, name: str, record: Mapping[str, Any]) -> None:
        """Keep a JSON document in ``plans`` or ``crashes``."""
        self._place(self.root / folder / f"{name}.json", json.dumps(record, indent=1).encode())

    def records(self, folder: str) -> dict[str, dict[str, Any]]:
        """The JSON documents of a folder by name; damaged ones are passed over."""
        found: dict[str, dict[str, Any]] = {}
        for path in sorted((self.root / folder).glob("*.json")):
            with contextlib.suppress(ValueError, OSError, RecursionError):
                record = json.loads(read_regular(path, RECORD_BYTES))
                if isinstance(record, dict):
                    found[path.stem] = record
        return found

    def forget_crash(self, key: str) -> None:
        (self.root / CRASHES / f"{key}.json").unlink(missing_ok=True)

    # Locks

    @contextlib.contextmanager
    def claim(self, key: str) -> Generator[bool]:
        """Whether the unit is this process's for now: False where another holds it. The system frees the lock of a
        process that dies."""
        from filelock import FileLock, Timeout

        lock = FileLock(self.root / CLAIMS / f"{key}.lock", blocking=False)  # follows no link: it empties the file
        try:
            lock.acquire()
        except Timeout:
            yield False
            return
        except OSError as error:
            raise _explained(error, self.root) from error
        try:
            yield True
        finally:
            lock.release()

    def sweep(self) -> None:
        """Remove what dead processes of this host left half written."""
        for folder in (UNITS, MAPS, PLANS, CRASHES, ""):
            for path in (self.root / folder).glob(".partial-*"):
                host, _, pid = path.name.removeprefix(".partial-").partition("~")[0].rpartition("-")
                if host == _host() and pid.isdigit() and not _alive(int(pid)):
                    with contextlib.suppress(OSError):  # where nothing can be removed, a write will say so
                        path.unlink(missing_ok=True)

    # Private

    def _unit(self, key: str) -> Path:
        return self.root / UNITS / f"{key}.parquet"

    def _content(self, key: str) -> bytes | None:
        """The bytes of a unit's file; None where it is not there or not whole."""
        try:
            content = read_regular(self._unit(key), RECORD_BYTES)
        except OSError:
            return None
        return content if _is_whole(content) and is_bounded(content) else None

    def _place(self, path: Path, content: bytes) -> None:
        partial = path.with_name(f".partial-{_host()}-{os.getpid()}~{path.name}")
        try:
            with partial.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
            _sync_folder(path.parent)
        except BaseException as error:  # an interrupt, too, leaves nothing behind
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise _explained(error, self.root, len(content)) from error
            raise


def _sealed(content: bytes) -> bytes:
    """A file's bytes with the SHA-256 of themselves at the last place that was left blank for it."""
    before, _, after = content.rpartition(BLANK)
    return before + SEAL + hashlib.sha256(content).hexdigest().encode() + after


def _is_whole(content: bytes) -> bool:
    """Whether the bytes are those that were sealed. Parquet alone has no digest over all of a file, and zstd none."""
    at = content.rfind(SEAL)
    return at >= 0 and _sealed(content[:at] + BLANK + content[at + len(BLANK) :]) == content


def _explained(error: OSError, root: Path, needed: int = 0) -> FringeError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        room = f"{needed} bytes are needed; " if needed else ""
        return StoreFull(
            f"{str(root)!r}: no space left ({room}free some and run the same command again: nothing that was computed "
            "before is lost)"
        )
    if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
        return InputError(f"--out: {str(root)!r} cannot be written ({error.strerror})")
    return FringeError(
        f"{str(root)!r}: a result cannot be written ({error.strerror or error}); nothing that was computed before is "
        "lost"
    )


def _sync_folder(folder: Path) -> None:
    """Make a rename last through a power cut, where the system can."""
    with contextlib.suppress(OSError, AttributeError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _host() -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in socket.gethostname())[:40]


def _is_partial(name: str) -> bool:
    return name.startswith(".partial-")


def _alive(pid: int) -> bool:
    if os.name == "nt":  # signal 0 would end the process there
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
