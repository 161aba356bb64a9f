"""How large a Parquet file gets when it is read, told before anything in it is decompressed.

Two things make a small file large: compression, and a dictionary whose long entry is repeated by a count. The sizes in
the file's metadata say the first, but a prepared file can lie there; what is allocated follows the headers of the pages
(structs of Thrift's compact protocol in front of each page, see parquet.thrift). Both are read here.
"""

from typing import Any

SMALL = 2**26
"""64 MiB: what a file may grow to, however short it is."""
RATIO = 100
"""Bytes that a byte of a longer file may grow to. Scores grow to about 10."""
LARGEST = 2**31
"""2 GiB: what no file may grow to."""

_NUMBER = 8
"""Bytes of a value that is no text, its share of the levels included."""
_CODECS = {"ZSTD": "zstd", "UNCOMPRESSED": None}
_PLAIN, _RLE, _DICTIONARY = 0, 3, (2, 8)
_BYTE, _INTEGERS, _DOUBLE, _BINARY, _STRUCT = 3, (4, 5, 6), 7, 8, 12
_DEEPEST = 4


def is_bounded(content: bytes) -> bool:
    """Whether the bytes of a Parquet file grow to a bearable size when they are read; False where they do not say."""
    limit = min(max(SMALL, RATIO * len(content)), LARGEST)
    try:
        return _grown(content, limit) <= limit
    except Exception:  # a damaged file fails in many ways, and none of them is a size
        return False


def _grown(content: bytes, limit: int) -> int:
    """Bytes after reading; more than ``limit`` as soon as that is certain."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    about = pq.read_metadata(pa.BufferReader(content))
    total = about.num_rows * _NUMBER * about.num_columns
    for place in range(about.num_row_groups):
        group = about.row_group(place)
        for number in range(group.num_columns):
            if total > limit:
                return total
            total += _column_size(content, group.column(number), limit - total)
    return total


def _column_size(content: bytes, column: Any, limit: int) -> int:
    """Bytes of a column chunk after reading, by its metadata or by its pages, whichever say more."""
    codec, is_text = _CODECS[column.compression], column.physical_type == "BYTE_ARRAY"
    starts = [start for start in (column.dictionary_page_offset, column.data_page_offset) if start]
    at, end = min(starts), min(starts) + column.total_compressed_size
    pages = entry = values = 0
    while at < end:
        header, start = _struct(content, at)
        size, compressed = header[2], header[3]
        if size < 0 or compressed < 0 or start + compressed > end:
            raise ValueError("a page that does not fit")
        pages += size
        if pages > limit:
            return pages
        if header[1] == 2:  # a dictionary, in front of the values that refer to it
            entry = _longest(content[start : start + compressed], size, codec) if is_text else _NUMBER
        else:
            about = header[5] if 5 in header else header[8]
            encoding = about[2] if 5 in header else about[4]
            if encoding not in (_PLAIN, _RLE, *_DICTIONARY):
                raise ValueError("an encoding that this program does not write")
            values += about[1]
        at = start + compressed
    count = max(values, column.num_values)
    return max(pages, column.total_uncompressed_size) + count * max(_NUMBER, entry)


def _longest(page: bytes, size: int, codec: str | None) -> int:
    """The longest entry of a dictionary of texts: each is its length in four bytes, and its letters."""
    import pyarrow as pa

    plain = page if codec is None else pa.Codec(codec).decompress(page, decompressed_size=size, asbytes=True)
    at = longest = 0
    while at < len(plain):
        length = int.from_bytes(plain[at : at + 4], "little")
        longest, at = max(longest, length), at + 4 + length
    return longest


def _struct(content: bytes, at: int, depth: int = 0) -> tuple[dict[int, Any], int]:
    """A struct of numbers, texts and structs by the numbers of its fields, and where it ends."""
    if depth > _DEEPEST:
        raise ValueError("structs too deep for a page header")
    fields: dict[int, Any] = {}
    number = 0
    while (head := content[at]) != 0:
        at, kind = at + 1, head & 15
        if head >> 4:
            number += head >> 4
        else:
            number, at = _integer(content, at)
        if kind in (1, 2):  # a truth value is its own type
            fields[number] = kind == 1
        elif kind in _INTEGERS:
            fields[number], at = _integer(content, at)
        elif kind == _STRUCT:
            fields[number], at = _struct(content, at, depth + 1)
        elif kind == _BINARY:
            length, at = _varint(content, at)
            at += length
        elif kind in (_BYTE, _DOUBLE):
            at += 1 if kind == _BYTE else 8
        else:
            raise ValueError(f"a field of type {kind} in a page header")
    return fields, at + 1


def _integer(content: bytes, at: int) -> tuple[int, int]:
    raw, at = _varint(content, at)
    return (raw >> 1) ^ -(raw & 1), at


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """Seven bits a byte, the lowest first; the eighth says that there are more."""
    value = 0
    for place in range(10):
        byte = content[at + place]
        value |= (byte & 127) << (7 * place)
        if byte < 128:
            return value, at + place + 1
    raise ValueError("a number without end")
