"""Attempts that were alive at once: the launcher took a process for dead that went on, on a machine out of reach.

Its records from the begin of the next attempt on count for nothing, so that no second is counted twice. The next
attempt's first record tells up to when it had seen the journal of the one before. What is later than that, and than
its own begin, was written by a process that was alive beside it; a clock that is merely fast wrote it before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final, TypeVar

from otel_goodput._accounting import Event
from otel_goodput._accounting import events as ev
from otel_goodput._journal import records
from otel_goodput._journal.notes import Note
from otel_goodput._journal.records import Record
from otel_goodput._journal.segment_file import SegmentFile
from otel_goodput._text.durations import NS
from otel_goodput._text.quantities import format_duration

OVERLAP: Final = "attempts at once"  # kind of the note
SHORTEST: Final = NS  # a process that is ending may still write for a moment

T = TypeVar("T", Record, Event)


class Overlaps:
    """Up to when each attempt of a process counts, and what was recorded after that.

    Args:
        segments: all segments of the process, ordered by attempt and number.
    """

    def __init__(self, segments: Sequence[SegmentFile]) -> None:
        self._firsts = {one.attempt: one for one in reversed(segments) if not one.number}
        self._next = dict(pairwise(sorted({one.attempt for one in segments})))
        self._until: dict[int, int | None] = {}
        self._after: dict[int, int] = {}

    def until(self, attempt: int) -> int | None:
        """Return the time up to which an attempt counts, ns; None if no next one is known to have begun."""
        if attempt not in self._until:
            self._until[attempt] = None
            segment = self._firsts.get(self._next.get(attempt, -1))
            first = None if segment is None else segment.first()
            if first is not None and first.kind == ev.ATTEMPT:
                self._until[attempt] = counted_until(first)
        return self._until[attempt]

    def ends(self, attempt: int, sign: int) -> bool:
        """Whether a sign of life of an attempt (ns) is from after the next attempt had begun."""
        until = self.until(attempt)
        return until is not None and sign > until

    def kept(self, attempt: int, entries: list[T]) -> list[T]:
        """Return the records or events of an attempt that count; remember how long the others went on."""
        until = self.until(attempt)
        last = next((one.time for one in reversed(entries) if one.kind < records.NAME), 0)
        if until is None or last <= until:
            return entries
        late = [one.time for one in entries if one.time > until and one.kind < records.NAME]
        self._after[attempt] = max(self._after.get(attempt, 0), max(late) - until)
        return [one for one in entries if one.time <= until or one.kind >= records.NAME]

    def note(self) -> Note | None:
        """Return the note on attempts that were alive at once; None if there were none."""
        return note(self._after)


def counted_until(first: Record | Event) -> int | None:
    """Return up to when the attempt before counts, by the ATTEMPT of the next one, ns; None if that does not tell."""
    return max(first.key, first.time) if first.key > 0 else None


def note(after: Mapping[int, int]) -> Note | None:
    """Return the note on attempts (counted from 0) that went on for so many ns beside the next; None if none did."""
    long = {attempt: duration for attempt, duration in after.items() if duration >= SHORTEST}
    if not long:
        return None
    attempts = ", ".join(
        f"attempts {attempt + 1} and {attempt + 2} for {format_duration(duration / NS)}"
        for attempt, duration in sorted(long.items())
    )
    text = (
        f"Two attempts ran at the same time: {attempts}. The earlier one was taken for dead but kept running. What it "
        "recorded during that time is not counted. Make sure that it has ended before you start the job again."
    )
    return Note(OVERLAP, text)
