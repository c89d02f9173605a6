"""Real backends on loopback: OTLP over gRPC and HTTP that decode what they are sent, and one that never answers."""

from __future__ import annotations

import gzip
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from http_server import HttpServer, Request, Response
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from otlp_server import otlp_server


class Received:
    """What a backend was sent."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.traces: list[ExportTraceServiceRequest] = []
        self.metrics: list[ExportMetricsServiceRequest] = []
        self.headers: list[dict[str, str]] = []

    def spans(self) -> list[Span]:
        return [
            span
            for request in self.traces
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def span_names(self) -> list[str]:
        return [span.name for span in self.spans()]

    def metric_names(self) -> set[str]:
        return {
            metric.name
            for request in self.metrics
            for resource in request.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@contextmanager
def grpc_backend(port: int = 0) -> Iterator[Received]:
    def take_traces(request: ExportTraceServiceRequest, context: grpc.ServicerContext) -> ExportTraceServiceResponse:
        received.headers.append(dict(context.invocation_metadata()))
        received.traces.append(request)
        return ExportTraceServiceResponse()

    def take_metrics(request: ExportMetricsServiceRequest, _: grpc.ServicerContext) -> ExportMetricsServiceResponse:
        received.metrics.append(request)
        return ExportMetricsServiceResponse()

    received = Received("")  # somebody may have waited for it, and comes at once
    with otlp_server(take_traces, take_metrics, port=port) as received.endpoint:
        yield received


@contextmanager
def http_backend(port: int = 0) -> Iterator[Received]:
    def answer(request: Request) -> Response:
        body = gzip.decompress(request.body) if request.headers.get("content-encoding") == "gzip" else request.body
        received.headers.append({name.lower(): value for name, value in request.headers.items()})
        if request.path == "/v1/traces":
            received.traces.append(ExportTraceServiceRequest.FromString(body))
        elif request.path == "/v1/metrics":
            received.metrics.append(ExportMetricsServiceRequest.FromString(body))
        else:
            return Response(404)
        return Response()

    received = Received("")  # somebody may have waited for it, and comes at once
    with HttpServer(answer, port) as server:
        received.endpoint = server.url
        yield received


@contextmanager
def silent_backend() -> Iterator[str]:
    """Accepts every connection and never says a word, in no protocol, thus a bare socket. Gives its endpoint."""
    held: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            while True:
                connection, _ = server.accept()
                if stopping.is_set():
                    connection.close()
                    return
                held.append(connection)

        stopping = threading.Event()
        thread = threading.Thread(target=accept)
        thread.start()
        port = server.getsockname()[1]
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            stopping.set()
            socket.create_connection(("127.0.0.1", port)).close()
            thread.join()
            for connection in held:
                connection.close()


@contextmanager
def stalled_grpc_backend() -> Iterator[str]:
    """A gRPC server whose handlers take every request and answer only when the test is over. Gives its endpoint."""
    over = threading.Event()

    def stall(answer: Callable[[], Any]) -> Any:
        over.wait()
        return answer()

    with otlp_server(
        lambda *_: stall(ExportTraceServiceResponse), lambda *_: stall(ExportMetricsServiceResponse), threads=16
    ) as endpoint:
        try:
            yield endpoint
        finally:
            over.set()
