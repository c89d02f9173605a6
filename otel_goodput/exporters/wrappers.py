"""Wrap every exporter, ours or not: no export after a fork, no exceptions, odd values or secrets, losses counted.

The SDK's processors and readers start their threads again in a forked child (such as a data loader's worker), where
they would export the parent's totals a second time, over connections that belong to the parent.

Secrets are hidden in the spans of phases: in names, attributes, events and the status. Spans of the user's own
instrumentation are theirs to send, and stay as they are.

Each counter begins at 0. The SDK dates the beginning of an asynchronous counter when it is first observed, and its
first point has that same time. What was counted before then would look as if it had always been there: no rate, and no
backend that converts to deltas, would count it. So the first point of a series is 0, as the count is at that time, and
the next one has all. Where there may be no next point, because the process stops, the first one has all.
"""

from __future__ import annotations

import inspect
import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Metric,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from otel_goodput._recording.delegating import DelegatingMetricExporter
from otel_goodput._runtime.deadline import ShutdownSignal
from otel_goodput._runtime.guard import report_once
from otel_goodput._text.redact import secrets, without, without_secrets
from otel_goodput.exporters import walk
from otel_goodput.exporters.fitting import Attributes, converted, fitting, fitting_metrics
from otel_goodput.semconv import SCOPE_NAME

T = TypeVar("T")


class Redaction:
    """Returns spans without what looks like a secret, is called one, or is one of this process's environment."""

    def __init__(self) -> None:
        self._hidden = secrets(os.environ)
        self._text = partial(without, self._hidden)

    def __call__(self, span: ReadableSpan) -> ReadableSpan:
        scope = span.instrumentation_scope
        if scope is None or scope.name != SCOPE_NAME:
            return span
        return converted(span, self._text, self._attributes)

    def _attributes(self, given: Attributes) -> Attributes:
        changed = {}
        for name, value in (given or {}).items():
            shown = without_secrets(name, value, self._hidden)
            if shown != (list(value) if isinstance(value, tuple) else value):
                changed[name] = shown
        return {**given, **changed} if given and changed else given


Series = tuple[str, tuple[tuple[str, str], ...]]  # metric and attributes


class FirstPoints:
    """Which series of this package's counters an exporter has sent a point of."""

    def __init__(self) -> None:
        self._begun: set[Series] = set()

    def at_zero(self, data: MetricsData) -> MetricsData:
        """Return `data` with 0 in the first points of counters that begin."""
        return walk.converted(data, self._from_zero)

    def sent(self, data: MetricsData) -> None:
        """Take note that the points of `data` have been sent."""
        for metric in walk.own_metrics(data):
            if _is_counter(metric):
                points: Iterable[Any] = metric.data.data_points
                self._begun.update(_series(metric.name, point) for point in points)

    def _from_zero(self, scope: ScopeMetrics, metric: Metric) -> Metric:
        if scope.scope.name != SCOPE_NAME or not _is_counter(metric):
            return metric
        points: Iterable[Any] = metric.data.data_points
        begun = self._begun
        return walk.with_points(
            metric,
            [
                point if _series(metric.name, point) in begun else replace(point, value=type(point.value)())
                for point in points
            ],
        )


def _is_counter(metric: Metric) -> bool:
    data: Any = metric.data
    return (
        isinstance(data, Sum)
        and data.is_monotonic
        and data.aggregation_temporality == AggregationTemporality.CUMULATIVE
    )


def _series(name: str, point: NumberDataPoint) -> Series:
    return name, tuple(sorted((key, str(value)) for key, value in (point.attributes or {}).items()))


class _ForkGuard:
    """Calls an exporter's methods: not in a forked child, and without raising what they raise."""

    def __init__(self, name: str, kind: str) -> None:
        self._name, self._kind = name, kind
        self._pid = os.getpid()
        self.muted = False

    @property
    def open(self) -> bool:
        return os.getpid() == self._pid and not self.muted

    def call(self, doing: str, method: Callable[[], T], failed: T) -> T:
        """Return what `method` returns, `failed` if it raises; reported once."""
        try:
            return method()
        except Exception as error:
            site = f"exporter {self._name}: {doing} {self._kind}"
            report_once(site, "%s failed: %s: %s", site, type(error).__name__, error)
            return failed


def _dropped(exporter: object, failed: int) -> int:
    """Return how many items an exporter lost: its own count, else the items of failed exports and those refused."""
    own: int | None = getattr(exporter, "dropped", None)
    return failed + int(getattr(exporter, "refused", 0)) if own is None else own


class SafeSpanExporter(SpanExporter):
    """A span exporter that never raises, and does nothing in forked children."""

    def __init__(self, name: str, exporter: SpanExporter) -> None:
        self._guard = _ForkGuard(name, "spans")
        self._exporter = exporter
        # The shutdown of some exporters takes a timeout, that of others does not.
        self._timed = "timeout_millis" in inspect.signature(exporter.shutdown).parameters
        self._redacted = Redaction()
        self._failed = 0

    def mute(self) -> None:
        """Do nothing from now on: what it would export is of no use."""
        self._guard.muted = True

    @property
    def dropped(self) -> int:
        """Number of lost spans."""
        return _dropped(self._exporter, self._failed)

    @property
    def waiting(self) -> int:
        """Number of spans that the exporter keeps because it could not deliver them; 0 if it keeps none."""
        return int(getattr(self._exporter, "waiting", 0))

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if not self._guard.open:
            return SpanExportResult.FAILURE

        def send() -> SpanExportResult:
            return self._exporter.export([fitting(self._redacted(span)) for span in spans])

        result = self._guard.call("exporting", send, SpanExportResult.FAILURE)
        if result is not SpanExportResult.SUCCESS:
            self._failed += len(spans)
        return result

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        if not self._guard.open:
            return True
        return self._guard.call("flushing", lambda: self._exporter.force_flush(timeout_millis), False)

    def shutdown(self, timeout_millis: float = 30_000) -> None:
        if self._guard.open:
            timeout = {"timeout_millis": timeout_millis} if self._timed else {}
            self._guard.call("closing", lambda: self._exporter.shutdown(**timeout), None)


class SafeMetricExporter(DelegatingMetricExporter):
    """A metric exporter that never raises, does nothing in forked children, and whose counters begin at 0.

    Args:
        name, exporter: what is wrapped.
        stopping: tells when what is exported may be the last.
    """

    def __init__(self, name: str, exporter: MetricExporter, stopping: ShutdownSignal) -> None:
        super().__init__(exporter)
        self._guard = _ForkGuard(name, "metrics")
        self._stopping = stopping
        self._first = FirstPoints()
        self._failed = 0
        self._succeeded = -math.inf

    def mute(self) -> None:
        """Do nothing from now on: what it would export is of no use."""
        self._guard.muted = True

    def current(self, since: float) -> bool:
        """Return whether an export that began after `since` (monotonic s) has succeeded, with all that it held back."""
        return self._succeeded >= since and not self.held

    @property
    def dropped(self) -> int:
        """Number of lost data points: those of failed exports, and those that the backend rejected."""
        return _dropped(self._exporter, self._failed)

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: object) -> MetricExportResult:
        if not self._guard.open:
            return MetricExportResult.FAILURE
        begun = time.monotonic()

        def send() -> MetricExportResult:
            data = fitting_metrics(metrics_data)
            if not self._stopping.last:
                data = self._first.at_zero(data)
            result = self._exporter.export(data, timeout_millis=timeout_millis, **kwargs)
            if result is MetricExportResult.SUCCESS:
                self._first.sent(data)
            return result

        result = self._guard.call("exporting", send, MetricExportResult.FAILURE)
        if result is MetricExportResult.SUCCESS:
            self._succeeded = begun
        else:
            self._failed += sum(1 for _ in walk.every_point(metrics_data))
        return result

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        if not self._guard.open:
            return True
        return self._guard.call("flushing", lambda: self._exporter.force_flush(timeout_millis), False)

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: object) -> None:
        if not self._guard.open:
            return
        # The SDK's reader passes the timeout (ms) under the name `timeout`.
        given = kwargs.pop("timeout", timeout_millis)
        timeout = float(given) if isinstance(given, (int, float)) else timeout_millis
        self._guard.call("closing", lambda: self._exporter.shutdown(timeout_millis=timeout, **kwargs), None)
