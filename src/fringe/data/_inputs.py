"""Files, folders and scans named by text, as a list of images to open one at a time."""

import contextlib
import hashlib
import itertools
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Literal

from fringe._files.disk import IMAGE_BYTES, VIEWED, open_regular, sha256_of
from fringe._files.urls import SCHEMES, RemoteFile, list_remote, url_of
from fringe._strings.formats import counted
from fringe.data._images import SOURCE, Exif, Sample, digit_image, load_digits, open_image, to_channels
from fringe.errors import ImageError, InputError, did_you_mean, warn_caller

#: A folder's files with other suffixes are left out, with a warning; a file that is named directly is always tried.
SUFFIXES = (
    *(".bmp", ".gif", ".jfif", ".jif", ".jpe", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".pnm", ".ppm"),
    *(".tif", ".tiff", ".webp"),
)
#: How files of these formats begin, for those without a suffix.
_BEGINNINGS = re.compile(rb"\xff\xd8\xff|\x89PNG\r\n|GIF8[79]a|BM|RIFF....WEBP|II\*\0|MM\0\*|P[456]\s", re.DOTALL)

#: The two photographs of this package, by their names; README.md says who took them.
PHOTOS = "embedded:photos"
_PHOTO_NAMES = ("coffee", "cat")
#: How the name of an image of this package begins.
EMBEDDED = "embedded:"

_LABEL = re.compile(r"([0-9]{1,5})_")
_UNSAFE = re.compile(r"[^\w.-]")
_ID_BYTES = 120  # leaves space for a suffix within the 255 bytes of a file name
_BLACK = (0, 0, 0)
#: Names of a folder among which one is looked for that resembles a mistyped one.
_NAMES = 1000

#: Receives the file, folder or argument that cannot be used, and why.
OnError = Callable[[str, ImageError], None]


@dataclass(frozen=True)
class ImageRef:
    """An image that is not yet opened.

    Attributes:
        id: The file's stem, made safe as a file name and, if several files share it, unique by a part of their content
            hash.
        source: The argument that opens this image again.
        label: Class index; None if the file name has none.
        origin: The file, on a disk or in an object store, or the position in the test split of the digits.
    """

    id: str
    source: str
    label: int | None
    origin: Path | RemoteFile | int

    def open(self, channels: Literal[1, 3] = 3, exif: Exif = "transpose") -> Sample:
        """Decode the image.

        Args:
            channels: 3 for mode RGB, 1 for mode L.
            exif: As in :func:`open_image`.

        Returns:
            The image with its id, label and source.

        Raises:
            ImageError: As :func:`open_image` does.
        """
        if not isinstance(self.origin, int):
            return Sample(self.id, open_image(self.origin, channels=channels, exif=exif), self.label, self.source)
        digits = load_digits()
        scan = digit_image(digits.images[digits.test[self.origin]])
        return Sample(self.id, to_channels(scan, channels, _BLACK), self.label, self.source)


def find_inputs(arguments: Sequence[str | os.PathLike[str]], *, on_error: OnError | None = None) -> Iterator[ImageRef]:
    """List the images that texts name; none is decoded.

    The label of a file is a number of up to five digits at the start of its name, before an underscore: 284 for
    ``0284_Siamese_cat.jpg``.

    Args:
        arguments: One or several of files, folders and ``embedded:digits[:INDEX|:START:STOP]``; files and folders of an
            object store as ``s3://bucket/folder``, ``gs://...`` or ``abfs://...``. Folders are searched recursively, in
            order of name, following symbolic links and skipping hidden files. One warning counts the other files
            that are left out of a folder, by suffix.
        on_error: Called with each missing argument and each folder that cannot be listed; all other images are
            returned.

    Returns:
        The images in the order of the arguments, without duplicates: a file stands for the links that lead to it.

    Raises:
        ImageError: If there are no arguments; and if ``on_error`` is None, for the first error.
    """
    report = on_error or _raise
    if isinstance(arguments, (str, os.PathLike)):
        arguments = [arguments]
    if not arguments:
        raise ImageError("no images were named", hint="give files, folders, embedded:photos or embedded:digits")
    refs: dict[str | int, ImageRef] = {}
    for argument in [os.fspath(one) for one in arguments]:
        try:
            for ref in _expand(argument, report):
                known = refs.setdefault(_identity(ref), ref)
                if _is_link(known) and not _is_link(ref):
                    refs[_identity(ref)] = ref
        except ImageError as error:
            report(argument, error)
    return iter(_with_unique_ids(list(refs.values())))


def _raise(source: str, error: ImageError) -> None:
    raise error


def _expand(argument: str, report: OnError) -> Iterator[ImageRef]:
    if not argument:  # such as an unset shell variable; as a path it would be the current folder
        raise ImageError("an empty name leads to no image", hint="name the current folder as .")
    if argument == SOURCE or argument.startswith(SOURCE + ":"):
        yield from _digit_refs(argument)
        return
    if argument == PHOTOS or argument.startswith(PHOTOS + ":"):
        yield from _photo_refs(argument)
        return
    url = url_of(argument)
    if url is not None:
        yield from map(_file_ref, _remote_images(url))
        return
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]+)://", argument)
    if scheme is not None and scheme[1] in SCHEMES:
        raise ImageError(f"{argument!r} is a URL that names no bucket")
    if scheme is not None:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        raise ImageError(f"{argument!r}: {scheme[1]}:// is not supported; name a file, a folder, or a URL of {known}")
    path = Path(argument)
    try:
        folder = stat.S_ISDIR(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:
        if os.path.islink(path):
            raise ImageError(f"{argument!r} is a symbolic link that leads to nothing") from error
        parent, beside = path.absolute().parent, list[str]()
        with contextlib.suppress(OSError):
            beside = [one.name for one in itertools.islice(parent.iterdir(), _NAMES)]
        near = did_you_mean(argument, [SOURCE, PHOTOS], cutoff=0.8) or did_you_mean(path.name, beside, cutoff=0.8)
        absent = f"no file or folder {path.name!r} in {parent}" if os.path.isdir(parent) else f"no folder {parent}"
        hint = near or f"name a file, a folder, {PHOTOS} or {SOURCE}"
        raise ImageError(f"{argument!r} was not found: there is {absent}", hint=hint) from error
    except OSError as error:  # a loop of links, a parent folder without permission, a failing disk
        raise ImageError(f"{argument!r} cannot be reached ({error.strerror})") from error
    yield from map(_file_ref, _images_below(path, report) if folder else [path])


def _digit_refs(argument: str) -> Iterator[ImageRef]:
    digits = load_digits()
    size = len(digits.test)
    numbers = argument.removeprefix(SOURCE).split(":")[1:]
    if len(numbers) > 2 or not all(n.isascii() and n.isdigit() for n in numbers):
        raise ImageError(f"{argument!r} is not of the form {SOURCE}, {SOURCE}:INDEX or {SOURCE}:START:STOP")
    bounds = [int(n) for n in numbers]
    start, stop = (0, size) if not bounds else (bounds[0], bounds[-1] + (len(bounds) == 1))
    if not start < stop <= size:
        raise ImageError(f"{argument!r} selects nothing of the {size} test images 0 to {size - 1}")
    for i in range(start, stop):
        yield ImageRef(f"digits-{i:04d}", f"{SOURCE}:{i}", int(digits.labels[digits.test[i]]), i)


def _photo_refs(argument: str) -> Iterator[ImageRef]:
    chosen = argument.removeprefix(PHOTOS).removeprefix(":")
    if chosen not in ("", *_PHOTO_NAMES):
        near = did_you_mean(chosen, _PHOTO_NAMES)
        raise ImageError(f"{argument!r} is none of {PHOTOS}:{f', {PHOTOS}:'.join(_PHOTO_NAMES)}", hint=near)
    for name in _PHOTO_NAMES:
        if chosen in ("", name):
            file = Path(str(resources.files("fringe.data").joinpath(f"{name}.jpg")))
            yield ImageRef(name, f"{PHOTOS}:{name}", None, file)


def _remote_images(url: str) -> list[RemoteFile]:
    """The images below a URL, or the single image at it."""
    try:
        files = list_remote(url)
    except InputError as error:  # the package is missing
        raise ImageError(error.message, hint=error.hint) from error
    except FileNotFoundError as error:
        raise ImageError(f"{url!r} is neither a file nor a folder of the object store") from error
    except OSError as error:
        raise ImageError(f"{url!r} cannot be listed ({error.strerror})") from error
    if not files:
        raise ImageError(f"{url!r} is neither a file nor a folder of the object store")
    images = [file for file in files if file.url == url or _has_suffix(file.name)]
    _mention_others(url, images, [file.name for file in files if file not in images])
    return images


def _images_below(folder: Path, report: OnError) -> list[Path]:
    unlisted: list[str] = []

    def unreadable(error: OSError) -> None:
        name = str(error.filename or folder)
        unlisted.append(name)
        report(name, ImageError(f"folder {name!r} cannot be listed ({error.strerror})"))

    images, left_out = list[Path](), list[str]()
    for path in _files_below(folder, unreadable):
        if _is_image(path):
            images.append(path)
        else:
            left_out.append(path.name)
    if not unlisted or images:
        _mention_others(str(folder), images, left_out)
    return sorted(images, key=lambda path: path.relative_to(folder).as_posix())


def _files_below(folder: Path, unreadable: Callable[[OSError], None]) -> Iterator[Path]:
    """Yield the visible files of a folder and of those below it, each folder once: links to folders come last, so that
    a folder is entered by its own name."""
    entered: set[str] = set()
    waiting = [str(folder)]
    for start in waiting:
        for parent, folders, names in os.walk(start, onerror=unreadable):
            real = os.path.realpath(parent)
            if real in entered:
                folders.clear()
                continue
            entered.add(real)
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            waiting += filter(os.path.islink, (os.path.join(parent, name) for name in folders))
            yield from (Path(parent, name) for name in names if not name.startswith(".") and name not in VIEWED)


def _has_suffix(name: str) -> bool:
    return Path(name.rstrip()).suffix.lower() in SUFFIXES


def _is_image(path: Path) -> bool:
    """Whether a file of a folder is taken for an image: by its suffix, or without one by how it begins."""
    if path.suffix.strip(" ."):
        return _has_suffix(path.name)
    with contextlib.suppress(OSError), open_regular(path, IMAGE_BYTES) as file:
        return _BEGINNINGS.match(file.read(16)) is not None
    return False


def _mention_others(folder: str, images: Sequence[object], left_out: Sequence[str]) -> None:
    """Warn in a line that files of a folder are left out; raise ImageError where there is no image beside them."""
    kinds = Counter(Path(name.rstrip()).suffix.lower() or "without a suffix" for name in left_out)
    counts = [f"{count} {kind}" for kind, count in sorted(kinds.items(), key=lambda item: (-item[1], item[0]))[:6]]
    others = f"{counted(len(left_out), 'file')} left out: {', '.join(counts)}{', ...' if len(kinds) > 6 else ''}"
    if not images:
        more = f"; {others}" if left_out else ""
        raise ImageError(f"folder {folder!r} holds no images ({', '.join(SUFFIXES)}){more}")
    if left_out:
        hint = f"images are files with the suffixes {', '.join(SUFFIXES)}; convert other formats"
        warn_caller(f"folder {folder!r}: {others}; {hint}")


def _file_ref(path: Path | RemoteFile) -> ImageRef:
    label, source = _LABEL.match(path.name), path.url if isinstance(path, RemoteFile) else str(path)
    safe = (_UNSAFE.sub("_", path.stem).strip(".") or "image").encode()[:_ID_BYTES].decode(errors="ignore")
    return ImageRef(safe, source, int(label[1]) if label else None, path)


def _identity(ref: ImageRef) -> str | int:
    # Path.resolve would raise on a link to itself, which must not stop the other files
    if isinstance(ref.origin, RemoteFile):
        return ref.origin.url
    return os.path.realpath(ref.origin) if isinstance(ref.origin, Path) else ref.origin


def _is_link(ref: ImageRef) -> bool:
    return isinstance(ref.origin, Path) and ref.origin.is_symlink()


def _with_unique_ids(refs: list[ImageRef]) -> list[ImageRef]:
    # Compared without case, because an id may become a file name on a system that ignores it. Every member of
    # a group gets its hash, so that its id does not depend on what else was named before it.
    shared = Counter(ref.id.casefold() for ref in refs)
    named = [replace(r, id=f"{r.id}-{_content(r)}") if shared[r.id.casefold()] > 1 else r for r in refs]
    seen: Counter[str] = Counter()
    unique: list[ImageRef] = []
    for ref in named:
        key = ref.id.casefold()
        seen[key] += 1
        # copies of one picture with one name: only their order distinguishes them
        unique.append(ref if seen[key] == 1 else replace(ref, id=f"{ref.id}-{seen[key]}"))
    return unique


def _content(ref: ImageRef) -> str:
    """Eight hexadecimal digits of the SHA-256 of the file; of its name if it is a scan or cannot be read (opening
    it will raise the error)."""
    if not isinstance(ref.origin, int):
        with contextlib.suppress(OSError):
            return file_sha256(ref.origin)[:8]
    return hashlib.sha256(os.fsencode(ref.source)).hexdigest()[:8]


def file_sha256(origin: Path | RemoteFile) -> str:
    """Return the SHA-256, in hexadecimal, of an image's file. Raises OSError."""
    return hashlib.sha256(origin.read()).hexdigest() if isinstance(origin, RemoteFile) else sha256_of(origin)
