"""Exporters to Google Cloud: Cloud Trace and Cloud Monitoring (`gcp`), Google's goodput series (`workload`), OTLP
(`gcp-otlp`).

Google's libraries are imported, credentials looked up and connections opened by the first export, which runs in a
thread of its own: ``configure()`` does not wait for any of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

from otel_goodput._runtime.deadline import SHARE_OF_GRACE
from otel_goodput._runtime.guard import report_once
from otel_goodput.exporters.google.connection import (
    MONITORING,
    PLAINTEXT,
    PROJECT_SOURCES,
    TELEMETRY,
    TRACE,
    Connection,
    Service,
    load,
    on_google_cloud,
)
from otel_goodput.exporters.google.delivery import Delivery
from otel_goodput.exporters.spec import (
    METRICS,
    TRACES,
    Destination,
    ExporterContext,
    Exporters,
    ExporterSpec,
    Situation,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

RPC_S: Final = 10.0

PACKAGES: Final = ("opentelemetry.exporter.cloud_trace", "opentelemetry.exporter.cloud_monitoring")
OTLP_PACKAGES: Final = (
    "opentelemetry.exporter.otlp.proto.common",
    "opentelemetry.proto.collector",
    "grpc",
    "google.auth",
)
WORKLOAD_PACKAGES: Final = ("google.cloud.monitoring_v3",)

_CLIENTS: Final = {
    TRACE: ("google.cloud.trace_v2", "TraceServiceClient", "trace_service", "TraceServiceGrpcTransport"),
    MONITORING: ("google.cloud.monitoring_v3", "MetricServiceClient", "metric_service", "MetricServiceGrpcTransport"),
}


def open_gcp(context: ExporterContext) -> Exporters:
    """Open the exporter to Cloud Trace and Cloud Monitoring."""
    from otel_goodput.exporters.google.metrics import CloudMonitoringExporter
    from otel_goodput.exporters.google.spans import RESOURCE, RESOURCE_VARIABLE, CloudTraceExporter
    from otel_goodput.exporters.wrappers import BufferingSpanExporter

    connection = Connection(context.environ)
    spans = CloudTraceExporter(
        connection,
        _delivery(TRACE, "spans", connection, context),
        service_client(TRACE, connection),
        context.environ.get(RESOURCE_VARIABLE) or RESOURCE,
    )
    return Exporters(
        "gcp",
        BufferingSpanExporter(spans, context.stopping),
        CloudMonitoringExporter(
            connection,
            _delivery(MONITORING, "points", connection, context),
            service_client(MONITORING, connection),
            partial(_delivery, MONITORING, "descriptions of metrics", connection, context),
            context.run_id,
            context.process_index,
        ),
        project=connection.known_project,
    )


def open_workload(context: ExporterContext) -> Exporters:
    """Open the exporter to Google's goodput series."""
    from otel_goodput.exporters.google.workload import WorkloadExporter

    connection = Connection(context.environ)
    delivery = _delivery(MONITORING, "points", connection, context)
    # The leader's index: 0, unless several processes lead; then it keeps them from writing the same series.
    replica = str(context.process_index)
    exporter = WorkloadExporter(connection, delivery, service_client(MONITORING, connection), replica)
    return Exporters("workload", None, exporter)


def open_gcp_otlp(context: ExporterContext) -> Exporters:
    """Open the exporter over OTLP to Google's Telemetry API."""
    from otel_goodput.exporters.google import otlp
    from otel_goodput.exporters.wrappers import BufferingSpanExporter

    connection = Connection(context.environ)
    traces, metrics = (_delivery(TELEMETRY, "OTLP requests", connection, context) for _ in range(2))
    return Exporters(
        "gcp-otlp",
        BufferingSpanExporter(otlp.TelemetrySpanExporter(connection, traces, context.process_index), context.stopping),
        otlp.TelemetryMetricExporter(connection, metrics, context.process_index),
        project=connection.known_project,
    )


def _delivery(
    service: Service,
    items: str,
    connection: Connection,
    context: ExporterContext,
    report: Callable[..., object] = report_once,
) -> Delivery:
    rpc_s = min(RPC_S, max(context.grace_period_s * SHARE_OF_GRACE, 0.1))
    return Delivery(service, items, connection, context.stopping, rpc_s, report)


def service_client(service: Service, connection: Connection) -> Callable[[], Any]:
    """Return a function that returns Google's client for a service, made by the first call."""

    @cache
    def client() -> Any:
        package, name, module, transport_name = _CLIENTS[service]
        transports = load(f"{package}.services.{module}.transports")
        transport = getattr(transports, transport_name)(channel=connection.channel(service))
        return getattr(load(package), name)(transport=transport)

    return client


@dataclass(frozen=True, kw_only=True)
class GoogleExporterSpec(ExporterSpec):
    """The description of an exporter to Google Cloud.

    Attributes:
        services: which signal goes to which service.
    """

    services: Mapping[str, Service]


def _spec(
    name: str,
    brief: str,
    open: Callable[[ExporterContext], Exporters],
    services: Mapping[str, Service],
    packages: Sequence[str],
    **more: Any,
) -> GoogleExporterSpec:
    """Return a spec; `packages` are the modules that it needs."""
    described = partial(_describe, services)
    return GoogleExporterSpec(
        name, brief, open, described, tuple(services), packages=lambda _: packages, services=services, **more
    )


def _describe(services: Mapping[str, Service], context: ExporterContext) -> list[Destination]:
    """Return the destinations according to the variables alone; credentials are not asked for a project."""
    environ = context.environ
    connection = Connection(environ)
    scheme = PLAINTEXT if connection.plaintext else ""
    project = next((text for source in PROJECT_SOURCES if (text := environ.get(source, "").strip())), "")
    return [
        Destination(
            signal, f"{service.name} ({scheme}{connection.target(service)}){f', project {project}' if project else ''}"
        )
        for signal, service in services.items()
    ]


def _here(situation: Situation) -> str:
    return "this is Google Cloud, or a project of it is named" if on_google_cloud(situation.environ) else ""


def _auto_gcp(situation: Situation) -> str:
    """Return why `auto` chooses `gcp`. It does not beside `otlp`: a collector is assumed to forward to Google."""
    return "" if "otlp" in situation.chosen else _here(situation)


GCP: Final = _spec(
    "gcp",
    "Cloud Trace and Cloud Monitoring (`workload.googleapis.com/goodput.…`)",
    open_gcp,
    {TRACES: TRACE, METRICS: MONITORING},
    PACKAGES,
    extra="gcp",
    auto=_auto_gcp,
    number=34,
)
GCP_OTLP: Final = _spec(
    "gcp-otlp",
    "the same over OTLP to `telemetry.googleapis.com`",
    open_gcp_otlp,
    {TRACES: TELEMETRY, METRICS: TELEMETRY},
    OTLP_PACKAGES,
    extra="gcp-otlp",
    number=35,
)
WORKLOAD: Final = _spec(
    "workload",
    "Google's own goodput series, used by Google's ML Goodput dashboards",
    open_workload,
    {METRICS: MONITORING},
    WORKLOAD_PACKAGES,
    extra="gcp",
    auto=_here,
    number=37,
)
