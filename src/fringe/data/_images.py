"""Safe decoding of image files from unknown sources, to mode RGB or L; and the embedded handwritten digits.

The digits are 1797 scans of 8x8 pixels with their labels. The scans are the test part of "Optical Recognition of
Handwritten Digits" by E. Alpaydin and C. Kaynak, UCI Machine Learning Repository (1998), doi:10.24432/C50P49, licensed
CC BY 4.0; scikit-learn distributes the same copy. The values 0..16 are unchanged; the split into 1437 training and 360
test scans, balanced over the classes, is ours.
"""

import errno
import os
import re
import struct
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeGuard, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, TiffImagePlugin, UnidentifiedImageError
from safetensors.numpy import load

from fringe._files.disk import IMAGE_BYTES, UnfitFile, open_regular
from fringe._files.urls import RemoteFile
from fringe.errors import ImageError, first_line, warn_caller

#: Accepted formats; the content decides, not the file's suffix. AVIF and JPEG 2000 are not among them: for a file of
#: 2 KB whose header says 16 x 16 pixels, or of 200 bytes, their decoders take more than 1 GiB.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "PPM")
#: Scans of a JPEG, as libtiff allows; a progressive one has about 10. Each passes over the whole image, and may be
#: stored in ten bytes.
MAX_SCANS = 100
#: A marker of JPEG: no escaped byte, no restart, and none that a decoder passes over.
_MARKER = re.compile(rb"\xff[\xc0-\xcf\xd9-\xfe]")
#: Parts of at most 255 bytes of a GIF up to its first frame. Pillow joins each comment to all before it.
MAX_PARTS = 2**13
#: Bytes of one value of a tag, by its type; and the tags that lead to other tags.
_VALUE_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8}
_MORE_TAGS = (34665, 34853, 40965)
#: Tags with the places of strips or tiles, each of which becomes an object of Python, and the number of them.
_STRIPS, MAX_STRIPS = (273, 324), 2**18
_TIFF = (b"II*\0", b"MM\0*", b"MM*\0", b"II\0*", b"MM\0+", b"II+\0")

MAX_PIXELS = 50_000_000

Exif = Literal["transpose", "ignore"]

#: Tags of TIFF: bits of each band, what extra bands are, the largest value, and whether values are floats.
_BITS, _EXTRA, _LARGEST, _KIND = 258, 338, 281, 339
#: Modes of 16-bit grey values, even if Pillow stores them in 32 bits.
_GREY_16 = ("I", "I;16", "I;16B", "I;16L", "I;16N")


@dataclass(frozen=True)
class Sample:
    """A decoded image with its name.

    Attributes:
        id: Unique within a run, and safe as a file name.
        image: The image, of mode RGB or L.
        label: Class index; None if unknown.
        source: The argument that opens this image again.
    """

    id: str
    image: Image.Image
    label: int | None
    source: str


def open_image(
    path: str | os.PathLike[str] | RemoteFile,
    *,
    max_pixels: int = MAX_PIXELS,
    exif: Exif = "transpose",
    background: tuple[int, int, int] = (255, 255, 255),
    channels: Literal[1, 3] = 3,
    check: Callable[[], object] = lambda: None,
) -> Image.Image:
    """Decode the first frame of an image file.

    16-bit grey values are divided by 257, or by what the file says is white; float values in [0, 1] multiplied by 255.
    Colour profiles are not applied.

    Args:
        path: The file, on a disk or in an object store; its content decides the format, not its suffix.
        max_pixels: Maximum number of pixels, compared with the header before decoding; Pillow's own limit also holds.
        exif: ``"transpose"`` applies the EXIF orientation; ``"ignore"`` does not, like torchvision's datasets.
        background: Colour (R, G, B) behind transparent parts.
        channels: 3 for mode RGB, 1 for mode L.
        check: Called each time that the decoder reads on; if it raises, decoding ends with an ImageError.

    Returns:
        The image.

    Raises:
        ImageError: If the file cannot be decoded completely. A pipe, a device and a file of more than 512 MiB are
            refused before the first byte is read.
    """
    if channels not in (1, 3):
        raise ImageError(f"channels={channels} must be 1 or 3")
    if exif not in ("transpose", "ignore"):
        raise ImageError(f"exif={exif!r} must be 'transpose' or 'ignore'")
    remote = isinstance(path, RemoteFile)
    name = repr(path.url if remote else os.fspath(path))
    try:
        with _open(path if remote else Path(path)) as file:
            return _decode(_Source(file, check), f"{name}: ", max_pixels, exif, background, channels)
    except ImageError as error:
        raise ImageError(f"{name}: {error.message}", hint=error.hint) from error
    except UnidentifiedImageError as error:
        raise ImageError(f"{name}: not an image of the formats {', '.join(FORMATS)}") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ImageError(f"{name}: too many pixels ({error})") from error
    except Exception as error:  # decoders may raise any exception on damaged bytes
        raise ImageError(f"{name}: cannot be decoded ({first_line(error)})") from error


def _open(path: Path | RemoteFile) -> BinaryIO:
    """Open a regular file that is neither empty nor too large; errors state the reason."""
    try:
        file = BytesIO(path.read()) if isinstance(path, RemoteFile) else open_regular(path, IMAGE_BYTES)
    except UnfitFile as error:  # without a cause, as for a missing file: a retry would not help
        is_folder = isinstance(path, Path) and path.is_dir()
        raise ImageError("is a folder, not an image" if is_folder else str(error.strerror)) from None
    except PermissionError as error:
        raise ImageError("no permission to read it") from error
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            link = "is a symbolic link that leads to nothing or to itself"
            is_link = isinstance(path, Path) and path.is_symlink()
            raise ImageError(link if is_link else "does not exist") from None
        raise ImageError(f"cannot be reached ({error.strerror})") from error
    except ValueError as error:
        raise ImageError(f"is no file name ({error})") from error
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if not size:
        file.close()
        raise ImageError("is empty")
    return file


class _Source:
    """A file that calls ``check`` before each read, and lets a GIF be read in so many parts of at most 255 bytes."""

    def __init__(self, file: BinaryIO, check: Callable[[], object]):
        self._file, self._check = file, check
        self._parts = MAX_PARTS if file.read(4) == b"GIF8" else float("inf")
        file.seek(0)

    def read(self, size: int = -1) -> bytes:
        self._check()
        self._parts -= 0 <= size < 256
        if self._parts < 0:
            raise ImageError("has too many comments or other small parts", hint="save it again without comments")
        return self._file.read(size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _decode(
    file: _Source, name: str, max_pixels: int, exif: Exif, background: tuple[int, int, int], channels: Literal[1, 3]
) -> Image.Image:
    _check_parts(file)
    with warnings.catch_warnings():
        # Pillow only warns between one and two times its own limit.
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            image = Image.open(cast(BinaryIO, file), formats=FORMATS)
        except UnidentifiedImageError as error:
            raise _unread(file, error) from error
        with image:
            _check_size(image.size, max_pixels)
            _check_tiff(image, max_pixels)
            if image.format == "PPM" and image.tile[0][0] != "raw":  # decoded by a loop over values in Python
                raise ImageError("holds text, or values up to another number than 255", hint="save it as PNG")
            _scale_transparent(image)
            upright = _load(image, name, exif)
            _check_size(upright.size, max_pixels)  # the size of some formats is known only after decoding
            return to_channels(upright, channels, background, name)


def _load(image: Image.Image, name: str, exif: Exif = "transpose") -> Image.Image:
    """Decode an image, turn it, and read its values as the file means them, which only the unread file says."""
    tags: Any = getattr(image, "tag_v2", {})
    deep = any(";16" in str(tile[3]) for tile in getattr(image, "tile", ())) and image.mode not in _GREY_16
    image.load()
    upright = image
    if exif == "transpose":
        profile: str = image.info.get("Raw profile type exif", "")  # in hexadecimal, after three lines
        _check_tags(image.info.get("exif") or bytes.fromhex("".join(profile.split("\n")[3:])))
        upright = ImageOps.exif_transpose(image)
    if tags.get(_BITS) == (12,):
        values = np.array(upright).astype(np.float64) * (65535 / 4095)
        return Image.fromarray(np.rint(values).astype(np.uint16))
    if deep:  # Pillow keeps the upper 8 bits of 16
        high = max(int(top) for _, top in np.atleast_2d(upright.convert("RGB").getextrema()))
        hint = "scale them to all of 0 to 65535 and save it again, or pass a tensor, which is taken as it is"
        if 0 < high < 16:  # such as 10 or 12 bits in a file of 16
            raise ImageError(f"no colour value of its 16 bits is above {high * 256 + 255} of 65535", hint=hint)
        if 0 < high < 64:
            warn_caller(f"{name}no colour value of its 16 bits is above {high * 256 + 255} of 65535; {hint}")
    if upright.mode == "RGBA" and tags and _EXTRA not in tags:
        warn_caller(f"{name}the file does not call its fourth band alpha; it is left out")
        return upright.convert("RGB")
    return upright


def _unread(file: _Source, error: Exception) -> Exception:
    """Why Pillow reads nothing in a file: for a TIFF, which bands it has; otherwise the error itself."""
    file.seek(0)
    head = file.read(16)
    if head[:4] not in _TIFF or len(head) < 16:
        return error
    tags: Any = TiffImagePlugin.ImageFileDirectory_v2(head if b"+" in head[:4] else head[:8])
    file.seek(tags.next)
    tags.load(file)
    if _BITS not in tags:
        return error
    kind = {2: "signed ", 3: "floating-point "}.get(tags.get(_KIND, (1,))[0], "")
    bits = "+".join(map(str, tags.get(_BITS, (1,))))
    return ImageError(
        f"its pixels of {tags.get(277, 1)} {kind}bands of {bits} bits are none that can be read",
        hint="choose three bands, scale them to 0 to 255 and save them as PNG, or pass a tensor (C, H, W)",
    )


def _scale_transparent(image: Image.Image) -> None:
    """Scale the transparent value of a PNG of another depth than 8 bits; Pillow scales only the pixels."""
    clear, tiles = image.info.get("transparency"), getattr(image, "tile", ())
    if clear is None or not tiles:
        return
    layout = tiles[0][3]
    if layout in ("L;2", "L;4"):
        image.info["transparency"] = clear * (85 if layout == "L;2" else 17)
    elif layout == "RGB;16B":
        image.info["transparency"] = tuple(value >> 8 for value in clear)


def _check_tiff(image: Image.Image, max_pixels: int) -> None:
    """Refuse a TIFF image with huge tiles: a few pixels may be stored in a tile of a billion, decoded as a whole.

    Also refuse 16-bit channels that are stored one after the other without compression: Pillow reads noise.
    """
    tags = getattr(image, "tag_v2", {})
    bits = tags.get(258)
    if tags.get(284) == 2 and tags.get(259, 1) == 1 and isinstance(bits, tuple) and len(bits) > 1 and max(bits) > 8:
        hint = "save each channel in a file of its own; for a stack of pages, tifffile needs photometric='minisblack'"
        raise ImageError("has 16-bit channels one after the other, which cannot be read", hint=hint)
    width, height = (int(tags.get(number, 1)) for number in (322, 323))
    if width * height > max_pixels:
        raise ImageError(f"tiles of {width}x{height} are more than {max_pixels} pixels", hint="save it without tiles")


def _check_parts(file: _Source) -> None:
    """Refuse, before Pillow opens it, a file whose parts make it copy far more bytes than the file has."""
    head = file.read(4)
    file.seek(0)
    if head in _TIFF:
        _check_tags(file.read())
    elif head.startswith(b"\xff\xd8"):
        _check_jpeg(file.read())
    file.seek(0)


def _check_jpeg(data: bytes) -> None:
    """Refuse a JPEG of too many scans, counted up to the end of the image, and hostile tags in it."""
    scans, at, exif = 0, 0, list[bytes]()
    while (marker := _MARKER.search(data, at)) is not None and marker[0] != b"\xff\xd9":
        scans += marker[0] == b"\xff\xda"
        start = at = marker.end()
        if not (marker[0] == b"\xff\xc8" or b"\xff\xf0" <= marker[0] <= b"\xff\xfd"):  # without a length, for Pillow
            at += int.from_bytes(data[start : start + 2], "big")
        segment = data[start + 2 : at]
        if marker[0] == b"\xff\xe1" and segment.startswith(b"Exif\0\0") and not scans:
            exif.append(segment[6:])
        elif marker[0] == b"\xff\xe2" and segment.startswith(b"MPF\0"):
            _check_tags(segment[4:])
    for count, what in ((scans, "scans"), (len(exif), "parts of EXIF")):
        if count > MAX_SCANS:
            raise ImageError(f"has {count} {what}, more than {MAX_SCANS}", hint="save it again, as a JPEG or PNG")
    _check_tags(b"".join(exif))


def _check_tags(data: bytes) -> None:
    """Refuse tags of TIFF or EXIF that lead to the same bytes again and again: Pillow copies them for each tag."""
    while data.startswith(b"Exif\0\0"):
        data = data[6:]
    if data[:4] not in _TIFF:
        return
    order, big = "<>"[data.startswith(b"MM")], b"+" in data[2:4]
    word, count, room = ("Q", f"{order}Q", 8) if big else ("L", f"{order}H", 4)
    entry, number = struct.Struct(f"{order}HH{word}{room}s"), "big" if order == ">" else "little"
    todo, seen, claimed = [data[room : 2 * room]], set[int](), 0
    while todo:
        at = int.from_bytes(todo.pop(), number)
        start = at + struct.calcsize(count)
        if at in seen or start > len(data):
            continue
        seen.add(at)
        (tags,) = struct.unpack_from(count, data, at)
        end = start + min(tags, (len(data) - start) // entry.size) * entry.size
        for tag, kind, values, field in entry.iter_unpack(data[start:end]):
            size = values * _VALUE_BYTES.get(kind, 0)
            if size > room:
                claimed += max(0, min(size, len(data) - int.from_bytes(field, number)))
            if tag in _MORE_TAGS:
                todo.append(field[:2] if kind == 3 else field)
            if claimed > len(data) + 2**16 or (tag in _STRIPS and values > MAX_STRIPS):
                hint = "save it again without its metadata"
                raise ImageError(f"has tags that claim more than its {len(data)} bytes, or too many strips", hint=hint)


def _check_size(size: tuple[int, int], max_pixels: int) -> None:
    width, height = size
    if width < 1 or height < 1:
        raise ImageError(f"has no pixels ({width}x{height})")
    if width * height > max_pixels:
        raise ImageError(f"{width}x{height} is more than {max_pixels} pixels", hint="shrink it or raise max_pixels")


def to_channels(
    image: Image.Image, channels: Literal[1, 3], background: tuple[int, int, int], name: str = ""
) -> Image.Image:
    """Convert an image of any mode to RGB or L; transparent parts show ``background``. A warning begins with ``name``.

    Pillow's own conversion clips 16-bit and float values at 255 and shows the colour of fully transparent pixels, so
    this function converts both itself. Values without a known scale are refused.
    """
    if image.mode in _GREY_16:
        values = np.array(image).astype(np.float64)
        clear = np.uint8(255) * (values != image.info.get("transparency", -1))
        image = _from_values(values, 65535, image.mode, name)
        if not clear.all():
            image.putalpha(Image.fromarray(clear))
            image = _over(image, background)
    elif image.mode == "F":
        image = _from_values(np.array(image).astype(np.float64), 1.0, image.mode, name)
    elif image.has_transparency_data or image.mode in ("La", "RGBa"):
        image = _over(image, background)
    # Pillow cannot convert every mode directly to L
    in_colour = image if image.mode in ("L", "1", "RGB") else image.convert("RGB")
    return in_colour.convert("RGB" if channels == 3 else "L")


def _from_values(
    values: np.ndarray[tuple[int, ...], np.dtype[np.float64]], white: float, mode: str, name: str
) -> Image.Image:
    low, high = float(values.min()), float(values.max())
    if not (low >= 0 and high <= white):  # also false for NaN
        raise ImageError(f"mode {mode} has values from {low:g} to {high:g}; expected 0 to {white:g}")
    result = np.rint(values * (255 / white)).astype(np.uint8)
    if 0 < high < white / 4:  # such as 12 bits in a file of 16
        levels = f"values up to {high:g} of {white:g} become {np.unique(result).size} grey levels"
        hint = "scale them, or pass a tensor, which is taken as it is"
        warn_caller(f"{name}mode {mode}: {levels}; {hint}")
    return Image.fromarray(result)


def _over(image: Image.Image, background: tuple[int, int, int]) -> Image.Image:
    if image.mode in ("La", "RGBa"):  # colours already multiplied by alpha
        image = image.convert("LA" if image.mode == "La" else "RGBA")
    ground = Image.new("RGBA", image.size, (*background, 255))
    return Image.alpha_composite(ground, image.convert("RGBA")).convert("RGB")


# -- pictures in memory -----------------------------------------------------------------------------------------------


_WHITE = (255, 255, 255)
#: PIL mode of an array (H, W, C) by its number of channels.
_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}


def is_picture(value: object) -> "TypeGuard[Image.Image | NDArray[Any]]":
    """Tell whether a value is a PIL image or a NumPy array."""
    return isinstance(value, (Image.Image, np.ndarray))


def to_images(picture: "Image.Image | NDArray[Any]", *, channels: Literal[1, 3] = 3) -> list[Image.Image]:
    """Convert pictures in memory, with the EXIF orientation of a PIL image applied.

    Args:
        picture: An image of any mode; or an array (H, W), (H, W, C) or (B, H, W, C) with C from 1 to 4, of uint8,
            uint16 (grey) or floats in [0, 1], which are rounded to 8 bits.
        channels: 3 for mode RGB, 1 for mode L.

    Returns:
        The images; one, unless an array has four axes.

    Raises:
        ImageError: If an array has another shape or dtype, or values outside the range.
    """
    if isinstance(picture, np.ndarray):
        batch = picture if picture.ndim == 4 else picture[None]
        return [to_channels(_from_array(array), channels, _WHITE) for array in batch]
    return [to_channels(_load(picture, ""), channels, _WHITE)]


def _from_array(array: NDArray[Any]) -> Image.Image:
    plane = array[..., None] if array.ndim == 2 else array
    if plane.ndim != 3 or plane.shape[-1] not in _MODES or plane.size == 0:
        channels_first = array.ndim == 3 and array.shape[0] in _MODES
        hint = "move the channels last with array.transpose(1, 2, 0)" if channels_first else None
        raise ImageError(
            f"got an array of shape {array.shape}, expected (H, W) or (H, W, C) with C from 1 to 4", hint=hint
        )
    if np.issubdtype(plane.dtype, np.floating):
        low, high = float(plane.min()), float(plane.max())
        if not (low >= 0 and high <= 1):  # also false for NaN
            raise ImageError(
                f"got floats from {low:g} to {high:g}, expected pixels from 0 to 1",
                hint="divide pixels of 0 to 255 by 255, and pass an input that is normalised already as a torch tensor",
            )
        plane = np.rint(plane.astype(np.float64) * 255).astype(np.uint8)
    elif plane.dtype != np.uint8 and not (plane.dtype == np.uint16 and plane.shape[-1] == 1):
        raise ImageError(f"got an array of {plane.dtype}, expected uint8 or floats in [0, 1]")
    mode = _MODES[plane.shape[-1]]
    return Image.fromarray(np.ascontiguousarray(plane[..., 0] if mode == "L" else plane))


FILE = "digits.safetensors"
SOURCE = "embedded:digits"
#: Darkest value of a scan.
INK = 16

Split = Literal["train", "test"]


@dataclass(frozen=True)
class Digits:
    """The scans of digits, with labels and splits.

    Attributes:
        images: Scans (1797, 8, 8), from 0 (paper) to 16 (ink).
        labels: Digits (1797,), from 0 to 9.
        train: Indices of the training scans (1437,).
        test: Indices of the test scans (360,).
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.uint8]
    train: NDArray[np.uint16]
    test: NDArray[np.uint16]


def load_digits() -> Digits:
    """Read the embedded scans with their labels and splits."""
    arrays: dict[str, NDArray[Any]] = load(resources.files("fringe.data").joinpath(FILE).read_bytes())
    return Digits(**{name: arrays[name] for name in ("images", "labels", "train", "test")})


def digit_image(scan: NDArray[np.uint8]) -> Image.Image:
    """Turn a scan ``(8, 8)`` into an 8x8 image of mode L, with 0..16 spread over 0..255.

    The preprocessing of the embedded classifier enlarges it to 32x32 pixels.
    """
    return Image.fromarray(np.rint(scan.astype(np.float64) * (255 / INK)).astype(np.uint8))


def digits_samples(split: Split = "test") -> tuple[Sample, ...]:
    """Return every scan of one split in its stored order.

    Args:
        split: ``"test"`` (360 scans) or ``"train"`` (1437 scans).

    Returns:
        8x8 images of mode L. The eighth has the id ``digits-0007`` in the test split and ``digits-train-0007`` in the
        training split.
    """
    digits = load_digits()
    chosen = digits.test if split == "test" else digits.train
    prefix = "digits" if split == "test" else "digits-train"
    return tuple(
        Sample(f"{prefix}-{i:04d}", digit_image(digits.images[k]), int(digits.labels[k]), f"{SOURCE}:{i}")
        for i, k in enumerate(chosen)
    )
