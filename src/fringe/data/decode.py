"""Opening image files that nobody vouches for."""

import os
import warnings
from pathlib import Path
from typing import BinaryIO, Literal

from PIL import Image, ImageOps, UnidentifiedImageError

from fringe._files import IMAGE_BYTES, open_regular
from fringe.data.errors import ImageError
from fringe.data.modes import to_channels

#: Decoders that are tried; the content decides, not the file's suffix.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF")

MAX_PIXELS = 50_000_000

Exif = Literal["transpose", "ignore"]


def open_image(
    path: str | os.PathLike[str],
    *,
    max_pixels: int = MAX_PIXELS,
    exif: Exif = "transpose",
    background: tuple[int, int, int] = (255, 255, 255),
    channels: Literal[1, 3] = 3,
) -> Image.Image:
    """Decode the first frame of an image file to mode RGB (``channels=3``) or L (``channels=1``).

    ``exif="transpose"`` turns the picture the way its camera was held; ``"ignore"`` keeps the stored pixels,
    as torchvision's datasets do. Transparent parts show ``background``. 16-bit grey values are divided by 257,
    float ones in [0, 1] multiplied by 255. Colour profiles are not applied. The pixel cap is compared with the
    header, before anything is decoded; Pillow's own cap stays in force above it. A pipe, a device and a file of more
    than ``IMAGE_BYTES`` (512 MiB) are refused before the first byte is read.

    Raises ``ImageError`` with the file and the reason; nothing is decoded in part.
    """
    if channels not in (1, 3):
        raise ImageError(f"channels={channels} must be 1 or 3")
    if exif not in ("transpose", "ignore"):
        raise ImageError(f"exif={exif!r} must be 'transpose' or 'ignore'")
    place = Path(path)
    _check_file(place)
    try:
        with open_regular(place, IMAGE_BYTES) as file:
            return _decode(file, max_pixels, exif, background, channels)
    except ImageError as error:
        raise ImageError(f"{str(place)!r}: {error}") from error
    except PermissionError as error:
        raise ImageError(f"{str(place)!r}: no permission to read it") from error
    except UnidentifiedImageError as error:
        raise ImageError(f"{str(place)!r}: not an image of the formats {', '.join(FORMATS)}") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ImageError(f"{str(place)!r}: too many pixels ({error})") from error
    except Exception as error:  # decoders raise nearly anything on damaged bytes; none of it is an image
        raise ImageError(f"{str(place)!r}: cannot be decoded ({type(error).__name__}: {error})") from error


def _check_file(place: Path) -> None:
    try:
        if place.is_dir():
            raise ImageError(f"{str(place)!r}: is a folder, not an image")
        if not place.exists():
            if place.is_symlink():
                raise ImageError(f"{str(place)!r}: is a symbolic link that leads to nothing or to itself")
            raise ImageError(f"{str(place)!r}: does not exist")
        if not place.is_file():  # reading a pipe or a device may never end
            raise ImageError(f"{str(place)!r}: is not a regular file")
        size = place.stat().st_size
        if size == 0:
            raise ImageError(f"{str(place)!r}: is empty")
        if size > IMAGE_BYTES:
            raise ImageError(f"{str(place)!r}: has {size} bytes; at most {IMAGE_BYTES} are read")
    except OSError as error:
        raise ImageError(f"{str(place)!r}: cannot be reached ({error.strerror})") from error
    except ValueError as error:
        if isinstance(error, ImageError):
            raise
        raise ImageError(f"{str(place)!r}: is no file name ({error})") from error


def _decode(
    file: BinaryIO, max_pixels: int, exif: Exif, background: tuple[int, int, int], channels: Literal[1, 3]
) -> Image.Image:
    with warnings.catch_warnings():
        # Pillow only warns between one and two times its own limit.
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(file, formats=FORMATS) as image:
            _check_size(image.size, max_pixels)
            _check_tiles(image, max_pixels)
            image.load()
            _check_size(image.size, max_pixels)  # some formats learn their size while decoding
            upright = ImageOps.exif_transpose(image) if exif == "transpose" else image
            return to_channels(upright, channels, background)


def _check_tiles(image: Image.Image, max_pixels: int) -> None:
    """A TIFF image of a few pixels may be stored in a tile of a billion, which is decoded as one."""
    tags = getattr(image, "tag_v2", {})
    width, height = (int(tags.get(number, 1)) for number in (322, 323))
    if width * height > max_pixels:
        raise ImageError(f"tiles of {width}x{height} are more than {max_pixels} pixels; save it without tiles")


def _check_size(size: tuple[int, int], max_pixels: int) -> None:
    width, height = size
    if width < 1 or height < 1:
        raise ImageError(f"has no pixels ({width}x{height})")
    if width * height > max_pixels:
        raise ImageError(f"{width}x{height} is more than {max_pixels} pixels; shrink it or raise max_pixels")
