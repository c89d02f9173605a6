"""The `gcp-otlp` exporter: OTLP to telemetry.googleapis.com, encoded by OpenTelemetry, delivered by us.

OpenTelemetry's own exporter loses points that break Cloud Monitoring's rules, such as a last value that is too early.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from opentelemetry.sdk.metrics.export import Metric, MetricsData, NumberDataPoint, ResourceMetrics, ScopeMetrics, Sum
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan

from otel_goodput import semconv
from otel_goodput.exporters.fitting import EXPONENTIAL, every_metric, with_points
from otel_goodput.exporters.google.connection import TELEMETRY, Connection, load
from otel_goodput.exporters.google.delivery import DeliveredSpanExporter, Delivery, Send
from otel_goodput.exporters.google.monitoring import Labels, Series, SeriesExporter, called, fitting_metric, location
from otel_goodput.exporters.otlp_answers import Rejections, accepted

_ENCODERS: Final = "opentelemetry.exporter.otlp.proto.common"
_SERVICES: Final = "opentelemetry.proto.collector"


def stub(signal: str, connection: Connection) -> Any:
    """Return the gRPC client of OTLP's service for ``trace`` or ``metrics``."""
    module = load(f"{_SERVICES}.{signal}.v1.{signal}_service_pb2_grpc")
    return getattr(module, f"{signal.capitalize()}ServiceStub")(connection.channel(TELEMETRY))


class _Requests:
    """Encodes items and returns the function that sends them; resources get what the Telemetry API requires."""

    def __init__(self, connection: Connection, process: int, signal: str, kind: str) -> None:
        self._connection = connection
        self._process = str(process)
        self._signal, self._kind = signal, kind
        self.rejections = Rejections(TELEMETRY.name)

    def __call__(self, items: Any, resource: Resource) -> Send:
        request = getattr(load(f"{_ENCODERS}.{self._signal}_encoder"), f"encode_{self._kind}")(items)

        def send(seconds: float) -> None:
            where, project = location(resource), self._connection.project
            for group in getattr(request, f"resource_{self._kind}"):
                known = {attribute.key for attribute in group.resource.attributes}
                wanted = {semconv.GCP_PROJECT_ID: project, semconv.SERVICE_INSTANCE_ID: self._process}
                if not known & {semconv.CLOUD_REGION, semconv.CLOUD_AVAILABILITY_ZONE, semconv.LOCATION}:
                    wanted[semconv.LOCATION] = where
                for key, value in wanted.items():
                    if key not in known:
                        group.resource.attributes.add(key=key).value.string_value = value
            self.rejections.note(accepted(stub(self._signal, self._connection).Export(request, timeout=seconds)))

        return send


class TelemetrySpanExporter(DeliveredSpanExporter):
    """Exports spans over OTLP. `process` is the instance id if the resource has none."""

    def __init__(self, delivery: Delivery, process: int) -> None:
        super().__init__(delivery)
        self._requests = _Requests(delivery.connection, process, "trace", "spans")

    @property
    def refused(self) -> int:
        return super().refused + self._requests.rejections.refused

    def request(self, spans: Sequence[ReadableSpan]) -> Send:
        return self._requests(spans, spans[0].resource)


class TelemetryMetricExporter(SeriesExporter):
    """Exports metrics over OTLP, which become Prometheus metrics in Cloud Monitoring."""

    def __init__(self, delivery: Delivery, process: int) -> None:
        super().__init__(delivery, preferred_aggregation=EXPONENTIAL)
        self._labels = Labels(renamed=False)
        self._requests = _Requests(delivery.connection, process, "metrics", "metrics")

    @property
    def dropped(self) -> int:
        return super().dropped + self._requests.rejections.refused

    def series(self, data: MetricsData, seconds: float) -> list[Series]:
        series = []
        for resource, scope, metric in every_metric(data):
            fitted: Any = fitting_metric(metric, self._labels)
            for point in fitted.data.data_points if fitted is not None else ():
                labels = tuple(sorted(point.attributes.items()))
                number = isinstance(point, NumberDataPoint)
                running = not number or (isinstance(fitted.data, Sum) and fitted.data.is_monotonic)
                start = point.start_time_unix_nano if running else None
                key, name = (scope.scope.name, metric.name, labels), called(metric.name, labels)
                series.append(Series(key, name, start, point.time_unix_nano, (resource, scope, fitted, point)))
        return series

    def request(self, series: Sequence[Series]) -> Send:
        return self._requests(_gathered(series), series[0].data[0].resource)


_Scopes = dict[int, tuple[ScopeMetrics, dict[int, tuple[Metric, list[Any]]]]]
"""Scopes with their metrics and these with their points, by identity."""


def _gathered(series: Sequence[Series]) -> MetricsData:
    """Return the points with the `start` and `end` of their series, grouped by metric, scope and resource again."""
    groups: dict[int, tuple[ResourceMetrics, _Scopes]] = {}
    for one in series:
        resource, scope, metric, point = one.data
        _, scopes = groups.setdefault(id(resource), (resource, {}))
        _, metrics = scopes.setdefault(id(scope), (scope, {}))
        _, points = metrics.setdefault(id(metric), (metric, []))
        start = point.start_time_unix_nano if one.start is None else one.start
        points.append(replace(point, time_unix_nano=one.end, start_time_unix_nano=start))
    gathered = []
    for resource, scopes in groups.values():
        within = [
            replace(scope, metrics=[with_points(*each) for each in metrics.values()])
            for scope, metrics in scopes.values()
        ]
        gathered.append(replace(resource, scope_metrics=within))
    return MetricsData(gathered)
