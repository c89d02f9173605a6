"""The `gcp-otlp` exporter: OTLP to telemetry.googleapis.com, encoded by OpenTelemetry, delivered by us.

OpenTelemetry's own exporter would lose points that break Cloud Monitoring's rules, such as a last value less than five
seconds after the one before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from opentelemetry.sdk.metrics import Histogram
from opentelemetry.sdk.metrics.export import (
    MetricExporter,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from otel_goodput import semconv
from otel_goodput.exporters.google.connection import TELEMETRY, Connection, load
from otel_goodput.exporters.google.delivery import Batches, Delivery, Send
from otel_goodput.exporters.google.fitting import Labels, fitting_metric, location
from otel_goodput.exporters.google.series import SHARE_OF_TIMEOUT, Series, SeriesWriter, called
from otel_goodput.exporters.google.spans import PATIENCE_S
from otel_goodput.exporters.otlp_answers import Rejections, accepted

_ENCODERS: Final = "opentelemetry.exporter.otlp.proto.common"
_SERVICES: Final = "opentelemetry.proto.collector"
PACKAGES: Final = (_ENCODERS, _SERVICES, "grpc", "google.auth")


def _completed(encoded: Any, groups: Any, connection: Connection, where: str, process: int) -> Any:
    """Add what the Telemetry API requires to the resources of `groups`; return `encoded`, which contains them."""
    for group in groups:
        known = {attribute.key for attribute in group.resource.attributes}
        wanted = {semconv.GCP_PROJECT_ID: connection.project, semconv.SERVICE_INSTANCE_ID: str(process)}
        if not known & {semconv.CLOUD_REGION, semconv.CLOUD_AVAILABILITY_ZONE, semconv.LOCATION}:
            wanted[semconv.LOCATION] = where
        for key, value in wanted.items():
            if key not in known:
                group.resource.attributes.add(key=key).value.string_value = value
    return encoded


def stub(signal: str, connection: Connection) -> Any:
    """Return the gRPC client of OTLP's service for ``trace`` or ``metrics``."""
    module = load(f"{_SERVICES}.{signal}.v1.{signal}_service_pb2_grpc")
    return getattr(module, f"{signal.capitalize()}ServiceStub")(connection.channel(TELEMETRY))


class TelemetrySpanExporter(SpanExporter):
    """Exports spans over OTLP.

    Args:
        connection: to Google.
        delivery: of requests to the Telemetry API.
        process: index of this process, the instance id if the resource has none.
    """

    def __init__(self, connection: Connection, delivery: Delivery, process: int) -> None:
        self._connection = connection
        self._process = process
        self._rejections = Rejections(TELEMETRY.name)
        self._batches = Batches(delivery, self._request, lambda span: str(span.name))

    @property
    def refused(self) -> int:
        """Number of spans that the Telemetry API rejected."""
        return self._batches.refused + self._rejections.refused

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        well = self._batches.send(spans, PATIENCE_S)
        return SpanExportResult.SUCCESS if well else SpanExportResult.FAILURE

    def _request(self, spans: Sequence[ReadableSpan]) -> Send:
        encoded = load(f"{_ENCODERS}.trace_encoder").encode_spans(spans)

        def send(seconds: float) -> None:
            where = location(spans[0].resource)
            request = _completed(encoded, encoded.resource_spans, self._connection, where, self._process)
            answer = stub("trace", self._connection).Export(request, timeout=seconds)
            self._rejections.note(accepted(answer))

        return send

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return True

    def shutdown(self) -> None:
        """Do nothing: no spans are held here."""


class TelemetryMetricExporter(MetricExporter):
    """Exports metrics over OTLP, which become Prometheus metrics in Cloud Monitoring.

    Args:
        connection: to Google.
        delivery: of requests to the Telemetry API.
        process: index of this process, the instance id if the resource has none.
    """

    def __init__(self, connection: Connection, delivery: Delivery, process: int) -> None:
        super().__init__(preferred_aggregation={Histogram: ExponentialBucketHistogramAggregation()})
        self._connection = connection
        self._process = process
        self._labels = Labels(renamed=False)
        self._rejections = Rejections(TELEMETRY.name)
        self._writer = SeriesWriter(delivery, self._request)

    @property
    def refused(self) -> int:
        """Number of points that the Telemetry API rejected."""
        return self._writer.refused + self._rejections.refused

    @property
    def held(self) -> int:
        """Number of points that are not written yet."""
        return self._writer.held

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: object) -> MetricExportResult:
        well = self._writer.write(self._series(metrics_data), timeout_millis / 1000 * SHARE_OF_TIMEOUT)
        return MetricExportResult.SUCCESS if well else MetricExportResult.FAILURE

    def _series(self, data: MetricsData) -> Iterator[Series]:
        for resource in data.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    fitted = fitting_metric(metric, self._labels)
                    for point in () if fitted is None else fitted.data.data_points:
                        yield _one(resource, scope, fitted, point)

    def _request(self, series: Sequence[Series]) -> Send:
        encoded = load(f"{_ENCODERS}.metrics_encoder").encode_metrics(_gathered(series))

        def send(seconds: float) -> None:
            where = location(series[0].data[0].resource)
            request = _completed(encoded, encoded.resource_metrics, self._connection, where, self._process)
            answer = stub("metrics", self._connection).Export(request, timeout=seconds)
            self._rejections.note(accepted(answer))

        return send

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: object) -> None:
        self._writer.finish(timeout_millis / 1000)


def _one(resource: ResourceMetrics, scope: ScopeMetrics, metric: Any, point: Any) -> Series:
    labels = tuple(sorted(point.attributes.items()))
    running = not isinstance(point, NumberDataPoint) or (isinstance(metric.data, Sum) and metric.data.is_monotonic)
    start = point.start_time_unix_nano if running else None
    key, data = (scope.scope.name, metric.name, labels), (resource, scope, metric, point)
    return Series(key, called(metric.name, labels), start, point.time_unix_nano, data)


def _gathered(series: Sequence[Series]) -> MetricsData:
    """Return the points with the `start` and `end` of their series, grouped by metric, scope and resource again."""
    resources: dict[int, tuple[ResourceMetrics, dict[int, tuple[ScopeMetrics, dict[int, tuple[Any, list[Any]]]]]]] = {}
    for one in series:
        resource, scope, metric, point = one.data
        _, scopes = resources.setdefault(id(resource), (resource, {}))
        _, metrics = scopes.setdefault(id(scope), (scope, {}))
        _, points = metrics.setdefault(id(metric), (metric, []))
        start = point.start_time_unix_nano if one.start is None else one.start
        points.append(replace(point, time_unix_nano=one.end, start_time_unix_nano=start))
    return MetricsData(
        [
            replace(
                resource,
                scope_metrics=[
                    replace(
                        scope,
                        metrics=[
                            replace(metric, data=replace(metric.data, data_points=points))
                            for metric, points in metrics.values()
                        ],
                    )
                    for scope, metrics in scopes.values()
                ],
            )
            for resource, scopes in resources.values()
        ]
    )
