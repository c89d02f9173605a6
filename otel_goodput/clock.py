"""One clock for spans, journal and ledger: wall time in ns that never steps back within a process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

READINGS: Final = 16
Clock = Callable[[], int]


def anchored() -> Clock:
    """A clock that starts at the wall clock's time and advances with the monotonic one.

    A host's wall clock may be set back or forward while a job runs; durations must not notice.
    """
    monotonic = time.monotonic_ns
    anchor = _anchor()

    def now() -> int:
        return anchor + monotonic()

    return now


def _anchor() -> int:
    """The wall clock's time less the monotonic one's, ns: of several readings that between which least time passed.

    On a busy host whoever reads two clocks may be put aside between them, for many ms.
    """
    readings = []
    for _ in range(READINGS):
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        readings.append((after - before, wall - (before + after) // 2))
    return min(readings)[1]
