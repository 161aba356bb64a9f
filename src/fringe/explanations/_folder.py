"""The folder of results: each result appears complete or not at all, and is checked before it is used again."""

import contextlib
import errno
import json
import shutil
from collections.abc import Callable, Collection, Generator, Mapping
from pathlib import Path
from typing import Any

from fringe._files.disk import (
    MAPS_BYTES,
    PARTIAL,
    RECORD_BYTES,
    VIEWED,
    disk_error,
    is_abandoned,
    partial_path,
    read_regular,
    require_local,
    sha256_of,
    when_free,
    write_atomic,
)
from fringe._files.records import digest
from fringe._strings.formats import to_json
from fringe.errors import InputError, warn_caller

SUMMARY, CONTACT, INDEX = "summary.json", "contact.png", "index.html"
EXPLANATION, MAP, PAGE, ANIMATION = "explanation.json", "attribution.safetensors", "explanation.html", "path.webp"
#: How the name of the file begins that says which settings a run has; their digest follows.
CLAIM = "settings-"
#: Files of one result besides its record.
FILES = (MAP, PAGE, ANIMATION, "overlay.png", "signed.png", "trajectory.png", "profile.png")


class ResultFolder:
    """The folder of one run of a ``command``.

    A folder with other content is refused unless ``overwrite`` is given; even then only results are replaced, never
    files of another origin. ``unwritten`` holds the errors of files that could not be written.
    """

    def __init__(self, root: Path, *, overwrite: bool, command: str):
        require_local("out", root)
        self.root, self._command = root, command
        self.written: dict[str, Path] = {}
        self.unwritten: dict[str, OSError] = {}
        try:
            if root.exists() and not root.is_dir():
                raise InputError(f"{str(root)!r} is a file, expected a folder", argument="out")
            names = {path.name for path in root.iterdir()} - VIEWED if root.is_dir() else set[str]()
            foreign = not all(map(_is_partial, names))
            if foreign and not overwrite and self.summary() is None:
                message = f"{str(root)!r} holds files that are no results of this command"
                if self._is_damaged():
                    message = f"{str(root / SUMMARY)!r} is damaged, and so it is not known what this folder holds"
                hint = "name another folder, or pass overwrite=True to write into this one"
                raise InputError(message, argument="out", hint=hint)
            if foreign and self._is_damaged():
                warn_caller(f"{str(root / SUMMARY)!r} is damaged and is written again")
            root.mkdir(parents=True, exist_ok=True)
            for path in root.glob(f"{PARTIAL}*"):
                with contextlib.suppress(OSError):
                    if _is_abandoned(path):
                        _remove(path)
        except OSError as error:
            raise InputError(f"cannot use {str(root)!r} ({error.strerror})", argument="out") from error

    def summary(self) -> Mapping[str, Any] | None:
        """The summary of an earlier run of the same command, if there is one that can be read; what a damaged one said
        of the settings, if all folders beside it are results and one is intact."""
        if self._is_damaged():
            records = list(self.records().values())
            return {**records[0], "inputs": records} if records and all(map(_is_result, self._folders())) else None
        document = self._document() or {}
        return document if "fringe" in document and document.get("command") == self._command else None

    def _document(self) -> dict[str, Any] | None:
        try:
            document = json.loads(read_regular(self.root / SUMMARY, RECORD_BYTES))
        except (OSError, ValueError, RecursionError):
            return None
        return document if isinstance(document, dict) else None

    def _is_damaged(self) -> bool:
        return (self.root / SUMMARY).is_file() and self._document() is None

    def has_results(self) -> bool:
        """Whether the folder holds any result, also an incomplete one: a run may have ended before its first."""
        return any(map(_is_result, self._folders()))

    def _folders(self) -> list[Path]:
        return sorted(path for path in self.root.iterdir() if path.is_dir() and not _is_partial(path.name))

    def records(self, without: Collection[Path] = ()) -> dict[Path, dict[str, Any]]:
        """The records of the intact results, by their folders in ascending order, ``without`` some of these."""
        pairs = ((path, _read(path)) for path in self._folders() if path not in without)
        return {path: record for path, record in pairs if record is not None}

    @contextlib.contextmanager
    def claimed(self, setting: str) -> Generator[None]:
        """Show other runs that this one writes results of a ``setting``, the digest of one.

        Raises InputError where a living run shows another one: each would replace the results of the other.
        """
        marker = partial_path(self.root / f"{CLAIM}{setting}")
        try:
            marker.touch()
        except OSError as error:
            raise disk_error(error, self.root) from error
        try:
            for path in self.root.glob(f"{PARTIAL}*~{CLAIM}*"):
                if path.name.rpartition("~")[2] != f"{CLAIM}{setting}" and not _is_abandoned(path):
                    message = f"another run writes results of other settings into {str(self.root)!r} at this moment"
                    hint = f"name another folder, or wait until it has ended; if it has, remove {path.name!r}"
                    raise InputError(message, argument="out", hint=hint)  # which is not known of another machine
            yield
        finally:
            with contextlib.suppress(OSError):
                marker.unlink()

    def result_path(self, identity: str) -> Path:
        """The folder of an image: its id, unless that is the name of a file of the run."""
        return self.root / (f"{identity}_" if identity.casefold() in (SUMMARY, CONTACT, INDEX) else identity)

    def read(self, identity: str) -> dict[str, Any] | None:
        """The record of a result, or None where there is none or a file of it is missing or damaged."""
        return _read(self.result_path(identity))

    def write(self, identity: str, record: Mapping[str, Any], fill: Callable[[Path], None]) -> dict[str, Any]:
        """``fill`` a hidden folder, add the record with checksums, which is returned, then rename the folder.

        Raises InputError if a folder of another origin has the name, and OSError, with the name of the result, if it
        cannot be written.
        """
        final = self.result_path(identity)
        partial = partial_path(final)
        old = partial.with_name(f"{partial.name}.old")
        with _named_errors(final):
            if final.exists() and not _is_result(final):
                raise InputError(f"{str(final)!r} exists and is no result of this command")
            _remove(partial)
            try:
                partial.mkdir()
                fill(partial)
                content = {**record, "files": {path.name: sha256_of(path, MAPS_BYTES) for path in partial.iterdir()}}
                content = json.loads(to_json(content))
                stored = {**content, "checksum": digest(content)}
                (partial / EXPLANATION).write_text(to_json(stored), encoding="utf-8")
                self._replace(final, partial, old)
                return stored
            finally:
                _remove(partial)
                _remove(old)

    def _replace(self, final: Path, partial: Path, old: Path) -> None:
        """Rename a folder; where another run takes the name in between, try again."""
        while True:
            _remove(old)
            with contextlib.suppress(FileNotFoundError):
                when_free(lambda: final.rename(old))
            try:
                return when_free(lambda: partial.rename(final))
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                    continue
                if old.exists():
                    when_free(lambda: old.rename(final))
                raise

    def attempt(self, name: str, content: str | bytes) -> None:
        """Write one file of the run in one step; an error is stored in ``unwritten``."""
        try:
            write_atomic(self.root / name, content if isinstance(content, bytes) else content.encode())
            self.unwritten.pop(name, None)
            self.written[name] = self.root / name
        except OSError as error:
            self.written.pop(name, None)
            self.unwritten[name] = error


def _read(path: Path) -> dict[str, Any] | None:
    """The record of the result in a folder, or None where a file of it is missing or damaged."""
    try:
        record = json.loads(read_regular(path / EXPLANATION, RECORD_BYTES))
        content = {name: value for name, value in record.items() if name != "checksum"}
        if record["checksum"] != digest(content):
            return None
        files: Mapping[str, str] = record["files"]
        intact = all(sha256_of(path / name, MAPS_BYTES) == expected for name, expected in files.items())
        return record if intact and MAP in files else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _is_abandoned(path: Path) -> bool:
    """Whether a partial file or folder is that of no living run; one whose name has no process is of an earlier version
    of this library, and one that is gone was ended."""
    try:
        return "~" not in path.name or is_abandoned(path)
    except FileNotFoundError:
        return True


def _is_partial(name: str) -> bool:
    return name.startswith(PARTIAL)


def _remove(path: Path) -> None:
    """Remove a file or folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _is_result(path: Path) -> bool:
    """Whether a folder is a result, also an incomplete one: nothing else may be replaced."""
    with contextlib.suppress(FileNotFoundError):  # another run may have renamed it just now
        return (path / EXPLANATION).is_file() or {file.name for file in path.iterdir()} <= set(FILES)
    return True


@contextlib.contextmanager
def _named_errors(path: Path) -> Generator[None]:
    """System errors with the name of the result: a write to an open file gives none, and that of a temporary file is
    not helpful."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
