"""The file that a study lives in: one record a line, shared by processes, readable after a crash. Needs Optuna."""

import contextlib
import json
import os
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import BaseJournalBackend, JournalFileBackend, JournalFileOpenLock

from fringe._files import MAPS_BYTES, open_regular
from fringe.errors import InputError

_RECORD = b'{"op_code":'
"""How each line of a journal begins."""


class Journal(BaseJournalBackend):
    """Optuna's journal file, whose last line may have been torn by a crash.

    A torn line was never acknowledged, so nothing that anybody knows of is lost with it; but a record appended to it
    would be, and the file could not be read again. It is cut off before each append.
    """

    def __init__(self, path: Path):
        self._path = path
        self._file = JournalFileBackend(str(path), lock_obj=JournalFileOpenLock(str(path)))

    def read_logs(self, log_number_from: int) -> Iterable[dict[str, Any]]:
        return self._file.read_logs(log_number_from)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        lines = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs)
        with exclusive(self._path), open(self._path, "r+b") as file:
            file.seek(_end_of_last_line(self._path))
            file.truncate()
            file.write(lines.encode())
            file.flush()
            os.fsync(file.fileno())


@contextlib.contextmanager
def exclusive(path: Path) -> Generator[None]:
    """Hold the lock file beside ``path``. That of a killed process is broken after 30 s."""
    lock = JournalFileOpenLock(str(path))
    lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def quiet() -> Generator[None]:
    """Keep Optuna's own messages off the terminal."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


def open_study(path: Path, name: str, identity: dict[str, Any]) -> optuna.Study:
    """The study ``name`` of a journal, made if it is not there. Raises InputError, naming the differences, if it is
    there with another ``identity`` (plain JSON), and on a file that is no journal."""
    if path.exists():
        _inspect(path)
    study = optuna.create_study(
        storage=JournalStorage(Journal(path)), study_name=name, direction="maximize", load_if_exists=True
    )
    if "identity" not in study.user_attrs and not study.get_trials(deepcopy=False):
        study.set_user_attr("identity", identity)
    found = study.user_attrs.get("identity", {})
    if differences := sorted(_differences(found, identity)):
        raise InputError(
            f"journal: the study {name!r} in {path} was made with other settings; ask for the same, or keep the "
            f"new one elsewhere (--out). Differences: {'; '.join(differences)}"
        )
    return study


def plain(value: Any) -> Any:
    """``value`` as it comes back from JSON. Raises InputError if it cannot be written."""
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError) as error:
        raise InputError(f"identity: expected plain data that JSON can hold: {error}") from error


def _differences(found: Any, given: Any, where: str = "") -> list[str]:
    """``base.damping: 0.01 there, 0.1 now`` of every leaf that is not the same."""
    if isinstance(found, dict) and isinstance(given, dict):
        keys = {**found, **given}
        parts = [_differences(found.get(key), given.get(key), f"{where}.{key}" if where else key) for key in keys]
        return [line for part in parts for line in part]
    there, now = (json.dumps(value, sort_keys=True) for value in (found, given))
    return [] if there == now else [f"{where}: {there} there, {now} now"]


def _inspect(path: Path) -> None:
    """Raise InputError, with the line, unless every line is a record, the last one perhaps torn."""
    try:
        opened = open_regular(path, MAPS_BYTES)
    except OSError as error:
        raise InputError(f"journal: {path} is no file that can be read ({error.strerror})") from error
    with opened as file:
        for number, line in enumerate(file, start=1):
            if not (_is_record(line) if line.endswith(b"\n") else line.startswith(_RECORD[: len(line)])):
                raise InputError(
                    f"journal: line {number} of {path} is no record of a study; is it a journal? If it is, remove the "
                    "lines from there on and resume: trials that they held are run again"
                )


def _is_record(line: bytes) -> bool:
    try:
        return line.startswith(_RECORD) and isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _end_of_last_line(path: Path, block: int = 1 << 16) -> int:
    """Bytes up to and with the last line feed."""
    with open(path, "rb") as file:
        place = file.seek(0, os.SEEK_END)
        while place > 0:
            start = max(0, place - block)
            file.seek(start)
            found = file.read(place - start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            place = start
    return 0
