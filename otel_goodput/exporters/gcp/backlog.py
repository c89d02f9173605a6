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


class Backlog(SpanExporter):
    """Hands spans on in the order in which they came; an export goes well when all of those before have left, too.

    The SDK's processor forgets what it has handed over, whatever comes of it.

    Args:
        exporter: knows by `refused` how many spans the service did not want.

    Attributes:
        lost: how many spans there was no room for.
    """

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._kept: deque[ReadableSpan] = deque(maxlen=MOST)
        self.lost = 0

    @property
    def dropped(self) -> int:
        """Spans that are lost; those of exports that failed are not, for they were kept."""
        return self.lost + int(getattr(self._exporter, "refused", 0))

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.lost += max(len(self._kept) + len(spans) - MOST, 0)
        self._kept.extend(spans)
        while self._kept:
            batch = list(islice(self._kept, BATCH))
            try:
                result = self._exporter.export(batch)
            except Exception:  # an error of ours would come again with every try
                self.lost += len(batch)
                self._forget(len(batch))
                raise
            if result is not SpanExportResult.SUCCESS:
                return result
            self._forget(len(batch))
        return SpanExportResult.SUCCESS

    def _forget(self, count: int) -> None:
        for _ in range(count):
            self._kept.popleft()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)

    def shutdown(self) -> None:
        self._exporter.shutdown()
