"""Rule P4: memory is bounded, however long a run is and whatever its events are."""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import Iterable, Iterator

import pytest

from otel_goodput.accounting import Event, Ledger, chronicle, landmarks, overview, rules
from otel_goodput.accounting import events as ev

SECOND = 10**9
BEGIN = 1_700_000_000 * SECOND
A_STEP = 16  # bytes, as rule P4 has it
ON_TOP = 32 << 10  # of all steps together, bytes: bins that get another category, buckets that are met the first time


def training(first: int, last: int) -> Iterator[Event]:
    """A data load and a step a second."""
    for number in range(first, last):
        at, key = BEGIN + number * SECOND, 10 + 2 * number
        noise = number * 7919 % 613 * 10_000
        yield Event(at, ev.START, rules.DATA_LOADING, key)
        yield Event(at + 20_000_000 + noise, ev.END, rules.DATA_LOADING, key)
        yield Event(at + 30_000_000, ev.START, rules.STEP, key + 1, number)
        yield Event(at + 900_000_000 + noise, ev.END, rules.STEP, key + 1)


def fed(ledger: Ledger, events: Iterable[Event]) -> None:
    batch: list[Event] = []
    for event in events:
        batch.append(event)
        if len(batch) == 1024:
            ledger.feed(batch)
            batch.clear()
    ledger.feed(batch)


def started() -> Ledger:
    ledger = Ledger((3600 * SECOND,))
    ledger.feed([Event(BEGIN, ev.ATTEMPT, step=0), Event(BEGIN, ev.START, rules.JOB, 1)])
    return ledger


def held() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def test_a_step_takes_at_most_sixteen_bytes() -> None:
    """All tables that are of one size are full by then: rolling windows, bins, checkpoints of the ledger."""
    warm, long = 14_000, 34_000
    tracemalloc.start()
    try:
        ledger = started()
        fed(ledger, training(0, warm))
        before = held()
        fed(ledger, training(warm, long))
        grown = held() - before
    finally:
        tracemalloc.stop()
    assert ledger.totals().kept == long
    assert grown <= A_STEP * (long - warm) + ON_TOP, f"{grown / (long - warm):.1f} bytes a step"


def hostile(count: int) -> Iterator[Event]:
    """Names, failures, saves, exclusions, notices and slices, each of them once in each of `count` seconds."""
    for number in range(count):
        at, key = BEGIN + number * SECOND, 10 + 8 * number
        yield Event(at, ev.START, rules.CUSTOM_PHASE, key, name=f"name {number}")
        yield Event(at + 1000, ev.END, rules.CUSTOM_PHASE, key)
        yield Event(at + 2000, ev.START, rules.STEP, key + 1, number)
        yield Event(at + 500_000_000, ev.END, rules.STEP, key + 1, flags=ev.FAILED)
        yield Event(at + 600_000_000, ev.START, rules.SAVE, key + 2, number)
        yield Event(at + 700_000_000, ev.END, rules.SAVE, key + 2)
        yield Event(at + 710_000_000, ev.START, rules.EXCLUSION, key + 3)
        yield Event(at + 720_000_000, ev.END, rules.EXCLUSION, key + 3)
        yield Event(at + 730_000_000, ev.NOTICE, 0)
        yield Event(at + 740_000_000, ev.SLICES, 0, key=2 + number % 2, step=1 + number % 2, arg=4)


def test_what_is_told_of_hostile_events_is_bounded() -> None:
    ledger = started()
    fed(ledger, hostile(10_000))
    told, totals = ledger.overview(), ledger.totals()
    assert len(told.bins) <= overview.BINS and len(told.step_bins) <= overview.BINS
    assert len(told.phases) <= overview.PHASES_KEPT + chronicle.OPENED and told.left_out > 0, (
        "what is left out is counted"
    )
    assert len(told.steps) <= overview.STEPS_KEPT
    assert len(told.groups) <= 2 * chronicle.NAMES
    assert len(told.saves) <= chronicle.SAVES
    assert len(told.notices) <= chronicle.TOLD and len(told.slices) <= chronicle.TOLD
    assert len(told.excluded) <= chronicle.EXCLUDED
    assert len(told.at_risk) <= landmarks.CORNERS + 2
    assert sum(sum(one.values()) for one in told.bins) == totals.run.elapsed, "and nothing of the time"
    head, blobs = ledger.dump()
    assert len(json.dumps(head)) + sum(len(blob) * blob.itemsize for blob in blobs) < 8 << 20


@pytest.mark.parametrize("behind", [0, 5 * SECOND], ids=["clocks agree", "clocks behind"])
def test_attempts_and_rollbacks_without_number(behind: int) -> None:
    """Each attempt trains two steps, goes back to the first, and dies; its clock may be behind the one before."""
    ledger = started()
    at = BEGIN
    for attempt in range(1, 1500):
        at += 10 * SECOND
        begin, key = at - attempt * behind, 100 * attempt
        ledger.feed([Event(begin, ev.ATTEMPT, step=attempt), Event(begin, ev.START, rules.JOB, key)])
        for place, number in enumerate((0, 1, 0)):
            moment = begin + (1 + 2 * place) * SECOND
            ledger.feed([Event(moment, ev.START, rules.STEP, key + 1 + place, number)])
            ledger.feed([Event(moment + SECOND, ev.END, rules.STEP, key + 1 + place)])
    told, totals = ledger.overview(), ledger.totals()
    assert len(told.lives) <= landmarks.LIVES and len(told.shifts) <= landmarks.LIVES
    assert bool(told.shifts) is bool(behind)
    assert len(told.bins) <= overview.BINS
    assert sum(sum(one.values()) for one in told.bins) == totals.run.elapsed
    assert len(told.losses) <= 2000 and sum(totals.disruptions.values()) >= 1499
    assert len(json.dumps(ledger.dump()[0])) < 8 << 20
