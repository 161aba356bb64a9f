"""The store of a run: one SQLite file in a folder, with a row for each image under a method; maps are files beside it.

A task is one transaction. A row names what it depends on by fingerprints of contents, and has a digest itself, so that
one that was changed, copied or moved is seen: it counts as absent, and the next run computes it again. Processes of one
machine may read and write at once. A run in an object store has a local copy (:mod:`._places`).
"""

import contextlib
import errno
import json
import os
import sqlite3
import tempfile
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fringe._files.disk import (
    MAPS_BYTES,
    PARTIAL,
    RECORD_BYTES,
    REFUSED,
    VIEWED,
    disk_error,
    is_abandoned,
    read_regular,
    require_local,
    sync_folder,
    write_atomic,
)
from fringe._files.process import fate_of, process_name
from fringe._files.records import digest
from fringe._files.urls import url_of
from fringe.bench.experiments._places import Bucket
from fringe.bench.experiments._records import (
    LOGITS,
    OK,
    PLAN,
    Damaged,
    Details,
    Result,
    StoredMap,
    fact_problem,
    fingerprint,
    from_json,
    joined,
    record_problem,
    row_type,
    seal,
    split,
    to_json,
)
from fringe.errors import InputError, warn_caller

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
_TABLES, _OURS = "SELECT type, sql FROM sqlite_master WHERE sql IS NOT NULL LIMIT 9", [("table", sql) for sql in _SCHEMA]
#: A file may come from a stranger: nothing in it is run, and its memory is not mapped.
_CAUTION = ("trusted_schema = OFF", "cell_size_check = ON", "mmap_size = 0")
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: RECORD_BYTES,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 10_000,
    sqlite3.SQLITE_LIMIT_COLUMN: 20,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
}
#: The largest number of a row that is there, or that a task had when it was done: none is used twice.
_NEWEST = "SELECT max(coalesce((SELECT max(id) FROM result), 0), coalesce((SELECT max(abs(done)) FROM claim), 0))"
#: Rows that are read at once.
_CHUNK = 2**15
#: Rows in turn that cannot be read, behind which the rest of a damaged file counts as lost.
_TRIED = 10_000
#: What to open of a folder of results that is no run, by what made it.
_SHOWN_BY = {"explain": "index.html", "compare": "compare.png"}


@dataclass(frozen=True)
class Block:
    """Rows of one shape: ``about`` is what they share, ``rows`` are records of :func:`row_type`, and ``notes`` what
    :meth:`Result.notes` says, by fingerprint."""

    about: Mapping[str, Any]
    rows: NDArray[Any]
    notes: Mapping[int, Any]

    @property
    def setting(self) -> str:
        """Digest of what shapes the maps."""
        return str(self.about["setting_key"])


class Store(AbstractContextManager["Store"]):
    """The results in a folder, under the URL of one in an object store, such as ``s3://bucket/run``, or in memory
    (None). Without ``create`` nothing is written; ``beside`` other files a run may begin, too.

    Raises InputError for a folder that holds other things, holds no run, holds one of another format or cannot be
    written, and for a URL of another kind; TransientError for trouble of the disk that may pass.
    """

    def __init__(self, root: Path | str | None, *, create: bool = True, beside: bool = False):
        url = None if root is None else url_of(root)
        if root is not None and url is None:
            require_local("out" if create else "run", root)
        self.root = Path("memory" if root is None else root)
        self.bucket = None if url is None else Bucket(url)
        self._folder = None if root is None else self.root if self.bucket is None else self.bucket.fetch()
        self._create = create
        if self._folder is not None:
            self._check_folder(self._folder, beside=beside)
        self._connection: sqlite3.Connection | None = None
        self._owner, self._planned = f"{process_name()}~{os.urandom(4).hex()}", 0
        self._open()

    @property
    def _db(self) -> sqlite3.Connection:
        """The connection; what was closed is opened again, to be read."""
        if self._connection is None:
            self._open()
        assert self._connection is not None
        return self._connection

    @classmethod
    def existing(cls, root: Path) -> "Store | None":
        """The run in a folder, to be read; None if there is none."""
        url = url_of(root)
        there = (
            os.path.lexists(root / FILE) or os.path.lexists(root / OLD_MARKER) if url is None else Bucket(url).names()
        )
        return cls(root, create=False) if there else None

    # The folder and the file

    def _check_folder(self, folder: Path, *, beside: bool) -> None:
        """Refuse a folder that is none of a run of this format; make one for a new run."""
        if os.path.lexists(folder / OLD_MARKER):
            text = f"{str(self.root)!r} holds a run of fringe 0.2 or older, this program reads format {FORMAT}"
            raise InputError(text, argument="out" if self._create else "run", hint=_OTHER_VERSION)
        if os.path.lexists(folder / FILE):
            return
        if not self._create:
            raise InputError(f"run: {str(self.root)!r} holds no run of this program ({_other_content(folder)})")
        if os.path.exists(folder) and not folder.is_dir():
            raise InputError(f"{str(self.root)!r} is a file, expected a folder", argument="out")
        try:
            new = [path for path in (folder, *folder.parents) if not os.path.exists(path)]
            folder.mkdir(parents=True, exist_ok=True)
            for path in new:
                sync_folder(path.parent)
            names = set(os.listdir(folder)) - VIEWED.union((FILE, MAPS, ASIDE))
        except OSError as error:
            raise _cannot_write(error, self.root) from error
        others = sorted(name for name in names if not name.startswith("."))
        if others and not beside:
            message = f"{str(self.root)!r} holds files that are no results of a run ({', '.join(others[:3])})"
            raise InputError(message, argument="out", hint="name another folder")

    def _open(self) -> None:
        self._damage, self._lost_rows, self._last = list[str](), list[int](), 0
        self._facts, self._blocks = dict[int, Any](), list[Block]()
        try:
            self._connection = self._connected()
            for limit, value in _LIMITS.items():
                self._db.setlimit(limit, value)
            for pragma in _CAUTION:
                self._db.execute(f"PRAGMA {pragma}")
            tables = self._db.execute(_TABLES).fetchall()
            if not tables and self._create:
                with self._transaction():
                    if not self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                        for statement in (*_SCHEMA, f"PRAGMA application_id = {_APPLICATION}"):
                            self._db.execute(statement)
                        self._db.execute(f"PRAGMA user_version = {FORMAT}")
                tables = self._db.execute(_TABLES).fetchall()
            marks = [self._db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")]
            if marks != [_APPLICATION, FORMAT] or tables != _OURS:
                text = f"{str(self.root / FILE)!r} has format {marks[1]}, or other tables than this program makes"
                raise InputError(text, argument="out" if self._create else "run", hint=_OTHER_VERSION)
            if self._create and self._folder is not None:
                self._db.execute("PRAGMA journal_mode = WAL")
                self._db.execute("PRAGMA synchronous = FULL")
        except sqlite3.DatabaseError as error:
            self._broken(error)
        except OSError as error:
            raise _cannot_write(error, self.root) from error

    def _connected(self) -> sqlite3.Connection:
        """Connect to the file: to be written, or to be read, where a disk without locks and a writer that died must not
        be in the way."""
        how: dict[str, Any] = {"isolation_level": None, "check_same_thread": False, "timeout": 60}
        if self._folder is None:
            return sqlite3.connect(":memory:", **how)
        path = self._folder / FILE
        beside = [Path(f"{path}{end}") for end in ("-wal", "-journal", "-shm")]
        for one in (path, *beside):
            if os.path.lexists(one) and not (one.is_file() and not one.is_symlink()):
                raise InputError(f"{str(one)!r} is no file", argument="out" if self._create else "run")
        if self._create:
            return sqlite3.connect(path, **how)
        uri = path.absolute().as_uri()
        with contextlib.suppress(sqlite3.OperationalError):
            db = sqlite3.connect(f"{uri}?mode=ro", uri=True, **how)
            db.execute("SELECT count(*) FROM sqlite_master").fetchone()
            return db
        if not os.path.lexists(beside[0]):
            return sqlite3.connect(f"{uri}?immutable=1", uri=True, **how)
        self._copy = tempfile.TemporaryDirectory()  # of a writer that died, where nothing can be written
        for one in (path, beside[0]):
            Path(self._copy.name, one.name).write_bytes(one.read_bytes())
        return sqlite3.connect(Path(self._copy.name, FILE), **how)

    def _broken(self, error: sqlite3.DatabaseError) -> None:
        """Set a file aside that cannot be opened at all, and begin a new one; a reader is told."""
        if isinstance(error, sqlite3.OperationalError):
            raise _system_error(error, self._folder or self.root) from error
        if not self._create or self._folder is None:
            text = f"{str(self.root / FILE)!r} is damaged ({error})"
            raise InputError(text, argument="run", hint="run the same command again: it sets the file aside") from error
        self._disconnect()
        aside = self._set_aside()
        warn_caller(f"{str(self.root / FILE)!r} is damaged ({error}): set aside as {str(aside)!r}; {_AGAIN}")
        self._open()
        self._salvage(aside)

    def _set_aside(self) -> Path:
        assert self._folder is not None
        aside = self._folder / ASIDE / f"{FILE}.{time.time_ns():x}"
        aside.parent.mkdir(exist_ok=True)
        for end in ("-wal", "-shm", "-journal", ""):
            with contextlib.suppress(FileNotFoundError):
                os.replace(self._folder / f"{FILE}{end}", f"{aside}{end}")
        return aside

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give up the claims of this process, and make the file a plain one, unless somebody else is at it. What is
        asked later is read from the file."""
        if self._folder is None or self._connection is None:
            return
        if self._create:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("DELETE FROM claim WHERE owner = ? AND NOT done", (self._owner,))
                self._db.execute("PRAGMA busy_timeout = 0")
                self._db.execute("PRAGMA journal_mode = DELETE")
        self._disconnect()
        is_writer, self._create = self._create, False
        if is_writer and self.bucket is not None:
            self.bucket.push()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    @contextlib.contextmanager
    def _transaction(self) -> Generator[None]:
        """All or nothing. Raises StoreFull if there is no room, TransientError for other trouble of the disk."""
        try:
            with self._db:
                self._db.execute("BEGIN IMMEDIATE")
                yield
        except BaseException as error:
            self._facts = {}  # those that it began with are not stored
            if isinstance(error, sqlite3.Error):
                raise _system_error(error, self._folder or self.root) from error
            if isinstance(error, OSError):
                raise disk_error(error, self.root) from error
            raise

    def clean(self) -> None:
        """Remove what dead processes left, and what is damaged: the next run computes it again. A run does so before it
        begins."""
        assert self._create
        with self._transaction():
            owners = {owner for (owner,) in self._db.execute("SELECT DISTINCT owner FROM claim")}
            dead = [(owner,) for owner in owners if not _lives(owner)]
            self._db.executemany("DELETE FROM claim WHERE owner = ?", dead)
        for path in () if self._folder is None else self._folder.rglob(f"{PARTIAL}*"):
            with contextlib.suppress(OSError):
                if is_abandoned(path):
                    path.unlink(missing_ok=True)
        self._forget()
        self._refresh()
        self._lost_rows += self._without_details()
        if self._damage:
            aside = self._set_aside_damaged()
            warn_caller(
                f"{str(self.root / FILE)!r} is damaged ({self._damage[0]}): set aside as {str(aside)!r}; {_AGAIN}"
            )
            self._salvage(aside)
        elif self._lost_rows:
            rows = f"{len(self._lost_rows)} rows"
            warn_caller(f"{str(self.root / FILE)!r} is damaged ({rows}, the first is {self._lost_rows[0]}); {_AGAIN}")
            self._remove(self._lost_rows)
        self._forget()

    def _set_aside_damaged(self) -> Path:
        self._disconnect()
        aside, damage = self._set_aside(), self._damage
        self._open()
        self._damage = damage
        return aside

    def _forget(self) -> None:
        """Read everything anew: a row may have been damaged after it was read."""
        self._damage, self._lost_rows, self._last = [], [], 0
        self._facts, self._blocks = {}, []

    def _without_details(self) -> list[int]:
        """The rows whose details are gone or damaged."""
        self._refresh()
        of_rows = [block.rows[["id", "details"]] for block in self._blocks if len(block.rows)]
        if not of_rows:
            return []
        known = np.concatenate(of_rows)
        known = known[np.argsort(known["id"])]
        found = np.zeros(len(known), np.int64)
        try:
            rows = self._db.execute("SELECT id, content FROM detail ORDER BY id")
            while chunk := rows.fetchmany(_CHUNK // 16):
                at = np.searchsorted(known["id"], np.array([number for number, _ in chunk]))
                marks = [fingerprint(content) if isinstance(content, bytes) else 0 for _, content in chunk]
                there = at < len(known)
                found[at[there]] = np.array(marks)[there]
        except sqlite3.DatabaseError as error:
            self._damage.append(f"detail: {error}")
        return known["id"][found != known["details"]].tolist()

    def _salvage(self, aside: Path) -> None:
        """Copy what is intact in a damaged file, row by row."""
        old, found = sqlite3.connect(aside), list[Any]()
        with contextlib.suppress(sqlite3.DatabaseError):
            old.execute("PRAGMA trusted_schema = OFF")
            found = old.execute(_TABLES).fetchall()
        for table, columns in (("record", 4), ("fact", 2), ("result", 4), ("detail", 2)) if found == _OURS else ():
            insert = f"INSERT OR REPLACE INTO {table} VALUES ({', '.join('?' * columns)})"
            at, missed, is_fact = -(2**63), 0, table == "fact"
            query = f"SELECT rowid, * FROM {table} WHERE rowid {'> ? ORDER BY rowid LIMIT 1' if is_fact else '= ?'}"
            at = at if is_fact else 1  # the numbers of facts are anything, those of other rows follow each other
            with self._transaction():
                while missed < _TRIED:
                    row: Any = None
                    with contextlib.suppress(sqlite3.DatabaseError, OverflowError):
                        row = old.execute(query, (at,)).fetchone()
                    if row is None and is_fact:
                        break
                    at, missed = row[0] if is_fact else at + 1, 0 if row else missed + 1
                    if row:
                        self._db.execute(insert, row[1:])
        old.close()
        self._forget()
        self._refresh()
        self._remove([*self._lost_rows, *self._without_details()])

    def remove(self, blocks: Iterable[Block]) -> None:
        """Remove rows: what they say is computed again."""
        self._remove([number for block in blocks for number in block.rows["id"].tolist()])
        self._forget()

    def _remove(self, numbers: Sequence[int]) -> None:
        with self._transaction():
            for table in ("result", "detail"):
                self._db.executemany(f"DELETE FROM {table} WHERE id = ?", [(number,) for number in numbers])
            self._db.execute("UPDATE claim SET done = -abs(done)")  # what was done may be among it

    def damaged(self) -> list[str]:
        """What is wrong with the file. Details are not read for it."""
        self._refresh()
        records = [text for kind in (PLAN, LOGITS) for text in self._read_records(kind)[1]]
        lost = [f"{len(self._lost_rows)} rows, the first is {self._lost_rows[0]}"] if self._lost_rows else []
        return [*self._damage, *records, *lost]

    # Records

    def records(self, kind: str) -> dict[str, Any]:
        """The intact records of a kind by name."""
        return self._read_records(kind)[0]

    def _read_records(self, kind: str) -> tuple[dict[str, Any], list[str]]:
        known, problems = dict[str, Any](), list[str]()
        try:
            rows = self._db.execute("SELECT name, content, seal FROM record WHERE kind = ? ORDER BY rowid", (kind,))
            for name, content, mark in rows:
                try:
                    if not isinstance(content, str) or seal(kind, name, content) != mark:
                        raise Damaged("the digest")
                    data = from_json(content)
                    if problem := record_problem(kind, name, data):
                        raise Damaged(problem)
                    known[name] = data
                except (ValueError, RecursionError, TypeError) as error:
                    problems.append(f"the {kind} {str(name)[:80]!r} is damaged, or of another version: {error}")
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            problems.append(f"record: {error}")
        return known, problems

    def write_record(self, kind: str, name: str, data: Any, check: Callable[[], None] = lambda: None) -> None:
        """Store JSON data in place of what is there under this name, unless ``check`` raises an error: nothing can be
        written between the two."""
        content = to_json(data)
        if len(content) > RECORD_BYTES:
            raise disk_error(OSError(errno.EFBIG, "more data than can be read back"), self.root)
        with self._transaction():
            check()
            row = (kind, name, content, seal(kind, name, content))
            self._db.execute("INSERT OR REPLACE INTO record VALUES (?, ?, ?, ?)", row)

    # Results

    def commit(
        self, about: Mapping[str, Any], results: Sequence[Result], *, task: str = "", maps: Collection[str] = ()
    ) -> None:
        """Store the results of a task, or nothing of it; its claim is then done.

        Args:
            about: What they share: labels, digests and settings, as :func:`shared` makes it.
            results: One for each image.
            task: Name of the task.
            maps: The images whose maps are stored, too.
        """
        marks = {one.image: self._write_map(about, one) for one in results if one.image in maps}
        with self._transaction():
            newest = self._db.execute(_NEWEST).fetchone()[0]
            for number, one in enumerate(results, newest + 1):
                layout, details = joined(one.details)
                shape = self._fact({**about, "details": layout})
                row = np.zeros(1, row_type(len(about["metrics"])))
                row["id"], row["shape"], row["image"] = number, shape, fingerprint(one.image)
                row["notes"], row["map"] = self._fact(one.notes()), marks.get(one.image, 0)
                row["details"], row["score"], row["status"] = fingerprint(details), one.scores, one.status
                for name, value in one.numbers().items():
                    row[name] = value
                numbers = row.tobytes()
                values = (number, shape, numbers, sha256(numbers).digest()[:16])
                self._db.execute("INSERT INTO result VALUES (?, ?, ?, ?)", values)
                self._db.execute("INSERT OR REPLACE INTO detail VALUES (?, ?)", (number, details))
            self._db.execute("UPDATE claim SET done = ? WHERE task = ?", (newest + len(results), task))
        if self.bucket is not None:
            self.bucket.push_sometimes(self._db)

    def _fact(self, data: Any) -> int:
        """Store data that many rows share, under its fingerprint."""
        content = to_json(data)
        number = fingerprint(content.encode())
        if self._facts.get(number) is None:
            self._db.execute("INSERT OR REPLACE INTO fact VALUES (?, ?)", (number, content))
            self._facts[number] = json.loads(content)
        return number

    def fact(self, number: int) -> Any:
        """Data that many rows share; None if it is damaged or gone."""
        if number not in self._facts:
            self._facts[number] = None
            with contextlib.suppress(sqlite3.DatabaseError, ValueError, RecursionError, TypeError):
                row = self._db.execute("SELECT content FROM fact WHERE id = ?", (number,)).fetchone()
                if row and isinstance(row[0], str) and fingerprint(row[0].encode()) == number:
                    data = from_json(row[0])
                    self._facts[number] = None if fact_problem(data) else data
        return self._facts[number]

    def blocks(self) -> list[Block]:
        """The intact rows, those of one shape together."""
        self._refresh()
        self._planned = self._last
        return list(self._blocks)

    def _refresh(self) -> None:
        """Read the rows that were committed since the last time."""
        query = "SELECT id, shape, numbers, seal FROM result WHERE id > ? ORDER BY id"
        try:
            rows = self._db.execute(query, (self._last,))
            while chunk := rows.fetchmany(_CHUNK):
                self._read(chunk)
                self._last = int(chunk[-1][0])
        except (sqlite3.DatabaseError, UnicodeDecodeError, OverflowError) as error:
            self._damage.append(f"result: {error}")

    def _read(self, chunk: Sequence[tuple[Any, ...]]) -> None:
        by_shape = dict[int, tuple[list[int], list[bytes]]]()
        for number, shape, numbers, mark in chunk:
            if type(shape) is int and isinstance(numbers, bytes) and sha256(numbers).digest()[:16] == mark:
                ids, contents = by_shape.setdefault(shape, ([], []))
                ids.append(number)
                contents.append(numbers)
            else:
                self._lost_rows.append(number)
        for shape, (ids, contents) in by_shape.items():
            about = self.fact(shape)
            kind = row_type(len(about["metrics"])) if isinstance(about, dict) else row_type(0)
            is_sound = [isinstance(about, dict) and len(one) == kind.itemsize for one in contents]
            if not all(is_sound):
                self._lost_rows += [number for number, sound in zip(ids, is_sound, strict=True) if not sound]
                ids = [number for number, sound in zip(ids, is_sound, strict=True) if sound]
                contents = [one for one, sound in zip(contents, is_sound, strict=True) if sound]
            if not ids:
                continue
            rows = np.frombuffer(b"".join(contents), kind)
            is_fine = (rows["id"] == np.array(ids)) & (rows["shape"] == shape)
            notes = {number: self.fact(number) for number in np.unique(rows["notes"]).tolist()}
            is_fine &= ~np.isin(rows["notes"], [number for number, one in notes.items() if not isinstance(one, list)])
            if not is_fine.all():
                self._lost_rows += np.array(ids)[~is_fine].tolist()
                rows = rows[is_fine]
            self._blocks.append(Block(about, rows, notes))

    def details(self, block: Block, ids: Iterable[int]) -> Iterator[tuple[int, Details]]:
        """Read the details of rows of a block; those that are damaged are left out, with a warning."""
        marks = dict(zip(block.rows["id"].tolist(), block.rows["details"].tolist(), strict=True))
        for number in ids:
            row: Any = None
            with contextlib.suppress(sqlite3.DatabaseError):
                row = self._db.execute("SELECT content FROM detail WHERE id = ?", (number,)).fetchone()
            if row is None or not isinstance(row[0], bytes) or fingerprint(row[0]) != marks[number]:
                text = f"details {number} of {str(self.root / FILE)!r} are damaged"
                warn_caller(f"{text}; its scores are computed again by the next run")
                continue
            yield number, split(block.about["details"], row[0])

    # Maps

    def _write_map(self, about: Mapping[str, Any], one: Result) -> int:
        """Write the map of a result as a file, and give its fingerprint; 0 where there is none."""
        if self._folder is None or one.map is None:
            return 0
        path, content = self._folder / self._map(about["setting_key"], fingerprint(one.image)), one.map.to_bytes()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, content, durable=True)
        except OSError as error:
            raise disk_error(error, self.root, len(content)) from error
        return fingerprint(content)

    @staticmethod
    def _map(setting: str, image: int) -> str:
        return f"{MAPS}/{digest(setting)}/{digest(image)}.safetensors"

    def _marks(self, setting: str) -> dict[int, int]:
        """The fingerprints of the maps of a setting that were stored last, by that of the image."""
        self._refresh()
        parts = [block.rows[block.rows["map"] != 0] for block in self._blocks if block.setting == setting]
        known = np.sort(np.concatenate([part[["id", "image", "map"]] for part in parts])) if parts else []
        return {int(row["image"]): int(row["map"]) for row in known}

    def _content(self, setting: str, image: int, mark: int) -> bytes | None:
        """The bytes of a stored map; None if it is damaged or gone."""
        assert self._folder is not None
        name = self._map(setting, image)
        if self.bucket is not None:
            self.bucket.fetch_map(name)
        with contextlib.suppress(OSError):
            content = read_regular(self._folder / name, MAPS_BYTES)
            return content if fingerprint(content) == mark else None
        return None

    def load_maps(self, setting: str, images: Iterable[str]) -> dict[str, StoredMap]:
        """Read stored maps of a setting by image; those that are absent or damaged are left out."""
        marks, result = self._marks(setting), dict[str, StoredMap]()
        for image, number in ((image, fingerprint(image)) for image in images):
            content = self._content(setting, number, marks[number]) if number in marks else None
            if content is not None:
                with contextlib.suppress(Exception):  # whatever the bytes of a stranger may be taken for
                    result[image] = StoredMap.from_bytes(content)
        return result

    def has_maps(self, setting: str, images: Iterable[str]) -> frozenset[str]:
        """Those of the images of which a map of a setting was stored."""
        marks = self._marks(setting)
        return frozenset(image for image in images if fingerprint(image) in marks)

    def lost_maps(self, settings: Iterable[str]) -> dict[str, frozenset[int]]:
        """By setting, the fingerprints of the images whose maps were stored, and are damaged or gone: all are read."""
        lost = dict[str, frozenset[int]]()
        for setting in settings:
            marks = self._marks(setting)
            gone = (image for image, mark in marks.items() if self._content(setting, image, mark) is None)
            lost[setting] = frozenset(gone)
        return {setting: images for setting, images in lost.items() if images}

    # Processes

    def claim(self, task: str) -> Literal["claimed", "locked", "done"]:
        """Claim a task for this run: not if another one that lives has it, or has done it since :meth:`blocks` were
        read."""
        with self._transaction():
            row = self._db.execute("SELECT owner, done FROM claim WHERE task = ?", (task,)).fetchone()
            if row and row[1] > self._planned:
                return "done"
            if row and row[1] == 0 and row[0] != self._owner and _lives(row[0]):
                return "locked"
            self._db.execute("INSERT OR REPLACE INTO claim VALUES (?, ?, 0)", (task, self._owner))
        return "claimed"

    def failed_since(self, setting: str, images: Iterable[str]) -> int:
        """How many images failed under a setting since :meth:`blocks` were read."""
        self._refresh()
        known, failed = [fingerprint(image) for image in images], set[int]()
        for rows in (block.rows for block in self._blocks if block.setting == setting):
            new = rows[(rows["id"] > self._planned) & np.isin(rows["image"], known)]
            failed |= set(new["image"][(new["status"] > OK).any(1)].tolist())
        return len(failed)

    def release(self, task: str) -> None:
        """Give up the claim of a task of which nothing is stored."""
        with self._transaction():
            self._db.execute("DELETE FROM claim WHERE task = ? AND owner = ?", (task, self._owner))


def _lives(owner: str) -> bool:
    """Whether the process of a claim may still be at work; one of another machine is not."""
    return fate_of(owner.partition("~")[0]) == "alive"


_OTHER_VERSION = "read it with the version that made it, or name another folder"
_AGAIN = "what is lost is computed again"


def _other_content(folder: Path) -> str:
    """What a folder without a run is, as far as that is known."""
    with contextlib.suppress(OSError, ValueError, RecursionError, AttributeError):
        made_by = json.loads(read_regular(folder / "summary.json", RECORD_BYTES)).get("command")
        if made_by in _SHOWN_BY:
            return f"it is a folder of {made_by}: open {folder / _SHOWN_BY[made_by]}"
    return f"{FILE} is missing"


def _cannot_write(error: OSError, root: Path) -> Exception:
    if error.errno in REFUSED:
        return InputError(f"cannot write in {str(root)!r} ({error.strerror})", argument="out")
    return disk_error(error, root)


def _system_error(error: sqlite3.Error, folder: Path) -> Exception:
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
