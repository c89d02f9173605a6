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
from typing import Any, Final

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


class Interval:
    """A row in integers of ns; `end` is ``_OPEN`` where it never ended (or not before the question was asked)."""

    __slots__ = ("attempt", "device_end", "end", "flags", "name", "phase", "start", "step")

    def __init__(self, start: int, end: int, phase: int, attempt: int, step: int, name: str, flags: int, device: int):
        self.start = start
        self.end = end
        self.phase = phase
        self.attempt = attempt
        self.step = step
        self.name = name
        self.flags = flags
        self.device_end = device


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
        if row.get("process"):
            return
        kind = row["kind"]
        start = _time_of(row, "start")
        if start is None:
            raise ValueError("no start")
        attempt = int(row.get("attempt") or 1)
        latest = start
        if kind == _HEARTBEAT:
            self._signs.append((attempt, start, Event(start, ev.HEARTBEAT)))
        elif kind == _SLICE_COUNTS:
            active, available, total = (int(row[name]) for name in ("active", "available", "total"))
            self._signs.append((attempt, start, Event(start, ev.SLICES, 0, available, active, 0, total)))
        else:
            phase = rules.PHASE_INDEX[kind]
            end = _time_of(row, "end")
            device = _time_of(row, "device_end")
            given = row.get("step")
            step = ev.NO_STEP if given is None else int(given)
            if phase == rules.STEP and step < 0:
                raise ValueError("a step needs a number from 0")
            blocking = row.get("blocking")
            flags = ev.NONBLOCKING if blocking is False else 0
            if phase == rules.DATA_LOADING and blocking is None:
                flags = _UNSAID
            if end is not None:
                end = max(start, end)
            latest = max(start, end or start, device or start)
            if phase == rules.EXCLUSION:
                # A window of time, whatever becomes of the attempt.
                self.exclusions.append((start, _OPEN if end is None else end))
                self._saw(latest)
                return
            self._intervals.append(
                Interval(
                    start,
                    _OPEN if end is None else end,
                    phase,
                    attempt,
                    step,
                    str(row.get("name") or ""),
                    flags,
                    0 if device is None or phase != rules.STEP else max(start, device, 1),
                )
            )
        self._saw(latest)

    def _saw(self, time: int) -> None:
        self.latest = time if self.latest is None else max(self.latest, time)

    def events(self, at: int | None = None) -> Iterator[Event]:
        """The rows as events in the order of attempt and time, as they were known at `at` (ns)."""
        boundaries: list[tuple[int, int, int, int, int, Event]] = []
        for key, interval in enumerate(self._known(at), 1):
            start, end, phase, attempt = interval.start, interval.end, interval.phase, interval.attempt
            begin = Event(
                start, ev.START, phase, key, interval.step, interval.flags, interval.device_end, interval.name
            )
            # Ties: what ends later is the outer phase, a job is around all; a phase without length ends after its
            # start.
            boundaries.append((attempt, start, _JOB_START if phase == rules.JOB else _START, -end, key, begin))
            if end != _OPEN:
                order = (_JOB_END if phase == rules.JOB else _END) if end > start else _EMPTY_END
                boundaries.append((attempt, end, order, 0, key, Event(end, ev.END, phase, key)))
        for attempt, time, event in self._signs:
            if at is None or time <= at:
                boundaries.append((attempt, time, _START, 0, 0, event))
        boundaries.sort()
        previous = None
        for attempt, time, _, _, _, event in boundaries:
            if attempt != previous:
                previous = attempt
                yield Event(time, ev.ATTEMPT, step=attempt - 1)
            yield event

    def _known(self, at: int | None) -> list[Interval]:
        """The intervals that had begun by `at`, each once, with the ends known by then."""
        seen: set[tuple[Any, ...]] = set()
        known: list[Interval] = []
        for one in self._intervals:
            identity = tuple(getattr(one, name) for name in Interval.__slots__)
            if identity in seen or (at is not None and one.start > at):
                continue
            seen.add(identity)
            if at is not None:
                end, device = (_OPEN if time > at else time for time in (one.end, one.device_end))
                one = Interval(one.start, end, one.phase, one.attempt, one.step, one.name, one.flags, device)
            known.append(one)
        self._say_what_blocks(known)
        return known

    @staticmethod
    def _say_what_blocks(known: list[Interval]) -> None:
        """A timeline has no threads: a load inside a step is taken for a prefetch where it does not say."""
        if not any(interval.flags == _UNSAID for interval in known):
            return
        steps: list[Interval] = []
        for interval in sorted(known, key=lambda one: (one.attempt, one.start, one.phase != rules.STEP)):
            if interval.phase == rules.STEP:
                steps = [step for step in steps if step.attempt == interval.attempt and step.end >= interval.start]
                steps.append(interval)
            elif interval.flags == _UNSAID:
                inside = any(step.attempt == interval.attempt and step.end >= interval.end for step in steps)
                interval.flags = ev.NONBLOCKING if inside else 0


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


def _time_of(row: Row, name: str) -> int | None:
    """Time `name` of a row in ns, from `name`_ns or from seconds."""
    exact = row.get(f"{name}_ns")
    if exact is not None:
        return int(exact)
    seconds = row.get(name)
    return None if seconds is None else _ns(seconds)


def read_timeline(path: Path | None) -> Iterator[Row]:
    """Rows of a JSON-lines file; of standard input where there is no path.

    Raises:
        ValueError: a line is not a JSON object.
        OSError: the file cannot be read.
    """
    with path.open("rb") if path is not None else nullcontext(sys.stdin.buffer) as lines:
        source = path or "standard input"
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{source}: line {number} is not JSON: {error}") from error
            if not isinstance(row, dict):
                raise ValueError(f"{source}: line {number} is not an object")
            yield row


__all__ = ["Phase", "Timeline", "account", "read_timeline", "replay", "timeline_totals"]
