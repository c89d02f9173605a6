"""The `otlp` outlet: OpenTelemetry's own exporters over gRPC or HTTP, by the standard variables.

Endpoints, headers, certificates, compression, temporality: the exporters read OTEL_EXPORTER_OTLP_* of the process
themselves. Added are the choice between gRPC and HTTP, a timeout that fits the grace period, a place where spans wait
while nobody listens, a wait at the end for who does not listen yet, and last values that Cloud Monitoring takes, should
it be what is behind the endpoint.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from otel_goodput.guard import report_once

if TYPE_CHECKING:
    from otel_goodput.exporters import Outlet, Surroundings

GRPC: Final = "grpc"
HTTP: Final = "http/protobuf"
SIGNALS: Final = ("traces", "metrics")
EXPORTER_MODULES: Final[dict[str, str]] = {
    GRPC: "opentelemetry.exporter.otlp.proto.grpc",
    HTTP: "opentelemetry.exporter.otlp.proto.http",
}

DEFAULT_TIMEOUT_S: Final = 10.0

# At the stop one export may be under way already and the last one follows it. Both must end inside the grace period.
SHARE_OF_GRACE: Final = 0.4
MIN_TIMEOUT_S: Final = 0.1

_HISTOGRAM_VARIABLE: Final = "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION"


def open_otlp(surroundings: Surroundings) -> Outlet:
    """Open the outlet.

    Raises:
        ImportError: the extra `otlp` is not installed.
        OutletUnavailable: a header cannot be sent, for which every export would fail.
    """
    from otel_goodput.exporters import Outlet, OutletUnavailable
    from otel_goodput.exporters.backlog import Backlog
    from otel_goodput.exporters.endpoints import address
    from otel_goodput.exporters.headers import headers, unsaid
    from otel_goodput.exporters.listener import AwaitingMetricExporter, AwaitingSpanExporter, Listener
    from otel_goodput.exporters.spacing import SpacedExporter

    environ, grace = surroundings.environ, surroundings.grace_period_s
    traces = importlib.import_module(f"{EXPORTER_MODULES[protocol(environ, 'traces')]}.trace_exporter")
    metrics = importlib.import_module(f"{EXPORTER_MODULES[protocol(environ, 'metrics')]}.metric_exporter")
    asked = [headers(environ, signal, protocol(environ, signal)) for signal in SIGNALS]
    for wrong in dict.fromkeys(text for one in asked for text in one.unsendable):
        raise OutletUnavailable("otlp", wrong, "see OTEL_EXPORTER_OTLP_HEADERS")
    for wrong in dict.fromkeys(text for one in asked for text in one.malformed):
        report_once(wrong, "%s; it is left out", wrong)
    with unsaid():
        spans = traces.OTLPSpanExporter(timeout=timeout(environ, "traces", grace))
        values = metrics.OTLPMetricExporter(
            timeout=timeout(environ, "metrics", grace), preferred_aggregation=_aggregation(environ)
        )
    places = [address(environ, signal) for signal in SIGNALS]
    listeners = {place: Listener(place, surroundings.ending) for place in places if place is not None}
    if places[0] is not None:
        spans = AwaitingSpanExporter(spans, listeners[places[0]])
    if places[1] is not None:
        values = AwaitingMetricExporter(values, listeners[places[1]])
    return Outlet("otlp", Backlog(spans, surroundings.ending), SpacedExporter(values, surroundings.ending))


def variables(signal: str, name: str) -> tuple[str, str]:
    """The standard variables that say `name` for `traces` or `metrics`: the signal's own, and the one for all."""
    return f"OTEL_EXPORTER_OTLP_{signal.upper()}_{name}", f"OTEL_EXPORTER_OTLP_{name}"


def protocol(environ: Mapping[str, str], signal: str) -> str:
    """`grpc` or `http/protobuf` for `traces` or `metrics`. A value that is neither warns and counts as not set."""
    for variable in variables(signal, "PROTOCOL"):
        value = environ.get(variable, "").strip().lower()
        if value in EXPORTER_MODULES:
            return value
        if value:
            known = ", ".join(EXPORTER_MODULES)
            report_once(f"{variable}={value}", "%s=%s is not supported (%s), ignored", variable, value, known)
    return GRPC


def timeout(environ: Mapping[str, str], signal: str, grace_period_s: float) -> float:
    """Seconds that one export may take: the configured ones, but never more than fits twice into the grace period.

    The variables are read in seconds, as Python's exporters do (the specification says milliseconds; a value meant so
    is cut to what the grace period allows).
    """
    seconds = DEFAULT_TIMEOUT_S
    for variable in variables(signal, "TIMEOUT"):
        try:
            value = float(environ.get(variable, ""))
        except ValueError:
            continue
        if math.isfinite(value) and value > 0:
            seconds = value
            break
    return max(min(seconds, grace_period_s * SHARE_OF_GRACE), MIN_TIMEOUT_S)


def _aggregation(environ: Mapping[str, str]) -> dict[type, Any] | None:
    """Exponential histograms, unless the standard variable asks for something."""
    if environ.get(_HISTOGRAM_VARIABLE):
        return None
    from opentelemetry.sdk.metrics import Histogram
    from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation

    return {Histogram: ExponentialBucketHistogramAggregation()}
