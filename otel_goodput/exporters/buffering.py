"""Spans that could not be delivered, kept for a later export."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from otel_goodput.deadline import ShutdownSignal

MOST_KEPT: Final = 4096  # as many as the journal remembers for a restart
PATIENCE: Final = 2  # how often an export may fail while a later one leaves


class BufferingSpanExporter(SpanExporter):
    """Hands spans on, the oldest first; an export goes well when all of those before have left, too.

    The SDK's processor forgets what it has handed over, whatever comes of it. Most exporters do not tell a service that
    cannot be reached from one that does not want these spans: where the oldest export fails again and again while the
    newest leaves, it is the spans. They are kept as they came, for who takes each may not take them together.

    Args:
        exporter: knows by `refused` how many spans the service did not want, if it tells that apart.
        stopping: tells when the process stops: what is kept then is tried once more, whatever was tried before.

    Attributes:
        lost: how many spans there was no room for, or that failed while others left.
    """

    def __init__(self, exporter: SpanExporter, stopping: ShutdownSignal | None = None) -> None:
        self._exporter = exporter
        self._stopping = stopping
        self._last_try_due = False  # a try since the process stops
        self._kept: deque[Sequence[ReadableSpan]] = deque()
        self._count = 0  # spans in it
        self._stuck = False  # the oldest has failed
        self._strikes = 0  # how often it has while the newest left
        self._closed = False
        self._sending = False  # an export is under way
        self.lost = 0

    @property
    def dropped(self) -> int:
        """Spans that are lost; those of exports that failed are not, for they are kept until the end.

        Nor are those that an export which outlasts the end may deliver yet.
        """
        left = self._count if self._closed and not self._sending else 0
        return self.lost + left + int(getattr(self._exporter, "refused", 0))

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._last_try_due = self._stopping is not None and not self._stopping.begun
        if not spans and not self._kept:  # somebody wants to know whether anybody listens
            return self._exporter.export(spans)
        if spans:
            self._kept.append(spans)
            self._count += len(spans)
        while self._count > MOST_KEPT and len(self._kept) > 1:
            self._give_up()
        others_leave = False
        if self._stuck and len(self._kept) > 1:
            # One try an export while nothing can be reached: two would take twice as long, at the end, too.
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
        """The export at that place, the first or the last; it is kept where that fails."""
        spans = self._kept[at]
        self._sending = True
        try:
            well = self._exporter.export(spans) is SpanExportResult.SUCCESS
        except Exception:  # an error of ours would come again with every try
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

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)

    def shutdown(self) -> None:
        """What is still kept is lost. An export may be under way, and may deliver it yet."""
        if self._kept and self._last_try_due and not self._sending:
            # The last spans came right before the process began to stop, and no others have followed.
            self.export(())
        self._closed = True
        self._exporter.shutdown()
