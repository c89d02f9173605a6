"""A segment file that is read while its writer fills it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO, Final

from otel_goodput._runtime import files
from otel_goodput.journal import records, segment_file
from otel_goodput.journal.records import CAPACITY, HEADER_SIZE, SIZE, SegmentHeader

_CHUNK: Final = 256 * SIZE
_ZEROS: Final = bytes(_CHUNK)

Place = tuple[int, int]  # attempt, segment


class GrowingSegment:
    """One segment, and how far it has been read.

    Args:
        place: attempt and number.
        path: its file, which may have been packed meanwhile.
        read: number of records that have been taken.

    Attributes:
        holes: places of records that were passed as empty or damaged and may still be written.
        beat: the last heartbeat that was taken, ns.

    Raises:
        OSError, EOFError, ValueError: it cannot be read.
    """

    def __init__(self, place: Place, path: Path, read: int) -> None:
        self.place = place
        self.path = path
        self.read = read
        self.holes: set[int] = set()
        self.beat = 0
        self._packed: bytes | None = None
        self._file: BinaryIO | None = None
        try:
            self._open(path)
        except FileNotFoundError:
            self._open(segment_file.sealed(path))

    def _open(self, path: Path) -> None:
        if path.suffix == ".gz":
            self._packed = segment_file.contents(path).data
        else:
            self._file = files.opened(path)

    def header(self) -> SegmentHeader:
        """Raises OSError, ValueError."""
        return records.decode_header(self.piece(0, HEADER_SIZE))

    def piece(self, begin: int, size: int) -> bytes:
        """Bytes of the segment. Raises OSError."""
        if self._file is None:
            return (self._packed or b"")[begin : begin + size]
        return os.pread(self._file.fileno(), size, begin)

    def new(self, *, final: bool) -> bytes:
        """The records after those taken, up to the last one written; `final`: nothing is to come but late records."""
        begin = HEADER_SIZE + self.read * SIZE
        end = HEADER_SIZE + CAPACITY * SIZE
        if final:
            found = self.piece(begin, end - begin)
        else:
            found = b""
            while begin + len(found) < end:
                chunk = self.piece(begin + len(found), min(_CHUNK, end - begin - len(found)))
                if not chunk or chunk == _ZEROS[: len(chunk)]:
                    break
                found += chunk
        count = len(found.rstrip(b"\0"))
        found = found[: -(-count // SIZE) * SIZE].ljust(-(-count // SIZE) * SIZE, b"\0")
        while not final and found and not records.sound(found[-SIZE:]):
            found = found[:-SIZE]  # it is being written
        return found

    def same(self, path: Path) -> bool:
        """Whether the file at `path` is the one that is open. Raises OSError."""
        if self._file is None:
            return True
        found, mine = path.stat(), os.fstat(self._file.fileno())
        return (found.st_dev, found.st_ino) == (mine.st_dev, mine.st_ino)

    def filled(self) -> bool:
        """Whether a record has appeared in a place that had been passed."""
        return any(
            len(record := self.piece(HEADER_SIZE + at * SIZE, SIZE)) == SIZE and records.sound(record)
            for at in self.holes
        )

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
