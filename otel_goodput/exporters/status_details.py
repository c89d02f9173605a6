"""Read the status details of a gRPC error, and how long they ask to wait before the next try."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any, Final

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
