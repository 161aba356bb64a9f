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
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from hashlib import sha256
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from fringe._files.disk import (
    MAPS_BYTES,
    PARTIAL,
    RECORD_BYTES,
    disk_error,
    is_abandoned,
    read_regular,
    require_local,
    write_atomic,
)
from fringe._files.process import fate_of, process_name
from fringe._files.records import digest
from fringe._files.urls import url_of
from fringe._strings.formats import counted
from fringe.bench.experiments._database import (
    FILE,
    MAPS,
    OLD_MARKER,
    cannot_write,
    check_folder,
    open_file,
    salvage,
    set_aside,
    system_error,
    transaction,
)
from fringe.bench.experiments._places import Bucket
from fringe.bench.experiments._records import (
    LOGITS,
    PLAN,
    Damaged,
    Details,
    Result,
    StoredMap,
    details_type,
    fact_problem,
    fingerprint,
    from_json,
    joined,
    numbers_of,
    record_problem,
    row_type,
    seal,
    to_json,
)
from fringe.errors import InputError, TransientError, warn_caller

#: The largest number of a row that is there, or that a task had when it was done: none is used twice.
_NEWEST = "SELECT max(coalesce((SELECT max(id) FROM result), 0), coalesce((SELECT max(abs(done)) FROM claim), 0))"
#: 256 MiB: the size up to which all pages of a file are checked when a run begins.
_SMALL = 2**28
#: Rows that are read at once.
_CHUNK = 2**15


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
            check_folder(self._folder, self.root, create=create, beside=beside)
        self._connection: sqlite3.Connection | None = None
        self.owner, self._planned = f"{process_name()}~{os.urandom(4).hex()}", 0
        self._open()
        _open_stores.add(self)

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

    # The file

    def _open(self) -> None:
        """Open the file. One that cannot be read at all is set aside, and a new one begins; a reader is told."""
        self._forget()
        try:
            self._connection = open_file(self._folder, self.root, create=self._create)
        except sqlite3.OperationalError as error:
            raise system_error(error, self._folder or self.root) from error
        except sqlite3.DatabaseError as error:
            if not self._create or self._folder is None:
                text, hint = f"{str(self.root / FILE)!r} is damaged ({error})", "the next run sets it aside"
                raise InputError(text, argument="run", hint=hint) from error
            self._replace(str(error))
        except OSError as error:
            raise cannot_write(error, self.root) from error

    def _replace(self, problem: str) -> None:
        """Set a damaged file aside, and begin a new one with what is intact in it."""
        assert self._folder is not None
        self._disconnect()
        aside = set_aside(self._folder)
        warn_caller(f"{str(self.root / FILE)!r} is damaged ({problem}): set aside as {str(aside)!r}; {_AGAIN}")
        self._open()
        salvage(aside, self._db, self._folder)
        self._forget()
        self._refresh()
        self._remove([*self._lost_rows, *self._without_details()])
        self._forget()

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give up the claims of this process, and make the file a plain one, unless somebody else is at it. What is
        asked later is read from the file."""
        _open_stores.discard(self)
        if self._folder is None or self._connection is None:
            return
        if self._create:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("DELETE FROM claim WHERE owner = ? AND NOT done", (self.owner,))
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
        try:
            with transaction(self._db, self._folder or self.root):
                yield
        except BaseException:
            self._facts = {}  # those that it began with are not stored
            raise

    def clean(self) -> None:
        """Remove what dead processes left, and what is damaged: the next run computes it again. A run does so before it
        begins. Raises TransientError for a damaged file to which another run writes."""
        busy, problem = self._free_claims()
        for path in () if self._folder is None else self._folder.rglob(f"{PARTIAL}*"):
            with contextlib.suppress(OSError):
                if is_abandoned(path):
                    path.unlink(missing_ok=True)
        self._forget()
        self._damage += [] if problem is None else [problem]
        self._refresh()
        self._lost_rows += self._without_details()
        if self._damage and busy:
            text = f"{str(self.root / FILE)!r} is damaged ({self._damage[0]}), and another run writes to it"
            raise TransientError(f"{text}; run it again when the other one has ended")
        if self._damage:
            self._replace(self._damage[0])
        elif self._lost_rows:
            rows = counted(len(self._lost_rows), "row")
            warn_caller(f"{str(self.root / FILE)!r} is damaged ({rows}, the first is {self._lost_rows[0]}); {_AGAIN}")
            self._remove(self._lost_rows)
        else:
            return
        self._forget()

    def _free_claims(self) -> tuple[bool, str | None]:
        """Remove the claims of processes that are dead: whether those of others are left, and what is wrong with the
        file. The pages of a small one are checked; of a large one, all rows are read anyway."""
        try:
            owners = {owner for (owner,) in self._db.execute("SELECT DISTINCT owner FROM claim WHERE done = 0")}
            dead = [(owner,) for owner in owners if not _lives(owner)]
            self._db.executemany("DELETE FROM claim WHERE owner = ? AND done = 0", dead)
            is_small = self._folder is None or (self._folder / FILE).stat().st_size <= _SMALL
            if is_small and (problem := self._db.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
                raise sqlite3.DatabaseError(problem)
            return any(owner != self.owner and _lives(owner) for owner in owners), None
        except sqlite3.OperationalError as error:
            raise system_error(error, self._folder or self.root) from error
        except sqlite3.DatabaseError as error:
            return False, str(error)

    def _forget(self) -> None:
        """Read everything anew: a row may have been damaged after it was read."""
        self._damage, self._lost_rows, self._last = list[str](), list[int](), 0
        self._facts, self._blocks = dict[int, Any](), list[Block]()
        self._parsed = dict[bytes, Any]()
        self._maps = dict[str, dict[int, tuple[int, int]]]()  # number of the row and mark, by setting and image

    def _without_details(self) -> list[int]:
        """The rows whose details are gone or damaged."""
        self._refresh()
        marks = dict[int, int]()
        try:
            rows = self._db.execute("SELECT id, content FROM detail")
            while chunk := rows.fetchmany(_CHUNK // 16):
                marks |= {number: fingerprint(content) for number, content in chunk if isinstance(content, bytes)}
        except sqlite3.DatabaseError as error:
            self._damage.append(f"detail: {error}")
        of_rows = (block.rows[["id", "details"]].tolist() for block in self._blocks)
        return [number for rows in of_rows for number, mark in rows if marks.get(number) != mark]

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
        lost = [f"{counted(len(self._lost_rows), 'row')}, the first is {self._lost_rows[0]}"] if self._lost_rows else []
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
                    if mark not in self._parsed:  # a plan has all of its images
                        data = from_json(content)
                        if problem := record_problem(kind, name, data):
                            raise Damaged(problem)
                        self._parsed[mark] = data
                    known[name] = self._parsed[mark]
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

    def commit(self, about: Mapping[str, Any], results: Sequence[Result], *, task: str = "") -> None:
        """Store the results of a task and the maps that they have, or nothing of it; its claim is then done.

        Args:
            about: What they share: labels, digests and settings, as :func:`shared` makes it.
            results: One for each image.
            task: Name of the task.
        """
        marks = {one.image: self._write_map(about, one) for one in results if one.map is not None}
        with self._transaction():
            newest = self._db.execute(_NEWEST).fetchone()[0]
            rows = np.zeros(len(results), row_type(len(about["metrics"])))
            details = [joined(one.details) for one in results]
            shapes = {layout: self._fact({**about, "details": layout}) for layout in {layout for layout, _ in details}}
            notes = {one.noted: one for one in results}  # of most images the same
            numbers = {noted: self._fact(one.notes()) for noted, one in notes.items()}
            rows["id"] = np.arange(newest + 1, newest + 1 + len(results))
            rows["shape"] = [shapes[layout] for layout, _ in details]
            rows["image"] = [fingerprint(one.image) for one in results]
            rows["notes"] = [numbers[one.noted] for one in results]
            rows["map"] = [marks.get(one.image, 0) for one in results]
            rows["details"] = [fingerprint(content) for _, content in details]
            rows["score"], rows["status"] = [one.scores for one in results], [one.status for one in results]
            for name, values in numbers_of(results).items():
                rows[name] = values
            contents = [row.tobytes() for row in rows]
            known = zip(rows["id"].tolist(), rows["shape"].tolist(), contents, strict=True)
            values = ((number, shape, content, sha256(content).digest()[:16]) for number, shape, content in known)
            self._db.executemany("INSERT INTO result VALUES (?, ?, ?, ?)", values)
            of_rows = zip(rows["id"].tolist(), (content for _, content in details), strict=True)
            self._db.executemany("INSERT OR REPLACE INTO detail VALUES (?, ?)", of_rows)
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
        """Take the intact rows of some; the others are lost."""
        intact = [
            (number, shape, content)
            for number, shape, content, mark in chunk
            if type(shape) is int and isinstance(content, bytes) and sha256(content).digest()[:16] == mark
        ]
        read = set[int]()
        for shape, group in groupby(sorted(intact, key=itemgetter(1)), itemgetter(1)):
            about = self.fact(shape)
            kind = row_type(len(about["metrics"]) if isinstance(about, dict) else 0)
            known = {number: content for number, _, content in group if len(content) == kind.itemsize}
            if not (known and isinstance(about, dict)):
                continue
            rows = np.frombuffer(b"".join(known.values()), kind)
            notes = {number: self.fact(number) for number in np.unique(rows["notes"]).tolist()}
            is_noted = np.isin(rows["notes"], [number for number, one in notes.items() if isinstance(one, list)])
            rows = rows[(rows["id"] == list(known)) & (rows["shape"] == shape) & is_noted]
            read.update(rows["id"].tolist())
            self._blocks.append(Block(about, rows, notes))
            kept = rows[rows["map"] != 0]
            known = self._maps.setdefault(about["setting_key"], {}) if len(kept) else {}
            for number, image, mark in kept[["id", "image", "map"]].tolist():
                known[image] = max(known.get(image, (0, 0)), (number, mark))
        self._lost_rows += [row[0] for row in chunk if row[0] not in read]

    def details(self, block: Block, ids: Iterable[int]) -> Iterator[tuple[list[int], Details]]:
        """Read the details of rows of a block, some at a time: their numbers, and by name values (rows, length). Those
        that are damaged are left out, with a warning."""
        marks = dict(zip(block.rows["id"].tolist(), block.rows["details"].tolist(), strict=True))
        kind, asked = details_type(block.about["details"]), list(ids)
        for some in (asked[at : at + _CHUNK // 16] for at in range(0, len(asked), _CHUNK // 16)):
            contents = self._detail_contents(some)
            intact = [
                number
                for number in some
                if len(content := contents.get(number, b"")) == kind.itemsize and fingerprint(content) == marks[number]
            ]
            for number in sorted(set(some).difference(intact)):
                text = f"details {number} of {str(self.root / FILE)!r} are damaged"
                warn_caller(f"{text}; its scores are computed again by the next run")
            if kind.names:
                rows = np.frombuffer(b"".join([contents[number] for number in intact]), kind)
                yield intact, {name: rows[name] for name in kind.names}

    def _detail_contents(self, ids: Sequence[int]) -> dict[int, bytes]:
        """What is there of details, by their numbers; one by one where the file is damaged."""
        query, rows = "SELECT id, content FROM detail WHERE id IN (SELECT value FROM json_each(?))", list[Any]()
        try:
            rows = self._db.execute(query, (to_json(ids),)).fetchall()
        except sqlite3.DatabaseError:
            for number in ids:
                with contextlib.suppress(sqlite3.DatabaseError):
                    rows += self._db.execute(query, (to_json([number]),)).fetchall()
        return {number: content for number, content in rows if isinstance(content, bytes)}

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

    def _marks(self, setting: str) -> Mapping[int, tuple[int, int]]:
        """By the fingerprint of an image, its row and the fingerprint of the map of a setting that was stored last."""
        self._refresh()
        return self._maps.get(setting, {})

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
            content = self._content(setting, number, marks[number][1]) if number in marks else None
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
            gone = (image for image, (_, mark) in marks.items() if self._content(setting, image, mark) is None)
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
            if row and row[1] == 0 and row[0] != self.owner and _lives(row[0]):
                return "locked"
            self._db.execute("INSERT OR REPLACE INTO claim VALUES (?, ?, 0)", (task, self.owner))
        return "claimed"

    def release(self, task: str) -> None:
        """Give up the claim of a task of which nothing is stored."""
        with self._transaction():
            self._db.execute("DELETE FROM claim WHERE task = ? AND owner = ?", (task, self.owner))

    def abandon(self) -> None:
        """Let other stores of this process take what this one has claimed."""
        _open_stores.discard(self)


#: The stores of this process that are open.
_open_stores = WeakSet[Store]()


def _lives(owner: str) -> bool:
    """Whether the store of a claim may still be at work; that of another machine is not."""
    process = owner.partition("~")[0]
    if process == process_name():
        return any(store.owner == owner for store in list(_open_stores))
    return fate_of(process) == "alive"


_AGAIN = "what is lost is computed again"
