"""What the emulator remembers, and what a rule is."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import grpc
from google.api.metric_pb2 import MetricDescriptor
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

Case = TypeVar("Case")


class SeriesKey(NamedTuple):
    """What tells one series from another."""

    type: str
    labels: frozenset[tuple[str, str]]
    resource: str
    resource_labels: frozenset[tuple[str, str]]


class Point(NamedTuple):
    """Times in ns; the value is an int, a float, a bool or a `google.api.Distribution`."""

    start: int | None
    end: int
    value: Any
    arrived: int


@dataclass
class Request:
    """One call. `code` is empty until it is answered, `CANCELLED` when the client did not wait for that."""

    method: str
    at: int
    items: int
    code: str
    metadata: dict[str, str | bytes]


class Refusal(NamedTuple):
    """An item that broke a rule."""

    rule: str
    what: str
    text: str


@dataclass(frozen=True)
class Rule(Generic[Case]):
    """A rule of a service: `check` gives the complaint, None where all is well.

    `code` None only notes.
    """

    name: str
    code: grpc.StatusCode | None
    check: Callable[[Case], str | None]


class Refused(Exception):
    """A call answered with an error."""

    def __init__(self, code: grpc.StatusCode, text: str, *details: Message) -> None:
        self.code, self.text, self.details = code, shortened(text, 2500), details
        super().__init__(self.text)

    def trailers(self) -> tuple[tuple[str, bytes], ...]:
        """The details as gRPC carries them, and where OTLP looks for when to come again."""
        status = Status(code=self.code.value[0], message=self.text)
        for detail in self.details:
            status.details.add().Pack(detail)
        retries = [detail for detail in self.details if isinstance(detail, RetryInfo)]
        return (
            ("grpc-status-details-bin", status.SerializeToString()),
            *(("google.rpc.retryinfo-bin", retry.SerializeToString()) for retry in retries),
        )


def shortened(text: str, size: int) -> str:
    """The text within so many bytes of a header: gRPC drops an answer whose headers pass 8 KiB in all."""
    for index, letter in enumerate(text):
        size -= 1 if letter.isascii() else 3 * len(letter.encode())
        if size < 0:
            return f"{text[:index]}..."
    return text


class Method(NamedTuple):
    """A method of a service: its name in `Request`, how many items a request holds, what answers it at a time in ns."""

    name: str
    request: Any
    items: Callable[[Any], int]
    answer: Callable[[Any, int], Message]


@dataclass
class TakenSpans:
    """Spans, one of each name."""

    spans: list[Any] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    in_trace: Counter[str] = field(default_factory=Counter)  # spans, by the name of their trace


@dataclass
class SeriesBook:
    """Series and what is known of their metrics."""

    series: dict[SeriesKey, list[Point]] = field(default_factory=dict)
    descriptors: dict[str, MetricDescriptor] = field(default_factory=dict)


class Records:
    """All that arrived. A request is answered with `lock` held."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.traces, self.otlp_traces = TakenSpans(), TakenSpans()
        self.metrics, self.otlp_metrics = SeriesBook(), SeriesBook()
        self.requests: list[Request] = []
        self.refusals: list[Refusal] = []
        self.notes: list[Refusal] = []
        self.denied: dict[str, Refused] = {}  # by the last part of a metric's type

    def refuse(self, rules: Iterable[Rule[Case]], case: Case, what: str) -> Refused | None:
        """The first of the rules that refuses the case, written down."""
        for rule in rules:
            if rule.code is not None and (text := rule.check(case)) is not None:
                self.refusals.append(Refusal(rule.name, what, text))
                return Refused(rule.code, text)
        return None

    def note(self, rules: Iterable[Rule[Case]], case: Case, what: str) -> None:
        """Write down what is odd about a case that was accepted."""
        for rule in rules:
            if rule.code is None and (text := rule.check(case)) is not None:
                self.notes.append(Refusal(rule.name, what, text))


def nanoseconds(timestamp: Timestamp) -> int:
    """ns since the epoch, without the limits of Timestamp.ToNanoseconds."""
    return int(timestamp.seconds) * 10**9 + int(timestamp.nanos)
