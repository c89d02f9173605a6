"""Notes in the journal how far an outlet has got, so that a restart knows which spans a dead attempt still owes."""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from otel_goodput.accounting.events import NO_STEP
from otel_goodput.journal.account import Account
from otel_goodput.journal.records import EXPORTED
from otel_goodput.semconv import ATTEMPT, GOODPUT_PHASE


class ReceiptExporter(SpanExporter):
    """Hands spans on to `exporter` and journals each success.

    Args:
        exporter: the outlet's own.
        account: whose journal.
        outlet: the outlet's number.
    """

    def __init__(self, exporter: SpanExporter, account: Account, outlet: int) -> None:
        self._exporter = exporter
        self._account = account
        self._outlet = outlet
        self._note(0)

    def _note(self, key: int) -> None:
        self._account.append(EXPORTED, self._outlet, 0, 0, key, NO_STEP, self._account.clock())

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        if result is SpanExportResult.SUCCESS:
            # Only phases have their ends in the journal; an attempt's are exported in the order in which they ended.
            last = {
                span.resource.attributes.get(ATTEMPT): context.span_id
                for span in spans
                if GOODPUT_PHASE in (span.attributes or {}) and (context := span.get_span_context()) is not None
            }
            for key in last.values():
                self._note(key)
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)
