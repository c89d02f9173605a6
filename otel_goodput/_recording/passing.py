"""Exporters and a span processor that pass on to others what they do not change."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from opentelemetry.context import Context
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from otel_goodput._runtime.guard import containing


class PassingSpanExporter(SpanExporter):
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


class PassingMetricExporter(MetricExporter):
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


class SwitchedSpanProcessor(SpanProcessor):
    """Passes spans on to processors that can be replaced, since a provider cannot give up those that it has."""

    def __init__(self) -> None:
        self._current: tuple[SpanProcessor, ...] = ()

    def turn(self, processors: Iterable[SpanProcessor]) -> None:
        """Pass spans on to `processors` from now on."""
        self._current = tuple(processors)

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        for each in self._current:
            with containing("span processor"):
                each.on_start(span, parent_context)

    def _on_ending(self, span: Span) -> None:
        for each in self._current:
            with containing("span processor"):
                each._on_ending(span)

    def on_end(self, span: ReadableSpan) -> None:
        for each in self._current:
            with containing("span processor"):
                each.on_end(span)

    def shutdown(self) -> None:
        for each in self._current:
            each.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        until = time.monotonic() + timeout_millis / 1000
        done = [each.force_flush(max(0, int((until - time.monotonic()) * 1000))) for each in self._current]
        return all(done)
