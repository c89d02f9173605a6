"""Runs given interval by interval."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence

from otel_goodput._accounting import Event
from otel_goodput._accounting import events as ev
from otel_goodput._accounting.events import NOT_KNOWN
from otel_goodput._accounting.overview import IN_FLIGHT, NO_STEP_DONE, SKIPPED
from otel_goodput._accounting.rank_updates import RankUpdate
from otel_goodput._accounting.ranks import DIED, Piece, RankStep
from otel_goodput._accounting.rules import (
    CUSTOM,
    CUT_OUT,
    DATA_LOADING_TIME,
    EXCLUDED_TIME,
    EXCLUSION,
    FIXED,
    JOB,
    OTHER,
    RECOVERY,
)  # fmt: skip
from otel_goodput._accounting.tracing import EXCLUDED, Interval, Tracer

# Iterations that are no steps: what their time is.
_NO_STEPS = {SKIPPED: DATA_LOADING_TIME, NO_STEP_DONE: OTHER}


def cut_out_in(events: Sequence[Event], fate: random.Random) -> list[Event]:
    """Return the events of a run, with times in its jobs that are excluded, or in which the machine is suspended."""
    cut, key, opened, alive, latest = list[Event](), 1 << 40, 0, False, 0
    for event, after in zip(events, [*events[1:], None], strict=True):
        if opened and (event.kind == ev.ATTEMPT or event.phase == JOB):
            if event.kind != ev.ATTEMPT:
                cut.append(Event(cut[-1].time, ev.END, EXCLUSION, opened))
            opened = 0
        cut.append(event)
        if event.phase == JOB or event.kind == ev.ATTEMPT:
            alive = event.kind == ev.START and event.time >= latest  # not while the clock is behind: an update is late
        latest = max(latest, event.time)
        length = 0 if after is None or after.kind == ev.ATTEMPT else after.time - event.time
        if not alive:
            continue
        if opened and fate.random() < 0.5:
            cut.append(Event(event.time, ev.END, EXCLUSION, opened))
            opened = 0
        elif not opened and fate.random() < 0.2:
            opened = key = key + 1
            cut.append(Event(event.time, ev.START, EXCLUSION, opened))
        if length > 0 and fate.random() < 0.1:
            cut.append(Event(event.time, ev.SUSPENDED, key=fate.randint(1, length)))
    return cut


def without_kinds(pieces: Iterable[Piece]) -> list[Piece]:
    """Return pieces of which those that are cut out are all excluded, and of none is it known how its job ended."""
    same = (one._replace(category=EXCLUDED_TIME) if one.category in CUT_OUT else one for one in pieces)
    return connected(one._replace(name="") if one.category == RECOVERY else one for one in same)


class TracerOfJobs(Tracer):
    """Notes when each job was over, by the ordinal of the latest step that had started by then."""

    def __init__(self, exclusions: Sequence[tuple[int, int]] = ()) -> None:
        super().__init__(exclusions)
        self.given_up = dict[int, int]()

    def _start_job(self, time: int, key: int) -> None:
        self.note_end()
        super()._start_job(time, key)

    def note_end(self) -> None:
        if not self.alive:
            self.given_up.setdefault(len(self.fates.fates) - 1, self.now)


def partition_of(tracer: TracerOfJobs) -> tuple[list[RankStep], list[Piece]]:
    """Steps and pieces of a rank from each of its intervals, in order. Its latest step, if it is in flight, is open."""
    traces = list(tracer.step_traces)
    pieces, own = list[Piece](), dict[int, tuple[int, int]]()
    for (begin, end, ordinal, category), hidden in zip(_owned(tracer), tracer.hidden, strict=True):
        if hidden and category != RECOVERY:
            pieces.append(Piece(begin, end, EXCLUDED_TIME))
            continue
        if ordinal is not None and traces[ordinal].fate in _NO_STEPS:
            category, ordinal = _NO_STEPS[traces[ordinal].fate], None
        if ordinal is not None:
            own[ordinal] = own.get(ordinal, (begin, 0))[0], end
        elif category >= FIXED:
            pieces.append(Piece(begin, end, CUSTOM, tracer.names[category - FIXED]))
        elif category != OTHER:
            pieces.append(Piece(begin, end, category))
    deaths = {piece.begin for piece in pieces if piece.category == RECOVERY}
    steps: list[RankStep] = []
    latest = max(own, default=-1)
    for ordinal, (begin, end) in sorted(own.items()):
        trace = traces[ordinal]
        flags = ev.FAILED if trace.failed else 0
        if trace.fate == IN_FLIGHT and ordinal == latest:
            end, flags = NOT_KNOWN, 0  # even if an exception has left it, the device has it
        elif flags:
            if trace.wall == NOT_KNOWN:
                end = tracer.given_up.get(ordinal, end)
            flags |= DIED if end in deaths else 0
        steps.append(RankStep(trace.number, begin, end, flags))
    return sorted(steps, key=lambda step: step.begin), connected(pieces)


def _owned(tracer: Tracer) -> Iterator[tuple[int, int, int | None, int]]:
    """Yield begin, end, ordinal of the step, None if it is no step's, and category number of each interval."""
    for begin, end, owner in zip(tracer.begins, tracer.ends, tracer.owners, strict=True):
        ordinal = tracer.ordinal_of(owner)
        yield begin, end, ordinal, owner if ordinal is None else 0


def traced(events: Iterable[Event], *, at: int, exclusions: Sequence[tuple[int, int]] = ()) -> TracerOfJobs:
    """A run, asked about at `at` (ns)."""
    tracer = TracerOfJobs(exclusions)
    for event in events:
        tracer.apply(event)
    tracer.reach(at)
    tracer.note_end()
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


def followed(first: RankUpdate, after: RankUpdate) -> RankUpdate:
    """Return an update and the next one as one."""
    steps = list(first.steps)
    if steps and steps[-1].end == NOT_KNOWN:
        steps.pop()
    return after._replace(steps=[*steps, *after.steps], pieces=connected([*first.pieces, *after.pieces]))


def connected(pieces: Iterable[Piece]) -> list[Piece]:
    """Return successive pieces with those as one that go on."""
    whole: list[Piece] = []
    for piece in pieces:
        before = whole[-1] if whole else None
        if before is not None and (before.end, *before[2:]) == (piece.begin, *piece[2:]):
            piece = whole.pop()._replace(end=piece.end)
        whole.append(piece)
    return whole
