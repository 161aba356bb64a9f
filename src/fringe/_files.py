"""Files that a stranger may have prepared: type and size are checked before the first byte is read."""

import errno
import hashlib
import os
import stat
from pathlib import Path
from typing import BinaryIO

from fringe.errors import InputError

IMAGE_BYTES = 2**29
"""The largest image file: 512 MiB, more than 50 million pixels of 16-bit RGBA without compression."""
RECORD_BYTES = 2**28
"""The largest JSON record or score file of a run: 256 MiB."""
MAPS_BYTES = 2**32
"""The largest file of kept maps: 4 GiB."""
SETTINGS_BYTES = 2**20
"""The largest plan file: 1 MiB."""
PRESET_BYTES = 2**26
"""The largest preset file, which lists the images that it was tuned on: 64 MiB."""


class UnfitFile(OSError):
    """A file that is not read for what it is: no regular file (EINVAL), or too large (EFBIG). The disk did answer."""


def open_regular(path: str | os.PathLike[str], limit: int) -> BinaryIO:
    """Open a regular file of at most ``limit`` bytes, through links.

    Raises:
        UnfitFile: For a pipe, a device or a folder (EINVAL) and for a larger file (EFBIG), before anything is read:
            reading a pipe or a device may never end.
        OSError: Where the system cannot open it.
    """
    _check(os.stat(path), path, limit)  # before it is opened: opening a device can act on it
    file = open(path, "rb", opener=_without_waiting)  # noqa: SIM115 - the caller closes it
    try:
        _check(os.fstat(file.fileno()), path, limit)  # the file may be another one by now
    except BaseException:
        file.close()
        raise
    return file


def read_regular(path: str | os.PathLike[str], limit: int) -> bytes:
    """The bytes of a regular file as it is long now; raises OSError as :func:`open_regular` does."""
    with open_regular(path, limit) as file:
        return file.read(os.fstat(file.fileno()).st_size)


def sha256_of(path: str | os.PathLike[str], limit: int = IMAGE_BYTES) -> str:
    """SHA-256 in hexadecimal of a regular file as it is long now; raises OSError as :func:`open_regular` does."""
    total = hashlib.sha256()
    with open_regular(path, limit) as file:
        left = os.fstat(file.fileno()).st_size  # some files of the kernel say 0 and never end
        while left > 0 and (block := file.read(min(left, 2**20))):
            total.update(block)
            left -= len(block)
    return total.hexdigest()


def require_inside(folder: Path, root: Path) -> None:
    """Raise InputError where ``folder``, or a link in it, leads out of ``root``: what is written there would be lost
    or replace a file of somebody else's."""
    real = Path(os.path.realpath(root))
    links = [Path(at) / name for at, folders, names in os.walk(folder) for name in (*folders, *names)]
    for path in (folder, *(link for link in links if link.is_symlink())):
        target = Path(os.path.realpath(path))
        if not target.is_relative_to(real):
            raise InputError(
                f"out: {str(path)!r} is a link that leads out of {str(root)!r}, to {str(target)!r}; remove the link or "
                "name another folder (--out)"
            )


def _without_waiting(path: str, flags: int) -> int:
    """Opening a pipe would else wait for somebody to write to it."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _check(found: os.stat_result, path: str | os.PathLike[str], limit: int) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise UnfitFile(errno.EINVAL, "is not a regular file", str(path))
    if found.st_size > limit:
        raise UnfitFile(errno.EFBIG, f"has {found.st_size} bytes; at most {limit} are read", str(path))
