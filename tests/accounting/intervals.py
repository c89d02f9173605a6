"""Runs given interval by interval."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from otel_goodput._accounting import Event
from otel_goodput._accounting.tracing import EXCLUDED, Interval, Tracer


def traced(events: Iterable[Event], *, at: int, exclusions: Sequence[tuple[int, int]] = ()) -> Tracer:
    """A run, asked about at `at` (ns)."""
    tracer = Tracer(exclusions)
    for event in events:
        tracer.apply(event)
    tracer.reach(at)
    tracer.close()
    tracer.finish()
    return tracer


def cut_into(intervals: Iterable[Interval], edges: Sequence[int]) -> list[dict[int, int]]:
    """ns by category from each of the rising `edges` (ns) to the next, without excluded time."""
    bins: list[dict[int, int]] = [{} for _ in edges[1:]]
    at = 0
    for begin, end, category in intervals:
        while at < len(bins) and edges[at + 1] <= begin:
            at += 1
        if category == EXCLUDED:
            continue
        for which in range(at, len(bins)):
            low, high = max(begin, edges[which]), min(end, edges[which + 1])
            if low >= end:
                break
            if low < high:
                bins[which][category] = bins[which].get(category, 0) + high - low
    return bins
