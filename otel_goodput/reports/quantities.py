"""Format durations, shares, times and counts for people."""

from __future__ import annotations

from datetime import datetime, timezone


def format_duration(seconds: float) -> str:
    """Format a duration in seconds: ``850 ms``, ``12.3 s``, ``4 min 05 s``, ``3 h 07 min``, ``2 d 04 h``."""
    if seconds < 0:
        return f"-{format_duration(-seconds)}"
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"
    if seconds < 86_400:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02d} min"
    return f"{int(seconds // 86_400)} d {int(seconds % 86_400 // 3600):02d} h"


def percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.2f} %"


def format_moment(seconds: float) -> str:
    """Format a time in seconds since the epoch: ``2026-11-22 11:25:00 UTC``."""
    return f"{datetime.fromtimestamp(seconds, tz=timezone.utc):%Y-%m-%d %H:%M:%S} UTC"


def plural(count: int, word: str) -> str:
    """Return the count and the word, in the plural if needed: ``1 attempt``, ``2 attempts``."""
    return f"{count} {word}{'s' if count != 1 else ''}"
