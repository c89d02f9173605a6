"""Rolling windows that come while a run is going on."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from otel_goodput._accounting import Ledger, rules
from otel_goodput._accounting import events as ev
from otel_goodput._accounting.events import Event

S = 10**9
HOUR = 3600 * S
BUCKET = HOUR // 240


def stream(seconds: int) -> list[Event]:
    """A job, with a step of 7 s and a load of 3 s in every 10 s."""
    events = [Event(0, ev.ATTEMPT, step=0), Event(0, ev.START, rules.JOB, 1)]
    for number in range(seconds // 10):
        at, key = number * 10 * S, 2 + 2 * number
        events += [
            Event(at, ev.START, rules.DATA_LOADING, key),
            Event(at + 3 * S, ev.END, rules.DATA_LOADING, key),
            Event(at + 3 * S, ev.START, rules.STEP, key + 1, number),
            Event(at + 10 * S, ev.END, rules.STEP, key + 1),
        ]
    return events


def windows(ledger: Ledger) -> dict[int, tuple[int, dict[str, int]]]:
    return {
        span: (partition.elapsed, {name: spent for name, _, spent in partition.rows()})
        for span, partition in ledger.totals().rolling
    }


@given(st.integers(1, 400), st.integers(1, 400), st.integers(10, 90))
def test_a_window_that_comes_later_is_as_if_it_had_always_been_there(before: int, after: int, minutes: int) -> None:
    """It reaches back over the buckets that there are; buckets stay as wide as they were."""
    span = minutes * 60 * S
    events = stream(10 * (before + after))
    cut = 2 + 4 * before
    late, always = Ledger((HOUR, 24 * HOUR)), Ledger((HOUR, 24 * HOUR, span))
    late.feed(events[:cut])
    late.add_windows([span])
    late.feed(events[cut:])
    always.feed(events)
    actual, expected = windows(late), windows(always)
    assert actual.keys() == expected.keys()
    for length, (elapsed, spent) in expected.items():
        assert actual[length][0] == elapsed
        for name in ("productive", "data_loading"):
            assert abs(actual[length][1].get(name, 0) - spent.get(name, 0)) <= BUCKET


def test_much_finer_windows_begin_anew() -> None:
    ledger = Ledger((24 * HOUR,))
    events = stream(7200)
    ledger.feed(events[: 2 + 4 * 360])
    ledger.add_windows([60 * S])
    ledger.feed(events[2 + 4 * 360 :])
    shares = windows(ledger)
    assert shares[60 * S] == (60 * S, {"productive": 42 * S, "data_loading": 18 * S})
    assert shares[24 * HOUR][0] == 3600 * S, "what was before is not known as finely"


def test_added_windows_outlive_a_restart_with_fewer() -> None:
    """The next attempt is configured without them: what its own windows hold stays."""
    ledger = Ledger((HOUR,))
    ledger.feed(stream(1000))
    ledger.add_windows([HOUR // 2])
    head, blobs = ledger.dump()
    again = Ledger.load(json.loads(json.dumps(head)), b"".join(bytes(blob) for blob in blobs), (HOUR,))
    assert windows(again)[HOUR] == windows(ledger)[HOUR]


def test_their_buckets_are_the_same_after_a_restart() -> None:
    """The buckets are those of the first windows, also where those of the shortest window would be narrower."""
    ledger = Ledger((HOUR,))
    ledger.feed(stream(3 * 3600))
    ledger.add_windows((HOUR // 2,))
    head, blobs = ledger.dump()
    again = Ledger.load(json.loads(json.dumps(head)), b"".join(map(bytes, blobs)), (HOUR, HOUR // 2))
    assert windows(again) == windows(ledger)
    more = [event._replace(time=event.time + 3 * HOUR, key=event.key + 10**6) for event in stream(7200)[2:]]
    for one in (ledger, again):
        one.feed(event._replace(step=event.step + 10**6) if event.step >= 0 else event for event in more)
    assert windows(again) == windows(ledger)
