"""A gRPC server of OTLP on loopback, whose answers the test gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as traces

# Else another server that is given any port may be given this one's, and half of what comes there.
ALONE = (("grpc.so_reuseport", 0),)

Answer = Callable[[Any, grpc.ServicerContext], Any]


@contextmanager
def otlp_server(
    on_traces: Answer | None = None, on_metrics: Answer | None = None, *, port: int = 0, threads: int = 4
) -> Iterator[str]:
    """Serves the signals that an answer is given for, the other one is unimplemented. Gives its endpoint."""
    with ThreadPoolExecutor(threads) as pool:
        server = grpc.server(pool, options=ALONE)
        bound = server.add_insecure_port(f"127.0.0.1:{port}")
        for answer, servicer, add in (
            (on_traces, traces.TraceServiceServicer, traces.add_TraceServiceServicer_to_server),
            (on_metrics, metrics.MetricsServiceServicer, metrics.add_MetricsServiceServicer_to_server),
        ):
            if answer is not None:
                service = servicer()
                service.Export = answer
                add(service, server)
        server.start()
        try:
            yield f"http://127.0.0.1:{bound}"
        finally:
            server.stop(None).wait()
