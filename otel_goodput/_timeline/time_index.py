"""Finds the records of a window of time without reading the rest of the journal.

The first record of a segment shows when the segment begins, and is read without unpacking the whole. Records of a phase
may be in the segments next to those of the window (a later end, a later report of the device), so one more on each side
is read. What is recorded with times long past (backfilled) is included only if it is in the segments that are read.
"""

from __future__ import annotations

import sys
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from otel_goodput._accounting import events as ev
from otel_goodput._accounting.events import preceding
from otel_goodput._journal import records
from otel_goodput._journal.records import HEADER_SIZE, NAME, RECORD, SIZE, Record, SegmentFile
from otel_goodput._journal.rundir import RunDirectory, WatchedRun
from otel_goodput._timeline.reader import Reader

MOST: Final = 400_000  # records of one answer
NEIGHBORS: Final = 1  # segments read before and after those of the window
_FIRST: Final = 64  # records in which the first time is looked for
_HELD: Final = 8  # segments kept in memory, up to a MiB each
# Kinds whose times are those of their writing or of a phase; the others hold something else there, or an earlier time.
_TIMED: Final = frozenset(kind for kind in records.KINDS if kind < NAME)
_KEYED: Final = frozenset({ev.START, ev.END, ev.DEVICE_END, ev.MARK, ev.DURABLE})
_LINKED: Final = _KEYED | {ev.OBSERVED, ev.UNOBSERVED, records.PARENT, records.TRACE, records.ERROR}

_BLOCK: Final = 256  # records that are looked at together
_KEY_AT: Final = 6  # where a record has its key, and its time
_TIME_AT: Final = 22

Place = tuple[int, int]  # attempt, segment
Row = tuple[int, int, int, int, int, int, int]  # fields of a record


class Part(NamedTuple):
    """The records of one attempt within a window, in the order in which they were written."""

    attempt: int
    records: list[Record]


class WindowRecords(NamedTuple):
    """The records of a window."""

    # By attempt, in order: all records with a time within the window, and all others of a phase that has one there, as
    # far as the segments that were read have them.
    parts: list[Part]
    until: int  # up to this moment (ns) the answer is whole: the end of the window, or earlier where it was `cut`
    cut: bool  # there are more records than the caller wants
    missing: list[tuple[str, str]]  # segments that could not be read, with the reason


class TimeIndex:
    """The segments of a process by time. It remembers what it has read, for one window after another.

    `once`: all windows are of one moment: the segments are listed once, and what was read is not read again.
    """

    def __init__(self, run: RunDirectory, process: int = 0, *, once: bool = False) -> None:
        self.run = run if once else WatchedRun(run.path)
        self.process = process
        self._once = once
        self._reader: Reader | None = None
        self._firsts: dict[Place, int] = {}  # ns; segments without a record are not in it
        self._names: dict[int, dict[int, str]] = {}  # by attempt, those known so far
        self._scanned: set[Place] = set()  # packed segments whose names are among these
        self._held: OrderedDict[Place, bytes] = OrderedDict()

    def between(self, begin: int, end: int, most: int = MOST) -> WindowRecords:
        """The records from `begin` to `end` (ns), at most about `most` of them. Raises ValueError."""
        if end < begin:
            raise ValueError("the window ends before it begins")
        if self._reader is None or not self._once:
            self._reader = Reader(self.run, self.process)
        reader = self._reader
        missing = [(path.name, str(error)) for path, error in reader.unlisted]
        by_attempt: dict[int, list[SegmentFile]] = {}
        for segment in self._chosen(reader.segments, begin, end, missing):
            by_attempt.setdefault(segment.attempt, []).append(segment)
        parts: list[Part] = []
        count = 0
        for attempt, chosen in by_attempt.items():
            of_attempt = [segment for segment in reader.segments if segment.attempt == attempt]
            entries, reached = self._records(chosen, of_attempt, begin, end, most - count, missing)
            entries = reader.overlaps.kept(attempt, entries)
            count += len(entries)
            if entries:
                parts.append(Part(attempt, entries))
            if reached is not None:
                return WindowRecords(parts, reached, True, missing)
        return WindowRecords(parts, end, False, missing)

    def _chosen(
        self, segments: Sequence[SegmentFile], begin: int, end: int, missing: list[tuple[str, str]]
    ) -> list[SegmentFile]:
        """The segments that may have records from `begin` to `end` (ns)."""
        firsts = [self._first(segment, missing) for segment in segments]
        known = [(at, first) for at, first in enumerate(firsts) if first is not None]
        nexts = [*known[1:], (0, end)]  # a segment reaches to the next one
        inside = [at for (at, first), (_, after) in zip(known, nexts, strict=False) if first <= end and after >= begin]
        near = {place for at in inside for place in range(at - NEIGHBORS, at + NEIGHBORS + 1)}
        return [segments[at] for at in sorted(near) if 0 <= at < len(segments)]

    def _first(self, segment: SegmentFile, missing: list[tuple[str, str]]) -> int | None:
        place = segment.attempt, segment.number
        if place not in self._firsts:
            try:
                start = segment.first()
                first = _first_time([] if start is None else [start])
                if first is None:
                    first = _first_time(segment.beginning(_FIRST))
            except FileNotFoundError:
                return None  # packed since it was listed: the next question finds it
            except (OSError, EOFError, ValueError) as error:
                missing.append((segment.path.name, str(error)))
                return None
            if first is None:
                return None
            self._firsts[place] = first
        return self._firsts[place]

    # --- records ------------------------------------------------------------------------------------------------------

    def _records(
        self,
        chosen: Sequence[SegmentFile],
        segments: Sequence[SegmentFile],
        begin: int,
        end: int,
        most: int,
        missing: list[tuple[str, str]],
    ) -> tuple[list[Record], int | None]:
        """The records of one attempt; and until when they are whole, if there are more than `most`."""
        bodies: list[bytes] = []
        for segment in chosen:
            data = self._data(segment, missing)
            if data is not None:
                self._learn(segment, data)
                bodies.append(_with_left_step(data) if segment is segments[-1] else data[HEADER_SIZE:])
        kept = _kept(bodies, begin, end)
        reached = None
        if len(kept) > most:
            times = sorted(row[6] for row in kept if row[0] in _TIMED and begin <= row[6] <= end)
            reached = times[min(len(times) - 1, most * len(times) // len(kept))] if times else begin
            keys = {row[4] for row in kept if row[0] in _KEYED and begin <= row[6] <= reached}
            kept = [row for row in kept if _belongs(row, keys, begin, reached)][:most]
        names = self._resolved(chosen[0].attempt, {row[3] for row in kept} - {0}, segments, missing)
        return [Record(row[0], row[1], row[2], names.get(row[3], ""), *row[4:]) for row in kept], reached

    def _data(self, segment: SegmentFile, missing: list[tuple[str, str]]) -> bytes | None:
        place = segment.attempt, segment.number
        if place in self._held:
            self._held.move_to_end(place)
            return self._held[place]
        try:
            data = segment.contents().data
            records.decode_header(data)
        except (OSError, EOFError, ValueError) as error:
            missing.append((segment.path.name, str(error)))
            return None
        if self._once or segment.path.suffix == ".gz":  # else it may change
            self._held[place] = data
            while len(self._held) > _HELD:
                self._held.popitem(last=False)
        return data

    # --- names --------------------------------------------------------------------------------------------------------

    def _learn(self, segment: SegmentFile, data: bytes) -> None:
        """Take the names that a segment defines."""
        known = self._names.setdefault(segment.attempt, {})
        names = records.Names()
        kinds = data[HEADER_SIZE::SIZE]
        place = kinds.find(NAME)
        while place >= 0:
            record = data[HEADER_SIZE + place * SIZE :][:SIZE]
            if records.sound(record):
                names.learn(record)
            place = kinds.find(NAME, place + 1)
        known |= names.known
        if segment.path.suffix == ".gz":
            self._scanned.add((segment.attempt, segment.number))

    def _resolved(
        self, attempt: int, wanted: set[int], segments: Sequence[SegmentFile], missing: list[tuple[str, str]]
    ) -> dict[int, str]:
        """The names of an attempt, those `wanted` among them if the journal has them.

        Names are defined once, before their first use: segments are searched from the attempt's first one on, by the
        kinds of their records alone.
        """
        known = self._names.setdefault(attempt, {})
        for segment in [one for one in segments if (attempt, one.number) not in self._scanned]:
            if wanted <= known.keys():
                break
            data = self._data(segment, missing)
            if data is not None:
                self._learn(segment, data)
        return known


def _first_time(entries: Iterable[Record]) -> int | None:
    return next((record.time for record in entries if record.kind in _TIMED), None)


def _with_left_step(data: bytes) -> bytes:
    """The records of an attempt's last segment, with the end of a loop's step that only its header knows yet."""
    body = data[HEADER_SIZE : HEADER_SIZE + (len(data) - HEADER_SIZE) // SIZE * SIZE]
    key, ended = records.left_step(data)
    if not ended:
        return body
    before = preceding(key)
    written = {key, before, preceding(before)}  # keys of the records that may begin or end the step
    rows = list(_sound(body, [at for at, one in enumerate(_column(body, _KEY_AT, "Q")) if one in written]))
    begun = next((row for row in rows if row[0] == ev.START and row[4] == key), None)
    if begun is None or begun[6] > ended or begun[5] >= records.LARGEST:
        return body
    if any(row[0] == ev.END and row[4] == key for row in rows):
        return body
    return body + records.seal(records.BODY.pack(records.LOADING, 0, 0, 0, key, begun[5] + 1, ended))


def _kept(bodies: Sequence[bytes], begin: int, end: int) -> list[Row]:
    """The fields of the records that belong to a window. Only these are unpacked and verified, which takes longest: of
    three segments that are read, a window is often a small part. Which blocks have any is seen without a loop.
    """
    blocks = [block for body in bodies for block in _blocks(body)]
    latest = end + records.LOAD  # a TURN has the time of its end, and begins up to so much earlier
    keys = {
        row[4]
        for body, times, _ in blocks
        if min(times) <= latest and max(times) >= begin
        for row in _sound(body, [at for at, time in enumerate(times) if begin <= time <= _last(body, at, end, latest)])
        if row[0] in _KEYED and row[6] <= end and (row[6] >= begin or row[0] == ev.DEVICE_END)
    }
    shared = bytes([records.DEVICE_ENDS])  # such a record is of the keys of many steps, which end before it
    before = {preceding(key) for key in keys}
    written = keys | before | {preceding(key) for key in before}  # the record of a loop's turn has the first key
    return [
        row
        for body, times, ids in blocks
        if (min(times) <= latest and max(times) >= begin) or not written.isdisjoint(ids) or shared in body[::SIZE]
        for row in _sound(
            body,
            [
                at
                for at, (time, key) in enumerate(zip(times, ids, strict=True))
                if begin <= time <= _last(body, at, end, latest)
                or key in written
                or (body[at * SIZE] == records.DEVICE_ENDS and time > end)
            ],
        )
        if _belongs(row, keys, begin, end)
    ]


def _last(body: bytes, at: int, end: int, latest: int) -> int:
    """Up to which time (ns) the record at `at` may belong to a window that ends at `end`."""
    return latest if body[at * SIZE] == records.TURN else end


def _blocks(body: bytes) -> Iterator[tuple[bytes, list[int], list[int]]]:
    """The records of a segment in blocks, each with all its times and keys."""
    times, ids = _column(body, _TIME_AT, "q"), _column(body, _KEY_AT, "Q")
    for at in range(0, len(times), _BLOCK):
        yield body[at * SIZE : (at + _BLOCK) * SIZE], times[at : at + _BLOCK], ids[at : at + _BLOCK]


def _column(body: bytes, offset: int, kind: str) -> list[int]:
    """The integers of 64 bits at `offset` of all records."""
    integers = array(kind, body[offset : len(body) // SIZE * SIZE - SIZE + offset + 8])
    if sys.byteorder == "big":
        integers.byteswap()
    return integers[:: SIZE // 8].tolist()


def _sound(body: bytes, places: Iterable[int]) -> Iterator[Row]:
    """The fields of the records at these places that can be verified."""
    for at in places:
        if records.sound(body[at * SIZE : (at + 1) * SIZE]):
            yield from records.events_in(RECORD.unpack_from(body, at * SIZE))


def _belongs(row: Row, keys: set[int], begin: int, end: int) -> bool:
    return (row[0] in _TIMED and begin <= row[6] <= end) or (row[0] in _LINKED and row[4] in keys)
