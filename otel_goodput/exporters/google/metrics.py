"""The metrics of the `gcp` exporter: Google's exporter translates them, and we deliver what it would send.

Theirs neither retries nor keeps what it could not send. Its translation is kept by Google as its terms change:
descriptors with kind, type and unit; keys of labels; the monitored resource; histograms as distributions.

Descriptors are not created by calls of their own: each series carries the unit and the description that Cloud
Monitoring gives to the descriptor which it makes of the first point.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData
from opentelemetry.sdk.resources import Resource

from otel_goodput import semconv
from otel_goodput.exporters import walk
from otel_goodput.exporters.google.connection import Connection, hide_deprecations, stock_exporter
from otel_goodput.exporters.google.delivery import Delivery, Outcome
from otel_goodput.exporters.google.fitting import Labels, fitting_metric, location
from otel_goodput.exporters.google.series import SHARE_OF_TIMEOUT, SeriesExporter, TimeSeriesRequests, series_of

_MONITORING: Final = "opentelemetry.exporter.cloud_monitoring"


class MetricTranslation:
    """Translates metrics for Cloud Monitoring."""

    def __init__(self, project: str) -> None:
        self._descriptors: dict[str, Any] = {}  # by type of the metric
        self._series: list[Any] = []
        self._stock = stock_exporter(_MONITORING, "CloudMonitoringMetricsExporter", project, self)

    def __call__(self, data: MetricsData) -> list[Any]:
        """Return a ``TimeSeries`` for each point."""
        self._series = []
        hide_deprecations()
        self._stock.export(data)
        for series in self._series:
            descriptor = self._descriptors[series.metric.type]
            for name in ("unit", "description"):
                if name in series.DESCRIPTOR.fields_by_name:  # older versions of Google's package have no description
                    setattr(series, name, getattr(descriptor, name))
        return self._series

    def common_project_path(self, project: str) -> str:
        """Return a path. Google's exporter calls this method of its client, and the next two."""
        return f"projects/{project}"

    def create_metric_descriptor(self, request: Any) -> Any:
        self._descriptors[request.metric_descriptor.type] = request.metric_descriptor
        return request.metric_descriptor

    def create_time_series(self, request: Any) -> None:
        self._series += type(request).pb(request).time_series


class CloudMonitoringExporter(SeriesExporter):
    """Exports metrics to Cloud Monitoring, under ``workload.googleapis.com/``.

    Args:
        connection: to Google.
        delivery: of points to Cloud Monitoring.
        client: returns the client for Cloud Monitoring.
        run_id, process_index: identify the series of this process over the attempts of the run.
    """

    def __init__(
        self,
        connection: Connection,
        delivery: Delivery,
        client: Callable[[], Any],
        run_id: str,
        process_index: int,
    ) -> None:
        super().__init__(delivery, TimeSeriesRequests(connection, client))
        self._connection = connection
        self._delivery = delivery
        self._identity = {semconv.SERVICE_NAMESPACE: run_id, semconv.SERVICE_INSTANCE_ID: str(process_index)}
        self._lock = threading.Lock()
        self._labels = Labels()
        self._translation: MetricTranslation | None = None

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: object) -> MetricExportResult:
        seconds = timeout_millis / 1000
        with self._lock:
            fitted = walk.converted(metrics_data, lambda _, metric: fitting_metric(metric, self._labels), self._task)
            if self._translation is None:
                # This looks up the project and maybe credentials; if that fails, it is a failed delivery.
                lookup = self._delivery(lambda _: self._connection.project, seconds * SHARE_OF_TIMEOUT)
                if lookup.outcome is not Outcome.DELIVERED:
                    return MetricExportResult.FAILURE
                self._translation = MetricTranslation(self._connection.project)
            series = self._translation(fitted)
        return self.write(map(series_of, series), seconds)

    def _task(self, resource: Resource) -> Resource:
        """Return the resource of a ``generic_task``: one for each process of a run, the same in all its attempts.

        A ``gce_instance`` would be shared by all processes on a machine, and a pod's name changes with each restart.
        """
        where = location(resource)
        attributes = {semconv.SERVICE_NAME: resource.attributes.get(semconv.SERVICE_NAME, ""), **self._identity}
        return Resource({**attributes, semconv.CLOUD_REGION: where})
