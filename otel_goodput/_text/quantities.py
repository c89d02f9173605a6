"""Format durations, shares, times and counts for people."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime, timezone


def format_duration(seconds: float) -> str:
    """Format a duration in seconds: ``850 ms``, ``12.3 s``, ``4 min 05 s``, ``3 h 07 min``, ``2 d 04 h``."""
    if seconds < 0:
        return f"-{format_duration(-seconds)}"
    if seconds < 0.9995:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{max(60, int(seconds)) // 60} min {int(max(60, seconds)) % 60:02d} s"
    if seconds < 86_400:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02d} min"
    return f"{int(seconds // 86_400)} d {int(seconds % 86_400 // 3600):02d} h"


def short_duration(seconds: float) -> str:
    """Format seconds in two or three digits, for a narrow line: ``310 ms``, ``42 s``, ``12.5 min``, ``3.2 h``."""
    if seconds < 0.0995:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 119.5:
        return f"{seconds:.0f} s"
    if seconds < 5970:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"


def percent(part: float, whole: float) -> str:
    """Format the share of `part` in `whole`: ``87.34 %``."""
    return f"{100 * part / whole:.2f} %"


def format_moment(seconds: float) -> str:
    """Format a time in seconds since the epoch: ``2026-11-22 11:25:00 UTC``."""
    return f"{datetime.fromtimestamp(seconds, tz=timezone.utc):%Y-%m-%d %H:%M:%S} UTC"


def plural(count: int, word: str) -> str:
    """Return the count and the word, in the plural if needed: ``1 attempt``, ``2 attempts``."""
    return f"{count} {word}{'s' if count != 1 else ''}"


def aligned(rows: Sequence[Sequence[str]], right: Collection[int]) -> Iterator[str]:
    """Yield rows of cells as lines with columns two spaces apart; those in `right`, by index, are aligned right."""
    widths = [max(map(width, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        gaps = [" " * (most - width(cell)) for cell, most in zip(row, widths, strict=True)]
        cells = (gaps[at] + cell if at in right else cell + gaps[at] for at, cell in enumerate(row))
        yield "  ".join(cells).rstrip()


def width(text: str) -> int:
    """Return the number of cells that `text` takes on a terminal."""
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text.replace("\r", "")
    )
