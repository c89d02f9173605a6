"""More than a disk holds, sent as clients send it: until it is turned away."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import grpc
from emulators.google import GoogleEmulator
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import MetricsServiceStub
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceStub

from otel_goodput import semconv

from .collector import PROJECT

NS = 10**9
SPANS, POINTS = 50, 100  # in a request
PADDING, LENGTH = 2000, 62  # bytes of a span and of a series' name: random, for nothing makes them fewer
LIMIT = 300  # requests, of which some must have been turned away
REFUSALS = 5  # after which a client has seen enough

Names = set[str]


class Outcome(NamedTuple):
    """What was accepted, by its name, and with which codes the rest was turned away."""

    accepted: Names
    refused: list[grpc.StatusCode]


def spans(count: int = SPANS) -> tuple[ExportTraceServiceRequest, Names]:
    """Spans of a phase, which no gateway takes for routine, and their ids."""
    now = time.time_ns()
    made = [
        {
            "trace_id": os.urandom(16),
            "span_id": os.urandom(8),
            "name": "flood",
            "start_time_unix_nano": now - NS,
            "end_time_unix_nano": now,
            "attributes": _attributes({"goodput.phase": "checkpoint_save", "padding": os.urandom(PADDING).hex()}),
        }
        for _ in range(count)
    ]
    request = ExportTraceServiceRequest(resource_spans=[{"resource": _RESOURCE, "scope_spans": [{"spans": made}]}])
    return request, {each["span_id"].hex() for each in made}


def points(count: int = POINTS) -> tuple[ExportMetricsServiceRequest, Names]:
    """A first point of as many series, as our library marks them, and the series' names."""
    now = time.time_ns()
    names = {f"flood.x{os.urandom(LENGTH).hex()}" for _ in range(count)}
    point = {"start_time_unix_nano": now - 60 * NS, "time_unix_nano": now, "as_int": 7}
    value = {"aggregation_temporality": 2, "is_monotonic": True, "data_points": [point]}
    metrics = [{"name": name, "sum": value} for name in names]
    scopes = [{"metrics": metrics}]
    return ExportMetricsServiceRequest(resource_metrics=[{"resource": _RESOURCE, "scope_metrics": scopes}]), names


def _attributes(values: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in values.items()]


def _value(value: Any) -> dict[str, Any]:
    return {"bool_value": value} if isinstance(value, bool) else {"string_value": value}


_RESOURCE = {
    "attributes": _attributes(
        {
            "service.name": "flood",
            "service.instance.id": "one",
            "gcp.project_id": PROJECT,  # as sidecars set it before a gateway
            "location": "global",
            semconv.TELEMETRY_SPACED: True,
        }
    )
}


def send(
    address: str, stub: Callable[[grpc.Channel], Any], make: Callable[[], tuple[Any, Names]], requests: int
) -> Outcome:
    """So many requests to a collector, or fewer: until some have been turned away."""
    accepted: Names = set()
    refused: list[grpc.StatusCode] = []
    with grpc.insecure_channel(address) as channel:
        client = stub(channel)
        for _ in range(requests):
            request, names = make()
            try:
                client.Export(request, timeout=10)
                accepted |= names
            except grpc.RpcError as error:
                refused.append(error.code())
                if len(refused) == REFUSALS:
                    break
    return Outcome(accepted, refused)


def send_spans(address: str, requests: int = LIMIT) -> Outcome:
    return send(address, TraceServiceStub, spans, requests)


def send_points(address: str, requests: int = LIMIT) -> Outcome:
    return send(address, MetricsServiceStub, points, requests)


def missing(google: GoogleEmulator, names: Iterable[str]) -> Names:
    """What of this has not arrived."""
    there = {span.span_id.hex() for span in [*google.otlp_spans]} | {span.span_id for span in [*google.spans]}
    there |= {key.type.rpartition("/")[2] for key in {**google.series, **google.otlp_series}}
    return {*names} - there
