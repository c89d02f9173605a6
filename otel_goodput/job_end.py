"""Exports what is recorded when a job has ended: a launcher may end the process without its exit handlers."""

from __future__ import annotations

import threading
from collections.abc import Callable

from opentelemetry.trace import Span

from otel_goodput.guard import contain, started


class JobEndExport:
    """Exports once after each job, in a thread of its own.

    Args:
        flush: exports everything recorded so far.
    """

    def __init__(self, flush: Callable[[], object]) -> None:
        self._flush = flush
        self._ended: Span | None = None
        self._exported: Span | None = None

    def look(self, job: Span | None) -> None:
        """Export if `job`, the latest, was over at the look before this one too: one that exits then exports anyway."""
        if job is None or job.is_recording() or job is self._exported:
            return
        if job is not self._ended:
            self._ended = job
            return
        self._exported = job
        thread = threading.Thread(target=self._export, name="otel-goodput-job-end", daemon=True)
        started(thread, "the job's last data is exported when the program ends")

    def _export(self) -> None:
        try:
            self._flush()
        except Exception as error:
            contain("export at the end of a job", error)
