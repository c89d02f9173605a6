"""Exporters that pass on to others; one records in the journal what has been exported: a restart exports the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from otel_goodput import semconv
from otel_goodput._accounting.events import NO_STEP
from otel_goodput._journal.account import Account, nothing
from otel_goodput._journal.records import EXPORTED, SUMMED
from otel_goodput._recording.finished import PhaseReadableSpan


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


_ROOTS: Final = frozenset({semconv.ATTEMPT_SPAN, semconv.CONTINUATION_SPAN})
_SUMMARIES: Final = frozenset({semconv.STEPS_SUMMARY_SPAN, semconv.PHASES_SUMMARY_SPAN})


class AcknowledgingExporter(DelegatingSpanExporter):
    """Passes spans to `exporter` and records each success in the journal.

    If the exporter keeps what it could not deliver, `waiting` is the number of these spans; an export succeeds, and the
    shutdown leaves none, once all of them are delivered. Its `number` is the same in every attempt. Spans of incidents
    are not in the journal: `deliver` is called with the id of each and this number.
    """

    def __init__(
        self,
        exporter: SpanExporter,
        account: Account,
        number: int,
        deliver: Callable[[int, int], object] = lambda *_: None,
    ) -> None:
        super().__init__(exporter)
        self._deliver = deliver
        self._incidents: list[int] = []  # ids of spans that are to be recorded once they are delivered
        self._exporting: Callable[[int], object] = nothing
        self._account = account
        self._number = number
        # Of the spans that are to be recorded once they are delivered. Only phases and roots have END records in the
        # journal. The spans of one phase are exported in the order of these records, so the last span id of each is
        # enough. Those of different phases are not: a step may wait for the device and follow the job in a batch.
        self._last: dict[tuple[object, object], int] = {}  # by attempt and phase
        # Up to which time summaries are exported: they have no END record, but are exported in time order.
        self._ends: dict[tuple[int, str], int] = {}  # by attempt and name, ns
        self._note(0)

    def on_exporting(self, callback: Callable[[int], object]) -> None:
        """Have `callback` called before each export with its number of spans."""
        self._exporting = callback

    def _note(self, key: int) -> None:
        self._account.append(EXPORTED, self._number, 0, 0, key, NO_STEP, self._account.clock())

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._exporting(len(spans))
        result = super().export(spans)
        if result is SpanExportResult.SUCCESS:
            self._take(spans)
            self._acknowledge()
        elif self._waiting:
            self._take(spans)
        return result

    def shutdown(self) -> None:
        """Shut down, and record what `exporter` has delivered in its last try."""
        super().shutdown()
        if not self._waiting:
            self._acknowledge()

    @property
    def _waiting(self) -> int:
        return int(getattr(self._exporter, "waiting", 0))

    def _take(self, spans: Sequence[ReadableSpan]) -> None:
        for span in spans:
            attributes = span.attributes or {}
            # The resource of a user's provider says nothing of this attempt; those of earlier ones do.
            attempt = span.resource.attributes.get(semconv.ATTEMPT, self._account.journal.attempt)
            context, ours = span.get_span_context(), isinstance(span, PhaseReadableSpan)
            if context is not None and (semconv.GOODPUT_PHASE in attributes or (ours and span.name in _ROOTS)):
                self._last[attempt, attributes.get(semconv.GOODPUT_PHASE)] = context.span_id
            if context is not None and ours and span.name == semconv.INCIDENT_SPAN:
                self._incidents.append(context.span_id)
            if ours and span.name in _SUMMARIES and isinstance(attempt, int):
                whose = attempt, str(attributes.get(semconv.GOODPUT_PHASES_NAME, ""))
                self._ends[whose] = max(self._ends.get(whose, 0), span.end_time or 0)

    def _acknowledge(self) -> None:
        for key in self._last.values():
            self._note(key)
        for (attempt, name), end in self._ends.items():
            label = self._account.journal.name(name) if name else 0
            self._account.append(EXPORTED, self._number, SUMMED, label, attempt, NO_STEP, end)
        for span in self._incidents:
            self._deliver(span, self._number)
        self._last.clear()
        self._ends.clear()
        self._incidents.clear()
