"""Exporters to Google Cloud: Cloud Trace and Cloud Monitoring (`gcp`), Google's goodput series (`workload`), OTLP
(`gcp-otlp`).

Google's libraries are imported, credentials looked up and connections opened by the first export, which runs in a
thread of its own: ``configure()`` does not wait for any of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from otel_goodput._runtime.deadline import SHARE_OF_GRACE
from otel_goodput._runtime.guard import report_once
from otel_goodput.exporters import spec
from otel_goodput.exporters.google.connection import (
    MONITORING,
    PLAINTEXT,
    TELEMETRY,
    TRACE,
    Connection,
    Service,
    on_google_cloud,
)
from otel_goodput.exporters.google.delivery import Delivery

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


def open_gcp(context: spec.ExporterContext) -> spec.Exporters:
    """Open the exporter to Cloud Trace and Cloud Monitoring."""
    from otel_goodput.exporters.google.monitoring import CloudMonitoringExporter
    from otel_goodput.exporters.google.spans import RESOURCE, RESOURCE_VARIABLE, CloudTraceExporter
    from otel_goodput.exporters.wrappers import BufferingSpanExporter

    connection = Connection(context.environ)
    spans = CloudTraceExporter(
        _delivery(TRACE, "spans", connection, context), context.environ.get(RESOURCE_VARIABLE) or RESOURCE
    )
    metrics = CloudMonitoringExporter(
        _delivery(MONITORING, "points", connection, context),
        partial(_delivery, MONITORING, "descriptions of metrics", connection, context),
        context.run_id,
        context.process_index,
    )
    spans_kept = BufferingSpanExporter(spans, context.stopping)
    return spec.Exporters("gcp", spans_kept, metrics, project=connection.known_project)


def open_workload(context: spec.ExporterContext) -> spec.Exporters:
    """Open the exporter to Google's goodput series."""
    from otel_goodput.exporters.google.workload import WorkloadExporter

    delivery = _delivery(MONITORING, "points", Connection(context.environ), context)
    # The leader's index: 0, unless several processes lead; then it keeps them from writing the same series.
    return spec.Exporters("workload", None, WorkloadExporter(delivery, str(context.process_index)))


def open_gcp_otlp(context: spec.ExporterContext) -> spec.Exporters:
    """Open the exporter over OTLP to Google's Telemetry API."""
    from otel_goodput.exporters.google import otlp
    from otel_goodput.exporters.wrappers import BufferingSpanExporter

    connection = Connection(context.environ)
    traces, metrics = (_delivery(TELEMETRY, "OTLP requests", connection, context) for _ in range(2))
    spans = BufferingSpanExporter(otlp.TelemetrySpanExporter(traces, context.process_index), context.stopping)
    exporter = otlp.TelemetryMetricExporter(metrics, context.process_index)
    return spec.Exporters("gcp-otlp", spans, exporter, project=connection.known_project)


def _delivery(
    service: Service,
    items: str,
    connection: Connection,
    context: spec.ExporterContext,
    report: Callable[..., object] = report_once,
) -> Delivery:
    rpc_s = min(RPC_S, max(context.grace_period_s * SHARE_OF_GRACE, 0.1))
    return Delivery(service, items, connection, context.stopping, rpc_s, report)


@dataclass(frozen=True, kw_only=True)
class GoogleExporterSpec(spec.ExporterSpec):
    """The description of an exporter to Google Cloud; `services`: which signal goes to which service."""

    services: Mapping[str, Service]


def _spec(
    name: str,
    brief: str,
    open: Callable[[spec.ExporterContext], spec.Exporters],
    services: Mapping[str, Service],
    packages: Sequence[str],
    **more: Any,
) -> GoogleExporterSpec:
    """Return a spec; `packages` are the modules that it needs."""
    described = partial(_describe, services)
    return GoogleExporterSpec(
        name, brief, open, described, tuple(services), packages=lambda _: packages, services=services, **more
    )


def _describe(services: Mapping[str, Service], context: spec.ExporterContext) -> list[spec.Destination]:
    """Return the destinations according to the variables alone; credentials are not asked for a project."""
    connection = Connection(context.environ)
    scheme = PLAINTEXT if connection.plaintext else ""
    project = f", project {connection.given}" if connection.given else ""
    places = {signal: f"{each.name} ({scheme}{connection.target(each)}){project}" for signal, each in services.items()}
    return [spec.Destination(signal, place) for signal, place in places.items()]


def _here(situation: spec.Situation) -> str:
    return "this is Google Cloud, or a project of it is named" if on_google_cloud(situation.environ) else ""


def _auto_gcp(situation: spec.Situation) -> str:
    """Return why `auto` chooses `gcp`. It does not beside `otlp`: a collector is assumed to forward to Google."""
    return "" if "otlp" in situation.chosen else _here(situation)


GCP: Final = _spec(
    "gcp",
    "Cloud Trace and Cloud Monitoring (`workload.googleapis.com/goodput.…`)",
    open_gcp,
    {spec.TRACES: TRACE, spec.METRICS: MONITORING},
    PACKAGES,
    extra="gcp",
    auto=_auto_gcp,
    number=34,
)
GCP_OTLP: Final = _spec(
    "gcp-otlp",
    "the same over OTLP to `telemetry.googleapis.com`",
    open_gcp_otlp,
    {spec.TRACES: TELEMETRY, spec.METRICS: TELEMETRY},
    OTLP_PACKAGES,
    extra="gcp-otlp",
    number=35,
)
WORKLOAD: Final = _spec(
    "workload",
    "Google's own goodput series, used by Google's ML Goodput dashboards",
    open_workload,
    {spec.METRICS: MONITORING},
    WORKLOAD_PACKAGES,
    extra="gcp",
    auto=_here,
    number=37,
)
