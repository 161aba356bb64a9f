"""The files of a run in an object store, through fsspec. An object is there as a whole or not at all, so that none is
renamed. A lock is an object that is put only if it is absent."""

import contextlib
import json
import time
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any, BinaryIO

from fringe._files import RECORD_BYTES
from fringe._process import fate_of, process_name
from fringe._urls import open_store
from fringe.errors import FringeError, InputError, TransientError
from fringe.experiments._disk import Disk

#: Seconds after which a lock belongs to no living process; a longer task may be computed twice, and nothing worse.
EXPIRES = 3600.0


class Bucket(Disk):
    """A run folder in an object store, by its URL; credentials and endpoints are those of the environment."""

    def __init__(self, url: str):
        super().__init__(Path(url))
        self.url = url
        with self._calls("cannot be opened"):
            self._fs, self._path = open_store(url, "out")

    def at(self, name: str) -> str:
        return repr(f"{self.url}/{name}")

    def exists(self, name: str) -> bool:
        return self._info(name) is not None

    def has_folder(self, name: str) -> bool:
        return True  # folders are parts of names

    def names(self, folder: str, suffix: str = "") -> list[str]:
        return sorted(name for name in self._sizes(folder) if name.endswith(suffix))

    def read(self, name: str, limit: int = RECORD_BYTES) -> bytes | None:
        info = self._info(name)
        if info is None or info["size"] > limit:
            return None
        with self._calls(f"{name} cannot be read"), contextlib.suppress(FileNotFoundError):
            return bytes(self._fs.cat_file(self._at(name)))
        return None

    def open(self, name: str) -> tuple[BinaryIO, int] | None:
        with self._calls(f"{name} cannot be read"), contextlib.suppress(FileNotFoundError):
            file: Any = self._fs.open(self._at(name), "rb", cache_type="none")
            return file, int(file.size)
        return None

    def write(self, name: str, content: bytes) -> None:
        with self._calls("a result cannot be written"):
            try:
                self._fs.pipe_file(self._at(name), content)
            except FileNotFoundError as error:
                raise InputError(f"{self.url!r}: there is no such bucket", argument="out") from error

    def write_new(self, name: str, content: bytes) -> bool:
        """Write an object unless there is one of its name; whether it was written."""
        with self._calls("a result cannot be written"):
            try:
                self._fs.pipe_file(self._at(name), content, mode="create")
            except FileExistsError:
                return False
        return True

    def remove(self, name: str) -> None:
        with self._calls(f"{name} cannot be removed"), contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self._at(name))

    def problem(self, name: str) -> str:
        info = self._info(name)
        return "is damaged" if info is None or info["size"] else "is empty"

    def oddities(self, folder: str, *, empty: bool = False) -> list[str]:
        return sorted(name for name, size in self._sizes(folder).items() if not size and not empty)

    def move(self, name: str, target: str) -> None:
        with self._calls(f"{name} cannot be moved"):
            self._fs.cp_file(self._at(name), self._at(target))
            self._fs.rm_file(self._at(name))

    def begin(self, ours: Iterable[str]) -> None:
        known = {name.partition("/")[0] for name in ours}
        others = sorted(set(self._sizes("")) - known)
        if others:
            message = f"{self.url!r} holds objects that are no results of a run ({', '.join(others[:3])})"
            raise InputError(message, argument="out", hint="name another prefix")

    def make_folders(self, names: Iterable[str]) -> None:
        pass

    def remove_partial_files(self, folders: Iterable[str]) -> None:
        pass  # an upload that was not finished is no object

    @contextlib.contextmanager
    def lock(self, folder: str, key: str) -> Generator[bool]:
        name = f"{folder}/{key}.lock"
        claim = json.dumps({"process": process_name(), "time": time.time()}).encode()
        acquired = self.write_new(name, claim)
        if not acquired and self._is_stale(self.read(name)):
            self.remove(name)
            acquired = self.write_new(name, claim)
        try:
            yield acquired
        finally:
            if acquired:
                self.remove(name)

    # Private

    def _is_stale(self, claim: bytes | None) -> bool:
        try:
            holder = json.loads(claim or b"")
            return fate_of(holder["process"]) == "gone" or time.time() - holder["time"] > EXPIRES
        except (ValueError, KeyError, TypeError):  # it is gone meanwhile, or was not written by this program
            return claim is not None

    def _at(self, name: str) -> str:
        return f"{self._path}/{name}" if name else self._path

    def _info(self, name: str) -> dict[str, Any] | None:
        with self._calls(f"{name} cannot be read"), contextlib.suppress(FileNotFoundError):
            info: dict[str, Any] = self._fs.info(self._at(name))
            return info if info["type"] == "file" else None
        return None

    def _sizes(self, folder: str) -> dict[str, int]:
        """The size of each object of a folder, by name; of a folder in it, zero."""
        with self._calls(f"{folder or 'it'} cannot be listed"), contextlib.suppress(FileNotFoundError):
            entries: list[dict[str, Any]] = self._fs.ls(self._at(folder), detail=True)
            names = {entry["name"].rstrip("/").rpartition("/")[2]: int(entry["size"] or 0) for entry in entries}
            return {name: size for name, size in names.items() if name}
        return {}

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
            message = f"{self.url!r}: {what} ({name}: {error}); nothing that was computed before is lost"
            raise TransientError(message) from error
