"""What a rank publishes and has not come to the leader yet, and what the leader has received.

A rank keeps its latest messages in an :class:`Outbox`, which channels bring to places of the rank's own. A message may
be seen there several times, by way of several channels even: the reader's :class:`Inbox` gives each out once.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter, deque
from collections.abc import Iterable
from struct import Struct
from typing import Final, NamedTuple
from zlib import Z_BEST_SPEED, compress, crc32, decompressobj
from zlib import error as ZlibError

from otel_goodput._runtime import files

MOST: Final = 64 * files.KIB  # bytes of a message
KEPT_NS: Final = 600_000_000_000  # a leader that was away for no longer gets what it missed,
KEPT: Final = 8 * MOST  # unless that is more than so many bytes of a rank

_MAGIC: Final = b"OGRANK\x00\x01"
_PACKED: Final = b"OGRANK\x00\x02"  # what is after the header is compressed
HEAD: Final = Struct("<8sQQ")  # magic, generation, writer
_FRAME: Final = Struct("<IIQQq")  # bytes of the message, CRC-32 of all after it, writer, number, ns since the epoch
_CHECKED: Final = 8  # bytes of a frame before what the checksum is of


class Frame(NamedTuple):
    """A message on its way. The numbers of one writer follow each other; a rank that restarts is another writer."""

    writer: int
    number: int
    at: int  # ns since the epoch
    message: bytes

    def encode(self) -> bytes:
        tail = _FRAME.pack(0, 0, self.writer, self.number, self.at)[_CHECKED:] + self.message
        return _FRAME.pack(len(self.message), crc32(tail), self.writer, self.number, self.at) + self.message


def frames_of(data: bytes) -> tuple[list[Frame], int]:
    """Decode whole frames; returns them and how many bytes they take. A torn or damaged one ends them."""
    frames, at = [], 0
    while at + _FRAME.size <= len(data):
        size, checksum, writer, number, moment = _FRAME.unpack_from(data, at)
        end = at + _FRAME.size + size
        if size > MOST or end > len(data) or crc32(data[at + _CHECKED : end]) != checksum:
            break
        frames.append(Frame(writer, number, moment, data[at + _FRAME.size : end]))
        at = end
    return frames, at


def opening_of(data: bytes) -> bytes:
    """Return the header of what an :class:`Outbox` has written; empty if it is not one."""
    return data[: HEAD.size] if data.startswith((_MAGIC, _PACKED)) and len(data) >= HEAD.size else b""


def packed(data: bytes) -> bytes:
    """Return what an :class:`Outbox` has written in about two thirds of the room; :func:`frames_in` reads it, too."""
    return HEAD.pack(_PACKED, *HEAD.unpack_from(data)[1:]) + compress(data[HEAD.size :], Z_BEST_SPEED)


def frames_in(data: bytes) -> list[Frame]:
    """Decode what an :class:`Outbox` has written; none if it is damaged."""
    if not opening_of(data):
        return []
    content = data[HEAD.size :]
    if data.startswith(_PACKED):
        try:
            content = decompressobj().decompress(content, KEPT + MOST)
        except ZlibError:
            return []
    return frames_of(content)[0]


def writer_of(data: bytes) -> int:
    """Return who has written it; 0 if nobody has."""
    return int(HEAD.unpack_from(data)[2]) if opening_of(data) else 0


class Outbox:
    """The latest messages of this process, and those of the one before it in its place that may not be read yet."""

    def __init__(self) -> None:
        self.writer = secrets.randbits(63) + 1
        self.size = 0  # bytes
        self.number = 0  # of the latest message
        self._frames: deque[tuple[Frame, bytes]] = deque()

    def add(self, message: bytes) -> bytes:
        """Add a message; returns its frame. The oldest ones are dropped once they are too old or too many."""
        self.number += 1
        frame = Frame(self.writer, self.number, time.time_ns(), message)
        data = frame.encode()
        self._frames.append((frame, data))
        self.size += len(data)
        while self.size > KEPT or self._frames[0][0].at < frame.at - KEPT_NS:
            self._drop()
        return data

    def adopt(self, data: bytes) -> None:
        """Take over the messages that the process before this one has left."""
        for frame in reversed(frames_in(data)):
            encoded = frame.encode()
            if self.size + len(encoded) > KEPT:
                break
            self._frames.appendleft((frame, encoded))
            self.size += len(encoded)

    def sent(self) -> list[bytes]:
        """Return the messages of this process that are still here."""
        return [frame.message for frame, _ in self._frames if frame.writer == self.writer]

    def forget(self, writer: int, number: int) -> None:
        """Drop a message, and those before it: the leader has them."""
        place = (frame.writer == writer and frame.number == number for frame, _ in self._frames)
        for _ in range(next((at + 1 for at, there in enumerate(place) if there), 0)):
            self._drop()

    def _drop(self) -> None:
        self.size -= len(self._frames.popleft()[1])

    def whole(self, most: int = KEPT + MOST) -> bytes:
        """Return the latest messages that fit into `most` bytes, at least one, as a new generation."""
        size, frames = 0, list[bytes]()
        for _, data in reversed(self._frames):
            size += len(data)
            if frames and size > most:
                break
            frames.append(data)
        return HEAD.pack(_MAGIC, secrets.randbits(64), self.writer) + b"".join(reversed(frames))


class Inbox:
    """Gives out each message of each rank once.

    Attributes:
        lost: how many messages of a rank never came, because they were overwritten before they were read.
        latest: writer and number of the latest message of each rank.
    """

    _WRITERS: Final = 16  # of one rank that are remembered

    def __init__(self) -> None:
        self.lost: Counter[int] = Counter()
        self.latest: dict[int, tuple[int, int]] = {}
        self._writers: dict[int, dict[int, int]] = {}  # number of the latest message, by rank and writer

    def take(self, rank: int, frames: Iterable[Frame]) -> list[Frame]:
        """Return those of `frames` that are new. What is old when the rank is seen first is left out.

        That is by the clock of the rank, which may be far from the own one.
        """
        latest, frames = self._writers.setdefault(rank, {}), list(frames)
        oldest = 0 if latest else max((one.at for one in frames), default=0) - KEPT_NS
        new = []
        for frame in frames:
            before = latest.get(frame.writer)
            if frame.at < oldest or (before is not None and frame.number <= before):
                continue
            if before is not None:
                if frame.number > before + 1:
                    self.lost[rank] += frame.number - before - 1
            elif len(latest) >= self._WRITERS:
                del latest[next(iter(latest))]
            latest[frame.writer] = frame.number
            self.latest[rank] = frame.writer, frame.number
            new.append(frame)
        return new
