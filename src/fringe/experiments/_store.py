"""The folder of a run: what is committed there is whole and stays, whenever the process dies.

A unit is one Parquet file, written under a temporary name, flushed to the disk, and renamed: the rename is the commit.
Its name is a digest of what it holds, so that two processes that compute the same unit write the same file. Locks only
keep them from doing so at the same time. A file bears a seal, the digest of its own bytes: one that was damaged later
counts as not there, is set aside by the next run, and computed again.
"""

import contextlib
import errno
import json
import os
import time
import warnings
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from fringe._checks import require_local
from fringe._files import MAPS_BYTES, RECORD_BYTES, open_regular, read_regular
from fringe._process import fate_of, process_name
from fringe.errors import FringeError, InputError, TransientError
from fringe.experiments._integrity import BLANK, is_absent, is_unit, is_whole, problem_of, read_record, sealed
from fringe.experiments._manifest import digest
from fringe.experiments._records import ScoreRecord, StoredMap, from_bytes, from_table, to_bytes, to_table

UNITS, MAPS, CLAIMS, CRASHES, PLANS, LOGITS = "units", "maps", "claims", "crashes", "plans", "logits"
FOLDERS = (UNITS, MAPS, CLAIMS, CRASHES, PLANS, LOGITS)
ASIDE = "aside"
"""Where a run puts what is damaged, or no longer true."""
MARK = "fringe-run.json"
FORMAT = 1
_MARK_CONTENT = json.dumps({"format": FORMAT}).encode()

ABANDONED = 24 * 3600.0
"""Seconds after which a file half written belongs to no living process, wherever that ran."""

_REFUSED = (errno.EACCES, errno.EROFS, errno.EPERM, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EEXIST, errno.ELOOP)
"""What only a person can mend. Anything else may pass."""
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
"""What a file system says that has no locks."""


class StoreFull(TransientError):
    """There is no room for a result. Nothing that was committed is lost; the run goes on when there is room."""


class Store:
    """The results under ``root``. Raises InputError for a folder that holds other things or cannot be written, and for
    the URL of a place that is no folder of this machine; TransientError for trouble of the disk that may pass."""

    def __init__(self, root: Path, *, create: bool = True):
        require_local("out" if create else "run", root)
        self.root = root
        mark = root / MARK
        if os.path.lexists(mark):
            self._check_format(mark, create=create)
        elif not create:
            raise InputError(f"run: {str(root)!r} holds no run of this program ({MARK} is missing)")
        else:
            self._begin(mark)
        if create:
            self._make_folders()

    def _check_format(self, mark: Path, *, create: bool) -> None:
        """Refuse a run of another format; heal one whose mark is damaged."""
        try:
            problem, record = None, json.loads(read_regular(mark, RECORD_BYTES))
            known = record["format"]
        except (ValueError, KeyError, TypeError, RecursionError):
            problem, known = "is damaged", FORMAT
        except OSError as error:
            if not is_absent(error):
                raise _explained(error, self.root, what=f"{MARK} cannot be read") from error
            problem, known = "is damaged" if mark.is_file() else "is no file", FORMAT
        if known != FORMAT:
            raise InputError(f"run: {str(self.root)!r} has format {known}, this program reads format {FORMAT}")
        if problem is None:
            return
        if not all((self.root / name).is_dir() for name in (UNITS, PLANS)):
            raise InputError(f"run: {str(mark)!r} {problem}, and nothing beside it is of a run; is it one?")
        if not create:
            _say(f"{str(mark)!r} {problem}; the next run writes it again")
            return
        self._set_aside(mark, problem)
        self._place(mark, _MARK_CONTENT)

    def _begin(self, mark: Path) -> None:
        if os.path.exists(self.root) and not self.root.is_dir():
            raise InputError(f"{str(self.root)!r} is a file, expected a folder", argument="out")
        try:
            new = [path for path in (self.root, *self.root.parents) if not os.path.exists(path)]
            self.root.mkdir(parents=True, exist_ok=True)
            for path in new:
                _sync_folder(path.parent)
            ours = (*FOLDERS, MARK)  # the mark, too: another process may have begun here just now
            strangers = sorted(p.name for p in self.root.iterdir() if p.name not in ours and not _is_partial(p.name))
            if strangers:
                message = f"{str(self.root)!r} holds files that are no results of a run ({', '.join(strangers[:3])})"
                raise InputError(message, argument="out", hint="name another folder")
            self._make_folders()
            self._place(mark, _MARK_CONTENT)
        except OSError as error:
            if error.errno in _REFUSED:
                raise InputError(f"cannot write in {str(self.root)!r} ({error.strerror})", argument="out") from error
            raise _explained(error, self.root) from error

    def _make_folders(self) -> None:
        for name in FOLDERS:
            path = self.root / name
            if path.is_dir():
                continue
            if path.is_symlink():
                target = os.readlink(path)
                raise TransientError(f"{str(path)!r} leads to {target!r}, where no folder is; is it mounted?")
            if os.path.lexists(path) and not path.is_dir():  # another process may have made it just now
                self._set_aside(path, "is a file where a folder belongs")
            try:
                path.mkdir(exist_ok=True)
            except OSError as error:
                raise _explained(error, self.root) from error

    # Units

    def has(self, key: str) -> bool:
        """Whether the unit is committed, and whole."""
        return self._content(key) is not None

    def commit(self, key: str, rows: Sequence[ScoreRecord], about: Mapping[str, Any]) -> None:
        """Keep the rows of a unit, with plain data about it. Raises :class:`StoreFull` where they do not fit."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = to_table(rows).replace_schema_metadata({"fringe": json.dumps(about), "seal": BLANK.decode()})
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd")
        content = sealed(sink.getvalue().to_pybytes())
        if len(content) > RECORD_BYTES or not is_unit(content):
            raise InputError("shard: the scores of one unit are more than can be read back; make units of fewer images")
        self._place(self._unit(key), content)

    def units(self) -> list[str]:
        """Every committed unit, damaged ones among them."""
        return sorted(path.stem for path in (self.root / UNITS).glob("*.parquet") if not _is_partial(path.name))

    def intact_units(self) -> list[Path]:
        """The files of the committed units that are not damaged."""
        return [self._unit(key) for key in self.units() if self.has(key)]

    def read(self, key: str) -> tuple[list[ScoreRecord], dict[str, Any]] | None:
        """Rows of a unit and the data about it; None where the file is damaged: it will be computed again."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        content = self._content(key)
        if content is None:
            return None
        table = pq.read_table(pa.BufferReader(content))
        about: dict[str, Any] = json.loads(table.schema.metadata[b"fringe"])
        return from_table(table), about

    def damaged(self) -> dict[Path, str]:
        """What stands where a result or a record of this run should, and is none: its path, and what is wrong with it.
        Of the maps only those that are empty or no file, as reading them all takes long."""
        return dict(self._damaged())

    def heal(self) -> None:
        """Set aside what is damaged, and say so: it is computed or written again where it is asked for."""
        for path, problem in self._damaged():
            self._set_aside(path, problem)

    def set_aside(self, names: Iterable[tuple[str, str]]) -> None:
        """Set aside entries that are whole and no longer true, by their folder and file name."""
        paths = [self.root / folder / name for folder, name in names]
        moved = sum(os.path.lexists(path) and self._move_aside(path) is not None for path in paths)
        if moved:
            _say(f"{moved} files of results are set aside in {str(self.root / ASIDE)!r}")

    def metadata(self) -> dict[str, dict[str, Any]]:
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

    def commit_maps(self, setting: str, maps: Mapping[str, StoredMap]) -> None:
        """Keep the maps of a setting by image digest. Raises :class:`StoreFull` where they do not fit."""
        path = self.root / MAPS / f"{setting}-{digest(sorted(maps))}.safetensors"
        self._place(path, sealed(to_bytes(maps, BLANK.decode())))

    def find_maps(self, setting: str, images: Iterable[str]) -> dict[str, StoredMap]:
        """The kept maps of a setting by image digest; those that are not there, or not whole, are not in it."""
        from safetensors import SafetensorError, safe_open

        wanted, found = set(images), dict[str, StoredMap]()
        for path in sorted((self.root / MAPS).glob(f"{setting}-*.safetensors")):
            with contextlib.suppress(SafetensorError, OSError):
                open_regular(path, MAPS_BYTES).close()
                with safe_open(path, framework="pt") as file:  # the header alone: most files are of other images
                    here = wanted.intersection(file.keys()) - found.keys()
                content = self._read(path, MAPS_BYTES) or b"" if here else b""
                if is_whole(content):
                    kept = from_bytes(content)
                    found |= {image: kept[image] for image in here}
                elif here:
                    _say(f"{str(path)!r} is damaged; its maps are made again")
        return found

    def map_files(self, setting: str) -> list[str]:
        """The names of the files that hold maps of a setting."""
        return sorted(path.name for path in (self.root / MAPS).glob(f"{setting}-*.safetensors"))

    # Logits

    def commit_logits(self, model: str, logits: Mapping[str, Tensor]) -> None:
        """Keep the logits (C,) of a few images by digest, under the digest of what is known of the ``model``."""
        kept = {image: StoredMap(values, {}) for image, values in logits.items()}
        self._place(self.root / LOGITS / f"{model}.safetensors", sealed(to_bytes(kept, BLANK.decode())))

    def logits(self, model: str) -> dict[str, Tensor]:
        """What was kept of a model; nothing where the file is not there or not whole."""
        content = self._read(self.root / LOGITS / f"{model}.safetensors")
        if content is None or not is_whole(content):
            return {}
        return {image: kept.values for image, kept in from_bytes(content).items()}

    # Plans and crashes

    def write_record(self, folder: str, name: str, record: Mapping[str, Any]) -> None:
        """Keep a JSON document in ``plans`` or ``crashes``."""
        self._place(self.root / folder / f"{name}.json", json.dumps(record, indent=1).encode())

    def records(self, folder: str) -> dict[str, dict[str, Any]]:
        """The JSON documents of a folder by name; damaged ones are passed over."""
        found = {path.stem: self._record(path) for path in self._record_files(folder)}
        return {name: record for name, record in found.items() if record is not None}

    def forget_crash(self, key: str) -> None:
        (self.root / CRASHES / f"{key}.json").unlink(missing_ok=True)

    # Locks

    @contextlib.contextmanager
    def claim(self, key: str) -> Generator[bool]:
        """Whether the unit is this process's for now: False where another holds it. The system frees the lock of a
        process that dies."""
        from filelock import FileLock, Timeout

        lock, mine = FileLock(self.root / CLAIMS / f"{key}.lock", blocking=False), True  # follows no link
        try:
            lock.acquire()
        except Timeout:
            mine = False
        except (OSError, NotImplementedError) as error:
            if isinstance(error, OSError) and error.errno not in _NO_LOCKS:
                raise _explained(error, self.root) from error
            _say(
                f"{str(self.root)!r}: the file system has no locks ({error}); a second process in this folder may "
                "compute the same once more, and nothing worse"
            )
        try:
            yield mine
        finally:
            lock.release()

    def sweep(self) -> None:
        """Remove what dead processes left half written: those of this machine (the same boot and the same table of
        processes) at once, and others' files when nobody wrote to them for a day."""
        for folder in (*FOLDERS, ""):
            for path in (self.root / folder).glob(".partial-*"):
                with contextlib.suppress(OSError):  # where nothing can be removed, a write will say so
                    now = fate_of(path.name.removeprefix(".partial-").partition("~")[0])
                    if now == "gone" or (now == "unknown" and time.time() - path.stat().st_mtime > ABANDONED):
                        path.unlink(missing_ok=True)

    # Private

    def _unit(self, key: str) -> Path:
        return self.root / UNITS / f"{key}.parquet"

    def _content(self, key: str) -> bytes | None:
        """The bytes of a unit's file; None where it is not there or not whole."""
        content = self._read(self._unit(key))
        return content if content is not None and is_unit(content) else None

    def _read(self, path: Path, limit: int = RECORD_BYTES) -> bytes | None:
        """A file's bytes, None where there is none. A disk that does not answer is no file that is not there."""
        try:
            return read_regular(path, limit)
        except OSError as error:
            if is_absent(error):
                return None
            raise _explained(error, self.root, what=f"{path.name} cannot be read") from error

    def _record_files(self, folder: str) -> list[Path]:
        return sorted(path for path in (self.root / folder).glob("*.json") if not _is_partial(path.name))

    def _record(self, path: Path) -> dict[str, Any] | None:
        """The JSON document of a file, None unless it holds what a record of its folder holds."""
        content = self._read(path)
        return None if content is None else read_record(path.parent.name, content)

    def _damaged(self) -> Iterator[tuple[Path, str]]:
        for key in self.units():
            if self._content(key) is None:
                yield self._unit(key), problem_of(self._unit(key))
        for folder in (PLANS, CRASHES):
            for path in self._record_files(folder):
                if self._record(path) is None:
                    yield path, problem_of(path)
        for folder in (MAPS, CLAIMS, LOGITS):
            for path in sorted((self.root / folder).iterdir() if (self.root / folder).is_dir() else ()):
                if not path.is_file() or (folder != CLAIMS and not path.stat().st_size and not _is_partial(path.name)):
                    yield path, problem_of(path)

    def _set_aside(self, path: Path, problem: str) -> None:
        target = self._move_aside(path)
        if target is None:
            return
        if target.is_file() and path.parent.name == UNITS and is_unit(self._read(target) or b""):
            os.replace(target, path)  # another process has just computed it again
            return
        _say(f"{str(path)!r} {problem}: set aside as {str(target)!r}, and made again where it is asked for")

    def _move_aside(self, path: Path) -> Path | None:
        """Where it is now; None where another process was faster."""
        folder, name = self.root / ASIDE, "~".join(path.relative_to(self.root).parts)
        try:
            folder.mkdir(exist_ok=True)
            tries = (folder / (f"{name}.{number}" if number else name) for number in range(1_000_000))
            target = next(target for target in tries if not os.path.lexists(target))
            os.replace(path, target)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _explained(error, self.root) from error
        return target

    def _place(self, path: Path, content: bytes) -> None:
        if path.is_dir() and not path.is_symlink():
            self._set_aside(path, "is a folder where a file belongs")
        partial = path.with_name(f".partial-{process_name()}~{path.name}")
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


def _say(message: str) -> None:
    warnings.warn(message, stacklevel=3)


def _explained(error: OSError, root: Path, needed: int = 0, *, what: str = "a result cannot be written") -> FringeError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        room = f"{needed} bytes are needed; " if needed else ""
        return StoreFull(
            f"{str(root)!r}: no space left ({room}free some and run it again: nothing that was computed before is lost)"
        )
    if error.errno in _REFUSED:
        if what != "a result cannot be written":
            return InputError(f"run: {str(root)!r}: {what} ({error.strerror})")
        return InputError(f"{str(root)!r} cannot be written ({error.strerror})", argument="out")
    return TransientError(
        f"{str(root)!r}: {what} ({error.strerror or error}); nothing that was computed before is lost"
    )


def _sync_folder(folder: Path) -> None:
    """Make a rename last through a power cut, where the system can."""
    with contextlib.suppress(OSError, AttributeError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _is_partial(name: str) -> bool:
    return name.startswith(".partial-")
