"""Finds the records of a window of time without reading the rest of the journal.

When a segment begins is told by its first record, which is read without unpacking the whole. Records of a phase may
lie in the segments beside those of the window (what ends later, what the device tells later), so one more on each side
is read. What is recorded with times long past (backfilled) is found only if it lies in the segments that are read.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from operator import le
from pathlib import Path
from typing import Final, NamedTuple

from otel_goodput._accounting import events as ev
from otel_goodput._journal import records
from otel_goodput._journal.records import HEADER_SIZE, NAME, RECORD, SIZE, Record
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._journal.segment_file import SegmentFile
from otel_goodput._timeline.overlaps import Overlaps
from otel_goodput._timeline.recovery import snapshot_names

MOST: Final = 400_000  # records of one answer
BESIDE: Final = 1  # segments read before and after those of the window
_FIRST: Final = 64  # records in which the first time is looked for
_HELD: Final = 8  # segments kept in memory, up to a MiB each
_SCANNED: Final = 4  # segments looked through for names before the snapshot is asked
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
    """The records of a window.

    Attributes:
        parts: by attempt, in order. All records with a time within the window, and all others of a phase that has one
            there, as far as the segments that were read have them.
        until: up to this moment (ns) the answer is whole: the end of the window, or earlier where it was `cut`.
        cut: there are more records than were asked for.
        missing: segments that could not be read, with the reason.
    """

    parts: list[Part]
    until: int
    cut: bool
    missing: list[tuple[str, str]]


class _Listing:
    """The segments of a process, in order, with the times of their first records."""

    def __init__(self, segments: Sequence[SegmentFile], firsts: Sequence[int | None]) -> None:
        self.segments = segments
        self.overlaps = Overlaps(segments)
        self.of_attempt: dict[int, list[SegmentFile]] = {}
        for segment in segments:
            self.of_attempt.setdefault(segment.attempt, []).append(segment)
        known = [(at, first) for at, first in enumerate(firsts) if first is not None]
        self._places = [at for at, _ in known]
        self._firsts = [first for _, first in known]
        self._rising = all(map(le, self._firsts, self._firsts[1:]))  # unless a clock was set back

    def chosen(self, begin: int, end: int) -> list[SegmentFile]:
        """The segments that may have records from `begin` to `end` (ns)."""
        firsts = self._firsts
        places: Iterable[int]
        if self._rising:
            # From the last one that begins before the window, for it may reach into it; several may begin at once.
            places = range(max(0, bisect_left(firsts, begin) - 1), bisect_right(firsts, end))
        else:
            afters = zip(firsts, [*firsts[1:], None], strict=True)
            places = [
                at for at, (first, after) in enumerate(afters) if first <= end and (after is None or after >= begin)
            ]
        inside = {near for at in places for near in range(self._places[at] - BESIDE, self._places[at] + BESIDE + 1)}
        return [self.segments[at] for at in sorted(inside) if 0 <= at < len(self.segments)]


class TimeIndex:
    """The segments of a process by time. It remembers what it has learned, for windows asked one after another.

    Args:
        run, process: whose segments.
        once: whether all windows are of one moment: the segments are listed once, and what was read is not read again.
    """

    def __init__(self, run: RunDirectory, process: int = 0, *, once: bool = False) -> None:
        self.run = run
        self.process = process
        self._once = once
        self._listing: tuple[_Listing, list[tuple[str, str]]] | None = None
        self._segments: dict[str, SegmentFile] = {}  # packed ones by name: they do not change any more
        self._firsts: dict[Place, int] = {}  # ns; segments without a record are not in it
        self._names: dict[int, dict[int, str]] = {}  # by attempt, those found so far
        self._scanned: dict[int, set[int]] = {}  # by attempt: segments looked through for names
        self._held: OrderedDict[Place, bytes] = OrderedDict()

    def between(self, begin: int, end: int, most: int = MOST) -> WindowRecords:
        """The records from `begin` to `end` (ns), at most about `most` of them.

        Raises:
            ValueError: the window ends before it begins.
        """
        if end < begin:
            raise ValueError("the window ends before it begins")
        listing, left_out = self._listed()
        missing = list(left_out)
        chosen = listing.chosen(begin, end)
        parts: list[Part] = []
        count, until, cut = 0, end, False
        for attempt in sorted({segment.attempt for segment in chosen}):
            mine = [segment for segment in chosen if segment.attempt == attempt]
            of_attempt = listing.of_attempt[attempt]
            found, reached = self._records(mine, of_attempt, begin, end, most - count, missing)
            found = listing.overlaps.kept(attempt, found)
            count += len(found)
            parts.append(Part(attempt, found))
            if reached is not None:
                cut, until = True, reached
                break
        return WindowRecords([part for part in parts if part.records], until, cut, missing)

    def _listed(self) -> tuple[_Listing, list[tuple[str, str]]]:
        """The segments, and those that cannot be read, each with the reason."""
        if self._listing is not None:
            return self._listing
        missing: list[tuple[str, str]] = []

        def left_out(path: Path, why: Exception) -> None:
            missing.append((path.name, str(why)))

        segments = self.run.segments(self.process, left_out=left_out)
        found = _Listing(segments, [self._first(segment, missing) for segment in segments]), missing
        if self._once:
            self._listing = found
        return found

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
                bodies.append(data[HEADER_SIZE:])
        kept = _kept(bodies, begin, end)
        reached = None
        if len(kept) > most:
            times = sorted(row[6] for row in kept if row[0] in _TIMED and begin <= row[6] <= end)
            reached = times[min(len(times) - 1, most * len(times) // len(kept))] if times else begin
            keys = {row[4] for row in kept if row[0] in _KEYED and begin <= row[6] <= reached}
            kept = [row for row in kept if _belongs(row, keys, begin, reached)][:most]
        names = self._resolved(chosen[0].attempt, {row[3] for row in kept} - {0}, segments, missing)
        found = [Record(row[0], row[1], row[2], names.get(row[3], ""), *row[4:]) for row in kept]
        return found, reached

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
        """Take the names that a segment tells."""
        known = self._names.setdefault(segment.attempt, {})
        names = records.Names()
        for at in _names_in(data):
            record = data[at : at + SIZE]
            if records.sound(record):
                names.learn(record)
        known |= names.known
        if segment.path.suffix == ".gz":
            self._scanned.setdefault(segment.attempt, set()).add(segment.number)

    def _resolved(
        self, attempt: int, wanted: set[int], segments: Sequence[SegmentFile], missing: list[tuple[str, str]]
    ) -> dict[int, str]:
        """The names of an attempt, those `wanted` among them if the journal has them.

        They are told once, before they are first used: segments are looked through from the attempt's first one on, by
        the kinds of their records alone; if that takes long, the snapshot is asked.
        """
        known, scanned = self._names.setdefault(attempt, {}), self._scanned.setdefault(attempt, set())
        asked = False
        looked = 0
        for segment in segments:
            if wanted <= known.keys():
                break
            if segment.attempt != attempt or segment.number in scanned:
                continue
            if looked >= _SCANNED and not asked:
                asked = True
                whose, told = snapshot_names(self.run, self.process)
                if whose == attempt:
                    known |= {identity: name for identity, name in told.items() if identity not in known}
                    continue
            looked += 1
            data = self._data(segment, missing)
            if data is not None:
                self._learn(segment, data)
        return known


def _first_time(found: Iterable[Record]) -> int | None:
    return next((record.time for record in found if record.kind in _TIMED), None)


def _names_in(data: bytes) -> list[int]:
    """Where the NAME records of a segment begin."""
    kinds = data[HEADER_SIZE::SIZE]
    found = []
    at = kinds.find(NAME)
    while at >= 0:
        found.append(HEADER_SIZE + at * SIZE)
        at = kinds.find(NAME, at + 1)
    return found


def _kept(bodies: Sequence[bytes], begin: int, end: int) -> list[Row]:
    """The fields of the records that belong to a window. Only these are unpacked and verified, which takes longest: of
    three segments that are read, a window is often a small part. Which blocks have any is seen without a loop.
    """
    blocks = [block for body in bodies for block in _blocks(body)]
    keys = {
        row[4]
        for body, times, _ in blocks
        if min(times) <= end and max(times) >= begin
        for row in _sound(body, [at for at, time in enumerate(times) if begin <= time <= end])
        if row[0] in _KEYED
    }
    shared = bytes([records.DEVICE_ENDS])  # such a record is of the keys of many steps, which end before it
    written = keys | {records.preceding(key) for key in keys}  # the record of a loop's turn has the first of two keys
    return [
        row
        for body, times, ids in blocks
        if (min(times) <= end and max(times) >= begin) or not written.isdisjoint(ids) or shared in body[::SIZE]
        for row in _sound(
            body,
            [
                at
                for at, (time, key) in enumerate(zip(times, ids, strict=True))
                if begin <= time <= end or key in written or (body[at * SIZE] == records.DEVICE_ENDS and time > end)
            ],
        )
        if (begin <= row[6] <= end and row[0] in _TIMED) or (row[4] in keys and row[0] in _LINKED)
    ]


def _blocks(body: bytes) -> Iterator[tuple[bytes, list[int], list[int]]]:
    """The records of a segment in blocks, each with all its times and keys."""
    times, ids = _column(body, _TIME_AT, "q"), _column(body, _KEY_AT, "Q")
    for at in range(0, len(times), _BLOCK):
        yield body[at * SIZE : (at + _BLOCK) * SIZE], times[at : at + _BLOCK], ids[at : at + _BLOCK]


def _column(body: bytes, offset: int, kind: str) -> list[int]:
    """The integers of 64 bits at `offset` of all records."""
    found = array(kind, body[offset : len(body) // SIZE * SIZE - SIZE + offset + 8])
    if sys.byteorder == "big":
        found.byteswap()
    return found[:: SIZE // 8].tolist()


def _sound(body: bytes, places: Iterable[int]) -> Iterator[Row]:
    """The fields of the records at these places that can be verified."""
    for at in places:
        if records.sound(body[at * SIZE : (at + 1) * SIZE]):
            yield from records.events_in(RECORD.unpack_from(body, at * SIZE))


def _belongs(row: Row, keys: set[int], begin: int, end: int) -> bool:
    kind, key, time = row[0], row[4], row[6]
    if kind in _TIMED and begin <= time <= end:
        return True
    return kind in _LINKED and key in keys
