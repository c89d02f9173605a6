"""Has each counter begin at 0 in what an exporter sends.

The SDK dates the beginning of an asynchronous counter when it is first observed, and its first point has that same
time. What was counted before then would look as if it had always been there: no rate, and no backend that converts to
deltas, would count it. So the first point of a series is 0, as the count is at that time, and the next one has all.
Where there may be no next point, because the process stops, the first one has all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from opentelemetry.sdk.metrics.export import AggregationTemporality, Metric, MetricsData, NumberDataPoint, Sum

from otel_goodput.semconv import SCOPE_NAME

Series = tuple[str, tuple[tuple[str, str], ...]]  # metric and attributes


class FirstPoints:
    """Which series of this package's counters an exporter has sent a point of."""

    def __init__(self) -> None:
        self._begun: set[Series] = set()

    def at_zero(self, data: MetricsData) -> MetricsData:
        """Return `data` with 0 in the first points of counters that begin."""
        return replace(
            data,
            resource_metrics=[
                replace(
                    resource,
                    scope_metrics=[
                        replace(scope, metrics=[self._from_zero(metric) for metric in scope.metrics])
                        if scope.scope.name == SCOPE_NAME
                        else scope
                        for scope in resource.scope_metrics
                    ],
                )
                for resource in data.resource_metrics
            ],
        )

    def sent(self, data: MetricsData) -> None:
        """Take note that the points of `data` have been sent."""
        for resource in data.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    if (counted := _counter(metric)) is not None:
                        self._begun.update(_series(metric.name, point) for point in counted.data_points)

    def _from_zero(self, metric: Metric) -> Metric:
        counted = _counter(metric)
        if counted is None:
            return metric
        points = list(self._points(metric.name, counted.data_points))
        return replace(metric, data=replace(counted, data_points=points))

    def _points(self, name: str, points: Iterable[NumberDataPoint]) -> Iterator[NumberDataPoint]:
        for point in points:
            begun = _series(name, point) in self._begun
            yield point if begun else replace(point, value=type(point.value)())


def _counter(metric: Metric) -> Sum | None:
    """Return the points of a cumulative counter, None if `metric` is none."""
    data: Any = metric.data
    if (
        isinstance(data, Sum)
        and data.is_monotonic
        and data.aggregation_temporality == AggregationTemporality.CUMULATIVE
    ):
        return data
    return None


def _series(name: str, point: NumberDataPoint) -> Series:
    return name, tuple(sorted((key, str(value)) for key, value in (point.attributes or {}).items()))
