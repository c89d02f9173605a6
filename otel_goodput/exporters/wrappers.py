"""Wrap every exporter, ours or not: no export after a fork, no exceptions, odd values or secrets, losses counted.

The SDK's processors and readers start their threads again in a forked child (such as a data loader's worker), where
they would export the parent's totals a second time, over connections that belong to the parent.
"""

from __future__ import annotations

import inspect
import math
import os
import time
from collections.abc import Sequence

from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from otel_goodput.deadline import ShutdownSignal
from otel_goodput.exporters.counters import FirstPoints
from otel_goodput.exporters.fitting import fitting, fitting_metrics
from otel_goodput.exporters.redaction import Redaction
from otel_goodput.guard import report_once
from otel_goodput.recording.passing import PassingMetricExporter


class _Ground:
    """Shared by both wrappers: checks that this is not a forked child, and reports errors."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._pid = os.getpid()
        self.muted = False

    def owned(self) -> bool:
        return os.getpid() == self._pid and not self.muted

    def tell(self, doing: str, error: Exception) -> None:
        site = f"exporter {self._name}: {doing}"
        report_once(site, "%s failed: %s: %s", site, type(error).__name__, error)


def _dropped(exporter: object, failed: int) -> int:
    """Return how many items an exporter lost: its own count, else the items of failed exports and those refused."""
    own: int | None = getattr(exporter, "dropped", None)
    return failed + int(getattr(exporter, "refused", 0)) if own is None else own


class SafeSpanExporter(SpanExporter):
    """A span exporter that never raises, and does nothing in forked children."""

    def __init__(self, name: str, exporter: SpanExporter) -> None:
        self._ground = _Ground(name)
        self._exporter = exporter
        # The shutdown of some exporters takes a timeout, that of others does not.
        self._timed = "timeout_millis" in inspect.signature(exporter.shutdown).parameters
        self._redacted = Redaction()
        self._failed = 0

    def mute(self) -> None:
        """Do nothing from now on: what it would export is of no use."""
        self._ground.muted = True

    @property
    def dropped(self) -> int:
        """Number of lost spans."""
        return _dropped(self._exporter, self._failed)

    @property
    def waiting(self) -> int:
        """Number of spans that the exporter keeps because it could not deliver them; 0 if it keeps none."""
        return int(getattr(self._exporter, "waiting", 0))

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if not self._ground.owned():
            return SpanExportResult.FAILURE
        try:
            result = self._exporter.export([fitting(self._redacted(span)) for span in spans])
        except Exception as error:
            self._ground.tell("exporting spans", error)
            result = SpanExportResult.FAILURE
        if result is not SpanExportResult.SUCCESS:
            self._failed += len(spans)
        return result

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        if not self._ground.owned():
            return True
        try:
            return self._exporter.force_flush(timeout_millis)
        except Exception as error:
            self._ground.tell("flushing spans", error)
            return False

    def shutdown(self, timeout_millis: float = 30_000) -> None:
        if not self._ground.owned():
            return
        try:
            if self._timed:
                self._exporter.shutdown(timeout_millis=timeout_millis)  # type: ignore[call-arg]
            else:
                self._exporter.shutdown()
        except Exception as error:
            self._ground.tell("closing spans", error)


class SafeMetricExporter(PassingMetricExporter):
    """A metric exporter that never raises, does nothing in forked children, and whose counters begin at 0.

    Args:
        name, exporter: what is wrapped.
        stopping: tells when what is exported may be the last.
    """

    def __init__(self, name: str, exporter: MetricExporter, stopping: ShutdownSignal) -> None:
        super().__init__(exporter)
        self._ground = _Ground(name)
        self._stopping = stopping
        self._first = FirstPoints()
        self._failed = 0
        self._succeeded = -math.inf

    def mute(self) -> None:
        """Do nothing from now on: what it would export is of no use."""
        self._ground.muted = True

    def current(self, since: float) -> bool:
        """Return whether an export that began after `since` (monotonic s) has succeeded, with all that it held back."""
        return self._succeeded >= since and not self.held

    @property
    def dropped(self) -> int:
        """Number of lost data points: those of failed exports, and those that the backend rejected."""
        return _dropped(self._exporter, self._failed)

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: object) -> MetricExportResult:
        if not self._ground.owned():
            return MetricExportResult.FAILURE
        begun = time.monotonic()
        try:
            data = fitting_metrics(metrics_data)
            if not self._stopping.last:
                data = self._first.at_zero(data)
            result = self._exporter.export(data, timeout_millis=timeout_millis, **kwargs)
            if result is MetricExportResult.SUCCESS:
                self._first.sent(data)
        except Exception as error:
            self._ground.tell("exporting metrics", error)
            result = MetricExportResult.FAILURE
        if result is MetricExportResult.SUCCESS:
            self._succeeded = begun
        else:
            self._failed += sum(
                len(metric.data.data_points)
                for resource in metrics_data.resource_metrics
                for scope in resource.scope_metrics
                for metric in scope.metrics
            )
        return result

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        if not self._ground.owned():
            return True
        try:
            return self._exporter.force_flush(timeout_millis)
        except Exception as error:
            self._ground.tell("flushing metrics", error)
            return False

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: object) -> None:
        if not self._ground.owned():
            return
        # The SDK's reader passes the timeout (ms) under the name `timeout`.
        given = kwargs.pop("timeout", timeout_millis)
        try:
            self._exporter.shutdown(
                timeout_millis=float(given) if isinstance(given, (int, float)) else timeout_millis, **kwargs
            )
        except Exception as error:
            self._ground.tell("closing metrics", error)
