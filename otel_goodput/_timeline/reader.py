"""Reads the journal of a process: its segments in order, attempt by attempt, and what is wrong with them.

Whoever needs the events of a run gets them here. A reader starts with the first segment, or goes on from a position.
It holds one segment at a time, and it does not raise because of what the files contain.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

from otel_goodput._accounting import events as ev
from otel_goodput._accounting import rules
from otel_goodput._accounting.device import NEVER, left_at, place
from otel_goodput._accounting.events import Event, TurnColumns, each_of, following
from otel_goodput._accounting.phase_history import Phases
from otel_goodput._journal import records
from otel_goodput._journal.notes import Note
from otel_goodput._journal.records import LARGEST, NAME, SEGMENT_NAME, TURN, Names, Record, SegmentFile, Skip
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._journal.turn_columns import arithmetic_now, decode_columns
from otel_goodput._text.durations import NS
from otel_goodput._text.quantities import format_duration
from otel_goodput._timeline.damage import Damages, ReadSegment
from otel_goodput._timeline.dispatched import dispatched_in_order

Position = tuple[int, int, int]  # attempt, segment, record

OVERLAP: Final = "attempts at once"  # kind of a note
SHORTEST: Final = NS  # a process that is ending may still write for a moment
_HOLES: Final = 64  # remembered of one segment
_OF_DEVICE: Final = frozenset({ev.OBSERVED, ev.DEVICE_END, ev.UNOBSERVED, ev.MARK})
_BEHIND: Final = 16  # places after the last record of a segment that is left, which a thread may have taken


@dataclass
class Reached:
    """How far a journal has been read, and what it takes to go on from there."""

    attempt: int = -1  # number of the latest one, -1 if there is none
    names: Names = field(default_factory=Names)  # those that it has defined so far
    begun: bool = False  # an event of it has been read, not only a heartbeat
    position: Position | None = None  # what comes next; None if nothing was read
    # Places before that which read as empty or damaged, in segments that may still be written.
    holes: set[Position] = field(default_factory=set)
    phases: Phases[Any] = field(default_factory=Phases)  # those that are open before the segment at `position`
    step: Record | None = None  # the open one; of several, the latest
    left: int = 0  # key of the step whose end was read from a header, before its record was there; 0 if there is none

    def enter(self, attempt: int) -> None:
        """Go on with the next attempt."""
        self.attempt, self.names, self.begun, self.step, self.left = attempt, Names(), False, None, 0
        self.phases.die()

    def begin(self, entries: list[Record]) -> None:
        """Put an ATTEMPT in front of `entries` if they are the first of the attempt, and its record is lost."""
        first = None if self.begun else next((one for one in entries if one.kind < NAME), None)
        if first is not None and first.kind != ev.HEARTBEAT:
            self.begun = True
            if first.kind != ev.ATTEMPT:
                entries.insert(0, Record(ev.ATTEMPT, 0, 0, "", 0, self.attempt, first.time))


class Part(NamedTuple):
    """What was read of one segment."""

    attempt: int  # from 0
    segment: SegmentFile  # where it is from
    entries: list[Record]  # with the heartbeat of its header as the last one; empty if it cannot be read
    number: int  # of this segment among all, from 1
    columns: Sequence[TurnColumns] = ()  # what entries of the kind TURN stand for


class Overlaps:
    """Up to when each attempt of a process counts, and what was recorded after that.

    A launcher may take a process for dead that goes on, on a machine out of reach. Its records from the begin of the
    next attempt on do not count, so that no second is counted twice. The next attempt's first record holds the last
    sign of life that it saw in the journal. What is later than that, and than its own begin, was written by a process
    that was alive at the same time; a clock that is merely fast wrote it before.
    """

    def __init__(self, segments: Sequence[SegmentFile]) -> None:
        self._firsts = {one.attempt: one for one in reversed(segments) if not one.number}
        self._next = dict(pairwise(sorted({one.attempt for one in segments})))
        self._until: dict[int, int | None] = {}
        self._after: dict[int, int] = {}

    def until(self, attempt: int) -> int | None:
        """Return the time up to which an attempt counts, ns; None if no next one is known to have begun."""
        if attempt not in self._until:
            self._until[attempt] = None
            segment = self._firsts.get(self._next.get(attempt, -1))
            first = None if segment is None else segment.first()
            if first is not None and first.kind == ev.ATTEMPT and first.key > 0:
                self._until[attempt] = max(first.key, first.time)
        return self._until[attempt]

    def ends(self, attempt: int, sign: int) -> bool:
        """Whether a sign of life of an attempt (ns) is from after the next attempt had begun."""
        until = self.until(attempt)
        return until is not None and sign > until

    def kept(self, attempt: int, entries: list[Record]) -> list[Record]:
        """Return the records of an attempt that count; remember how long the others went on."""
        until = self.until(attempt)
        last = next((one.time for one in reversed(entries) if one.kind < records.NAME), 0)
        if until is None or last <= until:
            return entries
        late = [one.time for one in entries if one.time > until and one.kind < records.NAME]
        self._after[attempt] = max(self._after.get(attempt, 0), max(late) - until)
        return [one for one in entries if one.time <= until or one.kind >= records.NAME]

    def note(self) -> Note | None:
        """Return the note on attempts that were alive at once; None if there were none."""
        attempts = ", ".join(
            f"attempts {attempt + 1} and {attempt + 2} for {format_duration(duration / NS)}"
            for attempt, duration in sorted(self._after.items())
            if duration >= SHORTEST
        )
        text = (
            f"Two attempts ran at the same time: {attempts}. The earlier one was taken for dead but kept running. What "
            "it recorded during that time is not counted. Make sure that it has ended before you start the job again."
        )
        return Note(OVERLAP, text) if attempts else None


class Reader:
    """Reads the segments that a process has left by now; with `in_columns`, most turns as columns."""

    def __init__(self, run: RunDirectory, process: int = 0, *, in_columns: bool = False) -> None:
        self._in_columns = in_columns
        self.unlisted: list[tuple[Path, Exception]] = []  # what looks like a segment and is none, with the reason
        self.segments = run.segments(process, left_out=lambda path, error: self.unlisted.append((path, error)))
        self.overlaps = Overlaps(self.segments)
        self.reached = Reached()  # where it stands; replace it before reading, to go on from there
        self.segment: SegmentFile | None = None  # the one that was read last
        self.unreadable: set[Path] = set()  # segments that were listed, and whose contents cannot be read

    def records(self, damages: Damages, left_out: Collection[Path] = ()) -> Iterator[Part]:
        """Yield the records of each segment that count. What cannot be read is added to `damages`.

        Segments in `left_out`, which the caller does not want, are yielded without records.
        """
        reached, start = self.reached, self.reached.position
        for path, error in self.unlisted:
            match = SEGMENT_NAME.fullmatch(path.name)
            if start is None or match is None or int(match[1]) >= start[0]:
                damages.left_out(path.name, error)
        after = (-1, 0) if start is None else start[:2]  # the place that is expected next
        for count, segment in enumerate(self.segments, 1):
            at = segment.attempt, segment.number
            if start is not None and at < start[:2]:
                continue
            if segment.attempt != reached.attempt:
                reached.enter(segment.attempt)
            first = after[1] if segment.attempt == after[0] else 0
            if segment.number > first:
                damages.missing(segment.attempt, first, segment.number - 1)
            after = segment.attempt, segment.number + 1
            entries, columns = list[Record](), list[TurnColumns]()
            if segment.path not in left_out:
                self.segment = segment
                last = count == len(self.segments) or self.segments[count].attempt != segment.attempt
                skip = start[2] if start is not None and at == start[:2] else 0
                entries = self._decoded(segment, damages, skip, columns, last=last)
            yield Part(segment.attempt, segment, entries, count, columns)

    def _decoded(
        self, segment: SegmentFile, damages: Damages, skip: int, columns: list[TurnColumns], *, last: bool
    ) -> list[Record]:
        reached = self.reached
        skipped: list[Skip] = []
        try:
            data, room = segment.contents()
            entries = self._entries(data, segment.attempt, skip, skipped, columns)
        except (OSError, EOFError, ValueError) as error:
            self.unreadable.add(segment.path)
            damages.left_out(segment.path.name, error)
            return []
        self._move(segment, max(skip, records.used(data)), [at for at, why in skipped if why != records.UNKNOWN])
        self._end_step(entries, columns, *records.left_step(data))
        entries = self.overlaps.kept(segment.attempt, entries)
        times = [one.time for one in entries if one.kind < NAME] + [time for one in columns for time in one.span]
        sealed = segment.path.suffix == ".gz"
        read = ReadSegment(segment.path.name, data, room, skipped, skip, sealed, last, reached.phases)
        damages.segment(read, (min(times), max(times)) if times else None)
        reached.begin(entries)
        if not last:
            for one in entries:
                if one.kind == TURN:  # what begins in these ends in them, but for the last step
                    reached.phases.end(one.key)
                    one = _begun(columns[one.step])
                reached.phases.take(one.kind, one.key, one)
        return entries

    def _entries(
        self, data: bytes, attempt: int, skip: int, skipped: list[Skip], columns: list[TurnColumns]
    ) -> list[Record]:
        reached = self.reached
        if self._in_columns:
            left_out: list[Skip] = []
            entries = list(decode_columns(data, reached.names, skip, left_out, columns))
            until = self.overlaps.until(attempt) if columns else None
            if not any(one.has(reached.left) or (until is not None and one.span[1] > until) for one in columns):
                skipped += left_out
                return entries
            columns.clear()  # not all of them count
        return list(records.decode_segment(data, reached.names, skip, skipped))

    def _end_step(self, entries: list[Record], columns: Sequence[TurnColumns], key: int, ended: int) -> None:
        """End the loop's step `key` at `ended` (ns), and begin the next data load, as the header of a segment says.

        A loop records both after the load, see :meth:`~otel_goodput._journal.journal.Journal.leave_step`. They are not
        read a second time then.
        """
        reached = self.reached
        if reached.left:
            again = (ev.END, reached.left), (ev.START, following(reached.left))
            entries[:] = [one for one in entries if (one.kind, one.key) not in again]
        reached.step = step = _open_step(entries, columns, reached.step)
        if step is None or step.key != key or ended < step.time:
            return
        at = len(entries) - (bool(entries) and entries[-1].kind == ev.HEARTBEAT)
        entries[at:at] = [
            Record(ev.END, rules.STEP, 0, "", key, step.step, ended),
            Record(ev.START, rules.DATA_LOADING, 0, "", following(key), step.step + 1, ended),
        ]
        reached.step, reached.left = None, key

    def _move(self, segment: SegmentFile, end: int, lost: list[int]) -> None:
        """Note that a segment has been read up to the record `end`, of which those at `lost` cannot be read."""
        holes = lost[:_HOLES]
        if segment is self.segments[-1]:
            while lost and lost[-1] == end - 1:  # perhaps they are being written
                end = lost.pop()
            holes = [at for at in holes if at < end]
        else:
            holes += range(end, min(end + _BEHIND, records.CAPACITY))
        self.reached.position = segment.attempt, segment.number, end
        if segment.path.suffix != ".gz":
            self.reached.holes |= {(segment.attempt, segment.number, at) for at in holes}


def _begun(turns: TurnColumns) -> Record:
    """Return the step that is open after `turns`."""
    *_, last = turns.slice(len(turns.numbers) - 1).events()
    return Record(last.kind, last.phase, 0, "", last.key, last.step, last.time)


def _open_step(entries: Sequence[Record], columns: Sequence[TurnColumns], before: Record | None) -> Record | None:
    """Return the step that began last and is open after `entries`; `before`: the one before them."""
    ended: set[int] = set()
    for one in reversed(entries):
        if one.kind == ev.END:
            ended.add(one.key)
        elif one.kind == ev.START and one.phase == rules.STEP:
            before = one
            break
        elif one.kind == TURN:  # what was recorded right behind it is damaged
            before = _begun(columns[one.step])
            break
    return None if before is None or before.key in ended else before


# --- the events of a whole run ----------------------------------------------------------------------------------------


def all_events(run: RunDirectory, process: int = 0, damages: Damages | None = None) -> Iterator[Event]:
    """Yield every event of the run, ordered by attempt and time; reads the whole journal.

    What has to be left out is added to `damages`, or logged if `damages` is None.
    """
    for events in _attempts(Reader(run, process), damages):
        yield from ordered([one for one in events if isinstance(one, Event)])


def all_turns(run: RunDirectory, process: int = 0, damages: Damages | None = None) -> Iterator[Event | TurnColumns]:
    """The same, but with most turns of undisturbed loops together."""
    for events in _attempts(Reader(run, process, in_columns=True), damages):
        yield from in_order(events)


def _attempts(reader: Reader, damages: Damages | None) -> Iterator[list[Event | TurnColumns]]:
    """Yield what was recorded in each attempt, as it was recorded."""
    left_out = Damages() if damages is None else damages
    attempt = -1
    events: list[Event | TurnColumns] = []
    for part in reader.records(left_out):
        if part.attempt != attempt:
            yield events
            attempt, events = part.attempt, []
        at = 0
        for behind, turns in _places(part):
            events += records.events_of(part.entries[at:behind])
            events.append(turns)
            at = behind + 1
        events += records.events_of(part.entries[at:])
    yield events
    if damages is None:
        left_out.log()


def _places(part: Part) -> Iterator[tuple[int, TurnColumns]]:
    if part.columns:
        for at, entry in enumerate(part.entries):
            if entry.kind == TURN:
                yield at, part.columns[entry.step]


def in_order(items: Sequence[Event | TurnColumns]) -> Iterator[Event | TurnColumns]:
    """Yield what was recorded in one attempt in time order; turns are divided where something is in between."""
    if _are_in_order(items):
        yield from items
        return
    together = [(at, one) for at, one in enumerate(items) if isinstance(one, TurnColumns)]
    single = [(at, one) for at, one in enumerate(items) if isinstance(one, Event)]
    if (dispatched := dispatched_in_order(items, arithmetic_now())) is not None:
        yield from dispatched
        return
    if (
        any(before.time > after.ended[0] for (_, before), (_, after) in pairwise(together))
        or any(one[1] in _OF_DEVICE or (one[1] == ev.END and one[5] & ev.ON_DEVICE) for _, one in single)
        or any(one.device is not None for _, one in together)
    ):
        yield from ordered(list(each_of(items)))
        return
    yield from [one for _, one in single if one[1] == ev.ATTEMPT]
    waiting = sorted((one for one in single if one[1][1] != ev.ATTEMPT), key=lambda one: one[1][0])
    waiting.reverse()
    for at, turns in together:
        while waiting and (waiting[-1][1][0], waiting[-1][0]) < (turns.ended[0], at):
            yield waiting.pop()[1]
        if waiting and (waiting[-1][1][0], waiting[-1][0]) < (turns.time, at):
            yield from _divided(at, turns, waiting)
        else:
            yield turns
    while waiting:
        yield waiting.pop()[1]


def _are_in_order(items: Sequence[Event | TurnColumns]) -> bool:
    """Whether they are in time order, and nothing is awaited from a device."""
    latest = -LARGEST
    for one in items:
        if isinstance(one, TurnColumns):
            if one.ended[0] < latest or one.device is not None:
                return False
            latest = one.time
            continue
        time, kind, _, _, _, flags, _, _ = one[:]
        if time < latest or kind in _OF_DEVICE or (kind == ev.END and flags & ev.ON_DEVICE):
            return False
        if kind == ev.ATTEMPT and latest > -LARGEST:  # it comes first
            return False
        latest = time if kind != ev.ATTEMPT else -LARGEST
    return True


def _divided(at: int, turns: TurnColumns, waiting: list[tuple[int, Event]]) -> Iterator[Event | TurnColumns]:
    """Yield turns that were recorded at the place `at`, with the events in between, which are taken from `waiting`."""
    first, count = 0, len(turns.numbers)
    while waiting:
        place, (time, *_) = waiting[-1]
        behind = bisect_left if place < at else bisect_right
        turn = behind(turns.begun, time, first)  # those before it are over then
        if turn == count:
            break
        if first < turn:
            yield turns.slice(first, turn)
        first = turn
        if behind((turns.ended[turn],), time):  # it is in this turn
            ending, loading, loaded, beginning = turns.slice(turn, turn + 1).events()
            yield from (ending, loading)
            while waiting and (waiting[-1][1][0], waiting[-1][0]) < (loaded.time, at):
                yield waiting.pop()[1]
            yield from (loaded, beginning)
            first += 1
        else:
            yield waiting.pop()[1]
    if first < count:
        yield turns.slice(first)


def ordered(events: list[Event]) -> Iterator[Event]:
    """Yield the events of one attempt in time order, with the device ends of observed steps and marks filled in."""
    yield from [event for event in events if event[1] == ev.ATTEMPT]
    begins: dict[int, int] = {}
    ends: dict[int, int] = {}
    free = 0
    awaited: set[int] = set()
    given_up: set[int] = set()
    rest = []
    for event in events:
        kind = event[1]
        if kind == ev.START and event[2] == rules.STEP:
            begins[event[3]] = event[0]
        elif kind == ev.OBSERVED or kind == ev.MARK or (kind == ev.END and event[5] & ev.ON_DEVICE):
            awaited.add(event[3])
        elif kind == ev.DEVICE_END:
            ends[event[3]] = end = left_at(event, begins.get(event[3], free), free)
            free = max(free, end)
            event = event._replace(time=end, step=ev.NO_STEP)
        elif kind == ev.UNOBSERVED:
            given_up.add(event[3])
        if kind != ev.ATTEMPT:
            rest.append(event)
    rest.sort(key=itemgetter(0))
    yield from place(rest, ends, awaited - given_up, NEVER) if awaited or ends else rest
