"""How what a rank publishes travels to the leader of its job: through the run's folder, if all ranks share it.

A rank keeps its latest messages in an :class:`Outbox`. A channel brings the outbox to a place of the rank's own, which
only this rank writes and any rank may read, so that nobody waits for anybody. A message may be seen there several
times, by way of several channels even; the reader's :class:`Inbox` gives each out once.

Nothing here is for the training thread: a disk may hang.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple, Protocol
from zlib import crc32

from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._runtime import files
from otel_goodput._runtime.guard import report_once
from otel_goodput._text.quantities import plural
from otel_goodput._text.redact import redacting_logger, without_credentials

logger = redacting_logger(__name__)

MOST: Final = 64 * files.KIB  # bytes of a message
KEPT_NS: Final = 600_000_000_000  # a leader that was away for no longer gets what it missed,
KEPT: Final = 8 * MOST  # unless that is more than so many bytes of a rank
RETRY_S: Final = 30.0  # until a channel that has failed is tried again, and the choice is looked at again
PROBED: Final = 64  # ranks that have sent nothing yet, looked for in one round

_MAGIC: Final = b"OGRANK\x00\x01"
_HEAD: Final = Struct("<8sQQ")  # magic, generation, writer
_FRAME: Final = Struct("<IIQQq")  # bytes of the message, CRC-32 of all after it, writer, number, ns since the epoch
_CHECKED: Final = 8  # bytes of a frame before what the checksum is of
_SLACK: Final = MOST  # bytes of old frames that a small file may hold
LARGEST: Final = _HEAD.size + 2 * (KEPT + MOST) + _SLACK  # bytes of a file


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
    return data[: _HEAD.size] if data.startswith(_MAGIC) and len(data) >= _HEAD.size else b""


def writer_of(data: bytes) -> int:
    """Return who has written it; 0 if nobody has."""
    return int(_HEAD.unpack_from(data)[2]) if opening_of(data) else 0


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
        left = frames_of(data[_HEAD.size :])[0] if opening_of(data) else []
        for frame in reversed(left):
            encoded = frame.encode()
            if self.size + len(encoded) > KEPT:
                break
            self._frames.appendleft((frame, encoded))
            self.size += len(encoded)

    def _drop(self) -> None:
        self.size -= len(self._frames.popleft()[1])

    def whole(self) -> bytes:
        """Return all of it, as a new generation."""
        return _HEAD.pack(_MAGIC, secrets.randbits(64), self.writer) + b"".join(data for _, data in self._frames)


class Inbox:
    """Gives out each message of each rank once.

    Attributes:
        lost: how many messages of a rank never came, because they were overwritten before they were read.
    """

    _WRITERS: Final = 16  # of one rank that are remembered

    def __init__(self) -> None:
        self.lost: Counter[int] = Counter()
        self._latest: dict[int, dict[int, int]] = {}  # number of the latest message, by rank and writer

    def __contains__(self, rank: int) -> bool:
        return rank in self._latest

    def take(self, rank: int, frames: Iterable[Frame]) -> list[bytes]:
        """Return the messages of `frames` that are new. What is old when the rank is seen first is left out."""
        latest = self._latest.setdefault(rank, {})
        oldest = 0 if latest else time.time_ns() - KEPT_NS
        messages = []
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
            messages.append(frame.message)
        return messages


class Channel(Protocol):
    """How messages travel from every rank to the leader."""

    @property
    def name(self) -> str:
        """The channel in use: ``folder``; empty if there is none."""

    def publish(self, data: bytes) -> None:
        """Send a message of this rank, at most ``MOST`` bytes. Raises ValueError if it is longer. May wait."""

    def receive(self) -> Mapping[int, Sequence[bytes]]:
        """Return the new messages by rank, those of a rank in the order in which it sent them. May wait."""


class _Folder:
    """A file of each rank in the run's folder, to which it appends. Its methods raise OSError.

    Files are opened each time: that is when NFS looks at the server, and closed after writing: when it sends. When a
    file is long, one with the latest messages takes its place.
    """

    name = "folder"

    def __init__(self, run: RunDirectory, process: int) -> None:
        self._run = run
        self._own = self._path(process)
        self._head = b""  # of the own file; empty: it is to be written anew
        self._size = 0
        self._number = 0  # of the latest message in it
        self._read: dict[int, tuple[bytes, int]] = {}  # by rank: header of its file, and how much of that is read

    def _path(self, rank: int) -> Path:
        return self._run.file("updates", rank)

    def remains(self) -> bytes:
        """Return what the process before this one has left."""
        try:
            return files.read(self._own, LARGEST)
        except FileNotFoundError:
            return b""

    def send(self, outbox: Outbox, frame: bytes) -> None:
        """Bring the latest message there, and those that are not there yet."""
        head, self._head = self._head, b""
        number, self._number = self._number, outbox.number
        if head and number == outbox.number - 1 and self._size + len(frame) <= 2 * outbox.size + _SLACK:
            with suppress(FileNotFoundError):
                file = files.descriptor(self._own, os.O_RDWR | os.O_APPEND)
                try:
                    if os.fstat(file).st_size == self._size and os.pread(file, len(head), 0) == head:
                        files.append_whole(file, frame)
                        self._head, self._size = head, self._size + len(frame)
                        return
                finally:
                    os.close(file)
        data = outbox.whole()
        files.write_privately(self._own, data)
        self._head, self._size = opening_of(data), len(data)

    def look(self, ranks: Iterable[int]) -> Iterator[tuple[int, list[Frame]]]:
        """Yield what is new of `ranks`. A file that cannot be read is an error if none can."""
        trouble: OSError | None = None
        any_read = False
        with files.held(self._run.journal):
            for rank in ranks:
                try:
                    frames = self._news(rank)
                    any_read = True
                except FileNotFoundError:
                    continue
                except OSError as error:
                    trouble = error
                    continue
                if frames:
                    yield rank, frames
        if trouble is not None and not any_read:
            raise trouble

    def _news(self, rank: int) -> list[Frame]:
        """Read what has been written to a file since it was read last."""
        file = files.descriptor(self._path(rank), os.O_RDONLY)
        try:
            before, read = self._read.get(rank, (b"", 0))
            head = opening_of(os.pread(file, _HEAD.size, 0))
            if head != before:
                read = _HEAD.size
            size = min(os.fstat(file).st_size, LARGEST) - read
            data = os.pread(file, size, read) if head and size > 0 else b""
        finally:
            os.close(file)
        frames, used = frames_of(data)
        self._read[rank] = head, read + used
        return frames


class RankChannel:
    """The channel of this process, whatever happens to it: trouble is reported once, and what was not sent is kept.

    Args:
        run: the folder of the run, which other ranks may share; None if there is none.
        run_id: the id that was asked for, the same in all processes.
        process: index of this process, of `count`.
        leader: index of the process that leads.
    """

    def __init__(self, run: RunDirectory | None, run_id: str, process: int, count: int, leader: int = 0) -> None:
        self._outbox = Outbox()
        self._inbox = Inbox()
        self._folder = None if run is None else _Folder(run, process)
        self._others = [rank for rank in range(count) if rank != process]
        self._turn = 0  # where to go on looking for ranks that have sent nothing
        self._adopted = False
        self._sending, self._receiving = threading.Lock(), threading.Lock()
        self._retry: dict[str, float] = {}  # s, monotonic: when a channel that has failed is tried again

    @property
    def name(self) -> str:
        """The channel in use; empty if there is none, or it does not work."""
        return "" if self._folder is None or not self._works(self._folder) else self._folder.name

    @property
    def lost(self) -> Mapping[int, int]:
        """How many messages of a rank were overwritten before this process read them."""
        return self._inbox.lost

    def publish(self, data: bytes) -> None:
        """Send a message of this rank, at most ``MOST`` bytes. Raises ValueError if it is longer. May wait."""
        if len(data) > MOST:
            raise ValueError(f"a message of {len(data)} bytes; at most {MOST} can be sent")
        with self._sending:
            frame = self._outbox.add(data)
            folder = self._folder
            if folder is None or not self._works(folder):
                return
            try:
                if not self._adopted:
                    self._adopted = True
                    with suppress(OSError):
                        self._outbox.adopt(folder.remains())
                folder.send(self._outbox, frame)
            except OSError as error:
                self._failed(folder, error)

    def receive(self) -> Mapping[int, Sequence[bytes]]:
        """Return the new messages by rank, those of a rank in the order in which it sent them. May wait."""
        messages: dict[int, list[bytes]] = {}
        with self._receiving:
            folder = self._folder
            if folder is None or not self._works(folder):
                return messages
            try:
                for rank, frames in folder.look(self._wanted()):
                    if new := self._inbox.take(rank, frames):
                        messages.setdefault(rank, []).extend(new)
            except OSError as error:
                self._failed(folder, error)
        return messages

    def _wanted(self) -> list[int]:
        """The ranks to look for: those that have sent something, and some of the others in turn."""
        known = [rank for rank in self._others if rank in self._inbox]
        unknown = [rank for rank in self._others if rank not in self._inbox]
        if len(unknown) > PROBED:
            self._turn = (self._turn + PROBED) % len(unknown)
            unknown = (unknown[self._turn :] + unknown[: self._turn])[:PROBED]
        return known + unknown

    def _works(self, folder: _Folder) -> bool:
        return time.monotonic() >= self._retry.get(folder.name, 0.0)

    def _failed(self, folder: _Folder, error: Exception) -> None:
        self._retry[folder.name] = time.monotonic() + RETRY_S
        report_once(
            f"rank channel {folder.name}",
            "what the ranks do is not exchanged through the run's folder: %s; will retry every %s",
            without_credentials(str(error)),
            plural(int(RETRY_S), "second"),
        )
