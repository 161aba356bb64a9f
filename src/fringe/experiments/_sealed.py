"""Parquet files of which parts are read and verified: the footer holds a digest of every row group, and a seal of
itself, so that a flipped bit is seen wherever it is, and what is not asked for need not be read."""

import hashlib
import itertools
import json
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from fringe.experiments._formats import BLANK, Sizes, is_bounded, is_intact, schema, seal_of, with_checksum

#: 64 MiB: the longest footer that is read. That of a pack holds some 50 bytes for each image of a task.
_FOOTER = 2**26

#: What is known of the files with these seals of their footers, and of how many at most.
_SIZES, _FILES = dict[bytes, Sizes](), 4096


class Damaged(ValueError):
    """Bytes of a file are not those that were written."""


def sealed_parquet(tables: Sequence[Any], index: Mapping[str, Any]) -> bytes:
    """Write a row group for each table, and ``index``, plain data, into the footer."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink, ends = pa.BufferOutputStream(), [4]
    writer = pq.ParquetWriter(sink, tables[0].schema.remove_metadata(), compression="zstd", write_statistics=False)
    for table in tables:
        writer.write_table(table, row_group_size=max(1, len(table)))
        ends.append(sink.tell())
    before = sink.tell()
    placeholder = json.dumps([[end, "0" * 64] for end in ends[1:]])
    writer.add_key_value_metadata({"fringe": json.dumps(index), "groups": placeholder, "seal": BLANK.decode()})
    writer.close()
    content = sink.getvalue().to_pybytes()
    sums = [hashlib.sha256(content[a:b]).hexdigest() for a, b in itertools.pairwise(ends)]
    groups = json.dumps([[end, total] for end, total in zip(ends[1:], sums, strict=True)])
    footer = content[before:].replace(placeholder.encode(), groups.encode())
    return content[:before] + with_checksum(footer)


@dataclass
class SealedFile:
    """A file that :func:`sealed_parquet` wrote, of which no more is read than is asked for. Raises Damaged."""

    file: BinaryIO
    size: int
    groups: list[tuple[int, int, str]] = field(init=False)

    def __post_init__(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        length = int.from_bytes(self._bytes(max(0, self.size - 8), self.size)[:4], "little")
        self._footer = max(0, self.size - 8 - length)
        tail = self._bytes(self._footer, self.size)
        if length > _FOOTER or not is_intact(tail):
            raise Damaged("the footer")
        try:
            self._header = pq.read_metadata(pa.BufferReader(b"PAR1" + tail))
            stored = self._header.metadata
            ends, self._index = json.loads(stored[b"groups"]), stored[b"fringe"]
            starts = [4, *(end for end, _ in ends)]
            self.groups = [(start, end, total) for start, (end, total) in zip(starts, ends, strict=False)]
        except Exception as error:  # sealed, but by somebody else
            raise Damaged("the footer") from error
        self._tail = tail

    @property
    def index(self) -> dict[str, Any]:
        """What was written into the footer."""
        return json.loads(self._index)

    def damaged(self) -> list[int]:
        """List the row groups whose bytes are not those that were written."""
        return [group for group in range(len(self.groups)) if self._content(group) is None]

    def read(self, groups: Sequence[int], columns: Sequence[str]) -> Any:
        """Read columns of row groups as an Arrow table. Raises Damaged."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        sparse = mmap.mmap(-1, self.size)  # of what is not read, no memory is taken
        sparse[:4], sparse[self._footer :] = b"PAR1", self._tail
        for group in groups:
            content = self._content(group)
            if content is None:
                raise Damaged(f"row group {group}")
            start, end, _ = self.groups[group]
            sparse[start:end] = content
        if len(_SIZES) == _FILES:
            _SIZES.clear()
        sizes = _SIZES.setdefault(seal_of(self._tail), {})
        if not is_bounded(memoryview(sparse), groups, columns, (self._header, sizes)):
            raise Damaged("a size")
        texts = [f.name for f in schema() if f.type == pa.string() and f.name in columns]
        file = pq.ParquetFile(pa.py_buffer(sparse), metadata=self._header, read_dictionary=texts)
        return file.read_row_groups(list(groups), columns=list(columns))

    def _content(self, group: int) -> bytes | None:
        """The bytes of a row group, None if they are not those that were written."""
        start, end, total = self.groups[group]
        content = self._bytes(start, end)
        return content if hashlib.sha256(content).hexdigest() == total else None

    def _bytes(self, start: int, end: int) -> bytes:
        self.file.seek(start)
        content = self.file.read(end - start)
        if len(content) != end - start:
            raise Damaged("the length")
        return content
