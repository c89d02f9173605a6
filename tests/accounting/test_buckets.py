"""The buckets of rolling windows: what a window holds to the width of one, and how many there are."""

from __future__ import annotations

import json
import tracemalloc
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_goodput._accounting import Ledger, rules
from otel_goodput._accounting import events as ev
from otel_goodput._accounting.buckets import BUCKETS, HELD
from otel_goodput._accounting.events import Event
from otel_goodput._journal.state_file import text_of

S = 10**9
SPANS = (60 * S, 600 * S)
TOTAL = 8
BEGIN = 1_700_000_000 * S
COUNTS = st.lists(
    st.tuples(st.integers(0, 900 * S), st.integers(0, TOTAL), st.integers(0, TOTAL)), min_size=1, max_size=20
)


def mean(counts: list[tuple[int, int, int]], left: int, now: int, which: int) -> float | None:
    """The mean share from `left` to `now`, from the first word on."""
    edges = [*counts[1:], (now, 0, 0)]
    weighted = known = 0
    for one, after in zip(counts, edges, strict=True):
        length = max(0, min(after[0], now) - max(one[0], left, 0))
        known += length
        weighted += length * one[which]
    return weighted / known / TOTAL if known else None


@settings(deadline=None)
@given(counts=COUNTS, now=st.integers(1, 1000 * S), restart=st.booleans())
def test_windows_look_back_over_so_much_time_and_no_more(
    counts: list[tuple[int, int, int]], now: int, restart: bool
) -> None:
    counts = [one for one in sorted(counts, key=lambda one: one[0]) if one[0] < now] or [(0, 1, 2)]
    ledger = Ledger(SPANS)
    ledger.feed([Event(BEGIN, ev.ATTEMPT, step=0), Event(BEGIN, ev.START, rules.JOB, 1)])
    for at, (time, active, available) in enumerate(counts):
        ledger.feed([Event(BEGIN + time, ev.SLICES, 0, available, active, 0, TOTAL)])
        if restart and at == len(counts) // 2:
            head, blobs = ledger.dump()
            ledger = Ledger.load(json.loads(json.dumps(head)), b"".join(bytes(blob) for blob in blobs), SPANS)
    totals = ledger.totals(BEGIN + now)
    for (span, partition), width in zip(totals.rolling, (SPANS[0] // BUCKETS,) * 2, strict=True):
        left = now - span
        wanted = mean(counts, left, now, 1), mean(counts, left, now, 2)
        efficiency = partition.slice_efficiency
        known = min(now - counts[0][0], span)
        if wanted[0] is None or wanted[1] is None or known < 2 * width:
            continue
        # Only the bucket that the left edge cuts is shared out in proportion.
        assert efficiency["stepping"] == pytest.approx(wanted[0], abs=width / known + 1e-9)
        assert efficiency["available"] == pytest.approx(wanted[1], abs=width / known + 1e-9)


def test_a_short_window_beside_a_long_one_takes_no_buckets_without_number() -> None:
    """A second and a day: hours pass at once where a job stands still, or its journal says so."""
    spans = S, 86_400 * S
    ledger = Ledger(spans)
    ledger.feed([Event(BEGIN, ev.ATTEMPT, step=0), Event(BEGIN, ev.START, rules.JOB, 1)])
    at = BEGIN
    began = process_time()
    for key, hours in ((2, 10), (3, 20)):
        middle, at = at + hours * 1800 * S, at + hours * 3600 * S
        ledger.feed([Event(middle, ev.START, rules.SAVE, key), Event(at, ev.END, rules.SAVE, key)])
    totals = ledger.totals(at)
    assert process_time() - began < 5
    second, day = (partition for _, partition in totals.rolling)
    assert second.elapsed == second.categories["checkpoint_save"] == S
    width = spans[1] // HELD
    assert day.elapsed == spans[1]
    # Of the 20 hours the second half, and before them 4 hours of the other save.
    assert day.categories["checkpoint_save"] == pytest.approx(14 * 3600 * S, abs=width)
    assert day.categories["other"] == pytest.approx(10 * 3600 * S, abs=width)
    head, blobs = ledger.dump()
    again = Ledger.load(json.loads(json.dumps(head)), b"".join(bytes(blob) for blob in blobs), spans)
    assert again.totals(at) == totals
    again.add_windows((600 * S,))
    assert again.totals(at).rolling[:2] == totals.rolling


def test_a_long_list_of_a_snapshot_is_made_when_it_is_written_and_as_it_was() -> None:
    """A snapshot of a day's buckets at once would take far more memory than the account itself."""
    ledger = Ledger((60 * S, 3600 * S))
    ledger.feed([Event(BEGIN, ev.ATTEMPT, step=0), Event(BEGIN, ev.START, rules.JOB, 1)])
    steps = []
    for number in range(1200):
        begin, end = BEGIN + number * S, BEGIN + number * S + 9 * S // 10
        steps.append(Event(begin, ev.START, rules.STEP, 2 + number, number))
        steps.append(Event(end, ev.END, rules.STEP, 2 + number, number))
    ledger.feed(steps)
    at_once, peaks = ledger.dump()[0], []
    tracemalloc.start()
    try:
        for later in (False, True):
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            head, _ = ledger.dump(later=later)
            if later:  # steps are lost that are in closed buckets
                ledger.feed([Event(BEGIN + 1200 * S, ev.START, rules.STEP, 5000, 100)])
                tracemalloc.reset_peak()
            text = text_of(head)
            peaks.append(tracemalloc.get_traced_memory()[1] - before)
            assert json.loads(text) == json.loads(json.dumps(at_once))
            del head, text
    finally:
        tracemalloc.stop()
    assert peaks[1] < peaks[0] * 3 // 4
    assert text_of(ledger.dump()[0]) != json.dumps(at_once, separators=(",", ":")).encode()
