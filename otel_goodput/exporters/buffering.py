"""Keep spans that could not be delivered for a later export."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from otel_goodput._recording.delegating import DelegatingSpanExporter
from otel_goodput._runtime.deadline import ShutdownSignal

MOST_KEPT: Final = 4096  # spans; as many as the journal remembers for a restart
PATIENCE: Final = 2  # failures of the oldest batch that are tolerated while newer ones are delivered


class BufferingSpanExporter(DelegatingSpanExporter):
    """Passes spans on, the oldest batch first. An export succeeds if all earlier batches have been delivered as well.

    The SDK's processor drops spans once it has handed them over, even if their export fails. Most exporters do not
    distinguish a service that cannot be reached from one that rejects the spans. If the oldest batch fails repeatedly
    while the newest is delivered, the service rejects it, and it is dropped. Batches are not merged, because a service
    that accepts each of them may reject them together.

    Args:
        exporter: exports each batch; its attribute `refused`, if any, is the number of spans that the service rejected.
        stopping: tells when the process stops. Kept spans are then tried once more, however often they failed.

    Attributes:
        lost: number of spans dropped: no room, an exception, or failures while newer ones were delivered.
    """

    def __init__(self, exporter: SpanExporter, stopping: ShutdownSignal | None = None) -> None:
        super().__init__(exporter)
        self._stopping = stopping
        self._last_try_due = False  # no export has begun since the process began to stop
        self._kept: deque[Sequence[ReadableSpan]] = deque()
        self._count = 0  # spans in `_kept`
        self._stuck = False  # the oldest batch has failed
        self._strikes = 0  # how often it failed while the newest was delivered
        self._closed = False
        self._sending = False  # an export is under way
        self.lost = 0

    @property
    def waiting(self) -> int:
        """Number of spans that are kept."""
        return self._count

    @property
    def dropped(self) -> int:
        """Number of lost spans. Spans of failed exports do not count before the shutdown: they are kept until then.

        Nor do they count after it while an export is still under way, which may deliver them.
        """
        left = self._count if self._closed and not self._sending else 0
        return self.lost + left + int(getattr(self._exporter, "refused", 0))

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._last_try_due = self._stopping is not None and not self._stopping.begun
        if not spans and not self._kept:  # the caller checks whether the service can be reached
            return self._exporter.export(spans)
        if spans:
            self._kept.append(spans)
            self._count += len(spans)
        while self._count > MOST_KEPT and len(self._kept) > 1:
            self._give_up()
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
                self._give_up()
            else:
                self._stuck = True
                self._strikes += others_leave
                return SpanExportResult.FAILURE
        return SpanExportResult.SUCCESS

    def _send(self, at: int) -> bool:
        """Export the batch at index `at`, 0 or -1, and keep it if that fails. Return whether it was delivered."""
        spans = self._kept[at]
        self._sending = True
        try:
            well = self._exporter.export(spans) is SpanExportResult.SUCCESS
        except Exception:  # a bug, which every further try would meet again
            self.lost += len(spans)
            self._forget(at)
            raise
        finally:
            self._sending = False
        if well:
            self._forget(at)
        return well

    def _give_up(self) -> None:
        self.lost += len(self._kept[0])
        self._stuck, self._strikes = False, 0
        self._forget(0)

    def _forget(self, at: int) -> None:
        self._count -= len(self._kept[at])
        del self._kept[at]

    def shutdown(self) -> None:
        """Shut down. What is still kept is lost, unless an export that is under way delivers it."""
        if self._kept and self._last_try_due and not self._sending:
            # The last export was before the process began to stop, so the last try is still to be made.
            self.export(())
        self._closed = True
        self._exporter.shutdown()
