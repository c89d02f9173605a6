"""Spans that could not be delivered, kept for a later export."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Final

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

MOST: Final = 4096  # as many as the journal remembers for a restart
BATCH: Final = 512  # spans in one export, as the SDK's processors have it
PATIENCE: Final = 2  # how often a batch may fail while the one after it leaves


class Backlog(SpanExporter):
    """Hands spans on, the oldest first; an export goes well when all of those before have left, too.

    The SDK's processor forgets what it has handed over, whatever comes of it. Most exporters do not tell a service that
    cannot be reached from one that does not want a batch: where one batch fails again and again while the next one
    leaves, it is the batch.

    Args:
        exporter: knows by `refused` how many spans the service did not want, if it tells that apart.

    Attributes:
        lost: how many spans there was no room for, or that failed while others left.
    """

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._kept: deque[ReadableSpan] = deque(maxlen=MOST)
        self._stuck = False  # the oldest batch has failed
        self._strikes = 0  # how often it has while the one after it left
        self.lost = 0

    @property
    def dropped(self) -> int:
        """Spans that are lost; those of exports that failed are not, for they were kept."""
        return self.lost + int(getattr(self._exporter, "refused", 0))

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.lost += max(len(self._kept) + len(spans) - MOST, 0)
        self._kept.extend(spans)
        others_leave = False
        if self._stuck and len(self._kept) > BATCH:
            # One try an export while nothing can be reached: two would take twice as long, at the end, too.
            if not self._send(BATCH):
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
        """One batch, the first span of which is at that place; it is kept where that fails."""
        batch = list(islice(self._kept, at, at + BATCH))
        try:
            well = self._exporter.export(batch) is SpanExportResult.SUCCESS
        except Exception:  # an error of ours would come again with every try
            self._give_up(at)
            raise
        if well:
            self._forget(at, len(batch))
        return well

    def _give_up(self, at: int) -> None:
        count = min(len(self._kept) - at, BATCH)
        self.lost += count
        self._stuck, self._strikes = False, 0
        self._forget(at, count)

    def _forget(self, at: int, count: int) -> None:
        self._kept.rotate(-at)
        for _ in range(count):
            self._kept.popleft()
        self._kept.rotate(at)

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)

    def shutdown(self) -> None:
        self.lost += len(self._kept)
        self._kept.clear()
        self._exporter.shutdown()
