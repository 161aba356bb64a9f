"""Packs: many committed tasks in two Parquet files, of scores and of details, with a row group for each setting.

The footer of the scores holds the metadata of the tasks. It is written last: a pack without scores does not exist.
"""

import contextlib
import json
import time
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

from fringe._files import RECORD_BYTES
from fringe.experiments._disk import Disk
from fringe.experiments._formats import is_bounded, schema
from fringe.experiments._manifest import digest
from fringe.experiments._sealed import Damaged, SealedFile, sealed_parquet

PACKS = "packs"
SCORES, DETAILS = ".scores.parquet", ".details.parquet"
#: Columns that are large, and read only for curves and single records.
LARGE = ("diagnostics", "extras", "curves")
#: Metadata that differs between the tasks of one method; everything else is stored once for all of them.
BY_TASK = ("images", "failed")

#: Arrow tables of records, and metadata, by name of the task.
Tasks = Mapping[str, tuple[Any, Mapping[str, Any]]]

#: Opens the scores or the details of a pack.
Opener = Callable[[str], AbstractContextManager[SealedFile]]


@dataclass(frozen=True)
class PackedTask:
    """A task of a pack: its ``metadata``, its row ``group``, and its ``number`` in the column ``task``."""

    metadata: dict[str, Any]
    group: int
    number: int


class Pack:
    """What the footer of a pack's scores says: its ``tasks`` by name, and the digests of the ``settings`` of its row
    groups. Raises Damaged.

    ``created`` is in nanoseconds, and later than that of every pack before it, whatever the clock says.
    """

    def __init__(self, name: str, open_file: Opener, images: dict[str, str]):
        self.name, self._open = name, open_file
        self.tasks: dict[str, PackedTask] = {}
        try:
            with open_file(SCORES) as file:
                index = file.index
            self.created, self.settings = int(index["created"]), list[str](index["settings"])
            shared = [json.loads(text) for text in index["shared"]]
            # each name of an image is in memory once, and so is the list of those that several tasks have
            lists = [[images.setdefault(image, image) for image in names] for names in index["images"]]
            for number, (key, common, by_task, group) in enumerate(index["tasks"]):
                by_task["images"] = lists[by_task["images"]]
                self.tasks[key] = PackedTask({**shared[common], **by_task}, group, number)
        except (ValueError, KeyError, TypeError, IndexError) as error:  # sealed, but by somebody else
            raise Damaged("the footer") from error

    def groups(self, settings: Collection[str] | None) -> list[int]:
        """List the row groups of some settings, or of all."""
        return [i for i, setting in enumerate(self.settings) if settings is None or setting in settings]

    def table(self, groups: Sequence[int], columns: Iterable[str]) -> Any:
        """Read columns of row groups, and the column ``task``, as an Arrow table. Raises Damaged."""
        columns = list(columns)
        with self._open(SCORES) as file:
            table = file.read(groups, ["task", *(c for c in columns if c not in LARGE)])
        large = [c for c in columns if c in LARGE]
        if large:
            with self._open(DETAILS) as file:
                details = file.read(groups, large)
            for column in large:
                table = table.append_column(details.schema.field(column), details.column(column))
        return table

    def task_table(self, task: PackedTask) -> Any:
        """Read all columns of a task. Raises Damaged."""
        return _rows_of(self.table([task.group], schema().names), task)


def _rows_of(group: Any, task: PackedTask) -> Any:
    """The rows of a task, of all those of its row group."""
    import pyarrow.compute as pc

    return group.filter(pc.field("task") == task.number).drop_columns(["task"])


def pack_bytes(tasks: Tasks, created: int = 0) -> tuple[str, bytes, bytes]:
    """Return the name of a pack of tasks, and the bytes of its scores and of its details."""
    import pyarrow as pa

    settings: dict[str, list[str]] = {}
    for key in sorted(tasks):
        settings.setdefault(str(tasks[key][1].get("setting_key", "")), []).append(key)
    shared, lists, entries, tables = dict[str, int](), dict[tuple[str, ...], int](), list[Any](), list[Any]()
    for group, keys in enumerate(settings.values()):
        parts: list[Any] = []
        for key in keys:
            table, metadata = tasks[key]
            by_task = {name: metadata[name] for name in BY_TASK if name in metadata}
            # all methods on the same images have one list
            by_task["images"] = lists.setdefault(tuple(metadata["images"]), len(lists))
            common = json.dumps({name: value for name, value in metadata.items() if name not in BY_TASK})
            number = pa.array([len(entries)] * len(table), pa.int32())
            parts.append(table.append_column("task", number))
            entries.append([key, shared.setdefault(common, len(shared)), by_task, group])
        tables.append(pa.concat_tables(parts))
    index = {"created": created, "settings": list(settings), "shared": list(shared), "tasks": entries}
    index["images"] = list(lists)
    scores = sealed_parquet([table.drop_columns(list(LARGE)) for table in tables], index)
    name = digest([(key, tasks[key][1].get("failed")) for key in sorted(tasks)])  # what is mended has another
    return name, scores, sealed_parquet([table.select(LARGE) for table in tables], {})


def release_memory() -> None:
    """Return what Arrow holds for the next table to the system; after many tables that is 100 MB."""
    import pyarrow as pa

    pa.default_memory_pool().release_unused()


class Packs:
    """The packs of a run folder."""

    def __init__(self, files: Disk):
        self._files, self._known, self._images = files, dict[str, Pack](), dict[str, str]()

    def __getstate__(self) -> dict[str, Any]:
        """Without what can be read again: a store is sent to every process."""
        return {**vars(self), "_known": {}, "_images": {}}

    def list(self) -> list[Pack]:
        """List the packs, the newest first. Each is read once, as none is ever changed."""
        names = self.names()
        for name in names:
            if name not in self._known:
                with contextlib.suppress(Damaged):
                    self._known[name] = Pack(name, partial(self._open, name), self._images)
        self._known = {name: self._known[name] for name in names if name in self._known}
        return sorted(self._known.values(), key=lambda pack: -pack.created)

    def names(self) -> "list[str]":
        return [name.removesuffix(SCORES) for name in self._files.names(PACKS, SCORES)]

    def write(self, tasks: Tasks, created: int | None = None) -> None:
        """Write a pack of tasks, or several if it would be too large to be read back; the newest, or as old as a pack
        that it stands for."""
        if not tasks:
            return
        if created is None:
            created = max([time.time_ns(), *(pack.created + 1 for pack in self.list())])
        name, scores, details = pack_bytes(tasks, created)
        if len(tasks) > 1 and not all(len(part) < RECORD_BYTES and is_bounded(part) for part in (scores, details)):
            keys = list(tasks)
            for half in (keys[: len(keys) // 2], keys[len(keys) // 2 :]):
                self.write({key: tasks[key] for key in half}, created)
            return
        self._files.write(f"{PACKS}/{name}{DETAILS}", details)
        self._files.write(f"{PACKS}/{name}{SCORES}", scores)

    def is_damaged(self, name: str, *, everything: bool) -> bool:
        """Whether a pack is damaged; if not ``everything``, its details are not read."""
        try:
            with self._open(name, SCORES) as scores, self._open(name, DETAILS) as details:
                return bool(scores.damaged() or (everything and details.damaged()))
        except Damaged:
            return True

    def replace(self, name: str, *, without: Collection[str] = (), problem: str | None = None) -> None:
        """Write a pack again without some tasks and without what is damaged, and set the old one aside."""
        for pack in (pack for pack in self.list() if pack.name == name):
            chosen = {key: task for key, task in pack.tasks.items() if key not in without}
            remaining = dict[str, tuple[Any, Mapping[str, Any]]]()
            for group in sorted({task.group for task in chosen.values()}):
                with contextlib.suppress(Damaged):  # or another process has just set the pack aside
                    table = pack.table([group], schema().names)  # once for all of its tasks
                    remaining |= {k: (_rows_of(table, t), t.metadata) for k, t in chosen.items() if t.group == group}
            self.write(remaining, pack.created)
        for kind in (SCORES, DETAILS):
            if self._files.exists(f"{PACKS}/{name}{kind}"):
                self._files.set_aside(f"{PACKS}/{name}{kind}", problem)

    @contextlib.contextmanager
    def _open(self, name: str, kind: str) -> Generator[SealedFile]:
        """A file of a pack. Raises Damaged where there is none."""
        opened = self._files.open(f"{PACKS}/{name}{kind}")
        if opened is None:
            raise Damaged("no file")
        with opened[0]:
            yield SealedFile(*opened)
