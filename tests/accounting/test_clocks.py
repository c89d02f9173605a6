"""A run of which nobody knows when its steps ended: the clock, what is unknown, and that parts own nothing."""

from __future__ import annotations

import json

import pytest

from otel_goodput._accounting import Ledger, Totals, rules
from otel_goodput._accounting import events as ev
from otel_goodput._accounting.events import Event
from otel_goodput.reports.timeline import account
from otel_goodput.semconv import FALLBACK_CLOCKS, ClockState

S = 10**9
SPANS = (60 * S, 600 * S)
FATE = ("goodput", "at_risk_s", "step_time", "ideal_step_time_s", "step_time_deviation_s")


def clock(time: int, state: str) -> Event:
    return Event(time * S, ev.CLOCK, FALLBACK_CLOCKS.index(state))


def step(number: int, start: int, end: int, device: int = 0) -> list[Event]:
    """A step, its times in seconds; `device`: when it left the device."""
    key = 100 + number
    device_end = [Event(device * S, ev.DEVICE_END, rules.STEP, key)] if device else []
    flags = ev.ON_DEVICE if device else 0
    opened = Event(start * S, ev.START, rules.STEP, key, number)
    return [opened, Event(end * S, ev.END, rules.STEP, key, flags=flags), *device_end]


def job(*events: list[Event] | Event, end: int = 0) -> list[Event]:
    flat = [one for given in events for one in (given if isinstance(given, list) else [given])]
    over = [Event(end * S, ev.END, rules.JOB, 1)] if end else []
    return [Event(0, ev.ATTEMPT, step=0), Event(0, ev.START, rules.JOB, 1), *flat, *over]


def ledger_of(events: list[Event]) -> Ledger:
    ledger = Ledger(SPANS)
    ledger.feed(events)
    return ledger


def answer(events: list[Event], at: int) -> Totals:
    """The ledger's, which goes through a snapshot in the middle and knows what has happened until then."""
    events = [event for event in events if event.time <= at * S]
    ledger = ledger_of(events[: len(events) // 2])
    head, blobs = ledger.dump()
    ledger = Ledger.load(json.loads(json.dumps(head)), b"".join(bytes(blob) for blob in blobs), SPANS)
    ledger.feed(events[len(events) // 2 :])
    return ledger.totals(at * S)


def test_without_a_word_of_a_clock_steps_count_by_the_host() -> None:
    totals = answer(job(step(1, 0, 10), step(2, 10, 20)), 30)
    assert totals.clock == ClockState.HOST and totals.run.known and totals.run.unknown == 0
    assert totals.to_json()["reason"] is None and totals.to_json()["clock"] == ClockState.HOST


def test_before_the_first_step_the_clock_is_the_fallback() -> None:
    assert answer(job(clock(0, ClockState.UNKNOWN)), 5).clock == ClockState.UNKNOWN
    assert answer(job(), 5).clock == ClockState.HOST


def test_what_lies_under_steps_of_unknown_clock_is_counted() -> None:
    events = job(clock(0, ClockState.UNKNOWN), step(1, 0, 10), step(2, 20, 30), step(3, 40, 45, device=50), end=90)
    assert answer(events, 15).run.unknown == 5 * S
    totals = answer(events, 100)
    assert totals.run.unknown == 40 * S, "from the end of the first to the end of the one that is known"
    assert totals.clock == ClockState.DEVICE
    assert sum(totals.run.categories.values()) == totals.run.elapsed == 90 * S


def test_the_end_of_the_job_ends_it() -> None:
    events = job(clock(0, ClockState.UNKNOWN), step(1, 0, 10), end=30)
    assert answer(events, 30).run.unknown == answer(events, 99).run.unknown == 20 * S
    again = [Event(50 * S, ev.ATTEMPT, step=1), Event(50 * S, ev.START, rules.JOB, 7), *step(2, 50, 60)]
    assert answer([*events, *again], 80).run.unknown == 20 * S, "the new attempt says nothing of its clock"


def test_figures_that_rest_on_the_fate_of_steps_are_null_with_a_reason() -> None:
    events = job(clock(0, ClockState.UNKNOWN), *(step(n, 10 * n, 10 * n + 5) for n in range(20)))
    totals = answer(events, 200)
    assert not totals.run.known and totals.run.goodput is None
    text = totals.to_json()
    assert {name: text[name] for name in FATE} == dict.fromkeys(FATE)
    assert text["reason"] == "not known: dispatch only" and text["clock"] == ClockState.UNKNOWN
    assert text["seconds"] and text["elapsed_s"] == 200 and text["steps"]["executed"] == 20
    assert totals.productivity is None


@pytest.mark.parametrize(("whole", "known"), [(1000, True), (999, False)])
def test_a_hundredth_of_the_time_may_be_unknown(whole: int, known: bool) -> None:
    events = job(clock(0, ClockState.UNKNOWN), step(1, 0, 10), step(2, 15, 20, device=20), clock(20, ClockState.HOST))
    totals = answer(events, whole)
    assert totals.run.unknown == 10 * S and totals.run.known is known
    assert (totals.to_json()["reason"] is None) is known and (totals.run.goodput is None) is not known


def test_windows_know_how_much_of_them_is_unknown() -> None:
    events = job(clock(0, ClockState.UNKNOWN), step(1, 0, 100), step(2, 100, 150, device=200), end=3000)
    windows = [(0, 50 * S), (90 * S, 120 * S), (300 * S, 3000 * S)]
    placed = [event._replace(arg=200 * S) if event.kind == ev.START and event.step == 2 else event for event in events]
    answered = account(placed, at=None, windows=windows, exclusions=[(110 * S, 115 * S)])
    assert [one.unknown // S for *_, one in answered.windows] == [0, 15, 0]
    assert [one["reason"] is None for one in answered.to_json()["windows"]] == [True, False, True]


def test_rolling_windows_look_back_over_it_and_no_further() -> None:
    # Unknown from 10 to 70; buckets are a quarter of a second wide.
    events = job(clock(0, ClockState.UNKNOWN), step(1, 0, 10), step(2, 60, 65, device=70), end=2000)
    for at, minute, ten in ((40, 30, 30), (70, 60, 60), (100, 30, 60), (129, 1, 60), (131, 0, 60), (680, 0, 0)):
        (_, short), (_, long) = answer(events, at).rolling
        assert (short.unknown, long.unknown) == (minute * S, ten * S), at


def test_parts_of_a_step_own_nothing() -> None:
    parts = [
        Event(2 * S, ev.START, rules.PART, 7, name="forward"),
        Event(5 * S, ev.START, rules.DATA_LOADING, 8),
        Event(6 * S, ev.END, rules.DATA_LOADING, 8),
        Event(9 * S, ev.END, rules.PART, 7),
    ]
    opened, over = step(1, 0, 10)
    totals = answer(job(opened, *parts, over), 12)
    assert totals.run.rows() == [("productive", "", 9 * S), ("data_loading", "", S), ("other", "", 2 * S)]
    dead = [*job(opened, *parts), Event(50 * S, ev.ATTEMPT, step=1), Event(50 * S, ev.START, rules.JOB, 7)]
    assert answer(dead, 50).run.categories["infrastructure_recovery"] == 41 * S, "they are signs of life"


def test_steps_that_the_device_has_after_the_end_of_the_job_have_no_step_time() -> None:
    """The job hands over its steps and ends; half of them are done later, and nobody waited for them."""
    events = job(*(step(n, n, n + 1, device=10 * (n + 1)) for n in range(10)), end=45)
    totals = answer(sorted(events, key=lambda event: event.time), 200)
    assert totals.kept == 10 and totals.run.productive == 45 * S
    assert totals.step_time is not None and totals.step_time.count == 5
    assert (totals.step_time.median, totals.ideal_step_time) == (10 * S, 9 * S), "the fifth was cut in half"
