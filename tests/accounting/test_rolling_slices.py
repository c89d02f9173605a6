"""Slice efficiency of rolling windows: the mean over the window's time, to the width of a bucket."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_goodput._accounting import Ledger, rules
from otel_goodput._accounting import events as ev
from otel_goodput._accounting.buckets import BUCKETS
from otel_goodput._accounting.events import Event

S = 10**9
SPANS = (60 * S, 600 * S)
TOTAL = 8
BEGIN = 1_700_000_000 * S
TOLD = st.lists(
    st.tuples(st.integers(0, 900 * S), st.integers(0, TOTAL), st.integers(0, TOTAL)), min_size=1, max_size=20
)


def mean(told: list[tuple[int, int, int]], left: int, now: int, which: int) -> float | None:
    """The mean share from `left` to `now`, from the first word on."""
    edges = [*told[1:], (now, 0, 0)]
    weighted = known = 0
    for one, after in zip(told, edges, strict=True):
        length = max(0, min(after[0], now) - max(one[0], left, 0))
        known += length
        weighted += length * one[which]
    return weighted / known / TOTAL if known else None


@settings(deadline=None)
@given(told=TOLD, now=st.integers(1, 1000 * S), restart=st.booleans())
def test_windows_look_back_over_so_much_time_and_no_more(
    told: list[tuple[int, int, int]], now: int, restart: bool
) -> None:
    told = [one for one in sorted(told, key=lambda one: one[0]) if one[0] < now] or [(0, 1, 2)]
    ledger = Ledger(SPANS)
    ledger.feed([Event(BEGIN, ev.ATTEMPT, step=0), Event(BEGIN, ev.START, rules.JOB, 1)])
    for at, (time, active, available) in enumerate(told):
        ledger.feed([Event(BEGIN + time, ev.SLICES, 0, available, active, 0, TOTAL)])
        if restart and at == len(told) // 2:
            head, blobs = ledger.dump()
            ledger = Ledger.load(json.loads(json.dumps(head)), b"".join(bytes(blob) for blob in blobs), SPANS)
    totals = ledger.totals(BEGIN + now)
    for (span, partition), width in zip(totals.rolling, (SPANS[0] // BUCKETS,) * 2, strict=True):
        left = now - span
        wanted = mean(told, left, now, 1), mean(told, left, now, 2)
        found = partition.slice_efficiency
        known = min(now - told[0][0], span)
        if wanted[0] is None or wanted[1] is None or known < 2 * width:
            continue
        # Only the bucket that the left edge cuts is shared out in proportion.
        assert found["stepping"] == pytest.approx(wanted[0], abs=width / known + 1e-9)
        assert found["available"] == pytest.approx(wanted[1], abs=width / known + 1e-9)
