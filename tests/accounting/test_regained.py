"""Time to the first step and to what was kept before a disruption: in bulk, across snapshots, and in bounded space."""

from __future__ import annotations

import json

from otel_goodput._accounting import Event, Ledger, rules
from otel_goodput._accounting import events as ev
from otel_goodput._accounting.disruption import REMEMBERED

S = 10**9


def attempt(number: int, begin: int, first: int, count: int) -> list[Event]:
    """A job that starts at `begin` (s), and `count` steps of 1 s each from 5 s later on; it dies in the last."""
    events = [
        Event(begin * S, ev.ATTEMPT, step=number),
        Event(begin * S, ev.START, rules.JOB, 1),
    ]
    for at in range(count):
        start = (begin + 5 + at) * S
        events.append(Event(start, ev.START, rules.STEP, 10 + at, first + at))
        events.append(Event(start + S, ev.END, rules.STEP, 10 + at))
    return events[:-1]


def shown(ledger: Ledger) -> list[tuple[int | None, int | None, int | None]]:
    return [(one.kept_step, one.first_step, one.regained) for one in ledger.totals().history]


def reloaded(ledger: Ledger) -> Ledger:
    head, blobs = ledger.dump()
    return Ledger.load(json.loads(json.dumps(head)), b"".join(bytes(blob) for blob in blobs))


RUN = [*attempt(0, 0, 0, 500), *attempt(1, 1000, 300, 400)]
REGAINED = [(498, 6 * S, (5 + 199) * S)]  # step 498 is the 199th


def test_the_step_that_regains_is_found_among_many_that_are_applied_together() -> None:
    together, one_by_one = Ledger(), Ledger()
    together.feed(RUN)
    for event in RUN:
        one_by_one.feed([event])
    assert shown(together) == shown(one_by_one) == REGAINED
    assert together.totals().first_step == 6 * S


def test_a_snapshot_in_between_changes_nothing() -> None:
    for cut in (1, 990, 1003, 1005, 1300, 1390, 1410):
        ledger = Ledger()
        ledger.feed(RUN[:cut])
        ledger = reloaded(ledger)
        ledger.feed(RUN[cut:])
        assert shown(reloaded(ledger)) == REGAINED, cut


def test_an_account_that_goes_on_does_not_change_one_that_was_drawn() -> None:
    ledger = Ledger()
    ledger.feed(RUN[:1300])
    before = ledger.totals()
    ledger.feed(RUN[1300:])
    assert [one.regained for one in before.history] == [None]


def test_more_rollbacks_than_are_remembered() -> None:
    """Each goes back further than the one before: none is regained before the last of them all."""
    back = 3 * REMEMBERED
    events = attempt(0, 0, 0, back + 2)[1:-1]
    now = events[-1].time
    for key, number in enumerate(range(back - 1, -1, -1), 10**6):
        events.append(Event(now, ev.START, rules.STEP, key, number))
        now += S
        events.append(Event(now, ev.END, rules.STEP, key))
    for key, number in enumerate(range(1, back + 1), 2 * 10**6):
        events.append(Event(now, ev.START, rules.STEP, key, number))
        now += S
        events.append(Event(now, ev.END, rules.STEP, key))
    ledger = Ledger()
    ledger.feed(events)
    history = ledger.totals().history
    assert len(history) == REMEMBERED
    assert all(one.regained is not None for one in history)
    assert [one.regained for one in ledger.overview().disruptions[:-REMEMBERED]] == [None] * (back - REMEMBERED)
    assert reloaded(ledger).totals().history[-1].regained == history[-1].regained
