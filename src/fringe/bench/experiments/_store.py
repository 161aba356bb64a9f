"""The store of a run: the SQLite files of a folder, each with one writer, and their union for everyone who reads.

Nothing is changed or deleted: of two records of one name the newer counts, of two scores the valid one, and of two
valid ones that of the later file. A file that is full is closed, and the next one begins.
:mod:`fringe.bench.experiments._database` reads and writes a file.
"""

import contextlib
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from fringe._files.disk import RECORD_BYTES, read_regular, require_local
from fringe._files.process import fate_of, process_name
from fringe._files.urls import url_of
from fringe.bench.experiments._database import FULL, FULL_REMOTE, MAPS_SUFFIX, SUFFIX, Reader, Writer, close
from fringe.bench.experiments._places import Bucket, Folder, is_database, writer_of
from fringe.bench.experiments._records import (
    CRASH,
    LOGITS,
    VOID,
    Damaged,
    Details,
    StoredMap,
    StoredTask,
    record_problem,
)
from fringe.bench.experiments._records import PLAN as PLAN
from fringe.errors import InputError, warn_caller

#: What to open of a folder of results that is no run, by what made it.
_SHOWN_BY = {"explain": "index.html", "compare": "compare.png"}
R = TypeVar("R")
V = TypeVar("V")

MARKER = "fringe-run.json"
FORMAT = 3
_MARKER_CONTENT = json.dumps({"format": FORMAT}).encode()


#: Seconds after which a claim that nobody renewed belongs to no living process.
LEASE = 120.0


class _Claims:
    """The claims of a process in a run folder."""

    def __init__(self, files: Folder):
        self._files, self._mine, self._mutex = files, dict[str, str](), threading.Lock()
        self._stopped = threading.Event()
        self._renewing: threading.Thread | None = None

    @contextlib.contextmanager
    def claim(self, key: str, *, wait: bool) -> Generator[bool]:
        """Claim a name; False if another process has it, unless this is to ``wait``."""
        name, token, is_taken = f"claims/{key}", os.urandom(8).hex(), False
        try:
            while not (is_taken := self._files.create(name, _content(token))):
                if _is_stale(self._files.read(name)):
                    self._files.remove(name)
                elif wait:
                    time.sleep(0.05)
                else:
                    break
            if is_taken:
                self._renew(name, token)
            yield is_taken
        finally:  # also where a signal came just after the file was made
            with self._mutex:
                self._mine.pop(name, None)
                if token.encode() in (self._files.read(name) or b""):
                    self._files.remove(name)

    def stop(self) -> None:
        """Renew no claim any more."""
        self._stopped.set()

    def _renew(self, name: str, token: str) -> None:
        self._mine[name] = token
        if self._renewing is None or not self._renewing.is_alive():
            self._stopped.clear()
            self._renewing = threading.Thread(target=self._renew_all, daemon=True)
            self._renewing.start()

    def _renew_all(self) -> None:
        while not self._stopped.wait(LEASE / 4):
            for name, token in list(self._mine.items()):
                with self._mutex, contextlib.suppress(Exception):  # the next write says what is wrong
                    if name in self._mine:
                        self._files.write(name, _content(token))


def _content(token: str) -> bytes:
    return json.dumps({"process": process_name(), "time": time.time(), "token": token}).encode()


def _is_stale(claim: bytes | None) -> bool:
    """Whether a claim belongs to no living process; False if it is gone."""
    try:
        holder = json.loads(claim or b"")
        fate, age = fate_of(holder["process"]), time.time() - holder["time"]
        return fate == "gone" or (fate == "unknown" and age > LEASE)
    except (ValueError, KeyError, TypeError, RecursionError):  # not written by this program
        return claim is not None


@dataclass
class _Seen:
    """What was read of a file: its state then, the last number of each table, and what is wrong with it."""

    state: Hashable = None
    last: dict[str, int] = field(default_factory=dict[str, int])
    problems: list[str] = field(default_factory=list[str])


class Store(AbstractContextManager["Store"]):
    """A run folder, or the URL of one in an object store, such as ``s3://bucket/run``. Without ``create`` nothing is
    written; ``beside`` other files a run may begin, too.

    Raises InputError for a folder that holds other things, holds no run or cannot be written, and for a URL of another
    kind; TransientError for trouble of the disk that may pass.
    """

    def __init__(self, root: Path | str, *, create: bool = True, beside: bool = False, full: int | None = None):
        root = Path(root)
        url = url_of(root)
        if url is None:
            require_local("out" if create else "run", root)
        self.root = root
        self.files = Folder(root) if url is None else Bucket(url)
        self._full = full or (FULL if url is None else FULL_REMOTE)
        self._start({}, is_worker=False)
        self._check_folder(create=create, beside=beside)

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Without what can be read again: a store is sent to every process."""
        return {"root": self.root, "files": self.files, "_full": self._full, "_seen": self._seen}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state)
        self._start(state["_seen"], is_worker=True)

    def _start(self, seen: dict[str, _Seen], *, is_worker: bool) -> None:
        self._is_worker, self._mutex, self._writers = is_worker, threading.RLock(), dict[str, Writer]()
        self._claims = _Claims(self.files)
        self._forget(seen)

    def _forget(self, seen: dict[str, _Seen]) -> None:
        self._seen, self._facts, self._newest = seen, dict[str, Any](), 0
        self._tasks, self._since, self._failed = dict[str, list[StoredTask]](), list[StoredTask](), dict[str, int]()
        self._records = dict[tuple[str, str], tuple[tuple[int, str, int], Any]]()
        self._maps = dict[str, list[tuple[str, str, tuple[str, int]]]]()

    # The folder

    @classmethod
    def existing(cls, root: Path) -> "Store | None":
        """The run in a folder, to be read; None if there is none."""
        url = url_of(root)
        names = (Folder(root) if url is None else Bucket(url)).names()
        return cls(root, create=False) if any(name == MARKER or is_database(name) for name in names) else None

    def _check_folder(self, *, create: bool, beside: bool) -> None:
        """Refuse a folder that is none of a run of this format; heal one whose mark is damaged."""
        names = self.files.names()
        content = self.files.read(MARKER) if MARKER in names else None
        known: Any = None
        with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
            known = json.loads(content or b"")["format"]
        if known not in (None, FORMAT):
            raise InputError(
                f"run: {str(self.root)!r} has format {known}, this program reads format {FORMAT}; read it with the "
                "version that made it, or name another folder"
            )
        if known == FORMAT:
            return
        has_results = any(is_database(name) for name in names)
        if MARKER in names and not has_results:
            raise InputError(
                f"run: {self.files.at(MARKER)!r} is damaged, and nothing beside it is of a run; is it one?"
            )
        if not create and not has_results:
            raise InputError(f"run: {str(self.root)!r} holds no run of this program ({self._other_content()})")
        if has_results:
            warn_caller(
                f"{self.files.at(MARKER)!r} is damaged or gone" + ("" if create else "; the next run writes it again")
            )
        if create:
            if MARKER in names:
                self.files.set_aside(MARKER)
            if not has_results and not beside:  # the mark, too: another may have begun here just now
                self.files.begin((MARKER, "claims", "done", "aside"))
            self.files.write(MARKER, _MARKER_CONTENT)

    def _other_content(self) -> str:
        """What a folder without a run is, as far as that is known."""
        with contextlib.suppress(OSError, ValueError, RecursionError, AttributeError):
            made_by = json.loads(read_regular(self.root / "summary.json", RECORD_BYTES)).get("command")
            if made_by in _SHOWN_BY:
                return f"it is a folder of {made_by}: open {self.root / _SHOWN_BY[made_by]}"
        return f"{MARKER} is missing"

    def close(self) -> None:
        """Make the files of this process, and of processes that died, plain ones."""
        self._claims.stop()
        with self._mutex:
            for writer in self._writers.values():
                writer.close()
            self._writers.clear()
        if not isinstance(self.files, Bucket):
            for name, state in self.files.names().items():
                if is_database(name) and state is None and fate_of(writer_of(name)) == "gone":
                    with contextlib.suppress(sqlite3.Error):  # somebody else may be at it
                        close(sqlite3.connect(self.root / name, 0))

    def clean(self) -> None:
        """Remove what dead processes were writing, and set damaged files aside: what is intact in them is written
        again, the rest is computed again. A run does so before it begins."""
        self.files.remove_partial_files()
        self._forget({})  # a row may have been damaged after it was read
        self.refresh()
        for name, seen in list(self._seen.items()):
            if seen.state is None and fate_of(writer_of(name)) != "gone":
                continue  # it is being written
            problem = "; ".join(seen.problems[:3]) or self._damaged_details(name)
            if problem:
                self._rescue(name)
                target = self.files.at(self.files.set_aside(name))
                warn_caller(f"{self.files.at(name)!r} is damaged ({problem}): set aside as {target!r}, and made again")
        if not all(name in self.files.names() for name in self._seen):
            self._forget({})

    def _damaged_details(self, name: str) -> str:
        with self._reader(name) as reader:
            reader.check()
            return "; ".join(reader.problems[:3])

    def _rescue(self, name: str) -> None:
        """Write what is intact in a damaged file, and not recalled, into another."""
        with contextlib.suppress(Damaged), self._reader(name) as reader:
            for _, kind, named, created, data in reader.records():
                if not record_problem(kind, named, data):
                    self._writer(SUFFIX).record(kind, named, created, data)
            for number, task in reader.tasks():
                with contextlib.suppress(Damaged):
                    if not self._is_void(task.setting, name, number):
                        complete = replace(task, details=reader.details(task))
                        self._writer(SUFFIX).commit(complete, self._now())
            for number, *_ in reader.maps():
                with contextlib.suppress(Damaged):
                    setting, image, stored = reader.map(number)
                    if not self._is_void(setting, name, number):
                        self._writer(MAPS_SUFFIX).maps(setting, {image: stored})

    # What is there

    def refresh(self) -> None:
        """Read what was committed since the last time."""
        states = {name: state for name, state in self.files.names().items() if is_database(name)}
        if not all(name in states for name in self._seen):
            self._forget({})  # a file was set aside
        for name, state in states.items():
            seen = self._seen.setdefault(name, _Seen())
            if state is None or seen.state != state:
                try:
                    with self._reader(name) as reader:
                        self._read(name, seen, reader)
                        # the last rows of a file that is being written are read again
                        seen.problems = list(dict.fromkeys((*seen.problems, *reader.problems)))
                except Damaged as error:
                    seen.problems = [str(error)]
                seen.state = state

    def _reader(self, name: str) -> Reader:
        return Reader(self.files.database(name), name, self._facts)

    def _read(self, name: str, seen: _Seen, reader: Reader) -> None:
        stamp = name.partition("-")[0]
        self._newest = max(self._newest, int(stamp) if stamp.isdecimal() and len(stamp) == 20 else 0)
        for number, kind, named, created, data in reader.records(seen.last.get("record", 0)):
            seen.last["record"], order = number, (created, name, number)
            if problem := record_problem(kind, named, data):
                reader.problems.append(f"the {kind} {named[:80]!r} is damaged, or of another version: {problem}")
            elif order > self._records.get((kind, named), ((0, "", 0), None))[0]:
                self._records[kind, named], self._newest = (order, data), max(self._newest, created)
        for number, task in reader.tasks(seen.last.get("task", 0)):
            seen.last["task"] = number
            self._since.append(task)
            if not self._is_worker:
                self._tasks.setdefault(name, []).append(task)
        for number, setting, image, status in reader.maps(seen.last.get("map", 0)):
            seen.last["map"] = number
            self._maps.setdefault(setting, []).append((image, status, (name, number)))

    def tasks(self) -> list[StoredTask]:
        """The tasks that are intact and not recalled, those of the oldest file first, without their details."""
        self.refresh()
        self._since, self._failed = [], {}
        every = (task for name in sorted(self._tasks) for task in self._tasks[name])
        return [task for task in every if not self._is_void(task.setting, *task.row[:2])]

    def details(self, tasks: Sequence[StoredTask]) -> Iterator[tuple[StoredTask, Details]]:
        """Read the details of tasks, file by file; those that are damaged are left out, with a warning."""
        rows = ((task.row[0], task) for task in tasks)
        return self._each(rows, Reader.details, "its scores are computed again by the next run")

    def _each(self, rows: Iterable[tuple[str, R]], read: Callable[[Reader, R], V], then: str) -> Iterator[tuple[R, V]]:
        """Read rows, given with their files, file by file; those that are damaged are left out, with a warning."""
        by_file = dict[str, list[R]]()
        for name, row in rows:
            by_file.setdefault(name, []).append(row)
        for name, of_file in by_file.items():
            try:
                with self._reader(name) as reader:
                    for row in of_file:
                        try:
                            yield row, read(reader, row)
                        except Damaged as error:
                            warn_caller(f"{error}; {then}")
            except Damaged as error:
                warn_caller(f"{self.files.at(name)!r} is damaged ({error}); {then}")

    def damaged(self) -> dict[str, str]:
        """What is wrong with damaged files, by path. Details and maps are not read for it."""
        self.refresh()
        return {self.files.at(name): "; ".join(seen.problems) for name, seen in self._seen.items() if seen.problems}

    def records(self, kind: str) -> dict[str, Any]:
        """The newest records of a kind by name, without those that were removed."""
        self.refresh()
        named = {name: data for (one, name), (_, data) in self._records.items() if one == kind}
        return {name: data for name, data in named.items() if data is not None}

    def _is_void(self, setting: str, name: str, number: int) -> bool:
        recalled = self._records.get((VOID, setting))
        return recalled is not None and number <= recalled[1].get(name, 0)

    # What is written

    def commit(self, task: StoredTask) -> None:
        """Store a task, or nothing of it. Raises StoreFull if there is no space."""
        with self._mutex:
            self._writer(SUFFIX).commit(task, self._now())
            if isinstance(self.files, Bucket):
                self.files.write(f"done/{task.key}", str(task.failed_images).encode())

    def write_record(self, kind: str, name: str, data: Any) -> None:
        """Store JSON data, unless it is there; None removes it."""
        with self._mutex:
            known = self.records(kind).get(name)
            if known != (None if data is None else json.loads(json.dumps(data))):
                self._writer(SUFFIX).record(kind, name, self._now(), data)

    def recall(self, settings: Iterable[str]) -> None:
        """Let all that was computed under settings count as not there."""
        self.refresh()
        upto = {name: max(seen.last.get("task", 0), seen.last.get("map", 0)) for name, seen in self._seen.items()}
        crashes = self.records(CRASH)
        for setting in settings:
            self.write_record(VOID, setting, upto)
            for name in [name for name, crash in crashes.items() if crash["setting_key"] == setting]:
                self.write_record(CRASH, name, None)

    def _writer(self, suffix: str) -> Writer:
        with self._mutex:
            writer = self._writers.get(suffix)
            if writer is None or writer.process != os.getpid() or writer.size >= self._full:
                name = f"{self._now():020d}-{process_name()}-{os.urandom(4).hex()}{suffix}"
                put = self.files.write if isinstance(self.files, Bucket) else None
                self._writers[suffix] = Writer(self.root, name, put)  # there may be no room for another
                if writer is not None:
                    writer.close()
            return self._writers[suffix]

    def _now(self) -> int:
        """Nanoseconds, later than all that was read, whatever the clock says."""
        self._newest = max(time.time_ns(), self._newest + 1)
        return self._newest

    # Maps and logits

    def commit_maps(self, setting: str, maps: Mapping[str, StoredMap]) -> None:
        """Store maps of a setting by image digest. Raises :class:`StoreFull` if there is no space."""
        with self._mutex:
            self._writer(MAPS_SUFFIX).maps(setting, maps)

    def load_maps(self, setting: str, images: Iterable[str]) -> dict[str, StoredMap]:
        """Read stored maps of a setting by image digest, of two of one image the valid one; those that are absent or
        damaged are left out."""
        known = self._rows_of_maps(setting)
        rows = ((known[image][0], (image, known[image][1])) for image in images if image in known)
        read = self._each(rows, lambda reader, row: reader.map(row[1]), "it is made again")
        return {row[0]: stored for row, (of, image, stored) in read if (of, image) == (setting, row[0])}

    def images_with_maps(self, setting: str) -> frozenset[str]:
        """The images of which maps of a setting are stored."""
        return frozenset(self._rows_of_maps(setting))

    def _rows_of_maps(self, setting: str) -> dict[str, tuple[str, int]]:
        self.refresh()
        known = sorted(self._maps.get(setting, ()), key=lambda one: one[2])
        valid_last = sorted(known, key=lambda one: one[1] == "ok")
        return {image: row for image, _, row in valid_last if not self._is_void(setting, *row)}

    def commit_logits(self, model: str, logits: Mapping[str, Tensor]) -> None:
        """Store the logits (C,) of a few images by digest, under the digest of the model."""
        self.write_record(LOGITS, model, {image: values.float().tolist() for image, values in logits.items()})

    def logits(self, model: str) -> dict[str, Tensor]:
        """Read the stored logits of a model."""
        try:
            return {image: torch.tensor(values) for image, values in self.records(LOGITS).get(model, {}).items()}
        except (TypeError, ValueError, RuntimeError, AttributeError):  # of a stranger
            return {}

    def images_with_logits(self) -> frozenset[str]:
        """The images of which logits of a model are stored."""
        return frozenset(image for model in self.records(LOGITS) for image in self.logits(model))

    # Processes

    def claim(self, key: str, *, wait: bool = False) -> AbstractContextManager[bool]:
        """Claim a task for as long as it is computed; False if another process has it, unless this is to ``wait``."""
        return self._claims.claim(key, wait=wait)

    def meanwhile(self, key: str) -> int | None:
        """How many images of a task failed, if it was committed since all tasks were last read; else None."""
        if isinstance(self.files, Bucket):  # where a look at all files would take long
            content = self.files.read(f"done/{key}")
            return None if content is None else int(content)
        self.refresh()
        self._failed |= {task.key: task.failed_images for task in self._since}
        self._since = []
        return self._failed.get(key)
