"""Google Cloud: Cloud Trace and Cloud Monitoring (`gcp`), Google's goodput series (`workload`), OTLP (`gcp-otlp`).

Nothing of Google's is imported, nobody is asked for credentials and nothing is connected before the first export, which
is in a thread of its own: ``configure()`` does not wait for any of it.
"""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

from otel_goodput.exporters.gcp.connection import MONITORING, TELEMETRY, TRACE, Connection, Service, load
from otel_goodput.exporters.gcp.delivery import Delivery
from otel_goodput.guard import report_once

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from otel_goodput.exporters import Outlet, Surroundings

RPC_S: Final = 10.0
# At the stop one request may be under way already and the last ones follow it. All must end inside the grace period.
SHARE_OF_GRACE: Final = 0.4

_CLIENTS: Final = {
    TRACE: ("google.cloud.trace_v2", "TraceServiceClient", "trace_service", "TraceServiceGrpcTransport"),
    MONITORING: ("google.cloud.monitoring_v3", "MetricServiceClient", "metric_service", "MetricServiceGrpcTransport"),
}


def open_gcp(surroundings: Surroundings) -> Outlet:
    """Cloud Trace and Cloud Monitoring. Raises ImportError where the extra `gcp` is not installed."""
    from otel_goodput.exporters import Outlet
    from otel_goodput.exporters.backlog import Backlog
    from otel_goodput.exporters.gcp import translation
    from otel_goodput.exporters.gcp.metrics import CloudMonitoringExporter
    from otel_goodput.exporters.gcp.spans import CloudTraceExporter

    _need(translation.PACKAGES)
    connection = Connection(surroundings.environ)
    spans = CloudTraceExporter(
        connection,
        _delivery(TRACE, "spans", connection, surroundings),
        service_client(TRACE, connection),
        surroundings.environ.get(translation.RESOURCE_VARIABLE) or translation.RESOURCE,
    )
    return Outlet(
        "gcp",
        Backlog(spans, surroundings.ending),
        CloudMonitoringExporter(
            connection,
            _delivery(MONITORING, "points", connection, surroundings),
            partial(_delivery, MONITORING, "descriptions of metrics", connection, surroundings),
            service_client(MONITORING, connection),
            surroundings.run_id,
            surroundings.process_index,
            surroundings.run_started,
        ),
    )


def open_workload(surroundings: Surroundings) -> Outlet:
    """Google's goodput series. Raises ImportError where the extra `gcp` is not installed."""
    from otel_goodput.exporters import Outlet
    from otel_goodput.exporters.gcp.translation import WORKLOAD_PACKAGE
    from otel_goodput.exporters.gcp.workload import WorkloadExporter

    _need((WORKLOAD_PACKAGE,))
    connection = Connection(surroundings.environ)
    delivery = _delivery(MONITORING, "points", connection, surroundings)
    # The leader's index: 0, but where several processes lead and would write the same series.
    replica = str(surroundings.process_index)
    exporter = WorkloadExporter(connection, delivery, service_client(MONITORING, connection), replica)
    return Outlet("workload", None, exporter)


def open_gcp_otlp(surroundings: Surroundings) -> Outlet:
    """OTLP to Google. Raises ImportError where the extra `gcp-otlp` is not installed."""
    from otel_goodput.exporters import Outlet
    from otel_goodput.exporters.backlog import Backlog
    from otel_goodput.exporters.gcp import otlp

    _need(otlp.PACKAGES)
    connection = Connection(surroundings.environ)
    traces, metrics = (_delivery(TELEMETRY, "OTLP requests", connection, surroundings) for _ in range(2))
    return Outlet(
        "gcp-otlp",
        Backlog(otlp.TelemetrySpanExporter(connection, traces, surroundings.process_index), surroundings.ending),
        otlp.TelemetryMetricExporter(connection, metrics, surroundings.process_index, surroundings.run_started),
    )


def _need(packages: Iterable[str]) -> None:
    """Look for packages without importing them: that takes a second, and is for the export's thread."""
    from otel_goodput.exporters import importable

    for package in packages:
        if not importable(package):
            raise ImportError(f"no module named {package!r}", name=package)


def _delivery(
    service: Service,
    items: str,
    connection: Connection,
    surroundings: Surroundings,
    report: Callable[..., object] = report_once,
) -> Delivery:
    rpc_s = min(RPC_S, max(surroundings.grace_period_s * SHARE_OF_GRACE, 0.1))
    return Delivery(service, items, connection, surroundings.ending, rpc_s, report)


def service_client(service: Service, connection: Connection) -> Callable[[], Any]:
    """Gives Google's client for a service, made on its first use."""

    @cache
    def client() -> Any:
        package, name, module, transport_name = _CLIENTS[service]
        transports = load(f"{package}.services.{module}.transports")
        transport = getattr(transports, transport_name)(channel=connection.channel(service))
        return getattr(load(package), name)(transport=transport)

    return client
