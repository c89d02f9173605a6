"""Exporters around others, ours or not: no export after a fork, no exceptions, odd values or secrets, losses counted.

The SDK's processors and readers start their threads again in a forked child (such as a data loader's worker), where
they would export the parent's totals a second time, over connections that belong to the parent.
"""

from __future__ import annotations

import inspect
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

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
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from otel_goodput._recording.delegating import DelegatingMetricExporter, DelegatingSpanExporter
from otel_goodput._runtime.deadline import ShutdownSignal
from otel_goodput._runtime.guard import report_once
from otel_goodput._text.durations import NS
from otel_goodput._text.redact import secrets, without, without_secrets
from otel_goodput.exporters.fitting import (
    Attributes,
    converted,
    converted_metrics,
    every_point,
    fitting,
    fitting_metrics,
    own_metrics,
    with_points,
)
from otel_goodput.semconv import SCOPE_NAME, TELEMETRY_SPACED

T = TypeVar("T")


class _Safe:
    """What both wrappers share: they do nothing in a forked child, and raise nothing."""

    def __init__(self, name: str, kind: str, exporter: Any) -> None:
        self._name, self._kind = name, kind
        self._exporter = exporter
        # The shutdown of some span exporters takes a timeout, that of others does not.
        self._timed = "timeout_millis" in inspect.signature(exporter.shutdown).parameters
        self._pid = os.getpid()
        self._muted = False
        self._failed = 0

    def mute(self) -> None:
        """Do nothing from now on: what it would export is of no use."""
        self._muted = True

    @property
    def dropped(self) -> int:
        """Number of lost spans or points: the exporter's count, else those of failed exports, and those refused."""
        own: int | None = getattr(self._exporter, "dropped", None)
        return self._failed + int(getattr(self._exporter, "refused", 0)) if own is None else own

    @property
    def _open(self) -> bool:
        return os.getpid() == self._pid and not self._muted

    def _call(self, doing: str, method: Callable[[], T], failed: T) -> T:
        """Return what `method` returns, `failed` if it raises; reported once."""
        try:
            return method()
        except Exception as error:
            site = f"exporter {self._name}: {doing} {self._kind}"
            report_once(site, "%s failed: %s: %s", site, type(error).__name__, error)
            return failed

    def force_flush(self, timeout_millis: float = 30_000) -> bool:
        return not self._open or self._call("flushing", lambda: self._exporter.force_flush(timeout_millis), False)

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: object) -> None:
        if self._open:
            # The SDK's metric reader passes the timeout (ms) under the name `timeout`.
            given = kwargs.pop("timeout", timeout_millis)
            if self._timed:
                kwargs["timeout_millis"] = float(given) if isinstance(given, (int, float)) else timeout_millis
            self._call("closing", lambda: self._exporter.shutdown(**kwargs), None)


class SafeSpanExporter(_Safe, SpanExporter):
    """A span exporter that never raises, and does nothing in forked children.

    From the spans of phases it hides what looks like a secret, is called one, or is one of this process's environment.
    """

    def __init__(self, name: str, exporter: SpanExporter) -> None:
        super().__init__(name, "spans", exporter)
        self._hidden = secrets(os.environ)
        self._text = partial(without, self._hidden)

    @property
    def waiting(self) -> int:
        """Number of spans that the exporter keeps because it could not deliver them; 0 if it keeps none."""
        return int(getattr(self._exporter, "waiting", 0))

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if not self._open:
            return SpanExportResult.FAILURE

        def send() -> Any:
            return self._exporter.export([fitting(self._redacted(span)) for span in spans])

        result = self._call("exporting", send, SpanExportResult.FAILURE)
        if result is not SpanExportResult.SUCCESS:
            self._failed += len(spans)
        return result

    def _redacted(self, span: ReadableSpan) -> ReadableSpan:
        scope = span.instrumentation_scope
        if scope is None or scope.name != SCOPE_NAME:
            return span  # of the user's own instrumentation
        return converted(span, self._text, self._shown)

    def _shown(self, given: Attributes) -> Attributes:
        changed = {}
        for name, value in (given or {}).items():
            shown = without_secrets(name, value, self._hidden)
            if shown != (list(value) if isinstance(value, tuple) else value):
                changed[name] = shown
        return {**given, **changed} if given and changed else given


Series = tuple[str, tuple[tuple[str, str], ...]]  # metric and attributes


class SafeMetricExporter(_Safe, DelegatingMetricExporter):
    """A metric exporter that never raises, does nothing in forked children, and whose counters begin at 0.

    The SDK dates the beginning of an asynchronous counter when it is first observed, so no rate would count what was
    counted before then. So the first point of a series is 0, as the count is at that time, and the next one has all;
    where there may be no next point, because the process stops, the first one has all.
    """

    def __init__(self, name: str, exporter: MetricExporter, stopping: ShutdownSignal) -> None:
        DelegatingMetricExporter.__init__(self, exporter)
        _Safe.__init__(self, name, "metrics", exporter)
        self._timed = True  # the SDK gives it to all of them
        self._stopping = stopping
        self._begun: set[Series] = set()  # counters of which a point has been sent
        self._succeeded = -math.inf

    def current(self, since: float) -> bool:
        """Return whether an export that began after `since` (monotonic s) has succeeded, with all that it held back."""
        return self._succeeded >= since and not self.held

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: object) -> MetricExportResult:
        if not self._open:
            return MetricExportResult.FAILURE
        begun = time.monotonic()

        def send() -> MetricExportResult:
            data = fitting_metrics(metrics_data)
            if not self._stopping.last:
                data = converted_metrics(data, self._from_zero)
            result: MetricExportResult = self._exporter.export(data, timeout_millis=timeout_millis, **kwargs)
            if result is MetricExportResult.SUCCESS:
                counters = ((metric.name, point) for metric in own_metrics(data) for point in _counts(metric))
                self._begun.update(_series(*each) for each in counters)
            return result

        result = self._call("exporting", send, MetricExportResult.FAILURE)
        if result is MetricExportResult.SUCCESS:
            self._succeeded = begun
        else:
            self._failed += sum(1 for _ in every_point(metrics_data))
        return result

    def _from_zero(self, scope: ScopeMetrics, metric: Metric) -> Metric:
        """Return the metric with 0 in the first points of counters that begin."""
        points = _counts(metric) if scope.scope.name == SCOPE_NAME else ()
        first = [
            point if _series(metric.name, point) in self._begun else replace(point, value=type(point.value)())
            for point in points
        ]
        return with_points(metric, first) if first else metric


def _counts(metric: Metric) -> Sequence[Any]:
    """Return the points of a counter; none of anything else."""
    data: Any = metric.data
    counter = isinstance(data, Sum) and data.is_monotonic
    cumulative = counter and data.aggregation_temporality == AggregationTemporality.CUMULATIVE
    return data.data_points if cumulative else ()


def _series(name: str, point: NumberDataPoint) -> Series:
    return name, tuple(sorted((key, str(value)) for key, value in (point.attributes or {}).items()))


# --- what could not be delivered, kept for a later export -------------------------------------------------------------

MOST_KEPT: Final = 4096  # spans; as many as the journal remembers for a restart
PATIENCE: Final = 2  # failures of the oldest batch that are tolerated while newer ones are delivered


class BufferingSpanExporter(DelegatingSpanExporter):
    """Passes spans on, the oldest batch first. An export succeeds if all earlier batches have been delivered as well.

    The SDK's processor drops spans once it has handed them over. Most exporters do not distinguish a service that
    cannot be reached from one that rejects the spans: if the oldest batch fails repeatedly while the newest is
    delivered, it is dropped. Batches are not merged, because a service that accepts each of them may reject them
    together. Once the process stops, kept spans are tried once more, however often they failed. `waiting` counts the
    spans that are kept, and `lost` those dropped.
    """

    def __init__(self, exporter: SpanExporter, stopping: ShutdownSignal | None = None) -> None:
        super().__init__(exporter)
        self._stopping = stopping
        self._last_try_due = False  # no export has begun since the process began to stop
        self._kept: deque[Sequence[ReadableSpan]] = deque()
        self.waiting = 0
        self._stuck = False  # the oldest batch has failed
        self._strikes = 0  # how often it failed while the newest was delivered
        self._closed = False
        self._sending = False  # an export is under way
        self.lost = 0

    @property
    def dropped(self) -> int:
        """Number of lost spans. Spans of failed exports do not count before the shutdown: they are kept until then.

        Nor do they count after it while an export is still under way, which may deliver them.
        """
        left = self.waiting if self._closed and not self._sending else 0
        return self.lost + left + self.refused

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._last_try_due = self._stopping is not None and not self._stopping.begun
        if not spans and not self._kept:  # the caller checks whether the service can be reached
            return self._exporter.export(spans)
        if spans:
            self._kept.append(spans)
            self.waiting += len(spans)
        while self.waiting > MOST_KEPT and len(self._kept) > 1:
            self._give_up(0)
        others_leave = False
        if self._stuck and len(self._kept) > 1:
            # While the service cannot be reached, try once per export: two tries would take twice as long, at exit too.
            if not self._send(-1):
                return SpanExportResult.FAILURE
            others_leave = True
        while self._kept:
            if self._send(0):
                self._stuck, self._strikes = False, 0
            elif others_leave and self._strikes == PATIENCE:
                self._give_up(0)
            else:
                self._stuck = True
                self._strikes += others_leave
                return SpanExportResult.FAILURE
        return SpanExportResult.SUCCESS

    def _send(self, at: int) -> bool:
        """Export the batch at index `at`, 0 or -1, and keep it if that fails. Return whether it was delivered."""
        self._sending = True
        try:
            well = self._exporter.export(self._kept[at]) is SpanExportResult.SUCCESS
        except Exception:  # a bug, which every further try would meet again
            self._give_up(at)
            raise
        finally:
            self._sending = False
        if well:
            self._forget(at)
        return well

    def _give_up(self, at: int) -> None:
        self.lost += len(self._kept[at])
        if at == 0:
            self._stuck, self._strikes = False, 0
        self._forget(at)

    def _forget(self, at: int) -> None:
        self.waiting -= len(self._kept[at])
        del self._kept[at]

    def shutdown(self) -> None:
        """Shut down. What is still kept is lost, unless an export that is under way delivers it."""
        if self._kept and self._last_try_due and not self._sending:
            # The last export was before the process began to stop, so the last try is still to be made.
            self.export(())
        self._closed = True
        self._exporter.shutdown()


# --- last values that Cloud Monitoring accepts ------------------------------------------------------------------------

SPACING: Final = 5 * NS


class SpacedExporter(DelegatingMetricExporter):
    """A metric exporter that dates the last points at least 5 s after the previous ones, and marks all metrics.

    Cloud Monitoring rejects, for good, a point less than five seconds after the previous one of its series
    (https://cloud.google.com/monitoring/quotas). It may be behind any OTLP endpoint, and the exports at the end of a
    job and at exit can come at any time. So the last values get the earliest time at which they may be written. The
    mark is for collectors, which gather the metrics of other senders over an interval, but must not hold ours back.
    """

    def __init__(self, exporter: MetricExporter, stopping: ShutdownSignal) -> None:
        super().__init__(exporter)
        self._stopping = stopping
        self._newest = 0  # time of the newest point so far, unix ns

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: object) -> MetricExportResult:
        now = max((point.time_unix_nano for point in every_point(metrics_data)), default=0)
        ahead = self._stopping.last or now <= self._newest
        earliest = self._newest + SPACING if self._newest and ahead else 0  # unix ns

        def dated(_: ScopeMetrics, metric: Metric) -> Metric:
            points: Iterable[Any] = metric.data.data_points
            later = [replace(point, time_unix_nano=max(point.time_unix_nano, earliest)) for point in points]
            return with_points(metric, later)

        def mark(resource: Resource) -> Resource:
            return Resource({**resource.attributes, TELEMETRY_SPACED: True}, resource.schema_url)

        marked = converted_metrics(metrics_data, dated, mark)
        self._newest = max((point.time_unix_nano for point in every_point(marked)), default=self._newest)
        return self._exporter.export(marked, timeout_millis=timeout_millis, **kwargs)
