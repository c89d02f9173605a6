"""Encode the SDK's spans and metrics as OTLP JSON, without protobuf.

The mapping is that of the OTLP specification: proto3 JSON with lowerCamelCase names, except that trace and span ids are
hex and enums are always integers. 64-bit integers are decimal strings, bytes are base64, and doubles that JSON does not
have are the strings NaN, Infinity and -Infinity. Fields with their default value are omitted.
"""

from __future__ import annotations

import base64
import math
import numbers
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, Final

from opentelemetry.sdk.metrics import Exemplar
from opentelemetry.sdk.metrics.export import (
    ExponentialHistogram,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind

Json = dict[str, Any]

# The API's SpanKind starts at 0, the protocol's at 1 (0 is "unspecified").
_KINDS: Final[dict[SpanKind, int]] = {
    SpanKind.INTERNAL: 1,
    SpanKind.SERVER: 2,
    SpanKind.CLIENT: 3,
    SpanKind.PRODUCER: 4,
    SpanKind.CONSUMER: 5,
}

# SpanFlags: whether it is known that the parent (or linked) context is remote, and whether it is.
_HAS_IS_REMOTE: Final = 0x100
_IS_REMOTE: Final = 0x200

_INT64_MIN: Final = -(2**63)
_INT64_MAX: Final = 2**63 - 1
_UINT64_MAX: Final = 2**64 - 1


# --- values -----------------------------------------------------------------------------------------------------------


def encode_value(value: object) -> Json:
    """Encode an AnyValue. A value that it cannot hold (an int beyond 64 bits, an object) becomes text."""
    if value is None:
        return {}
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, str):
        return {"stringValue": value}
    if isinstance(value, int):
        # Not `in range(…)`: with an int subclass (IntEnum) that compares the numbers of the range one by one.
        kind = "intValue" if _INT64_MIN <= value <= _INT64_MAX else "stringValue"
        return {kind: _decimal(value)}
    if isinstance(value, float):
        return {"doubleValue": _double(value)}
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"bytesValue": base64.b64encode(value).decode("ascii")}
    if isinstance(value, Mapping):
        return {"kvlistValue": {"values": [{"key": str(key), "value": encode_value(v)} for key, v in value.items()]}}
    if isinstance(value, (Sequence, Set)):
        return {"arrayValue": {"values": [encode_value(item) for item in value]}}
    # Scalars of array libraries are not instances of int and float.
    if isinstance(value, numbers.Integral):
        return encode_value(int(value))
    if isinstance(value, numbers.Real):
        return encode_value(float(value))
    return {"stringValue": str(value)}


def _decimal(value: int) -> str:
    return format(int(value), "d")  # not str(), which gives the name of an IntEnum on Python 3.10


def _double(value: float) -> float | str:
    value = float(value)
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _attributes(attributes: Mapping[str, Any] | None) -> list[Json]:
    return [{"key": key, "value": encode_value(value)} for key, value in attributes.items()] if attributes else []


def _unsigned(value: int | None) -> str:
    """Encode a fixed64 or uint64; a value out of range (a clock before 1970) is clamped."""
    return _decimal(min(max(value or 0, 0), _UINT64_MAX))


def _trimmed(message: Json) -> Json:
    """Return `message` without default values. Not for a `oneof` or optional fields: there 0 differs from absent."""
    return {key: value for key, value in message.items() if value not in (None, "", 0, [])}


# --- spans ------------------------------------------------------------------------------------------------------------


def encode_spans(spans: Iterable[ReadableSpan]) -> tuple[Json, list[Exception]]:
    """Return an ExportTraceServiceRequest, and the errors of the spans that could not be encoded and are not in it."""
    errors: list[Exception] = []
    # Grouped by identity: the SDK's hash of a resource calls json.dumps on its attributes, for each span.
    groups: dict[int, tuple[Resource, dict[int, _Scope]]] = {}
    for span in spans:
        try:
            encoded = _span(span)
        except Exception as error:  # one bad span must not cost the batch
            errors.append(error)
            continue
        _, scopes = groups.setdefault(id(span.resource), (span.resource, {}))
        scope = span.instrumentation_scope
        url = scope.schema_url if scope else ""
        scopes.setdefault(id(scope), (scope, url, []))[2].append(encoded)
    return _request(
        "Spans", ((resource, resource.schema_url, scopes.values()) for resource, scopes in groups.values())
    ), errors


_Scope = tuple["InstrumentationScope | None", "str | None", list[Json]]
"""A scope, its schema URL, and the spans or metrics in it."""


def _request(kind: str, groups: Iterable[tuple[Resource, str | None, Iterable[_Scope]]]) -> Json:
    """Return a request for ``Spans`` or ``Metrics``, by resource, its schema URL, and scope."""
    return {
        f"resource{kind}": [
            _trimmed(
                {
                    "resource": _trimmed({"attributes": _attributes(resource.attributes)}),
                    f"scope{kind}": [
                        _trimmed({"scope": _scope(scope), kind.lower(): items, "schemaUrl": url})
                        for scope, url, items in scopes
                    ],
                    "schemaUrl": resource_url,
                }
            )
            for resource, resource_url, scopes in groups
        ]
    }


def _span(span: ReadableSpan) -> Json:
    context = span.context
    if context is None:
        raise ValueError(f"span {span.name!r} has no context")
    return _trimmed(
        {
            **_context(context),
            "parentSpanId": f"{span.parent.span_id:016x}" if span.parent else "",
            "flags": _flags(span.parent),
            "name": str(span.name),
            "kind": _KINDS[span.kind],
            "startTimeUnixNano": _unsigned(span.start_time),
            "endTimeUnixNano": _unsigned(span.end_time),
            "attributes": _attributes(span.attributes),
            "droppedAttributesCount": span.dropped_attributes,
            "events": [_event(event) for event in span.events],
            "droppedEventsCount": span.dropped_events,
            "links": [_link(link) for link in span.links],
            "droppedLinksCount": span.dropped_links,
            "status": _trimmed({"code": span.status.status_code.value, "message": span.status.description}),
        }
    )


def _context(context: SpanContext) -> Json:
    state = context.trace_state.to_header() if context.trace_state else ""
    return {"traceId": f"{context.trace_id:032x}", "spanId": f"{context.span_id:016x}", "traceState": state}


def _flags(context: SpanContext | None) -> int:
    return _HAS_IS_REMOTE | (_IS_REMOTE if context is not None and context.is_remote else 0)


def _dropping(part: Event | Link) -> Json:
    """Return the attributes of an event or a link, and how many of them the SDK has dropped."""
    return {"attributes": _attributes(part.attributes), "droppedAttributesCount": part.dropped_attributes}


def _event(event: Event) -> Json:
    return _trimmed({"timeUnixNano": _unsigned(event.timestamp), "name": event.name, **_dropping(event)})


def _link(link: Link) -> Json:
    return _trimmed({**_context(link.context), **_dropping(link), "flags": _flags(link.context)})


def _scope(scope: InstrumentationScope | None) -> Json:
    if scope is None:
        return {}
    return _trimmed({"name": scope.name, "version": scope.version, "attributes": _attributes(scope.attributes)})


# --- metrics ----------------------------------------------------------------------------------------------------------


def encode_metrics(data: MetricsData) -> Json:
    """Return an ExportMetricsServiceRequest. Metrics of kinds that a future SDK may add are omitted."""
    return _request(
        "Metrics",
        (
            (
                group.resource,
                group.schema_url,
                [
                    (scope.scope, scope.schema_url, [each for metric in scope.metrics if (each := _metric(metric))])
                    for scope in group.scope_metrics
                ],
            )
            for group in data.resource_metrics
        ),
    )


_KINDS_OF_DATA: Final[dict[type, str]] = {
    Gauge: "gauge",
    Sum: "sum",
    Histogram: "histogram",
    ExponentialHistogram: "exponentialHistogram",
}


def _metric(metric: Metric) -> Json | None:
    data: Any = metric.data
    kind = _KINDS_OF_DATA.get(type(data))
    if kind is None:
        return None
    body: Json = {"dataPoints": [_point(point, start=kind != "gauge") for point in data.data_points]}
    if isinstance(data, Sum) and data.is_monotonic:
        body["isMonotonic"] = True
    if not isinstance(data, Gauge):
        body["aggregationTemporality"] = int(data.aggregation_temporality)
    return {**_trimmed({"name": metric.name, "description": metric.description, "unit": metric.unit}), kind: body}


def _number(value: float) -> Json:
    return {"asInt": _decimal(value)} if isinstance(value, int) else {"asDouble": _double(value)}


def _point(point: Any, *, start: bool) -> Json:
    message = _trimmed(
        {
            "attributes": _attributes(point.attributes),
            "startTimeUnixNano": _unsigned(point.start_time_unix_nano) if start else "",
            "timeUnixNano": _unsigned(point.time_unix_nano),
            "exemplars": [_exemplar(exemplar) for exemplar in point.exemplars],
        }
    )
    if isinstance(point, NumberDataPoint):
        return {**message, **_number(point.value)}
    message["count"] = _unsigned(point.count)
    # sum, min and max are optional fields: 0 differs from absent.
    for name in ("sum", "min", "max"):
        if getattr(point, name) is not None:
            message[name] = _double(getattr(point, name))
    if isinstance(point, HistogramDataPoint):
        counts, bounds = map(_unsigned, point.bucket_counts), map(_double, point.explicit_bounds)
        return {**message, "bucketCounts": list(counts), "explicitBounds": list(bounds)}
    message |= {"scale": point.scale, "zeroCount": _unsigned(point.zero_count)}
    if point.flags:
        message["flags"] = point.flags
    for side, half in (("positive", point.positive), ("negative", point.negative)):
        if half.bucket_counts:
            message[side] = {"offset": half.offset, "bucketCounts": list(map(_unsigned, half.bucket_counts))}
    return message


def _exemplar(exemplar: Exemplar) -> Json:
    message = _trimmed(
        {
            "filteredAttributes": _attributes(exemplar.filtered_attributes),
            "timeUnixNano": _unsigned(exemplar.time_unix_nano),
        }
    )
    if exemplar.span_id is not None and exemplar.trace_id is not None:
        message |= {"spanId": f"{exemplar.span_id:016x}", "traceId": f"{exemplar.trace_id:032x}"}
    return {**message, **_number(exemplar.value)}
