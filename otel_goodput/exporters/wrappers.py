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
import operator
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Metric,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    Sum,
)
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import Link

from otel_goodput._recording.passing import PassingMetricExporter
from otel_goodput._runtime.deadline import ShutdownSignal
from otel_goodput._runtime.guard import report_once
from otel_goodput._text.redact import secrets, without, without_secrets
from otel_goodput.exporters.fitting import counting, fitting, fitting_metrics, replaced
from otel_goodput.semconv import SCOPE_NAME


class Redaction:
    """Returns spans without what looks like a secret, is called one, or is one of this process's environment."""

    def __init__(self) -> None:
        self._hidden = secrets(os.environ)

    def __call__(self, span: ReadableSpan) -> ReadableSpan:
        scope = span.instrumentation_scope
        if scope is None or scope.name != SCOPE_NAME:
            return span
        given, description = span.attributes, span.status.description
        name, attributes = without(self._hidden, span.name), self._attributes(given)
        said = None if description is None else without(self._hidden, description)
        events, links = [self._event(event) for event in span.events], [self._link(link) for link in span.links]
        same = name == span.name and attributes is given and said == description
        if same and all(map(operator.is_, (*events, *links), (*span.events, *span.links))):
            return span
        return replaced(span, name, attributes, events, said, links=links)

    def _attributes(self, given: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        changed = {}
        for name, value in (given or {}).items():
            shown = without_secrets(name, value, self._hidden)
            if shown != (list(value) if isinstance(value, tuple) else value):
                changed[name] = shown
        return {**given, **changed} if given and changed else given

    def _link(self, link: Link) -> Link:
        attributes = self._attributes(link.attributes)
        return (
            link if attributes is link.attributes else Link(link.context, counting(attributes, link.dropped_attributes))
        )

    def _event(self, event: Event) -> Event:
        name, attributes = without(self._hidden, event.name), self._attributes(event.attributes)
        if name == event.name and attributes is event.attributes:
            return event
        return Event(name, counting(attributes, event.dropped_attributes), event.timestamp)


Series = tuple[str, tuple[tuple[str, str], ...]]  # metric and attributes


class FirstPoints:
    """Which series of this package's counters an exporter has sent a point of."""

    def __init__(self) -> None:
        self._begun: set[Series] = set()

    def at_zero(self, data: MetricsData) -> MetricsData:
        """Return `data` with 0 in the first points of counters that begin."""
        return replace(
            data,
            resource_metrics=[
                replace(
                    resource,
                    scope_metrics=[
                        replace(scope, metrics=[self._from_zero(metric) for metric in scope.metrics])
                        if scope.scope.name == SCOPE_NAME
                        else scope
                        for scope in resource.scope_metrics
                    ],
                )
                for resource in data.resource_metrics
            ],
        )

    def sent(self, data: MetricsData) -> None:
        """Take note that the points of `data` have been sent."""
        for resource in data.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    if (counted := _counter(metric)) is not None:
                        self._begun.update(_series(metric.name, point) for point in counted.data_points)

    def _from_zero(self, metric: Metric) -> Metric:
        counted = _counter(metric)
        if counted is None:
            return metric
        points = list(self._points(metric.name, counted.data_points))
        return replace(metric, data=replace(counted, data_points=points))

    def _points(self, name: str, points: Iterable[NumberDataPoint]) -> Iterator[NumberDataPoint]:
        for point in points:
            begun = _series(name, point) in self._begun
            yield point if begun else replace(point, value=type(point.value)())


def _counter(metric: Metric) -> Sum | None:
    """Return the points of a cumulative counter, None if `metric` is none."""
    data: Any = metric.data
    if (
        isinstance(data, Sum)
        and data.is_monotonic
        and data.aggregation_temporality == AggregationTemporality.CUMULATIVE
    ):
        return data
    return None


def _series(name: str, point: NumberDataPoint) -> Series:
    return name, tuple(sorted((key, str(value)) for key, value in (point.attributes or {}).items()))


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
