"""The segments of work that the device executes one after the other (rule R3.2), and when each may begin."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Final, NamedTuple

from otel_goodput._accounting.codec import COUNT, KEY, NUMBER, Optional, Row
from otel_goodput._accounting.events import END, MARK, NONBLOCKING, START, Event
from otel_goodput._accounting.rules import COMPILE, MARKABLE, STEP

NEVER: Final = 1 << 62
_KEY: Final = (1 << 64) - 1  # mask: restores an unsigned key from a signed field


class DeviceSegment(NamedTuple):
    """Work that one phase dispatched with no other phase in between.

    `step` is the key of the step that gets the time, None for another phase of this `category`. `begin` is the earliest
    time at which it may be on the device, `end` when it leaves it, ns; ``NEVER`` if that is not known yet.
    """

    step: int | None
    category: int
    begin: int
    end: int


DEVICE_SEGMENT: Final = Row(Optional(KEY), COUNT, NUMBER, NUMBER, make=DeviceSegment._make)


def owner_of(mark: Event) -> int:
    """Return the key of the phase that dispatched the work of this MARK."""
    return mark.step & _KEY


def left_at(end: Event, begin: int, free: int) -> int:
    """Return when the work of a DEVICE_END that was dispatched from `begin` on left the device, ns.

    A step that shares its mark took `step` ns, from its begin or from `free`, the end of the work before.
    """
    time, took = end.time, end.step
    return max(1, time if took < 0 else min(time, max(begin, free) + took))


def place(
    events: Sequence[Event], ends: Mapping[int, int], awaited: Container[int] = (), unknown: int = 0
) -> list[Event]:
    """Return the events of one attempt, in time order, with the device end of each segment in the `arg` of its event.

    A segment cannot begin before the last compilation inside it ends, because nothing was dispatched until then. So a
    segment with compilations becomes a MARK placed after the last of them.

    Args:
        ends: device ends by the key of a step or a mark, ns.
        awaited, unknown: keys whose end is still to be reported, and what to use for them; 0 leaves them without one.
    """
    compiling = False
    placed: list[Event] = []
    for event in events:
        _, kind, phase, key, _, _, known, _ = event[:]
        if (kind == START and phase == STEP) or (kind == MARK and not known):
            if end := ends.get(key) or (unknown if key in awaited else 0):
                event = event._replace(arg=end)
        elif kind == START and phase == COMPILE:
            compiling = True
        placed.append(event)
    return _behind_compilations(placed) if compiling else placed


def _behind_compilations(events: list[Event]) -> list[Event]:
    last = _last_compilations(events)
    if not last:
        return events
    behind: dict[int | None, list[Event]] = {}
    for at, compilation in last.items():
        event = events[at]
        if event.kind == START:
            events[at] = event._replace(arg=0)
            event = event._replace(kind=MARK, step=event.key)
        if compilation is not None:
            behind.setdefault(compilation, []).append(event._replace(time=events[compilation].time))
    placed: list[Event] = []
    for at, event in enumerate(events):
        if event.kind != MARK or at not in last:
            placed.append(event)
        placed += behind.get(at, ())
    return placed


def _last_compilations(events: list[Event]) -> dict[int, int | None]:
    """Return the index of the last compilation's END by that of the segment's event; None if it is still open."""
    last: dict[int, int | None] = {}
    # Open phases that can have segments, the innermost last, each with the index of its current segment.
    opened: dict[int, int | None] = {}
    compiling: dict[int, tuple[int, int]] = {}  # compilation -> key of its phase, index of that phase's segment
    for at, (time, kind, phase, key, _, flags, arg, _) in enumerate(events):
        if kind == START:
            if flags & NONBLOCKING:
                continue
            if phase in MARKABLE:
                opened.setdefault(key, at if arg else None)
            elif phase == COMPILE and opened:
                owner, segment = next(reversed(opened.items()))
                if segment is not None:
                    compiling[key] = owner, segment
        elif kind == MARK:
            if arg:
                opened[owner_of(events[at])] = at
        elif kind == END:
            opened.pop(key, None)
            inside = compiling.pop(key, None)
            if inside and inside[0] in opened and time <= events[inside[1]].arg:
                last[inside[1]] = at
    for owner, segment in compiling.values():
        if owner in opened and events[segment].arg == NEVER:
            last[segment] = None
    return last
