"""The metrics of the `gcp` exporter: Google's exporter translates them, and we deliver what it would send."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData, ResourceMetrics
from opentelemetry.sdk.resources import Resource

from otel_goodput import semconv
from otel_goodput.exporters.google.connection import Connection
from otel_goodput.exporters.google.delivery import Delivery, Outcome
from otel_goodput.exporters.google.descriptions import Descriptions
from otel_goodput.exporters.google.fitting import Labels, fitting_metric
from otel_goodput.exporters.google.location import location
from otel_goodput.exporters.google.series import SHARE_OF_TIMEOUT, SeriesWriter
from otel_goodput.exporters.google.time_series import TimeSeriesRequests, series_of
from otel_goodput.exporters.google.translation import MetricTranslation


class CloudMonitoringExporter(MetricExporter):
    """Exports metrics to Cloud Monitoring, under ``workload.googleapis.com/``.

    Args:
        connection: to Google.
        delivery: of points to Cloud Monitoring.
        describing: makes the delivery of metric descriptors, given the function to which it reports failures.
        client: returns the client for Cloud Monitoring.
        run_id, process_index: identify the series of this process over the attempts of the run.
    """

    def __init__(
        self,
        connection: Connection,
        delivery: Delivery,
        describing: Callable[[Callable[..., object]], Delivery],
        client: Callable[[], Any],
        run_id: str,
        process_index: int,
    ) -> None:
        super().__init__()
        self._connection = connection
        self._delivery = delivery
        self._client = client
        self._identity = {semconv.SERVICE_NAMESPACE: run_id, semconv.SERVICE_INSTANCE_ID: str(process_index)}
        self._lock = threading.Lock()
        self._labels = Labels()
        self._translation: MetricTranslation | None = None
        self._well = False  # the previous points were accepted
        self._descriptions = Descriptions(describing, self._create)
        self._writer = SeriesWriter(delivery, TimeSeriesRequests(connection, client))

    @property
    def refused(self) -> int:
        """Number of points that Cloud Monitoring rejected."""
        return self._writer.refused

    @property
    def held(self) -> int:
        """Number of points that are not written yet."""
        return self._writer.held

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: object) -> MetricExportResult:
        budget = timeout_millis / 1000 * SHARE_OF_TIMEOUT
        with self._lock:
            fitted = self._fitted(metrics_data)
            if self._translation is None:
                # This looks up the project and maybe credentials; if that fails, it is a failed delivery.
                found = self._delivery(lambda _: self._connection.project, budget)
                if found.outcome is not Outcome.DELIVERED:
                    return MetricExportResult.FAILURE
                self._translation = MetricTranslation(self._connection.project)
            descriptors, series = self._translation(fitted)
            if self._well:
                self._descriptions.tell()
            self._descriptions.ask(descriptors)
        self._well = self._writer.write(map(series_of, series), budget)
        return MetricExportResult.SUCCESS if self._well else MetricExportResult.FAILURE

    def _fitted(self, data: MetricsData) -> MetricsData:
        return MetricsData([self._fitted_resource(each) for each in data.resource_metrics])

    def _fitted_resource(self, metrics: ResourceMetrics) -> ResourceMetrics:
        scopes = []
        for scope in metrics.scope_metrics:
            found = (fitting_metric(metric, self._labels) for metric in scope.metrics)
            scopes.append(replace(scope, metrics=[metric for metric in found if metric is not None]))
        return replace(metrics, resource=self._task(metrics.resource), scope_metrics=scopes)

    def _task(self, resource: Resource) -> Resource:
        """Return the resource of a ``generic_task``: one for each process of a run, the same in all its attempts.

        A ``gce_instance`` would be shared by all processes on a machine, and a pod's name changes with each restart.
        """
        where = location(resource)
        attributes = {semconv.SERVICE_NAME: resource.attributes.get(semconv.SERVICE_NAME, ""), **self._identity}
        return Resource({**attributes, semconv.CLOUD_REGION: where})

    def _create(self, request: Any, seconds: float) -> None:
        self._client().create_metric_descriptor(request=request, timeout=seconds, retry=None)

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: object) -> None:
        until = time.monotonic() + timeout_millis / 1000
        if self._writer.finish(timeout_millis / 1000):
            self._descriptions.wait(until - time.monotonic())
        self._descriptions.close()
