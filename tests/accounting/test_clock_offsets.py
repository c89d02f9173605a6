"""How far clocks are ahead of each other, from simulated exchanges, and what is made of that (rule R11)."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from otel_goodput._accounting.clock_readings import Reading, Readings, exchanged, stamped
from otel_goodput._accounting.events import ATTEMPT, END, NOT_KNOWN, START, Event, TurnColumns, each_of
from otel_goodput._accounting.job import JobAccount
from otel_goodput._accounting.rank_clocks import Offset, RankClock, by_common_clock
from otel_goodput._accounting.rank_updates import RankUpdate
from otel_goodput._accounting.ranks import RankStep

S = 10**9
BEGIN = 1_764_000_000 * S


def drifting(offset: int, ppm: float) -> Callable[[int], int]:
    """A clock that is ahead by `offset` ns in the beginning, as a function of the common one."""
    return lambda moment: moment + offset + round((moment - BEGIN) * ppm / 1e6)


@example(0, 0, -50.0)
@given(st.integers(), st.integers(-(10**17), 10**17), st.floats(-50, 50))
def test_the_true_offset_is_always_within_the_bound(seed: int, offset: int, ppm: float) -> None:
    rng, clock, readings, now = random.Random(seed), drifting(offset, ppm), Readings(), BEGIN
    for _ in range(rng.randrange(1, 50)):
        now += rng.choice((S // 1000, 300 * S, 3_000 * S))
        sent = now
        seen = sent + rng.choice((100, 10**5, 10**9, rng.randrange(1, 15 * S)))  # the ways are differently long
        answered = seen + rng.randrange(10**6)
        now = answered + rng.choice((100, 10**5, 10**9, rng.randrange(1, 15 * S)))
        readings.add(exchanged(clock(sent), seen, answered, clock(now)))
        later = now + rng.choice((0, 1, rng.randrange(600 * S)))
        best = readings.best(clock(later))
        assert best is not None
        assert abs(clock(later) - later - best.ahead) <= best.bound


def test_the_least_delay_counts_and_grows_old() -> None:
    readings = Readings()
    readings.add(exchanged(1000 * S, 995 * S, 995 * S, 1000 * S + 2_000_000))
    best = readings.best(1000 * S + 2_000_000)
    assert best is not None and best.ahead == pytest.approx(5 * S + 1_000_000, abs=10)
    assert best.bound == pytest.approx(1_000_000, rel=0.01)
    readings.add(exchanged(1100 * S, 1095 * S, 1095 * S, 1100 * S + 400_000_000))
    assert readings.best(1101 * S).bound < 10_000_000, "the one before is still better"  # type: ignore[union-attr]
    readings.add(exchanged(1300 * S, 1295 * S, 1295 * S, 1300 * S + 3_000_000))
    best = readings.best(1300 * S + 3_000_000)
    assert best is not None and best.bound == pytest.approx(1_500_000, rel=0.01), "by now it may have drifted by more"
    readings.add(Reading(1400 * S, 5, 4))  # a clock was set while it was read
    assert readings.best(1400 * S) == readings.best(1400 * S) != Reading(1400 * S, 5, 4)


@given(st.integers(), st.integers(-(10**13), 10**13), st.sampled_from((4_000_000, S, 2 * S)))
def test_the_time_of_a_file_is_no_exact_one(seed: int, offset: int, grain: int) -> None:
    rng = random.Random(seed)
    before = BEGIN + rng.randrange(10 * S)
    written = before + rng.randrange(10**8)
    after = written + rng.randrange(10**8)
    reading = stamped(before + offset, written // grain * grain, after + offset)
    assert reading.least <= offset <= reading.most and reading.at == after + offset


@given(st.integers())
def test_times_never_go_back_because_a_clock_is_corrected(seed: int) -> None:
    rng = random.Random(seed)
    clock, times, since = RankClock(), list[int](), 0
    for _ in range(rng.randrange(1, 6)):
        clock.set(Offset(since, rng.randrange(-10 * S, 10 * S), 1))
        since = max(since, BEGIN) + rng.randrange(20 * S)
        times += [BEGIN + rng.randrange(60 * S) for _ in range(8)] + [since - 1, since]
    common = [clock.common(moment) for moment in sorted(times)]
    assert common == sorted(common)
    first = clock.offsets[0]
    assert clock.common(since + 100 * S) == since + 100 * S - clock.offsets[-1].ahead
    assert clock.common(BEGIN - 100 * S) == BEGIN - 100 * S - first.ahead and clock.common(NOT_KNOWN) == NOT_KNOWN


def test_what_was_corrected_before_stays_as_it_is() -> None:
    clock = RankClock([Offset(0, 5 * S, 1)])
    before = [clock.common(BEGIN + second * S) for second in range(10)]
    clock.set(Offset(BEGIN + 10 * S, 7 * S, 1))
    assert [clock.common(BEGIN + second * S) for second in range(10)] == before
    assert [clock.common(BEGIN + second * S) - BEGIN for second in (9, 10, 11, 12, 13)] == [
        second * S for second in (4, 5, 5, 5, 6)
    ]


def test_events_are_corrected_by_attempt_with_the_device_ends_in_them() -> None:
    events = [
        Event(100, ATTEMPT, step=0),
        Event(200, START, 1, 7, 0),
        Event(300, END, 0, 7),
        Event(1400, ATTEMPT, step=1),
        Event(1500, START, 1, 8, 0, arg=1550),
        Event(1600, START, 1, 9, 0, arg=1 << 62),
    ]
    moved = list(by_common_clock(events, {1: RankClock([Offset(0, 1000, 1)])}))
    assert [one.time for one in moved] == [100, 200, 300, 400, 500, 600]
    assert [one.arg for one in moved] == [0, 0, 0, 0, 550, 1 << 62]


def test_turns_are_corrected_as_their_events_are() -> None:
    for since in (0, BEGIN - 1, BEGIN + S, BEGIN + 3 * S, BEGIN + 100 * S):
        clock = RankClock([Offset(0, 5 * S, 1), Offset(since, 7 * S, 1)] if since else [Offset(0, 5 * S, 1)])
        begun = range(BEGIN, BEGIN + 9 * S, S)
        turns = TurnColumns(3, [time - 9 for time in begun], [*begun], range(5, 14))
        (attempt, *moved) = each_of(by_common_clock([Event(1, ATTEMPT, step=1), turns], {1: clock}))
        assert moved == [clock.event(event) for event in turns.events()] and attempt.kind == ATTEMPT


def test_steps_are_judged_by_how_exactly_their_clocks_were_known_then() -> None:
    """Those of one rank wait for others while its clock is measured again, and better."""
    ms = S // 1000
    job, ahead, error = JobAccount(spread=5 * ms), 600 * S, 15 * ms
    ends = [BEGIN + (number + 1) * 20 * ms for number in range(100)]
    fast = [RankStep(number, end - 15 * ms, end, 0) for number, end in enumerate(ends)]
    late = [RankStep(number, ahead + end - 2 * ms, ahead + end, 0) for number, end in enumerate(ends)]

    def update(steps: list[RankStep], shift: int) -> RankUpdate:
        known = steps[-1].end
        return RankUpdate(BEGIN + shift, known, known, NOT_KNOWN, steps, [], None)

    job.offset(1, ahead - error, 20 * ms)
    job.update(0, update(fast[:10], 0))
    job.update(1, update(late[:50], ahead))
    job.offset(1, ahead, ms, late[49].end + 1)
    job.update(0, update(fast[10:50], 0))
    for begin in range(50, 100, 10):
        job.update(1, update(late[begin : begin + 10], ahead))
        job.update(0, update(fast[begin : begin + 10], 0))
    assert job.together
    assert job.spread == 5 * ms, "all that was reported by the clock as it was known before is decided"
