"""Events that are applied together leave the same account behind, to the last number, as each of them applied alone."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_goodput._accounting import events as ev
from otel_goodput._accounting import rules
from otel_goodput._accounting.codec import Blobs
from otel_goodput._accounting.cursor import Cursor
from otel_goodput._accounting.events import Event
from otel_goodput._accounting.windows import Edge
from otel_goodput.reports.timeline import Timeline

from .strategies import Rows, chaos, runs, spread
from .test_properties import MANY

SPANS = (20_000_000, 250_000_000)  # ns, of rolling windows whose buckets close in the middle of everything
BATCHES = (1, 3, 12, 256)  # events at once, at most
COMPARED = 50  # every so many batches


class Counting(Cursor):
    """Counts the events that are applied alone."""

    alone = 0

    def apply(self, event: Event) -> None:
        self.alone += 1
        super().apply(event)


def state(cursor: Cursor) -> tuple[str, list[bytes]]:
    blobs = Blobs()
    return json.dumps(cursor.to_plain(blobs)), [bytes(blob) for blob in blobs.written]


def check(events: Sequence[Event], fate: random.Random, edges: Sequence[Edge] = (), *, overview: bool = True) -> float:
    """Returns which share of the events were not applied alone."""
    each = Cursor(SPANS, edges, 2, overview=overview)
    together = Counting(SPANS, edges, 2, overview=overview)
    finished: tuple[list[int], list[int]] = ([], [])
    each.steps.finished, together.steps.finished = finished
    at = batches = 0
    most = fate.choice(BATCHES)
    while at < len(events):
        batch = events[at : at + fate.randint(1, most)]
        at += len(batch)
        batches += 1
        for event in batch:
            each.apply(event)
        together.apply_all(batch)
        if batches % COMPARED == 0 or len(batch) > COMPARED or at == len(events):
            assert state(together.clone()) == state(each.clone())
    assert finished[0] == finished[1]
    return 1 - together.alone / len(events)


def loop(fate: random.Random, count: int) -> Iterator[Event]:
    """A training loop of `count` steps, in which now and then three kinds of things happen."""
    time, key, step, attempt = 10**9, 1, 0, 0
    calm, kinds = fate.choice((0.7, 0.9, 0.98)), fate.sample(range(13), 3)
    saving: list[int] = []  # keys of saves, and of steps, that are not over
    opened: list[int] = []

    def passed() -> int:
        nonlocal time
        time += fate.randrange(0, 200_000) if fate.random() < 0.999 else fate.randrange(-1_000, 9_000_000)
        return time

    def phase(kind: int, flags: int = 0, name: str = "") -> Iterator[Event]:
        nonlocal key
        key += 1
        mine = key
        yield Event(passed(), ev.START, kind, mine, flags=flags, name=name)
        if fate.random() < 0.1:
            yield from phase(rules.DATA_LOADING)
        if fate.random() < 0.98:
            yield Event(passed(), ev.END, kind, mine, flags=fate.choice((0, 0, 0, ev.FAILED)))

    yield Event(time, ev.ATTEMPT, step=attempt)
    yield Event(time, ev.START, rules.JOB, 1)
    for _ in range(count):
        if fate.random() > calm:
            happens = fate.choice(kinds)
            if happens == 0:
                attempt += 1
                yield Event(passed(), ev.ATTEMPT, step=attempt)
                yield Event(passed(), ev.START, rules.JOB, 1)
                step = max(0, step - fate.randrange(5))
            elif happens == 1:
                step = max(0, step - fate.randrange(20))
            elif happens == 2:
                yield from phase(rules.SAVE, flags=fate.choice((0, ev.NONBLOCKING)))
            elif happens == 11:  # durable later, of a step that may not be over
                key += 1
                saving.append(key)
                yield Event(passed(), ev.START, rules.SAVE, key, step + fate.randint(-1, 1))
                yield Event(passed(), ev.END, rules.SAVE, key, flags=ev.PENDING)
            elif happens == 12:  # and goes on while others run, perhaps of lower numbers
                key += 1
                yield Event(passed(), ev.START, rules.STEP, key, step)
                opened.append(key)
                step = max(0, step + fate.randint(-2, 1))
            elif happens == 3:
                yield from phase(rules.CUSTOM_PHASE, name=fate.choice("ab"))
            elif happens == 4:
                yield from phase(rules.COMPILE, name=fate.choice(("f", "")))
            elif happens == 5:
                yield from phase(rules.DATA_LOADING, flags=ev.NONBLOCKING)
            elif happens == 6:
                yield from phase(rules.EXCLUSION)
            elif happens == 7:
                yield Event(passed(), ev.CLOCK, fate.choice((0, 0, 1)))
            elif happens == 8:
                yield Event(passed(), ev.HEARTBEAT)
            elif happens == 9:
                yield from phase(rules.PART)
            else:
                yield Event(passed(), ev.SLICES, step=fate.randint(1, 4), key=4, arg=4)
        if saving and fate.random() < 0.1:
            yield Event(passed(), ev.DURABLE, key=saving.pop())
        if opened and fate.random() < 0.3:
            yield Event(passed(), ev.END, rules.STEP, opened.pop(), flags=fate.choice((0, 0, ev.FAILED)))
        if fate.random() < 0.95:
            yield from phase(rules.DATA_LOADING)
        key += 1
        mine = key
        yield Event(passed(), ev.START, rules.STEP, mine, step, arg=time + 70_000 if fate.random() > calm else 0)
        if fate.random() < 0.2:
            yield from phase(rules.DATA_LOADING)
        flags = 0 if fate.random() < calm else fate.choice((ev.FAILED, ev.FAILED | ev.LEFT, ev.ON_DEVICE))
        yield Event(passed(), ev.END, rules.STEP, mine, flags=flags)
        step += 1 if fate.random() < calm else fate.randint(0, 3)


@MANY
@given(runs().map(spread), st.integers(0, 2**32))
def test_a_run(rows: Rows, seed: int) -> None:
    check(list(Timeline(rows).events()), random.Random(seed))


@MANY
@given(chaos().map(spread), st.integers(0, 2**32))
def test_chaos(rows: Rows, seed: int) -> None:
    check(list(Timeline(rows).events()), random.Random(seed))


@pytest.mark.parametrize(
    "seed",
    [
        *range(5),
        *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(5, 10)),
        *(pytest.param(seed, marks=pytest.mark.release) for seed in range(10, 60)),
    ],
)
def test_a_long_loop(seed: int) -> None:
    fate = random.Random(seed)
    events = list(loop(fate, 400))
    a, b, c, d = sorted(fate.choice(events).time for _ in range(4))
    edges: list[Edge] = [(a, 0, True), (b, 1, True), (c, 0, False), (d, 1, False)] if seed % 3 == 0 else []
    check(events, fate, edges, overview=seed % 2 == 0)


def test_most_events_of_a_calm_loop_are_applied_together() -> None:
    """Else this would test nothing."""
    events = [Event(0, ev.ATTEMPT, step=0), Event(0, ev.START, rules.JOB, 1)]
    for number in range(2_000):
        at, key = number * 1_000, 2 + 2 * number
        events += (
            Event(at, ev.START, rules.DATA_LOADING, key),
            Event(at + 100, ev.END, rules.DATA_LOADING, key),
            Event(at + 200, ev.START, rules.STEP, key + 1, number),
            Event(at + 900, ev.END, rules.STEP, key + 1),
        )
    assert check(events, random.Random(3)) > 0.9


@pytest.mark.parametrize("clock", [0, 1], ids=["the host is right", "unknown without marks"])
@pytest.mark.parametrize("busy", [True, False], ids=["the device is always busy", "the host waits for some steps"])
def test_most_events_of_a_loop_on_the_device_are_applied_together(busy: bool, clock: int) -> None:
    fate = random.Random(4)
    events = [Event(0, ev.ATTEMPT, step=0), Event(0, ev.CLOCK, clock), Event(0, ev.START, rules.JOB, 1)]
    free = 0
    for number in range(1_000):
        at, key = number * 1_000, 2 + 2 * number
        free = max(free, at + 200) + (1_000 if busy else fate.randrange(100, 1_500)) + 30_000 * (number == 600)
        events += (
            Event(at, ev.START, rules.DATA_LOADING, key),
            Event(at + 100, ev.END, rules.DATA_LOADING, key),
            Event(at + 200, ev.START, rules.STEP, key + 1, number, arg=free),
            Event(at + 900, ev.END, rules.STEP, key + 1, flags=ev.ON_DEVICE),
        )
    assert check(events, fate) > 0.6


# --- what is unusual, and easily overlooked ---------------------------------------------------------------------------


def begin(time: int, key: int, number: int) -> Event:
    return Event(time, ev.START, rules.STEP, key, number)


def end(time: int, key: int, flags: int = 0) -> Event:
    return Event(time, ev.END, rules.STEP, key, flags=flags)


def load(time: int, key: int) -> Event:
    return Event(time, ev.START, rules.DATA_LOADING, key)


def loaded(time: int, key: int) -> Event:
    return Event(time, ev.END, rules.DATA_LOADING, key)


USUAL = [Event(0, ev.ATTEMPT, step=0), Event(0, ev.START, rules.JOB, 1), begin(1, 2, 0), end(9, 2), begin(10, 3, 1)]
USUAL += [end(19, 3)]

UNUSUAL = {
    "of two steps of one number the first is lost": [
        begin(20, 4, 2), begin(21, 5, 2), end(25, 5, ev.FAILED), end(30, 4), begin(31, 6, 3), end(35, 6),
    ],
    "a step ends after a later one": [begin(20, 4, 2), begin(21, 5, 3), end(25, 5), end(30, 4), begin(31, 6, 4)],
    "a step is over while the one before it is on the device": [
        Event(20, ev.START, rules.STEP, 4, 2, arg=40), end(25, 4, ev.ON_DEVICE), begin(26, 5, 3), end(26, 5),
        load(41, 6), loaded(42, 6), begin(43, 7, 3), end(45, 7),
    ],
    "a step that failed is trained again, and then a checkpoint holds it": [
        begin(20, 4, 2), Event(21, ev.START, rules.SAVE, 5, 2), Event(22, ev.END, rules.SAVE, 5, flags=ev.PENDING),
        Event(22, ev.START, rules.SAVE, 6, 1), Event(23, ev.END, rules.SAVE, 6, flags=ev.PENDING),
        end(24, 4, ev.FAILED), Event(25, ev.END, rules.SAVE, 5, flags=ev.FAILED), Event(26, ev.DURABLE, key=6),
        begin(27, 7, 2), end(28, 7), begin(29, 8, 3), Event(30, ev.START, rules.SAVE, 9), end(31, 8),
        Event(32, ev.END, rules.SAVE, 9),
    ],
    "the device is done with a step before the host is": [
        Event(20, ev.START, rules.STEP, 4, 2, arg=22), load(25, 5), loaded(26, 5), load(27, 6), loaded(28, 6),
        end(30, 4),
    ],
    "a step is on the device for the second time": [
        Event(20, ev.START, rules.STEP, 4, 2, arg=22), Event(24, ev.MARK, 0, 7, 4, arg=40), end(30, 4),
        begin(50, 6, 4), end(55, 6),
    ],
    "the clock is known again": [
        Event(20, ev.CLOCK, 1), begin(20, 4, 2), end(25, 4), Event(26, ev.CLOCK, 0), begin(30, 5, 3), end(35, 5),
    ],
}  # fmt: skip


@pytest.mark.parametrize("what", UNUSUAL)
def test_the_unusual(what: str) -> None:
    events = [*USUAL, *UNUSUAL[what]]
    check(events, random.Random(2))
    check(events, random.Random(1))
