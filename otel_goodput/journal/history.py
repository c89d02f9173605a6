"""Reads a run's whole journal event by event, for exact windows, replays and plans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter

from otel_goodput.accounting import Event
from otel_goodput.accounting import events as ev
from otel_goodput.accounting.device import NEVER, place
from otel_goodput.journal import records
from otel_goodput.journal.damage import Damages
from otel_goodput.journal.overlaps import Overlaps
from otel_goodput.journal.records import NewerVersion
from otel_goodput.journal.recovery import look, settled
from otel_goodput.journal.rundir import RunDirectory


def all_events(run: RunDirectory, process: int = 0, damages: Damages | None = None) -> Iterator[Event]:
    """Yield every event of the run, ordered by attempt and time; reads the whole journal.

    What has to be left out is added to `damages`, or logged if `damages` is None.
    """
    attempt = -1
    events: list[Event] = []
    for number, found in stored_events(run, process, damages):
        if number != attempt:
            yield from ordered(events)
            attempt, events = number, []
        events += found
    yield from ordered(events)


def stored_events(
    run: RunDirectory, process: int = 0, damages: Damages | None = None
) -> Iterator[tuple[int, list[Event]]]:
    """Yield (attempt, events) for each segment, in the order of their records; holds one segment in memory at a time.

    The first events of an attempt contain its ATTEMPT. What has to be left out is treated as by :func:`all_events`.
    """
    left_out = Damages() if damages is None else damages
    attempt, expected, begun = -1, 0, False
    opened: dict[int, int] = {}  # phases that are open behind the segments so far, by key
    segments = run.segments(
        process, left_out=lambda path, error: left_out.file(path.name, error, newer=isinstance(error, NewerVersion))
    )
    overlaps = Overlaps(segments)
    for at, segment in enumerate(segments):
        if segment.attempt != attempt:
            attempt, expected, begun, names = segment.attempt, 0, False, records.Names()
            opened.clear()
        if segment.number > expected:
            left_out.missing(attempt, expected, segment.number - 1)
        expected = segment.number + 1
        ends = at + 1 == len(segments) or segments[at + 1].attempt != attempt
        try:
            data, room = settled(segment)
            skipped: list[records.Skip] = []
            found = overlaps.kept(attempt, list(records.decode_events(data, names, 0, skipped)))
        except (OSError, EOFError, ValueError) as error:
            left_out.file(segment.path.name, error, newer=isinstance(error, NewerVersion))
            continue
        if skipped or left_out:
            look(left_out, segment, data, room, skipped, found, opened if skipped else {}, 0, ends)
        else:
            header = records.decode_header(data)
            if header.torn or header.reached or not ends:
                look(left_out, segment, data, room, skipped, found[:1] + found[-1:], {}, 0, ends)
        if not begun and found and found[0].kind != ev.HEARTBEAT:
            begun = True
            if found[0].kind != ev.ATTEMPT:  # its first record is lost
                found.insert(0, Event(found[0].time, ev.ATTEMPT, step=attempt))
        if not ends:
            _follow(opened, found)
        yield attempt, found
    if damages is None:
        left_out.log()


def _follow(opened: dict[int, int], events: Sequence[Event]) -> None:
    """Bring `opened`, the phases that are open by key, behind `events`."""
    for event in events:
        kind = event[1]
        if kind == ev.START:
            opened[event[3]] = event[2]
        elif kind == ev.END:
            opened.pop(event[3], None)


def ordered(events: list[Event]) -> Iterator[Event]:
    """Yield the events of one attempt in time order, with the device ends of observed steps and marks filled in."""
    yield from [event for event in events if event[1] == ev.ATTEMPT]
    ends: dict[int, int] = {}
    awaited: set[int] = set()
    given_up: set[int] = set()
    rest = []
    for event in events:
        kind = event[1]
        if kind == ev.OBSERVED or kind == ev.MARK or (kind == ev.END and event[5] & ev.ON_DEVICE):
            awaited.add(event[3])
        elif kind == ev.DEVICE_END:
            ends[event[3]] = max(1, event[0])
        elif kind == ev.UNOBSERVED:
            given_up.add(event[3])
        if kind != ev.ATTEMPT:
            rest.append(event)
    rest.sort(key=itemgetter(0))
    yield from place(rest, ends, awaited - given_up, NEVER) if awaited or ends else rest
