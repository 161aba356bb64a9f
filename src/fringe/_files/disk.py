"""Files: read after a check of type and size, written in one step.

A file may have been prepared by a stranger: its type and size are checked before the first byte is read.
"""

import contextlib
import errno
import hashlib
import json
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from fringe._files.process import fate_of, process_name
from fringe.errors import FringeError, InputError, TransientError

#: The largest image file: 512 MiB, more than 50 million pixels of 16-bit RGBA without compression.
IMAGE_BYTES = 2**29
#: The largest JSON record or score file of a run: 256 MiB.
RECORD_BYTES = 2**28
#: The largest file of stored maps: 4 GiB.
MAPS_BYTES = 2**32
#: The largest plan file: 1 MiB.
SETTINGS_BYTES = 2**20
#: The largest preset file, which lists the images that it was tuned on: 64 MiB.
PRESET_BYTES = 2**26

#: How the name of a file begins that is being written; the name of the process follows.
PARTIAL = ".partial-"
#: Seconds after which a file half written belongs to no living process, wherever that ran.
ABANDONED = 24 * 3600.0
#: What Finder and Explorer put into a folder that they show: it belongs to nobody.
VIEWED = frozenset({".DS_Store", "Thumbs.db", "desktop.ini"})

#: Errors that only a person can fix; all others may pass.
REFUSED = (errno.EACCES, errno.EROFS, errno.EPERM, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EEXIST, errno.ELOOP)

#: Errors of Windows about a file that another process has open: access denied, sharing violation.
_IN_USE = (5, 32)
#: Seconds between the tries of :func:`when_free`.
_PAUSES = (0.01, 0.04, 0.2, 0.75)


class UnfitFile(OSError):
    """A file that is refused unread: no regular file (EINVAL), or too large (EFBIG)."""


class StoreFull(TransientError):
    """There is no room for a result. Nothing that was committed is lost; the run goes on when there is room."""


def disk_error(error: OSError, root: Path, needed: int = 0, *, what: str = "a result cannot be written") -> FringeError:
    """What an error of the system means for the files in ``root``; ``needed`` is the size of a file in bytes."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        room = f"{needed} bytes are needed; " if needed else ""
        return StoreFull(
            f"{str(root)!r}: no space left ({room}free some and run it again: nothing that was computed before is lost)"
        )
    if error.errno in REFUSED:
        if what != "a result cannot be written":
            return InputError(f"run: {str(root)!r}: {what} ({error.strerror})")
        return InputError(f"{str(root)!r} cannot be written ({error.strerror})", argument="out")
    return TransientError(
        f"{str(root)!r}: {what} ({error.strerror or error}); nothing that was computed before is lost"
    )


def open_regular(path: str | os.PathLike[str], limit: int) -> BinaryIO:
    """Open a regular file of at most ``limit`` bytes, through links.

    Raises:
        UnfitFile: For a pipe, a device or a folder (EINVAL) and for a larger file (EFBIG), before anything is read:
            reading a pipe or a device may never end.
        OSError: Where the system cannot open it.
    """
    _check(os.stat(path), path, limit)  # before it is opened: opening a device can act on it
    # without waiting: opening a pipe would otherwise block until another process writes to it
    waitless = getattr(os, "O_NONBLOCK", 0)
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | waitless))  # noqa: SIM115 - the caller closes it
    try:
        _check(os.fstat(file.fileno()), path, limit)  # the file may be another one by now
    except BaseException:
        file.close()
        raise
    return file


def read_regular(path: str | os.PathLike[str], limit: int) -> bytes:
    """Return the bytes of a regular file, up to its present length; raises OSError as :func:`open_regular` does."""
    with open_regular(path, limit) as file:
        return file.read(os.fstat(file.fileno()).st_size)


def read_json(path: str | os.PathLike[str], argument: str) -> Any:
    """Return the JSON document of a file; raise InputError, which names the ``argument``, if it cannot be read."""
    try:
        return json.loads(read_regular(path, RECORD_BYTES))
    except OSError as error:
        raise InputError(f"cannot read {str(path)!r} ({error.strerror})", argument=argument) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{str(path)!r} is not JSON ({error})", argument=argument) from error


def sha256_of(path: str | os.PathLike[str], limit: int = IMAGE_BYTES) -> str:
    """Return the SHA-256, in hexadecimal, of what :func:`read_regular` returns; raises OSError as that does."""
    total = hashlib.sha256()
    with open_regular(path, limit) as file:
        left = os.fstat(file.fileno()).st_size  # some files of the kernel say 0 and never end
        while left > 0 and (block := file.read(min(left, 2**20))):
            total.update(block)
            left -= len(block)
    return total.hexdigest()


def write_atomic(path: Path, content: bytes | Iterable[bytes], *, durable: bool = False) -> None:
    """Replace a file, whose folder exists, in one step: readers see the old content or the new one, never a part.

    The content, or its parts in turn, is written to a neighbour whose name contains that of this process, and which is
    removed if anything goes wrong, an interrupt included. If ``durable``, wait until the content and the new name would
    survive a power cut, where the system can. Raises OSError if the system cannot write the file.
    """
    partial = partial_path(path)
    try:
        partial.unlink(missing_ok=True)  # it could be a link, which would be written through
        with partial.open("wb") as file:
            for part in (content,) if isinstance(content, bytes) else content:
                file.write(part)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        when_free(lambda: os.replace(partial, path))
    except BaseException as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None:  # nobody knows the neighbour
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    if durable:
        sync_folder(path.parent)


def partial_path(path: Path) -> Path:
    """Return the hidden neighbour in which this thread of this process makes a file or folder."""
    return path.with_name(f"{PARTIAL}{process_name()}~{threading.get_ident():x}~{path.name}")


def is_abandoned(path: Path, process: str | None = None) -> bool:
    """Whether a partial file or folder belongs to no living process, that of its name or another one; where that is not
    known, after a day."""
    fate = fate_of(process if process is not None else path.name.removeprefix(PARTIAL).partition("~")[0])
    return fate == "gone" or (fate == "unknown" and time.time() - path.lstat().st_mtime > ABANDONED)


def when_free(action: Callable[[], object]) -> None:
    """Rename or remove a file or folder by ``action``; on Windows, try again for a second while another process has it
    open.

    Windows does neither to a file that another run, or a virus scanner, is reading. Other systems do. Raises the last
    OSError.
    """
    for pause in _PAUSES:
        try:
            action()
            return
        except PermissionError as error:
            if getattr(error, "winerror", None) not in _IN_USE:
                raise
            time.sleep(pause)
    action()


def write_files(folder: Path, files: Mapping[str, bytes | Iterable[bytes]]) -> tuple[Path, ...]:
    """Write files, content by name, into the folder that a caller named ``out``, each in one step, and make the folders
    that lack; return the paths. Raises InputError if they cannot be written.

    Without any file, the folder is made, and it is tried whether it can be written in, which a caller does before it
    computes what takes long.
    """
    require_local("out", folder)
    paths = tuple(folder / name for name in files)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        for path, content in zip(paths, files.values(), strict=True):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, content)
    except OSError as error:
        raise InputError(f"cannot write in {str(folder)!r} ({error.strerror})", argument="out") from error
    return paths


def require_local(name: str, path: str | os.PathLike[str]) -> None:
    """Raise InputError for a URL such as ``s3://bucket/run``: as a path, it would name a local folder ``s3:``."""
    text = os.fspath(path)
    # Two letters at least, as C:\ is a drive; one slash or none, as a Path has lost the second, or both at its end.
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:([/\\]|$)", text):
        scheme, _, rest = text.partition(":")
        if not rest.strip("/\\"):
            raise InputError(f"got {text!r}, a URL that names no bucket and no folder", argument=name)
        raise InputError(
            f"got {text!r}; {scheme}:// is not supported, name a folder or file of this machine", argument=name
        )


def sync_folder(folder: Path) -> None:
    """Make a rename last through a power cut, where the system can."""
    with contextlib.suppress(OSError, AttributeError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def require_inside(folder: Path, root: Path) -> None:
    """Refuse a folder that leads out of ``root``, itself or by a link in it: writing could replace other files."""
    real = Path(os.path.realpath(root))
    links = [Path(parent) / name for parent, folders, names in os.walk(folder) for name in (*folders, *names)]
    for path in (folder, *(link for link in links if link.is_symlink())):
        target = Path(os.path.realpath(path))
        if not target.is_relative_to(real):
            raise InputError(
                f"{str(path)!r} is a link that leads out of {str(root)!r}, to {str(target)!r}",
                argument="out",
                hint="remove the link or name another folder",
            )


def _check(status: os.stat_result, path: str | os.PathLike[str], limit: int) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise UnfitFile(errno.EINVAL, "is not a regular file", str(path))
    if status.st_size > limit:
        raise UnfitFile(errno.EFBIG, f"has {status.st_size} bytes; at most {limit} are read", str(path))
