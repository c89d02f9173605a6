"""What a gRPC status code and its details say about a request: https://grpc.io/docs/guides/status-codes/

Each code has one meaning here. Where a protocol gives a code another one, that stands here too.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any, Final

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


_METADATA: Final = "grpc-status-details-bin"


def status_details(error: Any) -> list[Any]:
    """Return the details, messages of ``google.protobuf.Any``; empty if there are none that can be read."""
    try:
        for name, value in error.trailing_metadata() or ():
            if name == _METADATA:
                return list(import_module("google.rpc.status_pb2").Status.FromString(value).details)
    except Exception:  # a receiver may send anything, and a wrapper of the error may lack the metadata
        return []
    return []


def retry_delay(details: Iterable[Any]) -> float | None:
    """Return the seconds that one of the details asks to wait; None if none does."""
    for detail in details:
        if detail.type_url.endswith("google.rpc.RetryInfo"):
            wanted = import_module("google.rpc.error_details_pb2").RetryInfo()
            if detail.Unpack(wanted):
                return float(wanted.retry_delay.ToTimedelta().total_seconds())
    return None
