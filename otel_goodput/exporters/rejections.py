"""Counts what OTLP receivers reject of exports that they accept, which OpenTelemetry's exporters do not look at."""

from __future__ import annotations

from opentelemetry.sdk.metrics.export import MetricExporter
from opentelemetry.sdk.trace.export import SpanExporter

from otel_goodput.exporters.otlp_answers import Accepted
from otel_goodput.guard import report_once
from otel_goodput.recording.passing import PassingMetricExporter, PassingSpanExporter
from otel_goodput.text.redact import shown


class Rejections:
    """What `receiver` has rejected of requests that it accepted; each reason is reported once.

    Attributes:
        refused: number of spans or points.
    """

    def __init__(self, receiver: object) -> None:
        self._receiver = str(receiver)
        self.refused = 0

    def note(self, answer: Accepted) -> None:
        """Count and report what `answer` says."""
        self.refused += answer.rejected
        if answer.rejected:
            site = f"partial {self._receiver} {answer.said[:80]}"
            report_once(site, "%s did not accept %d items: %s", self._receiver, answer.rejected, shown(answer.said))


class CountingSpanExporter(PassingSpanExporter):
    """Passes spans on, and counts in `refused` those that the receiver rejected."""

    def __init__(self, exporter: SpanExporter, rejections: Rejections) -> None:
        super().__init__(exporter)
        self._rejections = rejections

    @property
    def refused(self) -> int:
        return self._rejections.refused


class CountingMetricExporter(PassingMetricExporter):
    """Passes metrics on, and counts in `refused` the points that the receiver rejected."""

    def __init__(self, exporter: MetricExporter, rejections: Rejections) -> None:
        super().__init__(exporter)
        self._rejections = rejections

    @property
    def refused(self) -> int:
        return self._rejections.refused
