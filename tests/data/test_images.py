"""Opening images: every mode with the right numbers, every fault with its reason, nothing decoded in part."""

import io
import os
import re
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile, PngImagePlugin, TiffImagePlugin, features

from fringe.data import ImageError, open_image
from fringe.data._images import _check_tags, to_images

RAMP = np.arange(256, dtype=np.uint8).reshape(16, 16)


def saved(path, image, **options):
    image.save(path, **options)
    return path


def message(path, **options):
    with pytest.raises(ImageError) as caught:
        open_image(path, **options)
    return str(caught.value)


def png(width, height, *chunks, depth=8, colours=0):
    """A PNG with a true header and whatever chunks follow; ``colours`` is 0 for grey and 2 for RGB."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colours, 0, 0, 0))
    body = b"".join(chunk(kind, data) for kind, data in chunks)
    return b"\x89PNG\r\n\x1a\n" + head + body + chunk(b"IEND", b"")


@pytest.mark.parametrize("suffix", ["png", "bmp", "tiff", "gif", "webp", "pgm"])
def test_grey_survives_every_lossless_format(tmp_path, suffix):
    options = {"lossless": True} if suffix == "webp" else {}
    path = saved(tmp_path / f"a.{suffix}", Image.fromarray(RAMP), **options)
    assert np.array_equal(np.asarray(open_image(path, channels=1)), RAMP)
    colour = open_image(path)
    assert colour.mode == "RGB"
    assert np.array_equal(np.asarray(colour), np.repeat(RAMP[..., None], 3, -1))


def test_jpeg_stays_close(tmp_path):
    path = saved(tmp_path / "a.jpg", Image.new("RGB", (16, 16), (200, 30, 90)), quality=95)
    assert np.abs(np.asarray(open_image(path)).astype(int) - (200, 30, 90)).max() <= 3


@pytest.mark.parametrize("alpha", [0, 1, 64, 128, 254, 255])
@pytest.mark.parametrize("background", [(255, 255, 255), (0, 0, 0), (10, 200, 90)])
def test_alpha_is_laid_over_the_background(tmp_path, alpha, background):
    path = saved(tmp_path / "a.png", Image.new("RGBA", (2, 2), (250, 0, 120, alpha)))
    expected = np.array([250, 0, 120]) * alpha / 255 + np.array(background) * (1 - alpha / 255)
    got = np.asarray(open_image(path, background=background)).astype(float)
    assert np.abs(got - expected).max() <= 1


def test_every_kind_of_transparency_hides_its_colour(tmp_path):
    grey_alpha = saved(tmp_path / "la.png", Image.new("LA", (2, 2), (7, 0)))
    palette = Image.new("P", (2, 2), 1)
    palette.putpalette([0, 0, 0, 255, 0, 0])
    keyed_palette = saved(tmp_path / "p.png", palette, transparency=1)
    keyed_colour = saved(tmp_path / "rgb.png", Image.new("RGB", (2, 2), (9, 8, 7)), transparency=(9, 8, 7))
    keyed_grey = saved(tmp_path / "l.png", Image.new("L", (2, 2), 9), transparency=9)
    for path in (grey_alpha, keyed_palette, keyed_colour, keyed_grey):
        assert open_image(path, background=(1, 2, 3)).getpixel((0, 0)) == (1, 2, 3), path.name


@pytest.mark.parametrize(
    ("depth", "colours", "clear", "row", "expected"),
    [
        (16, 0, (0x1234,), (0x1234, 0x1235), [(1, 2, 3), (18, 18, 18)]),
        (16, 0, (0x8000,), (0x1234, 0x1235), [(18, 18, 18), (18, 18, 18)]),
        (16, 2, (0x1234, 0, 0), (0x1234, 0, 0, 0x8000, 0, 0), [(1, 2, 3), (128, 0, 0)]),
        (16, 2, (0x1200, 0, 0), (0, 0, 0, 0x8000, 0, 0), [(0, 0, 0), (128, 0, 0)]),  # its low byte is that of black
        (4, 0, (3,), 0x3C, [(1, 2, 3), (204, 204, 204)]),
        (2, 0, (1,), 0b01110000, [(1, 2, 3), (255, 255, 255)]),
    ],
)
def test_a_transparent_value_is_one_of_the_depth_of_the_file(tmp_path, depth, colours, clear, row, expected):
    line = struct.pack(f">{len(row)}H", *row) if depth == 16 else bytes([row])
    parts = (b"tRNS", struct.pack(f">{len(clear)}H", *clear)), (b"IDAT", zlib.compress(b"\0" + line))
    path = tmp_path / "keyed.png"
    path.write_bytes(png(2, 1, *parts, depth=depth, colours=colours))
    image = open_image(path, background=(1, 2, 3))
    assert [image.getpixel((x, 0)) for x in (0, 1)] == expected


def test_palette_one_bit_and_cmyk(tmp_path):
    palette = Image.new("P", (2, 1))
    palette.putpalette([10, 20, 30, 40, 50, 60])
    palette.putpixel((1, 0), 1)
    assert list(open_image(saved(tmp_path / "p.png", palette)).get_flattened_data()) == [(10, 20, 30), (40, 50, 60)]
    bits = Image.new("1", (2, 1))
    bits.putpixel((1, 0), 1)
    assert list(open_image(saved(tmp_path / "b.png", bits), channels=1).get_flattened_data()) == [0, 255]
    cmyk = saved(tmp_path / "c.tiff", Image.new("CMYK", (1, 1), (255, 0, 0, 0)))
    assert open_image(cmyk).getpixel((0, 0)) == (0, 255, 255)
    assert open_image(cmyk, channels=1).mode == "L"


@pytest.mark.parametrize("suffix", ["png", "tiff"])
def test_sixteen_bits_are_scaled_and_not_clipped(tmp_path, suffix):
    values = np.linspace(0, 65535, 256).round().astype(np.uint16).reshape(16, 16)
    path = saved(tmp_path / f"a.{suffix}", Image.fromarray(values))
    got = np.asarray(open_image(path, channels=1))
    assert np.array_equal(got, np.rint(values / 257).astype(np.uint8))
    assert np.array_equal(np.asarray(open_image(path))[..., 2], got)


@pytest.mark.parametrize(("high", "levels"), [(4095, 17), (1265, 6)])
def test_a_narrow_range_in_sixteen_bits_is_told(tmp_path, high, levels):
    """A scanner's 12 bits keep 17 grey levels of 4,096."""
    values = np.arange(4096, dtype=np.uint16).clip(max=high).reshape(64, 64)
    path = saved(tmp_path / "a.png", Image.fromarray(values))
    text = f"mode I;16: values up to {high} of 65535 become {levels} grey levels; scale them, or pass a tensor"
    named = re.escape(repr(str(path)))
    from_file, given = (lambda: open_image(path, channels=1)), (lambda: to_images(values, channels=1)[0])
    for read, start in ((from_file, f"{named}: "), (given, "")):
        with pytest.warns(UserWarning, match=f"^{start}{text}"):
            assert np.unique(np.asarray(read())).size == levels


def test_thirty_two_bit_integers_hold_sixteen_bit_values_or_are_refused(tmp_path):
    good = saved(tmp_path / "a.tiff", Image.fromarray(np.array([[0, 257, 65535]], dtype=np.int32)))
    assert np.asarray(open_image(good, channels=1)).tolist() == [[0, 1, 255]]
    bad = saved(tmp_path / "b.tiff", Image.fromarray(np.array([[-1, 70000]], dtype=np.int32)))
    assert message(bad).endswith("mode I has values from -1 to 70000; expected 0 to 65535")


def test_float_images_are_scaled_or_refused(tmp_path):
    values = np.array([[0.0, 0.5, 1.0]], dtype=np.float32)
    good = saved(tmp_path / "a.tiff", Image.fromarray(values))
    assert np.asarray(open_image(good, channels=1)).tolist() == [[0, 128, 255]]
    bad = saved(tmp_path / "b.tiff", Image.fromarray(values * 255))
    assert message(bad).endswith("mode F has values from 0 to 255; expected 0 to 1")
    nan = saved(tmp_path / "c.tiff", Image.fromarray(values * np.nan))
    assert "mode F has values from nan to nan" in message(nan)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_followed_or_ignored(tmp_path, orientation):
    image = Image.fromarray(np.arange(6, dtype=np.uint8).reshape(2, 3) * 40)
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = saved(tmp_path / "a.png", image, exif=exif)
    stored = np.asarray(image)
    upright = {
        1: stored,
        2: stored[:, ::-1],
        3: stored[::-1, ::-1],
        4: stored[::-1],
        5: stored.T,
        6: np.rot90(stored, -1),
        7: stored[::-1, ::-1].T,
        8: np.rot90(stored),
    }[orientation]
    assert np.array_equal(np.asarray(open_image(path, channels=1)), upright)
    assert np.array_equal(np.asarray(open_image(path, channels=1, exif="ignore")), stored)


@pytest.mark.parametrize("suffix", ["gif", "tiff", "png", "webp"])
def test_only_the_first_frame_counts(tmp_path, suffix):
    frames = [Image.new("RGB", (4, 4), colour) for colour in ((255, 0, 0), (0, 255, 0), (0, 0, 255))]
    options = {"lossless": True} if suffix == "webp" else {}
    path = saved(tmp_path / f"a.{suffix}", frames[0], save_all=True, append_images=frames[1:], **options)
    assert open_image(path).getpixel((1, 1)) == (255, 0, 0)


def test_the_pixel_cap_is_read_from_the_header(tmp_path):
    path = tmp_path / "bomb.png"
    path.write_bytes(png(20_000, 4_000))  # no pixel data at all: decoding would say something else
    assert message(path).endswith("20000x4000 is more than 50000000 pixels; shrink it or raise max_pixels")
    path.write_bytes(png(1_000_000, 51))
    assert "1000000x51 is more than 50000000 pixels" in message(path)
    path.write_bytes(png(10_000, 9_000))  # where Pillow only warns
    assert "too many pixels" in message(path, max_pixels=10**9)
    path.write_bytes(png(20_000, 20_000))
    assert "too many pixels" in message(path)


def test_the_cap_is_inclusive(tmp_path):
    path = saved(tmp_path / "a.png", Image.fromarray(RAMP))
    assert open_image(path, max_pixels=256).size == (16, 16)
    assert message(path, max_pixels=255).endswith("16x16 is more than 255 pixels; shrink it or raise max_pixels")


def test_a_text_chunk_that_inflates_is_refused(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(png(1, 1, (b"zTXt", b"k\0\0" + zlib.compress(b"a" * 20_000_000, 9))))
    assert "cannot be decoded (Decompressed data too large" in message(path)


@pytest.mark.parametrize(
    "content",
    [b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"%PDF-1.7\n", b"%!PS-Adobe-3.0 EPSF-3.0\n", b"II*\0", b"x"],
)
def test_other_formats_are_refused_whatever_their_name(tmp_path, content):
    path = tmp_path / "a.jpg"
    path.write_bytes(content)
    assert message(path) == f"{str(path)!r}: not an image of the formats JPEG, PNG, WEBP, BMP, TIFF, GIF, PPM"


@pytest.mark.parametrize(("kind", "feature"), [("AVIF", "avif"), ("JPEG2000", "jpg_2000")])
def test_formats_whose_decoders_take_a_gigabyte_for_a_small_file_are_not_read(tmp_path, kind, feature):
    if not features.check(feature):
        pytest.skip(f"Pillow without {kind}")
    Image.new("RGB", (16, 16)).save(tmp_path / "a.jpg", kind)
    assert "not an image of the formats JPEG" in message(tmp_path / "a.jpg")


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF"])
@pytest.mark.parametrize("share", [0.15, 0.5, 0.9])
def test_truncated_files_are_refused(tmp_path, kind, share):
    buffer = io.BytesIO()
    values = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(values).save(buffer, kind)
    data, path = buffer.getvalue(), tmp_path / "a.img"
    path.write_bytes(data[: int(len(data) * share)])
    text = message(path)
    assert "cannot be decoded" in text or "not an image" in text
    assert not ImageFile.LOAD_TRUNCATED_IMAGES


def test_things_that_are_no_image_files(tmp_path):
    (tmp_path / "empty.png").touch()
    os.mkfifo(tmp_path / "pipe.png")
    assert message(tmp_path) == f"{str(tmp_path)!r}: is a folder, not an image"
    assert message("gone.png") == "'gone.png': does not exist"
    assert message(tmp_path / "empty.png").endswith("empty.png': is empty")
    assert message(tmp_path / "pipe.png").endswith("pipe.png': is not a regular file")
    assert message("a" * 300).endswith("cannot be reached (File name too long)")
    assert "a\\x00b" in message("a\0b")


def test_a_file_without_permission(tmp_path, monkeypatch):
    path = saved(tmp_path / "a.png", Image.fromarray(RAMP))

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.open", refuse)
    assert message(path) == f"{str(path)!r}: no permission to read it"


def test_wrong_options(tmp_path):
    path = saved(tmp_path / "a.png", Image.fromarray(RAMP))
    assert message(path, channels=4) == "channels=4 must be 1 or 3"
    assert message(path, exif="rotate") == "exif='rotate' must be 'transpose' or 'ignore'"


SEEDS = {}
for _kind in ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP"):
    _buffer = io.BytesIO()
    Image.fromarray(RAMP).save(_buffer, _kind)
    SEEDS[_kind] = _buffer.getvalue()


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    kind=st.sampled_from(sorted(SEEDS)),
    edits=st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=6),
)
def test_damaged_bytes_give_an_image_or_a_reason(tmp_path_factory, kind, edits):
    data = bytearray(SEEDS[kind])
    for position, value in edits:
        data[position % len(data)] = value
    path = tmp_path_factory.mktemp("fuzz") / "a.img"
    path.write_bytes(data)
    try:
        assert open_image(path, max_pixels=10**6).mode == "RGB"
    except ImageError as error:
        assert str(path) in str(error)  # noqa: PT017 - either outcome is right


def test_a_device_or_a_huge_file_is_refused_before_a_byte_is_read(tmp_path, monkeypatch):
    (tmp_path / "endless.png").symlink_to("/dev/zero")
    with (tmp_path / "sparse.png").open("wb") as file:
        file.truncate(2**29 + 1)

    def never(*_):
        raise AssertionError("a file was opened")

    monkeypatch.setattr("os.open", never)
    assert message(tmp_path / "endless.png").endswith("endless.png': is not a regular file")
    assert message(tmp_path / "sparse.png").endswith("sparse.png': has 536870913 bytes; at most 536870912 are read")


def test_a_pipe_that_takes_a_file_s_place_while_it_is_opened_is_refused(tmp_path, monkeypatch):
    path = saved(tmp_path / "a.png", Image.fromarray(RAMP))
    real = os.open

    def replaced(name, flags, *more):
        Path(name).unlink()
        os.mkfifo(name)
        return real(name, flags, *more)

    monkeypatch.setattr("os.open", replaced)
    assert "is not a regular file" in message(path)


def tiff(path, entries, *data):
    """A file of these entries (tag, kind, count, value), and what follows its table."""
    fields = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    head = b"II*\0" + struct.pack("<IH", 8, len(entries))
    path.write_bytes(head + fields + struct.pack("<I", 0) + b"".join(data))
    return path


def tiled_tiff(path, side):
    """A grey image of 16 x 16 pixels, stored as one black tile of ``side`` x ``side``."""
    data = zlib.compress(bytes(side * side), 9)
    entries = {256: 16, 257: 16, 258: 8, 259: 8, 262: 1, 277: 1, 322: side, 323: side, 324: 0, 325: len(data)}
    entries[324] = 8 + 2 + 12 * len(entries) + 4
    return tiff(path, [(tag, 4, 1, value) for tag, value in entries.items()], data)


def planar_tiff(path, depth, compression=1):
    """Red, green and blue of 2 x 2 pixels, stored one colour after the other."""
    kind = {8: np.uint8, 16: np.dtype("<u2")}[depth]
    planes = [zlib.compress(data) if compression == 8 else data for data in np.arange(12, dtype=kind).reshape(3, 4)]
    planes = [bytes(plane) for plane in planes]
    start = 8 + 2 + 12 * 10 + 4
    bits, offsets, counts = start, start + 6, start + 18
    first = start + 30
    places = [first, first + len(planes[0]), first + len(planes[0]) + len(planes[1])]
    entries = [(256, 4, 1, 2), (257, 4, 1, 2), (258, 3, 3, bits), (259, 3, 1, compression), (262, 3, 1, 2)]
    entries += [(273, 4, 3, offsets), (277, 3, 1, 3), (278, 4, 1, 2), (279, 4, 3, counts), (284, 3, 1, 2)]
    tables = struct.pack("<3H3I3I", depth, depth, depth, *places, *map(len, planes))
    return tiff(path, entries, tables, *planes)


def test_sixteen_bit_channels_one_after_the_other_are_refused(tmp_path):
    """Pillow reads noise: the low bytes of the first half of each channel, then the high ones."""
    assert open_image(planar_tiff(tmp_path / "a.tif", 8)).getpixel((1, 1)) == (3, 7, 11)
    assert open_image(planar_tiff(tmp_path / "b.tif", 16, compression=8)).getpixel((1, 1)) == (0, 0, 0)
    assert "has 16-bit channels one after the other" in message(planar_tiff(tmp_path / "c.tif", 16))


def test_a_small_tiff_in_a_huge_tile_is_refused(tmp_path):
    assert open_image(tiled_tiff(tmp_path / "a.tif", 64)).size == (16, 16)
    text = message(tiled_tiff(tmp_path / "b.tif", 2048), max_pixels=10**6)
    assert "tiles of 2048x2048 are more than 1000000 pixels" in text


def progressive(*tail, scans=0, size=(16, 16)):
    """A progressive JPEG with its last scan ``scans`` times more, and what follows its end."""
    file = io.BytesIO()
    Image.fromarray(RAMP).convert("RGB").resize(size).save(file, "JPEG", progressive=True)
    data = file.getvalue()
    last = data[data.rindex(b"\xff\xda") : -2]
    return data[:-2] + last * scans + b"\xff\xd9" + b"".join(tail)


def test_a_jpeg_of_thousands_of_scans_is_refused_before_it_is_decoded(tmp_path, monkeypatch):
    (path := tmp_path / "a.jpg").write_bytes(progressive(scans=6000))
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda _: pytest.fail("decoded"))
    assert message(path).endswith("a.jpg': has 6010 scans, more than 100; save it again, as a JPEG or PNG")


def test_scans_are_counted_as_a_decoder_meets_them(tmp_path):
    """Not in a thumbnail, in a comment or behind the end, such as the film of a phone; behind a filled marker, too."""
    (path := tmp_path / "a.jpg").write_bytes(progressive(b"\xff\xda" * 200, scans=90))
    assert open_image(path).size == (16, 16)
    data, comment = progressive(), b"\xff\xda" * 200
    path.write_bytes(data[:2] + b"\xff\xfe" + struct.pack(">H", len(comment) + 2) + comment + data[2:])
    assert open_image(path).size == (16, 16)
    path.write_bytes(progressive(scans=91).replace(b"\xff\xda", b"\xff\xff\xff\xda"))
    assert "has 101 scans" in message(path)


@pytest.mark.parametrize(
    ("kind", "image"), [("pgm", Image.fromarray(RAMP)), ("ppm", Image.fromarray(RAMP).convert("RGB"))]
)
def test_portable_maps_are_read_where_no_loop_in_python_would(tmp_path, kind, image):
    path = saved(tmp_path / f"a.{kind}", image)
    assert np.array_equal(np.asarray(open_image(path, channels=1)), RAMP)
    path.write_bytes(path.read_bytes().replace(b"255", b"254", 1))
    assert "holds text, or values up to another number than 255; save it as PNG" in message(path)


def deep_png(path, values):
    """A PNG of 16 bits for each of three channels, which Pillow cannot write."""
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    path.write_bytes(png(*values.shape[1::-1], (b"IDAT", zlib.compress(rows)), depth=16, colours=2))
    return path


def bands_tiff(path, values, *more, photometric=2, data=None):
    """A TIFF of ``values`` (H, W, bands) as they are stored, with ``more`` entries."""
    height, width, bands = values.shape
    data, count = data or values.tobytes(), 9 + len(more)
    start = 8 + 2 + 12 * count + 4
    kind = {"u": 1, "i": 2, "f": 3}[values.dtype.kind]
    bits = struct.pack(f"<{bands}H", *[values.dtype.itemsize * 8] * bands)
    kinds = struct.pack(f"<{bands}H", *[kind] * bands)
    first = start + len(bits + kinds)
    entries = [(256, 4, 1, width), (257, 4, 1, height), (258, 3, bands, start), (262, 3, 1, photometric)]
    entries += [(273, 4, 1, first), (277, 3, 1, bands), (278, 4, 1, height), (279, 4, 1, len(data))]
    entries += [*more, (339, 3, bands, start + len(bits))]
    return tiff(path, entries, bits, kinds, data)


@pytest.mark.parametrize("write", [deep_png, bands_tiff])
@pytest.mark.parametrize("given_open", [False, True])
def test_colour_of_few_of_its_16_bits_is_told_or_refused(tmp_path, recwarn, write, given_open):
    """Pillow keeps the upper byte: of a camera's 12 bits 16 levels, of 14 bits 64."""

    def read(high):
        values = np.linspace(0, high, 192).round().astype("<u2").reshape(8, 8, 3)
        path = write(tmp_path / "a.image", values)
        if given_open:
            return np.asarray(to_images(Image.open(path))[0])
        return np.asarray(open_image(path))

    assert read(65535).max() == 255
    assert not recwarn
    with pytest.warns(
        UserWarning, match=r"no colour value of its 16 bits is above 16383 of 65535; scale them to all of"
    ):
        assert read(16383).max() == 63
    for high in (1023, 4095):
        with pytest.raises(ImageError, match=f"no colour value of its 16 bits is above {high} of 65535"):
            read(high)


def test_black_of_16_bits_is_black(tmp_path, recwarn):
    assert np.asarray(open_image(deep_png(tmp_path / "a.png", np.zeros((2, 2, 3))))).max() == 0
    assert not recwarn


def test_grey_of_14_bits_in_16_is_told(tmp_path):
    path = saved(tmp_path / "a.png", Image.fromarray(np.array([[0, 16000]], dtype=np.uint16)))
    with pytest.warns(UserWarning, match="values up to 16000 of 65535"):
        open_image(path)


def test_grey_of_12_bits_is_white_at_4095(tmp_path, recwarn):
    values = np.arange(4096).reshape(64, 64)
    packed = int("".join(f"{value:012b}" for value in values.ravel()), 2).to_bytes(6144, "big")
    entries = {256: 64, 257: 64, 258: 12, 259: 1, 262: 1, 273: 0, 277: 1, 278: 64, 279: 6144}
    entries[273] = 8 + 2 + 12 * len(entries) + 4
    path = tiff(tmp_path / "a.tif", [(tag, 4, 1, value) for tag, value in entries.items()], packed)
    got = np.asarray(open_image(path, channels=1))
    assert np.array_equal(got, np.rint(values * 255 / 4095))
    assert not recwarn


@pytest.mark.parametrize(("extra", "is_alpha"), [(None, False), (0, False), (2, True)])
def test_a_fourth_band_is_alpha_only_if_the_file_says_so(tmp_path, recwarn, extra, is_alpha):
    values = np.full((2, 2, 4), 51, dtype=np.uint8)  # a fifth of the way from white to black
    path = bands_tiff(tmp_path / "a.tif", values, *([] if extra is None else [(338, 3, 1, extra)]))
    assert open_image(path).getpixel((0, 0)) == ((214, 214, 214) if is_alpha else (51, 51, 51))
    told = "the file does not call its fourth band alpha; it is left out"
    assert [told in str(w.message) for w in recwarn] == ([True] if extra is None else [])


@pytest.mark.parametrize(
    ("dtype", "bands", "photometric", "said"),
    [
        ("u1", 5, 2, "5 bands of 8+8+8+8+8 bits"),
        ("u1", 4, 1, "4 bands of 8+8+8+8 bits"),
        ("<f4", 3, 2, "3 floating-point bands of 32+32+32 bits"),
        ("<i2", 3, 2, "3 signed bands of 16+16+16 bits"),
    ],
)
def test_bands_that_are_no_colours_are_named(tmp_path, dtype, bands, photometric, said):
    path = bands_tiff(tmp_path / "a.tif", np.ones((2, 2, bands), dtype=dtype), photometric=photometric)
    assert f"its pixels of {said} are none that can be read; choose three bands" in message(path)


def repeating_tags(count, size):
    """A TIFF of one pixel with ``count`` tags that lead to the same ``size`` bytes."""
    entries = {256: 1, 257: 1, 258: 8, 259: 1, 262: 1, 273: 8, 277: 1, 278: 1, 279: 1}
    table = [(tag, 4, 1, value) for tag, value in entries.items()]
    table += [(50000 + i, 7, size, 8) for i in range(count)]
    fields = b"".join(struct.pack("<HHII", *entry) for entry in table)
    data = b"II*\0" + struct.pack("<IH", 8, len(table)) + fields + bytes(4)
    return data + bytes(max(0, 8 + size - len(data)))


def with_exif(kind, exif, **options):
    file = io.BytesIO()
    Image.new("L", (2, 2)).save(file, kind, exif=exif, **options)
    return file.getvalue()


def raw_profile(exif):
    """A PNG whose EXIF is text in hexadecimal, compressed, as older programs write it."""
    text = PngImagePlugin.PngInfo()
    text.add_text("Raw profile type exif", f"\nexif\n{len(exif):8d}\n{exif.hex()}", zip=True)
    file = io.BytesIO()
    Image.new("L", (2, 2)).save(file, "PNG", pnginfo=text)
    return file.getvalue()


def in_two_parts(exif):
    """A JPEG whose EXIF goes on in a second segment, so that its table lies across both."""
    data = with_exif("JPEG", b"")
    parts = [b"Exif\0\0" + exif[:100], b"Exif\0\0" + exif[100:]]
    return data[:2] + b"".join(b"\xff\xe1" + struct.pack(">H", len(part) + 2) + part for part in parts) + data[2:]


HOLDERS = {
    "TIFF": lambda tags: tags,
    "JPEG": lambda tags: with_exif("JPEG", b"Exif\0\0" + tags),
    "JPEG in two parts": in_two_parts,
    "PNG": lambda tags: with_exif("PNG", tags),
    "PNG as text": raw_profile,
    "WEBP": lambda tags: with_exif("WEBP", tags),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_tags_that_claim_the_same_bytes_again_and_again_are_refused(tmp_path, monkeypatch, holder):
    """Pillow would copy 3 MiB for these 60 KB, and 5 GiB for 374 KB."""
    (path := tmp_path / "a").write_bytes(HOLDERS[holder](repeating_tags(2, 5000)))
    assert min(open_image(path).size) >= 1
    path.write_bytes(HOLDERS[holder](repeating_tags(50, 60000)))
    monkeypatch.setattr(TiffImagePlugin.ImageFileDirectory_v2, "load", lambda *_: pytest.fail("copied"))
    assert "has tags that claim more than its" in message(path)


@pytest.mark.parametrize("kind", [3, 4, 13])
def test_tags_are_counted_where_other_tags_lead_and_in_either_order_of_bytes(kind):
    """EXIF of one tag, which leads to the table of hostile ones; a table that leads to itself ends."""
    for order, mark in (("<", b"II*\0"), (">", b"MM\0*")):
        sub = 26 if kind != 3 or order == "<" else 26 << 16
        head = mark + struct.pack(f"{order}IHHHIII", 8, 1, 34665, kind, 1, sub, 0)
        hostile = struct.pack(f"{order}H", 40) + struct.pack(f"{order}HHII", 50000, 7, 60000, 8) * 40
        with pytest.raises(ImageError, match="has tags that claim more"):
            _check_tags(head + hostile + bytes(60000))
        _check_tags(mark + struct.pack(f"{order}IHHHIII", 8, 1, 34665, kind, 1, 8 << 16 if sub > 26 else 8, 0))


def test_large_tiff_has_counts_of_8_bytes():
    entry = struct.pack("<HHQQ", 50000, 7, 60000, 8)
    data = b"II+\0\x08\0\0\0" + struct.pack("<QQ", 16, 40) + entry * 40 + bytes(60000)
    with pytest.raises(ImageError, match="has tags that claim more"):
        _check_tags(data)


def test_a_list_of_the_images_in_a_jpeg_is_checked_too(tmp_path):
    data, tags = with_exif("JPEG", b""), b"MPF\0" + repeating_tags(50, 60000)
    (tmp_path / "a.jpg").write_bytes(data[:2] + b"\xff\xe2" + struct.pack(">H", len(tags) + 2) + tags + data[2:])
    assert "has tags that claim more than its" in message(tmp_path / "a.jpg")


def test_exif_in_thousands_of_parts_is_refused(tmp_path):
    """Each part would be joined to a copy of all before it."""
    data = with_exif("JPEG", b"")
    (tmp_path / "a.jpg").write_bytes(data[:2] + b"\xff\xe1\0\x09Exif\0\0a" * 101 + data[2:])
    assert "has 101 parts of EXIF, more than 100" in message(tmp_path / "a.jpg")


def test_a_tiff_of_too_many_strips_is_refused():
    head = b"II*\0" + struct.pack("<IHHHIII", 8, 1, 273, 3, 2**18 + 1, 26, 0)
    with pytest.raises(ImageError, match="too many strips"):
        _check_tags(head + bytes(2**20))


@pytest.mark.parametrize("comment", [b"!\xfe\x01a\0", b"\x01a"])
def test_a_gif_of_thousands_of_comments_is_refused(tmp_path, comment):
    """Pillow joins each block to a copy of all before it: minutes for 8 MiB."""
    file = io.BytesIO()
    Image.fromarray(RAMP).save(file, "GIF")
    data = file.getvalue()
    at = data.index(b",", 13 + 768)

    def written(count):
        blocks = comment * count if comment[:1] == b"!" else b"!\xfe" + comment * count + b"\0"
        (path := tmp_path / "a.gif").write_bytes(data[:at] + blocks + data[at:])
        return path

    assert np.array_equal(np.asarray(open_image(written(50), channels=1)), RAMP)
    assert "has too many comments or other small parts; save it again" in message(written(5000))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "PPM"])
def test_every_decoder_can_be_stopped_when_it_reads(tmp_path, kind):
    class StopError(Exception):
        pass

    def stop():
        raise StopError("stopped")

    path = saved(tmp_path / "a", Image.fromarray(RAMP), format=kind)
    with pytest.raises(ImageError, match="stopped") as caught:
        open_image(path, check=stop)
    assert isinstance(caught.value.__cause__, StopError)
