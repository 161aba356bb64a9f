"""The files of a run folder on a disk: read after a check, written in one step, set aside, locked. Names are relative
to the folder, such as ``units/KEY.parquet``."""

import contextlib
import hashlib
import itertools
import os
import time
import warnings
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import BinaryIO

from fringe._files import (
    MAPS_BYTES,
    PARTIAL,
    RECORD_BYTES,
    VIEWED,
    open_regular,
    read_regular,
    sync_folder,
    when_free,
    write_atomic,
)
from fringe._process import fate_of
from fringe.errors import InputError, TransientError
from fringe.experiments._formats import NO_LOCKS, REFUSED, disk_error, is_absent, problem_of

#: Where a run puts what is damaged, or no longer true.
QUARANTINE = "aside"
#: Seconds after which a file half written belongs to no living process, wherever that ran.
ABANDONED = 24 * 3600.0
#: Number of lock files; two tasks that share one are not computed at the same time.
_LOCKS = 4096


class Disk:
    """A run folder on a disk."""

    def __init__(self, root: Path):
        self.root = root

    def at(self, name: str) -> str:
        """Name an entry for a person."""
        return repr(str(self.root / name))

    def exists(self, name: str) -> bool:
        """Whether there is an entry of this name, of whatever kind."""
        return os.path.lexists(self.root / name)

    def has_folder(self, name: str) -> bool:
        return (self.root / name).is_dir()

    def names(self, folder: str, suffix: str = "") -> list[str]:
        """List the entries of a folder, without hidden ones: files that are being written, and what macOS puts beside
        each file (``._KEY.parquet``) on a disk of another system."""
        with self._reading(folder):
            entries = os.listdir(self.root / folder)
            return sorted(name for name in entries if name.endswith(suffix) and not name.startswith("."))
        return []

    def read(self, name: str, limit: int = RECORD_BYTES) -> bytes | None:
        """Return a file's bytes; None if it does not exist. A disk that does not answer raises an error instead."""
        with self._reading(name.rpartition("/")[2]):
            return read_regular(self.root / name, limit)
        return None

    def open(self, name: str) -> tuple[BinaryIO, int] | None:
        """Open a file to read parts of it; return it with its size, or None if it does not exist."""
        with self._reading(name.rpartition("/")[2]):
            file = open_regular(self.root / name, MAPS_BYTES)
            return file, os.fstat(file.fileno()).st_size
        return None

    @contextlib.contextmanager
    def _reading(self, what: str) -> Generator[None]:
        """Turn system errors into ours; ignore that a file does not exist."""
        try:
            yield
        except OSError as error:
            if not is_absent(error):
                raise disk_error(error, self.root, what=f"{what} cannot be read") from error

    @contextlib.contextmanager
    def _writing(self, needed: int = 0) -> Generator[None]:
        """Turn system errors into ours."""
        try:
            yield
        except OSError as error:
            raise disk_error(error, self.root, needed) from error

    def write(self, name: str, content: bytes) -> None:
        """Write a file in one step, durably. Raises StoreFull if there is no space."""
        path = self.root / name
        if path.is_dir() and not path.is_symlink():
            self.set_aside(name, "is a folder where a file belongs")
        with self._writing(len(content)):
            write_atomic(path, content, durable=True)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with self._writing():
            when_free(lambda: (self.root / name).unlink(missing_ok=True))

    def problem(self, name: str) -> str:
        """Describe what is wrong with an entry that is not a result."""
        return problem_of(self.root / name)

    def oddities(self, folder: str, *, empty: bool = False) -> list[str]:
        """List the entries of a folder that are not files, and the empty files unless ``empty`` allows them."""
        paths = {name: self.root / folder / name for name in self.names(folder)}
        return [n for n, path in paths.items() if not path.is_file() or (not empty and not path.stat().st_size)]

    def set_aside(self, name: str, problem: str | None = None) -> str | None:
        """Move an entry to the quarantine folder, with a warning if there is a ``problem``: its name there, None where
        another process was faster."""
        flat = f"{QUARANTINE}/{name.replace('/', '~')}"
        tries = (f"{flat}.{number}" if number else flat for number in itertools.count())
        target = next(target for target in tries if not self.exists(target))
        try:
            self.move(name, target)
        except FileNotFoundError:
            return None
        if problem is not None:
            self.warn(name, problem, target)
        return target

    def warn(self, name: str, problem: str, target: str) -> None:
        """Say that an entry was set aside."""
        warn(f"{self.at(name)} {problem}: set aside as {self.at(target)}, and made again where it is asked for")

    def move(self, name: str, target: str) -> None:
        """Give an entry another name. Raises FileNotFoundError if there is none."""
        try:
            (self.root / target).parent.mkdir(exist_ok=True)
            when_free(lambda: os.replace(self.root / name, self.root / target))
        except FileNotFoundError:
            raise
        except OSError as error:
            raise disk_error(error, self.root) from error

    # The folder

    def begin(self, ours: Iterable[str]) -> None:
        """Make the folder. Raises InputError if it holds other things than ``ours``, or cannot be written."""
        if os.path.exists(self.root) and not self.root.is_dir():
            raise InputError(f"{str(self.root)!r} is a file, expected a folder", argument="out")
        try:
            new = [path for path in (self.root, *self.root.parents) if not os.path.exists(path)]
            self.root.mkdir(parents=True, exist_ok=True)
            for path in new:
                sync_folder(path.parent)
            known = VIEWED.union(ours)
            others = sorted(
                name for name in os.listdir(self.root) if name not in known and not name.startswith(PARTIAL)
            )
        except OSError as error:
            if error.errno in REFUSED:
                raise InputError(f"cannot write in {str(self.root)!r} ({error.strerror})", argument="out") from error
            raise disk_error(error, self.root) from error
        if others:
            message = f"{str(self.root)!r} holds files that are no results of a run ({', '.join(others[:3])})"
            raise InputError(message, argument="out", hint="name another folder")

    def make_folders(self, names: Iterable[str]) -> None:
        for name in names:
            path = self.root / name
            if path.is_dir():
                continue
            if path.is_symlink():
                target = os.readlink(path)
                raise TransientError(f"{str(path)!r} leads to {target!r}, where no folder is; is it mounted?")
            if os.path.lexists(path) and not path.is_dir():  # another process may have made it just now
                self.set_aside(name, "is a file where a folder belongs")
            with self._writing():
                path.mkdir(exist_ok=True)

    def remove_partial_files(self, folders: Iterable[str]) -> None:
        """Remove partial files of dead processes: those of this machine (the same boot and process table) at once, and
        others when nothing was written to them for a day."""
        for folder in folders:
            for path in (self.root / folder).glob(f"{PARTIAL}*"):
                with contextlib.suppress(OSError):  # where nothing can be removed, a write will say so
                    fate = fate_of(path.name.removeprefix(PARTIAL).partition("~")[0])
                    if fate == "gone" or (fate == "unknown" and time.time() - path.stat().st_mtime > ABANDONED):
                        path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def lock(self, folder: str, key: str) -> Generator[bool]:
        """Lock a task; False if another process holds it, or, rarely, another task of the same lock file. The system
        frees the lock of a process that dies."""
        from filelock import FileLock, Timeout

        number = int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big") % _LOCKS
        path = self.root / folder / f"{number:03x}.lock"
        lock = FileLock(path, thread_local=False, blocking=False)  # follows no link; any thread may release it
        acquired = True
        try:
            lock.acquire()
        except Timeout:
            acquired = False
        except (OSError, NotImplementedError) as error:
            if isinstance(error, OSError) and error.errno not in NO_LOCKS:
                raise disk_error(error, self.root) from error
            warn(
                f"{str(self.root)!r}: the file system has no locks ({error}); a second process in this folder may "
                "compute the same once more, and nothing worse"
            )
        try:
            yield acquired
        finally:
            lock.release()


def warn(message: str) -> None:
    warnings.warn(message, stacklevel=4)
