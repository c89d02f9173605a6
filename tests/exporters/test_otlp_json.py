"""The JSON encoder against OpenTelemetry's own protobuf encoder: the same spans and metrics, the same messages."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common._internal import _encode_value
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics as proto_metrics
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans as proto_spans
from opentelemetry.metrics import Meter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.sdk.metrics.export import MetricsData
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.trace import Link, TraceState

from otel_goodput.exporters.file import encode_metrics, encode_spans, encode_value

from .telemetry import RESOURCE, START, collect, context, observed, recorded, rich_spans, spans

ID_FIELDS = ("traceId", "spanId", "parentSpanId")


def as_protobuf_json(value: Any) -> Any:
    """OTLP JSON writes ids in hex, protobuf's JSON in base64; all else is the same."""
    if isinstance(value, dict):
        return {
            key: base64.b64encode(bytes.fromhex(item)).decode() if key in ID_FIELDS else as_protobuf_json(item)
            for key, item in value.items()
        }
    return [as_protobuf_json(item) for item in value] if isinstance(value, list) else value


def parse(message: Any, request: dict[str, Any]) -> Any:
    """Through real JSON text, with unknown fields an error."""
    text = json.dumps(as_protobuf_json(json.loads(json.dumps(request, allow_nan=False))))
    return json_format.Parse(text, message)


def parsed_spans(sdk_spans: list[ReadableSpan]) -> ExportTraceServiceRequest:
    request, errors = encode_spans(sdk_spans)
    assert errors == []
    message = parse(ExportTraceServiceRequest(), request)
    assert isinstance(message, ExportTraceServiceRequest)
    return message


def assert_same(ours: Any, theirs: Any) -> None:
    # As text, for NaN is not equal to itself.
    assert str(ours) == str(theirs)


def test_plain_spans_as_the_proto_encoder_has_them() -> None:
    sdk_spans = spans(3)
    assert_same(parsed_spans(sdk_spans), proto_spans(sdk_spans))


def test_every_field_of_spans_as_the_proto_encoder_has_them() -> None:
    sdk_spans = rich_spans()
    job = next(span for span in sdk_spans if span.name == "job")
    assert (job.dropped_attributes, job.dropped_events, job.dropped_links) == (1, 1, 1)  # as rich as it says
    assert_same(parsed_spans(sdk_spans), proto_spans(sdk_spans))


def test_ids_are_lower_case_hex_and_big_integers_text() -> None:
    job = next(span for span in rich_spans() if span.name == "job")
    request, _ = encode_spans([job])
    span = request["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    assert job.context is not None
    assert span["traceId"] == f"{job.context.trace_id:032x}"
    assert span["parentSpanId"] == "0000000000000abc"
    assert span["startTimeUnixNano"] == str(START)
    assert span["kind"] == 2
    assert {"key": "max", "value": {"intValue": "9223372036854775807"}} in span["attributes"]
    assert {"key": "nan", "value": {"doubleValue": "NaN"}} in span["attributes"]
    assert span["status"] == {"code": 2, "message": "it broke"}


def test_trace_state_of_links_is_kept() -> None:
    # The proto encoder leaves this field out.
    span = ReadableSpan("s", context(1), resource=RESOURCE, links=[Link(context(2, state=TraceState([("v", "x")])))])
    assert parsed_spans([span]).resource_spans[0].scope_spans[0].spans[0].links[0].trace_state == "v=x"


def test_spans_without_scope_end_or_parent() -> None:
    span = ReadableSpan("s", context(1), resource=RESOURCE, start_time=START)
    assert_same(parsed_spans([span]), proto_spans([span]))


def test_a_clock_before_1970_does_not_break_the_line() -> None:
    span = ReadableSpan("s", context(1), resource=RESOURCE, start_time=-5, end_time=2**70)
    encoded = parsed_spans([span]).resource_spans[0].scope_spans[0].spans[0]
    assert (encoded.start_time_unix_nano, encoded.end_time_unix_nano) == (0, 2**64 - 1)


def test_one_bad_span_does_not_cost_the_batch() -> None:
    request, errors = encode_spans([*spans(2), ReadableSpan("no context", None, resource=RESOURCE)])
    assert len(request["resourceSpans"][0]["scopeSpans"][0]["spans"]) == 2
    assert [str(error) for error in errors] == ["span 'no context' has no context"]


class Colour(IntEnum):
    RED = 3


class Odd:
    def __str__(self) -> str:
        return "odd"


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (2**63, {"stringValue": str(2**63)}),
        (-(2**63) - 1, {"stringValue": str(-(2**63) - 1)}),
        (Colour.RED, {"intValue": "3"}),
        (Odd(), {"stringValue": "odd"}),
        (None, {}),
        (b"\x00\xff", {"bytesValue": "AP8="}),
        (
            {"a": {"b": [1]}},
            {
                "kvlistValue": {
                    "values": [
                        {
                            "key": "a",
                            "value": {
                                "kvlistValue": {
                                    "values": [{"key": "b", "value": {"arrayValue": {"values": [{"intValue": "1"}]}}}]
                                }
                            },
                        }
                    ]
                }
            },
        ),
    ],
)
def test_values_outside_the_usual(value: object, encoded: dict[str, Any]) -> None:
    assert encode_value(value) == encoded


def test_scalars_of_array_libraries() -> None:
    numpy = pytest.importorskip("numpy")
    assert encode_value(numpy.int64(7)) == {"intValue": "7"}
    assert encode_value(numpy.float32(0.5)) == {"doubleValue": 0.5}


VALUES = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def test_none_is_an_empty_value() -> None:
    """The proto encoder of 1.35 refuses None, later ones have it so."""
    assert encode_value(None) == {} and encode_value([None]) == {"arrayValue": {"values": [{}]}}


@given(VALUES)
def test_any_value_as_the_proto_encoder_has_it(value: object) -> None:
    assert_same(parse(AnyValue(), encode_value(value)), _encode_value(value))


def exemplar_of_a_sampled_span(meter: Meter) -> None:
    with TracerProvider(shutdown_on_exit=False).get_tracer("t").start_as_current_span("sampled"):
        meter.create_counter("with.exemplars", "1", "has exemplars").add(5, {"a": "b"})
        meter.create_histogram("float.exemplars").record(0.5, {"a": "b"})


INF = float("inf")

METRICS: dict[str, Callable[[], MetricsData]] = {
    "gauge of floats": lambda: collect(observed("gauge", "g", (0.5, {"k": "v"}), (0.0, {}), (INF, {"k": "w"}))),
    "gauge of ints": lambda: collect(observed("gauge", "g", (0, {}), (-(2**62), {"k": "v"}))),
    "sums": lambda: collect(observed("counter", "c", (1, {"k": "v"})), observed("up_down_counter", "u", (-1.5, {}))),
    "histogram": lambda: collect(recorded("h", 0.0, 0.5, 7, 1e9)),
    "histogram of ints": lambda: collect(recorded("h", 0)),
    "delta histogram": lambda: collect(recorded("h", 1.0), delta=True),
    "exponential histogram": lambda: collect(recorded("h", 0.0, 0.5, 7, 1e9), exponential=True),
    "exponential histogram of zero": lambda: collect(recorded("h", 0.0), exponential=True),
    "exemplars": lambda: collect(exemplar_of_a_sampled_span),
    "exemplars of exponential": lambda: collect(exemplar_of_a_sampled_span, exponential=True),
    "no description": lambda: collect(lambda meter: meter.create_counter("bare").add(1)),
}


@pytest.mark.parametrize("name", METRICS)
def test_metrics_as_the_proto_encoder_has_them(name: str) -> None:
    data = METRICS[name]()
    assert_same(parse(ExportMetricsServiceRequest(), encode_metrics(data)), proto_metrics(data))


def test_the_exemplars_are_there() -> None:
    request = json.dumps(encode_metrics(METRICS["exemplars"]()))
    assert '"exemplars"' in request
    assert '"traceId"' in request


def test_numbers_in_metrics() -> None:
    request = encode_metrics(METRICS["gauge of ints"]())
    points = request["resourceMetrics"][0]["scopeMetrics"][0]["metrics"][0]["gauge"]["dataPoints"]
    assert [point["asInt"] for point in points] == ["0", str(-(2**62))]
