"""Object stores, such as ``s3://bucket/folder``: their URLs, the package that reads each, and files in them."""

import contextlib
import errno
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import PurePath, PurePosixPath
from typing import Any

from fringe._files.disk import IMAGE_BYTES, UnfitFile
from fringe.errors import InputError, install_hint

#: The scheme of a URL, and the package and the extra that reads it.
SCHEMES = {"s3": ("s3fs", "s3"), "gs": ("gcsfs", "gs"), "abfs": ("adlfs", "abfs"), "abfss": ("adlfs", "abfs")}
#: 64 MiB: files that are in memory, as one is read for its digest and for its content.
CACHE_BYTES = 2**26


def url_of(root: str | os.PathLike[str]) -> str | None:
    """The URL of a folder in an object store, None for a path and for a URL without a bucket. A ``Path`` has lost the
    second slash, and a path of Windows has backslashes."""
    text = root.as_posix() if isinstance(root, PurePath) else os.fspath(root)
    match = re.match(rf"({'|'.join(SCHEMES)}):[/\\]+([^/\\].*)", text)
    return None if match is None else f"{match[1]}://{match[2]}".rstrip("/")


def open_store(url: str, argument: str) -> tuple[Any, str]:
    """The file system (fsspec) of a URL, and the path in it. Raises InputError where the package is missing."""
    scheme = url.partition(":")[0]
    package, extra = SCHEMES[scheme]
    try:
        import fsspec
        from fsspec.core import url_to_fs

        fsspec.get_filesystem_class(scheme)
    except ImportError as error:
        raise InputError(f"{scheme}:// needs {package}", argument=argument, hint=install_hint(extra)) from error
    return url_to_fs(url, use_listings_cache=False)


@dataclass(frozen=True)
class RemoteFile:
    """A file in an object store, by its URL. It is sent to other processes as that."""

    url: str

    @property
    def name(self) -> str:
        """The last part of its name."""
        return PurePosixPath(self.url).name

    @property
    def stem(self) -> str:
        """The last part of its name, without its suffix."""
        return PurePosixPath(self.url).stem

    def read(self) -> bytes:
        """Read all of it, once for several calls in turn. Raises OSError, as for a file on a disk."""
        content = _recent.get(self.url)
        if content is None:
            with _os_errors(self.url):
                store, path = open_store(self.url, "data")
                if int(store.info(path)["size"]) > IMAGE_BYTES:
                    raise UnfitFile(errno.EFBIG, f"is larger than {IMAGE_BYTES >> 20} MiB", self.url)
                content = bytes(store.cat_file(path))
            _recent.add(self.url, content)
        return content


def list_remote(url: str) -> list[RemoteFile]:
    """The file of a URL, or all files below it in the order of their names, without hidden ones. Raises OSError."""
    with _os_errors(url):
        store, path = open_store(url, "data")
        names: dict[str, Any] = store.find(path, detail=True)
        files = sorted(name[len(path) :].strip("/") for name, info in names.items() if info["type"] == "file")
    visible = [name for name in files if not any(part.startswith(".") for part in name.split("/"))]
    return [RemoteFile(f"{url}/{name}" if name else url) for name in visible]


@contextlib.contextmanager
def _os_errors(url: str) -> Generator[None]:
    """Raise the errors of a store, which each has its own, as OSError."""
    try:
        yield
    except (InputError, UnfitFile):
        raise
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), url) from error
    except PermissionError as error:
        raise PermissionError(errno.EACCES, f"no permission to read it: {error}", url) from error
    except Exception as error:
        raise OSError(errno.EIO, f"{type(error).__name__}: {error}", url) from error


class _Recent:
    """The files that were read last."""

    def __init__(self) -> None:
        self._files, self._size, self._lock = OrderedDict[str, bytes](), 0, threading.Lock()

    def get(self, url: str) -> bytes | None:
        with self._lock:
            return self._files.get(url)

    def add(self, url: str, content: bytes) -> None:
        with self._lock:
            self._size += len(content) - len(self._files.pop(url, b""))
            self._files[url] = content
            while self._size > CACHE_BYTES:
                self._size -= len(self._files.popitem(last=False)[1])


_recent = _Recent()
