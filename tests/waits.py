"""The one way in which tests wait: for a condition, until a deadline that is only there for what is broken."""

from __future__ import annotations

import time
from collections.abc import Callable

# Much longer than anything takes on a busy machine: whoever reaches it has failed.
PATIENCE_S = 60.0


def until(
    condition: Callable[[], object],
    seconds: float = PATIENCE_S,
    lacking: Callable[[], object] = lambda: "the awaited",
    pause: float = 0.005,
) -> None:
    """Wait for the condition, asked after each `pause` (s); AssertionError with what is `lacking` at the deadline."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it never came: {lacking()}"
        time.sleep(pause)
