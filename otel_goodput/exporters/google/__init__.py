"""Exporters to Google Cloud: `gcp`, `workload` (Google's goodput series) and `gcp-otlp`.

Google's libraries are imported, credentials looked up and connections opened by the first export, in its thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from otel_goodput._runtime.deadline import SHARE_OF_GRACE
from otel_goodput.exporters import spec
from otel_goodput.exporters.google.connection import MONITORING, TELEMETRY, TRACE, Connection, Service, on_google_cloud
from otel_goodput.exporters.google.delivery import Delivery

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

RPC_S: Final = 10.0

PACKAGES: Final = ("opentelemetry.exporter.cloud_trace", "opentelemetry.exporter.cloud_monitoring")
OTLP_PACKAGES: Final = (
    "opentelemetry.exporter.otlp.proto.common",
    "opentelemetry.proto.collector",
    "grpc",
    "google.auth",
)
WORKLOAD_PACKAGES: Final = ("google.cloud.monitoring_v3",)


def open_gcp(context: spec.ExporterContext) -> spec.Exporters:
    from otel_goodput.exporters.google.monitoring import CloudMonitoringExporter
    from otel_goodput.exporters.google.spans import RESOURCE, RESOURCE_VARIABLE, CloudTraceExporter
    from otel_goodput.exporters.wrappers import BufferingSpanExporter

    connection = Connection(context.environ)
    attributes = context.environ.get(RESOURCE_VARIABLE) or RESOURCE
    spans = CloudTraceExporter(_delivery(TRACE, "spans", connection, context), attributes)
    points = _delivery(MONITORING, "points", connection, context)
    descriptions = _delivery(MONITORING, "descriptions of metrics", connection, context)
    metrics = CloudMonitoringExporter(points, descriptions, context.run_id, context.process_index)
    spans_kept = BufferingSpanExporter(spans, context.stopping)
    return spec.Exporters("gcp", spans_kept, metrics, project=connection.known_project)


def open_workload(context: spec.ExporterContext) -> spec.Exporters:
    from otel_goodput.exporters.google.workload import WorkloadExporter

    delivery = _delivery(MONITORING, "points", Connection(context.environ), context)
    # The leader's index: 0, unless several processes lead; then it keeps them from writing the same series.
    return spec.Exporters("workload", None, WorkloadExporter(delivery, str(context.process_index)))


def open_gcp_otlp(context: spec.ExporterContext) -> spec.Exporters:
    from otel_goodput.exporters.google import otlp
    from otel_goodput.exporters.wrappers import BufferingSpanExporter

    connection = Connection(context.environ)
    traces, metrics = (_delivery(TELEMETRY, "OTLP requests", connection, context) for _ in range(2))
    spans = BufferingSpanExporter(otlp.TelemetrySpanExporter(traces, context.process_index), context.stopping)
    exporter = otlp.TelemetryMetricExporter(metrics, context.process_index)
    return spec.Exporters("gcp-otlp", spans, exporter, project=connection.known_project)


def _delivery(service: Service, items: str, connection: Connection, context: spec.ExporterContext) -> Delivery:
    rpc_s = min(RPC_S, max(context.grace_period_s * SHARE_OF_GRACE, 0.1))
    return Delivery(service, items, connection, context.stopping, rpc_s)


@dataclass(frozen=True, kw_only=True)
class GoogleExporterSpec(spec.ExporterSpec):
    """The description of an exporter to Google Cloud; `services`: which signal goes to which service."""

    services: Mapping[str, Service]


def _spec(name: str, brief: str, services: Mapping[str, Service], packages: Sequence[str], **more: Any) -> Any:
    def describe(context: spec.ExporterContext) -> list[spec.Destination]:
        place = Connection(context.environ).place
        return [spec.Destination(signal, place(service)) for signal, service in services.items()]

    return GoogleExporterSpec(
        name, brief, describe=describe, signals=tuple(services), packages=lambda _: packages, services=services, **more
    )


def _here(situation: spec.Situation) -> str:
    return "this is Google Cloud, or a project of it is named" if on_google_cloud(situation.environ) else ""


GCP: Final[GoogleExporterSpec] = _spec(
    "gcp",
    "Cloud Trace and Cloud Monitoring (`workload.googleapis.com/goodput.…`)",
    {spec.TRACES: TRACE, spec.METRICS: MONITORING},
    PACKAGES,
    open=open_gcp,
    extra="gcp",
    # A collector is assumed to forward to Google.
    auto=lambda situation: "" if "otlp" in situation.chosen else _here(situation),
    number=34,
)
GCP_OTLP: Final[GoogleExporterSpec] = _spec(
    "gcp-otlp",
    "the same over OTLP to `telemetry.googleapis.com`",
    {spec.TRACES: TELEMETRY, spec.METRICS: TELEMETRY},
    OTLP_PACKAGES,
    open=open_gcp_otlp,
    extra="gcp-otlp",
    number=35,
)
WORKLOAD: Final[GoogleExporterSpec] = _spec(
    "workload",
    "Google's own goodput series, used by Google's ML Goodput dashboards",
    {spec.METRICS: MONITORING},
    WORKLOAD_PACKAGES,
    open=open_workload,
    extra="gcp",
    auto=_here,
    number=37,
)
