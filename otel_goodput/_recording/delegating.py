"""Exporters that pass on to others what they do not change."""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult


class DelegatingSpanExporter(SpanExporter):
    """Passes everything on to `exporter`."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter

    @property
    def refused(self) -> int:
        """Number of spans that the service rejected of exports that it accepted, as far as `exporter` counts them."""
        return int(getattr(self._exporter, "refused", 0))

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return self._exporter.export(spans)

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)

    def shutdown(self) -> None:
        self._exporter.shutdown()


class DelegatingMetricExporter(MetricExporter):
    """Passes everything on to `exporter`, with whose preferences the metrics are read."""

    def __init__(self, exporter: MetricExporter) -> None:
        # The SDK's reader reads these two attributes of its exporter, under these names.
        names = ("_preferred_temporality", "_preferred_aggregation")
        super().__init__(*(getattr(exporter, name, None) for name in names))
        self._exporter = exporter

    @property
    def refused(self) -> int:
        """Number of points that the service rejected of exports that it accepted, as far as `exporter` counts them."""
        return int(getattr(self._exporter, "refused", 0))

    @property
    def held(self) -> int:
        """Number of points that `exporter` has accepted and not sent yet, as far as it counts them."""
        return int(getattr(self._exporter, "held", 0))

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: object) -> MetricExportResult:
        return self._exporter.export(metrics_data, timeout_millis=timeout_millis, **kwargs)

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return self._exporter.force_flush(timeout_millis)

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: object) -> None:
        self._exporter.shutdown(timeout_millis=timeout_millis, **kwargs)
