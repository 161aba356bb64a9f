"""The folder of results: what is written there appears whole or not at all."""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fringe._checks import require_local
from fringe._errors import InputError

SUMMARY, CONTACT, EXPLANATION = "summary.json", "contact.png", "explanation.json"


class ResultFolder:
    """A folder that holds results of one ``command`` and nothing of anybody else's that could be lost.

    A folder with other content is refused unless ``overwrite`` says so; even then nothing is removed but the results
    that are written again.
    """

    def __init__(self, root: Path, *, overwrite: bool, command: str = "explain"):
        require_local("--out", root)
        if root.exists() and not root.is_dir():
            raise InputError(f"--out: {str(root)!r} is a file, expected a folder")
        if not overwrite and root.is_dir() and any(root.iterdir()) and not _is_ours(root, command):
            raise InputError(
                f"--out: {str(root)!r} holds files that are no results of this command; name another folder, or pass "
                "--overwrite to write among them"
            )
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"--out: cannot make {str(root)!r} ({error.strerror})") from error
        self.root = root

    def name_of(self, identity: str) -> str:
        """The sub-folder of an input: its id, unless that is the name of one of our own files."""
        return f"{identity}_" if identity.casefold() in (SUMMARY, CONTACT) else identity

    def write(self, name: str, fill: Callable[[Path], None]) -> None:
        """``fill`` a hidden folder, then give it its name. Raises InputError where another's folder has it."""
        final, partial, old = self.root / name, self.root / f".partial-{name}", self.root / f".old-{name}"
        if final.exists() and not (final / EXPLANATION).is_file():
            raise InputError(f"{str(final)!r} exists and is no result of this command")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        try:
            fill(partial)
            if final.exists():
                shutil.rmtree(old, ignore_errors=True)
                final.rename(old)
            partial.rename(final)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
            shutil.rmtree(old, ignore_errors=True)

    def replace(self, name: str, fill: Callable[[Path], object]) -> None:
        """Write one file of the folder itself, through a neighbour with the same suffix."""
        partial = self.root / f".partial-{name}"
        try:
            fill(partial)
            os.replace(partial, self.root / name)
        finally:
            partial.unlink(missing_ok=True)

    def write_text(self, name: str, text: str) -> None:
        self.replace(name, lambda path: path.write_text(text, encoding="utf-8", newline=""))


def to_json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _is_ours(root: Path, command: str) -> bool:
    try:
        found = json.loads((root / SUMMARY).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and "fringe" in found and found.get("command", "explain") == command
