"""The folder of results: what is written there appears whole or not at all."""

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

from fringe._checks import require_local
from fringe._files import RECORD_BYTES, read_regular
from fringe._text import printable_json
from fringe.errors import InputError

SUMMARY, CONTACT, EXPLANATION = "summary.json", "contact.png", "explanation.json"


class ResultFolder:
    """A folder that holds results of one ``command`` and nothing of anybody else's that could be lost.

    A folder with other content is refused unless ``overwrite`` says so; even then nothing is removed but the results
    that are written again.
    """

    def __init__(self, root: Path, *, overwrite: bool, command: str = "explain"):
        require_local("--out", root)
        try:
            if root.exists() and not root.is_dir():
                raise InputError(f"--out: {str(root)!r} is a file, expected a folder")
            if not overwrite and root.is_dir() and any(root.iterdir()) and not _is_ours(root, command):
                raise InputError(
                    f"--out: {str(root)!r} holds files that are no results of this command; name another folder, or "
                    "pass --overwrite to write among them"
                )
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"--out: cannot use {str(root)!r} ({error.strerror})") from error
        self.root = root
        self.unwritten: dict[str, OSError] = {}

    def name_of(self, identity: str) -> str:
        """The sub-folder of an input: its id, unless that is the name of one of our own files."""
        return f"{identity}_" if identity.casefold() in (SUMMARY, CONTACT) else identity

    def write(self, name: str, fill: Callable[[Path], None]) -> None:
        """``fill`` a hidden folder, then give it its name; what had the name before is there until then.

        Raises InputError where another's folder has the name, and OSError with the name where it cannot be written.
        """
        final, partial, old = self.root / name, self.root / f".partial-{name}", self.root / f".old-{name}"
        with _naming(final):
            if final.exists() and not (final / EXPLANATION).is_file():
                raise InputError(f"{str(final)!r} exists and is no result of this command")
            shutil.rmtree(partial, ignore_errors=True)
            try:
                partial.mkdir()
                fill(partial)
                if final.exists():
                    shutil.rmtree(old, ignore_errors=True)
                    final.rename(old)
                try:
                    partial.rename(final)
                except OSError:
                    if old.exists():
                        old.rename(final)
                    raise
            finally:
                shutil.rmtree(partial, ignore_errors=True)
                shutil.rmtree(old, ignore_errors=True)

    def replace(self, name: str, fill: Callable[[Path], object]) -> None:
        """Write one file of the folder itself, through a neighbour with the same suffix. Raises OSError with its name
        where it cannot be written."""
        partial = self.root / f".partial-{name}"
        with _naming(self.root / name):
            try:
                partial.unlink(missing_ok=True)  # it could be a link, which would be written through
                fill(partial)
                os.replace(partial, self.root / name)
            finally:
                with contextlib.suppress(OSError):
                    partial.unlink(missing_ok=True)

    def attempt(self, name: str, fill: Callable[[Path], object]) -> bool:
        """As ``replace``; a file that cannot be written is noted in ``unwritten`` until it can."""
        try:
            self.replace(name, fill)
        except OSError as error:
            self.unwritten[name] = error
            return False
        self.unwritten.pop(name, None)
        return True

    def attempt_text(self, name: str, text: str) -> bool:
        return self.attempt(name, lambda path: path.write_text(text, encoding="utf-8", newline=""))


def described(error: OSError) -> str:
    """The result that could not be written, and why, of an error raised by a ``ResultFolder``."""
    return f"cannot write {error.filename!r} ({error.strerror})"


@contextlib.contextmanager
def _naming(path: Path) -> Generator[None]:
    """Errors of the system with the name of the result: a write to an open file names none, and a partial file's name
    tells nobody anything."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def to_json(document: Mapping[str, Any]) -> str:
    """The document as text that a terminal may show; bytes of a file name that are no text become JSON's own
    escapes."""
    return printable_json(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)) + "\n"


def _is_ours(root: Path, command: str) -> bool:
    try:
        found = json.loads(read_regular(root / SUMMARY, RECORD_BYTES))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and "fringe" in found and found.get("command", "explain") == command
