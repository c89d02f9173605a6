"""Date the last values of a process far enough after the values before them for Cloud Monitoring to accept them.

Cloud Monitoring rejects, for good, a point less than five seconds after the previous one of its series
(https://cloud.google.com/monitoring/quotas), and the exports at the end of a job and at exit can come at any time.
Cloud Monitoring may be behind any OTLP endpoint, and a collector can only pass on what it receives. So the last values
get the earliest time at which they may be written, a few seconds in the future at most. Metrics exported in this way
are marked: a collector has to gather the metrics of other senders over an interval, but must not hold ours back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from opentelemetry.sdk.metrics.export import Metric, MetricExporter, MetricExportResult, MetricsData, ScopeMetrics
from opentelemetry.sdk.resources import Resource

from otel_goodput._recording.delegating import DelegatingMetricExporter
from otel_goodput._runtime.deadline import ShutdownSignal
from otel_goodput._text.durations import NS
from otel_goodput.exporters import walk
from otel_goodput.semconv import TELEMETRY_SPACED

SPACING: Final = 5 * NS


class SpacedExporter(DelegatingMetricExporter):
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
        now = max((point.time_unix_nano for point in walk.every_point(metrics_data)), default=0)
        ahead = self._stopping.last or now <= self._newest
        earliest = self._newest + SPACING if self._newest and ahead else 0  # unix ns

        def dated(_: ScopeMetrics, metric: Metric) -> Metric:
            if not earliest:
                return metric
            points: Iterable[Any] = metric.data.data_points
            later = [replace(point, time_unix_nano=max(point.time_unix_nano, earliest)) for point in points]
            return walk.with_points(metric, later)

        marked = walk.converted(metrics_data, dated, _marked)
        self._newest = max((point.time_unix_nano for point in walk.every_point(marked)), default=self._newest)
        return self._exporter.export(marked, timeout_millis=timeout_millis, **kwargs)


def _marked(resource: Resource) -> Resource:
    return Resource({**resource.attributes, TELEMETRY_SPACED: True}, resource.schema_url)
