"""What many ranks did, out of memory: in a file that has no name, from which each rank's is read bit by bit."""

from __future__ import annotations

import marshal
import os
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final, overload

from otel_goodput._accounting.arithmetic import WHOLE
from otel_goodput._accounting.rank_columns import Part, RankPart, StepColumns
from otel_goodput._accounting.ranks import Piece, RankStep
from otel_goodput._runtime import files

HELD: Final = 16 * files.MIB  # that are held in memory, so that small jobs need no file
_BLOCK: Final = 2048  # steps and pieces, or more, that are read at once
_CACHED: Final = 2  # blocks of each rank


class Spool:
    """Holds bytes: the first in memory, more in a file; all in memory if there is no place for one on a disk."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._folder: Path | None = None  # of the file
        self._sought = False
        self._size = self._end = 0

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def put(self, data: bytes) -> bytes | tuple[int, int]:
        """Hold `data`; return what to get it with. Raises OSError: the disk is full."""
        self._size += len(data)
        file = self._opened() if self._size > HELD else None
        if file is None:
            return data
        place, end = (self._end, len(data)), self._end + len(data)
        while self._end < end:
            try:
                written = os.pwrite(file.fileno(), data[self._end - end :], self._end)
            except OSError as error:
                text = (
                    f"no temporary file can be written to {self._folder} ({error.strerror}), where what the ranks did "
                    "is held, 16 bytes for each step of each rank; make room there, or set TMPDIR to a folder that has "
                    "it"
                )
                raise OSError(error.errno, text) from error
            self._end += written
        return place

    def _opened(self) -> IO[bytes] | None:
        if not self._sought:
            self._sought = True
            for folder in files.for_large():
                with suppress(OSError):
                    self._file, self._folder = files.nameless(folder), folder
                    break
        return self._file

    def get(self, place: bytes | tuple[int, int]) -> bytes:
        """Return what is held. Raises OSError: it cannot be read."""
        if isinstance(place, bytes):
            return place
        if self._file is None:
            raise OSError("nothing was written")
        return os.pread(self._file.fileno(), place[1], place[0])


class SpooledParts(Sequence[Part]):
    """Parts of what one rank did, in a spool. Some of those that were read last are held."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._firsts: list[int] = []  # the first part of each block
        self._places: list[bytes | tuple[int, int]] = []
        self._waiting: list[Part] = []
        self._weight = self._count = 0
        self._read: dict[int, list[Part]] = {}

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, at: int) -> Part: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Part]: ...
    def __getitem__(self, at: int | slice) -> Part | Sequence[Part]:
        if isinstance(at, slice):
            return [self[one] for one in range(*at.indices(self._count))]
        place = at + self._count if at < 0 else at
        if not 0 <= place < self._count:
            raise IndexError(at)
        behind = self._count - len(self._waiting)
        if place >= behind:
            return self._waiting[place - behind]
        block = bisect_right(self._firsts, place) - 1
        parts = self._read.get(block)
        if parts is None:
            parts = self._read[block] = _loaded(self._spool.get(self._places[block]))
            if len(self._read) > _CACHED:
                del self._read[next(iter(self._read))]
        return parts[place - self._firsts[block]]

    def extend(self, parts: Iterable[Part]) -> None:
        """Add parts behind the others."""
        for part in parts:
            self._waiting.append(part)
            self._count += 1
            self._weight += len(part.numbers) if isinstance(part, StepColumns) else len(part.steps) + len(part.pieces)
            if self._weight >= _BLOCK:
                self._firsts.append(self._count - len(self._waiting))
                self._places.append(self._spool.put(_dumped(self._waiting)))
                self._waiting, self._weight = [], 0


def _dumped(parts: Sequence[Part]) -> bytes:
    return marshal.dumps([_plain(part) for part in parts])


def _plain(part: Part) -> tuple[Any, ...]:
    if isinstance(part, RankPart):
        return [*map(tuple, part.steps)], [*map(tuple, part.pieces)]
    numbers = part.numbers
    spelled = (numbers.start, numbers.stop) if isinstance(numbers, range) else array(WHOLE, numbers).tobytes()
    return (spelled, *(array(WHOLE, column).tobytes() for column in part[1:3]), part.since)


def _loaded(data: bytes) -> list[Part]:
    return [_part(*plain) for plain in marshal.loads(data)]


def _part(first: Any, second: Any, ends: bytes | None = None, since: int = 0) -> Part:
    if ends is None:
        return RankPart([*map(RankStep._make, first)], [*map(Piece._make, second)])
    numbers = range(*first) if isinstance(first, tuple) else _array(first)
    return StepColumns(numbers, _array(second), _array(ends), since)


def _array(data: bytes) -> array[int]:
    made = array(WHOLE)
    made.frombytes(data)
    return made
