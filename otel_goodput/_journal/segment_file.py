"""Reads segment files. It never reads or decompresses more than the size of a segment."""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from otel_goodput._journal import records
from otel_goodput._journal.records import Record
from otel_goodput._runtime import files

NAME: Final = re.compile(r"a(\d{4,10})-p(\d{4,9})-(\d{6,12})\.segment(\.gz)?")
SIZE: Final = records.HEADER_SIZE + records.CAPACITY * records.SIZE
HEAD: Final = records.HEADER_SIZE + records.SIZE  # bytes: the header and the first record
PACKED_SIZE: Final = SIZE + 64 * files.KIB  # incompressible data grows a little
_GZIP: Final = 31  # wbits of zlib for the gzip format


class Contents(NamedTuple):
    """What a segment holds.

    Attributes:
        data: its header and its records up to the last one in use.
        room: number of records that its file is long enough for.
    """

    data: bytes
    room: int


@dataclass(eq=False)
class SegmentFile:
    """A segment on disk: its position in the run, its header and first record when it was listed, and its contents."""

    path: Path
    attempt: int
    process: int
    number: int
    head: bytes

    def first(self) -> Record | None:
        """Return its first record, which listing has read; None if that is empty or damaged."""
        return next(records.decode_records(self.head[records.HEADER_SIZE :], records.Names(), 0, []), None)

    def beginning(self, count: int) -> list[Record]:
        """Read those of its first `count` records that are sound, and the heartbeat. Raises as :meth:`contents`."""
        data = beginning(self.path, records.HEADER_SIZE + count * records.SIZE)
        return list(records.decode_segment(data, records.Names()))

    def has_any(self, places: Collection[int]) -> bool:
        """Whether there is a sound record at any of these places. Raises as :meth:`contents`."""
        data = self._contents().data
        return any(
            len(record := data[at : at + records.SIZE]) == records.SIZE and records.sound(record)
            for at in (records.HEADER_SIZE + place * records.SIZE for place in places)
        )

    def contents(self) -> Contents:
        """Read and decompress the segment; read again if a heartbeat was just being written.

        Raises:
            OSError: it cannot be read, or is larger than a segment.
            EOFError: it is cut short.
            ValueError: it cannot be decompressed, or decompresses to more than a segment.
        """
        read = self._contents()
        torn = len(read.data) >= records.HEADER.size and records.decode_header(read.data).torn
        return self._contents() if torn else read

    def _contents(self) -> Contents:
        try:
            return contents(self.path)
        except FileNotFoundError:
            self.path = sealed(self.path)  # compressed since it was listed
            return contents(self.path)


def sealed(path: Path) -> Path:
    """The path of a segment after it has been compressed."""
    return path if path.suffix == ".gz" else path.with_name(f"{path.name}.gz")


def contents(path: Path) -> Contents:
    """Read all of a segment. Raises as :meth:`SegmentFile.contents`."""
    if path.suffix != ".gz":
        data, size = files.written(path, SIZE)
    else:
        data = _unpacked(files.read(path, PACKED_SIZE), SIZE + 1)
        size = len(data)
        if size > SIZE:
            raise ValueError(f"it unpacks to more than the {SIZE} bytes of a segment")
    room = max(0, (size - records.HEADER_SIZE) // records.SIZE)
    return Contents(data[: records.HEADER_SIZE + records.used(data) * records.SIZE], room)


def beginning(path: Path, size: int) -> bytes:
    """Read the first `size` bytes of a segment, or fewer if it is shorter. Raises as :meth:`SegmentFile.contents`."""
    if path.suffix != ".gz":
        return files.beginning(path, size)
    # Compressed records hardly take more space than the records themselves.
    return _unpacked(files.beginning(path, 2 * size + files.KIB), size, cut=True)


def _unpacked(packed: bytes, most: int, *, cut: bool = False) -> bytes:
    """Decompress at most `most` bytes. Unless `packed` is `cut`, it must be complete."""
    unpacking = zlib.decompressobj(_GZIP)
    try:
        data = unpacking.decompress(packed, most)
    except zlib.error as error:
        raise ValueError(f"it cannot be unpacked: {error}") from error
    if not cut and len(data) < most and not unpacking.eof:
        raise EOFError("it is cut short")
    return data
