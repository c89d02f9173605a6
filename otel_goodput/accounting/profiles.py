"""A number for each kept execution, in a stack that holds the latest million in 4 bytes each, usually in one.

Steps of one loop are alike, so few numbers are in use: a sealed chunk of them is a table, and a byte for each. (zlib
would pack better, but releases the GIL for each chunk, and then waits for a training thread to give it back.)
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

CHUNK: Final = 1024
DETAILED_CHUNKS: Final = 1000  # those of older chunks are forgotten
CODE: Final = "I"
JOINED: Final = 64  # chunks in a blob, so that it is returned to the system when it is freed
TABLE: Final = 256  # numbers that a byte can tell apart


class Packed(NamedTuple):
    """A sealed chunk: places in the `table` of its numbers; without a table, the numbers themselves. As raw bytes."""

    data: bytes
    table: bytes | None


class Profiles:
    """A stack of numbers from 0 to 2**32 - 1. Sealed chunks never change, because clones share them."""

    __slots__ = ("_chunks", "_open")

    def __init__(self) -> None:
        self._chunks: list[Packed | None] = []
        self._open = array(CODE)

    def clone(self) -> Profiles:
        twin = Profiles.__new__(Profiles)
        twin._chunks, twin._open = self._chunks.copy(), self._open[:]
        return twin

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
                self._open = array(CODE, bytes(CHUNK * self._open.itemsize) if last is None else _unpacked(last))
            cut = max(0, index - len(self._chunks) * CHUNK)
            popped.append(self._open[cut:])
            del self._open[cut:]
        return [number for part in reversed(popped) for number in part]

    def insert(self, index: int, number: int) -> None:
        self.extend([number, *self.pop_from(index)])

    def dump(self) -> tuple[list[Any], list[bytes]]:
        """The stack as plain data, and its sealed chunks, which are joined."""
        kept = [chunk for chunk in self._chunks if chunk is not None]
        blobs = [b"".join(map(_unpacked, kept[at : at + JOINED])) for at in range(0, len(kept), JOINED)]
        return [len(self._chunks), list(self._open)], blobs

    @classmethod
    def load(cls, state: list[Any], blobs: bytes) -> Profiles:
        """Rebuild the stack from what :meth:`dump` returned; its chunks are the last of the joined `blobs`.

        Raises:
            ValueError: blobs are missing.
        """
        found = cls()
        count, rest = state
        held, size = min(count, DETAILED_CHUNKS), CHUNK * found._open.itemsize
        if not 0 <= held * size <= len(blobs) or len(rest) >= CHUNK or count >= 1 << 31:
            raise ValueError("the snapshot's profiles are cut short")
        found._chunks = [None] * (count - held)
        for at in range(len(blobs) - held * size, len(blobs), size):
            found._chunks.append(_packed(array(CODE, blobs[at : at + size])))
        found._open = array(CODE, rest)
        return found


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
    size = array(CODE).itemsize
    numbers = bytearray(len(data) * size)
    for at in range(size):  # byte by byte of all numbers at once
        numbers[at::size] = data.translate(table[at::size].ljust(TABLE))
    return bytes(numbers)
