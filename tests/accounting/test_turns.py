"""Turns that the ledger takes together leave the same account behind as each of their events taken alone."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_goodput._accounting import Ledger, ledger, rules
from otel_goodput._accounting import events as ev
from otel_goodput._accounting.cursor import Cursor
from otel_goodput._accounting.events import DeviceEnds, Event, Item, Turns, events_of, following
from otel_goodput._accounting.phase_history import EndedPhases

from .test_properties import MANY, USUAL
from .test_steady import state as state_of

SPANS = ((3 * 10**9, 60 * 10**9), (), (500_000_000,))  # ns, of rolling windows


def kept(account: Ledger) -> tuple[list[int], list[int]]:
    """Numbers and net times of the kept steps."""
    progress = account.provisional(None, dead=False).steps.progress
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


def steps_on_device(fate: random.Random, count: int, calm: float) -> Iterator[Item]:
    """What a loop records whose steps end on the device, `count` groups of them, and what else may happen."""
    time, key, step, attempt, free = 10**9, 100, 0, 0, 0
    busy, usual, host = fate.random() < 0.5, fate.randrange(1, 200_000), fate.randrange(2, 200_000)
    kinds = fate.sample(range(12), 2)
    rows: list[tuple[int, int, int, int]] = []  # moments that are not written yet
    loaded = True  # whether a load ends next
    waiting: list[tuple[int, int, int]] = []  # steps whose ends are not written yet: key, start, end
    late: list[Item] = []

    def passed() -> int:
        nonlocal time
        time += fate.randrange(0, host) if fate.random() < 0.9999 else fate.randrange(-1_000, 11_000_000_000)
        return time

    def written(most: int = 1 << 30) -> Iterator[Item]:
        first = loaded is (len(rows) % 2 == 0)
        while rows:
            some = rows[: fate.randint(1, min(80, most))]
            del rows[: len(some)]
            yield Turns(first, *zip(*some, strict=True))
            first = first is (len(some) % 2 == 0)

    def ended(many: int) -> Iterator[Item]:
        some = waiting[:many]
        del waiting[:many]
        odd = fate.random() > calm
        if not some:
            return
        if odd and fate.random() < 0.2:  # given up, now or later; or nobody ever does
            given_up = [Event(time, ev.UNOBSERVED, rules.STEP, one) for one, _, _ in some]
            late.extend(given_up[: fate.choice((0, 1 << 30, 1 << 30))])
            return
        if odd and fate.random() < 0.5:
            for one, _, end in some:
                yield Event(end, fate.choice((ev.DEVICE_END, ev.DEVICE_END, ev.UNOBSERVED)), rules.STEP, one)
            return
        ends = DeviceEnds(some[-1][2], some[0][0], len(some), usual, busy)
        if odd:
            forged = {
                "time": time - fate.randrange(10**9), "key": fate.randrange(1 << 64), "count": fate.randint(1, 64),
                "took": fate.choice((-1, 0, 10**12, fate.randrange(10**6))), "busy": not busy,
            }  # fmt: skip
            name = fate.choice([*forged])
            ends = ends._replace(**{name: forged[name]})
        if odd and fate.random() < 0.3:
            late.append(ends)
        else:
            yield ends

    yield Event(time, ev.ATTEMPT, step=attempt)
    yield Event(time, ev.CLOCK, fate.choice((0, 1)))
    yield Event(time, ev.START, rules.JOB, 1)
    if fate.random() < 0.2:
        yield Event(time, ev.LIMIT, key=fate.choice((usual, 3 * usual, 10**9)))
    yield Event(passed(), ev.START, rules.DATA_LOADING, key, step)
    ahead, queued = fate.choice((0, 0, 5, 40)), fate.choice((3, 40, 200))
    for _ in range(count):
        for _ in range(fate.randrange(1, 130)):
            odd = fate.random() > calm and fate.random() < 0.01
            step += not loaded
            flags = 0 if loaded else ev.ON_DEVICE
            rows.append((passed(), key, step, fate.choice((ev.FAILED, 0, ev.ON_DEVICE)) if odd else flags))
            key = following(key) + (odd and fate.random() < 0.02)
            if loaded:
                free = max(free, time + (ahead * usual if busy and free < time else 0)) + (
                    usual if busy or fate.random() < 0.9 else fate.randrange(4 * usual)
                )
                waiting.append((key, time, free))
                if len(waiting) > queued and fate.random() < calm:
                    time = max(time, waiting[-queued][2])  # the host waits for room in the queue
            loaded = not loaded
        if fate.random() < 0.9:
            yield from written()
            yield from ended(sum(end <= time for _, _, end in waiting) if fate.random() < 0.9 else 1)
        if late and fate.random() < 0.5:
            yield from late
            late.clear()
        if fate.random() < calm**0.5:
            continue
        yield from written()
        happens = fate.choice(kinds)
        if happens == 0 and loaded:
            step = max(0, step - fate.randrange(-3, 9))
        elif happens == 1:
            attempt, free, loaded = attempt + 1, 0, True
            waiting.clear()
            yield Event(passed(), ev.ATTEMPT, step=attempt)
            yield Event(passed(), ev.START, rules.JOB, 1)
            yield Event(passed(), ev.START, rules.DATA_LOADING, key, step)
        elif happens == 2:
            yield Event(passed(), ev.CLOCK, fate.choice((0, 1)))
        elif happens == 3:
            yield Event(passed(), ev.SLICES, key=2, step=fate.choice((1, 2)), arg=2)
        elif happens == 4:
            yield Event(time - fate.randrange(10**6), ev.HEARTBEAT)
        elif happens == 5 and waiting:
            yield Event(time, ev.OBSERVED, rules.STEP, fate.choice(waiting)[0])
        elif happens == 6:
            yield Event(passed(), ev.LIMIT, key=fate.choice((0, usual, 10**9)))
            yield Event(passed(), ev.PROFILING, step=fate.choice((0, 1)))
        elif happens >= 7:
            phase, inner = (
                (rules.SAVE, rules.CUSTOM_PHASE, rules.EXCLUSION, rules.RESTORE, rules.COMPILE)[happens - 7],
                key + (1 << 32),
            )
            yield Event(passed(), ev.START, phase, inner, step, name="a" if phase == rules.CUSTOM_PHASE else "")
            if fate.random() < 0.2:
                yield Event(time, ev.MARK, 0, inner + 1, inner - (1 << 64) if inner >> 63 else inner)
                yield Event(time + usual, ev.DEVICE_END, 0, inner + 1)
            if fate.random() < 0.99:
                yield Event(passed() - fate.choice((0, 0, 10**5)), ev.END, phase, inner)


def state(cursor: Cursor) -> tuple[Any, list[bytes]]:
    plain, blobs = state_of(cursor)
    state = json.loads(plain)
    for _, counts in state["steps"]["step_summary"]["tallies"]["histogram"]:
        counts.sort()  # their order tells how many steps were counted at once
    for _, loop in state["steps"]["loops"]:
        del loop["times"][: -rules.USUAL_SAMPLE]  # only these are compared with
    return state, blobs


def lengths(ended: list[EndedPhases]) -> dict[tuple[int, str, bool], list[int]]:
    by_group: dict[tuple[int, str, bool], list[int]] = {}
    for phase, name, blocking, _, some in ended:
        by_group.setdefault((phase, name, blocking), []).extend(some)
    return {group: sorted(some) for group, some in by_group.items()}


def check(sequence: list[Item], fate: random.Random, spans: Sequence[int], most: int = 6) -> float:
    """Feed up to `most` items at a time; returns which share of the moments in turns was taken together."""
    together, alone = Ledger(spans), Ledger(spans)
    taken = 0

    def counting(self: Cursor, *turns: Any) -> tuple[list[int], list[int]]:
        nonlocal taken
        steps, loads = apply_turns(self, *turns)
        taken += 2 * len(steps)
        return steps, loads

    def proving(self: Cursor, turns: Turns) -> bool:
        nonlocal taken
        each, given = self.clone(), len(self.steps.finished or ())
        each.steps.finished = []
        done = apply_dispatched(self, turns)
        if done:
            taken += len(turns.times)
            for event in turns.events():
                each.apply(event)
            assert each.steps.finished == (self.steps.finished or [])[given:]
        assert state(self.clone()) == state(each)
        return done

    apply_turns, apply_dispatched = Cursor.apply_turns, Cursor.apply_dispatched
    together.collect()
    alone.collect()
    at = 0
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Cursor, "apply_turns", counting)
        patched.setattr(Cursor, "apply_dispatched", proving)
        while at < len(sequence):
            batch = sequence[at : at + fate.randint(1, most)]
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


@settings(MANY, max_examples=max(USUAL // 8, USUAL - 75))  # each takes 0.8 s
@given(st.integers(0, 2**32), st.sampled_from((0.8, 0.99, 0.999)))
def test_turns_taken_together_are_those_taken_alone(seed: int, calm: float) -> None:
    fate = random.Random(seed)
    check([*items(fate, 6, calm)], fate, fate.choice(SPANS))


@settings(MANY, max_examples=USUAL // 2)
@given(st.integers(0, 2**32), st.sampled_from((0.8, 0.95, 0.99)), st.booleans())
def test_turns_that_wait_together_for_the_device_are_those_that_wait_alone(seed: int, calm: float, few: bool) -> None:
    fate = random.Random(seed)
    with pytest.MonkeyPatch.context() as patched:
        if few:
            patched.setattr(ledger, "WAITING", 400)  # beyond that, it counts what is fed at once
        check([*steps_on_device(fate, 15, calm)], fate, fate.choice((*SPANS, (), ())), 1 if few else 6)


def test_nearly_all_turns_of_a_loop_on_the_device_are_taken_together() -> None:
    shares = []
    for seed in range(5):
        fate = random.Random(seed)
        shares.append(check([*steps_on_device(fate, 30, 1)], fate, ()))
    assert sorted(shares)[2] > 0.8  # but for those with a limit that each step reaches


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
