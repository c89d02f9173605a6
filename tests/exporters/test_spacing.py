"""The last values of a process, as an OTLP backend gets them: dated so that Cloud Monitoring takes them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from waits import until

from otel_goodput import Recorder

from .backends import Received, grpc_backend, http_backend

SPACING = 5 * 10**9  # ns


@pytest.fixture(params=["grpc", "http/protobuf"])
def received(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Received]:
    with {"grpc": grpc_backend, "http/protobuf": http_backend}[request.param]() as backend:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", backend.endpoint)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", request.param)
        yield backend


def times(request: ExportMetricsServiceRequest) -> set[int]:
    """When its points were measured, unix ns, of every kind of metric."""
    nanoseconds: set[int] = set()
    for resource in request.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                data = getattr(metric, metric.WhichOneof("data"))
                nanoseconds |= {point.time_unix_nano for point in data.data_points}
    return nanoseconds


def trained(directory: Path, flushes: int = 0, **settings: Any) -> Recorder:
    recorder = Recorder("job", directory=directory, exporters="otlp", **settings)
    with recorder.job():
        for number in range(3):
            with recorder.step(number):
                pass
            if number < flushes:
                recorder.flush(10)
    return recorder


def test_the_last_values_are_five_seconds_after_those_before(received: Received, tmp_path: Path) -> None:
    recorder = trained(tmp_path, flushes=1)
    recorder.shutdown(10)
    first, last = received.metrics
    assert min(times(last)) - max(times(first)) >= SPACING
    assert max(times(last)) - time.time_ns() < SPACING
    assert {name.name for name in last.resource_metrics[0].scope_metrics[0].metrics} >= {
        "goodput.time",
        "goodput.step.count",
    }


def test_only_the_last_are_dated_ahead(received: Received, tmp_path: Path) -> None:
    recorder = trained(tmp_path, flushes=3)
    now = time.time_ns()
    recorder.shutdown(10)
    *before, last = map(times, received.metrics)
    assert len(before) == 3 and max(map(max, before)) <= now
    assert all(min(later) - max(earlier) < SPACING for earlier, later in pairwise(before))
    assert min(last) - max(before[-1]) >= SPACING


def test_values_that_are_the_first_bear_their_time(received: Received, tmp_path: Path) -> None:
    begin = time.time_ns()
    trained(tmp_path).shutdown(10)
    (only,) = received.metrics
    assert begin <= min(times(only)) and max(times(only)) <= time.time_ns()


def test_whose_they_are_is_on_the_resource(received: Received, tmp_path: Path) -> None:
    """Of the metrics also that they keep their distance, which those of a reader of the user's do not."""
    memory = InMemoryMetricReader()
    recorder = trained(tmp_path, metric_readers=[memory])
    data = memory.get_metrics_data()
    recorder.shutdown(10)
    for request in (received.traces[0].resource_spans[0], received.metrics[0].resource_metrics[0]):
        resource = {attribute.key: attribute.value for attribute in request.resource.attributes}
        assert resource["telemetry.distro.name"].string_value == "otel_goodput"
    assert resource["goodput.telemetry.spaced"].bool_value
    assert data is not None and "goodput.telemetry.spaced" not in data.resource_metrics[0].resource.attributes


def test_the_end_of_a_job_may_be_that_of_its_process(received: Received, tmp_path: Path) -> None:
    recorder = trained(tmp_path, flushes=1)  # its job has ended, so everything is exported soon, and again at exit
    until(lambda: len(received.metrics) == 2)
    recorder.flush(10)  # the process goes on: these values are older than those
    recorder.shutdown(10)
    requests = list(map(times, received.metrics))
    assert len(requests) == 4
    assert all(min(later) - max(earlier) >= SPACING for earlier, later in pairwise(requests))
