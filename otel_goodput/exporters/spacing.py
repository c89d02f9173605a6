"""Date the last values of a process far enough after the values before them for Cloud Monitoring to accept them.

Cloud Monitoring rejects, for good, a point less than five seconds after the previous one of its series
(https://cloud.google.com/monitoring/quotas), and the exports at the end of a job and at exit can come at any time.
Cloud Monitoring may be behind any OTLP endpoint, and a collector can only pass on what it receives. So the last values
get the earliest time at which they may be written, a few seconds in the future at most. Metrics exported in this way
are marked: a collector has to gather the metrics of other senders over an interval, but must not hold ours back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from opentelemetry.sdk.metrics.export import (
    MetricExporter,
    MetricExportResult,
    MetricsData,
    ResourceMetrics,
    ScopeMetrics,
)
from opentelemetry.sdk.resources import Resource

from otel_goodput._recording.passing import PassingMetricExporter
from otel_goodput._runtime.deadline import ShutdownSignal
from otel_goodput._text.durations import NS
from otel_goodput.semconv import TELEMETRY_SPACED

SPACING: Final = 5 * NS


class SpacedExporter(PassingMetricExporter):
    """A metric exporter that dates the last points at least 5 s after the previous ones, and marks all metrics.

    Args:
        exporter: exports the metrics.
        stopping: tells when a job has ended and when the process stops. Points exported before that keep their time,
            unless newer ones have been exported.
    """

    def __init__(self, exporter: MetricExporter, stopping: ShutdownSignal) -> None:
        super().__init__(exporter)
        self._stopping = stopping
        self._newest = 0  # time of the newest point so far, unix ns

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: object) -> MetricExportResult:
        now = max((point.time_unix_nano for point in _points(metrics_data)), default=0)
        ahead = self._stopping.last or now <= self._newest
        earliest = self._newest + SPACING if self._newest and ahead else 0
        marked = MetricsData([_marked(resource, earliest) for resource in metrics_data.resource_metrics])
        self._newest = max((point.time_unix_nano for point in _points(marked)), default=self._newest)
        return self._exporter.export(marked, timeout_millis=timeout_millis, **kwargs)


def _points(data: MetricsData) -> Iterator[Any]:
    for resource in data.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                yield from metric.data.data_points


def _marked(group: ResourceMetrics, earliest: int) -> ResourceMetrics:
    """Return the metrics with a marked resource, and no point dated before `earliest` (unix ns; 0: no limit)."""
    resource = Resource({**group.resource.attributes, TELEMETRY_SPACED: True}, group.resource.schema_url)
    scopes = group.scope_metrics if not earliest else [_dated(scope, earliest) for scope in group.scope_metrics]
    return replace(group, resource=resource, scope_metrics=scopes)


def _dated(scope: ScopeMetrics, earliest: int) -> ScopeMetrics:
    def later(metric: Any) -> Any:
        points = [replace(one, time_unix_nano=max(one.time_unix_nano, earliest)) for one in metric.data.data_points]
        return replace(metric, data=replace(metric.data, data_points=points))

    return replace(scope, metrics=[later(metric) for metric in scope.metrics])
