"""What is taken from the machine: the clock, the disk, threads. ``otel_goodput.testing`` puts others in place.

The clock of spans, journal and ledger is wall time in ns that never goes back within a process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from otel_goodput._settings.options import Options

READINGS: Final = 16
LEAST_SUSPENSION: Final = 50_000_000  # ns; no machine wakes up again so soon
Clock = Callable[[], int]
Leap = Callable[[int], None]


def leaping() -> tuple[Clock, Leap]:
    """Return a clock (ns since the epoch), and what sets it forward by some ns.

    The clock starts at the wall clock's time and advances with the monotonic clock: setting the host's wall clock while
    a job runs must not change durations. It stands while the machine is suspended, so it is behind afterwards.
    """
    monotonic = time.monotonic_ns
    anchor = ahead_of_monotonic(time.time_ns)[1]

    def now() -> int:
        return anchor + monotonic()

    def leap(length: int) -> None:
        nonlocal anchor
        anchor += length

    return now, leap


def ahead_of_monotonic(clock: Callable[[], int]) -> tuple[int, int]:
    """Return how long the quickest of several readings took, and how far `clock` was ahead of the monotonic one, ns.

    On a busy host a thread may be descheduled for many ms between reading the two clocks.
    """
    readings = []
    for _ in range(READINGS):
        before = time.monotonic_ns()
        reading = clock()
        after = time.monotonic_ns()
        readings.append((after - before, reading - (before + after) // 2))
    return min(readings)


class Suspensions:
    """Notices that the machine was suspended: only the clock of its boot time goes on meanwhile.

    Where there is no such clock (it is Linux's), nothing is noticed. Nor is a virtual machine that is paused, or a
    process that is stopped.
    """

    def __init__(self) -> None:
        boot = getattr(time, "CLOCK_BOOTTIME", None)
        self._booted = None if boot is None else lambda: time.clock_gettime_ns(boot)
        self._ahead = 0 if self._booted is None else ahead_of_monotonic(self._booted)[1]

    def noticed(self) -> int:
        """Return for how long the machine was suspended since the last call, ns; 0 if it was not."""
        if self._booted is None:
            return 0
        took, ahead = ahead_of_monotonic(self._booted)
        length = ahead - self._ahead
        if length < LEAST_SUSPENSION + took:
            return 0
        self._ahead = ahead
        return length


@dataclass(frozen=True)
class Host:
    """The machine, as a recorder sees it when it is opened.

    `clock` returns a clock, and what sets it forward by some ns after the machine was suspended, if anything does;
    `options` those in force for a recorder and the ones that it was given. With `in_memory`, recorders write no files,
    leave no threads, and do not ask the network where they run.
    """

    clock: Callable[[], tuple[Clock, Leap | None]] = leaping
    in_memory: bool = False
    options: Callable[[Any, Options], Options] = lambda _, given: given


current = Host()


@contextmanager
def replaced(host: Host) -> Iterator[None]:
    """Recorders opened in this block see `host` instead of the machine."""
    global current
    before, current = current, host
    try:
        yield
    finally:
        current = before
