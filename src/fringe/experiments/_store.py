"""The run folder: what is committed is complete and stays, whenever the process dies.

A task is one Parquet file, written under a temporary name, flushed to the disk, and renamed: the rename is the commit.
Its name is a digest of what it holds, so that two processes that compute the same task write the same file. Locks only
keep them from doing so at the same time. A file bears a seal, the digest of its own bytes: one that was damaged later
counts as not there, is set aside by the next run, and computed again.

When there are many, the files of tasks are packed into a few (:mod:`fringe.experiments._packs`): first the pack is
written, then the files that it replaces are removed. No file of a task or pack is ever changed, so that a process that
dies in between leaves a task twice, and nothing worse.
"""

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from torch import Tensor

from fringe._files import MAPS_BYTES, RECORD_BYTES, read_regular, require_local
from fringe._urls import url_of
from fringe.errors import InputError
from fringe.experiments._bucket import Bucket
from fringe.experiments._disk import QUARANTINE, Disk, warn
from fringe.experiments._formats import (
    BLANK,
    ScoreRecord,
    StoredMap,
    from_bytes,
    from_table,
    is_intact,
    is_task_file,
    read_record,
    to_bytes,
    to_table,
    with_checksum,
)
from fringe.experiments._formats import StoreFull as StoreFull
from fringe.experiments._manifest import digest
from fringe.experiments._packs import BY_TASK, PACKS, SCORES, Packs, Tasks
from fringe.experiments._sealed import Damaged

#: What to open of a folder of results that is no run, by what made it.
_SHOWN_BY = {"explain": "index.html", "compare": "compare.png"}
UNITS, MAPS, CLAIMS, CRASHES, PLANS, LOGITS = "units", "maps", "claims", "crashes", "plans", "logits"
FOLDERS = (UNITS, PACKS, MAPS, CLAIMS, CRASHES, PLANS, LOGITS)
MARKER = "fringe-run.json"
FORMAT = 2
_MARKER_CONTENT = json.dumps({"format": FORMAT}).encode()
#: Number of files of tasks from which on they are packed.
PACKED_FROM = 256


class Store:
    """A run folder, or the URL of one in an object store, such as ``s3://bucket/run``. Without ``create`` nothing is
    written.

    Raises InputError for a folder that holds other things, holds no run or cannot be written, and for a URL of another
    kind; TransientError for trouble of the disk that may pass.
    """

    def __init__(self, root: Path | str, *, create: bool = True):
        root = Path(root)
        url = url_of(root)
        if url is None:
            require_local("out" if create else "run", root)
        self.root = root
        self.files = Disk(root) if url is None else Bucket(url)
        self.packs = Packs(self.files)
        self._maps = dict[str, frozenset[str]]()
        if self.files.exists(MARKER):
            self._check_format(create=create)
        elif not create:
            raise InputError(f"run: {str(self.root)!r} holds no run of this program ({self._other_content()})")
        else:
            self.files.begin((*FOLDERS, MARKER))  # the mark, too: another process may have begun here just now
            self.files.make_folders(FOLDERS)
            self.files.write(MARKER, _MARKER_CONTENT)
        if create:
            self.files.make_folders(FOLDERS)

    def _other_content(self) -> str:
        """What a folder without a run is, as far as that is known."""
        with contextlib.suppress(OSError, ValueError, RecursionError, AttributeError):
            made_by = json.loads(read_regular(self.root / "summary.json", RECORD_BYTES)).get("command")
            if made_by in _SHOWN_BY:
                return f"it is a folder of {made_by}: open {self.root / _SHOWN_BY[made_by]}"
        return f"{MARKER} is missing"

    @classmethod
    def existing(cls, root: Path) -> "Store | None":
        """The run in a folder, to be read; None if there is none."""
        url = url_of(root)
        is_run = (Disk(root) if url is None else Bucket(url)).exists(MARKER)
        return cls(root, create=False) if is_run else None

    def __getstate__(self) -> dict[str, Any]:
        """Without what can be read again: a store is sent to every process."""
        return {**vars(self), "_maps": {}}

    def _check_format(self, *, create: bool) -> None:
        """Refuse a run of another format; heal one whose mark is damaged."""
        path = str(self.root / MARKER)
        content, problem = self.files.read(MARKER), None
        try:
            known = json.loads(content or b"")["format"]
        except (ValueError, KeyError, TypeError, RecursionError):
            is_file = content is not None or self.files.problem(MARKER) in ("is damaged", "is empty")
            known, problem = FORMAT, "is damaged" if is_file else "is no file"
        if known != FORMAT:
            raise InputError(f"run: {str(self.root)!r} has format {known}, this program reads format {FORMAT}")
        if problem is None:
            return
        if not all(self.files.has_folder(name) for name in (UNITS, PLANS)):
            raise InputError(f"run: {path!r} {problem}, and nothing beside it is of a run; is it one?")
        if not create:
            warn(f"{path!r} {problem}; the next run writes it again")
            return
        self.files.set_aside(MARKER, problem)
        self.files.write(MARKER, _MARKER_CONTENT)

    # Tasks

    def commit(self, key: str, rows: Sequence[ScoreRecord], metadata: Mapping[str, Any]) -> None:
        """Store the records of a task and JSON data about it in one file, which is complete or does not exist. Raises
        StoreFull if there is no space, and InputError if the records are more than can be read back."""
        self.files.write(_task_file(key), task_bytes(rows, metadata))

    def tasks(self) -> list[str]:
        """List the names of committed tasks, damaged ones among them."""
        loose = self.loose()  # before the packs: what is packed meanwhile is then in one of them
        return sorted({*loose, *(key for pack in self.packs.list() for key in pack.tasks)})

    def read(self, key: str) -> tuple[list[ScoreRecord], dict[str, Any]] | None:
        """Read the records of a task and its metadata; None where the file is damaged: it will be computed again."""
        loose = self.read_loose(key)
        if loose is not None:
            return from_table(loose[0]), loose[1]
        for pack in self.packs.list():
            if key in pack.tasks:
                with contextlib.suppress(Damaged):
                    return from_table(pack.task_table(pack.tasks[key])), dict(pack.tasks[key].metadata)
        return None

    def metadata(self) -> dict[str, dict[str, Any]]:
        """Read the metadata of every intact task, without its records."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        result, shared = dict[str, dict[str, Any]](), dict[str, dict[str, Any]]()
        for key in self.loose():  # before the packs: what is packed meanwhile is then in one of them
            content = self._content(key)
            if content is not None:
                metadata = json.loads(pq.read_schema(pa.BufferReader(content)).metadata[b"fringe"])
                by_task = {name: metadata.pop(name) for name in BY_TASK if name in metadata}
                result[key] = {**shared.setdefault(json.dumps(metadata), metadata), **by_task}  # equal parts only once
        packed = [(key, task.metadata) for pack in self.packs.list() for key, task in pack.tasks.items()]
        return {**dict(reversed(packed)), **result}

    def compact(self) -> None:
        """Pack the files of tasks if there are at least ``PACKED_FROM`` of them and no other process is at it."""
        if len(self.loose()) < PACKED_FROM:
            return
        with self.lock("packs") as locked:
            for tasks in self.loose_tasks() if locked else ():
                self.packs.write(tasks)
                for key, (_, metadata) in tasks.items():
                    if metadata.get("failed"):  # another run may have computed it again meanwhile, or be at it
                        self._remove_unless_newer(key, metadata)
                    else:
                        self.files.remove(_task_file(key))

    def _remove_unless_newer(self, key: str, metadata: Mapping[str, Any]) -> None:
        with self.lock(key) as locked:
            now = self.read_loose(key) if locked else None
            if now is not None and now[1] == metadata:
                self.files.remove(_task_file(key))

    def loose(self) -> list[str]:
        """List the tasks that are files of their own."""
        return [name.removesuffix(".parquet") for name in self.files.names(UNITS, ".parquet")]

    def loose_tasks(self) -> Iterator[Tasks]:
        """Read the tasks that are files of their own, as many at a time as a pack holds."""
        names = self.loose()
        for start in range(0, len(names), PACKED_FROM):
            read = {key: self.read_loose(key) for key in names[start : start + PACKED_FROM]}
            yield {key: task for key, task in read.items() if task is not None}

    def read_loose(self, key: str) -> tuple[Any, dict[str, Any]] | None:
        """The table and the metadata of a task that is a file of its own; None if there is none, or it is damaged."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        content = self._content(key)
        if content is None:
            return None
        table = pq.ParquetFile(pa.BufferReader(content)).read()  # read_table imports pandas: a second
        return table, json.loads(table.schema.metadata[b"fringe"])

    # Damage

    def damaged(self) -> dict[Path, str]:
        """What is wrong with damaged files, by path. Of the maps only empty files are found, as reading all of them
        takes long."""
        return {self.root / name: problem for name, problem in self._damaged(everything=False)}

    def quarantine_damaged(self) -> None:
        """Move damaged files to the quarantine folder, with a warning: they are made again when needed."""
        for name, problem in self._damaged(everything=True):
            folder, _, file = name.partition("/")
            if folder == PACKS:
                self.packs.replace(file.removesuffix(SCORES), problem=problem)
                continue
            aside = self.files.set_aside(name)
            if aside is not None and folder == UNITS and is_task_file(self.files.read(aside) or b""):
                self.files.move(aside, name)  # another process has just computed it again
            elif aside is not None:
                self.files.warn(name, problem, aside)

    def quarantine_tasks(self, keys: Iterable[str]) -> None:
        """Set intact tasks that are no longer true aside."""
        dropped = set(keys)
        for pack in self.packs.list():
            if not dropped.isdisjoint(pack.tasks):
                self.packs.replace(pack.name, without=dropped)
        self.quarantine((UNITS, f"{key}.parquet") for key in sorted(dropped.intersection(self.loose())))

    def quarantine(self, names: Iterable[tuple[str, str]]) -> None:
        """Move intact files that are no longer true to the quarantine folder, by folder and file name."""
        paths = [f"{folder}/{name}" for folder, name in names]
        moved = sum(self.files.exists(path) and self.files.set_aside(path) is not None for path in paths)
        if moved:
            warn(f"{moved} files of results are set aside in {str(self.root / QUARANTINE)!r}")

    def _damaged(self, *, everything: bool) -> Iterator[tuple[str, str]]:
        for key in self.loose():
            if self._content(key) is None and self.files.exists(_task_file(key)):
                yield _task_file(key), self.files.problem(_task_file(key))
        for name in self.packs.names():
            if self.packs.is_damaged(name, everything=everything):
                yield f"{PACKS}/{name}{SCORES}", "is damaged"
        for folder in (PLANS, CRASHES):
            for name in self.files.names(folder, ".json"):
                if self._record(folder, name) is None:
                    yield f"{folder}/{name}", self.files.problem(f"{folder}/{name}")
        for folder in (CLAIMS, LOGITS, *self._map_folders()):
            for name in self.files.oddities(folder, empty=folder == CLAIMS):
                yield f"{folder}/{name}", self.files.problem(f"{folder}/{name}")

    # Maps

    def commit_maps(self, setting: str, maps: Mapping[str, StoredMap]) -> None:
        """Store maps of a setting by image digest. Raises :class:`StoreFull` if there is no space."""
        self.files.make_folders([f"{MAPS}/{setting}"])
        name = f"{MAPS}/{setting}/{digest(sorted(maps))}.safetensors"
        self.files.write(name, with_checksum(to_bytes(maps, BLANK.decode())))

    def load_maps(self, setting: str, images: Iterable[str]) -> dict[str, StoredMap]:
        """Read stored maps of a setting by image digest, of two of one image the valid one; those that are absent or
        damaged are left out."""
        required, result = set(images), dict[str, StoredMap]()
        for name in self.map_files(setting):
            matching = required.intersection(self._images_of(name))
            content = self.files.read(name, MAPS_BYTES) if matching else None
            if content is not None and is_intact(content):
                stored = from_bytes(content)
                result |= {image: stored[image] for image in matching}
                required -= {image for image in matching if stored[image].metadata.get("status", "ok") == "ok"}
            elif matching:
                warn(f"{self.files.at(name)} is damaged; its maps are made again")
        return result

    def images_with_maps(self, setting: str) -> frozenset[str]:
        """The images of which maps of a setting are stored."""
        return frozenset[str]().union(*(self._images_of(name) for name in self.map_files(setting)))

    def map_files(self, setting: str) -> list[str]:
        """List the files that hold maps of a setting."""
        return [f"{MAPS}/{setting}/{name}" for name in self.files.names(f"{MAPS}/{setting}", ".safetensors")]

    def _map_folders(self) -> list[str]:
        return [f"{MAPS}/{name}" for name in self.files.names(MAPS) if self.files.has_folder(f"{MAPS}/{name}")]

    def _images_of(self, name: str) -> frozenset[str]:
        """The images of a file of maps. Its header is read once, as no such file is changed."""
        if name not in self._maps:
            opened = self.files.open(name)
            if opened is None:
                return frozenset()
            with opened[0] as file, contextlib.suppress(ValueError, TypeError, RecursionError):
                length = int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(min(length, RECORD_BYTES)))
                self._maps[name] = frozenset(header) - {"__metadata__"}
        return self._maps.get(name, frozenset())

    # Logits

    def commit_logits(self, model: str, logits: Mapping[str, Tensor]) -> None:
        """Store the logits (C,) of a few images by digest, under the digest of the model."""
        stored = {image: StoredMap(values, {}) for image, values in logits.items()}
        self.files.write(f"{LOGITS}/{model}.safetensors", with_checksum(to_bytes(stored, BLANK.decode())))

    def logits(self, model: str) -> dict[str, Tensor]:
        """Read the stored logits of a model; none where the file is absent or damaged."""
        content = self.files.read(f"{LOGITS}/{model}.safetensors")
        if content is None or not is_intact(content):
            return {}
        return {image: stored.values for image, stored in from_bytes(content).items()}

    def images_with_logits(self) -> frozenset[str]:
        """The images of which logits of a model are stored."""
        names = (f"{LOGITS}/{name}" for name in self.files.names(LOGITS, ".safetensors"))
        return frozenset[str]().union(*map(self._images_of, names))

    # Plans and crashes

    def write_record(self, folder: str, name: str, record: Mapping[str, Any]) -> None:
        """Store a JSON document in ``plans`` or ``crashes``."""
        self.files.write(f"{folder}/{name}.json", json.dumps(record, indent=1).encode())

    def records(self, folder: str) -> dict[str, dict[str, Any]]:
        """Read the JSON documents of a folder by name; damaged ones are left out."""
        names = self.files.names(folder, ".json")
        result = {name.removesuffix(".json"): self._record(folder, name) for name in names}
        return {name: record for name, record in result.items() if record is not None}

    def forget_crash(self, key: str) -> None:
        self.files.remove(f"{CRASHES}/{key}.json")

    # Processes

    def lock(self, key: str) -> AbstractContextManager[bool]:
        """Lock a task; False if another process holds it. The system frees the lock of a process that dies."""
        return self.files.lock(CLAIMS, key)

    def remove_stale_files(self) -> None:
        """Remove what dead processes were writing."""
        self.files.remove_partial_files((*FOLDERS, *self._map_folders(), ""))

    # Private

    def _content(self, key: str) -> bytes | None:
        """The bytes of a task's file; None if it is absent or incomplete."""
        content = self.files.read(_task_file(key))
        return content if content is not None and is_task_file(content) else None

    def _record(self, folder: str, name: str) -> dict[str, Any] | None:
        """The JSON document of a file, None unless it holds what a record of its folder holds."""
        content = self.files.read(f"{folder}/{name}")
        return None if content is None else read_record(folder, content)


def task_bytes(rows: Sequence[ScoreRecord], metadata: Mapping[str, Any]) -> bytes:
    """The file of a task. Raises InputError if the records are more than can be read back."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = to_table(rows).replace_schema_metadata({"fringe": json.dumps(metadata), "seal": BLANK.decode()})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    content = with_checksum(sink.getvalue().to_pybytes())
    if len(content) > RECORD_BYTES or not is_task_file(content):
        raise InputError("shard: the scores of one unit are more than can be read back; make units of fewer images")
    return content


def _task_file(key: str) -> str:
    return f"{UNITS}/{key}.parquet"
