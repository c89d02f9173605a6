"""Real backends on loopback: OTLP over gRPC and HTTP that decode what they are sent, and one that never answers."""

from __future__ import annotations

import gzip
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
from http_server import HttpServer, Request, Response
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import (
    MetricsServiceServicer,
    add_MetricsServiceServicer_to_server,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

# Else another server, which is given any port, may be given the one that this one has, and half of what comes there.
ALONE = (("grpc.so_reuseport", 0),)


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


class _Traces(TraceServiceServicer):
    def __init__(self, received: Received) -> None:
        self.received = received

    def Export(
        self, request: ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> ExportTraceServiceResponse:
        self.received.headers.append(dict(context.invocation_metadata()))
        self.received.traces.append(request)
        return ExportTraceServiceResponse()


class _Metrics(MetricsServiceServicer):
    def __init__(self, received: Received) -> None:
        self.received = received

    def Export(
        self, request: ExportMetricsServiceRequest, context: grpc.ServicerContext
    ) -> ExportMetricsServiceResponse:
        self.received.metrics.append(request)
        return ExportMetricsServiceResponse()


@contextmanager
def grpc_backend(port: int = 0) -> Iterator[Received]:
    with ThreadPoolExecutor(4) as pool:
        server = grpc.server(pool, options=ALONE)
        received = Received(f"http://127.0.0.1:{server.add_insecure_port(f'127.0.0.1:{port}')}")
        add_TraceServiceServicer_to_server(_Traces(received), server)
        add_MetricsServiceServicer_to_server(_Metrics(received), server)
        server.start()
        try:
            yield received
        finally:
            server.stop(None).wait()


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

    class Traces(TraceServiceServicer):
        def Export(
            self, request: ExportTraceServiceRequest, context: grpc.ServicerContext
        ) -> ExportTraceServiceResponse:
            over.wait()
            return ExportTraceServiceResponse()

    class Metrics(MetricsServiceServicer):
        def Export(
            self, request: ExportMetricsServiceRequest, context: grpc.ServicerContext
        ) -> ExportMetricsServiceResponse:
            over.wait()
            return ExportMetricsServiceResponse()

    with ThreadPoolExecutor(16) as pool:
        server = grpc.server(pool, options=ALONE)
        port = server.add_insecure_port("127.0.0.1:0")
        add_TraceServiceServicer_to_server(Traces(), server)
        add_MetricsServiceServicer_to_server(Metrics(), server)
        server.start()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            over.set()
            server.stop(None).wait()
