"""P2: however the same happenings arrive, in pieces, with late ends on the device, through snapshots, the account
is that of a timeline that knew them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_goodput._accounting import Ledger, rules
from otel_goodput._accounting import events as ev
from otel_goodput._accounting.device import NEVER
from otel_goodput._accounting.events import Event
from otel_goodput.reports.timeline import Timeline, account_timeline

from .strategies import Rows, chaos, runs, spread
from .test_properties import MANY, USUAL

S = 10**9
MARKS = 1 << 63  # keys of marks, which are as large as span ids may be


def recorded(events: list[Event], fate: random.Random) -> Iterator[Event]:
    """One attempt's events as they are recorded: a mark when its phase is over, its end some time later."""
    waiting: dict[int, list[Event]] = {}  # marks by the phase that is still open
    on_their_way: list[Event] = []  # ends on their way
    phases = {event.key: event.phase for event in events if event.kind == ev.START}
    begins: dict[int, int] = {}
    free = 0

    def answer(end: Event) -> Event:
        """Some ends follow from what was recorded before: how long it was on the device, and a latest time."""
        nonlocal free
        took, free = end.time - max(begins[end.key], free), max(free, end.time)
        if took < 0 or fate.random() < 0.5:
            return end
        return end._replace(time=end.time + fate.choice((0, 1, S)), step=took)

    for event in events:
        if event.kind == ev.START and event.phase == rules.STEP and event.arg:
            yield event._replace(arg=0)
            yield Event(event.time, ev.OBSERVED, rules.STEP, event.key)
            begins[event.key] = event.time
            if event.arg < NEVER:
                on_their_way.append(Event(event.arg, ev.DEVICE_END, rules.STEP, event.key))
        elif event.kind == ev.MARK:
            key = MARKS + fate.getrandbits(40)
            begins[key] = event.time
            waiting.setdefault(event.step, []).append(event._replace(key=key, arg=0))
            if event.arg < NEVER:
                on_their_way.append(Event(event.arg, ev.DEVICE_END, phases[event.step], key))
        else:
            if event.kind == ev.END:
                yield from waiting.pop(event.key, ())
            yield event
        untold = {mark.key for marks in waiting.values() for mark in marks}
        late = [end for end in on_their_way if end.key in untold or fate.random() < 0.5]
        yield from (answer(end) for end in on_their_way if end not in late)
        on_their_way = late
    for marks in waiting.values():
        yield from marks
    yield from map(answer, on_their_way)


def arrivals(timeline: Timeline, fate: random.Random) -> list[Event]:
    attempts: list[list[Event]] = []
    for event in timeline.events():
        if event.kind == ev.ATTEMPT:
            attempts.append([])
        attempts[-1].append(event)
    return [event for attempt in attempts for event in recorded(attempt, fate)]


def through_snapshot(ledger: Ledger) -> Ledger:
    head, blobs = ledger.dump()
    return Ledger.load(json.loads(json.dumps(head)), b"".join(bytes(blob) for blob in blobs))


def check_stream(rows: Rows, seed: int) -> None:
    fate = random.Random(seed)
    # Only the timeline knows where all compilations lie within what is dispatched. Phases may be marked where
    # there is an asynchronous runtime, and then that is recorded.
    rows = [row for row in rows if row["kind"] not in ("compile", "clock")]
    for attempt in {row["attempt"] for row in rows}:
        first = min(row["start_ns"] for row in rows if row["attempt"] == attempt)
        rows.append({"kind": "clock", "start_ns": first - 1, "attempt": attempt, "state": "unknown"})
    timeline = Timeline(rows)
    known = account_timeline(timeline, at=None)
    events = arrivals(timeline, fate)
    ledger = Ledger()
    first = 0
    while first < len(events):
        chunk = fate.randint(1, 9)
        ledger.feed(events[first : first + chunk])
        first += chunk
        if fate.random() < 0.2:
            ledger = through_snapshot(ledger)
        moment = max(event.time for event in events[:first])
        live = ledger.totals(moment)
        assert ledger.brief(moment) == live.brief
        assert sum(live.run.categories.values()) + sum(live.run.custom.values()) == live.run.elapsed
    totals = ledger.totals(known.at)
    assert totals.to_json() == known.to_json()


@MANY
@given(runs().map(spread), st.integers(0, 2**32))
def test_however_it_arrives_the_account_is_the_same(rows: Rows, seed: int) -> None:
    check_stream(rows, seed)


@settings(MANY, max_examples=4 * USUAL // 3)
@given(chaos().map(spread), st.integers(0, 2**32))
def test_however_it_arrives_in_chaos_the_account_is_the_same(rows: Rows, seed: int) -> None:
    check_stream(rows, seed)


# --- marks, told by hand ----------------------------------------------------------------------------------------------


def job(*events: Event) -> list[Event]:
    """In which compilations are seen, so that nothing is guessed."""
    seen = [Event(0, ev.START, rules.COMPILE, 3), Event(0, ev.END, rules.COMPILE, 3)]
    return [Event(0, ev.ATTEMPT, step=0), Event(0, ev.START, rules.JOB, 1), *seen, *events]


def start(time: int, phase: int, key: int, step: int = -1, name: str = "") -> Event:
    return Event(time * S, ev.START, phase, key, step, name=name)


def end(time: int, phase: int, key: int, flags: int = 0) -> Event:
    return Event(time * S, ev.END, phase, key, flags=flags)


def mark(since: int, key: int, owner: int) -> Event:
    return Event(since * S, ev.MARK, key=key, step=owner)


def left(time: int, key: int) -> Event:
    return Event(time * S, ev.DEVICE_END, rules.STEP, key)


@pytest.mark.parametrize("clock", [[], [Event(0, ev.CLOCK, 1)]], ids=["host", "unknown"])
def test_an_evaluation_has_what_it_dispatched_however_late_that_is_known(clock: list[Event]) -> None:
    ledger = Ledger()
    ledger.feed(job(*clock, start(0, rules.STEP, 5, 1), end(10, rules.STEP, 5, ev.ON_DEVICE), left(20, 5)))
    ledger.feed([start(20, rules.CUSTOM_PHASE, 6, name="eval"), start(22, rules.DATA_LOADING, 7)])
    ledger.feed([end(23, rules.DATA_LOADING, 7), mark(20, 90, 6), end(24, rules.CUSTOM_PHASE, 6)])
    ledger.feed([start(24, rules.STEP, 8, 2), end(25, rules.STEP, 8, ev.ON_DEVICE)])
    assert dict(ledger.totals(40 * S).run.custom) == {"eval": 20 * S}, "it is on the device still"
    ledger.feed([left(35, 90), left(45, 8)])
    totals = ledger.totals(50 * S)
    assert dict(totals.run.custom) == {"eval": 15 * S} and totals.run.productive == 30 * S
    assert (totals.kept, totals.pending, totals.clock) == (2, 0, "device")
    assert not ledger.pending


def test_the_interval_begins_behind_the_last_compilation_inside() -> None:
    events = job(
        *(start(0, rules.STEP, 5, 1), start(1, rules.COMPILE, 6), end(9, rules.COMPILE, 6)),
        end(12, rules.STEP, 5, ev.ON_DEVICE),
    )
    ledger = Ledger()
    ledger.feed(events)
    assert ledger.totals(15 * S).run.categories["program_startup"] == 8 * S
    ledger.feed([left(20, 5)])
    totals = ledger.totals(20 * S)
    assert totals.run.rows() == [("productive", "", 12 * S), ("program_startup", "", 8 * S)]
    assert totals.observed and totals.kept == 1


def test_a_step_is_over_when_all_that_it_dispatched_is_done() -> None:
    """Cut by a save: what was dispatched before it ends before it does, what comes after has an interval of its own."""
    ledger = Ledger()
    ledger.feed(job(start(0, rules.STEP, 5, 1), start(2, rules.SAVE, 6), mark(0, 90, 5)))
    ledger.feed([left(6, 90), end(9, rules.SAVE, 6)])
    assert ledger.totals(9 * S).run.categories["checkpoint_save"] == 3 * S
    ledger.feed([mark(9, 91, 5), end(10, rules.STEP, 5)])
    totals = ledger.totals(12 * S)
    assert (totals.pending, totals.kept, totals.in_flight_step) == (1, 0, 1)
    ledger.feed([left(14, 91), Event(16 * S, ev.HEARTBEAT)])
    totals = ledger.totals(16 * S)
    assert totals.run.rows() == [("productive", "", 11 * S), ("checkpoint_save", "", 3 * S), ("other", "", 2 * S)]


def test_a_mark_that_nobody_hears_of_again_leaves_the_host_clock() -> None:
    ledger = Ledger()
    ledger.feed(job(start(0, rules.STEP, 5, 1), mark(0, 90, 5), end(3, rules.STEP, 5), start(3, rules.DATA_LOADING, 6)))
    assert ledger.totals(5 * S).pending == 1
    ledger.feed([Event(4 * S, ev.UNOBSERVED, rules.STEP, 90), end(6, rules.DATA_LOADING, 6)])
    totals = ledger.totals(6 * S)
    assert totals.run.rows() == [("productive", "", 3 * S), ("data_loading", "", 3 * S)] and totals.kept == 1
    assert totals.clock == "host" and not ledger.pending


def test_a_step_is_pending_while_its_process_lives_and_lost_when_it_has_died() -> None:
    """Also after the job's end."""
    for over in ([], [end(9, rules.JOB, 1)]):
        ledger = Ledger()
        ledger.feed(job(start(0, rules.STEP, 5, 1), end(3, rules.STEP, 5, ev.ON_DEVICE)))
        ledger.feed([start(3, rules.STEP, 6, 2), *over])
        alive = ledger.totals(9 * S)
        assert (alive.pending, alive.lost, alive.in_flight_step) == ((1, 1, 1) if over else (2, 0, 2))
        dead = ledger.totals(9 * S, dead=True)
        assert (dead.pending, dead.lost, dead.in_flight_step) == (0, 2, None)
        assert dead.run.categories["wasted_progress"] == dead.run.elapsed == 9 * S
        if over:
            ledger.feed([left(8, 5)])
            assert ledger.totals(9 * S).run.categories["productive"] == 8 * S


def test_what_a_durable_checkpoint_holds_has_completed() -> None:
    """A step that saves itself and fails: kept as soon as its checkpoint is durable."""
    save = [start(4, rules.SAVE, 6, 1), end(5, rules.SAVE, 6, ev.PENDING)]
    ledger = Ledger((60 * S,))
    ledger.feed(job(start(0, rules.STEP, 5, 1), *save, end(7, rules.STEP, 5, ev.FAILED)))
    before = ledger.totals(8 * S)
    assert (before.kept, before.lost) == (0, 1) and before.run.categories["wasted_progress"] == 6 * S
    ledger = Ledger.load(*_state(ledger), (60 * S,))
    ledger.feed([Event(9 * S, ev.DURABLE, key=6)])
    after = ledger.totals(10 * S)
    assert (after.kept, after.lost, after.at_risk) == (1, 0, 0) and after.run.productive == 6 * S
    assert [window.productive for _, window in after.rolling] == [6 * S]
    # A death does the same to what is open: the next attempt begins behind it.
    ledger = Ledger()
    ledger.feed(job(start(0, rules.STEP, 5, 1), start(4, rules.SAVE, 6, 1), end(5, rules.SAVE, 6)))
    assert ledger.totals(8 * S, dead=True).kept == 1
    ledger.feed([Event(20 * S, ev.ATTEMPT, step=1), start(20, rules.JOB, 1), start(20, rules.STEP, 5, 2)])
    totals = ledger.totals(21 * S)
    assert (totals.kept, totals.lost, totals.run.productive) == (1, 0, 4 * S)


def test_a_checkpoint_holds_what_an_earlier_job_of_the_attempt_has_left_on_the_device() -> None:
    ledger = Ledger()
    ledger.feed(job(start(0, rules.STEP, 5, 3), end(2, rules.STEP, 5, ev.ON_DEVICE), end(3, rules.JOB, 1)))
    ledger.feed([start(4, rules.JOB, 2), start(5, rules.SAVE, 6, 3), end(6, rules.SAVE, 6)])
    alive = ledger.totals(8 * S)
    assert (alive.kept, alive.pending, alive.lost) == (0, 1, 0)
    ledger.feed([Event(20 * S, ev.ATTEMPT, step=1), start(20, rules.JOB, 1)])
    dead = ledger.totals(21 * S)
    assert (dead.kept, dead.pending, dead.lost) == (1, 0, 0) and not dead.run.categories["wasted_progress"]


def _state(ledger: Ledger) -> tuple[dict[str, object], bytes]:
    head, blobs = ledger.dump()
    return json.loads(json.dumps(head)), b"".join(bytes(blob) for blob in blobs)


@pytest.mark.parametrize(("length", "kept", "last"), [(10, 3, 2), (5, 3, 2), (4, 2, 1)])
def test_a_step_that_was_left_has_done_its_work_or_never_began(length: int, kept: int, last: int) -> None:
    """Half of the usual is a step's work."""
    whole = ((start(10 * n, rules.STEP, 5 + n, n), end(10 * n + 10, rules.STEP, 5 + n)) for n in range(2))
    steps = [event for pair in whole for event in pair]
    broken = [start(20, rules.STEP, 9, 2), end(20 + length, rules.STEP, 9, ev.FAILED | ev.LEFT)]
    ledger = Ledger((60 * S,))
    ledger.feed(job(*steps, *broken))
    totals = ledger.totals(40 * S)
    assert (totals.kept, totals.executed, totals.lost, totals.started) == (kept, kept, 0, kept)
    assert totals.last_step == last
    worked = 20 + (length if kept == 3 else 0)
    assert totals.run.rows() == [("productive", "", worked * S), ("other", "", (40 - worked) * S)]
    assert [window.productive for _, window in totals.rolling] == [totals.run.productive]
    alone = Ledger()
    alone.feed(job(start(0, rules.STEP, 9, 2), end(1, rules.STEP, 9, ev.FAILED | ev.LEFT)))
    assert alone.totals(2 * S).kept == 1, "there is nothing to hold it against"


def test_what_older_snapshots_hold_besides_is_ignored() -> None:
    """They also had what follows from other members, such as how many exclusions are open."""
    events = [Event(0, ev.ATTEMPT, step=0), Event(1, ev.START, rules.JOB, 1)]
    for number in range(10):
        events.append(Event(number * S + 1, ev.START, rules.STEP, 10 + number, number))
        events.append(Event(number * S + S // 2, ev.END, rules.STEP, 10 + number))
    events.append(Event(9 * S + S // 4, ev.START, rules.EXCLUSION, 2))
    ledger = Ledger((5 * S,))
    ledger.feed(sorted(events))
    head, blobs = ledger.dump()
    head = json.loads(json.dumps(head))
    head["account"]["open_windows"] |= {"next": 0, "excluded": 1, "opened": 0}
    for window in head["account"]["steps"]["windows"]:
        window["kept_total"] = sum(time for _, time in window["kept"])
    for segment in head["account"]["steps"]["step_segments"]:
        segment["begin"] = 1
    older = Ledger.load(head, b"".join(map(bytes, blobs)), (5 * S,))
    for each in (ledger, older):
        each.feed([Event(11 * S, ev.END, rules.EXCLUSION, 2), Event(14 * S, ev.END, rules.JOB, 1)])
    assert older.totals() == ledger.totals() and older.overview() == ledger.overview()
    assert older.totals().excluded == 2 * S - S // 4 and older.totals().run.elapsed == 12 * S + S // 4 - 1
