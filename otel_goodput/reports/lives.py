"""The records of a process's journal, attempt by attempt, for whoever tells it in full."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from otel_goodput.accounting import events as ev
from otel_goodput.accounting.events import Event
from otel_goodput.journal import records
from otel_goodput.journal.damage import Damages
from otel_goodput.journal.records import NewerVersion, Record
from otel_goodput.journal.recovery import look, settled
from otel_goodput.journal.rundir import RunDirectory

Progress = Callable[[int, int, str], None]


def lives_of(
    run: RunDirectory, process: int, damages: Damages, progress: Progress | None
) -> Iterator[tuple[int, list[Record]]]:
    """Yield the number and the records of each attempt; what cannot be read goes to `damages`."""
    attempt, expected = -1, 0
    found: list[Record] = []
    names = records.Names()
    segments = run.segments(
        process, left_out=lambda path, error: damages.file(path.name, error, newer=isinstance(error, NewerVersion))
    )
    for at, segment in enumerate(segments):
        if segment.attempt != attempt:
            if attempt >= 0:
                yield attempt, found
            attempt, expected, found, names = segment.attempt, 0, [], records.Names()
        if segment.number > expected:
            damages.missing(attempt, expected, segment.number - 1)
        expected = segment.number + 1
        try:
            data, room = settled(segment)
            skipped: list[records.Skip] = []
            read = list(records.decode_segment(data, names, 0, skipped))
        except (OSError, EOFError, ValueError) as error:
            damages.file(segment.path.name, error, newer=isinstance(error, NewerVersion))
            continue
        if skipped:
            ends = at + 1 == len(segments) or segments[at + 1].attempt != attempt
            look(damages, segment, data, room, skipped, read, {}, 0, ends)
        found += read
        if progress is not None:
            progress(at + 1, len(segments), f"the journal of process {process}")
    if attempt >= 0:
        yield attempt, found


def of_latest(events: Iterable[Event], attempt: int, asked: int) -> Iterator[Event]:
    """Leave out what the latest attempt recorded after `asked`; clocks of attempts before it may have been ahead."""
    current = -1
    for event in events:
        if event.kind == ev.ATTEMPT:
            current = event.step
        elif current >= attempt and event.time > asked:
            continue
        yield event
