"""Statistics of the stages of checkpoints: those of the lengths themselves, however their events come."""

from __future__ import annotations

import json
import random
import statistics
from fractions import Fraction
from math import isclose, sqrt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_goodput._accounting import Ledger, rules
from otel_goodput._accounting import events as ev
from otel_goodput._accounting.checkpoints import STAGES, RankStages, Stages, StageSums, slowest, to_json
from otel_goodput._accounting.codec import Blobs
from otel_goodput._accounting.events import Event
from otel_goodput._accounting.ledger import CHECKPOINT
from otel_goodput.reports.timeline import account
from otel_goodput.semconv import CHECKPOINT_STAGES, CheckpointStage

SECOND = 1_000_000_000
NAMES = tuple(CHECKPOINT_STAGES)
# From nothing to a year, also lengths that differ by a ns only: there a sum of squares in floats would fail.
lengths = st.one_of(st.integers(0, 366 * 86400 * SECOND), st.integers(3600 * SECOND, 3600 * SECOND + 3))


def part(key: int, name: str, begin: int, end: int, flags: int = 0) -> list[Event]:
    return [
        Event(begin, ev.START, rules.PART, key, name=name),
        Event(end, ev.END, rules.PART, key, flags=flags),
    ]


def summed(durations: list[int], name: str = NAMES[0]) -> StageSums:
    stages = Stages()
    for length in durations:
        stages.add(name, length)
    return stages.sums[name]


@given(st.lists(lengths, min_size=1, max_size=50))
def test_they_are_those_of_the_lengths(durations: list[int]) -> None:
    sums = summed(durations)
    assert sums[:4] == (len(durations), sum(durations), min(durations), max(durations))
    assert isclose(sums.mean, statistics.fmean(durations), rel_tol=1e-12)
    exact = statistics.variance(map(Fraction, durations)) if len(durations) > 1 else Fraction(0)
    assert isclose(sums.deviation, sqrt(exact), rel_tol=1e-9)
    stored = json.loads(json.dumps(STAGES.dump({NAMES[0]: sums}, Blobs())))
    assert STAGES.load(stored, Blobs()) == {NAMES[0]: sums}


@given(st.lists(lengths, min_size=1, max_size=20), st.randoms(use_true_random=False))
def test_their_order_does_not_matter(durations: list[int], fate: random.Random) -> None:
    shuffled = durations.copy()
    fate.shuffle(shuffled)
    assert summed(durations) == summed(shuffled)


Parts = list[tuple[str, int, int, int]]
part_lists = st.lists(
    st.tuples(
        st.sampled_from((*NAMES[:3], "forward")),
        st.integers(1, 50),
        st.integers(0, 20),
        st.sampled_from((0, 0, ev.FAILED)),
    ),
    max_size=20,
)


@given(part_lists, st.integers(0, 20))
def test_live_replayed_and_restarted_are_the_same(parts: Parts, cut: int) -> None:
    """A part that failed or is open counts nowhere, and one of another name than a stage's neither."""
    events = [Event(0, ev.ATTEMPT), Event(0, ev.START, rules.JOB, 1)]
    for at, (name, begin, length, flags) in enumerate(parts):
        events += part(100 + at, name, begin, begin + length, flags)
    events.append(Event(60, ev.START, rules.PART, 999, name=NAMES[0]))
    known = {
        name: summed(durations, name)
        for name in NAMES
        if (durations := [length for name_of_part, _, length, flags in parts if name_of_part == name and not flags])
    }
    ledger = Ledger()
    ledger.feed(events[: 2 + cut])
    head, blobs = ledger.dump()
    ledger = Ledger.load(json.loads(json.dumps(head)), b"".join(blob for blob in map(bytes, blobs)))
    ledger.feed(events[2 + cut :])
    assert dict(ledger.totals(70).stages) == dict(ledger.overview(70).stages) == known
    assert dict(account(sorted(events), at=70).stages) == known


@pytest.mark.parametrize(
    "sums",
    [
        [0, 0, 0, 0, 0],
        [1, 5, 5, 5, 24],  # less than any length's square
        [2, 5, 3, 2, 13],
        [2, 9, 1, 2, 99],
        [1, 5, 5, 5, 25.0],
        [1, -5, -5, -5, 25],
        [True, 5, 5, 5, 25],
        [1, 5, 5, 5, 1 << 200],
        [1, 5],
        None,
    ],
)
def test_sums_that_no_lengths_have_are_refused(sums: Any) -> None:
    assert STAGES.load([[NAMES[0], [1, 5, 5, 5, 25]]], Blobs()) == {NAMES[0]: StageSums(1, 5, 5, 5, 25)}
    with pytest.raises(ValueError, match=r"\w"):
        STAGES.load([[NAMES[0], sums]], Blobs())


def test_a_part_recorded_very_late_is_not_lost() -> None:
    """The deletion of an old checkpoint ends beside training, when thousands of steps have passed."""
    ledger = Ledger()
    events = [Event(0, ev.ATTEMPT), Event(0, ev.START, rules.JOB, 1)]
    for number in range(3 * CHECKPOINT):
        events.append(Event(10 * number, ev.START, rules.STEP, 10 + number, number))
        events.append(Event(10 * number + 9, ev.END, rules.STEP, 10 + number, number))
    for at in range(0, len(events), 1000):
        ledger.feed(events[at : at + 1000])
    end = events[-1].time
    before = ledger.totals(end)
    ledger.feed(part(5, CheckpointStage.SAVE_DELETE_OLD, 1000, end))
    assert ledger.late == 0
    assert ledger.totals(end).run == before.run
    assert ledger.totals(end).stages == {CheckpointStage.SAVE_DELETE_OLD: summed([end - 1000])}
    ledger.feed([Event(1000, ev.START, rules.DATA_LOADING, 6), Event(1001, ev.END, rules.DATA_LOADING, 6)])
    assert ledger.late == 1


def test_the_slowest_rank_by_its_mean() -> None:
    copy, commit = CheckpointStage.SAVE_COPY, CheckpointStage.SAVE_COMMIT
    ranks = [
        RankStages(0, {copy: summed([3 * SECOND, 3 * SECOND]), commit: summed([9 * SECOND])}),
        RankStages(1, {copy: summed([1 * SECOND, 4 * SECOND])}),  # has the longest single one but one
        RankStages(3, {copy: summed([12 * SECOND, 13 * SECOND])}),
    ]
    assert slowest(ranks, copy) == {"process": 3, "mean_s": 12.5, "median_s": 3.0}
    assert slowest(ranks, commit) is None  # nobody else tells of it
    assert slowest([], copy) is None
    answer = to_json(ranks[0].sums, ranks)
    assert answer["save"]["blocking_copy"] == {
        "count": 2,
        "min_s": 3.0,
        "mean_s": 3.0,
        "max_s": 3.0,
        "deviation_s": 0.0,
        "slowest": {"process": 3, "mean_s": 12.5, "median_s": 3.0},
    }
    assert answer["save"]["commit"]["slowest"] is None
    assert list(answer) == ["save"]


def test_a_part_may_be_open_for_thousands_of_events() -> None:
    """The account of a window, or of a past moment, takes the events of a run in batches."""
    begun, over = part(5, CheckpointStage.SAVE_DELETE_OLD, 1, 30 * CHECKPOINT)
    steps = [
        event
        for number in range(3 * CHECKPOINT)
        for event in (
            Event(10 * number, ev.START, rules.STEP, 10 + number, number),
            Event(10 * number + 9, ev.END, rules.STEP, 10 + number, number),
        )
    ]
    events = [Event(0, ev.ATTEMPT), Event(0, ev.START, rules.JOB, 1), begun, *steps, over]
    assert account(events, at=over.time).stages == {CheckpointStage.SAVE_DELETE_OLD: summed([over.time - 1])}
