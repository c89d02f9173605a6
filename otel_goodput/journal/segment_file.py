"""A segment as it lies on the disk: found by its name, read up to its size, unpacked no further than that."""

from __future__ import annotations

import re
import zlib
from pathlib import Path
from typing import Final

from otel_goodput import files
from otel_goodput.journal import records

NAME: Final = re.compile(r"a(\d{4,10})-p(\d{4,9})-(\d{6,12})\.segment(\.gz)?")
SIZE: Final = records.HEADER_SIZE + records.CAPACITY * records.SIZE
PACKED_SIZE: Final = SIZE + 64 * files.KIB  # what cannot be compressed grows a little
_GZIP: Final = 31  # zlib's word for the format


class SegmentFile:
    """A segment on disk: its place in the order of the run, and its data."""

    __slots__ = ("attempt", "number", "path", "process")

    def __init__(self, path: Path, attempt: int, process: int, number: int) -> None:
        self.path = path
        self.attempt = attempt
        self.process = process
        self.number = number

    def data(self) -> bytes:
        """Raises:
        OSError: it cannot be read, or is larger than a segment.
        EOFError: it is cut short.
        ValueError: it cannot be unpacked, or unpacks to more than a segment.
        """
        try:
            return data(self.path)
        except FileNotFoundError:
            self.path = sealed(self.path)  # since it was found
            return data(self.path)


def sealed(path: Path) -> Path:
    """Where a segment is once it has been put away."""
    return path if path.suffix == ".gz" else path.with_name(f"{path.name}.gz")


def data(path: Path) -> bytes:
    """All of a segment. Raises as :meth:`SegmentFile.data`."""
    if path.suffix != ".gz":
        return files.read(path, SIZE)
    found = _unpacked(files.read(path, PACKED_SIZE), SIZE + 1)
    if len(found) > SIZE:
        raise ValueError(f"it unpacks to more than the {SIZE} bytes of a segment")
    return found


def beginning(path: Path, size: int) -> bytes:
    """The first `size` bytes of a segment, or as many as there are. Raises as :meth:`SegmentFile.data`."""
    if path.suffix != ".gz":
        return files.beginning(path, size)
    # Compressed, records take no more room than they have.
    return _unpacked(files.beginning(path, 2 * size + files.KIB), size, cut=True)


def _unpacked(packed: bytes, most: int, *, cut: bool = False) -> bytes:
    """At most so many bytes of what was packed; where that is not `cut`, its checksum holds."""
    unpacking = zlib.decompressobj(_GZIP)
    try:
        found = unpacking.decompress(packed, most)
    except zlib.error as error:
        raise ValueError(f"it cannot be unpacked: {error}") from error
    if not cut and len(found) < most and not unpacking.eof:
        raise EOFError("it is cut short")
    return found
