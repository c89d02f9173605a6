"""What an overview remembers is bounded under hostile streams, and what it leaves out is counted (rule P4)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from otel_goodput.accounting import Ledger, chronicle, landmarks, overview, rules
from otel_goodput.accounting import events as ev
from otel_goodput.accounting.events import Event
from otel_goodput.semconv import Phase

NS = 10**9
DAY = 86400 * NS
RESTORE = rules.PHASE_INDEX[Phase.CHECKPOINT_RESTORE]
ALL = 16 << 20  # bytes a run


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
}


def fed(stream: Iterator[Event]) -> Ledger:
    ledger, chunk = Ledger(), job(0, 0)
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
    monkeypatch.setattr(landmarks, "LIVES", 100)  # because so many attempts take long
    count, cut = STREAMS[stream]
    ledger = fed(stream(count))
    found = ledger.overview()
    assert (found.left_out > 0) is cut
    assert len(found.bins) <= overview.BINS and len(found.step_bins) <= overview.BINS + 1
    assert len(found.groups) <= 2 * chronicle.NAMES and len(found.phases) <= overview.PHASES_KEPT + chronicle.OPENED
    assert len(found.steps) <= overview.STEPS_KEPT and len(found.lives) <= landmarks.LIVES
    assert len(found.shifts) <= landmarks.LIVES
    assert len(found.at_risk) <= landmarks.CORNERS + 2
    for told in (found.saves, found.notices, found.slices, found.excluded):
        assert len(told) <= chronicle.TOLD
    head, blobs = ledger.dump()
    text = json.dumps(head)
    assert len(text) + sum(len(bytes(blob)) for blob in blobs) < ALL // 2
    again = Ledger.load(json.loads(text), b"".join(bytes(blob) for blob in blobs))
    assert again.overview() == found


def test_what_is_left_out_is_counted_one_by_one() -> None:
    told = fed(saves(5_000)).overview()
    assert len(told.saves) + len(told.phases) + told.left_out == 2 * 5_000 + 1  # a save is a phase too; the job is open
    for stream, kept in ((notices, "notices"), (slices, "slices")):
        told = fed(stream(5_000)).overview()
        assert len(getattr(told, kept)) + told.left_out == 5_000
