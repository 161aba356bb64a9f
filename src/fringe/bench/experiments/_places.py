"""Where the files of a run are: a folder, or an object store through fsspec. Names are relative to it."""

import contextlib
import errno
import os
import re
import time
from collections.abc import Collection, Generator, Hashable
from pathlib import Path
from typing import Any

from fringe._files.disk import (
    MAPS_BYTES,
    PARTIAL,
    RECORD_BYTES,
    REFUSED,
    VIEWED,
    UnfitFile,
    disk_error,
    is_abandoned,
    read_regular,
    sync_folder,
    when_free,
    write_atomic,
)
from fringe._files.process import process_name
from fringe._files.urls import open_store
from fringe.errors import FringeError, InputError, TransientError

_ABSENT = (errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.ELOOP)


class Folder:
    """A folder on a disk."""

    def __init__(self, root: Path):
        self.root = root

    def at(self, name: str) -> str:
        """Name an entry for a person."""
        return str(self.root / name)

    def begin(self, known: Collection[str]) -> None:
        """Make the folder. Raises InputError if it holds other things than ``known``, or cannot be written."""
        if os.path.exists(self.root) and not self.root.is_dir():
            raise InputError(f"{str(self.root)!r} is a file, expected a folder", argument="out")
        try:
            new = [path for path in (self.root, *self.root.parents) if not os.path.exists(path)]
            self.root.mkdir(parents=True, exist_ok=True)
            for path in new:
                sync_folder(path.parent)
            others = sorted(set(os.listdir(self.root)) - VIEWED.union(known))
        except OSError as error:
            if error.errno in REFUSED:
                raise InputError(f"cannot write in {str(self.root)!r} ({error.strerror})", argument="out") from error
            raise disk_error(error, self.root) from error
        if others := [name for name in others if not name.startswith((PARTIAL, "."))]:
            message = f"{str(self.root)!r} holds files that are no results of a run ({', '.join(others[:3])})"
            raise InputError(message, argument="out", hint="name another folder")

    def names(self) -> dict[str, Hashable]:
        """The entries of the folder by name, without hidden ones, each with what changes when its content does; None
        for one that is being written."""
        result = dict[str, Hashable]()
        with self._reading("it"):
            for entry in os.scandir(self.root):
                with contextlib.suppress(FileNotFoundError):  # it is gone meanwhile
                    if not entry.name.startswith("."):
                        known = entry.stat(follow_symlinks=False)
                        is_open = os.path.lexists(f"{entry.path}-wal")
                        result[entry.name] = None if is_open else (known.st_size, known.st_mtime_ns, known.st_ino)
        return dict(sorted(result.items()))

    def database(self, name: str) -> Path | bytes:
        """What a database is read from."""
        return self.root / name

    def read(self, name: str) -> bytes | None:
        """Return a file's bytes; None if it does not exist. A disk that does not answer raises an error instead."""
        with self._reading(name.rpartition("/")[2]):
            return read_regular(self.root / name, RECORD_BYTES)
        return None

    def write(self, name: str, content: bytes) -> None:
        """Write a file in one step, durably. Raises StoreFull if there is no space."""
        with self._writing(len(content)):
            write_atomic(self.root / name, content, durable=True)

    def create(self, name: str, content: bytes) -> bool:
        """Write a file unless there is one of its name; whether it was written."""
        path = self.root / name
        partial = path.with_name(f"{PARTIAL}{process_name()}~{time.monotonic_ns()}")
        with self._writing(len(content)):
            path.parent.mkdir(exist_ok=True)
            try:
                partial.write_bytes(content)
                with contextlib.suppress(FileExistsError):
                    _link(partial, path)  # a claim is there with its content, or not at all
                    return True
            finally:
                partial.unlink(missing_ok=True)
        return False

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with self._writing():
            when_free(lambda: (self.root / name).unlink(missing_ok=True))

    def set_aside(self, name: str) -> str:
        """Move an entry into the folder ``aside``; return its name there."""
        target = f"aside/{name}.{time.time_ns():x}"
        with self._writing():
            (self.root / "aside").mkdir(exist_ok=True)
            for end in ("-wal", "-shm", "-journal"):
                with contextlib.suppress(FileNotFoundError):
                    os.replace(self.root / f"{name}{end}", self.root / f"{target}{end}")
            with contextlib.suppress(FileNotFoundError):
                when_free(lambda: os.replace(self.root / name, self.root / target))
        return target

    def remove_partial_files(self) -> None:
        """Remove partial files of dead processes: those of this machine (the same boot and process table) at once, and
        others when nothing was written to them for a day."""
        for folder in (self.root, self.root / "claims"):
            for path in (*folder.glob(f"{PARTIAL}*"), *folder.glob(".*.db*")):
                with contextlib.suppress(OSError):  # where nothing can be removed, a write will say so
                    if is_abandoned(path, None if path.name.startswith(PARTIAL) else writer_of(path.name[1:])):
                        path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _reading(self, what: str) -> Generator[None]:
        """Turn system errors into ours; ignore that a file does not exist."""
        try:
            yield
        except OSError as error:
            if not (isinstance(error, UnfitFile) or error.errno in _ABSENT):
                raise disk_error(error, self.root, what=f"{what} cannot be read") from error

    @contextlib.contextmanager
    def _writing(self, needed: int = 0) -> Generator[None]:
        """Turn system errors into ours."""
        try:
            yield
        except OSError as error:
            raise disk_error(error, self.root, needed) from error


class Bucket(Folder):
    """A folder in an object store, by its URL; credentials and endpoints are those of the environment. An object is
    there as a whole or not at all."""

    def __init__(self, url: str):
        super().__init__(Path(url))
        self.url = url
        with self._calls("it cannot be opened"):
            self._fs, self._path = open_store(url, "out")

    def at(self, name: str) -> str:
        return f"{self.url}/{name}"

    def begin(self, known: Collection[str]) -> None:
        if others := sorted(set(self.names()) - set(known)):
            message = f"{self.url!r} holds objects that are no results of a run ({', '.join(others[:3])})"
            raise InputError(message, argument="out", hint="name another prefix")

    def names(self) -> dict[str, Hashable]:
        with self._calls("it cannot be listed"), contextlib.suppress(FileNotFoundError):
            entries: list[dict[str, Any]] = self._fs.ls(self._path, detail=True)
            marks = ("size", "ETag", "etag", "LastModified", "last_modified", "updated", "created")
            objects = {e["name"].rstrip("/").rpartition("/")[2]: tuple(str(e.get(m)) for m in marks) for e in entries}
            return {name: mark for name, mark in sorted(objects.items()) if name}
        return {}

    def database(self, name: str) -> Path | bytes:
        return self.read(name, MAPS_BYTES) or b""

    def read(self, name: str, limit: int = RECORD_BYTES) -> bytes | None:
        with self._calls(f"{name} cannot be read"), contextlib.suppress(FileNotFoundError, IsADirectoryError):
            info: dict[str, Any] = self._fs.info(self._at(name))
            if info["type"] == "file" and info["size"] <= limit:
                return bytes(self._fs.cat_file(self._at(name)))
        return None

    def write(self, name: str, content: bytes) -> None:
        with self._calls("a result cannot be written"):
            try:
                self._fs.pipe_file(self._at(name), content)
            except FileNotFoundError as error:
                raise InputError(f"{self.url!r}: there is no such bucket", argument="out") from error

    def create(self, name: str, content: bytes) -> bool:
        with self._calls("a result cannot be written"), contextlib.suppress(FileExistsError):
            self._fs.pipe_file(self._at(name), content, mode="create")
            return True
        return False

    def remove(self, name: str) -> None:
        with self._calls(f"{name} cannot be removed"), contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self._at(name))

    def set_aside(self, name: str) -> str:
        target = f"aside/{name}.{time.time_ns():x}"
        with self._calls(f"{name} cannot be moved"), contextlib.suppress(FileNotFoundError):
            self._fs.cp_file(self._at(name), self._at(target))
            self._fs.rm_file(self._at(name))
        return target

    def remove_partial_files(self) -> None:
        with self._calls("it cannot be removed"), contextlib.suppress(FileNotFoundError):
            self._fs.rm(self._at("done"), recursive=True)  # what was done before is read when a run begins

    def _at(self, name: str) -> str:
        return f"{self._path}/{name}"

    @contextlib.contextmanager
    def _calls(self, what: str) -> Generator[None]:
        """Turn the errors of the store into ours; what is absent stays FileNotFoundError."""
        try:
            yield
        except (FringeError, FileNotFoundError, FileExistsError, IsADirectoryError):
            raise
        except Exception as error:  # each store has errors of its own
            name = type(error).__name__
            if isinstance(error, PermissionError) or "Credential" in name or "ParamValidation" in name:
                raise InputError(f"{self.url!r}: {what} ({error})", argument="out") from error
            message = f"{self.url!r}: {what} ({name}: {error}); nothing that was computed before is lost"
            raise TransientError(message) from error


def is_database(name: str) -> bool:
    """Whether a file is a database of a run: it bears the time when it began, and its writer."""
    return re.fullmatch(r"\d{20}-.*\.db", name, re.DOTALL) is not None


def writer_of(name: str) -> str:
    """The process that writes a database, as the name of the file says; empty for another name."""
    parts = name.partition(".")[0].split("-")
    return "-".join(parts[1:4]) if len(parts) == 5 else ""


def _link(partial: Path, path: Path) -> None:
    """Give a file a second name, unless that is taken. Raises FileExistsError if it is."""
    try:
        os.link(partial, path)
    except FileExistsError:
        raise
    except (OSError, AttributeError, NotImplementedError) as error:  # no second names on this disk
        lacking = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
        if isinstance(error, OSError) and error.errno not in lacking:
            raise
        with path.open("xb") as file:
            file.write(partial.read_bytes())
