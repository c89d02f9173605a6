"""One clock for spans, journal and ledger: wall time in ns that never steps back within a process."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], int]


def anchored() -> Clock:
    """A clock that starts at the wall clock's time and advances with the monotonic one.

    A host's wall clock may be set back or forward while a job runs; durations must not notice.
    """
    monotonic = time.monotonic_ns
    anchor = time.time_ns() - monotonic()

    def now() -> int:
        return anchor + monotonic()

    return now
