"""The file of a run: how it is made, opened with caution, set aside where it is damaged, and copied as far as it can be
read."""

import contextlib
import errno
import itertools
import json
import os
import sqlite3
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np

from fringe._files.disk import RECORD_BYTES, REFUSED, VIEWED, disk_error, read_regular, sync_folder
from fringe.bench.experiments._records import row_type
from fringe.errors import InputError

FILE, MAPS, ASIDE, FORMAT = "run.db", "maps", "aside", 4
#: What marks a run of fringe 0.1 and 0.2, which this version does not read.
OLD_MARKER = "fringe-run.json"
_APPLICATION = 0x46524E47
_SCHEMA = (
    "CREATE TABLE record (kind TEXT, name TEXT, content TEXT, seal BLOB, PRIMARY KEY (kind, name))",
    "CREATE TABLE fact (id INTEGER PRIMARY KEY, content TEXT)",
    "CREATE TABLE result (id INTEGER PRIMARY KEY, shape INTEGER, numbers BLOB, seal BLOB)",
    "CREATE TABLE detail (id INTEGER PRIMARY KEY, content BLOB)",
    "CREATE TABLE claim (task TEXT PRIMARY KEY, owner TEXT, done INTEGER)",
)
_TABLES, _OURS = (
    "SELECT type, sql FROM sqlite_master WHERE sql IS NOT NULL LIMIT 9",
    [("table", sql) for sql in _SCHEMA],
)
#: A file may come from a stranger: nothing in it is run, and its memory is not mapped.
_CAUTION = ("trusted_schema = OFF", "cell_size_check = ON", "mmap_size = 0")
#: Bytes of a page of a new file: the details of an image have some 2 KB, of which a smaller page would hold one.
_PAGE = 16_384
#: Bytes of a new file: a page for each table.
NEW_BYTES = _PAGE * len(_SCHEMA)
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: RECORD_BYTES,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 10_000,
    sqlite3.SQLITE_LIMIT_COLUMN: 20,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
}
#: Rows in turn that cannot be read, behind which the rest of a damaged file counts as lost.
_TRIED = 10_000
#: What to open of a folder of results that is no run, by what made it.
_SHOWN_BY = {"explain": "index.html", "compare": "compare.png"}


_OTHER_VERSION = "read it with the version that made it, or name another folder"


def check_folder(folder: Path, root: Path, *, create: bool, beside: bool) -> None:
    """Refuse a folder that is none of a run of this format; make one for a new run. ``root`` is its name for people.

    Raises InputError for a folder that holds other things, holds no run, or one of another format.
    """
    if os.path.lexists(folder / OLD_MARKER):
        text = f"{str(root)!r} holds a run of fringe 0.2 or older, this program reads format {FORMAT}"
        raise InputError(text, argument="out" if create else "run", hint=_OTHER_VERSION)
    if os.path.lexists(folder / FILE):
        return
    if not create:
        raise InputError(f"run: {str(root)!r} holds no run of this program ({_other_content(folder)})")
    if os.path.exists(folder) and not folder.is_dir():
        raise InputError(f"{str(root)!r} is a file, expected a folder", argument="out")
    try:
        new = [path for path in (folder, *folder.parents) if not os.path.exists(path)]
        folder.mkdir(parents=True, exist_ok=True)
        for path in new:
            sync_folder(path.parent)
        names = set(os.listdir(folder)) - VIEWED.union((FILE, MAPS, ASIDE))
    except OSError as error:
        raise cannot_write(error, root) from error
    others = sorted(name for name in names if not name.startswith("."))
    if others and not beside:
        message = f"{str(root)!r} holds files that are no results of a run ({', '.join(others[:3])})"
        raise InputError(message, argument="out", hint="name another folder")


def open_file(folder: Path | None, root: Path, *, create: bool) -> sqlite3.Connection:
    """Open the file of a run, or one in memory. Raises InputError for a file of another kind, and sqlite3.DatabaseError
    for one that is damaged, or cannot be opened now."""
    db = _connected(folder, create=create)
    db.text_factory = _text
    try:
        for limit, value in _LIMITS.items():
            db.setlimit(limit, value)
        for pragma in _CAUTION:
            db.execute(f"PRAGMA {pragma}")
        tables = db.execute(_TABLES).fetchall()
        if not tables and create:
            with transaction(db, folder or root):
                if not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                    for statement in (*_SCHEMA, f"PRAGMA application_id = {_APPLICATION}"):
                        db.execute(statement)
                    db.execute(f"PRAGMA user_version = {FORMAT}")
            tables = db.execute(_TABLES).fetchall()
        marks = [db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")]
        if marks != [_APPLICATION, FORMAT] or tables != _OURS:
            text = f"{str(root / FILE)!r} has format {marks[1]}, or other tables than this program makes"
            raise InputError(text, argument="out" if create else "run", hint=_OTHER_VERSION)
        if create and folder is not None:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
    except BaseException:
        db.close()
        raise
    return db


def _connected(folder: Path | None, *, create: bool) -> sqlite3.Connection:
    """Connect to the file: to be written, or to be read, where a disk without locks and a writer that died must not
    be in the way."""
    how: dict[str, Any] = {"isolation_level": None, "check_same_thread": False, "timeout": 60}
    if folder is None:
        return sqlite3.connect(":memory:", **how)
    path = folder / FILE
    beside = [Path(f"{path}{end}") for end in ("-wal", "-journal", "-shm")]
    for one in (path, *beside):
        if os.path.lexists(one) and not (one.is_file() and not one.is_symlink()):
            raise InputError(f"{str(one)!r} is no file", argument="out" if create else "run")
    if create:
        db = sqlite3.connect(path, **how)
        db.execute(f"PRAGMA page_size = {_PAGE}")  # of a file that is there nothing changes
        return db
    uri = path.absolute().as_uri()
    with contextlib.suppress(sqlite3.OperationalError):
        db = sqlite3.connect(f"{uri}?mode=ro", uri=True, **how)
        db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        return db
    if not os.path.lexists(beside[0]):
        return sqlite3.connect(f"{uri}?immutable=1", uri=True, **how)
    with tempfile.TemporaryDirectory() as copy:  # of a writer that died, where nothing can be written
        for one in (path, beside[0]):
            Path(copy, one.name).write_bytes(one.read_bytes())
        db = sqlite3.connect(":memory:", **how)
        with contextlib.closing(sqlite3.connect(Path(copy, FILE))) as source:
            source.backup(db)
        return db


@contextlib.contextmanager
def transaction(db: sqlite3.Connection, folder: Path) -> Generator[None]:
    """All or nothing. Raises StoreFull if there is no room, TransientError for other trouble of the disk."""
    try:
        with db:
            db.execute("BEGIN IMMEDIATE")
            yield
    except sqlite3.Error as error:
        raise system_error(error, folder) from error
    except OSError as error:
        raise disk_error(error, folder) from error


def set_aside(folder: Path) -> Path:
    """Move a damaged file, which is not open, and its journal into the folder ``aside``."""
    aside = folder / ASIDE / f"{FILE}.{time.time_ns():x}"
    aside.parent.mkdir(exist_ok=True)
    for end in ("-wal", "-shm", "-journal", ""):
        with contextlib.suppress(FileNotFoundError):
            os.replace(folder / f"{FILE}{end}", f"{aside}{end}")
    return aside


def salvage(aside: Path, db: sqlite3.Connection, folder: Path) -> None:
    """Copy what can be read of a damaged file, row by row; what it says is not checked."""
    old, found = sqlite3.connect(aside), list[Any]()
    old.text_factory = _text
    with contextlib.suppress(sqlite3.DatabaseError):
        old.execute("PRAGMA trusted_schema = OFF")
        old.execute("PRAGMA writable_schema = ON")  # else nothing is read of a file that is cut
        found = old.execute(_TABLES).fetchall()
    for table, columns in (("record", 4), ("result", 4), ("detail", 2), ("fact", 2)) if found == _OURS else ():
        insert, missed = f"INSERT OR REPLACE INTO {table} VALUES ({', '.join('?' * columns)})", 0
        with transaction(db, folder):
            for number in _named(db) if table == "fact" else itertools.count(1):
                row: Any = None
                with contextlib.suppress(sqlite3.DatabaseError, OverflowError):
                    row = old.execute(f"SELECT * FROM {table} WHERE rowid = ?", (number,)).fetchone()
                missed = 0 if row else missed + 1
                if row:
                    db.execute(insert, row)
                if missed == _TRIED:
                    break
    old.close()


def _text(content: bytes) -> str:
    """A text, whatever its bytes are: of another digest, if they are damaged."""
    return content.decode(errors="replace")


def _named(db: sqlite3.Connection) -> list[int]:
    """The facts that rows name: their shapes and notes, whose places are the same in all rows."""
    found = set[int]()
    for (numbers,) in db.execute("SELECT numbers FROM result"):
        if isinstance(numbers, bytes) and len(numbers) >= row_type(0).itemsize:
            row = np.frombuffer(numbers, row_type(0), 1)[0]
            found |= {int(row["shape"]), int(row["notes"])}
    return sorted(found)


def _other_content(folder: Path) -> str:
    """What a folder without a run is, as far as that is known."""
    with contextlib.suppress(OSError, ValueError, RecursionError, AttributeError):
        made_by = json.loads(read_regular(folder / "summary.json", RECORD_BYTES)).get("command")
        if made_by in _SHOWN_BY:
            return f"it is a folder of {made_by}: open {folder / _SHOWN_BY[made_by]}"
    return f"{FILE} is missing"


def cannot_write(error: OSError, root: Path) -> Exception:
    """Our error for one of the system where a run begins."""
    if error.errno in REFUSED:
        return InputError(f"cannot write in {str(root)!r} ({error.strerror})", argument="out")
    return disk_error(error, root)


def system_error(error: sqlite3.Error, folder: Path) -> Exception:
    """Our error for one of SQLite, which says of few causes why it cannot write: what a write of our own meets."""
    cause = OSError(errno.EIO, str(error))
    if getattr(error, "sqlite_errorname", "") == "SQLITE_FULL":
        cause = OSError(errno.ENOSPC, "no space left")
    else:
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(bytes(2**16))
        except OSError as met:
            cause = met
    return disk_error(cause, folder)
