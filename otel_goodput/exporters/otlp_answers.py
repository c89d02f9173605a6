"""What a receiver has answered: over HTTP, and whether that is a success by OTLP's rules; gRPC's status codes.

A success has a status of 2xx, and a body that is an OTLP message or empty. Redirects and the pages of proxies and
logins are failures: what was sent has not arrived. https://opentelemetry.io/docs/specs/otlp/#otlphttp-response
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, NamedTuple

from otel_goodput._runtime.guard import report_once
from otel_goodput._text.redact import shown

PROTOBUF: Final = ("application/x-protobuf", "application/protobuf")
JSON: Final = "application/json"
LONGEST_WORDS: Final = 300  # characters of a receiver's message
_MOST_UNPACKED: Final = 1 << 20  # bytes
_EITHER: Final = zlib.MAX_WBITS | 32  # gzip, or what HTTP calls deflate
_ANSWERS: Final = {
    "traces": ("opentelemetry.proto.collector.trace.v1.trace_service_pb2", "ExportTraceServiceResponse"),
    "metrics": ("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2", "ExportMetricsServiceResponse"),
}


class Accepted(NamedTuple):
    """What a receiver has accepted: all but `rejected` spans or points; its `message` is often empty."""

    rejected: int
    message: str


class NotAccepted(Exception):
    """The answer is no success of OTLP's but what the message says; `arrived`: its status says success all the same."""

    def __init__(self, what: str, *, arrived: bool = False) -> None:
        super().__init__(what)
        self.arrived = arrived


def answer_type(signal: str) -> Any:
    """Return the protobuf class of the answer to an export of `signal` (`traces` or `metrics`)."""
    module, name = _ANSWERS[signal]
    return getattr(import_module(module), name)


def accepted(message: Any) -> Accepted:
    """Return what a decoded answer says."""
    partial = message.partial_success
    # Its only integer field is rejected_spans or rejected_data_points.
    rejected = next((value for _, value in partial.ListFields() if isinstance(value, int)), 0)
    return Accepted(max(rejected, 0), partial.error_message[:LONGEST_WORDS])


def read(signal: str, status: int, headers: Any, body: bytes) -> Accepted:
    """Return what the answer to an export of `signal` says. Raises NotAccepted if it is no success."""
    if not 200 <= status < 300:
        place = headers.get("Location")
        raise NotAccepted(f"it answers {status}" + (f", a redirect to {shown(place[:LONGEST_WORDS])}" if place else ""))
    given = headers.get("Content-Type") or ""
    kind = given.partition(";")[0].strip().lower()
    if kind == "text/html":
        raise NotAccepted("it answers with an HTML page")
    if not body:
        return Accepted(0, "")
    if kind and kind not in PROTOBUF and kind != JSON:
        raise NotAccepted(f"it answers {status} with {shown(kind[:LONGEST_WORDS])}, which is not OTLP", arrived=True)
    message = answer_type(signal)()
    try:
        if (headers.get("Content-Encoding") or "").strip().lower() not in ("", "identity"):
            body = zlib.decompressobj(_EITHER).decompress(body, _MOST_UNPACKED)
        if kind == JSON:
            import_module("google.protobuf.json_format").Parse(body, message, ignore_unknown_fields=True)
        else:
            message.ParseFromString(body)
    except Exception as error:  # the decoders raise what they like
        raise NotAccepted(f"it answers {status} with a body that is not OTLP", arrived=True) from error
    return accepted(message)


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, what it was raised from, and so on."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


@dataclass(eq=False, repr=False)
class Rejections:
    """How many items `receiver` has rejected of requests that it accepted; each reason is reported once."""

    receiver: object
    refused: int = 0

    def note(self, answer: Accepted) -> None:
        """Count and report what `answer` says."""
        self.refused += answer.rejected
        if answer.rejected:
            site = f"partial {self.receiver} {answer.message[:80]}"
            report_once(site, "%s did not accept %d items: %s", self.receiver, answer.rejected, shown(answer.message))


# --- what a gRPC status code and its details say about a request: https://grpc.io/docs/guides/status-codes/ -----------

NO_ANSWER: Final = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED"})
# The same request may be accepted later.
LATER: Final = NO_ANSWER | {"RESOURCE_EXHAUSTED", "ABORTED", "CANCELLED"}
# Either this request is at fault, or the receiver fails.
UNSURE: Final = frozenset({"INTERNAL", "UNKNOWN"})
# No request will be accepted before somebody changes something: a role, the project, the address.
CLOSED: Final = frozenset({"PERMISSION_DENIED", "UNAUTHENTICATED", "NOT_FOUND", "FAILED_PRECONDITION", "UNIMPLEMENTED"})
# This request is at fault.
REFUSED: Final = frozenset({"INVALID_ARGUMENT", "OUT_OF_RANGE", "ALREADY_EXISTS", "DATA_LOSS"})

# Of REFUSED, those that OTLP has a client send again: https://opentelemetry.io/docs/specs/otlp/#failures
OTLP_LATER: Final = frozenset({"OUT_OF_RANGE", "DATA_LOSS"})
# With one of these codes the server cannot have accepted anything.
UNTOUCHED: Final = frozenset({"RESOURCE_EXHAUSTED", "UNAUTHENTICATED"})
# With one of these, perhaps the connection broke, and the server may have accepted everything.
BROKEN: Final = NO_ANSWER | {"CANCELLED"}


def status_details(error: Any) -> list[Any]:
    """Return the details, messages of ``google.protobuf.Any``; empty if there are none that can be read."""
    with suppress(Exception):  # a receiver may send anything, and a wrapper of the error may lack the metadata
        for name, value in error.trailing_metadata() or ():
            if name == "grpc-status-details-bin":
                return list(import_module("google.rpc.status_pb2").Status.FromString(value).details)
    return []


def retry_delay(details: Iterable[Any]) -> float | None:
    """Return the seconds that one of the details asks to wait; None if none does."""
    for detail in details:
        if detail.type_url.endswith("google.rpc.RetryInfo"):
            wanted = import_module("google.rpc.error_details_pb2").RetryInfo()
            if detail.Unpack(wanted):
                return float(wanted.retry_delay.ToTimedelta().total_seconds())
    return None
