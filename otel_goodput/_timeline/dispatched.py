"""The turns of a loop whose steps end by the device's clock, in time order and with these ends, as columns."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Final

from otel_goodput._accounting import events as ev
from otel_goodput._accounting import rules
from otel_goodput._accounting.arithmetic import PLAIN, Arithmetic
from otel_goodput._accounting.device import NEVER, place
from otel_goodput._accounting.events import Event, TurnColumns, key_behind

FEWEST: Final = 16  # turns: fewer are yielded one by one
_KNOWN: Final = 1  # the least time at which a step has left the device, ns


def dispatched_in_order(
    items: Sequence[Event | TurnColumns], arithmetic: Arithmetic = PLAIN
) -> list[Event | TurnColumns] | None:
    """Return what was recorded in one attempt in time order, with the device ends of steps; None: not in columns.

    It is what ``ordered`` makes of it, but of the moments at which a step left the device, only the last is there: the
    others tell nothing else.
    """
    columns = [one for one in items if isinstance(one, TurnColumns)]
    single = [one for one in items if isinstance(one, Event)]
    if (
        all(one.device is None for one in columns)
        or any(before.time > after.ended[0] for before, after in pairwise(columns))
        or any(one.kind == ev.DEVICE_END and one.step != ev.NO_STEP for one in single)
    ):
        return None
    odd = [one.key for one in single if one.kind in (ev.OBSERVED, ev.UNOBSERVED, ev.MARK)]
    if len(odd) > len(columns) + FEWEST or any(one.has(key) for one in columns for key in odd):
        return None
    ends = {one.key: max(_KNOWN, one.time) for one in single if one.kind == ev.DEVICE_END}
    gone: dict[int, array[int]] = {}
    for one in columns:
        if one.device is not None:
            gone[id(one)], others = arithmetic.left(one)
            ends.update(others)
    times = sorted(one.time for one in single if one.kind not in (ev.DEVICE_END, ev.ATTEMPT))
    rest: list[Event] = []
    together: dict[int, TurnColumns] = {}  # by the event that is in their place
    for item in items:
        if isinstance(item, Event):
            if item.kind not in (ev.DEVICE_END, ev.ATTEMPT):
                rest.append(item)
            continue
        for part, whole in _parts(item, gone.get(id(item)), ends, times):
            if whole:
                event = Event(part.ended[0], ev.END, rules.STEP, part.key, part.numbers[0] - 1)
                together[id(event)] = part
                rest.append(event)
            else:
                for event in part.events():
                    if event.arg:
                        ends[event.key] = event.arg
                    rest.append(event)
    latest = max((end for end in (*ends.values(), *_latest(columns))), default=0)
    if latest:
        rest.append(Event(latest, ev.DEVICE_END, rules.STEP))
    awaited = {
        one.key
        for one in rest
        if one.kind in (ev.OBSERVED, ev.MARK) or (one.kind == ev.END and one.flags & ev.ON_DEVICE)
    }
    awaited.difference_update(one.key for one in single if one.kind == ev.UNOBSERVED)
    rest.sort(key=lambda one: one.time)
    placed = place(rest, ends, awaited, NEVER)
    return [*(one for one in single if one.kind == ev.ATTEMPT), *(together.get(id(one), one) for one in placed)]


def _places(number: int, column: array[int]) -> Iterator[int]:
    """Yield where `number` is in a column, of which what was yielded may be changed."""
    at = -1
    with suppress(ValueError):
        while True:
            at = column.index(number, at + 1)
            yield at


def _latest(columns: Sequence[TurnColumns]) -> Iterator[int]:
    for one in columns:
        if one.device is not None and one.device.span:
            yield max(_KNOWN, one.device.span[1])


def _parts(
    turns: TurnColumns, left: array[int] | None, ends: dict[int, int], times: Sequence[int]
) -> Iterator[tuple[TurnColumns, bool]]:
    """Divide `turns` where something else happens, at one of the `times` (ns); yield parts, and whether they go whole.

    Of a step that begins in a whole one, it is known when it `left` the device, and nothing else happens meanwhile.
    """
    count = len(turns.numbers)
    alone = {0, count - 1}
    for time in times[bisect_left(times, turns.ended[0]) : bisect_right(times, turns.begun[-1])]:
        at = bisect_left(turns.begun, time)
        alone.update(range(max(0, at - 1), min(count, at + 2)))
    if left is not None:
        key = key_behind(turns.key, 2)
        for at in _places(0, left):
            left[at] = ends.get(key_behind(key, 2 * at), 0)
            if not left[at]:
                alone.update((at, min(at + 1, count - 1)))  # the end of this step, too
    known = turns if left is None else turns._replace(left=left, device=None)
    edges = [-1, *sorted(alone), count]
    first = 0  # of those that go one by one
    for before, after in pairwise(edges):
        if after - before - 1 >= FEWEST:
            if first <= before:
                yield known.slice(first, before + 1), False
            yield known.slice(before + 1, after), True
            first = after
    if first < count:
        yield known.slice(first, count), False
