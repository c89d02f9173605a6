"""The spans of the `gcp` exporter: Google's exporter translates them, and we deliver what it would send."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from otel_goodput.exporters.fitting import fitting
from otel_goodput.exporters.google.connection import Connection
from otel_goodput.exporters.google.delivery import Batches, Delivery, Outcome, Send
from otel_goodput.exporters.google.fitting import settled
from otel_goodput.exporters.google.translation import SpanTranslation

# As long as Google's own client tries. Meanwhile new spans wait in the processor's queue.
PATIENCE_S: Final = 120.0


class CloudTraceExporter(SpanExporter):
    """Exports spans to Cloud Trace.

    Args:
        connection: to Google.
        delivery: of requests to Cloud Trace.
        client: returns the client for Cloud Trace.
        resource: regular expression of the resource attributes that are added to every span.
    """

    def __init__(self, connection: Connection, delivery: Delivery, client: Callable[[], Any], resource: str) -> None:
        self._connection = connection
        self._delivery = delivery
        self._client = client
        self._resource = resource
        self._translation: SpanTranslation | None = None
        self._batches = Batches(delivery, self._request, lambda span: str(span.name))

    @property
    def refused(self) -> int:
        """Number of spans that Cloud Trace rejected."""
        return self._batches.refused

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if self._translation is None:
            # This looks up the project and maybe credentials; if that fails, it is a failed delivery.
            found = self._delivery(lambda _: self._connection.project, PATIENCE_S)
            if found.outcome is not Outcome.DELIVERED:
                return SpanExportResult.FAILURE
            self._translation = SpanTranslation(self._connection.project, self._resource)
        for resource in {id(span.resource): span.resource for span in spans}.values():
            settled(resource)
        well = self._batches.send([fitting(span, floats=False) for span in spans], PATIENCE_S)
        return SpanExportResult.SUCCESS if well else SpanExportResult.FAILURE

    def _request(self, spans: Sequence[ReadableSpan]) -> Send:
        assert self._translation is not None
        request = self._translation(spans)

        def send(seconds: float) -> None:
            self._client().batch_write_spans(request=request, timeout=seconds, retry=None)

        return send

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return True

    def shutdown(self) -> None:
        """Do nothing: no spans are held here."""
