"""The one way in which tests wait: for a condition, until a deadline that is only there for what is broken."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable

# Much longer than anything takes on a busy machine: whoever reaches it has failed.
PATIENCE_S = 120.0
# A pause is at most this share of the time waited so far, and no longer than so, unless a longer one is asked for.
SHARE, LONGEST_PAUSE_S = 0.05, 0.05


def until(
    condition: Callable[[], object],
    seconds: float = PATIENCE_S,
    lacking: Callable[[], object] = lambda: "the awaited",
    pause: float = 0.005,
) -> None:
    """Wait for the condition; AssertionError with what is `lacking` at the deadline.

    It is asked after each `pause` (s), and less often as time goes by: asking takes time that the awaited may need.
    """
    began = time.monotonic()
    while not condition():
        waited = time.monotonic() - began
        assert waited < seconds, f"it never came: {lacking()}"
        time.sleep(max(pause, min(waited * SHARE, LONGEST_PAUSE_S)))


class Lines:
    """What a process writes to a pipe, read without ever waiting longer than until a deadline.

    Args:
        descriptor: the end of the pipe that is read.
        lacking: what is shown where it says nothing more, such as its stderr.
    """

    def __init__(self, descriptor: int, lacking: Callable[[], object] = lambda: "") -> None:
        self._descriptor = descriptor
        self._lacking = lacking
        self._received = b""
        self.ended = False

    def next(self, deadline: float) -> str | None:
        """The next line, without its newline; None where the pipe was closed. `deadline` by time.monotonic()."""
        while b"\n" not in self._received and not self.ended:
            readable, _, _ = select.select([self._descriptor], [], [], max(0.0, deadline - time.monotonic()))
            assert readable, f"it says nothing more: {self._lacking()}"
            chunk = os.read(self._descriptor, 1 << 16)
            self.ended = not chunk
            self._received += chunk
        if not self._received:
            return None
        line, _, self._received = self._received.partition(b"\n")
        return line.decode()

    def until(self, wanted: Callable[[str], object], what: object, seconds: float = PATIENCE_S) -> str:
        """The first line that is wanted, which `what` describes; AssertionError where it does not come."""
        deadline = time.monotonic() + seconds
        while (line := self.next(deadline)) is not None:
            if wanted(line):
                return line
        raise AssertionError(f"it ended before it said {what!r}: {self._lacking()}")
