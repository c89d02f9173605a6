"""The steps of a run that took longest, one by one."""

from __future__ import annotations

import heapq
import statistics
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from otel_goodput.journal.rundir import RunDirectory
from otel_goodput.reports import records
from otel_goodput.reports.records import FATES, StepRecord
from otel_goodput.text.durations import NS
from otel_goodput.text.quantities import format_duration, format_moment, plural

_KEPT: Final = FATES[0]
_SKIPPED: Final = FATES[4]


class Slowest(NamedTuple):
    """The steps with the longest net times, the longest first.

    Attributes:
        steps: these executions, lost ones included.
        median: of the net times of all kept steps of the run, ns; 0 if none is kept.
    """

    steps: Sequence[StepRecord]
    median: float

    def to_json(self) -> list[dict[str, Any]]:
        """Return the steps; ``start`` is in seconds since the epoch."""
        return [
            {
                "step": one.step,
                "attempt": one.attempt,
                "start": one.start_ns / NS,
                "net_s": one.net_ns / NS,
                "fate": one.fate,
            }
            for one in self.steps
        ]

    def lines(self) -> Iterator[str]:
        """Yield the table for people."""
        yield ""
        if not self.steps:
            yield "  no step has started"
            return
        yield f"  the {plural(len(self.steps), 'slowest step').removeprefix('1 ')}, by net time:"
        for one in self.steps:
            ratio = f"  {one.net_ns / self.median:8.1f} x median" if self.median else ""
            fate = "" if one.fate == _KEPT else f"  {one.fate.replace('_', ' ')}"
            length, began = format_duration(one.net_ns / NS), format_moment(one.start_ns / NS)
            yield f"    step {one.step:<9} {length:>10}{ratio}  began {began}, attempt {one.attempt}{fate}"


def slowest_of(run: RunDirectory, process: int, count: int) -> Slowest:
    """Return the `count` slowest steps of a process; reads its whole journal.

    Raises:
        JournalError: it left no journal, or none that can be read.
    """
    steps = [one for one in records.steps(records.detail(run, process)) if one.fate != _SKIPPED]
    kept = [one.net_ns for one in steps if one.fate == _KEPT]
    return Slowest(heapq.nlargest(count, steps, key=lambda one: one.net_ns), statistics.median(kept) if kept else 0.0)
