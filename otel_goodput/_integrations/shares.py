"""How long steps take on the device, and how several divide the time up to the mark that they share.

A mark says when the last of its steps left the device. The steps before it are taken for equally long, each beginning
when it was dispatched and the one before is over (docs/device-clock.md). All times and lengths are in ns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from operator import add, floordiv, mul, sub
from typing import Final, NamedTuple

RECENT: Final = 16  # steps from which the length of the next one is estimated
MEASURED: Final = 4  # steps from which on that is more than a guess


class StepLengths:
    """How long the recent steps took.

    Attributes:
        usual: the median; 0 if none is known.
        shortest: the shortest; likewise.
    """

    def __init__(self) -> None:
        self._recent: deque[int] = deque(maxlen=RECENT)
        self.usual = self.shortest = 0

    @property
    def known(self) -> int:
        """The usual length; 0 until some steps have been measured."""
        return self.usual if len(self._recent) >= MEASURED else 0

    def add(self, length: int) -> None:
        self._recent.append(length)
        recent = sorted(self._recent)
        self.usual, self.shortest = recent[len(recent) // 2], recent[0]


class Shares(NamedTuple):
    """The division of the time up to `end` between steps.

    Attributes:
        starts: when each was dispatched.
        free: since when the device had nothing else to do.
        length: of each step but the one that gets the rest: the first if the device was `busy`, else the last.
        busy: the device was never idle between two of the steps.
        end: when the last step ended.
    """

    starts: Sequence[int]
    free: int
    length: int
    busy: bool
    end: int

    @property
    def last(self) -> int:
        """How long the last step took."""
        return self.length if self.busy else self.end - self._begin_of(len(self.starts) - 1)

    def _begin_of(self, at: int) -> int:
        """When step `at` began on the device, if it was not busy all the time."""
        behind = range(at, -1, -1)
        latest: int = max(map(add, self.starts, map(mul, repeat(self.length), behind)))
        return max(self.free + self.length * at, latest)

    def end_of(self, at: int) -> int:
        """When step `at` left the device, as readers of the journal find it."""
        behind = len(self.starts) - 1 - at
        if not behind:
            return self.end
        return self.end - self.length * behind if self.busy else min(self.end, self._begin_of(at) + self.length)

    def durations(self) -> list[int]:
        """How long each step took."""
        steps = len(self.starts)
        durations = [self.length] * steps
        if self.busy:
            durations[0] = self.end - self.length * (steps - 1) - max(self.starts[0], self.free)
        else:
            durations[-1] = self.last
        return durations


def divide(starts: Sequence[int], free: int, end: int, usual: int) -> Shares:
    """Divide the time up to `end` between steps dispatched at `starts`; the device was `free` before.

    They get the longest length with which all of them end by `end`. If the device was idle between two of them, the
    length of those before does not follow from `end`; it is the `usual` one, if that is shorter.
    """
    count = len(starts)
    most = (end - max(starts[0], free)) // count
    longest: int = min(map(floordiv, map(sub, repeat(end), starts), range(count, 0, -1)))
    if longest >= most:
        return Shares(starts, free, most, True, end)
    return Shares(starts, free, max(0, min(longest, usual or longest)), False, end)


def durations_of(starts: Sequence[int], free: int, ends: Sequence[int]) -> Iterator[int]:
    """Yield how long each of the steps that ended at `ends` was on the device."""
    return map(sub, ends, map(max, starts, chain((free,), ends)))
