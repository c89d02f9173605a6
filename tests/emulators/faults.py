"""Faults on demand: errors, answers lost after the write, calls that hang, calls that take long."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo

from emulators.records import Refused

# What Google says, and by method the permission that is missing.
TEXTS = {
    "CANCELLED": "The operation was cancelled.",
    "DEADLINE_EXCEEDED": "Deadline expired before operation could complete.",
    "INTERNAL": "Internal error encountered.",
    "INVALID_ARGUMENT": "Request contains an invalid argument.",
    "NOT_FOUND": "Requested entity was not found.",
    "PERMISSION_DENIED": "Permission '{permission}' denied on resource '//{service}' (or it may not exist).",
    "RESOURCE_EXHAUSTED": "Quota exceeded for quota metric 'Write requests' of service '{service}'.",
    "UNAUTHENTICATED": "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie "
    "or other valid authentication credential.",
    "UNAVAILABLE": "The service is currently unavailable.",
}
PERMISSIONS = {
    "BatchWriteSpans": ("cloudtrace.traces.patch", "cloudtrace.googleapis.com"),
    "CreateSpan": ("cloudtrace.traces.patch", "cloudtrace.googleapis.com"),
    "CreateTimeSeries": ("monitoring.timeSeries.create", "monitoring.googleapis.com"),
    "ListTimeSeries": ("monitoring.timeSeries.list", "monitoring.googleapis.com"),
    "CreateMetricDescriptor": ("monitoring.metricDescriptors.create", "monitoring.googleapis.com"),
    "GetMetricDescriptor": ("monitoring.metricDescriptors.get", "monitoring.googleapis.com"),
    "ListMetricDescriptors": ("monitoring.metricDescriptors.list", "monitoring.googleapis.com"),
    "OtlpTraces": ("telemetry.traces.write", "telemetry.googleapis.com"),
    "OtlpMetrics": ("telemetry.metrics.write", "telemetry.googleapis.com"),
}


class Gone(Exception):
    """The client did not wait for the answer."""


@dataclass
class Fault:
    method: str
    code: grpc.StatusCode
    times: int | None
    after_write: bool
    text: str
    retry_after_s: float | None

    def error(self, method: str) -> Refused:
        permission, service = PERMISSIONS[method]
        text = self.text or TEXTS.get(self.code.name, self.code.name).format(permission=permission, service=service)
        details: list[Message] = []
        if self.code is grpc.StatusCode.PERMISSION_DENIED and not self.text:
            metadata = {"permission": permission, "service": service}
            details.append(ErrorInfo(reason="IAM_PERMISSION_DENIED", domain="iam.googleapis.com", metadata=metadata))
        if self.retry_after_s is not None:
            delay = Duration()
            delay.FromNanoseconds(int(self.retry_after_s * 1e9))
            details.append(RetryInfo(retry_delay=delay))
        return Refused(self.code, text, *details)


class Faults:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self._waits: dict[str, float | None] = {}  # seconds by method; None: for ever
        self._waiting: set[threading.Event] = set()

    def fail(self, fault: Fault) -> None:
        if fault.method not in ("*", *PERMISSIONS):
            raise ValueError(f"no such method: {fault.method}")
        with self._lock:
            self._faults.append(fault)

    def wait(self, method: str, seconds: float | None) -> None:
        if method not in ("*", *PERMISSIONS):
            raise ValueError(f"no such method: {method}")
        with self._lock:
            self._waits[method] = seconds

    def heal(self) -> None:
        with self._lock:
            self._faults.clear()
            self._waits.clear()
            for over in self._waiting:
                over.set()

    def hold(self, method: str, context: grpc.ServicerContext) -> None:
        """Wait as long as a call of this method must. Raises Gone when the client left meanwhile."""
        over = threading.Event()
        with self._lock:
            held = next((name for name in (method, "*") if name in self._waits), None)
            if held is None:
                return
            seconds = self._waits[held]
            self._waiting.add(over)
        # Called at once when the call is over already: then there is nobody left to answer.
        if not context.add_callback(over.set):
            over.set()
        over.wait(seconds)
        with self._lock:
            self._waiting.discard(over)
        if not context.is_active():
            raise Gone

    def take(self, method: str) -> Fault | None:
        """The fault that this call meets, used up by one."""
        with self._lock:
            for fault in self._faults:
                if fault.method not in (method, "*"):
                    continue
                if fault.times is not None:
                    fault.times -= 1
                    if fault.times <= 0:
                        self._faults.remove(fault)
                return fault
        return None
