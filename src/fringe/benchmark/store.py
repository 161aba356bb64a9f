"""The folder of a run: what is committed there is whole and stays, whenever the process dies.

A unit is one Parquet file, written under a temporary name, flushed to the disk, and renamed: the rename is the commit.
Its name is a digest of what it holds, so that two processes that compute the same unit write the same file. Locks only
keep them from doing so at the same time.
"""

import contextlib
import errno
import json
import os
import socket
from collections.abc import Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fringe._errors import FringeError, InputError
from fringe.benchmark.keys import digest
from fringe.benchmark.rows import ScoreRow, from_table, to_table

UNITS, MAPS, CLAIMS, CRASHES, PLANS = "units", "maps", "claims", "crashes", "plans"
MARK = "fringe-run.json"
FORMAT = 1


class StoreFull(FringeError):
    """There is no room for a result. Nothing that was committed is lost; the run goes on when there is room."""


class Store:
    """The results under ``root``. Raises InputError for a folder that holds other things or cannot be written."""

    def __init__(self, root: Path, *, create: bool = True):
        self.root = root
        mark = root / MARK
        if not mark.is_file():
            if not create:
                raise InputError(f"run: {str(root)!r} holds no run of this program ({MARK} is missing)")
            self._begin(mark)
        try:
            kept = json.loads(mark.read_text(encoding="utf-8"))["format"]
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"run: {str(mark)!r} cannot be read ({error}); is it a run of this program?") from error
        if kept != FORMAT:
            raise InputError(f"run: {str(root)!r} has format {kept}, this program reads format {FORMAT}")

    def _begin(self, mark: Path) -> None:
        if self.root.exists() and not self.root.is_dir():
            raise InputError(f"--out: {str(self.root)!r} is a file, expected a folder")
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            strangers = sorted(
                p.name for p in self.root.iterdir() if p.name not in (UNITS, MAPS, CLAIMS, CRASHES, PLANS)
            )
            if any(not _is_partial(name) for name in strangers):
                raise InputError(
                    f"--out: {str(self.root)!r} holds files that are no results of a run ({', '.join(strangers[:3])}); "
                    "name another folder"
                )
            for name in (UNITS, MAPS, CLAIMS, CRASHES, PLANS):
                (self.root / name).mkdir(exist_ok=True)
            self._place(mark, json.dumps({"format": FORMAT}).encode())
        except OSError as error:
            raise InputError(f"--out: cannot write in {str(self.root)!r} ({error.strerror})") from error

    # Units

    def has(self, key: str) -> bool:
        """Whether the unit is committed."""
        return self._unit(key).is_file()

    def commit(self, key: str, rows: Sequence[ScoreRow], about: Mapping[str, Any]) -> None:
        """Keep the rows of a unit, with plain data about it. Raises :class:`StoreFull` where they do not fit."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = to_table(rows).replace_schema_metadata({"fringe": json.dumps(about)})
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd")
        self._place(self._unit(key), sink.getvalue().to_pybytes())

    def units(self) -> list[str]:
        """Every committed unit."""
        return sorted(path.stem for path in (self.root / UNITS).glob("*.parquet") if not _is_partial(path.name))

    def read(self, key: str) -> tuple[list[ScoreRow], dict[str, Any]] | None:
        """Rows of a unit and the data about it; None where the file is damaged: it will be computed again."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            table = pq.read_table(self._unit(key))
            about: dict[str, Any] = json.loads((table.schema.metadata or {})[b"fringe"])
            return from_table(table), about
        except (pa.ArrowInvalid, pa.ArrowTypeError, OSError, KeyError, ValueError, TypeError):
            return None

    def about(self) -> dict[str, dict[str, Any]]:
        """The data about every unit that can be read, without its rows: from the file's last bytes, so that a torn file
        is not among them."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        found: dict[str, dict[str, Any]] = {}
        for key in self.units():
            with contextlib.suppress(pa.ArrowInvalid, OSError, KeyError, ValueError, TypeError):
                found[key] = json.loads((pq.read_schema(self._unit(key)).metadata or {})[b"fringe"])
        return found

    # Maps

    def commit_maps(self, setting: str, maps: Mapping[str, Any]) -> None:
        """Keep the maps (C, H, W) of a setting by image digest."""
        from safetensors.torch import save

        path = self.root / MAPS / f"{setting}-{digest(sorted(maps))}.safetensors"
        self._place(path, save({image: values.cpu().contiguous() for image, values in maps.items()}))

    def find_maps(self, setting: str, images: Iterable[str]) -> dict[str, Any]:
        """The kept maps of a setting by image digest; those that are not there are not in it."""
        from safetensors import SafetensorError, safe_open

        wanted, found = set(images), dict[str, Any]()
        for path in sorted((self.root / MAPS).glob(f"{setting}-*.safetensors")):
            with contextlib.suppress(SafetensorError, OSError), safe_open(path, framework="pt") as file:
                for image in wanted.intersection(file.keys()) - found.keys():
                    found[image] = file.get_tensor(image)
        return found

    # Plans and crashes

    def write_record(self, folder: str, name: str, record: Mapping[str, Any]) -> None:
        """Keep a JSON document in ``plans`` or ``crashes``."""
        self._place(self.root / folder / f"{name}.json", json.dumps(record, indent=1).encode())

    def records(self, folder: str) -> dict[str, dict[str, Any]]:
        """The JSON documents of a folder by name; damaged ones are passed over."""
        found: dict[str, dict[str, Any]] = {}
        for path in sorted((self.root / folder).glob("*.json")):
            with contextlib.suppress(ValueError, OSError):
                found[path.stem] = json.loads(path.read_text(encoding="utf-8"))
        return found

    def forget_crash(self, key: str) -> None:
        (self.root / CRASHES / f"{key}.json").unlink(missing_ok=True)

    # Locks

    @contextlib.contextmanager
    def claim(self, key: str) -> Generator[bool]:
        """Whether the unit is this process's for now: False where another holds it. The system frees the lock of a
        process that dies."""
        from filelock import FileLock, Timeout

        lock = FileLock(self.root / CLAIMS / f"{key}.lock", blocking=False)
        try:
            lock.acquire()
        except Timeout:
            yield False
            return
        except OSError as error:
            raise _explained(error, self.root) from error
        try:
            yield True
        finally:
            lock.release()

    def sweep(self) -> None:
        """Remove what dead processes of this host left half written."""
        for folder in (UNITS, MAPS, PLANS, CRASHES, ""):
            for path in (self.root / folder).glob(".partial-*"):
                host, _, pid = path.name.removeprefix(".partial-").partition("~")[0].rpartition("-")
                if host == _host() and pid.isdigit() and not _alive(int(pid)):
                    path.unlink(missing_ok=True)

    # Private

    def _unit(self, key: str) -> Path:
        return self.root / UNITS / f"{key}.parquet"

    def _place(self, path: Path, content: bytes) -> None:
        partial = path.with_name(f".partial-{_host()}-{os.getpid()}~{path.name}")
        try:
            with partial.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
            _sync_folder(path.parent)
        except OSError as error:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
            raise _explained(error, self.root, len(content)) from error


def _explained(error: OSError, root: Path, needed: int = 0) -> Exception:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        room = f"{needed} bytes are needed; " if needed else ""
        return StoreFull(
            f"{str(root)!r}: no space left ({room}free some and run the same command again: nothing that was computed "
            "before is lost)"
        )
    if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
        return InputError(f"--out: {str(root)!r} cannot be written ({error.strerror})")
    return error


def _sync_folder(folder: Path) -> None:
    """Make a rename last through a power cut, where the system can."""
    with contextlib.suppress(OSError, AttributeError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _host() -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in socket.gethostname())[:40]


def _is_partial(name: str) -> bool:
    return name.startswith(".partial-")


def _alive(pid: int) -> bool:
    if os.name == "nt":  # signal 0 would end the process there
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
