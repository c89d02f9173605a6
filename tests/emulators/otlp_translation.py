"""OTLP as Cloud Trace and Cloud Monitoring store it, so that their rules hold for it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from google.cloud.monitoring_v3 import TimeSeries
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_DELTA, Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span as OtlpSpan

from emulators.catalogue import PROMETHEUS
from emulators.otlp_rules import location_of
from emulators.series_case import Kind
from emulators.trace_rules import Span


def attributes_of(pairs: Any) -> dict[str, str]:
    """OTLP's attributes as strings."""
    return {pair.key: _text(pair.value) for pair in pairs}


def _text(value: AnyValue) -> str:
    plain = _plain(value)
    return plain if isinstance(plain, str) else json.dumps(plain, default=str)


def _plain(value: AnyValue) -> Any:
    field = value.WhichOneof("value")
    if field == "array_value":
        return [_plain(each) for each in value.array_value.values]
    if field == "kvlist_value":
        return {pair.key: _plain(pair.value) for pair in value.kvlist_value.values}
    return getattr(value, field) if field else ""


def cloud_span(span: OtlpSpan, project: str) -> Any:
    """A span of Cloud Trace; ids and times that are missing stay missing."""
    named = Span(
        name=f"projects/{project}/traces/{span.trace_id.hex()}/spans/{span.span_id.hex()}",
        span_id=span.span_id.hex(),
        parent_span_id=span.parent_span_id.hex(),
    )
    named.display_name.value = span.name
    for field in ("start_time", "end_time"):
        nanos = getattr(span, f"{field}_unix_nano")
        if nanos:
            getattr(named, field).FromNanoseconds(nanos)
    _copy(span.attributes, named.attributes)
    for event in span.events:
        _copy(event.attributes, named.time_events.time_event.add().annotation.attributes)
    for link in span.links:
        _copy(link.attributes, named.links.link.add(trace_id=link.trace_id.hex()).attributes)
    return named


def _copy(pairs: Any, attributes: Any) -> None:
    for key, text in attributes_of(pairs).items():
        attributes.attribute_map[key].string_value.value = text


def target_of(attributes: Mapping[str, str]) -> dict[str, str]:
    """The labels of the prometheus_target that a resource becomes."""
    return {
        "project_id": attributes["gcp.project_id"],
        "location": location_of(attributes),
        "cluster": attributes.get("k8s.cluster.name", ""),
        "namespace": attributes.get("k8s.namespace.name") or attributes.get("service.namespace", ""),
        "job": attributes.get("service.name", ""),
        "instance": attributes["service.instance.id"],
    }


def data_of(metric: Metric) -> Sequence[Any]:
    """The metric's points."""
    field = metric.WhichOneof("data")
    return getattr(metric, field).data_points if field else ()


def cloud_series(metric: Metric, target: Mapping[str, str]) -> Iterator[Any]:
    """The metric's points as time series of Cloud Monitoring."""
    field = metric.WhichOneof("data")
    if field is None:
        return
    data = getattr(metric, field)
    suffix, kind, fill = FORMS["gauge" if field == "sum" and not data.is_monotonic else field]
    if getattr(data, "aggregation_temporality", None) == AGGREGATION_TEMPORALITY_DELTA:
        kind = Kind.DELTA
    for point in data.data_points:
        series = TimeSeries.pb()(metric_kind=kind, unit=metric.unit, description=metric.description)
        series.metric.type = f"prometheus.googleapis.com/{metric.name}/{suffix}"
        series.metric.labels.update(attributes_of(point.attributes))
        series.resource.type = PROMETHEUS
        series.resource.labels.update(target)
        written = series.points.add()
        written.interval.end_time.FromNanoseconds(point.time_unix_nano)
        if kind != Kind.GAUGE:
            written.interval.start_time.FromNanoseconds(point.start_time_unix_nano)
        fill(point, written.value)
        yield series


def _number(point: Any, value: Any) -> None:
    field = point.WhichOneof("value")
    if field is not None:
        value.double_value = float(getattr(point, field))


def _histogram(point: Any, value: Any) -> None:
    _fill(point, value.distribution_value, list(point.bucket_counts))
    value.distribution_value.bucket_options.explicit_buckets.bounds.extend(point.explicit_bounds)


def _exponential(point: Any, value: Any) -> None:
    """The negative buckets and zero make the first; the last is always empty."""
    positive = list(point.positive.bucket_counts)
    low = point.zero_count + sum(point.negative.bucket_counts)
    _fill(point, value.distribution_value, [low, *positive, 0])
    options = value.distribution_value.bucket_options
    if positive:
        growth = 2 ** (2**-point.scale)
        options.exponential_buckets.num_finite_buckets = len(positive)
        options.exponential_buckets.growth_factor = growth
        options.exponential_buckets.scale = growth**point.positive.offset
    else:
        options.explicit_buckets.bounds.append(0.0)


def _fill(point: Any, distribution: Any, counts: list[int]) -> None:
    distribution.count = point.count
    distribution.mean = point.sum / point.count if point.count else 0.0
    distribution.bucket_counts.extend(counts)


def _summary(point: Any, value: Any) -> None:
    """Has no value that could be written, and is refused for that."""


# By a metric's kind of data: what Google adds to its name, the kind it becomes, and how its points are filled in.
FORMS = {
    "gauge": ("gauge", Kind.GAUGE, _number),
    "sum": ("counter", Kind.CUMULATIVE, _number),
    "histogram": ("histogram", Kind.CUMULATIVE, _histogram),
    "exponential_histogram": ("histogram", Kind.CUMULATIVE, _exponential),
    "summary": ("summary", Kind.CUMULATIVE, _summary),
}
