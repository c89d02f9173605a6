"""What a run's journal gives back after a restart: the account, and what is known of a dead attempt's spans."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

from otel_goodput.accounting import Event, Ledger, snapshot
from otel_goodput.accounting import events as ev
from otel_goodput.accounting.device import NEVER, place
from otel_goodput.accounting.progress import Blob
from otel_goodput.journal import records
from otel_goodput.journal.records import Record
from otel_goodput.journal.rundir import RunDirectory, SegmentFile, write_privately
from otel_goodput.journal.spanbook import SpanBook

logger = logging.getLogger(__name__)


@dataclass
class Restored:
    """A run as its journal has it.

    Attributes:
        ledger: the account up to the last record.
        book: spans of the last attempt, and what those before it owe.
        attempt: number of the last attempt, -1 where there is none.
        last_sign: latest timestamp of the last attempt, ns; 0 where there is none.
        unreadable: segments that could not be read.
    """

    ledger: Ledger
    book: SpanBook = field(default_factory=SpanBook)
    attempt: int = -1
    last_sign: int = 0
    unreadable: list[Path] = field(default_factory=list)


def restore(run: RunDirectory, process: int = 0, spans: Sequence[int] = ()) -> Restored:
    """Read a run's journal; takes about as long after a million steps as after a thousand.

    Args:
        run: its folder.
        process: whose journal.
        spans: lengths of the rolling windows, ns.
    """
    restored, names, position = _from_snapshot(run, process, spans)
    for segment in run.segments(process):
        place = (segment.attempt, segment.number)
        skip = 0
        if position is not None:
            if place < position[:2]:
                continue
            skip = position[2] if place == position[:2] else 0
        if segment.attempt != restored.attempt:
            restored.attempt = segment.attempt
            restored.book = restored.book.successor(segment.attempt)
            names = records.Names()
        found = _read(segment, names, skip, restored)
        restored.ledger.feed(event for record in found if (event := record.event()) is not None)
        for record in found:
            restored.book.take(record)
        restored.last_sign = restored.book.last_sign
    return restored


def _read(segment: SegmentFile, names: records.Names, skip: int, restored: Restored) -> list[Record]:
    try:
        return list(records.decode_segment(segment.data(), names, skip))
    except (OSError, EOFError, ValueError) as error:
        logger.warning("journal: %s cannot be read, what it held is missing from the account: %s", segment.path, error)
        restored.unreadable.append(segment.path)
        return []


Position = tuple[int, int, int]


def _from_snapshot(
    run: RunDirectory, process: int, spans: Sequence[int]
) -> tuple[Restored, records.Names, Position | None]:
    path = run.snapshot_path(process)
    try:
        head, blobs = snapshot.from_bytes(path.read_bytes())
        ledger = Ledger.load(head["ledger"], blobs, spans)
        book = SpanBook.from_state(head["book"])
        attempt, number, read = head["position"]
        names = records.Names(dict(enumerate(head["names"])))
        return Restored(ledger, book, attempt, book.last_sign), names, (attempt, number, read)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        logger.warning("journal: %s is not used, the whole journal is read instead: %s", path, error)
    return Restored(Ledger(spans)), records.Names(), None


def write_snapshot(
    run: RunDirectory,
    process: int,
    ledger: tuple[dict[str, Any], list[Blob]],
    book: SpanBook,
    names: Sequence[str],
    position: Position,
) -> None:
    """Write a snapshot that stands for all records before `position` (attempt, segment, record).

    Raises:
        OSError: it cannot be written.
    """
    head, blobs = ledger
    whole = {"ledger": head, "book": book.to_state(), "names": list(names), "position": position}
    write_privately(run.snapshot_path(process), *snapshot.pieces(whole, blobs))


def all_events(run: RunDirectory, process: int = 0) -> Iterator[Event]:
    """Every event of the run in the order of attempt and time, for exact windows; reads the whole journal."""
    attempt = -1
    events: list[Event] = []
    for segment in run.segments(process):
        if segment.attempt != attempt:
            yield from _ordered(events)
            attempt, events, names = segment.attempt, [], records.Names()
        try:
            events += records.decode_events(segment.data(), names)
        except (OSError, EOFError, ValueError) as error:
            logger.warning("journal: %s cannot be read: %s", segment.path, error)
    yield from _ordered(events)


def _ordered(events: list[Event]) -> Iterator[Event]:
    """One attempt's events in the order of time, each observed step and each mark with its device end."""
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
