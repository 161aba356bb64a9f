"""A run in an object store: it has one writer, which works on a copy of the file in a local folder.

The copy is fetched when a run begins and put back once a minute and at the end, as a new object beside the old one; the
object of the next generation then names it. That one is put on condition that it is not there: of two writers the
second one stops. A process that is killed loses what it computed since the last copy: at most ``INTERVAL`` seconds, and
what one more commit takes. Maps are put before the file that names them.
"""

import contextlib
import os
import sqlite3
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

from fringe._files.urls import open_store
from fringe.errors import FringeError, InputError, TransientError

#: Seconds between two copies of a run that is being computed.
INTERVAL = 60.0
_FILE, _GENERATION = "run.db", "generation-"


class Bucket:
    """A run under a URL; credentials and endpoints are those of the environment. Raises InputError for a URL that
    cannot be opened, TransientError for a store that does not answer."""

    def __init__(self, url: str):
        self.url, self._generation, self._pushed = url, 0, time.monotonic()
        self._local = tempfile.TemporaryDirectory(prefix="fringe-run-")
        self.folder, self._maps, self._state = Path(self._local.name), dict[str, int](), None
        with self._calls("it cannot be opened"):
            self._fs, self._path = open_store(url, "out")

    def names(self) -> list[str]:
        """The generations of the run, the newest last; empty if there is none."""
        with self._calls("it cannot be listed"), contextlib.suppress(FileNotFoundError):
            entries = [name.rstrip("/").rpartition("/")[2] for name in self._fs.ls(self._path, detail=False)]
            known = sorted(name for name in entries if name.startswith(_GENERATION))
            strange = [name for name in entries if name and not name.startswith((_GENERATION, _FILE, "maps"))]
            if strange and not known:
                message = f"{self.url!r} holds objects that are no results of a run ({', '.join(sorted(strange)[:3])})"
                raise InputError(message, argument="out", hint="name another prefix")
            return known
        return []

    def fetch(self) -> Path:
        """Copy the file of the newest generation into the local folder, and return the folder."""
        if names := self.names():
            self._generation = int(names[-1].removeprefix(_GENERATION))
            with self._calls("it cannot be read"):
                name = os.path.basename(bytes(self._fs.cat_file(self._at(names[-1]))).decode())
                self._fs.get_file(self._at(name), str(self.folder / _FILE))
            self._state = self._stamp()
        return self.folder

    def fetch_map(self, name: str) -> None:
        """Copy a map into the local folder, if it is not there."""
        path = self.folder / name
        if path.exists():
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._calls(f"{name} cannot be read"), contextlib.suppress(FileNotFoundError):
            self._fs.get_file(self._at(name), str(path))
            self._maps[name] = path.stat().st_mtime_ns

    def push_sometimes(self, db: sqlite3.Connection) -> None:
        """Copy the file up if the last copy is old; ``db`` is the connection of its writer."""
        if time.monotonic() - self._pushed > INTERVAL:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self.push()

    def push(self) -> None:
        """Copy the maps and the file up, if they changed. Raises TransientError if another run wrote here meanwhile."""
        if (state := self._stamp()) == self._state:
            return
        before, number = self._generation, self._generation + 1
        name, head = f"{_FILE}-{number:08}-{os.urandom(4).hex()}", f"{_GENERATION}{number:08}"
        with self._calls("a result cannot be written"):
            for path in sorted(self.folder.glob("maps/*/*.safetensors")):
                relative, written = path.relative_to(self.folder).as_posix(), path.stat().st_mtime_ns
                if self._maps.get(relative) != written:
                    self._fs.put_file(str(path), self._at(relative))
                    self._maps[relative] = written
            try:
                self._fs.put_file(str(self.folder / _FILE), self._at(name))
                self._fs.pipe_file(self._at(head), name.encode(), mode="create")
            except FileNotFoundError as error:
                raise InputError(f"{self.url!r}: there is no such bucket", argument="out") from error
            except FileExistsError as error:
                text = f"{self.url!r}: another run wrote here meanwhile; what this one computed since its last copy"
                raise TransientError(f"{text} is lost, run it again when the other has ended") from error
        self._generation, self._pushed, self._state = number, time.monotonic(), state
        with contextlib.suppress(Exception):  # the next generation counts, whether or not the old one is still there
            old = self._at(f"{_GENERATION}{before:08}")
            known = os.path.basename(bytes(self._fs.cat_file(old)).decode())
            self._fs.rm_file(old)
            self._fs.rm_file(self._at(known))

    def _stamp(self) -> Any:
        """What changes when the file does."""
        with contextlib.suppress(FileNotFoundError):
            known = (self.folder / _FILE).stat()
            return known.st_size, known.st_mtime_ns
        return None

    def _at(self, name: str) -> str:
        return f"{self._path}/{name}"

    @contextlib.contextmanager
    def _calls(self, what: str) -> Generator[None]:
        """Turn the errors of the store into ours; what is absent stays FileNotFoundError."""
        try:
            yield
        except (FringeError, FileNotFoundError):
            raise
        except Exception as error:  # each store has errors of its own
            name = type(error).__name__
            if isinstance(error, PermissionError) or "Credential" in name or "ParamValidation" in name:
                raise InputError(f"{self.url!r}: {what} ({error})", argument="out") from error
            message = f"{self.url!r}: {what} ({name}: {error}); nothing that was copied before is lost"
            raise TransientError(message) from error
