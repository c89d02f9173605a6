"""Counters begin at 0 at a receiver: rates and conversions to deltas count all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from ports import reserved_port
from waits import until

from otel_goodput import Recorder, semconv

from .backends import Received, grpc_backend

NAMES = {metric.name for metric in vars(semconv).values() if getattr(metric, "kind", "") == semconv.COUNTER}


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> Iterator[Received]:
    with grpc_backend() as backend:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", backend.endpoint)
        yield backend


def values(request: ExportMetricsServiceRequest) -> dict[tuple[str, str], float]:
    """Of the counters, by name and attributes."""
    return {
        (metric.name, str(point.attributes)): point.as_double or point.as_int
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.WhichOneof("data") == "sum" and metric.sum.is_monotonic
        for point in metric.sum.data_points
    }


def train(recorder: Recorder) -> None:
    for number in range(200):
        with recorder.step(number), recorder.custom("inside"):
            pass


def test_the_first_point_of_a_counter_is_0(received: Received, tmp_path: Path) -> None:
    recorder = Recorder("job", directory=tmp_path, exporters="otlp")
    with recorder.job():
        train(recorder)
        recorder.flush(10)
        recorder.flush(10)
    recorder.shutdown(10)
    first, second, last = map(values, received.metrics)
    assert first and {name for name, _ in first} <= NAMES
    assert set(first.values()) == {0}
    assert second.keys() == first.keys() and sum(second.values()) > 0
    assert all(second[key] <= last[key] for key in second)


def test_the_only_point_of_a_counter_has_all(received: Received, tmp_path: Path) -> None:
    recorder = Recorder("job", directory=tmp_path, exporters="otlp")
    with recorder.job():
        train(recorder)
    recorder.shutdown(10)
    (only,) = map(values, received.metrics)
    assert sum(only.values()) > 0


def test_a_point_that_did_not_arrive_was_not_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with reserved_port() as port:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
        recorder = Recorder("job", directory=tmp_path, exporters="otlp")
        with recorder.job():
            train(recorder)
            recorder.flush(1)
            with grpc_backend(port) as received:
                until(lambda: recorder.flush(10) and received.metrics)
                recorder.shutdown(10)
    first = values(received.metrics[0])
    assert first and set(first.values()) == {0}
