"""Writes the journal: packs records into a memory-mapped segment, without a system call and without waiting.

Data stored in the mapped page survives the death of the process. The slow work is done on threads of its own: the
:mod:`~otel_goodput._live.spares` create segments, the :mod:`~otel_goodput._live.keeper` compresses them.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import count
from operator import sub
from pathlib import Path
from typing import Final
from zlib import crc32

from otel_goodput._accounting import events as ev
from otel_goodput._accounting.events import Event, Item, Turns
from otel_goodput._journal import records
from otel_goodput._journal.records import (
    BODY,
    CAPACITY,
    COMPOUND,
    DEVICE_ENDS,
    HEADER_SIZE,
    LEFT_STEP,
    LEFT_STEP_AT,
    LOAD,
    LOADING,
    RECORD,
    SEALED,
    SEGMENT_BYTES,
    SIZE,
    STEPPING,
    TURN,
    TURN_BODY,
    TURN_FIELDS,
)
from otel_goodput._runtime import files
from otel_goodput._text.redact import encodable, redacting_logger, without_credentials

logger = redacting_logger(__name__)

# Events per drain, so that a ledger that has fallen behind neither needs memory for all of them nor is locked for long.
DRAINED: Final = 512
ERRORS: Final = 4096  # kept of phases whose end has not been drained
NAMES_BOUND: Final = 1000
OVERFLOW: Final = "overflow"
NAME_BYTES: Final = 192
# A hole is a place that a thread has taken and not written yet. After this time, assume that it never will.
HOLE_NS: Final = 1_000_000_000

_pack, _pack_turn, _seal_into, _leave_into = BODY.pack, TURN_BODY.pack, SEALED.pack_into, LEFT_STEP.pack_into
# Of a loop: a few turns, because a run has its price, those of exported steps among them; any number of those in two
# records beside device ends, and where what was read is cut.
_RUN: Final = "(?:L|(?=S))(?:SL)*S?"
_WORDS: Final = {"T": chr(TURN), "L": chr(LOADING), "S": chr(STEPPING), "Z": r"\Z"}
_WORDS["D"] = f"[{chr(DEVICE_ENDS)}{chr(ev.DEVICE_END)}]"
_PATTERN: Final = f"S?(?:T|LS){{3,}}L?|L?(?:SL){{3,}}S?|(?:^|(?<=D)){_RUN}|{_RUN}(?=D|Z)"
_TURNS: Final = re.compile(re.sub("[A-Z]", lambda word: _WORDS[word[0]], _PATTERN).encode())
_PARTS: Final = re.compile(re.sub("T", lambda word: _WORDS[word[0]], "T+|[^T]+").encode())
_event = tuple.__new__  # makes an Event without calling its constructor, because this runs for every record


class Segment:
    """One segment of the journal, mapped from a file, or in anonymous memory if there is no file."""

    __slots__ = ("_file", "buffer", "copy", "end", "hole_since", "number", "path", "places", "read")

    def __init__(self, path: Path | None) -> None:
        self.path = path  # its file; None if it is in memory only
        self.copy: Path | None = None  # where one in memory has been written, or will be; None before that
        self.buffer: mmap.mmap | bytearray  # header and records
        self.number = -1
        self.places = count(HEADER_SIZE, SIZE)  # returns the offset of the next free place, atomically
        self.read = 0  # number of records that have been drained
        self.end = CAPACITY  # number of records that it will hold
        self.hole_since = 0
        self._file = -1
        if path is None:
            self.buffer = mmap.mmap(-1, SEGMENT_BYTES)
            return
        self._file = files.new(path)
        try:
            # Allocate the blocks now: on a full disk, a store to an unallocated page is a SIGBUS instead of an error.
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._file, 0, SEGMENT_BYTES)
            else:
                os.pwrite(self._file, bytes(SEGMENT_BYTES), 0)
            self.buffer = mmap.mmap(self._file, SEGMENT_BYTES)
        except OSError:
            os.close(self._file)
            self._file = -1
            files.remove(path)
            raise

    def adopt(self, attempt: int, process: int, number: int) -> None:
        """Start to use it as the journal's segment `number`: write its header."""
        self.number = number
        self.buffer[:HEADER_SIZE] = records.encode_header(attempt, process, number, os.getpid())

    def keep(self, data: bytes, copy: Path, *, written: bool) -> None:
        """Go on in memory with `data`, which has been `written` to the file at `copy`, or will be."""
        self.release()
        self.buffer[:] = data
        self.path, self.copy = copy if written else None, copy

    def beat(self, now: int) -> None:
        """Write a heartbeat at `now` (ns) with one store to the mapped page."""
        heartbeat = records.encode_heartbeat(now, self.read)
        self.buffer[records.HEARTBEAT_AT : records.HEARTBEAT_AT + len(heartbeat)] = heartbeat

    def sync(self) -> None:
        """Flush it to disk (fsync); releases the GIL meanwhile."""
        if self._file >= 0:
            os.fsync(self._file)

    def rest(self) -> None:
        """Free its memory until it is read: it is no longer written, and the file has its data."""
        mapped = self.buffer
        if self._file >= 0 and isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            with suppress(ValueError):  # another thread has just released it
                mapped.madvise(mmap.MADV_DONTNEED)

    def release(self) -> None:
        """Unmap and close the file. A late writer then writes to a buffer that is thrown away."""
        mapped, self.buffer = self.buffer, bytearray(SEGMENT_BYTES)
        if isinstance(mapped, mmap.mmap):
            mapped.close()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class Journal:
    """The journal of one process in one attempt.

    Any thread may call :meth:`append`; the rest is for the keeper's thread or the one that holds the processor's lock.
    """

    def __init__(self, attempt: int, process: int, first: Segment) -> None:
        self.attempt = attempt
        self.process = process
        self.dropped = 0
        self.rolled = threading.Event()  # set when a spare has been taken; whoever lays spares waits for it
        self.spares: deque[Segment] = deque()
        self.names: list[str] = [""]
        self.errors: dict[int, str] = {}  # ``error.type`` by the key of the phase, until its end has been drained
        self._ids: dict[str, int] = {}
        # Reentrant, because a KeyboardInterrupt can leave it held and the same thread must be able to go on.
        self._changing = threading.RLock()
        self._torn = 0  # number of interrupted appends: up to so many holes will never be filled
        # The open data load, if its begin is not recorded yet: the key of the step before, the number of its step, and
        # its begin, ns. Whoever removes it records it; it may be recorded twice, but not after its end.
        self._left: list[tuple[int, int, int]] = []
        self._latest_left = (0, 0, 0)
        first.adopt(attempt, process, 0)
        self.current = first
        self._segments: deque[Segment] = deque([first])

    @property
    def segments(self) -> list[Segment]:
        """Those in use, of which the last is the current one."""
        return list(self._segments)

    def append(self, kind: int, phase: int, flags: int, name: int, key: int, step: int, moment: int) -> None:
        """Record one event at `moment` (ns). Neither waits nor makes a system call, unless a new segment is needed."""
        if self._left:
            self._record_left()
        body = _pack(kind, phase, flags, name, key, step, moment)  # pack first: an error must not take a place
        try:
            segment = self.current
            place = next(segment.places)
            while place >= SEGMENT_BYTES:
                segment = self.roll(segment)
                place = next(segment.places)
            _seal_into(segment.buffer, place, body, crc32(body) & 0xFFFF)
        except BaseException:
            self._torn += 1  # e.g. Ctrl-C: a place may have been taken that nobody will write to
            raise

    def leave_step(self, key: int, number: int, now: int) -> None:
        """Note that the step `key` ended at `now` (ns), and that the data load of step `number` began.

        The segment's header says so in case the process is killed. A record follows: by :meth:`turn` or, if that takes
        a while, before any other record or when the journal is read.
        """
        if number >= LOAD:  # a TURN has no room for it
            self.append(LOADING, 0, 0, 0, key, number, now)
            return
        _leave_into(self.current.buffer, LEFT_STEP_AT, now, key ^ now)
        self._latest_left = left = (key, number, now)
        self._left.append(left)

    def turn(self, load: int, number: int, now: int) -> None:
        """Record that the data load `load` ended at `now` (ns), and that its step began.

        If this is interrupted, the caller must record the begin and the end of the load: whether it is, is not known.
        """
        try:
            key, _, ended = left = self._left.pop()
        except IndexError:
            with self._changing:  # another thread records that, which comes first
                pass
            self.append(STEPPING, 0, 0, 0, load, number, now)
            return
        try:
            body = _pack_turn(TURN, 0, 0, 0, key, now - ended, number, now)
            segment = self.current  # written as by append(), without the call: each turn of a loop comes here
            place = next(segment.places)
            while place >= SEGMENT_BYTES:
                segment = self.roll(segment)
                place = next(segment.places)
            _seal_into(segment.buffer, place, body, crc32(body) & 0xFFFF)
        except struct.error:  # an integer is too large for this kind of record
            self._left.append(left)
            self.append(STEPPING, 0, 0, 0, load, number, now)
        except BaseException:
            self._torn += 1
            raise

    def _record_left(self) -> None:
        with self._changing:
            try:
                key, number, ended = self._left.pop()
                self.append(LOADING, 0, 0, 0, key, number, ended)
            except IndexError:
                return
            except BaseException:  # e.g. Ctrl-C: whether it is recorded is not known
                self._left[:] = [self._latest_left]
                raise

    def roll(self, full: Segment) -> Segment:
        """Continue in the next segment: a prepared spare, or else one in memory."""
        with self._changing:
            if self.current is full:
                if self._segments[-1] is full:  # else an interrupted call has already added the next one
                    segment = self.spares.popleft() if self.spares else Segment(None)
                    segment.adopt(self.attempt, self.process, full.number + 1)
                    self._segments.append(segment)
                self.current = self._segments[-1]
        self.rolled.set()
        return self.current

    def orphan(self) -> None:
        """Write no more to the segments, which a forked child shares with its parent.

        A loop that goes on in the child has bound methods of this journal. What the parent records later is not read.
        """
        self._changing = threading.RLock()  # a thread of the parent may have held it
        self._left.clear()
        self.spares.clear()
        segment = self.current
        segment.end = _reached(segment.places)
        self.current = Segment(None)
        self._segments.append(self.current)

    def leave(self) -> None:
        """Continue in the next segment before this one is full: this one is in memory, and the next one has a file."""
        segment = self.current
        places, segment.places = segment.places, count(SEGMENT_BYTES)
        segment.end = _reached(places)
        self.roll(segment)

    def move(self, attempt: int, spare: Segment) -> deque[Segment]:
        """Continue as the attempt `attempt`, in `spare`, which is in its folder; returns the spares of before."""
        with self._changing:
            self.attempt = attempt
            before, self.spares = self.spares, deque([spare])
            self.leave()
        return before

    def rewind(self, before: Sequence[Segment]) -> None:
        """Have everything drained again, beginning with segments that had been taken."""
        self._segments.extendleft(reversed(before))
        for segment in list(self._segments):
            segment.read = 0

    def name(self, text: str) -> int:
        """Return the id of a name; beyond 1,000 names, the id of ``overflow``."""
        identity = self._ids.get(text)
        if identity is None:
            if len(self.names) > NAMES_BOUND and text != OVERFLOW:
                return self.name(OVERFLOW)
            identity = self._learn(text)
        return identity

    def _learn(self, text: str) -> int:
        name = without_credentials(encodable(text))  # it is also that of series, which are not redacted
        with self._changing:
            if name in self._ids:
                if len(self._ids) < 2 * NAMES_BOUND:  # texts that differ in what is hidden may be any number
                    self._ids[text] = self._ids[name]
                return self._ids[name]
            identity = len(self.names)
            self.names.append(name)
        for record in records.encode_name(identity, name.encode()[:NAME_BYTES]):
            self.append(*BODY.unpack_from(record))
        # Publish the id only now, so that no record uses it before the journal has its name.
        self._ids[text] = self._ids[name] = identity
        return identity

    # --- reading back -------------------------------------------------------------------------------------------------

    def drain(self, most: int = DRAINED) -> tuple[list[Item], int]:
        """Return the events appended since the last call, in order of their places, and of how many records they are.

        Those are about `most` at most.
        """
        events: list[Item] = []
        count = 0
        if self._left:
            self._record_left()
        for segment in list(self._segments):
            count += self._drain(segment, events, most - count)
            if count >= most or (segment.read < segment.end and segment is not self.current):
                break
        return events, count

    def _drain(self, segment: Segment, events: list[Item], most: int) -> int:
        count = 0
        while segment.read < segment.end and count < most:
            at = HEADER_SIZE + segment.read * SIZE
            chunk = bytes(segment.buffer[at : at + min(most, DRAINED, segment.end - segment.read) * SIZE])
            kinds = chunk[::SIZE]
            written = kinds.find(0)
            if written < 0:
                written = len(kinds) - (len(kinds) > 1 and kinds[-1] == STEPPING)  # so that turns begin with one
            if written:
                self._decode(chunk, kinds[:written], events)
                segment.read += written
                segment.hole_since = 0
                count += written
            elif not self._pass_hole(segment, any(chunk)):
                break
        return count

    def _decode(self, chunk: bytes, kinds: bytes, events: list[Item]) -> None:
        """Add the events of records, whose `kinds` are given; runs of a loop's turns are taken together."""
        at = 0
        for run in _TURNS.finditer(kinds):
            self._decode_each(chunk[at * SIZE : run.start() * SIZE], events)
            whole: Turns | None = None
            for part in _PARTS.finditer(kinds, *run.span()):
                begin, at = part.span()
                turns = _turns(kinds[begin], chunk[begin * SIZE : at * SIZE])
                if whole is not None:
                    if any(whole.flags) or any(turns.flags):
                        events.append(whole)
                    else:
                        turns = whole.followed(turns)
                whole = turns
            if whole is not None:
                events.append(whole)
        self._decode_each(chunk[at * SIZE : len(kinds) * SIZE], events)

    def _decode_each(self, chunk: bytes, events: list[Item]) -> None:
        names = self.names
        for record in RECORD.iter_unpack(chunk):
            kind, phase, flags, name, key, step, moment, _ = record
            if kind == ev.START or kind == ev.END:
                events.append(_event(Event, (moment, kind, phase, key, step, flags & 0xFF, 0, names[name])))
            elif kind == DEVICE_ENDS:
                events.append(records.device_ends(record))
            elif kind in COMPOUND:
                events += [
                    _event(Event, (moment, kind, phase, key, step, flags & 0xFF, 0, ""))
                    for kind, phase, flags, _, key, step, moment in records.events_in(record)
                ]
            elif kind < records.NAME:
                events.append(records.event_of(kind, phase, flags, names[name], key, step, moment))
            elif kind == records.ERROR:
                if len(self.errors) >= ERRORS:
                    self.errors.clear()  # nobody collects them
                self.errors[key] = names[name]

    def _pass_hole(self, segment: Segment, more: bool) -> bool:
        """Whether to skip the next place, a hole that will never be filled; `more`: there are records after it."""
        if not more and segment is self.current:
            return False  # the current end of the journal
        now = time.monotonic_ns()
        segment.hole_since = segment.hole_since or now
        if self._torn:
            self._torn -= 1
        elif now - segment.hole_since <= HOLE_NS:
            return False
        segment.read += 1
        segment.hole_since = 0
        return True

    def take_full(self, *, drained: bool = True) -> list[Segment]:
        """Remove and return the segments that nobody writes to any more; with `drained`, only those that are."""
        full: list[Segment] = []
        segments = self._segments
        while segments[0] is not self.current and (not drained or segments[0].read >= segments[0].end):
            full.append(segments.popleft())
        return full


def _reached(places: Iterator[int]) -> int:
    """The number of places of a segment that were taken."""
    return min((next(places) - HEADER_SIZE) // SIZE, CAPACITY)


def _turns(kind: int, rows: bytes) -> Turns:
    """The turns that ``TURN`` records stand for, or ``LOADING`` and ``STEPPING`` in turn; `kind` is the first one's."""
    if kind != TURN:
        _, _, flags, _, keys, numbers, times, _ = zip(*RECORD.iter_unpack(rows), strict=True)
        return Turns(kind == STEPPING, times, keys, numbers, tuple([flag & 0xFF for flag in flags]))
    keys, loads, numbers, times = zip(*TURN_FIELDS.iter_unpack(rows), strict=True)
    both = (0,) * 2 * len(times)
    moments, ended, begun = list(both), list(both), list(both)
    moments[::2], moments[1::2] = map(sub, times, loads), times
    ended[::2], ended[1::2] = keys, [(key + ev.STRIDE) & ev.KEYS for key in keys]
    begun[::2] = begun[1::2] = numbers
    return Turns(False, tuple(moments), tuple(ended), tuple(begun), both)
