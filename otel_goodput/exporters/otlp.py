"""The `otlp` exporter: OpenTelemetry's own exporters over gRPC or HTTP, configured by the standard variables.

Endpoints, headers, certificates, compression and temporality are read by these exporters themselves, from the process's
OTEL_EXPORTER_OTLP_* variables. Added are the choice between gRPC and HTTP, a look at the answers, a timeout
that fits the grace period, a buffer for spans while no receiver listens, a wait at the end for a receiver that does not
listen yet, and last values with times that Cloud Monitoring accepts, in case it is behind the endpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

from otel_goodput._runtime.guard import quietly, report_once
from otel_goodput.exporters.buffering import BufferingSpanExporter
from otel_goodput.exporters.listener import Address, Listener, ReceiverMetricExporter, ReceiverSpanExporter
from otel_goodput.exporters.otlp_answers import Rejections, accepted
from otel_goodput.exporters.otlp_variables import (
    EXPORTER_MODULES,
    HTTP,
    PARSER,
    Endpoint,
    address,
    endpoint,
    headers,
    protocol,
    timeout,
    variables,
)
from otel_goodput.exporters.spacing import SpacedExporter
from otel_goodput.exporters.spec import (
    METRICS,
    SIGNALS,
    TRACES,
    Destination,
    ExporterContext,
    Exporters,
    ExporterSpec,
    ExporterUnavailable,
    Situation,
)

_HISTOGRAM_VARIABLE: Final = "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION"
_STOCK: Final = {TRACES: "trace_exporter:OTLPSpanExporter", METRICS: "metric_exporter:OTLPMetricExporter"}


def open_otlp(context: ExporterContext) -> Exporters:
    """Open OpenTelemetry's exporters for both signals.

    Raises:
        ImportError: the extra `otlp` is not installed.
        ExporterUnavailable: a header cannot be sent, so that every export would fail; or OpenTelemetry's variable for
            credentials names a provider that is not installed.
    """
    environ = context.environ
    given = [headers(environ, signal, protocol(environ, signal)) for signal in SIGNALS]
    for problem in dict.fromkeys(text for each in given for text in each.unsendable):
        raise ExporterUnavailable("otlp", problem, "see OTEL_EXPORTER_OTLP_HEADERS")
    for problem in dict.fromkeys(text for each in given for text in each.malformed):
        report_once(problem, "%s; it is left out", problem)
    listeners: dict[Address, Listener] = {}
    opened: dict[str, Any] = {}
    for signal, wrapper in ((TRACES, ReceiverSpanExporter), (METRICS, ReceiverMetricExporter)):
        rejections = Rejections(endpoint(environ, signal))
        listener, place = None, address(environ, signal)
        if place is not None:
            listener = listeners.setdefault(place, Listener(place, context.stopping))
        opened[signal] = wrapper(_stock(signal, context, rejections), listener, rejections)
    return Exporters(
        "otlp",
        BufferingSpanExporter(opened[TRACES], context.stopping),
        SpacedExporter(opened[METRICS], context.stopping),
    )


def _stock(signal: str, context: ExporterContext, rejections: Rejections) -> Any:
    """Return OpenTelemetry's exporter of a signal; `rejections` is given the answers of its receiver."""
    environ, place = context.environ, endpoint(context.environ, signal)
    module, _, name = _STOCK[signal].partition(":")
    make = getattr(import_module(f"{EXPORTER_MODULES[place.wire]}.{module}"), name)
    settings: dict[str, Any] = {"timeout": timeout(environ, signal, context.grace_period_s)}
    if signal == METRICS and not environ.get(_HISTOGRAM_VARIABLE):
        from opentelemetry.sdk.metrics import Histogram
        from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation

        settings["preferred_aggregation"] = {Histogram: ExponentialBucketHistogramAggregation()}
    if place.wire == HTTP:
        from otel_goodput.exporters.otlp_http import session

        settings["session"] = session(environ, place, rejections)
    with quietly(PARSER):  # its messages contain the values of headers
        exporter = make(**settings)
    stub, client = getattr(exporter, "_stub", None), getattr(exporter, "_client", None)
    if callable(stub) and client is not None:  # over gRPC; without these attributes nothing is counted
        exporter._stub = lambda channel: _JudgedClient(stub(channel), rejections)  # when it connects again
        exporter._client = _JudgedClient(client, rejections)
    return exporter


class _JudgedClient:
    """A gRPC client of OTLP's service. `rejections` is given its answers: a success may have rejected some items."""

    def __init__(self, client: Any, rejections: Rejections) -> None:
        self._client = client
        self._rejections = rejections

    def Export(self, *args: Any, **settings: Any) -> Any:
        answer = self._client.Export(*args, **settings)
        self._rejections.note(accepted(answer))
        return answer


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
    names = (name for signal in SIGNALS for name in reversed(variables(signal, "ENDPOINT")))
    return next((f"{name} is set" for name in names if situation.environ.get(name)), "")


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
