"""Google's own clients at an emulator without TLS."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import grpc
from google.cloud.monitoring_v3 import MetricServiceClient
from google.cloud.monitoring_v3.services.metric_service.transports import MetricServiceGrpcTransport
from google.cloud.trace_v2 import TraceServiceClient
from google.cloud.trace_v2.services.trace_service.transports import TraceServiceGrpcTransport


@contextmanager
def trace_client(endpoint: str) -> Iterator[TraceServiceClient]:
    with grpc.insecure_channel(endpoint.removeprefix("http://")) as channel:
        yield TraceServiceClient(transport=TraceServiceGrpcTransport(channel=channel))


@contextmanager
def metric_client(endpoint: str) -> Iterator[MetricServiceClient]:
    with grpc.insecure_channel(endpoint.removeprefix("http://")) as channel:
        yield MetricServiceClient(transport=MetricServiceGrpcTransport(channel=channel))
