"""The `otlp` exporter: OpenTelemetry's own exporters over gRPC or HTTP, configured by the standard variables.

Endpoints, headers, certificates, compression and temporality are read by these exporters themselves, from the process's
OTEL_EXPORTER_OTLP_* variables. Added are the choice between gRPC and HTTP, a look at the answers, a timeout
that fits the grace period, a buffer for spans while no receiver listens, a wait at the end for a receiver that does not
listen yet, and last values with times that Cloud Monitoring accepts, in case it is behind the endpoint.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from otel_goodput._runtime.guard import report_once
from otel_goodput.exporters.otlp_variables import (
    EXPORTER_MODULES,
    GRPC,
    HTTP,
    Endpoint,
    address,
    endpoint,
    protocol,
    timeout,
    variables,
)
from otel_goodput.exporters.spec import (
    SIGNALS,
    Destination,
    ExporterContext,
    Exporters,
    ExporterSpec,
    ExporterUnavailable,
    Situation,
)

_HISTOGRAM_VARIABLE: Final = "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION"


def open_otlp(context: ExporterContext) -> Exporters:
    """Open OpenTelemetry's exporters for both signals.

    Raises:
        ImportError: the extra `otlp` is not installed.
        ExporterUnavailable: a header cannot be sent, so that every export would fail.
    """
    from otel_goodput.exporters import otlp_grpc, otlp_http
    from otel_goodput.exporters.buffering import BufferingSpanExporter
    from otel_goodput.exporters.listener import AwaitingMetricExporter, AwaitingSpanExporter, Listener
    from otel_goodput.exporters.otlp_variables import headers, unsaid
    from otel_goodput.exporters.spacing import SpacedExporter

    environ, grace = context.environ, context.grace_period_s
    traces = importlib.import_module(f"{EXPORTER_MODULES[protocol(environ, 'traces')]}.trace_exporter")
    metrics = importlib.import_module(f"{EXPORTER_MODULES[protocol(environ, 'metrics')]}.metric_exporter")
    asked = [headers(environ, signal, protocol(environ, signal)) for signal in SIGNALS]
    for wrong in dict.fromkeys(text for one in asked for text in one.unsendable):
        raise ExporterUnavailable("otlp", wrong, "see OTEL_EXPORTER_OTLP_HEADERS")
    for wrong in dict.fromkeys(text for one in asked for text in one.malformed):
        report_once(wrong, "%s; it is left out", wrong)
    make_spans = partial(traces.OTLPSpanExporter, timeout=timeout(environ, "traces", grace))
    make_values = partial(
        metrics.OTLPMetricExporter,
        timeout=timeout(environ, "metrics", grace),
        preferred_aggregation=_aggregation(environ),
    )
    wires = {GRPC: otlp_grpc, HTTP: otlp_http}
    with unsaid():
        spans = wires[protocol(environ, "traces")].spans(environ, make_spans)
        values = wires[protocol(environ, "metrics")].values(environ, make_values)
    places = [address(environ, signal) for signal in SIGNALS]
    listeners = {place: Listener(place, context.stopping) for place in places if place is not None}
    if places[0] is not None:
        spans = AwaitingSpanExporter(spans, listeners[places[0]])
    if places[1] is not None:
        values = AwaitingMetricExporter(values, listeners[places[1]])
    return Exporters("otlp", BufferingSpanExporter(spans, context.stopping), SpacedExporter(values, context.stopping))


def _aggregation(environ: Mapping[str, str]) -> dict[type, Any] | None:
    """Return exponential histograms as the preferred aggregation; None if the standard variable chooses one."""
    if environ.get(_HISTOGRAM_VARIABLE):
        return None
    from opentelemetry.sdk.metrics import Histogram
    from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation

    return {Histogram: ExponentialBucketHistogramAggregation()}


def packages(environ: Mapping[str, str]) -> list[str]:
    """Return the modules that the protocols of both signals need."""
    return list(dict.fromkeys(EXPORTER_MODULES[protocol(environ, signal)] for signal in SIGNALS))


def describe(context: ExporterContext) -> list[Destination]:
    return [Destination(each.signal, str(each)) for each in endpoints(context.environ)]


def endpoints(environ: Mapping[str, str]) -> list[Endpoint]:
    """Return the endpoint of each signal."""
    return [endpoint(environ, signal) for signal in SIGNALS]


def auto(situation: Situation) -> str:
    # Prefer the common variable, which people look for first.
    asked = (name for signal in SIGNALS for name in reversed(variables(signal, "ENDPOINT")))
    return next((f"{name} is set" for name in asked if situation.environ.get(name)), "")


OTLP: Final = ExporterSpec(
    "otlp",
    "OpenTelemetry's own exporters, gRPC or HTTP, with the standard variables",
    open_otlp,
    describe,
    extra="otlp",
    packages=packages,
    auto=auto,
    number=36,
    endpoints=endpoints,
)
