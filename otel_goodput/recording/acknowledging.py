"""Records in the journal what each exporter has exported, so that a restart can export what a dead attempt did not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from otel_goodput.accounting.events import NO_STEP
from otel_goodput.journal.account import Account
from otel_goodput.journal.records import EXPORTED, SUMMED
from otel_goodput.recording.continuations import ContinuationSpan
from otel_goodput.recording.finished import AttemptSpan, PhaseReadableSpan
from otel_goodput.recording.passing import PassingSpanExporter
from otel_goodput.semconv import (
    ATTEMPT,
    GOODPUT_PHASE,
    GOODPUT_PHASES_NAME,
    PHASES_SUMMARY_SPAN,
    STEPS_SUMMARY_SPAN,
)

_SUMMARIES: Final = frozenset({STEPS_SUMMARY_SPAN, PHASES_SUMMARY_SPAN})


class AcknowledgingExporter(PassingSpanExporter):
    """Passes spans to `exporter` and records each success in the journal.

    Args:
        exporter: receives the spans.
        account: the account whose journal is written.
        number: number of the exporter, the same in every attempt.
    """

    def __init__(self, exporter: SpanExporter, account: Account, number: int) -> None:
        super().__init__(exporter)
        self._account = account
        self._number = number
        self._note(0)

    def _note(self, key: int) -> None:
        self._account.append(EXPORTED, self._number, 0, 0, key, NO_STEP, self._account.clock())

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = super().export(spans)
        if result is SpanExportResult.SUCCESS:
            # Only phases and roots have END records in the journal. The spans of one attempt are exported in the order
            # of these records, so the last span id is enough.
            last = {
                span.resource.attributes.get(ATTEMPT): context.span_id
                for span in spans
                if (isinstance(span, (AttemptSpan, ContinuationSpan)) or GOODPUT_PHASE in (span.attributes or {}))
                and (context := span.get_span_context()) is not None
            }
            for key in last.values():
                self._note(key)
            self._note_summaries(spans)
        return result

    def _note_summaries(self, spans: Sequence[ReadableSpan]) -> None:
        """Record up to which time summaries are exported: they have no END record, but are exported in time order."""
        ends: dict[tuple[int, str], int] = {}
        for span in spans:
            attempt, attributes = span.resource.attributes.get(ATTEMPT), span.attributes or {}
            if span.name in _SUMMARIES and isinstance(span, PhaseReadableSpan) and isinstance(attempt, int):
                whose = attempt, str(attributes.get(GOODPUT_PHASES_NAME, ""))
                ends[whose] = max(ends.get(whose, 0), span.end_time or 0)
        for (attempt, name), end in ends.items():
            label = self._account.journal.name(name) if name else 0
            self._account.append(EXPORTED, self._number, SUMMED, label, attempt, NO_STEP, end)
