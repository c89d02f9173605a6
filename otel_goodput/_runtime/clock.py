"""The clock of spans, journal and ledger: wall time in ns that never goes back within a process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

READINGS: Final = 16
LEAST_SUSPENSION: Final = 50_000_000  # ns; no machine wakes up again so soon
Clock = Callable[[], int]


def anchored() -> Clock:
    """Return a clock (ns since the epoch) that starts at the wall clock's time and advances with the monotonic clock.

    Setting the host's wall clock while a job runs must not change durations.
    """
    return leaping()[0]


def leaping() -> tuple[Clock, Callable[[int], None]]:
    """Return a clock as :func:`anchored` does, and what sets it forward by some ns.

    The monotonic clock stands while the machine is suspended, so the clock is behind afterwards.
    """
    monotonic = time.monotonic_ns
    anchor = _anchor()

    def now() -> int:
        return anchor + monotonic()

    def leap(length: int) -> None:
        nonlocal anchor
        anchor += length

    return now, leap


def _anchor() -> int:
    """Return wall time minus monotonic time in ns, from the quickest of several readings.

    On a busy host a thread may be descheduled for many ms between reading the two clocks.
    """
    return _ahead(time.time_ns)[1]


def _ahead(clock: Callable[[], int]) -> tuple[int, int]:
    """Return how long the quickest of several readings took, and how far `clock` was ahead of the monotonic one, ns."""
    readings = []
    for _ in range(READINGS):
        before = time.monotonic_ns()
        reading = clock()
        after = time.monotonic_ns()
        readings.append((after - before, reading - (before + after) // 2))
    return min(readings)


def _booted() -> int:
    """Time since the machine was booted, with what it was suspended, ns."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Suspensions:
    """Notices that the machine was suspended: only the clock of its boot time goes on meanwhile.

    Where there is no such clock (it is Linux's), nothing is noticed. Nor is a virtual machine that is paused, or a
    process that is stopped.
    """

    def __init__(self) -> None:
        self._known = hasattr(time, "CLOCK_BOOTTIME")
        self._ahead = _ahead(_booted)[1] if self._known else 0

    def noticed(self) -> int:
        """Return for how long the machine was suspended since the last call, ns; 0 if it was not."""
        if not self._known:
            return 0
        took, ahead = _ahead(_booted)
        length = ahead - self._ahead
        if length < LEAST_SUSPENSION + took:
            return 0
        self._ahead = ahead
        return length
