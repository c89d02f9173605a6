"""telemetry.googleapis.com's rules, by requests as an OTLP exporter sends them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import MetricsServiceStub
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceStub
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric, ResourceMetrics, ScopeMetrics
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from emulators.examples import NOW, SECOND, TRACE
from emulators.google import GoogleEmulator
from emulators.otlp_rules import POINTS_RULES, RESOURCE_RULES

GOOD = {
    "gcp.project_id": "test-project",
    "cloud.region": "us-central1",
    "service.name": "llama",
    "service.instance.id": "0",
}
CUMULATIVE, DELTA = 2, 1
# By rule: the attributes that break it, the code.
RESOURCES = {
    "otlp.project": (GOOD | {"gcp.project_id": ""}, "INVALID_ARGUMENT"),
    "project": (GOOD | {"gcp.project_id": "other"}, "PERMISSION_DENIED"),
    "otlp.location": (GOOD | {"cloud.region": ""}, "INVALID_ARGUMENT"),
    "otlp.instance": (GOOD | {"service.instance.id": ""}, "INVALID_ARGUMENT"),
}


@pytest.fixture
def google() -> Iterator[GoogleEmulator]:
    with GoogleEmulator(now=lambda: NOW) as emulator:
        yield emulator


@contextmanager
def refused(code: str) -> Iterator[None]:
    with pytest.raises(grpc.RpcError) as caught:
        yield
    assert caught.value.code() is grpc.StatusCode[code]


def keys(attributes: dict[str, str]) -> list[KeyValue]:
    return [KeyValue(key=key, value=AnyValue(string_value=value)) for key, value in attributes.items()]


def send_spans(google: GoogleEmulator, *spans: Span, attributes: dict[str, str] = GOOD) -> None:
    resource = Resource(attributes=keys(attributes))
    scoped = ResourceSpans(resource=resource, scope_spans=[ScopeSpans(spans=spans)])
    with grpc.insecure_channel(google.endpoint.removeprefix("http://")) as channel:
        TraceServiceStub(channel).Export(ExportTraceServiceRequest(resource_spans=[scoped]))


def send_metrics(google: GoogleEmulator, *metrics: Metric, attributes: dict[str, str] = GOOD) -> None:
    resource = Resource(attributes=keys(attributes))
    scoped = ResourceMetrics(resource=resource, scope_metrics=[ScopeMetrics(metrics=metrics)])
    with grpc.insecure_channel(google.endpoint.removeprefix("http://")) as channel:
        MetricsServiceStub(channel).Export(ExportMetricsServiceRequest(resource_metrics=[scoped]))


def span(number: int = 1, **fields: Any) -> Span:
    whole = {
        "trace_id": bytes.fromhex(TRACE),
        "span_id": number.to_bytes(8, "big"),
        "name": "step",
        "start_time_unix_nano": NOW - 2 * SECOND,
        "end_time_unix_nano": NOW - SECOND,
    }
    return Span(**(whole | fields))


def point(value: float | None, end: float = 0, **labels: str) -> dict[str, Any]:
    number = {} if value is None else {"as_double": value}
    return {
        "start_time_unix_nano": NOW - 100 * SECOND,
        "time_unix_nano": NOW + round(end * SECOND),
        "attributes": keys(labels),
        **number,
    }


def gauge(*points: dict[str, Any], name: str = "goodput.time") -> Metric:
    return Metric(name=name, gauge={"data_points": points})


def counter(*points: dict[str, Any], temporality: int = CUMULATIVE) -> Metric:
    fields = {"data_points": points, "aggregation_temporality": temporality, "is_monotonic": True}
    return Metric(name="steps", sum=fields)


@pytest.mark.parametrize("rule", RESOURCES)
def test_a_resource_must_tell_where_it_is(google: GoogleEmulator, rule: str) -> None:
    attributes, code = RESOURCES[rule]
    with refused(code):
        send_spans(google, span(), attributes=attributes)
    with refused(code):
        send_metrics(google, gauge(point(1.0)), attributes=attributes)
    assert [refusal.rule for refusal in google.refusals] == [rule, rule]
    assert [(request.method, request.code) for request in google.requests] == [
        ("OtlpTraces", code),
        ("OtlpMetrics", code),
    ]
    assert (google.otlp_spans, google.otlp_series) == ([], {})


def test_what_is_good_is_stored(google: GoogleEmulator) -> None:
    send_spans(google, span(1), span(2, parent_span_id=(1).to_bytes(8, "big"), attributes=keys({"a.b": "训练"})))
    send_metrics(google, gauge(point(1.5, **{"goodput.category": "productive"})), counter(point(3.0)))
    assert [stored.name for stored in google.otlp_spans] == ["step", "step"]
    target = {"project_id": "test-project", "location": "us-central1", "cluster": "", "namespace": ""}
    target |= {"job": "llama", "instance": "0"}
    first_points = {
        (key.type, dict(key.labels).get("goodput.category")): (points[0].value, points[0].start)
        for key, points in google.otlp_series.items()
    }
    assert first_points == {("goodput.time", "productive"): (1.5, None), ("steps", None): (3.0, NOW - 100 * SECOND)}
    assert {frozenset(target.items())} == {key.resource_labels for key in google.otlp_series}
    assert google.refusals == google.notes == []
    assert (google.spans, google.series) == ([], {})


def test_distributions_are_stored(google: GoogleEmulator) -> None:
    times = {"start_time_unix_nano": NOW - SECOND, "time_unix_nano": NOW}
    explicit = {**times, "count": 3, "sum": 6.0, "bucket_counts": [1, 2], "explicit_bounds": [1.0]}
    exponential = {**times, "count": 4, "sum": 8.0, "scale": 0, "zero_count": 1}
    exponential["positive"] = {"offset": 1, "bucket_counts": [1, 2]}
    send_metrics(
        google,
        Metric(name="h", histogram={"data_points": [explicit], "aggregation_temporality": CUMULATIVE}),
        Metric(name="e", exponential_histogram={"data_points": [exponential], "aggregation_temporality": CUMULATIVE}),
    )
    values = {key.type: points[0].value for key, points in google.otlp_series.items()}
    assert (values["h"].count, values["h"].mean, list(values["h"].bucket_counts)) == (3, 2.0, [1, 2])
    assert (values["e"].count, values["e"].mean, list(values["e"].bucket_counts)) == (4, 2.0, [1, 1, 2, 0])
    assert values["e"].bucket_options.exponential_buckets.scale == 2.0


@pytest.mark.parametrize(
    ("rule", "fields"),
    [
        ("trace.name", {"trace_id": b""}),
        ("trace.name", {"span_id": bytes(8)}),
        ("trace.parent", {"parent_span_id": b"12"}),
        ("trace.display_name", {"name": ""}),
        ("trace.times", {"end_time_unix_nano": 0}),
        ("trace.past", {"start_time_unix_nano": NOW - 15 * 86400 * SECOND}),
        ("trace.attributes", {"attributes": keys({"k" * 513: "v"})}),
        ("trace.events", {"events": [Span.Event(name="e", time_unix_nano=NOW)] * 257}),
        ("trace.links", {"links": [Span.Link(trace_id=bytes(16), span_id=bytes(8))] * 129}),
    ],
)
def test_spans_obey_the_rules_of_traces(google: GoogleEmulator, rule: str, fields: dict[str, Any]) -> None:
    with refused("INVALID_ARGUMENT"):
        send_spans(google, span(1), span(2, **fields))
    assert [refusal.rule for refusal in google.refusals] == [rule]
    assert google.otlp_spans == []


@pytest.mark.parametrize(
    ("rule", "metric"),
    [
        ("mon.order", gauge(point(2.0, end=-50))),
        ("mon.sampling", gauge(point(2.0, end=-36))),
        ("mon.value", gauge(point(None))),
        ("mon.value", gauge(point(float("nan")))),
        ("mon.kind", counter(point(1.0), temporality=DELTA)),
        ("mon.metric_type", gauge(point(1.0), name="步")),
        ("mon.end_time", gauge(point(1.0, end=301))),
        ("mon.duplicate", gauge(point(1.0), point(2.0))),
    ],
)
def test_points_obey_the_rules_of_series(google: GoogleEmulator, rule: str, metric: Metric) -> None:
    send_metrics(google, gauge(point(1.0, end=-40)))
    with refused("INVALID_ARGUMENT"):
        send_metrics(google, metric)
    assert [refusal.rule for refusal in google.refusals] == [rule]


def test_a_request_holds_so_many_points(google: GoogleEmulator) -> None:
    points = [point(1.0, rank=str(rank)) for rank in range(201)]
    with refused("INVALID_ARGUMENT"):
        send_metrics(google, gauge(*points[:100]), counter(*points[100:]))
    assert google.otlp_series == {}
    send_metrics(google, gauge(*points[:100]), counter(*points[100:200]))
    assert [refusal.rule for refusal in google.refusals] == ["otlp.batch"]
    assert len(google.otlp_series) == 200


def test_every_rule_is_shown() -> None:
    assert {rule.name for rule in (*RESOURCE_RULES, *POINTS_RULES)} == {*RESOURCES, "otlp.batch"}
