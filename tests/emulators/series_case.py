"""A time series in a request, with what is known of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from google.api.metric_pb2 import MetricDescriptor

from emulators.catalogue import DOMAINS, domain
from emulators.records import Point, SeriesKey, nanoseconds

Kind, ValueType = MetricDescriptor.MetricKind, MetricDescriptor.ValueType
VALUE_TYPES = {
    "bool_value": ValueType.BOOL,
    "int64_value": ValueType.INT64,
    "double_value": ValueType.DOUBLE,
    "string_value": ValueType.STRING,
    "distribution_value": ValueType.DISTRIBUTION,
}


class SeriesCase(NamedTuple):
    """A series (the raw protobuf message) in a request, with what is known of it and of its metric."""

    position: int
    series: Any
    descriptor: MetricDescriptor | None
    last: Point | None
    repeated: bool
    now: int

    @property
    def type(self) -> str:
        return str(self.series.metric.type)

    @property
    def interval(self) -> Any:
        return self.series.points[0].interval

    @property
    def value(self) -> Any:
        return self.series.points[0].value

    @property
    def end(self) -> int:
        return nanoseconds(self.interval.end_time)

    @property
    def start(self) -> int | None:
        return nanoseconds(self.interval.start_time) if self.interval.HasField("start_time") else None

    @property
    def kind(self) -> int:
        """As declared, else as known, else a gauge."""
        return int(self.series.metric_kind or (self.descriptor.metric_kind if self.descriptor else Kind.GAUGE))

    @property
    def value_type(self) -> int:
        """That of the point, 0 where it has no value."""
        return int(VALUE_TYPES.get(self.value.WhichOneof("value") or "", 0))

    @property
    def google(self) -> bool:
        """Whether the metric is one of Google's own."""
        return self.descriptor is not None and domain(self.type) not in DOMAINS


def key_of(series: Any) -> SeriesKey:
    return SeriesKey(
        series.metric.type,
        frozenset(series.metric.labels.items()),
        series.resource.type,
        frozenset(series.resource.labels.items()),
    )


def value_of(value: Any) -> Any:
    return getattr(value, value.WhichOneof("value"))


def braced(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f"{key}:{value}" for key, value in sorted(labels.items())) + "}"


def called(series: Any) -> str:
    """A series in words: its metric and labels, as Google writes them."""
    return f"{series.metric.type}{braced(series.metric.labels)}"
