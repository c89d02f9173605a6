"""The clock of spans, journal and ledger: wall time in ns that never goes back within a process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

READINGS: Final = 16
Clock = Callable[[], int]


def anchored() -> Clock:
    """Return a clock (ns since the epoch) that starts at the wall clock's time and advances with the monotonic clock.

    Setting the host's wall clock while a job runs must not change durations.
    """
    monotonic = time.monotonic_ns
    anchor = _anchor()

    def now() -> int:
        return anchor + monotonic()

    return now


def _anchor() -> int:
    """Return wall time minus monotonic time in ns, from the quickest of several readings.

    On a busy host a thread may be descheduled for many ms between reading the two clocks.
    """
    readings = []
    for _ in range(READINGS):
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        readings.append((after - before, wall - (before + after) // 2))
    return min(readings)[1]
