"""Rule P4: memory is bounded, however long a run is and whatever its events are; what is left out is counted."""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import Callable, Iterator

import pytest

from otel_goodput._accounting import Ledger, overview, phase_history, rules, step_history
from otel_goodput._accounting import events as ev
from otel_goodput._accounting.events import Event
from otel_goodput.semconv import Phase

NS = 10**9
DAY = 86400 * NS
RESTORE = rules.PHASE_INDEX[Phase.CHECKPOINT_RESTORE]
ALL = 16 << 20  # bytes a run
A_STEP = 16  # bytes, as rule P4 has it
ON_TOP = 48 << 10  # of all steps together, bytes: bins that get another category, buckets that are met the first time


def phase(
    key: int, kind: int, begin: int, end: int, *, step: int = ev.NO_STEP, name: str = "", flags: int = 0
) -> Iterator[Event]:
    """START and END of a phase."""
    yield Event(begin, ev.START, kind, key, step, name=name)
    yield Event(end, ev.END, kind, key, step, flags, name=name)


def job(attempt: int, begin: int) -> list[Event]:
    return [Event(begin, ev.ATTEMPT, step=attempt), Event(begin, ev.START, rules.JOB, 1)]


def names(count: int) -> Iterator[Event]:
    for at in range(count):
        yield from phase(at + 2, rules.CUSTOM_PHASE, at * NS, (at + 1) * NS, name=f"name {at}")


def phases(count: int) -> Iterator[Event]:
    for at in range(count):
        yield from phase(at + 2, RESTORE, at * NS, (at + 1) * NS)


def failed_steps(count: int) -> Iterator[Event]:
    for at in range(count):
        yield from phase(at + 2, rules.STEP, at * NS, (at + 1) * NS, step=at, flags=ev.FAILED)


def slow_steps(count: int) -> Iterator[Event]:
    """Each of them takes longer than those before."""
    for at in range(count):
        yield from phase(at + 2, rules.STEP, at * at * NS, (at + 1) ** 2 * NS, step=at)


def rollbacks(count: int) -> Iterator[Event]:
    for at in range(count):
        yield from phase(at + 2, rules.STEP, at * NS, (at + 1) * NS, step=at % 3)


def saves(count: int) -> Iterator[Event]:
    for at in range(count):
        yield from phase(at + 2, rules.SAVE, at * NS, (at + 1) * NS, step=at)


def open_saves(count: int) -> Iterator[Event]:
    """None of them turns durable."""
    for at in range(count):
        yield from phase(at + 2, rules.SAVE, at * NS, (at + 1) * NS, step=at, flags=ev.PENDING)


def exclusions(count: int) -> Iterator[Event]:
    for at in range(count):
        yield from phase(at + 2, rules.EXCLUSION, 2 * at * NS, (2 * at + 1) * NS)


def notices(count: int) -> Iterator[Event]:
    for at in range(count):
        yield Event(at * NS, ev.NOTICE, 0)


def slices(count: int) -> Iterator[Event]:
    for at in range(count):
        yield Event(at * NS, ev.SLICES, 0, 8, at % 8, arg=8)


def gaps(count: int) -> Iterator[Event]:
    """A month between steps."""
    for at in range(count):
        yield from phase(at + 2, rules.STEP, at * 30 * DAY, (at * 30 + 1) * DAY, step=at)


def skewed(count: int) -> Iterator[Event]:
    """Attempts whose clocks are all behind that of the first."""
    for at in range(1, count):
        yield from job(at, 0)
        yield from phase(2, rules.STEP, NS, 2 * NS, step=at)


def dying(count: int) -> Iterator[Event]:
    """Each attempt trains two steps, goes back to the first, and dies; its clock is behind the one before."""
    for attempt in range(1, count):
        begin = attempt * 5 * NS
        yield from job(attempt, begin)
        for at, number in enumerate((0, 1, 0)):
            yield from phase(2 + at, rules.STEP, begin + (1 + 2 * at) * NS, begin + (2 + 2 * at) * NS, step=number)


def saved_failures(count: int) -> Iterator[Event]:
    """Steps that fail, and would be kept if only one of the saves that hold them turned durable."""
    for at in range(count):
        begin, key = at * NS, 2 + 2 * at
        yield Event(begin, ev.START, rules.STEP, key, at)
        yield from phase(key + 1, rules.SAVE, begin + 1000, begin + 2000, step=at, flags=ev.PENDING)
        yield Event(begin + NS // 2, ev.END, rules.STEP, key, flags=ev.FAILED)


def everything(count: int) -> Iterator[Event]:
    """Names, failures, saves, exclusions, notices and slices, each of them once in each of `count` seconds."""
    for at in range(count):
        begin, key = at * NS, 10 + 8 * at
        yield from phase(key, rules.CUSTOM_PHASE, begin, begin + 1000, name=f"name {at}")
        yield from phase(key + 1, rules.STEP, begin + 2000, begin + NS // 2, step=at, flags=ev.FAILED)
        yield from phase(key + 2, rules.SAVE, begin + NS * 6 // 10, begin + NS * 7 // 10, step=at)
        yield from phase(key + 3, rules.EXCLUSION, begin + NS * 7 // 10 + 1, begin + NS * 8 // 10)
        yield Event(begin + NS * 8 // 10, ev.NOTICE, 0)
        yield Event(begin + NS * 9 // 10, ev.SLICES, 0, 2 + at % 2, 1 + at % 2, arg=4)


# What is fed, how often, and whether something must be left out.
STREAMS: dict[Callable[[int], Iterator[Event]], tuple[int, bool]] = {
    names: (10_000, True),
    phases: (20_000, True),
    failed_steps: (6_000, False),  # of the steps one by one only the longest are promised
    slow_steps: (6_000, False),
    rollbacks: (6_000, False),
    saves: (5_000, True),
    open_saves: (5_000, True),
    exclusions: (5_000, True),
    notices: (5_000, True),
    slices: (5_000, True),
    gaps: (200, False),
    skewed: (250, True),
    dying: (250, True),
    saved_failures: (5_000, True),
    everything: (10_000, True),
}


def fed(stream: Iterator[Event], ledger: Ledger | None = None) -> Ledger:
    ledger, chunk = ledger or Ledger(), job(0, 0)
    for event in stream:
        chunk.append(event)
        if len(chunk) >= 500:
            ledger.feed(chunk)
            chunk = []
    ledger.feed(chunk)
    return ledger


@pytest.mark.parametrize("stream", STREAMS, ids=lambda stream: stream.__name__)
def test_an_overview_is_bounded_and_says_what_it_leaves_out(
    stream: Callable[[int], Iterator[Event]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview, "LIVES", 100)  # because so many attempts take long
    count, cut = STREAMS[stream]
    ledger = fed(stream(count))
    summary = ledger.overview()
    assert (summary.left_out > 0) is cut
    assert len(summary.bins) <= overview.BINS and len(summary.step_bins) <= overview.BINS + 1
    assert (
        len(summary.groups) <= 2 * phase_history.NAMES
        and len(summary.phases) <= overview.PHASES_KEPT + phase_history.OPENED
    )
    assert len(summary.steps) <= overview.STEPS_KEPT and len(summary.jobs) <= overview.LIVES
    assert len(summary.shifts) <= overview.LIVES
    assert len(summary.at_risk) <= overview.CORNERS + 2
    for part in (summary.saves, summary.notices, summary.slices, summary.excluded):
        assert len(part) <= phase_history.MOST_NOTICES
    assert sum(sum(one.values()) for one in summary.bins) == ledger.totals().run.elapsed, "and nothing of the time"
    steps = ledger.settled.steps
    assert len(steps.saves) <= step_history.SAVES and len(steps.recoverable) <= step_history.RECOVERABLE
    head, blobs = ledger.dump()
    text = json.dumps(head)
    assert len(text) + sum(len(bytes(blob)) for blob in blobs) < ALL // 2
    again = Ledger.load(json.loads(text), b"".join(bytes(blob) for blob in blobs))
    assert again.overview() == summary


def test_what_is_left_out_is_counted_one_by_one() -> None:
    summary = fed(saves(5_000)).overview()
    assert (
        len(summary.saves) + len(summary.phases) + summary.left_out == 2 * 5_000 + 1
    )  # a save is a phase too; the job is open
    for stream, kept in ((notices, "notices"), (slices, "slices")):
        summary = fed(stream(5_000)).overview()
        assert len(getattr(summary, kept)) + summary.left_out == 5_000


def training(first: int, last: int) -> Iterator[Event]:
    """A data load and a step a second."""
    for number in range(first, last):
        at, key = number * NS, 10 + 2 * number
        noise = number * 7919 % 613 * 10_000
        yield Event(at, ev.START, rules.DATA_LOADING, key)
        yield Event(at + 20_000_000 + noise, ev.END, rules.DATA_LOADING, key)
        yield Event(at + 30_000_000, ev.START, rules.STEP, key + 1, number)
        yield Event(at + 900_000_000 + noise, ev.END, rules.STEP, key + 1)


def held() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.slow
def test_a_step_takes_at_most_sixteen_bytes() -> None:
    """All tables that are of one size are full by then: rolling windows, bins, checkpoints of the ledger."""
    warm, long = 14_000, 21_000
    tracemalloc.start()
    try:
        ledger = fed(training(0, warm), Ledger((3600 * NS,)))
        before = held()
        for first in range(warm, long, 250):
            ledger.feed(training(first, first + 250))
        grown = held() - before
    finally:
        tracemalloc.stop()
    assert ledger.totals().kept == long
    assert grown <= A_STEP * (long - warm) + ON_TOP, f"{grown / (long - warm):.1f} bytes a step"
