"""A number for each kept execution, in a stack that holds the latest million in at most 4 bytes each.

Steps of one loop are alike, so their numbers are: sealed chunks are packed, usually to a tenth.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Sequence
from typing import Any, Final

CHUNK: Final = 1024
DETAILED_CHUNKS: Final = 1000  # those of older chunks are forgotten
CODE: Final = "I"
JOINED: Final = 64  # chunks in a blob, so that it is returned to the system when it is freed


class Profiles:
    """A stack of numbers from 0 to 2**32 - 1. Sealed chunks never change, because clones share them."""

    __slots__ = ("_chunks", "_open")

    def __init__(self) -> None:
        self._chunks: list[bytes | None] = []
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
            self._chunks.append(_packed(self._open[:CHUNK].tobytes()))
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
            found._chunks.append(_packed(blobs[at : at + size]))
        found._open = array(CODE, rest)
        return found


def _packed(chunk: bytes) -> bytes:
    return zlib.compress(chunk, 1)


def _unpacked(chunk: bytes) -> bytes:
    return zlib.decompress(chunk)
