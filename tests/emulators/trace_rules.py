"""What Cloud Trace asks of a span, one row a rule."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import grpc
from google.cloud.trace_v2 import Span as PlusSpan

from emulators.records import Records, Rule, TakenSpans, nanoseconds

Span = PlusSpan.pb()

NAME = re.compile(r"projects/(?P<project>[^/]+)/traces/(?P<trace>[0-9a-f]{32})/spans/(?P<span>[0-9a-f]{16})")
SPAN_ID = re.compile("[0-9a-f]{16}")
DAY = 24 * 3600 * 10**9
BATCH = 25_000
TRACE = 10_000
DISPLAY_NAME_BYTES = 1024
ATTRIBUTES, KEY_BYTES, VALUE_BYTES = 1024, 512, 64 * 1024
EVENTS, LINKS = 256, 128
INVALID = grpc.StatusCode.INVALID_ARGUMENT


class SpanCase(NamedTuple):
    """A span (the raw protobuf message) in a request; `known` are the names of those that are stored, `in_trace` says
    how many of them there are by trace.
    """

    span: Any
    project: str
    now: int
    known: Collection[str]
    in_trace: Mapping[str, int]


def _name(case: SpanCase) -> str | None:
    match = NAME.fullmatch(case.span.name)
    if match is None or not int(match["trace"], 16) or not int(match["span"], 16):
        return f"Invalid span name: '{case.span.name}'"
    if match["project"] != case.project:
        return f"Span '{case.span.name}' does not belong to project '{case.project}'."
    return None


def _span_id(case: SpanCase) -> str | None:
    if case.span.span_id == case.span.name.rpartition("/")[2]:
        return None
    return f"Span id '{case.span.span_id}' does not match the span's name '{case.span.name}'."


def _parent(case: SpanCase) -> str | None:
    parent = case.span.parent_span_id
    return None if not parent or SPAN_ID.fullmatch(parent) else f"Invalid parent span id: '{parent}'"


def _display_name(case: SpanCase) -> str | None:
    return None if case.span.display_name.value else "Missing span display name!"


def _display_name_bytes(case: SpanCase) -> str | None:
    size = len(case.span.display_name.value.encode())
    return None if size <= DISPLAY_NAME_BYTES else f"Span display name of {size} bytes; at most {DISPLAY_NAME_BYTES}."


def _times(case: SpanCase) -> str | None:
    span = case.span
    if not (span.HasField("start_time") and span.HasField("end_time")):
        return "Span start time and end time are required."
    if nanoseconds(span.end_time) < nanoseconds(span.start_time):
        return "Span end time is before its start time."
    return None


def _past(case: SpanCase) -> str | None:
    late = nanoseconds(case.span.start_time) < case.now - 14 * DAY
    return "Span start time is more than 14 days in the past." if late else None


def _future(case: SpanCase) -> str | None:
    early = nanoseconds(case.span.end_time) > case.now + 3 * DAY
    return "Span end time is more than 3 days in the future." if early else None


def _attributes(case: SpanCase) -> str | None:
    span = case.span
    maps = [span.attributes.attribute_map]
    maps += [event.annotation.attributes.attribute_map for event in span.time_events.time_event]
    maps += [link.attributes.attribute_map for link in span.links.link]
    for attributes in maps:
        if len(attributes) > ATTRIBUTES:
            return f"{len(attributes)} attributes; at most {ATTRIBUTES}."
        for key, value in attributes.items():
            if not key or len(key.encode()) > KEY_BYTES:
                return f"Attribute key of {len(key.encode())} bytes; 1 to {KEY_BYTES}."
            if value.WhichOneof("value") is None:
                return f"Attribute '{key}' has no value."
            if len(value.string_value.value.encode()) > VALUE_BYTES:
                return f"Attribute '{key}' has a value of more than {VALUE_BYTES} bytes."
    return None


def _events(case: SpanCase) -> str | None:
    count = len(case.span.time_events.time_event)
    return None if count <= EVENTS else f"{count} time events; at most {EVENTS}."


def _links(case: SpanCase) -> str | None:
    count = len(case.span.links.link)
    return None if count <= LINKS else f"{count} links; at most {LINKS}."


def _duplicate(case: SpanCase) -> str | None:
    return "A span of this name is stored already." if case.span.name in case.known else None


def _trace(name: str) -> str:
    """The trace's name in that of a span."""
    return name.rpartition("/spans/")[0]


def _in_trace(case: SpanCase) -> str | None:
    full = case.span.name not in case.known and case.in_trace.get(_trace(case.span.name), 0) >= TRACE
    return f"A trace shows at most {TRACE} spans; this one is dropped." if full else None


SPAN_RULES: tuple[Rule[SpanCase], ...] = (
    Rule("trace.name", INVALID, _name),
    Rule("trace.span_id", INVALID, _span_id),
    Rule("trace.parent", INVALID, _parent),
    Rule("trace.display_name", INVALID, _display_name),
    Rule("trace.display_name_bytes", INVALID, _display_name_bytes),
    Rule("trace.times", INVALID, _times),
    Rule("trace.past", INVALID, _past),
    Rule("trace.future", INVALID, _future),
    Rule("trace.attributes", INVALID, _attributes),
    Rule("trace.events", INVALID, _events),
    Rule("trace.links", INVALID, _links),
    Rule("trace.duplicate", None, _duplicate),
    Rule("trace.spans", None, _in_trace),
)


class WriteCase(NamedTuple):
    """A request to write spans; `writes` are the write operations of the last minute, this one included."""

    spans: int
    writes: int
    quota: int


def _batch(case: WriteCase) -> str | None:
    return None if case.spans <= BATCH else f"{case.spans} spans in a request; at most {BATCH}."


def _quota(case: WriteCase) -> str | None:
    if case.writes <= case.quota:
        return None
    return (
        "Quota exceeded for quota metric 'Write requests' and limit 'Write requests per minute' of service "
        "'cloudtrace.googleapis.com'."
    )


WRITE_RULES: tuple[Rule[WriteCase], ...] = (
    Rule("trace.quota", grpc.StatusCode.RESOURCE_EXHAUSTED, _quota),
    Rule("trace.batch", INVALID, _batch),
)


def admit_spans(records: Records, book: TakenSpans, cases: Sequence[SpanCase]) -> list[Any]:
    """The spans that are new; one bad span refuses all (Refused), and each bad one is written down."""
    refused = [error for case in cases if (error := records.refuse(SPAN_RULES, case, case.span.name))]
    if refused:
        raise refused[0]
    new = []
    for case in cases:
        records.note(SPAN_RULES, case, case.span.name)
        if case.span.name not in book.names and _in_trace(case) is None:
            book.names.add(case.span.name)
            book.in_trace[_trace(case.span.name)] += 1
            new.append(case.span)
    return new
