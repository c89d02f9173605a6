"""What a run's journal gives back after a restart: the account, and the spans that a dead attempt still owes."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, Status, StatusCode
from opentelemetry.util import types

from otel_goodput import ids, records
from otel_goodput.accounting import Event, Ledger, rules, snapshot
from otel_goodput.accounting import events as ev
from otel_goodput.accounting.progress import Blob
from otel_goodput.records import Record
from otel_goodput.rundir import RunDirectory, SegmentFile, write_privately
from otel_goodput.sampling import Summary
from otel_goodput.semconv import (
    ATTEMPT,
    GOODPUT_BLOCKING,
    GOODPUT_COMPILE_FUNCTION,
    GOODPUT_CUSTOM_NAME,
    GOODPUT_ELASTIC_KIND,
    GOODPUT_INTERRUPTED,
    GOODPUT_PHASE,
    GOODPUT_STEP,
    GOODPUT_STEP_COMPLETED,
    PHASES,
    SCOPE_NAME,
    STEPS_SUMMARY_SPAN,
    Phase,
)
from otel_goodput.spanbook import Debt, SpanBook, SpanEntry
from otel_goodput.spans import PhaseReadableSpan
from otel_goodput.tracer import summary_attributes
from otel_goodput.version import __version__

logger = logging.getLogger(__name__)

_NAME_ATTRIBUTE = {
    Phase.CUSTOM: GOODPUT_CUSTOM_NAME,
    Phase.ELASTIC_WAIT: GOODPUT_ELASTIC_KIND,
    Phase.COMPILE: GOODPUT_COMPILE_FUNCTION,
}


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
            events += (event for record in records.decode_segment(segment.data(), names) if (event := record.event()))
        except (OSError, EOFError, ValueError) as error:
            logger.warning("journal: %s cannot be read: %s", segment.path, error)
    yield from _ordered(events)


def _ordered(events: list[Event]) -> Iterator[Event]:
    """One attempt's events in the order of time, each observed step's start with its device end."""
    ends = {event.key: event.time for event in events if event.kind == ev.DEVICE_END}
    events.sort(key=lambda event: (event.kind != ev.ATTEMPT, event.time))
    for event in events:
        if event.kind == ev.START and event.key in ends and event.phase == rules.STEP:
            event = event._replace(arg=max(1, ends[event.key]))
        yield event


# --- spans ------------------------------------------------------------------------------------------------------------


def owed_spans(run: RunDirectory, book: SpanBook, run_id: str, process: int, resource: Resource) -> list[ReadableSpan]:
    """The spans that the attempts before that of `book` still owe, the oldest attempt's first, parents after children.

    Those that were open are closed at the attempt's last sign of life, with status ERROR and ``goodput.interrupted``.
    """
    spans = []
    for debt in book.debts:
        if run.recovered_path(debt.attempt, process).exists():
            continue
        build = _Builder(run_id, debt, process, resource.merge(Resource({ATTEMPT: debt.attempt})))
        spans += [build.summary(summary) for summary in debt.summaries]
        spans += [build.span(entry) for entry in debt.spans]
    return spans


class _Builder:
    def __init__(self, run_id: str, debt: Debt, process: int, resource: Resource) -> None:
        self._identity = (run_id, debt.attempt, process)
        self._debt = debt
        self._resource = resource
        self._job = ids.job_span_context(*self._identity)
        self._scope = InstrumentationScope(SCOPE_NAME, __version__)

    def span(self, entry: SpanEntry) -> ReadableSpan:
        phase = PHASES[entry.phase]
        attributes: dict[str, types.AttributeValue] = {GOODPUT_PHASE: phase}
        if entry.step >= 0:
            attributes[GOODPUT_STEP] = entry.step
        if entry.name and phase in _NAME_ATTRIBUTE:
            attributes[_NAME_ATTRIBUTE[phase]] = entry.name
        if entry.flags & ev.NONBLOCKING:
            attributes[GOODPUT_BLOCKING] = False
        interrupted = entry.end is None or bool(entry.end_flags & records.INTERRUPTED)
        if interrupted:
            attributes[GOODPUT_INTERRUPTED] = True
        if phase == Phase.STEP and (interrupted or entry.end_flags & ev.FAILED):
            attributes[GOODPUT_STEP_COMPLETED] = False
        failed = interrupted or bool(entry.end_flags & ev.FAILED)
        status = Status(StatusCode.ERROR, "the process died" if interrupted else None) if failed else Status()
        own = self._debt.own_traces and phase == Phase.STEP
        run_id, attempt, _ = self._identity
        trace = ids.step_trace_id(run_id, attempt, entry.step) if own else entry.trace or self._job.trace_id
        links = (Link(self._job),) if own else self._links(entry)
        context = SpanContext(trace, entry.key, False, ids.SAMPLED)
        return PhaseReadableSpan(
            entry.name if phase == Phase.CUSTOM and entry.name else phase,
            context,
            None if own else self._parent(entry, trace),
            self._resource,
            attributes,
            (),
            links,
            status=status,
            start_time=entry.start,
            end_time=max(entry.start, self._debt.last_sign if entry.end is None else entry.end),
            instrumentation_scope=self._scope,
        )

    def _parent(self, entry: SpanEntry, trace: int) -> SpanContext | None:
        run_id, attempt, process = self._identity
        if entry.phase == rules.JOB:
            return ids.job_span_context(run_id, attempt) if process else None
        if entry.parent:
            return SpanContext(trace, entry.parent, False, ids.SAMPLED)
        return self._job

    def _links(self, entry: SpanEntry) -> tuple[Link, ...]:
        run_id, attempt, process = self._identity
        if entry.phase == rules.JOB and attempt > 0:
            return (Link(ids.job_span_context(run_id, attempt - 1, process)),)
        return ()

    def summary(self, summary: Summary) -> ReadableSpan:
        key = ids.summary_span_id(*self._identity, summary.first, summary.start)
        context = SpanContext(self._job.trace_id, key, False, ids.SAMPLED)
        return PhaseReadableSpan(
            STEPS_SUMMARY_SPAN,
            context,
            self._job,
            self._resource,
            summary_attributes(summary),
            start_time=summary.start,
            end_time=summary.end,
            instrumentation_scope=self._scope,
        )
