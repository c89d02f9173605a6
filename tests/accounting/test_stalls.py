"""Steps that stand still (rule R10)."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timelines import replay, timeline_totals

from otel_goodput._accounting import rules
from otel_goodput._accounting.codec import Blobs
from otel_goodput._accounting.ledger import Ledger
from otel_goodput._accounting.stalls import Singles
from otel_goodput.reports.text import doubts
from otel_goodput.reports.timeline import Timeline, account_timeline

from .intervals import traced
from .oracle import account
from .strategies import Question, Rows
from .test_ledger_streams import arrivals
from .test_properties import SOME, USUAL, by_category, check_agreement, check_transfers

SECOND = 10**9
FEW = settings(SOME, max_examples=max(5, USUAL // 7))  # the ledger is asked a hundred times in each


class Loop:
    """Writes down a job with one step after the other, in seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self.number = 0
        self.rows: Rows = []

    def steps(self, *lengths: float, **more: Any) -> Loop:
        for length in lengths:
            self.rows.append({"kind": "step", "start": self.now, "end": self.now + length, "step": self.number, **more})
            self.now += length
            self.number += 1
        return self

    def phase(self, kind: str, length: float, **more: Any) -> Loop:
        self.rows.append({"kind": kind, "start": self.now, "end": self.now + length, **more})
        self.now += length
        return self

    def seconds(self, *, ended: bool = True, at: float | None = None, **more: Any) -> dict[str, Any]:
        rows = [{"kind": "job", "start": 0, "end": self.now if ended else None, **more}, *self.rows]
        expected = replay(rows, at=at)
        assert by_category(account(rows, at=at)) == by_category(expected), "the oracle says otherwise"
        return expected["seconds"]  # type: ignore[no-any-return]


def test_a_step_far_beyond_the_usual_is_stalled_beyond_its_limit() -> None:
    """4 min 18 s among steps of 160 ms: 10 s more than usual may be work, and the rest is none."""
    seconds = Loop().steps(*[0.16] * 99, 258, *[0.16] * 100).seconds()
    assert seconds == pytest.approx({"productive": 199 * 0.16 + 10.16, "stalled": 258 - 10.16})


def test_the_limit_is_ten_times_the_usual_where_that_is_more() -> None:
    assert Loop().steps(*[6] * 8, 59).seconds() == {"productive": 107}
    assert Loop().steps(*[6] * 8, 65).seconds() == {"productive": 108, "stalled": 5}


def test_no_step_is_judged_before_the_eighth_of_its_loop() -> None:
    assert Loop().steps(*[1] * 6, 60).seconds() == {"productive": 66}
    assert Loop().steps(*[1] * 7, 60).seconds() == {"productive": 18, "stalled": 49}
    assert Loop().steps(*[1] * 9).steps(*[1] * 6, 60, loop="other").seconds() == {"productive": 75}
    assert Loop().steps(*[1] * 9).steps(*[1] * 7, 60, loop="other").seconds() == {"productive": 27, "stalled": 49}


def test_an_open_step_is_in_flight_up_to_its_limit() -> None:
    hanging = Loop().steps(*[1] * 8, 3600)
    assert hanging.seconds(ended=False, at=8 + 5) == {"productive": 8, "in_flight": 5}
    assert hanging.seconds(ended=False, at=8 + 11) == {"productive": 8, "in_flight": 11}
    assert hanging.seconds(ended=False, at=8 + 300) == {"productive": 8, "in_flight": 11, "stalled": 289}


def test_what_stalled_of_a_lost_or_interrupted_step_stays_stalled() -> None:
    rows = [{"kind": "job", "start": 0, "end": None}, *Loop().steps(*[1] * 8, 60, *[1] * 2).rows]
    rows[-1]["end"] = None
    again = [{"kind": "job", "start": 100, "end": 110, "attempt": 2}]
    again += [{"kind": "step", "start": 100 + n, "end": 101 + n, "step": 8 + n, "attempt": 2} for n in range(10)]
    seconds = replay([*rows, *again])["seconds"]
    assert seconds == {"productive": 18, "wasted_progress": 12, "stalled": 49, "infrastructure_recovery": 31}
    assert account([*rows, *again])["seconds"] == seconds
    rows = [{"kind": "job", "start": 0, "end": None}, *Loop().steps(*[1] * 8, 60).rows]
    rows[-1]["end"] = None
    died = [*rows, {"kind": "heartbeat", "start": 68}, *again]
    seconds = replay(died)["seconds"]
    assert seconds == {"productive": 18, "wasted_progress": 11, "stalled": 49, "infrastructure_recovery": 32}
    assert account(died)["seconds"] == seconds


def test_eight_long_ones_in_a_row_are_the_new_usual() -> None:
    seven = Loop().steps(*[1] * 20, *[30] * 7)
    assert seven.seconds() == {"productive": 20 + 7 * 11, "stalled": 7 * 19}
    assert seven.steps(30).seconds() == {"productive": 20 + 8 * 30}
    assert seven.steps(30, 200, 400).seconds() == {"productive": 20 + 9 * 30 + 200 + 300, "stalled": 100}


def test_long_ones_at_a_regular_distance_are_long_steps() -> None:
    two = Loop().steps(*[1] * 20, 60, *[1] * 9, 60, *[1] * 9)
    assert two.seconds() == {"productive": 38 + 2 * 11, "stalled": 2 * 49}
    assert two.steps(60, *[1] * 9, 70, *[1] * 9).seconds() == {"productive": 38 + 3 * 60 + 9 + 70 + 9}
    # What takes far longer than the long ones, or is long in between, is stalled nevertheless.
    assert two.steps(700, 60).seconds() == {"productive": 306 + 600 + 11, "stalled": 100 + 49}


def test_hangs_at_no_regular_distance_stay_stalled() -> None:
    seconds = Loop().steps(*[1] * 20, 60, *[1] * 9, 60, *[1] * 8, 60, *[1] * 10, 60).seconds()
    assert seconds == {"productive": 47 + 4 * 11, "stalled": 4 * 49}
    row = Loop().steps(*[1] * 20, 60, 60, 60, *[1] * 5).seconds()
    assert row == {"productive": 25 + 3 * 11, "stalled": 3 * 49}


def test_compilations_saves_and_loads_inside_a_step_keep_their_time() -> None:
    loop = Loop().steps(*[1] * 8)
    for kind in ("compile", "checkpoint_save", "data_loading", "custom"):
        loop.rows.append({"kind": kind, "start": 8.5, "end": 100, "name": "eval", "blocking": True})
        assert "stalled" not in Loop.seconds(loop.steps(92.5)), kind
        loop = Loop().steps(*[1] * 8)
    assert Loop().steps(*[1] * 8).phase("data_loading", 500).seconds() == {"productive": 8, "data_loading": 500}


def test_time_that_is_cut_out_does_not_stall() -> None:
    loop = Loop().steps(*[1] * 8, 3603)
    loop.rows.append({"kind": "exclusion", "start": 10, "end": 3610})
    assert loop.seconds() == {"productive": 11}


def test_a_suspension_inside_a_step_comes_first() -> None:
    """8 h of sleep are in no category, and the step has its own time only."""
    loop = Loop().steps(*[1] * 8, 28803, *[1] * 8)
    loop.rows.append({"kind": "suspended", "start": 10, "end": 28810})
    report = replay([{"kind": "job", "start": 0, "end": loop.now}, *loop.rows], windows=[(5, 28815)])
    assert loop.seconds() == report["seconds"] == {"productive": 19}
    assert (report["suspended_s"], report["excluded_s"], report["elapsed_s"]) == (28800, 0, 19)
    assert report["step_time"]["max_s"] == 3 and report["windows"][0]["elapsed_s"] == 10


def test_nobody_is_accused_while_the_clock_is_unknown() -> None:
    loop = Loop().phase("clock", 0, state="unknown").steps(*[0.001] * 200, 15, *[0.001] * 200)
    assert "stalled" not in loop.seconds()


def test_the_first_step_after_going_back_may_start_up() -> None:
    loop = Loop().steps(*[1] * 10)
    loop.number = 5
    assert loop.steps(60, 1, 1).seconds() == {"productive": 5 + 3, "wasted_progress": 5, "program_startup": 59}


def test_the_limit_can_be_set() -> None:
    loop = Loop().phase("stall_limit", 0, limit=3).steps(*[1] * 8, *[5] * 20)
    assert loop.seconds() == {"productive": 8 + 20 * 3, "stalled": 20 * 2}, "and then nothing is given back"


def test_googles_account_has_no_stalled_time() -> None:
    hang = Loop().steps(*[1] * 8, 60, *[1] * 3, 40)
    rows = [{"kind": "job", "start": 0, "end": None}, *hang.rows]
    at = round(hang.now * SECOND) - SECOND
    run = timeline_totals(rows, at=at / SECOND).run
    assert run.categories["stalled"] == 49 * SECOND + 28 * SECOND
    assert {name: ns / SECOND for name, ns in run.whole_steps.items() if ns} == {"productive": 71, "in_flight": 39}


# --- the ledger is the oracle ---------------------------------------------------------------------------------------


def stalling_run(seed: int) -> Question:
    """Loops of steps of some seconds, some of which are long: alone, in a row, at a distance, lost, with phases inside.

    Drawn from a seed: a run of so many steps takes Hypothesis a second.
    """
    draw = Random(seed)
    rows: Rows = []
    now, number = 0, 0
    lives = draw.randint(1, 2)
    for attempt in range(1, lives + 1):
        begin, dead = now, False
        mine: Rows = []
        if draw.random() < 0.2:
            mine.append({"kind": "stall_limit", "start": now, "limit": draw.choice((4, 20))})
        if draw.random() < 0.15:
            mine.append({"kind": "clock", "start": now, "state": "unknown"})
        every, loop = draw.choice((0, 0, 2, 3, 5)), draw.choice((None, None, "a", "b"))
        lengths = [1] * draw.randint(0, 8) + draw.choices((1, 2, 3, 12, 30, 61, 200), (9, 3, 2, 1, 1, 1, 1), k=20)
        if draw.random() < 0.4:
            lengths += [draw.choice((12, 45))] * draw.randint(6, 10) + [1, 1, 100]
        for at, length in enumerate(lengths):
            if every and at > 8 and not at % every:
                length = 50
            step = {"kind": "step", "start": now, "end": now + length, "step": number, "loop": loop}
            mine.append(step)
            if length > 2 and draw.random() < 0.3:
                cut = now + draw.randrange(length)
                kind = draw.choice(("checkpoint_save", "custom", "exclusion", "data_loading", "compile"))
                mine.append({"kind": kind, "start": cut, "end": cut + length // 2, "name": "eval", "blocking": True})
            elif draw.random() < 0.05:
                cut, asleep = now + draw.randrange(length), draw.randint(1, 90)
                mine.append({"kind": "suspended", "start": cut, "end": cut + asleep})
                length += asleep
                step["end"] = now + length
            now += length
            if draw.random() < 0.05:
                step.update(draw.choice(({"completed": False}, {"left": True}, {"left": True, "completed": False})))
            if draw.random() < 0.1:
                step["device_end"] = now + draw.randint(0, 3)
            if draw.random() < 0.05:
                mine.append({"kind": "compile", "start": now, "end": now + 2, "name": "f"})
                now += 2
            number = number + 1 if draw.random() < 0.95 else max(0, number - draw.randint(0, 9))
            if draw.random() < 0.04:
                loop = draw.choice((None, "a", "b"))
        if attempt < lives and draw.random() < 0.6:
            dead, step["end"] = True, None
            mine.append({"kind": "heartbeat", "start": now})
        mine.append({"kind": "job", "start": begin, "end": None if dead else now + draw.randint(0, 3)})
        rows += [{**row, "attempt": attempt} for row in mine]
        now += 4 + draw.randint(0, 30)
        number = max(0, number - draw.randint(0, 3))
    low, high = sorted(draw.choices(range(now), k=2))
    at = draw.choice((None, draw.randrange(now)))
    return Question(rows, None if at is None else at * SECOND, [(low * SECOND, high * SECOND)])


@SOME
@given(st.integers(0, 1 << 40))
def test_the_ledger_answers_as_the_oracle_does(seed: int) -> None:
    check_agreement(stalling_run(seed))


@FEW
@given(st.integers(0, 1 << 40))
def test_stalled_time_is_given_back_by_a_named_transfer(seed: int) -> None:
    """P3, in a loop with long steps: alone, in a row, at a distance, and some of them lost."""
    draw = Random(seed)
    lengths = [1] * 8 + draw.choices((1, 2, 12, 30, 61), (12, 3, 1, 1, 1), k=10)
    lengths += [draw.choice((12, 30))] * draw.randint(0, 9)
    lengths += [30, *[1] * draw.randint(1, 3)] * draw.randint(0, 4)
    rows: Rows = []
    now, number = 1, 0
    for length in lengths:
        end = now + length * SECOND
        rows.append({"kind": "step", "start_ns": now, "end_ns": end, "step": number, "attempt": 1})
        now, number = end + 1, number + 1 if draw.random() < 0.97 else max(0, number - 3)
    rows.append({"kind": "job", "start_ns": 0, "end_ns": now, "attempt": 1})
    moments = sorted(row["end_ns"] + draw.randint(0, 1) for row in rows)
    first, second = sorted(draw.choices(moments, k=2))
    check_transfers(rows, first, second)


def test_the_transfer_happens() -> None:
    rows = [{**row, "attempt": 1} for row in Loop().steps(*[1] * 20, *[30] * 8).rows]
    for row in rows:
        row.update(start_ns=round(row.pop("start") * SECOND) + 1, end_ns=round(row.pop("end") * SECOND))
    rows.append({"kind": "job", "start_ns": 0, "end_ns": 300 * SECOND, "attempt": 1})
    assert check_transfers(rows, 230 * SECOND, 260 * SECOND) == {("stalled", "productive")}


@FEW
@given(st.integers(0, 1 << 40))
def test_however_it_arrives_the_account_is_the_same(seed: int) -> None:
    check_arrival(seed)


def check_arrival(seed: int) -> None:
    """In pieces, with late ends on the device, through snapshots, with rolling windows: P1 and P2."""
    fate = Random(seed)
    rows = [row for row in stalling_run(seed).rows if row["kind"] not in ("compile", "exclusion")]
    timeline = Timeline(rows)
    known = account_timeline(timeline, at=None)
    spans = (60 * SECOND, 600 * SECOND)
    events = arrivals(timeline, fate)
    ledger, whole = Ledger(spans), Ledger(spans)
    whole.feed(events)
    first = 0
    while first < len(events):
        chunk = fate.randint(1, 9)
        ledger.feed(events[first : first + chunk])
        first += chunk
        if fate.random() < 0.2:
            head, blobs = ledger.dump()
            ledger = Ledger.load(json.loads(json.dumps(head)), b"".join(bytes(blob) for blob in blobs), spans)
        now = max(event.time for event in events[:first]) + fate.choice((0, 0, 5 * SECOND, 50 * SECOND))
        live, seen = ledger.totals(now), ledger.overview(now)
        for part in (live.run, *(window for _, window in live.rolling)):
            assert sum(part.categories.values()) + sum(part.custom.values()) == part.elapsed
            assert min(part.categories.values()) >= 0, part
        binned = sum(bin.get(rules.STALLED, 0) for bin in seen.bins)
        assert binned == live.run.categories["stalled"]
        assert sum(sum(bin.values()) for bin in seen.bins) == live.run.elapsed
    resumed, expected = ledger.totals(known.at), whole.totals(known.at)
    assert resumed.to_json() == known.to_json()
    assert resumed.rolling == expected.rolling
    # One after the other, the intervals are the same account.
    trace = traced(timeline.events(), at=known.at)
    for category, name in ((rules.STALLED, "stalled"), (rules.PRODUCTIVE, "productive")):
        held = sum(end - begin for begin, end, owner in trace.intervals() if owner == category)
        assert held == known.run.categories[name]


def test_recurring_long_steps_are_reported_with_the_line_to_write() -> None:
    loop = Loop().steps(*[1] * 20, 60, *[1] * 9, 60, *[1] * 9, 60, *[1] * 5)
    report = replay([{"kind": "job", "start": 0, "end": loop.now}, *loop.rows])
    assert report["long_steps"] == {"every": 10, "long_s": 60, "usual_s": 1}
    (note,) = [note for note in doubts(report) if note.kind == "long steps"]
    assert "One step in 10 takes" in note.text and "custom()" in note.text
    loop = Loop().steps(*[1] * 20, 60, *[1] * 9, 60)
    assert "long_steps" not in replay([{"kind": "job", "start": 0, "end": loop.now}, *loop.rows])


def test_of_loads_saves_and_custom_phases_the_excess_is_flagged() -> None:
    loop = Loop()
    for length in (*[1] * 8, 300, 1):
        loop.phase("data_loading", length, blocking=True).phase("custom", length, name="eval").steps(1)
        loop.phase("data_loading", length, blocking=False).phase("checkpoint_save", 1)
    rows = [{"kind": "job", "start": 0, "end": loop.now}, *loop.rows]
    ledger = Ledger()
    ledger.feed(Timeline(rows).events())
    head, blobs = ledger.dump()
    for one in (ledger, Ledger.load(json.loads(json.dumps(head)), b"".join(bytes(blob) for blob in blobs))):
        figures = one.totals().to_json()
        excess = {"count": 1, "excess_s": 289, "longest_s": 300}
        assert sorted(figures["long_phases"], key=str) == sorted(
            [{"phase": "data_loading", "name": "", **excess}, {"phase": "custom", "name": "eval", **excess}], key=str
        )
        assert (figures["seconds"]["data_loading"], figures["seconds"]["custom"]) == (309, {"eval": 309})
    (note,) = [note for note in doubts(figures) if note.kind == "long phases"]
    assert "1 x eval (longest" in note.text


@given(st.lists(st.integers(0, 50), min_size=1, max_size=300), st.lists(st.integers(1, 90), min_size=1, max_size=30))
def test_what_single_steps_take_longer_does_not_depend_on_how_many_are_taken_at_once(
    times: list[int], sizes: list[int]
) -> None:
    one_by_one, together = Singles(), Singles()
    rest, sizes = [time * SECOND // 10 for time in times], [*sizes, len(times)]
    for time in rest:
        one_by_one.add([time])
    for size in sizes:
        together.add(rest[:size])
        rest = rest[size:]
    assert one_by_one.to_plain(Blobs()) == together.to_plain(Blobs())


def test_an_evaluation_in_a_step_is_apart_and_steps_that_stay_longer_are_not() -> None:
    singles, ms = Singles(), SECOND // 1000
    singles.add([100 * ms] * 50 + [4_000 * ms] + [100 * ms] * 50)
    assert (singles.excess, singles.usual) == (3_900 * ms, 100 * ms)
    singles.add([450 * ms] * 10)
    assert (singles.excess, singles.usual) == (3_900 * ms, 450 * ms)
    assert singles.split(2_450 * ms) == (450 * ms, 2_000 * ms) and singles.split(700 * ms) == (700 * ms, 0)


@pytest.mark.parametrize(("load", "unfinished", "excess"), [(0.4, 0.4, 0), (9, 0.5, 8.5)])
def test_what_is_of_the_turn_that_is_not_over_is_known(load: float, unfinished: float, excess: float) -> None:
    loop = Loop()
    for _ in range(100):
        loop.phase("data_loading", 0.5, blocking=True).steps(2)
    rows = [{"kind": "job", "start": 0, "end": None}, *loop.rows]
    rows.append({"kind": "data_loading", "start": loop.now, "end": loop.now + load, "blocking": True})
    brief = timeline_totals(rows, at=loop.now + load + 0.2).brief
    assert brief.unfinished == {"data_loading": unfinished * SECOND, "other": 0.2 * SECOND}
    assert brief.excess == {"productive": 0, "data_loading": excess * SECOND, "other": 0}
