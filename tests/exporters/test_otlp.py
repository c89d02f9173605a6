"""The exporter `otlp` against real gRPC and HTTP servers on loopback."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from opentelemetry.sdk.metrics import Counter, MeterProvider
from opentelemetry.sdk.metrics.export import MetricExportResult, PeriodicExportingMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.trace import Link

from otel_goodput._runtime.deadline import close_all
from otel_goodput.exporters.otlp_variables import Endpoint, protocol, timeout
from otel_goodput.exporters.registry import dropped_items, open_exporter
from otel_goodput.exporters.spec import ExporterContext, ExporterUnavailable

from .backends import Received, grpc_backend, http_backend, silent_backend
from .telemetry import RESOURCE, collect, context, observed, spans

BACKENDS: dict[str, Callable[[], AbstractContextManager[Received]]] = {
    "grpc": grpc_backend,
    "http/protobuf": http_backend,
}


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)


@pytest.mark.parametrize("wire", BACKENDS)
def test_all_spans_and_the_last_value_arrive(wire: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with BACKENDS[wire]() as received:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", received.endpoint)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=secret")
        if wire != "grpc":  # which is the default
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", wire)
        opened = open_exporter("otlp", ExporterContext("job", "run", environ=os.environ))
        assert opened.span_exporter is not None
        assert opened.metric_exporter is not None
        processor = BatchSpanProcessor(opened.span_exporter)
        reader = PeriodicExportingMetricReader(opened.metric_exporter, 3_600_000)
        traces = TracerProvider(resource=RESOURCE, shutdown_on_exit=False)
        traces.add_span_processor(processor)
        meters = MeterProvider([reader], resource=RESOURCE, shutdown_on_exit=False)
        tracer, meter = traces.get_tracer("t"), meters.get_meter("m")
        for number in range(1200):
            tracer.start_span(f"span {number}").end()
        meter.create_counter("c").add(5)
        meter.create_histogram("h").record(1.0)

        left = close_all(
            [
                ("traces", lambda _: processor.shutdown()),
                ("metrics", lambda ms: reader.shutdown(timeout_millis=ms)),
            ],
            60,
        )
        assert left == []
        assert sorted(received.span_names()) == sorted(f"span {number}" for number in range(1200))
        assert received.metric_names() == {"c", "h"}
        assert received.headers[0]["x-key"] == "secret"
        (data,) = received.metrics
        kinds = {m.name: m.WhichOneof("data") for m in data.resource_metrics[0].scope_metrics[0].metrics}
        assert kinds == {"c": "sum", "h": "exponential_histogram"}
        assert dropped_items(opened) == {"traces": 0, "metrics": 0}


@pytest.mark.parametrize("wire", BACKENDS)
def test_a_malformed_header_is_reported_by_its_position(
    wire: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """OpenTelemetry leaves it out too, but logs all of it."""
    with BACKENDS[wire]() as received:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", received.endpoint)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", wire)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"x-key=1, authorization: Bearer s3cr3t-{wire}")
        opened = open_exporter("otlp", ExporterContext("job", "run", environ=os.environ))
        assert opened.span_exporter is not None and opened.metric_exporter is not None
        assert opened.span_exporter.export(spans(1)) is SpanExportResult.SUCCESS
        opened.span_exporter.shutdown()
        opened.metric_exporter.shutdown()
        assert received.headers[0]["x-key"] == "1" and "authorization" not in received.headers[0]
    assert "s3cr3t" not in caplog.text
    warning = "item 2 of OTEL_EXPORTER_OTLP_HEADERS is not a header: write NAME=VALUE, not NAME: VALUE; it is left out"
    assert caplog.messages == [warning]


@pytest.mark.parametrize("wire", BACKENDS)
def test_an_exporter_does_not_show_the_password_of_its_endpoint(wire: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", wire)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://someone:correct-horse@localhost:4318")
    opened = open_exporter("otlp", ExporterContext("job", "run", environ=os.environ))
    for exporter in opened.by_signal().values():
        while exporter is not None:
            assert "correct-horse" not in repr(exporter)
            exporter = vars(exporter).get("_exporter")  # the one that it wraps


def test_a_header_that_grpc_cannot_send_is_reported_before_the_first_export(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=1,authorization=Bearer%20s3cr3t%0A2")
    with pytest.raises(ExporterUnavailable) as failure:
        open_exporter("otlp", ExporterContext("job", "run", environ=os.environ))
    assert "item 2 of OTEL_EXPORTER_OTLP_HEADERS cannot be sent over grpc" in str(failure.value)
    assert "s3cr3t" not in str(failure.value)


def test_a_converted_span_still_says_what_the_sdk_has_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = TracerProvider(
        span_limits=SpanLimits(max_span_attributes=1, max_events=1, max_links=1, max_event_attributes=1),
        shutdown_on_exit=False,
    )
    link = Link(context(9))
    with provider.get_tracer("t").start_as_current_span("s", links=[link, link, link]) as span:
        span.set_attributes({"a": 1, "big": 2**70})
        for _ in range(3):
            span.add_event("caf\udce9", {"a": 1, "b": 2})
    with grpc_backend() as received:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", received.endpoint)
        opened = open_exporter("otlp", ExporterContext("job", "run", environ=os.environ))
        assert opened.span_exporter is not None
        assert isinstance(span, ReadableSpan)
        assert opened.span_exporter.export([span]) is SpanExportResult.SUCCESS
        (sent,) = received.spans()
        assert [event.name for event in sent.events] == ["caf?"]
        dropped = (sent.dropped_attributes_count, sent.dropped_events_count, sent.dropped_links_count)
        assert (*dropped, sent.events[0].dropped_attributes_count) == (1, 2, 2, 1)
        opened.span_exporter.shutdown()


def test_what_may_help_follows_from_the_status_and_not_from_the_port() -> None:
    refused = Endpoint("traces", "http/protobuf", "http://localhost:4040")
    assert "base URL" not in refused.advice("connection to localhost:4040 refused")
    assert "base URL" in refused.advice("Failed to export span batch code: 404, reason: not found")


@pytest.mark.parametrize("wire", BACKENDS)
def test_odd_values_do_not_cost_the_batch(wire: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text that no encoding has, and an integer that no field of the protocol holds."""
    name = os.fsdecode(b"caf\xe9")
    with BACKENDS[wire]() as received:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", received.endpoint)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", wire)
        opened = open_exporter("otlp", ExporterContext("job", "run", environ=os.environ))
        assert opened.span_exporter is not None and opened.metric_exporter is not None
        odd = ReadableSpan(name, context(1), attributes={name: name, "big": 2**70}, start_time=1, end_time=2)
        assert opened.span_exporter.export([odd, *spans(1)]) is SpanExportResult.SUCCESS
        assert received.span_names() == ["caf?", "step 0"]
        points = [(1.0, {name: name}), (2.0, {"plain": "b"})]
        data = collect(observed("gauge", "g", *points))
        assert opened.metric_exporter.export(data, timeout_millis=10_000) is MetricExportResult.SUCCESS
        opened.metric_exporter.shutdown(10_000)
        assert received.metric_names() == {"g"}
        assert dropped_items(opened) == {"traces": 0, "metrics": 0}


def test_each_signal_may_have_its_own_protocol_and_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    with grpc_backend() as over_grpc, http_backend() as over_http:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", over_grpc.endpoint)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{over_http.endpoint}/v1/traces")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
        opened = open_exporter("otlp", ExporterContext("job", "run", environ=os.environ))
        assert opened.span_exporter is not None
        assert opened.metric_exporter is not None
        assert opened.span_exporter.export(spans(2)) is SpanExportResult.SUCCESS
        reader = PeriodicExportingMetricReader(opened.metric_exporter, 3_600_000)
        provider = MeterProvider([reader], shutdown_on_exit=False)
        provider.get_meter("m").create_counter("c").add(1)
        provider.shutdown()
        opened.span_exporter.shutdown()
        assert over_http.span_names() == ["step 0", "step 1"]
        assert over_http.headers[0]["content-encoding"] == "gzip"
        assert over_grpc.metric_names() == {"c"}


@pytest.mark.parametrize("wire", BACKENDS)
def test_temporality_and_aggregation_by_the_standard_variables(wire: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with BACKENDS[wire]() as received:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", received.endpoint)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", wire)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION", "explicit_bucket_histogram")
        opened = open_exporter("otlp", ExporterContext("job", "run", environ=os.environ))
        assert opened.metric_exporter is not None
        assert opened.metric_exporter._preferred_temporality is not None
        assert Counter in opened.metric_exporter._preferred_temporality
        reader = PeriodicExportingMetricReader(opened.metric_exporter, 3_600_000)
        provider = MeterProvider([reader], shutdown_on_exit=False)
        provider.get_meter("m").create_histogram("h").record(1.0)
        provider.shutdown()
        assert opened.span_exporter is not None
        opened.span_exporter.shutdown()
        metric = received.metrics[0].resource_metrics[0].scope_metrics[0].metrics[0]
        assert metric.WhichOneof("data") == "histogram"
        assert metric.histogram.aggregation_temporality == 1  # delta


@pytest.mark.parametrize("wire", BACKENDS)
def test_a_silent_backend_costs_an_export_no_more_than_its_share_of_the_grace_period(
    wire: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    with silent_backend() as endpoint:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", wire)
        opened = open_exporter("otlp", ExporterContext("job", "run", environ=os.environ, grace_period_s=1.0))
        assert opened.span_exporter is not None
        assert opened.metric_exporter is not None
        started = time.monotonic()
        assert opened.span_exporter.export(spans(3)) is SpanExportResult.FAILURE
        assert time.monotonic() - started < 1.0
        assert dropped_items(opened) == {"traces": 0, "metrics": 0}  # there is another try
        opened.span_exporter.shutdown()
        assert dropped_items(opened) == {"traces": 3, "metrics": 0}
        opened.span_exporter.shutdown()
        opened.metric_exporter.shutdown()


@pytest.mark.parametrize(
    ("environ", "traces", "metrics"),
    [
        ({}, "grpc", "grpc"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, "http/protobuf", "http/protobuf"),
        ({"OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": " HTTP/protobuf "}, "grpc", "http/protobuf"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"}, "grpc",
         "http/protobuf"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": ""}, "grpc", "grpc"),
    ],
)  # fmt: skip
def test_the_protocol_of_each_signal(environ: dict[str, str], traces: str, metrics: str) -> None:
    assert protocol(environ, "traces") == traces
    assert protocol(environ, "metrics") == metrics


def test_a_protocol_nobody_has_warns_once_and_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    environ = {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json-of-this-test"}
    with caplog.at_level(logging.WARNING):
        assert protocol(environ, "traces") == "grpc"
        assert protocol(environ, "metrics") == "grpc"
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("environ", "grace", "seconds"),
    [
        ({}, 100.0, 10.0),
        ({}, 10.0, 4.0),
        ({}, 0.0, 0.1),
        ({"OTEL_EXPORTER_OTLP_TIMEOUT": "3"}, 10.0, 3.0),
        ({"OTEL_EXPORTER_OTLP_TIMEOUT": "3", "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "2"}, 10.0, 2.0),
        ({"OTEL_EXPORTER_OTLP_TIMEOUT": "10000"}, 10.0, 4.0),
        ({"OTEL_EXPORTER_OTLP_TIMEOUT": "soon"}, 100.0, 10.0),
        ({"OTEL_EXPORTER_OTLP_TIMEOUT": "-1"}, 100.0, 10.0),
        ({"OTEL_EXPORTER_OTLP_TIMEOUT": "nan"}, 100.0, 10.0),
    ],
)
def test_the_timeout_of_an_export(environ: dict[str, str], grace: float, seconds: float) -> None:
    assert timeout(environ, "traces", grace) == seconds
