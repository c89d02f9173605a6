"""Looks at the answers that OpenTelemetry's exporters over gRPC get: a success may say that parts were rejected."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from opentelemetry.sdk.metrics.export import MetricExporter
from opentelemetry.sdk.trace.export import SpanExporter

from otel_goodput._recording.passing import PassingMetricExporter, PassingSpanExporter
from otel_goodput.exporters.otlp_answers import CountingMetricExporter, CountingSpanExporter, Rejections, accepted
from otel_goodput.exporters.otlp_variables import endpoint


class _Noting:
    """A client of OTLP's service that notes what its answers say."""

    def __init__(self, client: Any, rejections: Rejections) -> None:
        self._client = client
        self._rejections = rejections

    def Export(self, *args: Any, **settings: Any) -> Any:
        answer = self._client.Export(*args, **settings)
        self._rejections.note(accepted(answer))
        return answer


def spans(environ: Mapping[str, str], make: Callable[..., SpanExporter]) -> PassingSpanExporter:
    """Return the exporter of spans that `make` makes; it counts what the receiver rejects."""
    rejections = Rejections(endpoint(environ, "traces"))
    return CountingSpanExporter(_noting(make(), rejections), rejections)


def values(environ: Mapping[str, str], make: Callable[..., MetricExporter]) -> PassingMetricExporter:
    """Return the exporter of metrics that `make` makes, in the same way."""
    rejections = Rejections(endpoint(environ, "metrics"))
    return CountingMetricExporter(_noting(make(), rejections), rejections)


def _noting(exporter: Any, rejections: Rejections) -> Any:
    """Have an exporter's client noted, now and when it connects anew; without these attributes nothing is counted."""
    stub, client = getattr(exporter, "_stub", None), getattr(exporter, "_client", None)
    if callable(stub) and client is not None:
        exporter._stub = lambda channel: _Noting(stub(channel), rejections)
        exporter._client = _Noting(client, rejections)
    return exporter
