"""Reports of living runs, each read once for all who ask, and followed only as long as somebody does."""

from __future__ import annotations

import threading
import time
from typing import Final

from otel_goodput.reports.report import Report
from otel_goodput.reports.run import FollowedRun, RecordedRun
from otel_goodput.reports.tail import News

_FRESH_S: Final = 0.5  # a report of this age is good for the next who asks
_KEPT_S: Final = 30.0  # a run that nobody has asked for in this time is no longer followed


class Reading:
    """One run that is followed. May be asked from any thread."""

    def __init__(self, run: RecordedRun) -> None:
        self._followed = FollowedRun(run.folder)
        self._lock = threading.Lock()
        self._report: Report | None = None
        self._read = float("-inf")
        self.asked = time.monotonic()

    def report(self) -> Report:
        """Return the report, at most half a second old. Raises JournalError as :meth:`RecordedRun.report`."""
        with self._lock:
            self.asked = time.monotonic()
            if self._report is None or self.asked - self._read > _FRESH_S:
                self._report = self._followed.report()
                self._read = time.monotonic()
            return self._report

    def news(self) -> News | None:
        """Return what is new up to the latest report since this was asked last; None if that is not known."""
        with self._lock:
            return None if self._report is None else self._followed.news(self._report)


class Readings:
    """The runs that are followed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readings: dict[str, Reading] = {}

    def of(self, run: RecordedRun) -> Reading:
        """Return the reading of a run; it begins with the first question."""
        now = time.monotonic()
        with self._lock:
            self._readings = {name: one for name, one in self._readings.items() if now - one.asked <= _KEPT_S}
            reading = self._readings.setdefault(str(run.folder.path), Reading(run))
            reading.asked = now
            return reading
