"""One SQLite file of a run: it has one writer, which only appends, and any number of readers.

A task is one transaction. Each row has a digest of what it holds, of its number and of its file, so that a row that was
changed, copied or moved is seen. The numbers of rows have no gap; a gap is damage. What is damaged counts as absent.
"""

import contextlib
import errno
import hashlib
import os
import shutil
import sqlite3
import stat
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fringe._files.disk import RECORD_BYTES, disk_error, sync_folder
from fringe._files.records import digest
from fringe.bench.experiments._records import (
    STATUSES,
    Damaged,
    Details,
    StoredMap,
    StoredTask,
    are_notes,
    from_json,
    is_shared,
    to_json,
)

SUFFIX, MAPS_SUFFIX = ".db", ".maps.db"
#: 64 MiB: the size at which a file on a disk is full, and the next one begins.
FULL = 2**26
#: The same in an object store, where each task writes its file again: 2 MiB.
FULL_REMOTE = 2**21
#: The largest value of a file of maps: 512 MiB.
_LARGEST_MAP = 2**29
_FORMAT, _APPLICATION = 3, 0x46524E47
#: Rows that are looked for behind damage before the rest counts as lost.
_TRIED = 1000
_SCHEMA = (
    "CREATE TABLE record (id INTEGER PRIMARY KEY, kind TEXT, name TEXT, created INTEGER, content BLOB, digest BLOB)",
    "CREATE TABLE task (id INTEGER PRIMARY KEY, setting TEXT, metrics TEXT, images TEXT, shared TEXT, created INTEGER,"
    " numbers BLOB, notes BLOB, digest BLOB)",
    "CREATE TABLE detail (id INTEGER PRIMARY KEY, content BLOB, digest BLOB)",
    "CREATE TABLE map (id INTEGER PRIMARY KEY, setting TEXT, image TEXT, status TEXT, content BLOB, digest BLOB)",
)
#: A file may come from a stranger: nothing in it is run, and its memory is not mapped.
_CAUTION = ("trusted_schema = OFF", "cell_size_check = ON", "mmap_size = 0", "query_only = ON")
_LIMITS = {sqlite3.SQLITE_LIMIT_SQL_LENGTH: 10_000, sqlite3.SQLITE_LIMIT_COLUMN: 20, sqlite3.SQLITE_LIMIT_ATTACHED: 0}

#: What fails where bytes are not what they should be.
_ODD = (ValueError, KeyError, TypeError, IndexError, OverflowError, RecursionError, AttributeError)


def seal(*parts: str | bytes | int) -> bytes:
    """16 bytes of the SHA-256 of parts, each behind its length."""
    contents = [part if isinstance(part, bytes) else str(part).encode() for part in parts]
    return hashlib.sha256(b"".join(len(one).to_bytes(8, "little") + one for one in contents)).digest()[:16]


def encoded(task: StoredTask) -> tuple[bytes, bytes, bytes]:
    """The numbers, notes and details of a task as bytes."""
    from safetensors.numpy import save

    details = {name: np.ascontiguousarray(values) for name, values in (task.details or {}).items()}
    return task.numbers(), to_json(task.notes), save(details)


_connected = partial(sqlite3.connect, isolation_level=None, check_same_thread=False)


class Writer:
    """The one writer of a file of a run, which the threads of a process share. ``put`` gets the bytes of the file after
    each commit, for an object store; the file itself is then in memory."""

    def __init__(self, folder: Path, name: str, put: Callable[[str, bytes], None] | None = None):
        self.name, self._put, self._folder, self.process = name, put, folder, os.getpid()
        self._mutex, self._facts, self._ids = threading.RLock(), set[str](), dict[str, int]()
        path = None if put is not None else folder / f".{name}"
        self._db = _connected(":memory:" if path is None else str(path))
        if path is None:
            self._create()
            return
        with _system_errors(folder):
            try:
                self._create()
                self._db.execute("PRAGMA journal_mode = WAL")
            finally:
                self._db.close()  # its tables are there before it has its name
            path.rename(folder / name)
            sync_folder(folder)
            self._db = _connected(str(folder / name))
            self._db.execute("PRAGMA synchronous = FULL")

    @property
    def size(self) -> int:
        """Bytes of the file."""
        pages, size = (self._db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
        return int(pages) * int(size)

    def commit(self, task: StoredTask, created: int) -> StoredTask:
        """Store a task, or nothing of it. Raises StoreFull if there is no room."""
        numbers, notes, details = encoded(task)
        with self._transaction():
            shared = [self._fact(created, one) for one in (task.metrics, task.images, task.shared)]
            row = (number := self._next("task"), task.setting, *shared, created, numbers, notes)
            mark = seal(self.name, *row)
            self._db.execute("INSERT INTO task VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (*row, mark))
            self._db.execute("INSERT INTO detail VALUES (?, ?, ?)", (number, details, seal(mark, details)))
        return replace(task, details=None, row=(self.name, number, mark))

    def record(self, kind: str, name: str, created: int, data: Any) -> None:
        """Store JSON data; the newest of a kind and name counts."""
        with self._transaction():
            self._insert(kind, name, created, to_json(data))

    def maps(self, setting: str, maps: Mapping[str, StoredMap]) -> None:
        """Store maps of a setting by image."""
        with self._transaction():
            for image, stored in maps.items():
                status, content = str(stored.metadata.get("status", "ok")), stored.to_bytes()
                row = (self._next("map"), setting, image, status, content)
                self._db.execute("INSERT INTO map VALUES (?, ?, ?, ?, ?, ?)", (*row, seal(self.name, *row)))

    def close(self) -> None:
        """Make the file a plain one, without a journal; while somebody reads it, a later run does that."""
        if self.process == os.getpid():  # the connection of another process must not be touched
            close(self._db)

    def _create(self) -> None:
        marks = f"PRAGMA application_id = {_APPLICATION}; PRAGMA user_version = {_FORMAT}"
        self._db.executescript(";".join(("BEGIN", marks, *_SCHEMA, "COMMIT")))

    @contextlib.contextmanager
    def _transaction(self) -> Generator[None]:
        with self._mutex, _system_errors(self._folder):
            facts, ids = set(self._facts), dict(self._ids)
            try:
                with self._db:  # commits, or rolls back
                    self._db.execute("BEGIN IMMEDIATE")
                    yield
            except BaseException:
                self._facts, self._ids = facts, ids
                raise
            if self._put is not None:
                self._put(self.name, self._db.serialize())

    def _next(self, table: str) -> int:
        self._ids[table] = number = self._ids.get(table, 0) + 1
        return number

    def _fact(self, created: int, data: Any) -> str:
        """Store data that many tasks share, once for each file; its name is its digest."""
        name = digest(data)
        if name not in self._facts:
            self._insert("fact", name, created, to_json(data))
            self._facts.add(name)
        return name

    def _insert(self, kind: str, name: str, created: int, content: bytes) -> None:
        if len(content) > RECORD_BYTES:
            raise disk_error(OSError(errno.EFBIG, "more data than can be read back"), self._folder)
        row = (self._next("record"), kind, name, created, content)
        self._db.execute("INSERT INTO record VALUES (?, ?, ?, ?, ?, ?)", (*row, seal(self.name, *row)))


def close(db: sqlite3.Connection) -> None:
    """Close a file, and make it a plain one unless somebody else is at it."""
    with contextlib.suppress(sqlite3.Error):
        db.execute("PRAGMA busy_timeout = 0")
        db.execute("PRAGMA journal_mode = DELETE")
    db.close()


@contextlib.contextmanager
def _system_errors(folder: Path) -> Generator[None]:
    """Turn errors of SQLite and of the system into ours."""
    try:
        yield
    except OSError as error:
        raise disk_error(error, folder) from error
    except sqlite3.Error as error:
        cause = OSError(errno.EIO, str(error))
        if getattr(error, "sqlite_errorname", "") == "SQLITE_FULL":
            cause = OSError(errno.ENOSPC, "no space left")
        else:
            try:  # SQLite says of few causes why it cannot write: what a write of our own meets
                with tempfile.TemporaryFile(dir=folder) as file:
                    file.write(bytes(2**16))
            except OSError as met:
                cause = met
        raise disk_error(cause, folder) from error


class Reader(AbstractContextManager["Reader"]):
    """A file of a run as it is at one moment, read with caution: a path, or the bytes of a file. Raises Damaged.

    ``facts`` are those of all files that were read, by name; they may be shared between readers. ``problems`` grow as
    rows are read.
    """

    def __init__(self, source: Path | bytes, name: str, facts: dict[str, Any]):
        self.name, self.facts, self.problems, self._copy = name, facts, list[str](), contextlib.ExitStack()
        self._checked, self._notes = set[tuple[str, int]](), dict[bytes, Any]()
        try:
            self._db, self._size = self._open(source)
        except (sqlite3.Error, OSError, OverflowError, Damaged) as error:
            self._copy.close()
            raise Damaged(str(error)) from error

    def __exit__(self, *_: object) -> None:
        self._db.close()
        self._copy.close()

    def records(self, after: int = 0) -> Iterator[tuple[int, str, str, int, Any]]:
        """Read number, kind, name, time and data of the intact records; facts go to ``facts``."""
        columns = "kind, name, created, content, digest"
        for number, kind, name, created, content, mark in self._rows("record", columns, after):
            try:
                _check(content, mark, self.name, number, kind, name, created, content)
                if kind != "fact":
                    yield number, kind, name, int(created), from_json(content)
                elif name not in self.facts:
                    data = from_json(content)
                    if digest(data) != name:
                        raise Damaged("a fact under another name")
                    self.facts[name] = tuple(map(str, data)) if isinstance(data, list) else data
            except _ODD as error:
                self.problems.append(f"record {number} is damaged ({error})")

    def tasks(self, after: int = 0) -> Iterator[tuple[int, StoredTask]]:
        """Read number and task of the intact tasks, without details; the records must have been read."""
        columns = "setting, metrics, images, shared, created, numbers, notes, digest"
        for number, *stored in self._rows("task", columns, after):
            try:
                yield number, self._task(number, *stored)
            except _ODD as error:
                self.problems.append(f"task {number} is damaged ({error})")

    def details(self, task: StoredTask) -> Details:
        """Read the details of a task of this file. Raises Damaged."""
        from safetensors.numpy import load

        try:
            row = self._db.execute("SELECT content, digest FROM detail WHERE id = ?", (task.row[1],)).fetchone()
            content = _check(row[0], row[1], task.row[2], row[0])
            details = load(content)
            for name in task.shared["details"]:
                if not {"curve", "extra", "diagnostic"} & {name.partition("/")[0]} or name not in details:
                    raise Damaged(name)
            return details
        except Exception as error:  # whatever such bytes may be taken for
            raise Damaged(f"details {task.row[1]} of {self.name} are damaged") from error

    def maps(self, after: int = 0) -> Iterator[tuple[int, str, str, str]]:
        """Read number, setting, image and status of the maps, which are not checked here."""
        for number, *names in self._rows("map", "setting, image, status", after):
            if all(isinstance(name, str) for name in names):
                yield number, *names

    def map(self, number: int) -> tuple[str, str, StoredMap]:
        """Read setting, image and map of a row. Raises Damaged."""
        try:
            query = "SELECT setting, image, status, content, digest FROM map WHERE id = ?"
            setting, image, status, content, mark = self._db.execute(query, (number,)).fetchone()
            _check(content, mark, self.name, number, setting, image, status, content)
            return setting, image, StoredMap.from_bytes(content)
        except Exception as error:  # whatever such bytes may be taken for
            raise Damaged(f"map {number} of {self.name} is damaged") from error

    def check(self) -> None:
        """Read what is otherwise read only where it is asked for: details and maps."""
        query = "SELECT task.id, content, detail.digest, task.digest FROM task LEFT JOIN detail USING (id)"
        try:
            for number, content, mark, owner in self._db.execute(query):
                if not isinstance(content, bytes) or seal(owner, content) != mark:
                    self.problems.append(f"details {number} are damaged")
        except sqlite3.Error as error:
            self.problems.append(f"detail: {error}")
        for number, *_ in self.maps():
            try:
                self.map(number)
            except Damaged as error:
                self.problems.append(str(error))

    def _task(self, number: int, *stored: Any) -> StoredTask:
        setting, metrics, images, shared, _, numbers, notes, mark = stored
        _check(numbers, mark, self.name, number, *stored[:-1])
        of, asked, common = self.facts[images], self.facts[metrics], self.facts[shared]
        arrays = StoredTask.read_numbers(numbers, len(asked), len(of))
        known = self._notes.get(notes) or from_json(notes)
        is_known = (shared, len(asked)) in self._checked or is_shared(common, len(asked))
        if not isinstance(of, tuple) or not isinstance(asked, tuple) or not is_known:
            raise Damaged("its names")
        self._checked.add((shared, len(asked)))
        is_fine = notes in self._notes or are_notes(known, arrays["scores"].size)
        if not is_fine or (arrays["maps"]["verdict"] > len(known["verdicts"])).any():
            raise Damaged("its notes")
        if not known["scores"]:  # as of most tasks
            self._notes[notes] = known
        if (arrays["status"] >= len(STATUSES)).any():
            raise Damaged("a status of a newer version")
        row = (self.name, number, mark)
        columns = arrays["scores"], arrays["status"], arrays["maps"]
        return StoredTask(setting, asked, of, *columns, known, common, row=row)

    def _rows(self, table: str, columns: str, after: int) -> Iterator[tuple[Any, ...]]:
        """Read the rows of a table behind ``after``, behind damage one by one; those that cannot be read are passed
        over. No more bytes are read than the file has: a stranger's file may repeat its pages without end."""
        query, last, missed, left = f"SELECT id, {columns} FROM {table}", after, 0, self._size
        every: Any = None
        with contextlib.suppress(sqlite3.DatabaseError):
            every = self._db.execute(f"{query} WHERE id > ? ORDER BY id", (after,))
        is_scan = every is not None
        if not is_scan:
            self.problems.append(f"{table}: it cannot be read")
        while missed < _TRIED and left >= 0:
            row: Any = None
            try:
                row = next(every) if is_scan else self._db.execute(f"{query} WHERE id = ?", (last + 1,)).fetchone()
                if is_scan and row[0] != last + 1:
                    raise sqlite3.DatabaseError(f"row {last + 1} is missing")
            except StopIteration:
                return
            except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:
                if is_scan:
                    self.problems.append(f"{table}: {error}")
                    is_scan = False
                    continue
            last, missed = last + 1, missed + 1 if row is None else 0
            if row is not None:
                left -= sum(len(value) for value in row if isinstance(value, (bytes, str))) + len(row)
                yield row

    def _open(self, source: Path | bytes) -> tuple[sqlite3.Connection, int]:
        if isinstance(source, bytes):
            db = sqlite3.connect(":memory:", isolation_level=None)
            db.deserialize(source)
            return self._guarded(db), len(source)
        beside = (Path(f"{source}{end}") for end in ("-wal", "-journal", "-shm"))
        files = [source, *(path for path in beside if os.path.lexists(path))]
        for path in files:
            if not stat.S_ISREG(os.lstat(path).st_mode):
                raise Damaged(f"{path.name} is no file")
        size = sum(path.stat().st_size for path in files)
        with contextlib.suppress(sqlite3.OperationalError):
            return self._guarded(_read_only(source, "mode=ro")), size
        if len(files) == 1:  # on a disk without locks
            return self._guarded(_read_only(source, "immutable=1")), size
        folder = Path(self._copy.enter_context(tempfile.TemporaryDirectory()))
        for path in files[:2]:  # of a writer that died, where nothing can be written
            shutil.copyfile(path, folder / path.name)
        return self._guarded(_read_only(folder / source.name, "mode=rw")), size

    def _guarded(self, db: sqlite3.Connection) -> sqlite3.Connection:
        """Check that the file has our tables and no more, and keep its present state."""
        try:
            largest = _LARGEST_MAP if self.name.endswith(MAPS_SUFFIX) else RECORD_BYTES
            for limit, value in {**_LIMITS, sqlite3.SQLITE_LIMIT_LENGTH: largest}.items():
                db.setlimit(limit, value)
            for pragma in _CAUTION:
                db.execute(f"PRAGMA {pragma}")
            marks = [db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")]
            tables = db.execute("SELECT type, sql FROM sqlite_master LIMIT 9").fetchall()
            if marks != [_APPLICATION, _FORMAT] or tables != [("table", sql) for sql in _SCHEMA]:
                raise Damaged(f"it has format {marks[1]}, or other tables than this program makes")
            db.execute("BEGIN")  # one state from here on: a task, and what it shares
        except BaseException:
            db.close()
            raise
        return db


def _read_only(path: Path, how: str) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True, isolation_level=None)


def _check(content: Any, mark: Any, *parts: Any) -> bytes:
    if not isinstance(content, bytes) or seal(*parts) != mark:
        raise Damaged("the digest")
    return content
