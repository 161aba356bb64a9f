"""The run folder: what is committed is complete and stays, whenever the process dies.

A unit is one Parquet file, written under a temporary name, flushed to the disk, and renamed: the rename is the commit.
Its name is a digest of what it holds, so that two processes that compute the same unit write the same file. Locks only
keep them from doing so at the same time. A file bears a seal, the digest of its own bytes: one that was damaged later
counts as not there, is set aside by the next run, and computed again.
"""

import contextlib
import json
import os
import time
import warnings
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from fringe._files import MAPS_BYTES, RECORD_BYTES, open_regular, read_regular, require_local
from fringe._process import fate_of, process_name
from fringe.errors import InputError, TransientError
from fringe.experiments._formats import (
    BLANK,
    NO_LOCKS,
    REFUSED,
    ScoreRecord,
    StoredMap,
    as_error,
    from_bytes,
    from_table,
    is_absent,
    is_intact,
    is_task_file,
    problem_of,
    read_record,
    sync_folder,
    to_bytes,
    to_table,
    with_checksum,
)
from fringe.experiments._formats import StoreFull as StoreFull
from fringe.experiments._manifest import digest

UNITS, MAPS, CLAIMS, CRASHES, PLANS, LOGITS = "units", "maps", "claims", "crashes", "plans", "logits"
FOLDERS = (UNITS, MAPS, CLAIMS, CRASHES, PLANS, LOGITS)
#: Where a run puts what is damaged, or no longer true.
QUARANTINE = "aside"
MARKER = "fringe-run.json"
FORMAT = 1
_MARKER_CONTENT = json.dumps({"format": FORMAT}).encode()

#: Seconds after which a file half written belongs to no living process, wherever that ran.
ABANDONED = 24 * 3600.0


class Store:
    """A run folder.

    Args:
        root: The folder.
        create: Whether to make the folder if it does not exist; if not, nothing is written.

    Raises:
        InputError: For a folder that holds other things or cannot be written, and for a URL.
        TransientError: For trouble of the disk that may pass.
    """

    def __init__(self, root: Path, *, create: bool = True):
        require_local("out" if create else "run", root)
        self.root = root
        marker = root / MARKER
        if os.path.lexists(marker):
            self._check_format(marker, create=create)
        elif not create:
            raise InputError(f"run: {str(root)!r} holds no run of this program ({MARKER} is missing)")
        else:
            self._create(marker)
        if create:
            self._make_folders()

    def _check_format(self, marker: Path, *, create: bool) -> None:
        """Refuse a run of another format; heal one whose mark is damaged."""
        try:
            problem, record = None, json.loads(read_regular(marker, RECORD_BYTES))
            known = record["format"]
        except (ValueError, KeyError, TypeError, RecursionError):
            problem, known = "is damaged", FORMAT
        except OSError as error:
            if not is_absent(error):
                raise as_error(error, self.root, what=f"{MARKER} cannot be read") from error
            problem, known = "is damaged" if marker.is_file() else "is no file", FORMAT
        if known != FORMAT:
            raise InputError(f"run: {str(self.root)!r} has format {known}, this program reads format {FORMAT}")
        if problem is None:
            return
        if not all((self.root / name).is_dir() for name in (UNITS, PLANS)):
            raise InputError(f"run: {str(marker)!r} {problem}, and nothing beside it is of a run; is it one?")
        if not create:
            _warn(f"{str(marker)!r} {problem}; the next run writes it again")
            return
        self._quarantine(marker, problem)
        self._write(marker, _MARKER_CONTENT)

    def _create(self, marker: Path) -> None:
        if os.path.exists(self.root) and not self.root.is_dir():
            raise InputError(f"{str(self.root)!r} is a file, expected a folder", argument="out")
        try:
            new = [path for path in (self.root, *self.root.parents) if not os.path.exists(path)]
            self.root.mkdir(parents=True, exist_ok=True)
            for path in new:
                sync_folder(path.parent)
            ours = (*FOLDERS, MARKER)  # the mark, too: another process may have begun here just now
            others = sorted(p.name for p in self.root.iterdir() if p.name not in ours and not _is_partial(p.name))
            if others:
                message = f"{str(self.root)!r} holds files that are no results of a run ({', '.join(others[:3])})"
                raise InputError(message, argument="out", hint="name another folder")
            self._make_folders()
            self._write(marker, _MARKER_CONTENT)
        except OSError as error:
            if error.errno in REFUSED:
                raise InputError(f"cannot write in {str(self.root)!r} ({error.strerror})", argument="out") from error
            raise as_error(error, self.root) from error

    def _make_folders(self) -> None:
        for name in FOLDERS:
            path = self.root / name
            if path.is_dir():
                continue
            if path.is_symlink():
                target = os.readlink(path)
                raise TransientError(f"{str(path)!r} leads to {target!r}, where no folder is; is it mounted?")
            if os.path.lexists(path) and not path.is_dir():  # another process may have made it just now
                self._quarantine(path, "is a file where a folder belongs")
            try:
                path.mkdir(exist_ok=True)
            except OSError as error:
                raise as_error(error, self.root) from error

    # Units

    def has(self, key: str) -> bool:
        """Whether a task is committed, and its file intact."""
        return self._content(key) is not None

    def commit(self, key: str, rows: Sequence[ScoreRecord], metadata: Mapping[str, Any]) -> None:
        """Store the records of a task in one file, which is complete or does not exist.

        Args:
            key: Name of the task.
            rows: Records of its scores.
            metadata: JSON data about the task.

        Raises:
            StoreFull: If there is no space.
            InputError: If the records are more than can be read back.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = to_table(rows).replace_schema_metadata({"fringe": json.dumps(metadata), "seal": BLANK.decode()})
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd")
        content = with_checksum(sink.getvalue().to_pybytes())
        if len(content) > RECORD_BYTES or not is_task_file(content):
            raise InputError("shard: the scores of one unit are more than can be read back; make units of fewer images")
        self._write(self._task_file(key), content)

    def tasks(self) -> list[str]:
        """List the names of committed tasks, damaged ones among them."""
        return sorted(path.stem for path in (self.root / UNITS).glob("*.parquet") if not _is_partial(path.name))

    def intact_files(self) -> list[Path]:
        """List the files of committed tasks that are not damaged."""
        return [self._task_file(key) for key in self.tasks() if self.has(key)]

    def read(self, key: str) -> tuple[list[ScoreRecord], dict[str, Any]] | None:
        """Read the records of a task and its metadata; None where the file is damaged: it will be computed again."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        content = self._content(key)
        if content is None:
            return None
        table = pq.read_table(pa.BufferReader(content))
        metadata: dict[str, Any] = json.loads(table.schema.metadata[b"fringe"])
        return from_table(table), metadata

    def damaged(self) -> dict[Path, str]:
        """Find damaged files.

        Returns:
            What is wrong, by path. Of the maps only empty files are found, as reading all of them takes long.
        """
        return dict(self._damaged())

    def quarantine_damaged(self) -> None:
        """Move damaged files to the quarantine folder, with a warning: they are made again when needed."""
        for path, problem in self._damaged():
            self._quarantine(path, problem)

    def quarantine(self, names: Iterable[tuple[str, str]]) -> None:
        """Move intact files that are no longer true to the quarantine folder, by folder and file name."""
        paths = [self.root / folder / name for folder, name in names]
        moved = sum(os.path.lexists(path) and self._move_aside(path) is not None for path in paths)
        if moved:
            _warn(f"{moved} files of results are set aside in {str(self.root / QUARANTINE)!r}")

    def metadata(self) -> dict[str, dict[str, Any]]:
        """Read the metadata of every intact task, without its records."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        result: dict[str, dict[str, Any]] = {}
        for key in self.tasks():
            content = self._content(key)
            if content is not None:
                result[key] = json.loads(pq.read_schema(pa.BufferReader(content)).metadata[b"fringe"])
        return result

    # Maps

    def commit_maps(self, setting: str, maps: Mapping[str, StoredMap]) -> None:
        """Store maps of a setting by image digest. Raises :class:`StoreFull` if there is no space."""
        path = self.root / MAPS / f"{setting}-{digest(sorted(maps))}.safetensors"
        self._write(path, with_checksum(to_bytes(maps, BLANK.decode())))

    def load_maps(self, setting: str, images: Iterable[str]) -> dict[str, StoredMap]:
        """Read stored maps of a setting by image digest; those that are absent or damaged are left out."""
        from safetensors import SafetensorError, safe_open

        required, result = set(images), dict[str, StoredMap]()
        for path in sorted((self.root / MAPS).glob(f"{setting}-*.safetensors")):
            with contextlib.suppress(SafetensorError, OSError):
                open_regular(path, MAPS_BYTES).close()
                with safe_open(path, framework="pt") as file:  # the header alone: most files are of other images
                    matching = required.intersection(file.keys()) - result.keys()
                content = self._read(path, MAPS_BYTES) or b"" if matching else b""
                if is_intact(content):
                    stored = from_bytes(content)
                    result |= {image: stored[image] for image in matching}
                elif matching:
                    _warn(f"{str(path)!r} is damaged; its maps are made again")
        return result

    def map_files(self, setting: str) -> list[str]:
        """List the files that hold maps of a setting."""
        return sorted(path.name for path in (self.root / MAPS).glob(f"{setting}-*.safetensors"))

    # Logits

    def commit_logits(self, model: str, logits: Mapping[str, Tensor]) -> None:
        """Store the logits (C,) of a few images by digest, under the digest of the model."""
        stored = {image: StoredMap(values, {}) for image, values in logits.items()}
        self._write(self.root / LOGITS / f"{model}.safetensors", with_checksum(to_bytes(stored, BLANK.decode())))

    def logits(self, model: str) -> dict[str, Tensor]:
        """Read the stored logits of a model; none where the file is absent or damaged."""
        content = self._read(self.root / LOGITS / f"{model}.safetensors")
        if content is None or not is_intact(content):
            return {}
        return {image: stored.values for image, stored in from_bytes(content).items()}

    # Plans and crashes

    def write_record(self, folder: str, name: str, record: Mapping[str, Any]) -> None:
        """Store a JSON document in ``plans`` or ``crashes``."""
        self._write(self.root / folder / f"{name}.json", json.dumps(record, indent=1).encode())

    def records(self, folder: str) -> dict[str, dict[str, Any]]:
        """Read the JSON documents of a folder by name; damaged ones are left out."""
        result = {path.stem: self._record(path) for path in self._record_files(folder)}
        return {name: record for name, record in result.items() if record is not None}

    def forget_crash(self, key: str) -> None:
        (self.root / CRASHES / f"{key}.json").unlink(missing_ok=True)

    # Locks

    @contextlib.contextmanager
    def lock(self, key: str) -> Generator[bool]:
        """Lock a task; False if another process holds it. The system frees the lock of a process that dies."""
        from filelock import FileLock, Timeout

        lock, acquired = FileLock(self.root / CLAIMS / f"{key}.lock", blocking=False), True  # follows no link
        try:
            lock.acquire()
        except Timeout:
            acquired = False
        except (OSError, NotImplementedError) as error:
            if isinstance(error, OSError) and error.errno not in NO_LOCKS:
                raise as_error(error, self.root) from error
            _warn(
                f"{str(self.root)!r}: the file system has no locks ({error}); a second process in this folder may "
                "compute the same once more, and nothing worse"
            )
        try:
            yield acquired
        finally:
            lock.release()

    def remove_stale_files(self) -> None:
        """Remove partial files of dead processes: those of this machine (the same boot and process table) at once, and
        others when nothing was written to them for a day."""
        for folder in (*FOLDERS, ""):
            for path in (self.root / folder).glob(".partial-*"):
                with contextlib.suppress(OSError):  # where nothing can be removed, a write will say so
                    fate = fate_of(path.name.removeprefix(".partial-").partition("~")[0])
                    if fate == "gone" or (fate == "unknown" and time.time() - path.stat().st_mtime > ABANDONED):
                        path.unlink(missing_ok=True)

    # Private

    def _task_file(self, key: str) -> Path:
        return self.root / UNITS / f"{key}.parquet"

    def _content(self, key: str) -> bytes | None:
        """The bytes of a unit's file; None if it is absent or incomplete."""
        content = self._read(self._task_file(key))
        return content if content is not None and is_task_file(content) else None

    def _read(self, path: Path, limit: int = RECORD_BYTES) -> bytes | None:
        """A file's bytes, None where there is none. A disk that does not answer is no file that is not there."""
        try:
            return read_regular(path, limit)
        except OSError as error:
            if is_absent(error):
                return None
            raise as_error(error, self.root, what=f"{path.name} cannot be read") from error

    def _record_files(self, folder: str) -> list[Path]:
        return sorted(path for path in (self.root / folder).glob("*.json") if not _is_partial(path.name))

    def _record(self, path: Path) -> dict[str, Any] | None:
        """The JSON document of a file, None unless it holds what a record of its folder holds."""
        content = self._read(path)
        return None if content is None else read_record(path.parent.name, content)

    def _damaged(self) -> Iterator[tuple[Path, str]]:
        for key in self.tasks():
            if self._content(key) is None:
                yield self._task_file(key), problem_of(self._task_file(key))
        for folder in (PLANS, CRASHES):
            for path in self._record_files(folder):
                if self._record(path) is None:
                    yield path, problem_of(path)
        for folder in (MAPS, CLAIMS, LOGITS):
            for path in sorted((self.root / folder).iterdir() if (self.root / folder).is_dir() else ()):
                if not path.is_file() or (folder != CLAIMS and not path.stat().st_size and not _is_partial(path.name)):
                    yield path, problem_of(path)

    def _quarantine(self, path: Path, problem: str) -> None:
        target = self._move_aside(path)
        if target is None:
            return
        if target.is_file() and path.parent.name == UNITS and is_task_file(self._read(target) or b""):
            os.replace(target, path)  # another process has just computed it again
            return
        _warn(f"{str(path)!r} {problem}: set aside as {str(target)!r}, and made again where it is asked for")

    def _move_aside(self, path: Path) -> Path | None:
        """Where it is now; None where another process was faster."""
        folder, name = self.root / QUARANTINE, "~".join(path.relative_to(self.root).parts)
        try:
            folder.mkdir(exist_ok=True)
            tries = (folder / (f"{name}.{number}" if number else name) for number in range(1_000_000))
            target = next(target for target in tries if not os.path.lexists(target))
            os.replace(path, target)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise as_error(error, self.root) from error
        return target

    def _write(self, path: Path, content: bytes) -> None:
        if path.is_dir() and not path.is_symlink():
            self._quarantine(path, "is a folder where a file belongs")
        partial = path.with_name(f".partial-{process_name()}~{path.name}")
        try:
            with partial.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
            sync_folder(path.parent)
        except BaseException as error:  # an interrupt, too, leaves nothing behind
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise as_error(error, self.root, len(content)) from error
            raise


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=3)


def _is_partial(name: str) -> bool:
    return name.startswith(".partial-")
