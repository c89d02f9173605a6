"""Time with a cause over a whole run, in bins: what stands out in each of them, in bounded space."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Final, Generic, TypeVar

MOST: Final = 512  # bins
FINEST: Final = 30  # of the width: the power of two to begin with, ns; 1.1 s
STANDS_OUT: Final = 256  # causes of less than one part in so many of a bin are not remembered

K = TypeVar("K", bound=Hashable)


class CostBins(Generic[K]):
    """Bins of equal width, which doubles whenever there would be too many. They begin at multiples of it, ns.

    Attributes:
        bins: by number, which is the begin over the width: ns by cause. Numbers without any are missing.
    """

    def __init__(self) -> None:
        self.bins: dict[int, dict[K, int]] = {}
        self._power = FINEST
        self._begin = self._end = 0  # of all time that was added, ns

    @property
    def width(self) -> int:
        """Of a bin, ns."""
        return 1 << self._power

    def add(self, cause: K, begin: int, end: int) -> None:
        """Add time from `begin` to `end` (ns), not before what was added last."""
        if begin >= end:
            return
        if not self._end:
            self._begin = self._end = begin
        before, self._end = self._end, max(self._end, end)
        while (self._end - 1 >> self._power) - (self._begin >> self._power) >= MOST:
            self._widen()
        power = self._power
        for number in range(begin >> power, (end - 1 >> power) + 1):
            held = self.bins.setdefault(number, {})
            held[cause] = held.get(cause, 0) + min(end, number + 1 << power) - max(begin, number << power)
        for number in range(before - 1 >> power, self._end - 1 >> power):
            self._sift(number)

    def stretches(self, least: int) -> Iterator[tuple[int, int, K, int]]:
        """Yield begin and end (ns) of bins in a row in which a cause has `least` or more, the cause, and its time."""
        opened: dict[K, tuple[int, int, int]] = {}  # the first bin, the last, and the time in them
        for number, held in self.bins.items():
            for cause, spent in held.items():
                if spent < least:
                    continue
                first, last, before = opened.get(cause, (number, number - 1, 0))
                if last != number - 1:
                    yield first * self.width, (last + 1) * self.width, cause, before
                    first, before = number, 0
                opened[cause] = first, number, before + spent
        for cause, (first, last, spent) in opened.items():
            yield first * self.width, (last + 1) * self.width, cause, spent

    def _widen(self) -> None:
        self._power += 1
        narrow, self.bins = self.bins, {}
        for number, held in narrow.items():
            wide = self.bins.setdefault(number >> 1, {})
            for cause, spent in held.items():
                wide[cause] = wide.get(cause, 0) + spent
        for number in list(self.bins)[:-1]:
            self._sift(number)

    def _sift(self, number: int) -> None:
        """Forget what does not stand out in a bin to which no more is added."""
        kept = {cause: spent for cause, spent in self.bins.get(number, {}).items() if spent * STANDS_OUT >= self.width}
        if kept:
            self.bins[number] = kept
        else:
            self.bins.pop(number, None)
