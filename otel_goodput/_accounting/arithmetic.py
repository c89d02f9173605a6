"""Arithmetic with columns of times, of which there may be millions; with numpy, it takes a small part of the time.

This is what does it anywhere. What does the same with numpy is in ``_journal/numpy_arithmetic.py``: the accounting does
not depend on it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from operator import itemgetter, sub
from typing import Final, NamedTuple

from otel_goodput._accounting.events import Column, TurnColumns, key_behind, place_of

WHOLE: Final = "q"  # of arrays of times, ns


class Lengths(NamedTuple):
    """How long steps in a row take, and the loads between them, ns.

    Attributes:
        steps: of each step.
        total: of all steps.
        shortest, longest: the least of the steps and the most.
        load: the least of the loads; that of the steps if there is only one.
    """

    steps: Column
    total: int
    shortest: int
    longest: int
    load: int


class Common(NamedTuple):
    """What steps of several ranks are together. In each column, there is one number for each step.

    Attributes:
        latest: the latest begin of any rank, ns.
        last: the place of the rank that begins then; of several, the last one.
        ready: when most of the others have begun, ns.
        first, end: the first and the last end of any rank, ns.
    """

    latest: Sequence[int]
    last: Sequence[int]
    ready: Sequence[int]
    first: Sequence[int]
    end: Sequence[int]

    def each(self) -> Iterator[tuple[int, int, int, int, int]]:
        """Yield all of each step."""
        return zip(*self, strict=True)


class Dispatched(NamedTuple):
    """What steps in a row own whose ends by the device's clock are known.

    Attributes:
        owned, overs: each owns the time from one to the other, ns.
        lengths: of that, ns.
        sound: so many of the first ones are as they should be: in order, and none is longer than the limit.
    """

    owned: Column
    overs: Column
    lengths: Column
    sound: int


class Arithmetic:
    """Plain arithmetic with columns. No column is empty."""

    def moved(self, times: Column, by: int) -> Column:
        """Return all times later by so many ns."""
        return array(WHOLE, [time + by for time in times])

    def sum_and_least(self, column: Column) -> tuple[int, int]:
        """Return what the numbers add up to, and the least of them."""
        return sum(column), min(column)

    def lengths(self, begins: Column, ends: Column) -> Lengths:
        """Return how long steps with these begins and ends take (ns), which are in a row."""
        steps = array(WHOLE, map(sub, ends, begins))
        loads = map(sub, begins[1:], ends)
        shortest = min(steps)
        return Lengths(steps, sum(steps), shortest, max(steps), min(loads, default=shortest))

    def left(self, turns: TurnColumns) -> tuple[array[int], dict[int, int]]:
        """Return when the steps that begin in `turns` left the device, ns, as far as it was recorded there, else 0.

        Besides, what was recorded of other steps, by their keys. All are later than 0.
        """
        device, count, others = turns.device, len(turns.numbers), dict[int, int]()
        left, first = array(WHOLE, bytes(8 * count)), key_behind(turns.key, 2)
        for key, time in () if device is None else zip(device.keys, device.times, strict=True):
            at, between = divmod(place_of(key, first), 2)
            if at < count and not between:
                left[at] = max(1, time)
            else:
                others[key] = max(1, time)
        return left, others

    def dispatched(
        self, now: int, freed: Sequence[int], begins: Column, ends: Column, left: Column, limit: int
    ) -> Dispatched | None:
        """Return what steps own from `now` on (ns); None: it is no faster here than one after the other.

        The first ones are on the device already. It is done with what was before them, and with each of them, when it
        is `freed` (ns). The others begin and end by the host's clock, and `left` the device (ns).
        """
        return None

    def common(self, begins: Sequence[Column], ends: Sequence[Column], middle: int) -> Common:
        """Return what the steps of several ranks are together: a column of begins and one of ends for each rank.

        `middle`: most others have begun when the begin at this place of the sorted ones has passed.
        """
        rows, over = list(zip(*begins, strict=True)), list(zip(*ends, strict=True))
        latest = list(map(max, rows))
        behind = len(begins) - 1
        last = [behind - row[::-1].index(moment) for row, moment in zip(rows, latest, strict=True)]
        # As small numbers, they are sorted in half the time.
        since = map(itemgetter(0), rows)
        ready = [base + sorted([one - base for one in row])[middle] for row, base in zip(rows, since, strict=True)]
        return Common(latest, last, ready, list(map(min, over)), list(map(max, over)))


PLAIN: Final = Arithmetic()
