"""A number for each kept execution, in a stack that holds the latest million in 4 bytes each, usually in one.

Steps of one loop are alike, so few numbers are in use: a sealed chunk of them is a table, and a byte for each. (zlib
would pack better, but releases the GIL for each chunk, and then waits for a training thread to give it back.)
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from otel_goodput._accounting.codec import Blobs, Each, Kind, Optional, State, Whole, field
from otel_goodput._accounting.shared_list import SharedList

CHUNK: Final = 1024
DETAILED_CHUNKS: Final = 1000  # those of older chunks are forgotten
CODE: Final = "I"
JOINED: Final = 64  # chunks in a blob, so that it is returned to the system when it is freed
TABLE: Final = 256  # numbers that a byte can tell apart
SIZE: Final = array(CODE).itemsize


class Packed(NamedTuple):
    """A sealed chunk: places in the `table` of its numbers; without a table, the numbers themselves. As raw bytes."""

    data: bytes
    table: bytes | None


class _Chunks(Kind):
    """Sealed chunks: of each the size of its table (0: there is none; None: it is forgotten); all else is raw bytes."""

    plain = shared = False
    _ALL: Final = Each(Optional(Whole(0, TABLE + 1)))

    def dump(self, value: SharedList[Packed | None], blobs: Blobs) -> Any:
        held = [chunk for chunk in value if chunk is not None]
        for at in range(0, len(held), JOINED):
            blobs.written.append(
                b"".join(raw for chunk in held[at : at + JOINED] for raw in (chunk.table or b"", chunk.data))
            )
        return [None if chunk is None else len(chunk.table or ()) // SIZE for chunk in value]

    def load(self, plain: Any, blobs: Blobs) -> SharedList[Packed | None]:
        chunks: SharedList[Packed | None] = SharedList()
        for size in self._ALL.load(plain, blobs):
            if size is None:
                chunks.append(None)
                continue
            table = blobs.take(size * SIZE) if size else None
            data = blobs.take(CHUNK if size else CHUNK * SIZE)
            if size and max(data) >= size:
                raise ValueError("a chunk of profiles has fewer of them than it needs")
            chunks.append(Packed(data, table))
        return chunks

    def copy(self, value: SharedList[Packed | None]) -> SharedList[Packed | None]:
        return value.copy()


def _numbers(numbers: Iterable[int] = ()) -> array[int]:
    return array(CODE, numbers)


class Profiles(State):
    """A stack of numbers from 0 to 2**32 - 1. Sealed chunks never change, because clones share them."""

    _chunks: SharedList[Packed | None] = field(_Chunks(), make=SharedList)
    _open: array[int] = field(
        Each(Whole(0, 1 << 32), CHUNK - 1, lambda numbers: array(CODE, numbers)), make=lambda: array(CODE)
    )

    def __len__(self) -> int:
        return len(self._chunks) * CHUNK + len(self._open)

    def extend(self, numbers: Sequence[int]) -> None:
        """Push all of them, the last on top."""
        self._open.extend(numbers)
        while len(self._open) >= CHUNK:
            self._chunks.append(_packed(self._open[:CHUNK]))
            self._open = self._open[CHUNK:]
            if len(self._chunks) > DETAILED_CHUNKS:
                self._chunks[-DETAILED_CHUNKS - 1] = None

    def pop_from(self, index: int) -> list[int]:
        """Pop all from `index` on; returns them, lowest index first, 0 for those that are forgotten."""
        popped: list[Sequence[int]] = []
        while len(self) > index:
            if not self._open:
                last = self._chunks.pop()
                self._open = array(CODE, bytes(CHUNK * SIZE) if last is None else _unpacked(last))
            cut = max(0, index - len(self._chunks) * CHUNK)
            popped.append(self._open[cut:])
            del self._open[cut:]
        return [number for part in reversed(popped) for number in part]

    def insert(self, index: int, number: int) -> None:
        self.extend([number, *self.pop_from(index)])


def _packed(chunk: array[int]) -> Packed:
    numbers = sorted(set(chunk))
    if len(numbers) > TABLE:
        return Packed(chunk.tobytes(), None)
    places = {number: place for place, number in enumerate(numbers)}
    return Packed(bytes(map(places.__getitem__, chunk)), array(CODE, numbers).tobytes())


def _unpacked(chunk: Packed) -> bytes:
    data, table = chunk
    if table is None:
        return data
    numbers = bytearray(len(data) * SIZE)
    for at in range(SIZE):  # byte by byte of all numbers at once
        numbers[at::SIZE] = data.translate(table[at::SIZE].ljust(TABLE))
    return bytes(numbers)
