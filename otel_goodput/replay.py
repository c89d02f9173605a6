"""Offline: a timeline in the neutral form, or a journal, through the same ledger as the live job.

The neutral form is one JSON object a phase (see ACCOUNTING, "Timeline files")::

    {"kind": "step", "start": 32.0, "end": 35.0, "step": 0, "attempt": 1}
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final, NamedTuple

from otel_goodput.accounting import balance, rules
from otel_goodput.accounting import events as ev
from otel_goodput.accounting.cursor import NEVER, Cursor
from otel_goodput.accounting.events import Event
from otel_goodput.accounting.totals import NS, Totals
from otel_goodput.semconv import Phase

logger = logging.getLogger(__name__)

_HEARTBEAT: Final = "heartbeat"
_SLICE_COUNTS: Final = "slice_counts"
_OPEN: Final = NEVER
_LATEST: Final = 4.6e9  # seconds; NEVER in ns is beyond

Row = Mapping[str, Any]
Window = tuple[float, float]


class Interval(NamedTuple):
    """A row in integers of ns; `end` is ``_OPEN`` where it never ended (or not before the question was asked)."""

    attempt: int
    start: int
    end: int
    phase: int
    step: int
    name: str
    flags: int
    device_end: int


def replay(
    rows: Iterable[Row],
    *,
    at: float | None = None,
    windows: Sequence[Window] = (),
    exclusions: Sequence[Window] = (),
    ideal_step_time: float | None = None,
) -> dict[str, Any]:
    """Account for a timeline in the neutral form.

    Args:
        rows: phases in any order.
        at: time of the question in the rows' seconds; by default the latest time in them.
        windows: (start, end) pairs in seconds to account for on their own (rule R8).
        exclusions: (start, end) pairs in seconds to leave out (rule R7).
        ideal_step_time: seconds, instead of the estimate.

    Returns:
        the JSON answer of ACCOUNTING.

    Raises:
        ValueError: a window that ends before it starts.
    """
    return timeline_totals(
        rows, at=at, windows=windows, exclusions=exclusions, ideal_step_time=ideal_step_time
    ).to_json()


def timeline_totals(
    rows: Iterable[Row],
    *,
    at: float | None = None,
    windows: Sequence[Window] = (),
    exclusions: Sequence[Window] = (),
    ideal_step_time: float | None = None,
) -> Totals:
    """As :func:`replay`, as integers of ns."""
    timeline = Timeline(rows)
    return account(
        timeline.events(None if at is None else _ns(at)),
        at=timeline.latest if at is None else _ns(at),
        windows=[(_ns(a), _ns(b)) for a, b in windows],
        exclusions=[*((_ns(a), _ns(b)) for a, b in exclusions), *timeline.exclusions],
        ideal_step_time=None if ideal_step_time is None else ideal_step_time * NS,
    )


def account(
    events: Iterable[Event],
    *,
    at: int | None,
    windows: Sequence[tuple[int, int]] = (),
    exclusions: Sequence[tuple[int, int]] = (),
    ideal_step_time: float | None = None,
) -> Totals:
    """Account for events in the order of attempt and time, with exact windows and exclusions; all times in ns."""
    for start, end in (*windows, *exclusions):
        if end < start:
            raise ValueError(f"a window must not end before it starts: {start / NS} .. {end / NS}")
    edges = [
        edge
        for lens, (start, end) in (*((0, one) for one in exclusions), *enumerate(windows, 1))
        if start < end
        for edge in ((start, lens, True), (end, lens, False))
    ]
    cursor = Cursor(edges=sorted(edges), lenses=1 + len(windows))
    for event in events:
        cursor.apply(event)
    if at is not None:
        cursor.advance(at)
    return balance.draw(cursor, windows, ideal_step_time, at)


class Timeline:
    """Rows of the neutral form, checked and in order.

    Attributes:
        latest: latest time of the leader's rows, ns; None where there is none.
        exclusions: (start, end) of the windows that the rows themselves exclude, ns.
        dropped: rows that could not be understood.
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        self.dropped = 0
        self.latest: int | None = None
        self.exclusions: list[tuple[int, int]] = []
        self._intervals: list[Interval] = []
        self._signs: list[tuple[int, int, Event]] = []  # (attempt, time, event) of heartbeats and slice counts
        for row in rows:
            try:
                self._add(row)
            except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
                self.dropped += 1
                if self.dropped == 1:
                    logger.warning("a row of the timeline is left out: %r: %s", row, error)
        if self.dropped > 1:
            logger.warning("%d rows of the timeline are left out", self.dropped)

    def _add(self, row: Row) -> None:
        get = row.get
        if get("process"):
            return
        kind = row["kind"]
        start = get("start_ns")
        start = _ns(row["start"]) if start is None else _whole(start)
        attempt = get("attempt") or 1
        phase = rules.PHASE_INDEX.get(kind)
        if phase is None:
            self._add_sign(row, kind, start, int(attempt))
            return
        end = get("end_ns")
        if end is None:
            end = get("end")
            end = None if end is None else _ns(end)
        end = _OPEN if end is None else max(start, _whole(end))
        device = 0
        step = get("step")
        if phase == rules.STEP:
            if step is None or step < 0:
                raise ValueError("a step needs a number from 0")
            device = _device_end(row, start)
        blocking = get("blocking")
        flags = ev.NONBLOCKING if blocking is False else 0
        if phase == rules.DATA_LOADING and blocking is None:
            flags = _UNSAID
        latest = max(start, device) if end == _OPEN else max(end, device)
        if self.latest is None or latest > self.latest:
            self.latest = latest
        if phase == rules.EXCLUSION:
            # A window of time, whatever becomes of the attempt.
            self.exclusions.append((start, end))
            return
        name = get("name")
        self._intervals.append(
            Interval(
                int(attempt),
                start,
                end,
                phase,
                ev.NO_STEP if step is None else int(step),
                "" if name is None else str(name),
                flags,
                device,
            )
        )

    def _add_sign(self, row: Row, kind: str, start: int, attempt: int) -> None:
        if kind == _HEARTBEAT:
            event = Event(start, ev.HEARTBEAT)
        elif kind == _SLICE_COUNTS:
            active, available, total = (int(row[name]) for name in ("active", "available", "total"))
            event = Event(start, ev.SLICES, 0, available, active, 0, total)
        else:
            raise ValueError(f"unknown kind {kind!r}")
        self._signs.append((attempt, start, event))
        self._saw(start)

    def _saw(self, time: int) -> None:
        self.latest = time if self.latest is None else max(self.latest, time)

    def events(self, at: int | None = None) -> Iterator[Event]:
        """The rows as events in the order of attempt and time, as they were known at `at` (ns)."""
        boundaries: list[tuple[int, int, int, int, int, Event]] = []
        add = boundaries.append
        job, event = rules.JOB, tuple.__new__
        for key, (attempt, start, end, phase, step, name, flags, device) in enumerate(self._known(at), 1):
            begin = event(Event, (start, ev.START, phase, key, step, flags, device, name))
            # Ties: what ends later is the outer phase, a job is around all; what has no length ends after its start.
            add((attempt, start, _JOB_START if phase == job else _START, -end, key, begin))
            if end != _OPEN:
                order = (_JOB_END if phase == job else _END) if end > start else _EMPTY_END
                add((attempt, end, order, 0, key, event(Event, (end, ev.END, phase, key, ev.NO_STEP, 0, 0, ""))))
        for row, (attempt, time, sign) in enumerate(self._signs):
            if at is None or time <= at:
                add((attempt, time, _START, 0, row, sign))
        boundaries.sort()
        previous = None
        for attempt, time, _, _, _, happening in boundaries:
            if attempt != previous:
                previous = attempt
                yield Event(time, ev.ATTEMPT, step=attempt - 1)
            yield happening

    def _known(self, at: int | None) -> list[Interval]:
        """The intervals that had begun by `at`, each once, with the ends known by then."""
        known = list(dict.fromkeys(self._intervals))
        if at is not None:
            known = [
                one._replace(
                    end=_OPEN if one.end > at else one.end, device_end=_OPEN if one.device_end > at else one.device_end
                )
                for one in known
                if one.start <= at
            ]
        if any(interval.flags == _UNSAID for interval in known):
            _say_what_blocks(known)
        return known


def _say_what_blocks(known: list[Interval]) -> None:
    """A timeline has no threads: a load inside a step is taken for a prefetch where it does not say."""
    order = sorted(
        (one.attempt, one.start, one.phase != rules.STEP, at)
        for at, one in enumerate(known)
        if one.phase == rules.STEP or one.flags == _UNSAID
    )
    ends: list[int] = []  # of the steps open at the moment, of this attempt
    attempt = None
    for number, start, is_load, at in order:
        if number != attempt:
            attempt, ends = number, []
        if ends and min(ends) < start:
            ends = [end for end in ends if end >= start]
        end = known[at].end
        if is_load:
            inside = bool(ends) and max(ends) >= end
            known[at] = known[at]._replace(flags=ev.NONBLOCKING if inside else 0)
        else:
            ends.append(end)


def _device_end(row: Row, start: int) -> int:
    """When an observed step left the device, ns; 0 where nobody looked."""
    device = row.get("device_end_ns")
    if device is None:
        seconds = row.get("device_end")
        if seconds is None:
            return 0
        device = _ns(seconds)
    return max(start, _whole(device), 1)


# Order of what happens at the same time.
_END, _JOB_END, _JOB_START, _START, _EMPTY_END = range(5)
_UNSAID: Final = 1 << 8  # a data load of which nobody said whether it blocks


def _ns(seconds: float) -> int:
    """Raises:
    ValueError: it is no time that fits into 64 bits of ns.
    """
    if not abs(seconds) < _LATEST:
        raise ValueError(f"not a time: {seconds} s")
    return round(seconds * NS)


def _whole(time: int) -> int:
    """Raises:
    ValueError: it is no time that fits into 64 bits of ns.
    """
    if not abs(time) < _LATEST * NS:
        raise ValueError(f"not a time: {time} ns")
    return int(time)


def read_timeline(path: Path | None) -> Iterator[Row]:
    """Rows of a JSON-lines file; of standard input where there is no path.

    Raises:
        ValueError: a line is not a JSON object.
        OSError: the file cannot be read.
    """
    with path.open("rb") if path is not None else nullcontext(sys.stdin.buffer) as lines:
        source = path or "standard input"
        parse = json.JSONDecoder().decode
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = parse(line.decode())
            except ValueError as error:
                raise ValueError(f"{source}: line {number} is not JSON: {error}") from error
            if not isinstance(row, dict):
                raise ValueError(f"{source}: line {number} is not an object")
            yield row


__all__ = ["Phase", "Timeline", "account", "read_timeline", "replay", "timeline_totals"]
