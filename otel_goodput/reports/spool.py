"""Sorts any number of small pieces of bytes in bounded memory, by way of temporary files."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import ExitStack
from heapq import merge
from pathlib import Path
from typing import IO, Final

from otel_goodput import files

PIECES: Final = 100_000  # held in memory; some 30 MB with those that a trace is made of
FILES: Final = 32  # open at a time
_LENGTH: Final = struct.Struct(">HI")
Piece = tuple[bytes, bytes]


class Spool:
    """A context manager that takes pieces in any order and returns them in the order of their keys.

    Args:
        folder: where the temporary files are made; they have no names, and are gone when the process is.
        pieces: how many pieces are held in memory.
    """

    def __init__(self, folder: Path, pieces: int = PIECES) -> None:
        self._folder = folder
        self._most = pieces
        self._held: list[Piece] = []
        self._files: list[IO[bytes]] = []
        self._stack = ExitStack()
        self.count = 0

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def add(self, key: bytes, piece: bytes) -> None:
        """Take a piece. Raises OSError if the disk is full."""
        self._held.append((key, piece))
        self.count += 1
        if len(self._held) >= self._most:
            self._spill()

    def __iter__(self) -> Iterator[bytes]:
        """Yield the pieces; those of equal keys in the order of the pieces themselves."""
        self._held.sort()
        for _, piece in merge(*map(_read, self._files), self._held):
            yield piece

    def _spill(self) -> None:
        if len(self._files) >= FILES:
            merged = self._new(merge(*map(_read, self._files)))
            for file in self._files:
                file.close()
            self._files = [merged]
        self._held.sort()
        self._files.append(self._new(iter(self._held)))
        self._held.clear()

    def _new(self, pieces: Iterator[Piece]) -> IO[bytes]:
        file = self._stack.enter_context(files.nameless(self._folder))
        for key, piece in pieces:
            file.write(_LENGTH.pack(len(key), len(piece)) + key + piece)
        return file


def _read(file: IO[bytes]) -> Iterator[Piece]:
    file.seek(0)
    size = _LENGTH.size
    while head := file.read(size):
        key, piece = _LENGTH.unpack(head)
        yield file.read(key), file.read(piece)
