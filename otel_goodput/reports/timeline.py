"""Timelines in the neutral form, and the account of events, offline, by the same rules as that of the live job.

The neutral form is one JSON object a phase (see docs/accounting.md, "Timeline files")::

    {"kind": "step", "start": 32.0, "end": 35.0, "step": 0, "attempt": 1}
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from heapq import heappop, heappush
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

from otel_goodput._accounting import balance, rules
from otel_goodput._accounting import events as ev
from otel_goodput._accounting.checkpoints import Stages
from otel_goodput._accounting.cursor import Cursor
from otel_goodput._accounting.device import NEVER, place
from otel_goodput._accounting.events import Event
from otel_goodput._accounting.phase_history import COMPLETED, paired
from otel_goodput._accounting.totals import Totals
from otel_goodput._runtime import files
from otel_goodput._text.durations import NS
from otel_goodput._text.redact import redacting_logger
from otel_goodput.semconv import FALLBACK_CLOCKS, PHASES

logger = redacting_logger(__name__)

Row = Mapping[str, Any]

_OPEN: Final = NEVER
_BLOCK: Final = 1 << 16  # bytes read at once
_BOUND: Final = 4_600_000_000 * NS  # times are nearer to 0 than this; NEVER is not
_PER_SECOND: Final = float(NS)  # a float: a string times this raises instead of being repeated

_make: Final = tuple.__new__


class _Entry(NamedTuple):
    """A row; entries sort in the order in which they start."""

    attempt: int
    start: int
    rank: int  # orders entries that start at the same time, see ``_RANKS``
    row: int  # number of the row, from 1; also the key of its phase
    end: int  # ns; ``_OPEN`` if it has not ended by the time of the question, or has no duration
    implicit: bool  # it is a data load without a value for `blocking`
    event: Event  # its START, or its only event
    flags: int = 0  # of its END
    # Work dispatched to the device: when it was dispatched, and when it left (``NEVER``: it has not). Empty for a step
    # with nothing but a device end, which is the `arg` of its START.
    segments: tuple[tuple[int, int], ...] = ()
    loop: str = ""  # of a step, the loop that it belongs to


# Order of events at the same time: marks, ends, starts, and the ends of phases without length.
_MARKS: Final = 0
_ENDS: Final = 1
_STARTS: Final = 2
_EMPTY_ENDS: Final = 3
# Order of phases that start at the same time, by (factor × end + offset). The job contains all others. Steps follow
# each other and are not nested; phases find their step in either order. Of others the one that ends later is outer.
_RANKS: Final = tuple(
    {rules.JOB: (-1, -5 * NEVER), rules.STEP: (1, -3 * NEVER)}.get(phase, (-1, 0)) for phase in range(len(PHASES))
)


class Timeline:
    """Rows of the neutral form, checked and sorted. Times are in ns."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.dropped = 0  # malformed rows, which are ignored
        self.latest: int | None = None  # latest time in the leader's rows; None without any
        self.exclusions: list[tuple[int, int]] = []  # (start, end) of the windows that rows exclude
        entries: list[_Entry] = []
        add = entries.append
        latest = attempt = self.last = -_OPEN  # `last`: latest time in the rows of the leader's latest attempt
        for number, row in enumerate(rows, 1):
            try:
                entry = self._entry(row, number)
            except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
                self.dropped += 1
                if self.dropped == 1:
                    logger.warning("a row of the timeline is left out: %r: %s", row, error)
                continue
            if entry is None:
                continue
            _, start, _, _, end, _, event, _, segments, _ = entry
            last = start if end == _OPEN else end
            if event[1] == ev.SUSPENDED:
                last = start + event[3]
            if _OPEN > event[6] > last and event[1] == ev.START:
                last = event[6]
            for dispatched, left in segments:
                last = max(last, dispatched, left if left < _OPEN else dispatched)
            if last > latest:
                latest = last
            if event[2] == rules.EXCLUSION:
                # It holds for this time whatever attempt the row names.
                self.exclusions.append((start, end))
            else:
                add(entry)
                if entry[0] > attempt:
                    attempt, self.last = entry[0], last
                elif entry[0] == attempt and last > self.last:
                    self.last = last
        if self.dropped > 1:
            logger.warning("%d rows of the timeline are left out", self.dropped)
        if entries or self.exclusions:
            self.latest = latest
        entries.sort()
        self._entries = _once(entries)

    def _entry(self, row: Row, number: int) -> _Entry | None:
        """Check and convert a row; None if another process wrote it."""
        get = row.get
        if get("process"):
            return None
        kind = row["kind"]
        start, end = _ns(row, "start_ns", "start"), _ns(row, "end_ns", "end")
        if start is None:
            raise ValueError("a row needs a start")
        attempt = int(get("attempt") or 1)
        phase = rules.PHASE_INDEX.get(kind)
        if phase is None:
            event = _sign(kind, start, start if end is None else end, row)
            return _Entry(attempt, start, 0, number, _OPEN, False, event)
        if end is None:
            end = _OPEN
        elif end < start:
            end = start
        step, blocking, name = get("step"), get("blocking"), get("name", "")
        device = 0
        if phase == rules.STEP and (step is None or step < 0):
            raise ValueError("a step needs a number, an integer >= 0")
        segments: tuple[tuple[int, int], ...] = ()
        if phase in rules.MARKABLE and blocking is not False:
            left = _ns(row, "device_end_ns", "device_end")
            device = 0 if left is None else max(start, left, 1)
            if "device" in row or "device_ns" in row or (device and phase != rules.STEP):
                segments, device = _segments(row, start, end, device), 0
                if phase == rules.STEP and len(segments) == 1 and segments[0][0] == start:
                    device, segments = segments[0][1], ()
        if step is None:
            step = ev.NO_STEP
        elif step.__class__ is not int:
            step = int(step)
        if name.__class__ is not str:
            name = "" if name is None else str(name)
        flags = ev.NONBLOCKING if blocking is False else 0
        if get("overlaps") is True and not flags:
            flags, blocking = ev.OVERLAPPING, True
        if get("numbered") is True and phase == rules.STEP:
            flags |= ev.NUMBERED
        # `_make` takes a third of the time of Event(…) and _Entry(…).
        event = _make(Event, (start, ev.START, phase, number, step, flags, device, name))
        factor, offset = _RANKS[phase]
        implicit = blocking is None and phase == rules.DATA_LOADING
        over = ev.FAILED if get("completed") is False else 0
        if get("left") is True:
            over = ev.FAILED | ev.LEFT | (ev.IDLE if over else 0)
        loop = get("loop")
        loop = "" if loop is None else str(loop)
        rank = factor * end + offset
        return _make(_Entry, (attempt, start, rank, number, end, implicit, event, over, segments, loop))

    @property
    def earliest(self) -> int | None:
        """Earliest start of the leader's rows, ns; None without any."""
        return min((entry.start for entry in self._entries), default=None)

    def events(self, at: int | None = None) -> Iterator[Event]:
        """Yield the rows as events ordered by attempt and time, as known at time `at` (ns; None: at the end)."""
        entries = self._entries
        if at is not None:
            entries = sorted(known for entry in entries if (known := _as_known(entry, at)) is not None)
        compiling = {entry[0] for entry in entries if entry[6][2] == rules.COMPILE}
        for number, attempt in groupby(entries, itemgetter(0)):
            mine = list(attempt)
            yield Event(mine[0][1], ev.ATTEMPT, step=number - 1)
            yield from place(list(_in_order(mine)), {}) if number in compiling else _in_order(mine)


def _in_order(entries: list[_Entry]) -> Iterator[Event]:
    """Yield the events of one attempt in order."""
    # Heap of later events: (4 × time + order at the same time, whether a job ends, key, event). A phase without length
    # ends after its start; a job ends last.
    coming: list[tuple[int, bool, int, Event]] = []
    stepping = -_OPEN  # latest end of the steps started so far, ns
    loops = {"": 0}  # numbers by name
    latest = ""
    for _, start, _, row, end, implicit, event, flags, segments, loop in entries:
        limit = 4 * start + _STARTS
        while coming and coming[0][0] < limit:
            yield heappop(coming)[3]
        phase = event[2]
        if phase == rules.STEP:
            if end > stepping:
                stepping = end
            if loop != latest and not event[5] & ev.NONBLOCKING:
                latest = loop
                yield Event(start, ev.LOOP, step=loops.setdefault(loop, len(loops)))
        elif implicit and end <= stepping:
            # A timeline has no threads: a data load inside a step counts as a prefetch unless it has `blocking`.
            event = event._replace(flags=ev.NONBLOCKING)
        yield event
        for dispatched, left in segments:
            mark = Event(dispatched, ev.MARK, key=row, step=row, arg=left)
            if dispatched == start:
                yield mark
            else:
                heappush(coming, (4 * dispatched + _MARKS, False, row, mark))
        if end != _OPEN:
            name = event[7] if phase == rules.COMPILE else ""
            over = _make(Event, (end, ev.END, phase, row, ev.NO_STEP, flags, 0, name))
            heappush(coming, (4 * end + (_EMPTY_ENDS if end == start else _ENDS), phase == rules.JOB, row, over))
    while coming:
        yield heappop(coming)[3]


def _once(entries: list[_Entry]) -> list[_Entry]:
    """Return the sorted entries without duplicates (rule R9)."""
    places = [entry[:3] for entry in entries]
    if len(set(places)) == len(places):
        return entries
    once: dict[object, _Entry] = {}
    for entry in entries:
        event = entry.event
        content = event._replace(key=0) if event.kind == ev.START else event  # keys are row numbers: they differ
        once.setdefault((*entry[:3], *entry[4:6], content, *entry[7:]), entry)
    return list(once.values())


def _ns(row: Row, exact: str, seconds: str) -> int | None:
    """Return a time of a row, which has it in ns or in seconds; None if it has none."""
    time = row.get(exact)
    if time is None:
        if (time := row.get(seconds)) is None:
            return None
        time *= _PER_SECOND
    ns = int(time) if time.__class__ is int else round(time)
    if not -_BOUND < ns < _BOUND:
        raise ValueError(f"invalid time: {ns} ns")
    return ns


def _sign(kind: str, start: int, end: int, row: Row) -> Event:
    """Return the event of a row without a duration: a heartbeat, slice counts or a clock state."""
    if kind == "heartbeat":
        return Event(start, ev.HEARTBEAT)
    if kind == "slice_counts":
        active, available, total = (int(row[name]) for name in ("active", "available", "total"))
        return Event(start, ev.SLICES, 0, available, active, 0, total)
    if kind == "clock":
        return Event(start, ev.CLOCK, FALLBACK_CLOCKS.index(row["state"]))
    if kind == "suspended":
        return Event(start, ev.SUSPENDED, key=max(0, end - start))
    if kind == "stall_limit":
        limit = _ns(row, "limit_ns", "limit")
        if limit is None or limit < 0:
            raise ValueError(f"invalid limit: {limit} ns")
        return Event(start, ev.LIMIT, key=limit)
    if kind == "profiling":
        return Event(start, ev.PROFILING, step=int(row.get("state") != "over"))
    raise ValueError(f"unknown kind {kind!r}")


def _segments(row: Row, start: int, end: int, device_end: int) -> tuple[tuple[int, int], ...]:
    """Return sorted (dispatched, left) pairs in ns; (`start`, `device_end`) is one of them if `device_end` is not 0."""
    pairs = row.get("device_ns")
    if pairs is None:
        pairs = [[None if time is None else time * _PER_SECOND for time in pair] for pair in row.get("device") or ()]
    segments = [(start, device_end)] if device_end else []
    for dispatched, left in pairs:
        begin = min(max(start, round(dispatched)), end)
        if not (-_BOUND < begin < _BOUND and (left is None or -_BOUND < left < _BOUND)):
            raise ValueError(f"invalid times: {dispatched} ns, {left} ns")
        segments.append((begin, _OPEN if left is None else max(begin, round(left), 1)))
    return tuple(sorted(segments))


def _as_known(entry: _Entry, at: int) -> _Entry | None:
    """Return the entry as known at time `at` (ns): what ends later has not ended; None if it has not begun."""
    event = entry.event
    if entry.start + (event.key if event.kind == ev.SUSPENDED else 0) > at:  # that is known when it is over
        return None
    if event.kind != ev.START:
        return entry
    if event.arg > at:
        entry = entry._replace(event=event._replace(arg=_OPEN))
    if entry.segments:
        known = ((begin, left if left <= at else _OPEN) for begin, left in entry.segments if begin <= at)
        entry = entry._replace(segments=tuple(known))
    if entry.end <= at:
        return entry
    factor, offset = _RANKS[event.phase]
    return entry._replace(end=_OPEN, rank=factor * _OPEN + offset)


def read_timeline(path: Path | None) -> Iterator[Row]:
    """Yield the rows of a JSON-lines file, or of standard input if `path` is None.

    Raises:
        ValueError: a line is not a JSON object, or longer than ``files.LONGEST_LINE``.
        OSError: the file cannot be read.
    """
    source, before = path or "standard input", 0
    with files.open_given(path) if path is not None else nullcontext(sys.stdin.buffer) as file:
        for lines in files.blocks_of_lines(file, source, _BLOCK):
            for number, line in enumerate(lines, before + 1):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line.decode())
                except ValueError as error:
                    raise ValueError(f"{source}: line {number} is not JSON: {error}") from error
                if not isinstance(row, dict):
                    raise ValueError(f"{source}: line {number} is not an object")
                yield row
            before += len(lines)


_BATCH: Final = 4096  # events applied at a time


def account_timeline(
    timeline: Timeline,
    *,
    at: int | None,
    windows: Sequence[tuple[int, int]] = (),
    exclusions: Sequence[tuple[int, int]] = (),
    ideal_step_time: float | None = None,
) -> Totals:
    """Account for a timeline, without what its rows exclude. Arguments as for :func:`account`.

    If `at` is None, it is the latest time of all rows, or of the latest attempt if its clock was behind.
    """
    return account(
        timeline.events(at),
        at=at,
        latest=lambda behind: timeline.last if behind else timeline.latest,
        windows=windows,
        exclusions=[*exclusions, *timeline.exclusions],
        ideal_step_time=ideal_step_time,
    )


def account(
    events: Iterable[Event],
    *,
    at: int | None,
    latest: Callable[[bool], int | None] = lambda _: None,
    windows: Sequence[tuple[int, int]] = (),
    exclusions: Sequence[tuple[int, int]] = (),
    ideal_step_time: float | None = None,
    spans: Sequence[int] = (),
) -> Totals:
    """Account for events that are ordered by attempt and time; all times in ns.

    Args:
        at: the time of the question. If it is None, it is what `latest` returns, given whether the latest attempt's
            clock was behind; if that is None too, it is the time of the last event.
        windows: (start, end) pairs to account for separately (rule R8).
        exclusions: (start, end) pairs to cut out (rule R7).
        ideal_step_time: by default it is estimated.
        spans: lengths of rolling windows.

    Raises:
        ValueError: a window or an exclusion ends before it starts.
    """
    for start, end in (*windows, *exclusions):
        if end < start:
            raise ValueError(f"a window must not end before it starts: {start / NS} .. {end / NS}")
    edges = [
        edge
        for window, (start, end) in (*((0, one) for one in exclusions), *enumerate(windows, 1))
        if start < end
        for edge in ((start, window, True), (end, window, False))
    ]
    cursor = Cursor(spans, sorted(edges), 1 + len(windows))
    stages = Stages()
    for part in paired(_applied(cursor, events)):
        if part.fate == COMPLETED:
            stages.add(part.name, part.length)
    moment = latest(cursor.shift > 0) if at is None else at
    if moment is None:
        cursor.drain()
    else:
        cursor.reach(moment)
    cursor.close()
    return balance.totals_of(cursor, windows, ideal_step_time, moment, stages.sums)


def _applied(cursor: Cursor, events: Iterable[Event]) -> Iterator[Event]:
    """Apply events to `cursor`, and yield what tells the parts of checkpoints among them."""
    rest = iter(events)
    while batch := list(islice(rest, _BATCH)):
        cursor.apply_all(batch)
        yield from (event for event in batch if event.kind != ev.START or event.phase == rules.PART)
