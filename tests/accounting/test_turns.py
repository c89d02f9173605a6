"""Turns that the ledger takes together leave the same account behind as each of their events taken alone."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_goodput._accounting import Ledger, rules
from otel_goodput._accounting import events as ev
from otel_goodput._accounting.cursor import Cursor
from otel_goodput._accounting.events import Event, Turns, events_of, following
from otel_goodput._accounting.phase_history import EndedPhases

from .test_properties import MANY, USUAL

Item = Event | Turns
SPANS = ((3 * 10**9, 60 * 10**9), (), (100_000_000,))  # ns, of rolling windows


def kept(ledger: Ledger) -> tuple[list[int], list[int]]:
    """Numbers and net times of the kept steps."""
    progress = ledger.settled.steps.progress
    return [progress.number_at(at) for at in range(len(progress))], progress.nets(0, len(progress))


def items(fate: random.Random, count: int, calm: float) -> Iterator[Item]:
    """What a training loop records, in which `count` times in turn it runs on for a while, and something happens."""
    time, key, step, attempt = 10**9, 100, 0, 0
    kinds = fate.sample(range(10), 2)

    def passed() -> int:
        nonlocal time
        time += fate.randrange(0, 200_000) if fate.random() < calm else fate.randrange(-1_000, 11_000_000_000)
        return time

    yield Event(time, ev.ATTEMPT, step=attempt)
    yield Event(time, ev.START, rules.JOB, 1)
    yield Event(passed(), ev.START, rules.DATA_LOADING, key, step)
    for _ in range(count):
        loaded = first = fate.random() < 0.5 or step == 0
        if not first:
            yield Event(passed(), ev.END, rules.DATA_LOADING, key)
            key = following(key)
            yield Event(time, ev.START, rules.STEP, key, step)
        rows = []
        for _ in range(fate.randrange(1, 100)):
            odd = fate.random() > calm
            step += not loaded
            rows.append((passed(), key, step, fate.choice((ev.FAILED, ev.ON_DEVICE)) if odd else 0))
            key = following(key) + (odd and fate.random() < 0.02)
            loaded = not loaded
        times, keys, numbers, flags = zip(*rows, strict=True)
        yield Turns(first, times, keys, numbers, flags)
        for ended, flag in zip(keys, flags, strict=True):
            if flag & ev.ON_DEVICE:
                yield Event(time, fate.choice((ev.DEVICE_END, ev.UNOBSERVED)), 0, ended)
        if not loaded:  # a step is open
            if fate.random() < 0.3:
                yield Event(
                    time - fate.randrange(1000), fate.choice((ev.DEVICE_END, ev.OBSERVED, ev.UNOBSERVED)), 0, key
                )
            yield Event(passed(), ev.END, rules.STEP, key)
            key, step = following(key), step + 1
            yield Event(time, ev.START, rules.DATA_LOADING, key, step)
        happens, inner = fate.choice((-1, -1, *kinds)), key + (1 << 32)
        if happens == 0:
            step = max(0, step - fate.randrange(-3, 9))
        elif happens == 2:
            attempt += 1
            yield Event(passed(), ev.ATTEMPT, step=attempt)
            yield Event(passed(), ev.START, rules.JOB, 1)
            yield Event(passed(), ev.START, rules.DATA_LOADING, key, step)
        elif happens == 3:
            yield Event(passed(), ev.CLOCK, fate.choice((0, 1)))
        elif happens == 4:
            yield Event(passed(), ev.SLICES, key=2, step=fate.choice((1, 2)), arg=2)
        elif happens == 5:
            yield Event(time - fate.randrange(10**6), ev.HEARTBEAT)
        elif happens >= 6:
            phase = (rules.SAVE, rules.CUSTOM_PHASE, rules.EXCLUSION, rules.RESTORE)[happens - 6]
            yield Event(passed(), ev.START, phase, inner, step, name="a" if phase == rules.CUSTOM_PHASE else "")
            if fate.random() < 0.9:
                yield Event(passed() - fate.choice((0, 0, 10**5)), ev.END, phase, inner)


def lengths(ended: list[EndedPhases]) -> dict[tuple[int, str, bool], list[int]]:
    found: dict[tuple[int, str, bool], list[int]] = {}
    for phase, name, blocking, _, some in ended:
        found.setdefault((phase, name, blocking), []).extend(some)
    return {group: sorted(some) for group, some in found.items()}


def check(sequence: list[Item], fate: random.Random, spans: Sequence[int]) -> float:
    """Returns which share of the moments in turns was taken together."""
    together, alone = Ledger(spans), Ledger(spans)
    taken = 0

    def counting(self: Cursor, turns: Turns) -> int:
        nonlocal taken
        count = apply_turns(self, turns)
        taken += 2 * count
        return count

    apply_turns = Cursor.apply_turns
    for ledger in (together, alone):
        ledger.collect()
    at = 0
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Cursor, "apply_turns", counting)
        while at < len(sequence):
            batch = sequence[at : at + fate.randint(1, 6)]
            at += len(batch)
            together.feed(batch)
            alone.feed([*events_of(batch)])
            assert together.opened == alone.opened
            if fate.random() < 0.1 or at == len(sequence):
                moment = max(event.time for event in batch) + fate.choice((0, 10**9))
                assert together.totals(moment) == alone.totals(moment)
                assert together.overview(moment) == alone.overview(moment)
                assert kept(together) == kept(alone)
                assert together.past() == alone.past()
            finished, ended = zip(together.take_collected(), alone.take_collected(), strict=True)
            assert sorted(finished[0]) == sorted(finished[1]) and lengths(ended[0]) == lengths(ended[1])
    return taken / sum(len(one.times) for one in sequence if isinstance(one, Turns))


@settings(MANY, max_examples=USUAL // 2)
@given(st.integers(0, 2**32), st.sampled_from((0.8, 0.99, 0.999)))
def test_turns_taken_together_are_those_taken_alone(seed: int, calm: float) -> None:
    fate = random.Random(seed)
    check([*items(fate, 6, calm)], fate, fate.choice(SPANS))


def test_nearly_all_turns_of_a_loop_are_taken_together() -> None:
    fate = random.Random(1)
    times = [10**9 + at * 10_000 + fate.randrange(10_000) for at in range(3_000)]
    keys = [100]
    while len(keys) < len(times):
        keys.append(following(keys[-1]))
    numbers = [(at + 1) // 2 for at in range(len(times))]
    turns = Turns(True, tuple(times), tuple(keys), tuple(numbers), (0,) * len(times))
    begun = [
        Event(10**9, ev.ATTEMPT, step=0),
        Event(10**9, ev.START, rules.JOB, 1),
        Event(10**9, ev.START, rules.DATA_LOADING, 100, 0),
    ]
    parts = [turns.slice(at, at + 100) for at in range(0, len(times), 100)]
    assert check([*begun, *parts], fate, SPANS[0]) > 0.9
